"""The golden cases, in place, through the client: kept rows and moved bytes must be exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import chunkkv
import tensors
from daemon import Daemon

BY_POLICY = {"chunk", "window", "sinks", "recent", "pool", "pool_size", "selector", "heads", "group_heads", "fill",
             "unit_reduce", "value_weight", "softcap", "sliding", "scorer", "join"}
Group = tuple[str, list[dict[str, Any]]]


def grouped(plain: bool) -> list[Group]:
    """Cases that differ in their layer only, together: one request answers all of them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in tensors.golden():
        if tensors.is_plain(case) == plain:
            found.setdefault(tensors.case_name({**case, "layer": "s"}), []).append(case)
    return list(found.items())


class Bench:
    """A client, and a cache for each file."""

    def __init__(self, client: chunkkv.Client) -> None:
        self.client = client
        self._caches: dict[str, chunkkv.SharedCache] = {}

    def fill(self, file: str) -> chunkkv.SharedCache:
        """The cache of a file, as if it were never compressed."""
        layers = tensors.load(file)
        some = next(iter(layers.values()))
        if file not in self._caches:
            self._caches[file] = chunkkv.SharedCache.allocate(
                self.client, layers=tuple(layers), tokens=len(some.key), kv_heads=some.key.shape[1],
                q_heads=some.query.shape[1], head_dim=some.key.shape[2], dtype="bf16", window=len(some.query))
        cache = self._caches[file]
        for number, layer in layers.items():
            cache.key(number)[...] = layer.key
            cache.value(number)[...] = layer.value
            cache.query(number)[...] = layer.query
        return cache

    def compress(self, cache: chunkkv.SharedCache, case: dict[str, Any]) -> chunkkv.Answer:
        """The request of a golden case."""
        policy = chunkkv.Policy(profile=case["profile"], **{k: v for k, v in case.items() if k in BY_POLICY})
        return self.client.compress(cache, rows=cache.tokens, policy=policy, max_tokens=case.get("max_tokens"),
                                    keep_ratio=case["keep_ratio"] / 1e6, protect=case.get("spans", ()), timeout=30)


@pytest.fixture(scope="module")
def bench(daemon: Daemon) -> Iterator[Bench]:
    with chunkkv.Client(daemon.prefix()) as client:
        yield Bench(client)


def check(cache: chunkkv.SharedCache, answer: chunkkv.Answer, cases: list[dict[str, Any]]) -> None:
    for case in cases:
        assert [list(r) for r in answer.layers[case["layer"]].kept] == case["kept"], f"layer {case['layer']}"
        assert len(answer.layers[case["layer"]].rows) == case["kept_count"]
    # fill = none and profile paper may keep unequal counts; the longest layer decides
    assert answer.physical_len == max(len(layer.rows) for layer in answer.layers.values())
    assert (answer.cache, answer.phase) == (chunkkv.CacheState.COMMITTED, chunkkv.Phase.DONE)
    assert answer.logical_len == cache.tokens
    for number, source in tensors.load(cases[0]["file"]).items():
        rows = answer.layers[number].rows
        for name, now, before in (("key", cache.key(number), source.key), ("value", cache.value(number), source.value)):
            expected = before.copy()
            expected[: len(rows)] = before[rows]
            assert np.array_equal(now, expected), f"layer {number}, {name}"
        assert np.array_equal(cache.query(number), source.query)


PLAIN, OTHER = grouped(True), grouped(False)


@pytest.mark.parametrize("cases", [g[1] for g in PLAIN], ids=[g[0] for g in PLAIN])
def test_golden(bench: Bench, cases: list[dict[str, Any]]) -> None:
    cache = bench.fill(cases[0]["file"])
    check(cache, bench.compress(cache, cases[0]), cases)


@pytest.mark.parametrize("cases", [g[1] for g in OTHER], ids=[g[0] for g in OTHER])
def test_golden_of_other_methods(bench: Bench, cases: list[dict[str, Any]]) -> None:
    """Exact as well, or refused as UNSUPPORTED with the name of the field, and then nothing was written."""
    cache = bench.fill(cases[0]["file"])
    before = cache.memory.numpy(cache.memory.size, np.uint8).copy()
    try:
        answer = bench.compress(cache, cases[0])
    except chunkkv.Unsupported as error:
        assert error.field.startswith("compress.groups[0].policies[0].")
        assert error.cache == chunkkv.CacheState.CLEAN
        assert np.array_equal(before, cache.memory.numpy(cache.memory.size, np.uint8))
        pytest.skip(f"this daemon has no {error.field.rpartition('.')[2]} {error.detail!r}")
    check(cache, answer, cases)


def test_plan_writes_nothing(bench: Bench) -> None:
    case = next(c for c in tensors.golden() if tensors.is_plain(c))
    cache = bench.fill(case["file"])
    before = cache.memory.numpy(cache.memory.size, np.uint8).copy()
    policy = chunkkv.Policy(profile=case["profile"], chunk=case["chunk"], window=case["window"])
    answer = bench.client.plan(cache, rows=cache.tokens, policy=policy, keep_ratio=case["keep_ratio"] / 1e6)
    assert [list(r) for r in answer.layers[case["layer"]].kept] == case["kept"]
    assert answer.cache == chunkkv.CacheState.CLEAN
    assert np.array_equal(before, cache.memory.numpy(cache.memory.size, np.uint8))


@pytest.mark.parametrize(("given", "kept"), [
    ({}, [(0, 5), (10, 15), (20, 30), (44, 48)]),
    ({"pool": "avg", "pool_size": 5}, [(0, 5), (15, 30), (44, 48)]),
    ({"pool": "max", "pool_size": 7}, [(0, 2), (5, 8), (15, 30), (44, 48)]),
], ids=["default", "avg5", "max7"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_example_of_the_specification(client: chunkkv.Client, dtype: str, given: dict[str, Any],
                                      kept: list[tuple[int, int]]) -> None:
    key, value, query = tensors.synthetic()
    with chunkkv.SharedCache.allocate(client, layers=1, tokens=48, kv_heads=2, q_heads=4, head_dim=8, dtype=dtype,
                                      window=4) as cache:
        cache.write(0, key=key, value=value, query=query)
        policy = chunkkv.Policy(chunk=5, window=4, sinks=2, recent=4, min_tokens=0, **given)
        answer = client.compress(cache, rows=48, keep_ratio="0.5", policy=policy)
        assert answer.layers[0].kept == kept
        assert answer.groups[0].budget == 24
        bits = chunkkv.from_bf16(cache.key(0)) if dtype == "bf16" else cache.key(0)
        assert np.array_equal(bits[:24], key[answer.layers[0].rows])
