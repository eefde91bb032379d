"""The golden cases through the client, in each mode: kept rows and moved bytes must be exact."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chunkkv
import tensors
from daemon import Daemon

BY_POLICY = {"chunk", "window", "sinks", "recent", "pool", "pool_size", "selector", "heads", "group_heads", "fill",
             "unit_reduce", "value_weight", "softcap", "sliding", "scorer", "join"}
BLOCK = 16
Group = tuple[str, list[dict[str, Any]]]


def grouped() -> list[Group]:
    """Cases that differ in their layer only, together: one request answers all of them."""
    found: dict[str, list[dict[str, Any]]] = {}
    for case in tensors.golden():
        found.setdefault(tensors.case_name({**case, "layer": "s"}), []).append(case)
    return list(found.items())


def votes() -> list[Group]:
    """The cases of profile vote, each with the same rows for every layer of its file."""
    cases: list[dict[str, Any]] = json.loads((tensors.DATA / "golden_vote.json").read_text())
    return [(f"{case['file'].split('.')[0]}-vote-{case['query_rows']}-{case['keep_ratio']}",
             [{**case, "layer": layer} for layer in case["layers"]]) for case in cases]


class File:
    """The tensors of one file in a paged cache with room for a copy; blocks in no order."""

    def __init__(self, client: chunkkv.Client, name: str) -> None:
        self.layers = tensors.load(name)
        some = next(iter(self.layers.values()))
        self.rows, heads, dim = some.key.shape
        blocks = 2 * self.rows // BLOCK
        order = np.random.default_rng(5).permutation(blocks)
        self.table, self.destination = order[: blocks // 2], order[blocks // 2 :]
        shape = (len(self.layers), blocks, BLOCK, heads, dim)
        size = 2 * int(np.prod(shape))
        queries = np.stack([layer.query for layer in self.layers.values()])
        self.memory = chunkkv.SharedMemory.allocate(2 * size + queries.nbytes)
        self.planes = [self.memory.numpy(shape, "bf16", i * size) for i in (0, 1)]
        self.memory.numpy(queries.shape, "bf16", 2 * size)[...] = queries
        for plane in self.planes:
            plane[...] = 0x7FC0  # NaN, where no row is
        for i, layer in enumerate(self.layers.values()):
            for plane, source in zip(self.planes, (layer.key, layer.value), strict=True):
                plane[i, self.table] = source.reshape(-1, BLOCK, heads, dim)
        self.everything = self.memory.numpy(self.memory.size, np.uint8)
        self.pristine = self.everything.copy()
        region = client.register_region(self.memory)
        self.queries = chunkkv.Queries.of_array(self.memory.numpy(queries.shape, "bf16", 2 * size), region=region,
                                                dtype="bf16")
        self.cache = client.register_cache(chunkkv.CacheLayout.of_arrays(
            list(self.planes[0]), list(self.planes[1]), axes="bthd", q_heads=some.query.shape[1], region=region,
            layers=tuple(self.layers), dtype="bf16"))

    def newest(self, rows: int) -> chunkkv.Queries:
        """The newest query rows alone."""
        older = self.queries.rows - rows
        return replace(self.queries, rows=rows, offset=self.queries.offset + older * self.queries.row_stride,
                       size=self.queries.size - older * self.queries.row_stride)

    def expected(self, kept: list[NDArray[np.uint32]], table: NDArray[np.int64]) -> NDArray[np.uint8]:
        """All bytes, after the kept rows of each layer were put into the blocks of `table` in order."""
        after = self.pristine.copy()
        for number, plane in enumerate(self.planes):
            old, new = (np.ndarray(plane.shape, np.uint16, bytes_of.data, number * plane.nbytes)
                        for bytes_of in (self.pristine, after))
            for i, rows in enumerate(kept):
                to = np.arange(len(rows))
                new[i, table[to // BLOCK], to % BLOCK] = old[i, self.table[rows // BLOCK], rows % BLOCK]
        return after


class Bench:
    """A client, and the files it has registered."""

    def __init__(self, client: chunkkv.Client) -> None:
        self.client = client
        self._files: dict[str, File] = {}

    def file(self, name: str) -> File:
        if name not in self._files:
            self._files[name] = File(self.client, name)
        return self._files[name]

    def request(self, file: File, case: dict[str, Any]) -> dict[str, Any]:
        """The request of a golden case, as keyword arguments."""
        policy = chunkkv.Policy(profile=case["profile"], **{k: v for k, v in case.items() if k in BY_POLICY})
        queries = file.queries if "query_rows" not in case else file.newest(case["query_rows"])
        return {"rows": file.rows, "policy": policy, "max_tokens": case.get("max_tokens"), "table": file.table,
                "keep_ratio": case["keep_ratio"] / 1e6, "protect": case.get("spans", ()), "queries": queries,
                "timeout": 30}


@pytest.fixture(scope="module")
def bench(daemon: Daemon) -> Iterator[Bench]:
    with chunkkv.Client(daemon.prefix()) as client:
        yield Bench(client)


def kept_of(answer: chunkkv.Answer, file: File, cases: list[dict[str, Any]]) -> list[NDArray[np.uint32]]:
    """The rows that each layer kept, which must be those of the cases."""
    for case in cases:
        assert [list(r) for r in answer.layers[case["layer"]].kept] == case["kept"], f"layer {case['layer']}"
        assert len(answer.layers[case["layer"]].rows) == case["kept_count"]
    # fill = none and profile paper may keep unequal counts; the longest layer decides
    assert answer.physical_len == max(len(layer.rows) for layer in answer.layers.values())
    assert answer.phase == chunkkv.Phase.DONE
    assert answer.logical_len == file.rows
    return [answer.layers[number].rows for number in file.layers]


GROUPS = grouped() + votes()


@pytest.mark.parametrize("cases", [g[1] for g in GROUPS], ids=[g[0] for g in GROUPS])
def test_golden(bench: Bench, cases: list[dict[str, Any]]) -> None:
    """PLAN writes nothing, COPY_OUT the destination only, IN_PLACE the first rows only; all keep the same."""
    file = bench.file(cases[0]["file"])
    request = bench.request(file, cases[0])
    assert np.array_equal(file.everything, file.pristine)
    planned = bench.client.plan(file.cache, **request)
    kept = kept_of(planned, file, cases)
    assert planned.cache == chunkkv.CacheState.CLEAN
    assert np.array_equal(file.everything, file.pristine), "PLAN wrote something"
    try:
        copied = bench.client.copy_out(file.cache, destination=file.destination, **request)
        assert copied.groups[0].kept_digest == planned.groups[0].kept_digest
        kept_of(copied, file, cases)
        assert np.array_equal(file.everything, file.expected(kept, file.destination)), "COPY_OUT"
        file.everything[...] = file.pristine
        moved = bench.client.compress(file.cache, **request)
        assert moved.groups[0].kept_digest == planned.groups[0].kept_digest
        assert moved.cache == chunkkv.CacheState.COMMITTED
        kept_of(moved, file, cases)
        assert np.array_equal(file.everything, file.expected(kept, file.table)), "IN_PLACE"
    finally:
        file.everything[...] = file.pristine


POLICY_OF_PARAMS = ("profile", "chunk", "window", "sinks", "recent", "min_tokens", "pool", "pool_size", "scorer",
                    "join", "value_weight", "softcap", "sliding")


@pytest.mark.parametrize("example", tensors.END_TO_END, ids=lambda e: e.name)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_example_of_the_specification(client: chunkkv.Client, dtype: str, example: tensors.EndToEnd) -> None:
    """The table of section 6.4; its numbers are exact in every type."""
    key, value, query = tensors.synthetic()
    given = {name: getattr(example.params, name) for name in POLICY_OF_PARAMS}
    given = {name: value for name, value in given.items() if value is not None and value != tensors.UNSET.get(name)}
    policy = chunkkv.Policy(**given)
    with chunkkv.SharedCache.allocate(client, layers=1, tokens=48, kv_heads=2, q_heads=4, head_dim=8, dtype=dtype,
                                      window=4) as cache:
        cache.write(0, key=key, value=value, query=query)
        assert example.params.keep_ratio is not None
        answer = client.compress(cache, rows=48, keep_ratio=example.params.keep_ratio / 1e6, policy=policy)
        kept = answer.layers[0].rows
        assert kept.tolist() == tensors.rows_of(example.kept)
        if example.params.profile == "default":
            assert answer.groups[0].budget == 24
        bits = chunkkv.from_bf16(cache.key(0)) if dtype == "bf16" else cache.key(0)
        assert np.array_equal(bits[: len(kept)], key[kept])
