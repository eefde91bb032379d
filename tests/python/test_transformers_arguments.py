"""What is wrong with the arguments of compress(), or with the model, is said at its line, before anything runs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import chunkkv  # noqa: E402
import chunkkv.transformers  # noqa: E402
from chunkkv.transformers import BudgetRaised  # noqa: E402
from tiny_models import SHAPE, generated, prompt, tiny  # noqa: E402


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("Llama", "sdpa")


REFUSED: list[tuple[dict[str, Any], str]] = [
    # one of them is needed
    ({}, "keep_ratio: one of keep_ratio and max_tokens"),
    # budgets
    ({"keep_ratio": 1.5}, "keep_ratio: 1.5"),
    ({"keep_ratio": True}, "keep_ratio must be a number.* not True"),
    ({"max_tokens": 0}, "max_tokens: must be 1 to"),
    ({"max_tokens": 2.5}, "max_tokens must be a whole number, not 2.5"),
    ({"max_tokens": True}, "max_tokens must be a whole number, not True"),
    ({"max_tokens": "9"}, "max_tokens must be a whole number, not '9'"),
    # methods
    ({"keep_ratio": 0.5, "method": "nonsense"}, "method: 'nonsense' is none of .* hybrid"),
    ({"keep_ratio": 0.5, "method": None}, "method must be a name, a Policy or several, not None"),
    ({"keep_ratio": 0.5, "method": []}, "method must be a name, a Policy or several"),
    ({"keep_ratio": 0.5, "method": "page"}, "page"),
    ({"keep_ratio": 0.5, "method": "hybrid", "window": 4}, "no argument 'window'.*lower, upper"),
    ({"keep_ratio": 0.5, "method": "hybrid", "lower": 4}, "lower must be a Policy"),
    ({"keep_ratio": 0.5, "method": "hybrid", "lower": chunkkv.Policy(window=0)}, "window: must be at least 1, is 0"),
    ({"keep_ratio": 0.5, "method": chunkkv.Policy(), "window": 4}, "window goes with a method's name"),
    # h2o
    ({"method": "h2o", "keep_ratio": 0.5, "heavy": 0.1}, "keep_ratio: method h2o takes either keep_ratio or"),
    ({"method": "h2o", "max_tokens": 9, "recent": 0.1}, "max_tokens: method h2o takes either keep_ratio or"),
    ({"method": "h2o", "heavy": 0.7, "recent": 0.7}, "recent: heavy and recent are at most 1 together"),
    ({"method": "h2o", "heavy": 2}, r"heavy: 2 is not in \(0, 1\]"),
    # options
    ({"keep_ratio": 0.5, "nonsense": 4}, "no argument 'nonsense'.* it takes |no argument 'nonsense'.*takes profile"),
    ({"keep_ration": 0.5}, "no argument 'keep_ration'.* did you mean 'keep_ratio'"),
    ({"keep_ratio": 0.5, "windows": 4}, "no argument 'windows'.* did you mean 'window'"),
    ({"keep_ratio": 0.5, "window": 0}, "window: must be at least 1, is 0"),
    ({"keep_ratio": 0.5, "chunk": 0}, "chunk: must be at least 1, is 0"),
    ({"keep_ratio": 0.5, "window": 2.5}, "^window must be a whole number, not 2.5"),
    ({"keep_ratio": 0.5, "heads": 3}, "^heads must be a str"),
    ({"keep_ratio": 0.5, "heads": "some"}, "heads: must be one of sum, max, each"),
    # compressing again
    ({"keep_ratio": 0.5, "every": 0}, "every: must be 1 to"),
    ({"keep_ratio": 0.5, "every": 64.5}, "every must be a whole number"),
    ({"keep_ratio": 0.5, "every": 31}, "every: must be at least 32"),
    ({"keep_ratio": 0.5, "every": 64, "method": "snapkv-each"}, "heads keep different rows"),
    ({"keep_ratio": 0.5, "every": 64, "method": "pyramidkv"}, "different numbers"),
    ({"method": "h2o", "every": 64}, "queries of all rows"),
    # the others
    ({"keep_ratio": 0.5, "protect": [(5, 2)]}, r"protect\[0\]: \(5, 2\) is no half-open range"),
    ({"keep_ratio": 0.5, "protect": [5]}, r"protect\[0\] must be a pair"),
    ({"keep_ratio": 0.5, "protect": None}, "protect must be a list of pairs"),
    ({"keep_ratio": 0.5, "voted": 0}, "voted: 0 is 0 millionths, not 1 to"),
    ({"keep_ratio": 0.5, "voted": 1.0}, "voted: is 1.0, which leaves nothing to the method: that is method=\"vote\""),
    ({"keep_ratio": 0.5, "voted": True}, "voted must be a number"),
    ({"keep_ratio": 0.5, "voted": "most"}, "voted: 'most' is no decimal number"),
    ({"keep_ratio": 0.5, "voted": float("nan")}, r"voted: nan is not in \(0, 1\]"),
    ({"max_tokens": 50, "method": "h2o", "voted": 0.5}, "h2o has budgets of its own"),
    ({"keep_ratio": 0.5, "voted": 0.5, "every": 64}, "voted is one set for all layers"),
    ({"keep_ratio": 0.5, "method": "chunk-at", "chunk_lengths": [0, 120]}, r"chunk_lengths\[0\]: must be 1 to"),
    ({"keep_ratio": 0.5, "method": "chunk-at", "chunk_lengths": 7}, "chunk_lengths must be a list"),
    ({"keep_ratio": 0.5, "method": "chunk-at", "chunk_lengths": []}, "chunk_lengths: must have at least 1 entry"),
    ({"keep_ratio": 0.5, "on_error": "ignore"}, "on_error: must be one of raise, continue"),
    ({"keep_ratio": 0.5, "timeout": -1}, "timeout: must be above 0"),
    ({"keep_ratio": 0.5, "timeout": "long"}, "timeout must be a number of seconds"),
    ({"keep_ratio": 0.5, "client": "x"}, "client must be a Client"),
    ({"keep_ratio": 0.5, "endpoint": 3}, "endpoint must be a str"),
]


@pytest.mark.parametrize(("asked", "words"), REFUSED, ids=lambda part: str(part)[:60])
def test_arguments_that_are_refused_without_a_daemon(model: Any, asked: dict[str, Any], words: str) -> None:
    with pytest.raises((chunkkv.ChunkkvError, TypeError), match=words):
        chunkkv.compress(model, **asked)


ASKED_OF_THE_DAEMON: list[tuple[dict[str, Any], str]] = [
    ({"keep_ratio": 0.5, "window": 300}, "OUT_OF_RANGE: window: must be 1 to 256, is 300"),
    ({"keep_ratio": 0.5, "sinks": 5000}, "OUT_OF_RANGE: sinks: must be 0 to 1024"),
    ({"keep_ratio": 0.5, "pool": "avg", "pool_size": 2}, "INVALID_ARGUMENT: pool_size: must be odd"),
    ({"keep_ratio": 0.5, "method": "chunk-at"}, "INVALID_ARGUMENT: chunk_lengths: chunk_at keeps"),
    ({"keep_ratio": 0.5, "chunk_lengths": [60, 60]}, "INVALID_ARGUMENT: chunk_lengths: are for selector chunk_at"),
    ({"max_tokens": 50, "method": "chunkkv-kvpress"}, "INVALID_ARGUMENT: max_tokens: the profile does not let"),
    ({"keep_ratio": 0.6, "method": "chunkkv-kvpress", "voted": 0.5}, "INVALID_ARGUMENT: voted: the profile"),
    ({"keep_ratio": 0.5, "scorer": "given"}, "INVALID_ARGUMENT: scores_in: scorer given"),
    ({"keep_ratio": 0.5, "protect": [(0, 1)] * 1025}, "OUT_OF_RANGE: protect.*must have 0 to 1024 entries"),
    ({"keep_ratio": 0.5, "method": [chunkkv.Policy(), chunkkv.Policy(layer_first=9)]},
     r"INVALID_ARGUMENT: method\[1\].layer_first: layer 9 is not"),
]


@pytest.mark.parametrize(("asked", "words"), ASKED_OF_THE_DAEMON, ids=lambda part: str(part)[:60])
@pytest.mark.parametrize("on_error", ["raise", "continue"])
def test_arguments_that_the_daemon_refuses_at_the_beginning(daemon: Any, model: Any, asked: dict[str, Any], words: str,
                                                            on_error: Any) -> None:
    """At the `with` line, also where errors of single prompts are passed over, and nothing stays behind."""
    before = daemon.usage().memfd_mappings
    with pytest.raises(chunkkv.ChunkkvError, match=words), \
            chunkkv.compress(model, endpoint=daemon.prefix(), on_error=on_error, **asked):
        pytest.fail("the block was entered")
    with chunkkv.Client(daemon.prefix()) as client:
        client.ping()
    assert daemon.usage().memfd_mappings == before
    with chunkkv.compress(model, endpoint=daemon.prefix(), keep_ratio=0.5) as kv:  # and the model is as it was
        generated(model, prompt(64), 2)
    assert len(kv.reports) == 1


@pytest.mark.parametrize("on_error", ["raise", "continue"])
def test_what_only_a_prompt_can_tell(daemon: Any, model: Any, on_error: str) -> None:
    """Raised also where what the daemon refuses is passed over: the arguments are wrong, not the daemon's state."""
    ids = prompt(120)
    asked: dict[str, Any] = {"endpoint": daemon.prefix(), "keep_ratio": 0.5, "on_error": on_error}
    with chunkkv.compress(model, protect=[(0, 4), (100, 121)], **asked), \
            pytest.raises(chunkkv.InvalidArgument, match=r"protect\[1\]: \(100, 121\) ends behind the 120 tokens"):
        generated(model, ids, 2)
    with chunkkv.compress(model, protect=[(0, 4), (100, 120)], **asked) as kv:
        generated(model, ids, 2)
    assert kv.last is not None
    with chunkkv.compress(model, protect=[(100, 130)], every=32, **asked) as kv:  # tokens that may still come
        generated(model, ids, 40)
    assert set(range(100, 130)) <= set(kv.reports[1].kept(0).tolist())
    with chunkkv.compress(model, method="chunk-at", chunk_lengths=[60, 59], **asked), \
            pytest.raises(chunkkv.InvalidArgument, match="chunk_lengths: the entries add up to 119, must be 120"):
        generated(model, ids, 2)
    with chunkkv.compress(model, method="chunk-at", chunk_lengths=[60, 60], **asked), \
            pytest.raises(chunkkv.Unsupported, match="this is a batch of 2"):
        generated(model, prompt(120, batch=2), 2)


def test_a_client_and_an_endpoint_are_one_too_many(daemon: Any, model: Any) -> None:
    with chunkkv.Client(daemon.prefix()) as client:
        with pytest.raises(chunkkv.InvalidArgument, match="endpoint: is that of the client"):
            chunkkv.compress(model, keep_ratio=0.5, client=client, endpoint=daemon.prefix())
        with chunkkv.compress(model, keep_ratio=0.5, client=client) as kv:
            generated(model, prompt(64), 2)
        assert len(kv.reports) == 1


# ---- budgets


def test_budgets_below_what_is_always_kept_are_exceeded_aloud(daemon: Any, model: Any) -> None:
    """max_tokens at the beginning, keep_ratio when the prompt is known; once each."""
    asked: dict[str, Any] = {"endpoint": daemon.prefix()}
    kv = chunkkv.compress(model, max_tokens=8, **asked)
    with pytest.warns(BudgetRaised, match="8 rows are asked for, .* are 36"):
        kv.__enter__()
    with warnings.catch_warnings(), kv._stack:
        warnings.simplefilter("error")
        generated(model, prompt(120), 2)
    assert kv.last is not None
    assert (kv.last.budget, kv.last.budget_raised, set(kv.last.rows_after.values())) == (8, True, {36})
    assert "8 asked for, but these are always kept" in str(kv.last)
    with chunkkv.compress(model, keep_ratio=0.1, protect=[(50, 60)], **asked) as kv, \
            pytest.warns(BudgetRaised, match="12 rows are asked for, .* are 46"):
        generated(model, prompt(120), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for quiet in ({"max_tokens": 8, "tight": "raise"}, {"max_tokens": 8, "window": 4}, {"max_tokens": 36}):
            with chunkkv.compress(model, **asked, **quiet) as kv:
                generated(model, prompt(120), 2)
            assert kv.last is not None
            assert kv.last.budget_raised == ("tight" in quiet)


def test_with_a_vote_what_is_always_kept_is_known_with_the_prompt(daemon: Any, model: Any) -> None:
    """Rows that are voted for may be those that are protected anyway."""
    asked: dict[str, Any] = {"method": "snapkv", "voted": 0.75, "endpoint": daemon.prefix()}
    with warnings.catch_warnings(), chunkkv.compress(model, max_tokens=64, protect=[(60, 100)], sinks=1, recent=4,
                                                     **asked) as kv:
        warnings.simplefilter("error")
        generated(model, prompt(120), 2)
    assert kv.last is not None
    assert set(kv.last.rows_after.values()) == {64}
    with chunkkv.compress(model, max_tokens=34, **asked) as kv, \
            pytest.warns(BudgetRaised, match="34 rows are asked for"):
        generated(model, prompt(120), 2)
    assert kv.last is not None
    assert kv.last.budget_raised


def test_all_rows_but_a_few_may_be_kept(daemon: Any, model: Any) -> None:
    """More steps than a move may have: it is made in one."""
    ids = prompt(900, seed=11)
    with chunkkv.compress(model, method="snapkv", keep_ratio=0.98, endpoint=daemon.prefix()) as kv:
        generated(model, ids, 2)
    assert kv.last is not None
    assert set(kv.last.rows_after.values()) == {882}
    assert not kv.failures


@pytest.mark.parametrize("tokens", [47, 120, 121])
@pytest.mark.parametrize("asked", [{"keep_ratio": 0.3}, {"max_tokens": 31}, {"keep_ratio": 1}, {"max_tokens": 500},
                                   {"max_tokens": 1}, {"max_tokens": 46}], ids=str)
def test_h2o_halves_a_budget(daemon: Any, model: Any, asked: dict[str, Any], tokens: int) -> None:
    """One half of the rows for the newest, the other for heavy hitters; no row more or less."""
    with chunkkv.compress(model, method="h2o", endpoint=daemon.prefix(), **asked) as kv:
        generated(model, prompt(tokens), 2)
    assert kv.last is not None
    wanted = min(tokens, asked.get("max_tokens") or int(tokens * asked["keep_ratio"]))
    assert set(kv.last.rows_after.values()) == {wanted}
    assert kv.last.budget == wanted
    if wanted < tokens:
        halves = chunkkv.compress(model, method="h2o", endpoint=daemon.prefix(), keep_ratio=None,
                                  heavy=(wanted - wanted // 2 + 0.5) / tokens, recent=(wanted // 2 + 0.5) / tokens)
        with halves:
            generated(model, prompt(tokens), 2)
        assert halves.last is not None
        assert all(kv.last.kept(layer).tolist() == halves.last.kept(layer).tolist() for layer in range(4))


# ---- blocks


def test_blocks_of_one_model_do_not_nest(daemon: Any, model: Any) -> None:
    ids = prompt(64)
    outer = chunkkv.compress(model, keep_ratio=0.5, window=8, endpoint=daemon.prefix())
    inner = chunkkv.compress(model, keep_ratio=0.25, window=8, endpoint=daemon.prefix())
    part = chunkkv.compress(model.model, keep_ratio=0.25, endpoint=daemon.prefix())
    with outer:
        for another in (inner, part, outer):
            with pytest.raises(chunkkv.Unsupported, match="in a compress\\(\\) block already"), another:
                pytest.fail("the block was entered")
        generated(model, ids, 2)
    with part, pytest.raises(chunkkv.Unsupported, match="already"), inner:
        pytest.fail("the block was entered")
    for again in (inner, outer):  # one after the other is fine
        with again:
            generated(model, ids, 2)
    assert [set(report.rows_after.values()) for report in (*outer.reports, *inner.reports)] == [{32}, {32}, {16}]


def test_a_block_that_cannot_begin_leaves_the_model_free(daemon: Any, model: Any, tmp_path: Any) -> None:
    with pytest.raises(chunkkv.DaemonUnavailable), \
            chunkkv.compress(model, keep_ratio=0.5, endpoint=str(tmp_path / "none")):
        pass
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=daemon.prefix()) as kv:
        generated(model, prompt(64), 2)
    assert len(kv.reports) == 1


def test_caches_are_compressed_inside_their_block(daemon: Any, model: Any) -> None:
    cache = chunkkv.transformers.ChunkKVCache(model.config)
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=daemon.prefix()) as kv:
        generated(model, prompt(64), 2, past_key_values=cache)
    with pytest.raises(chunkkv.Unsupported, match="this block has ended"):
        kv.compress(cache)
    with chunkkv.Client(daemon.prefix()) as client:  # also where its client is there still
        cache.reset()
        with chunkkv.compress(model, keep_ratio=0.5, client=client) as kv:
            generated(model, prompt(64), 2, past_key_values=cache)
        with pytest.raises(chunkkv.Unsupported, match="this block has ended"):
            kv.compress(cache)


def test_generating_without_a_cache_is_said_once(daemon: Any, model: Any) -> None:
    ids = prompt(64)
    alone = generated(model, ids, 3)
    with pytest.warns(UserWarning, match="use_cache=False") as said, \
            chunkkv.compress(model, keep_ratio=0.5, endpoint=daemon.prefix()) as kv:
        without = generated(model, ids, 3, use_cache=False)
    assert len([one for one in said if "keeps no cache" in str(one.message)]) == 1
    assert torch.equal(without[0], alone[0])
    assert not kv.reports
    model.config.use_cache = False  # a cache that is given counts all the same
    try:
        cache = chunkkv.transformers.ChunkKVCache(model.config)
        with torch.no_grad(), chunkkv.compress(model, keep_ratio=0.5, endpoint=daemon.prefix()) as kv:
            model(ids, past_key_values=cache)
            model(ids[:, :1], past_key_values=cache)
        assert len(kv.reports) == 1
    finally:
        model.config.use_cache = True


# ---- models


def small(kind: str, **others: Any) -> Any:
    """A model whose class is not among those of tiny_models."""
    config = getattr(transformers, f"{kind}Config")(**others)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def test_models_that_are_refused_before_they_run(model: Any) -> None:
    for wrong, words in ((None, "not None"), ("gpt2", "not a str"),
                         (type("Pipeline", (), {"model": model})(), "not a Pipeline; a pipeline's is its .model")):
        with pytest.raises(TypeError, match=words):
            chunkkv.compress(wrong, keep_ratio=0.5)  # type: ignore[arg-type]
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4))
    bloom = small("Bloom", vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
    for other, words in ((torch.nn.Linear(2, 2), "takes no cache"),
                         (torch.compile(model), "a compiled model's is its ._orig_mod"),
                         (t5, "an encoder with a decoder"), (bloom, "computes attention by itself"),
                         (tiny("Mistral", sliding_window=16), "nothing to compress: .*DynamicSlidingWindowLayer"),
                         (tiny("Llama").double(), "float64"),
                         (_with_weights_on("mps"), "model is on mps: .* on the CPU or on a GPU of CUDA"),
                         (_with_weights_on("cuda:0", "meta", "cuda:1"), "spread over cuda:0, cuda:1: .*device_map="),
                         (_with_weights_on("cpu", "cuda:0"), "spread over cpu, cuda:0: ")):
        with pytest.raises(chunkkv.Unsupported, match=words):
            chunkkv.compress(other, keep_ratio=0.5)


TEXT = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


@pytest.mark.parametrize(("kind", "others", "words"), [
    ("Bert", {}, "this BertModel is no decoder"),
    ("Roberta", {}, "this RobertaModel is no decoder"),
    ("Gemma3Text", {"use_bidirectional_attention": True, "head_dim": 8}, "this Gemma3TextModel is no decoder"),
    ("DistilBert", {}, "a DistilBertModel takes no cache"),
    ("CLIPText", {}, "a CLIPTextModel takes no cache"),
])
def test_encoders_are_refused_before_they_run(kind: str, others: dict[str, Any], words: str) -> None:
    """Also those whose forward has an argument for a cache, which they leave empty."""
    encoder = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**{**TEXT, **others}))
    with pytest.raises(chunkkv.Unsupported, match=words), chunkkv.compress(encoder, keep_ratio=0.5):
        pytest.fail("the block was entered")


def test_an_encoder_that_is_told_to_be_a_decoder_is_one() -> None:
    """The class is the same; Transformers 4 has no attention there that could be seen."""
    decoder = transformers.BertLMHeadModel(transformers.BertConfig(**TEXT, is_decoder=True))
    if transformers.__version__.startswith("4."):
        with pytest.raises(chunkkv.Unsupported, match="computes attention by itself"):
            chunkkv.compress(decoder, keep_ratio=0.5)
    else:
        chunkkv.compress(decoder, keep_ratio=0.5)


def test_a_model_that_leaves_its_cache_empty_is_not_passed_over_in_silence(daemon: Any) -> None:
    """What no attribute tells beforehand, the first forward does."""
    model = tiny("Llama")
    inner = model.model.forward
    model.model.forward = lambda *args, **given: inner(
        *args, **{name: None if name in ("past_key_values", "cache") else value for name, value in given.items()})
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=daemon.prefix()), \
            pytest.raises(chunkkv.Unsupported, match="LlamaForCausalLM wrote nothing to its cache"):
        generated(model, prompt(64), 2)


def _with_weights_on(*devices: str) -> Any:
    """A model that looks as if its weights were there, on a machine that has no such device."""
    model = tiny("Llama")
    weights = [type("Weight", (), {"device": torch.device(device)})() for device in devices]
    model.parameters = lambda recurse=True: iter(weights)
    return model


def test_keys_that_are_not_those_of_the_cache_are_scored_by_no_query(daemon: Any) -> None:
    """DeepSeek's attention in Transformers 5 works on keys made of the latent rows that are cached."""
    latent = small("DeepseekV3", **{**SHAPE, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
                                    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 2,
                                    "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "head_dim": 8,
                                    "moe_intermediate_size": 32, "num_key_value_heads": 4})
    with chunkkv.compress(latent, keep_ratio=0.5, method="keydiff", endpoint=daemon.prefix()) as kv:
        generated(latent, prompt(64), 2)
    assert len(kv.reports) == 1
    with chunkkv.compress(latent, keep_ratio=0.5, endpoint=daemon.prefix()) as kv:
        if transformers.__version__.startswith("4."):  # there they are cached themselves
            generated(latent, prompt(64), 2)
            assert len(kv.reports) == 1
            return
        with pytest.raises(chunkkv.Unsupported, match="take a method without them, such as keydiff"):
            generated(latent, prompt(64), 2)
