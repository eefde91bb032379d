"""Caches of Transformers in shared memory: growth, batches, prompts in pieces, compressing again, what is refused."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import chunkkv  # noqa: E402
from chunkkv.transformers import ChunkKVCache  # noqa: E402
from tiny_models import generated, masked_run, prompt, tiny  # noqa: E402


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("Llama", "sdpa")


@pytest.fixture(scope="module")
def plain() -> Any:
    return tiny("Llama")


@pytest.fixture
def endpoint(daemon: Any) -> Iterator[str]:
    """Of a daemon at which nothing of ours is left registered afterwards."""
    before = daemon.usage().memfd_mappings
    yield daemon.prefix()
    with chunkkv.Client(daemon.prefix()) as client:  # the next session begins when the last one is cleared away
        client.ping()
    assert daemon.usage().memfd_mappings == before


def test_a_whole_budget_changes_nothing(endpoint: str, model: Any) -> None:
    """All rows kept: bit for bit what the model does alone."""
    ids = prompt(90)
    alone = generated(model, ids, 8)
    with chunkkv.compress(model, keep_ratio=1, endpoint=endpoint) as kv:
        ours = generated(model, ids, 8)
    assert torch.equal(alone[0], ours[0])
    assert torch.equal(alone[1], ours[1])
    assert kv.last is not None
    assert set(kv.last.rows_after.values()) == {90}
    assert torch.equal(generated(model, ids, 8)[1], alone[1])  # and nothing stays behind


@pytest.mark.parametrize("method", ["vote", "chunkkv", "snapkv-each", "streamingllm"])
def test_batches_without_padding(endpoint: str, model: Any, plain: Any, method: str) -> None:
    ids = prompt(80, batch=3)
    with chunkkv.compress(model, method=method, max_tokens=45, endpoint=endpoint) as kv:
        chosen, logits = generated(model, ids, 6)
    [report] = kv.reports
    assert report.sequences == 3
    if method != "streamingllm":
        assert report.kept(1, 0).tolist() != report.kept(1, 2).tolist()
    expected, full = masked_run(plain, ids, 6, kv.reports)
    assert torch.equal(chosen, expected)
    torch.testing.assert_close(logits, full, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunk", [16, 33])
@pytest.mark.parametrize("asked", [{"keep_ratio": 0.4}, {"method": "h2o", "heavy": 0.2, "recent": 0.2}], ids=str)
def test_prompts_in_pieces_are_compressed_as_a_whole(endpoint: str, model: Any, plain: Any, chunk: int,
                                                     asked: dict[str, Any]) -> None:
    """Query rows come from several forwards; the last holds fewer than vote."""
    ids = prompt(16 * 17 + 5, seed=7)
    if transformers.__version__.startswith("4."):
        with chunkkv.compress(model, endpoint=endpoint, **asked), \
                pytest.raises(chunkkv.Unsupported, match="past all hooks"):
            generated(model, ids, 6, prefill_chunk_size=chunk)
        return
    with chunkkv.compress(model, endpoint=endpoint, **asked) as kv:
        chosen, _ = generated(model, ids, 6, prefill_chunk_size=chunk)
        generated(model, ids, 6)
    pieces, at_once = kv.reports
    assert pieces.tokens == at_once.tokens == ids.shape[1]
    assert all(pieces.kept(layer).tolist() == at_once.kept(layer).tolist() for layer in range(4))
    assert torch.equal(chosen, masked_run(plain, ids, 6, kv.reports[:1])[0])


@pytest.mark.parametrize("asked", [{"method": "vote", "max_tokens": 40, "every": 8},
                                   {"method": "chunkkv", "window": 8, "keep_ratio": 0.4, "every": 10},
                                   {"method": "keydiff", "keep_ratio": 0.5, "every": 3}], ids=str)
def test_compressing_again_while_tokens_come(endpoint: str, model: Any, plain: Any, asked: dict[str, Any]) -> None:
    ids = prompt(90, seed=8)
    with chunkkv.compress(model, endpoint=endpoint, **asked) as kv:
        chosen, logits = generated(model, ids, 30)
    every = asked["every"]
    assert [report.tokens for report in kv.reports] == list(range(90, 120, every))[: len(kv.reports)]
    assert len(kv.reports) >= 3
    for report in kv.reports:
        budget = asked.get("max_tokens") or int(report.tokens * asked["keep_ratio"])
        assert set(report.rows_after.values()) == {budget}
        assert all(report.kept(layer)[-1] == report.tokens - 1 for layer in range(4) if asked["method"] != "keydiff")
    expected, full = masked_run(plain, ids, 30, kv.reports)
    assert torch.equal(chosen, expected)
    torch.testing.assert_close(logits, full, rtol=1e-4, atol=1e-4)


def test_memory_grows_and_is_given_back(endpoint: str, model: Any, plain: Any) -> None:
    cache = ChunkKVCache(model.config)
    ids = prompt(60, seed=9)
    with torch.no_grad(), chunkkv.compress(model, max_tokens=32, window=8, endpoint=endpoint) as kv:
        for _ in range(20):  # 1200 rows, which no first allocation holds
            model(ids, past_key_values=cache)
        arena = cache.store.arena
        assert arena.capacity >= 1200
        report = kv.compress(cache)
        step = model(ids[:, :1], past_key_values=cache)
    assert step.logits.isfinite().all()
    assert report.bytes_before == arena.memory.size
    assert cache.store.arena.memory.size == report.bytes_after < report.bytes_before // 2
    assert {layer.length for layer in cache.store.layers} == {33}
    assert cache.get_seq_length() == 1201
    assert "1200 rows -> 32 (2.7%)" in str(report)


@pytest.mark.parametrize(("tokens", "keep", "shrinks"), [(400, 0.5, True), (192, 0.2, True), (100, 0.2, False)])
def test_memory_is_smaller_where_three_quarters_would_do(endpoint: str, model: Any, tokens: int, keep: float,
                                                         shrinks: bool) -> None:
    with chunkkv.compress(model, keep_ratio=keep, window=8, endpoint=endpoint) as kv:
        generated(model, prompt(tokens), 2)
    assert kv.last is not None
    assert (4 * kv.last.bytes_after <= 3 * kv.last.bytes_before) == shrinks
    assert (kv.last.bytes_after < kv.last.bytes_before) == shrinks


@pytest.mark.parametrize(("asked", "tokens", "reason"), [
    ({"keep_ratio": 0.5}, 6, "too short for this method"),
    ({"max_tokens": 500}, 60, "within the budget"),
    ({"keep_ratio": 0.5, "protect": [(0, 60)]}, 60, "all of it is protected"),
])
def test_prompts_that_stay_whole_say_why(endpoint: str, model: Any, asked: dict[str, Any], tokens: int,
                                         reason: str) -> None:
    ids = prompt(tokens)
    alone = generated(model, ids, 5)
    with chunkkv.compress(model, endpoint=endpoint, **asked) as kv:
        assert torch.equal(generated(model, ids, 5)[1], alone[1])
    assert kv.last is not None
    assert set(kv.last.rows_after.values()) == {tokens}
    assert f"(100.0%; {reason})" in str(kv.last)
    assert kv.last.kept_all is not chunkkv.KeptAll.DROPPED


def test_a_cache_is_made_where_none_is_given_and_can_be_reset(endpoint: str, model: Any) -> None:
    ids = prompt(70)
    with torch.no_grad(), chunkkv.compress(model, keep_ratio=0.5, endpoint=endpoint) as kv:
        out = model(ids)
        cache = out["past_key_values"] if "past_key_values" in out else out["cache"]
        first = kv.compress(cache)
        cache.reset()
        assert cache.get_seq_length() == 0
        model(ids, past_key_values=cache)
        model(ids[:, :1], past_key_values=cache)
        with pytest.warns(UserWarning, match="keeps no cache"):
            assert model(ids, use_cache=False).logits.shape[1] == 70
    assert [report.tokens for report in kv.reports] == [70, 70]
    assert first.kept(2).tolist() == kv.reports[1].kept(2).tolist()


def test_memory_that_moved_is_registered_again(endpoint: str, model: Any, plain: Any) -> None:
    """Smaller memory after the first time, while registrations are kept for the next."""
    ids = prompt(400, seed=10)
    with chunkkv.compress(model, endpoint=endpoint, method="keydiff", keep_ratio=0.2, every=20) as kv:
        chosen, logits = generated(model, ids, 45)
    assert [report.tokens for report in kv.reports] == [400, 420, 440]
    assert kv.reports[1].bytes_before == kv.reports[0].bytes_after < kv.reports[0].bytes_before
    expected, full = masked_run(plain, ids, 45, kv.reports)
    assert torch.equal(chosen, expected)
    torch.testing.assert_close(logits, full, rtol=1e-4, atol=1e-4)


def test_a_cache_that_nobody_has_frees_its_memory_at_once(daemon: Any, model: Any) -> None:
    """Without the garbage collector, which knows nothing of its size; registered, it goes with the next cache."""
    ids = prompt(64)
    before = daemon.usage().memfd_mappings
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad(), chunkkv.compress(model, method="keydiff", max_tokens=32, every=8,
                                               endpoint=daemon.prefix()) as kv:
            for _ in range(3):
                cache = ChunkKVCache(model.config)
                model(ids, past_key_values=cache)
                assert daemon.usage().memfd_mappings == before
                kv.compress(cache)
                assert daemon.usage().memfd_mappings == before + 1
                layer, store = cache.layers[0], weakref.ref(cache.store)
                del cache
                assert store() is None
        with pytest.raises(chunkkv.Unsupported, match="the cache of this layer is gone"):
            layer.get_mask_sizes(layer.keys)
    finally:
        gc.enable()
    with chunkkv.Client(daemon.prefix()) as client:
        client.ping()
    assert daemon.usage().memfd_mappings == before


def test_rows_of_another_device_are_refused(model: Any) -> None:
    store = ChunkKVCache(model.config).store
    rows = torch.zeros(1, 2, 5, 16)
    store.layers[0].update(rows, rows)
    with pytest.raises(chunkkv.Unsupported, match=r"layer 1 has keys of .* on meta, other than the layers"):
        store.layers[1].update(rows.to("meta"), rows.to("meta"))


def test_blocks_of_two_models_may_overlap(endpoint: str, model: Any, plain: Any) -> None:
    ids = prompt(64)
    one = chunkkv.compress(model, keep_ratio=0.5, window=8, endpoint=endpoint)
    two = chunkkv.compress(plain, keep_ratio=0.25, window=8, endpoint=endpoint)
    one.__enter__()
    two.__enter__()
    generated(model, ids, 2)
    one.__exit__(None, None, None)
    generated(plain, ids, 2)
    two.__exit__(None, None, None)
    assert one.last is not None
    assert two.last is not None
    assert (one.last.rows_after[0], two.last.rows_after[0]) == (32, 16)


def test_a_restarted_daemon_is_found_again(new_daemon: Any, model: Any) -> None:
    daemon = new_daemon()
    ids = prompt(64)
    with chunkkv.compress(model, keep_ratio=0.5, method="vote", every=8, endpoint=daemon.prefix()) as kv:
        generated(model, ids, 3)
        daemon.restart()
        generated(model, ids, 12)
    assert len(kv.reports) == 3


@pytest.mark.parametrize(("asked", "later", "words"), [
    ({}, 0, "compressed at 100 tokens, and none came since"),
    ({"every": 64}, 0, "compressed at 100 tokens, and none came since"),
    ({"method": "h2o"}, 0, "compressed at 100 tokens, and none came since"),
    ({}, 70, "compressed at 100 tokens, and the queries of later ones are recorded with `every` only"),
    ({"method": "snapkv-each"}, 70, "this method cannot do it again: the heads keep different rows"),
    ({"method": "h2o"}, 70, "this method cannot do it again: h2o needs the queries of all rows"),
    ({"every": 64}, 64, ""),
    ({"method": "keydiff"}, 0, ""),
    ({"method": "keydiff"}, 70, ""),
], ids=str)
def test_compressing_a_second_time_by_hand(endpoint: str, model: Any, asked: dict[str, Any], later: int,
                                           words: str) -> None:
    cache, ids = ChunkKVCache(model.config), prompt(100)
    with torch.no_grad(), chunkkv.compress(model, keep_ratio=0.5, endpoint=endpoint, **asked) as kv:
        model(ids, past_key_values=cache)
        first = kv.compress(cache)
        if later:
            model(ids[:, :later], past_key_values=cache)
        if words:
            with pytest.raises(chunkkv.Unsupported, match=words):
                kv.compress(cache)
        else:
            second = kv.compress(cache)
            assert set(second.rows_after.values()) == {50 + later // 2}
            if not later:  # the same rows
                assert all(second.kept(layer).tolist() == first.kept(layer).tolist() for layer in range(4))
        assert model(ids[:, :1], past_key_values=cache).logits.isfinite().all()


def test_a_second_time_layers_that_hold_other_tokens_keep_what_is_protected(endpoint: str, model: Any) -> None:
    """Each has positions of its own by then."""
    cache, ids = ChunkKVCache(model.config), prompt(200)
    asked: dict[str, Any] = {"method": "keydiff", "max_tokens": 100, "endpoint": endpoint}
    with torch.no_grad():
        with chunkkv.compress(model, **asked) as kv:
            model(ids, past_key_values=cache)
            first = kv.compress(cache)
        held = [set(first.kept(layer).tolist()) for layer in range(4)]
        assert held[0] != held[1]
        with chunkkv.compress(model, **{**asked, "max_tokens": 60}, protect=[(20, 60)]) as kv:
            model(ids[:, :1], past_key_values=cache)
            again = kv.compress(cache)
    assert set(again.rows_after.values()) == {60}
    for layer in range(4):
        assert held[layer] & set(range(20, 60)) <= set(again.kept(layer).tolist()) <= held[layer] | {200}


# ---- refused, with a reason


@pytest.mark.parametrize(("others", "words"), [
    ({"num_beams": 2}, "beam search"),
    ({"cache_implementation": "static"}, "StaticCache"),
])
def test_ways_of_generating_that_are_refused(endpoint: str, model: Any, others: dict[str, Any], words: str) -> None:
    ids = prompt(64)
    with pytest.raises((chunkkv.Unsupported, ValueError), match=words), \
            chunkkv.compress(model, keep_ratio=0.5, endpoint=endpoint):
        generated(model, ids.repeat(1, 2), 20, **others)
    assert generated(model, ids, 2)[0].shape == (1, 2)  # the model is as it was


@pytest.mark.parametrize("by", ["assistant_model", "prompt_lookup_num_tokens"])
def test_assisted_decoding_is_refused_before_anything_runs(endpoint: str, model: Any, plain: Any, by: str) -> None:
    ids = prompt(32).repeat(1, 2)
    others = {by: plain if by == "assistant_model" else 3, "eos_token_id": 96}
    ran: list[Any] = []
    hook = model.register_forward_pre_hook(lambda *_: ran.append(1))
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=endpoint), \
            pytest.raises(chunkkv.Unsupported, match=r"assisted decoding .* does not go together with compression"):
        generated(model, ids, 4, **others)
    assert not ran
    generated(model, ids, 4, **others)
    assert ran  # and behind the block the model has it again
    hook.remove()


def test_padding_is_refused(endpoint: str, model: Any) -> None:
    ids = prompt(64, batch=2)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=endpoint), \
            pytest.raises(chunkkv.Unsupported, match="padding"):
        model.generate(ids, attention_mask=mask, max_new_tokens=3)


def test_caches_that_are_refused(endpoint: str, model: Any) -> None:
    filled = transformers.DynamicCache(config=model.config)
    ids = prompt(40)
    with torch.no_grad():
        model(ids, past_key_values=filled)
        with chunkkv.compress(model, keep_ratio=0.5, endpoint=endpoint) as kv:
            with pytest.raises(chunkkv.Unsupported, match="holds rows already"):
                model(ids, past_key_values=filled)
            with pytest.raises(chunkkv.Unsupported, match="not filled inside"):
                kv.compress(filled)
    with chunkkv.compress(model, keep_ratio=0.5, method="chunkkv-kvpress", endpoint=endpoint), \
            pytest.raises(chunkkv.Unsupported, match="equally many rows"):
        generated(model, prompt(90, batch=2), 2)
    quantized = type("QuantizedCache", (transformers.Cache,), {})(layers=[])
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=endpoint), \
            pytest.raises(chunkkv.Unsupported, match="QuantizedCache cannot be compressed: its rows are integers"):
        generated(model, ids, 2, past_key_values=quantized)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", [ChunkKVCache, transformers.DynamicCache])
def test_a_cache_in_shared_memory_is_not_copied(endpoint: str, model: Any, kind: Any, make: Any) -> None:
    """Also not one that Transformers, or the caller, made."""
    cache = kind(config=model.config)
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=endpoint):
        generated(model, prompt(64), 2, past_key_values=cache)
    with pytest.raises(chunkkv.Unsupported, match="neither copied nor pickled"):
        make(cache.layers[1])
    with pytest.raises(chunkkv.Unsupported, match="neither copied nor pickled"):
        make(cache)


def test_a_report_names_the_layers_that_there_are(endpoint: str) -> None:
    for kind, layers in (("Llama", "0 to 3"), ("Gemma3", "1, 3")):
        model = tiny(kind, "sdpa")
        with chunkkv.compress(model, keep_ratio=0.5, method="snapkv-each", endpoint=endpoint) as kv:
            generated(model, prompt(64, batch=2), 2)
        assert kv.last is not None
        assert kv.last.kept(3, 1, 1).size == 32
        for field, known, place in (("layer", layers, (99,)), ("layer", layers, (-1,)), ("sequence", "0 to 1", (1, 2)),
                                    ("kv_head", "0 to 1", (1, 0, 2)), ("kv_head", "0 to 1", (1, 0, -1))):
            with pytest.raises(chunkkv.InvalidArgument, match=f"{field}: {place[-1]} was not compressed: "
                                                              f"these were {known} "):
                kv.last.kept(*place)


def test_errors_of_the_daemon_leave_the_rows(endpoint: str, model: Any) -> None:
    """Raised, or passed over where asked for; the text is then that of the full cache."""
    ids = prompt(64)
    asked: dict[str, Any] = {"max_tokens": 8, "tight": "refuse", "endpoint": endpoint}
    with chunkkv.compress(model, **asked), pytest.raises(chunkkv.CannotCompress, match="max_tokens: 36 rows"):
        generated(model, ids, 3)
    alone = generated(model, ids, 5)
    with chunkkv.compress(model, on_error="continue", **asked) as kv:
        assert torch.equal(generated(model, ids, 5)[1], alone[1])
    assert not kv.reports
    assert [type(error) for error in kv.failures] == [chunkkv.CannotCompress]


def test_without_a_daemon_the_message_says_what_to_do(model: Any, tmp_path: Any) -> None:
    with pytest.raises(chunkkv.DaemonUnavailable, match="start one with `chunkkvd"), \
            chunkkv.compress(model, keep_ratio=0.5, endpoint=str(tmp_path / "none")):
        pass
    assert generated(model, prompt(20), 2)[0].shape == (1, 2)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_types_of_16_bits(endpoint: str, name: str) -> None:
    model = tiny("Llama", "sdpa").to(getattr(torch, name))
    with chunkkv.compress(model, keep_ratio=0.5, endpoint=endpoint) as kv:
        _, logits = generated(model, prompt(80), 3)
    assert logits.dtype in (torch.float32, getattr(torch, name))
    assert kv.last is not None
    assert set(kv.last.rows_after.values()) == {40}
    assert kv.last.bytes_before <= 4 * 2 * 2 * 384 * 16 * 2
