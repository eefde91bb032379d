"""The largest caches that are promised: 128 layers, and 1,048,576 rows; one at a time, with small heads."""

from __future__ import annotations

import os

import numpy as np
import pytest
from numpy.typing import NDArray

import chunkkv
import reference_numpy as ref
from chunkkv._pb import chunkkv_pb2 as pb
from reference_numpy import Params


def watched(monkeypatch: pytest.MonkeyPatch, client: chunkkv.Client) -> list[pb.Compress]:
    """What the client sends from now on."""
    sent: list[pb.Compress] = []
    compose = client._connection.compose

    def watch(body: pb.Request, *args: object) -> object:
        if body.HasField("compress"):
            sent.append(body.compress)
        return compose(body, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(client._connection, "compose", watch)
    return sent


def test_128_layers(client: chunkkv.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer with a set of its own; so many runs that the reply comes through memory."""
    layers, rows, dim, window = 128, 2048, 8, 4
    rng = np.random.default_rng(8)
    with chunkkv.SharedCache.allocate(client, layers=layers, tokens=rows, kv_heads=1, q_heads=2, head_dim=dim,
                                      dtype="f32", window=window) as cache:
        for layer in range(layers):
            cache.write(layer, key=rng.standard_normal((rows, 1, dim), np.float32),
                        value=rng.standard_normal((rows, 1, dim), np.float32),
                        query=rng.standard_normal((window, 2, dim), np.float32))
        before = [(cache.key(n).copy(), cache.value(n).copy()) for n in range(layers)]
        sent = watched(monkeypatch, client)
        answer = client.compress(cache, rows=rows, keep_ratio=0.5, policy=chunkkv.Policy(window=window, chunk=1),
                                 timeout=60)
        assert sent[-1].reply_form == pb.REPLY_IN_REGION
        assert answer.physical_len == rows // 2
        p = Params(window=window, chunk=1, keep_ratio=500_000)
        kept_sets = set()
        for layer in range(layers):
            key, value = before[layer]
            kept = answer.layers[layer].rows.astype(np.int64)
            kept_sets.add(kept.tobytes())
            if layer % 9 == 0:
                assert ref.difference_allowed(ref.plan(cache.query(layer), key, value, p), kept)
            for now, old in ((cache.key(layer), key), (cache.value(layer), value)):
                assert np.array_equal(now[: len(kept)], old[kept])
                assert np.array_equal(now[len(kept) :], old[len(kept) :])
        assert len(kept_sets) == layers
        one = client.plan(cache, rows=rows, keep_ratio=0.1, policy=chunkkv.Policy(window=window, layers="one"))
        assert len({tuple(one.layers[n].kept) for n in range(layers)}) == 1
        assert one.groups[0].policies[0].layers == "one"


ROWS, BLOCK, DIM, WINDOW, CHUNK, RECENT, SINKS = 1 << 20, 16, 4, 4, 10, 4, 4
MILLION_LAYERS = 3


def chosen(query: NDArray[np.float32], key: NDArray[np.float32], budget: int) -> tuple[NDArray[np.bool_], set[int]]:
    """The rows that the default profile keeps of one head, and the chunks in the gap band; in whole arrays."""
    e = key[:, 0].astype(np.float64) @ query[:, 0].astype(np.float64).T / np.sqrt(DIM)  # [rows][window]
    for t in range(WINDOW):
        e[ROWS - WINDOW + 1 + t :, t] = -np.inf
    e = np.exp(e - e.max(axis=0))
    scores = (e / e.sum(axis=0)).sum(axis=1)
    free = np.ones(ROWS, bool)
    free[:SINKS] = free[ROWS - RECENT :] = False
    firsts = np.arange(0, ROWS, CHUNK)
    sizes = np.add.reduceat(free.astype(np.int64), firsts)
    units = np.flatnonzero(sizes)
    c = (np.add.reduceat(scores * free, firsts)[units] / sizes[units]).astype(np.float32)
    order = units[np.lexsort((units, -c.astype(np.float64)))]
    left = budget - SINKS - RECENT
    taken = np.cumsum(sizes[order]) <= left
    keep = ~free
    of_chunk = np.arange(ROWS) // CHUNK
    keep |= free & np.isin(of_chunk, order[taken])
    cut = order[int(taken.sum())]
    rows = np.flatnonzero(free & (of_chunk == cut))
    keep[rows[: left - int(sizes[order[taken]].sum())]] = True
    edge = float(c[units == cut][0])
    near = np.abs(c.astype(np.float64) - edge) <= 2.01 * ref.RTOL * edge
    return keep, set(units[near].tolist())


def test_a_million_rows(client: chunkkv.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """65,536 blocks in no order: the table does not fit a request, and the sets do not fit a reply."""
    if os.environ.get("CHUNKKV_BUILD", "").endswith(("tsan", "asan")):
        pytest.skip("takes too long under a sanitizer")
    blocks, kind = ROWS // BLOCK, np.float16
    rng = np.random.default_rng(20)
    shape = (MILLION_LAYERS, blocks, BLOCK, 1, DIM)
    plane = int(np.prod(shape)) * 2
    with chunkkv.SharedMemory.allocate(2 * plane + 4096) as memory:
        region = client.register_region(memory)
        keys, values = memory.numpy(shape, kind), memory.numpy(shape, kind, plane)
        queries = memory.numpy((MILLION_LAYERS, WINDOW, 1, DIM), "f32", 2 * plane)
        queries[...] = rng.standard_normal(queries.shape, np.float32)
        table = rng.permutation(blocks)
        before = []
        for layer in range(MILLION_LAYERS):
            for view in (keys, values):
                rows = rng.standard_normal((blocks, BLOCK, 1, DIM), np.float32).astype(kind)
                view[layer, table] = rows
                before.append(rows.reshape(ROWS, 1, DIM))
        cache = client.register_cache(chunkkv.CacheLayout.of_arrays([keys], [values], axes="lbthd", q_heads=1,
                                                                    region=region))
        sent = watched(monkeypatch, client)
        answer = client.compress(
            cache, rows=ROWS, table=table, keep_ratio=0.5, timeout=60,
            policy=chunkkv.Policy(window=WINDOW, chunk=CHUNK, sinks=SINKS, recent=RECENT),
            queries=chunkkv.Queries.of_array(queries, region=region))
        assert sent[-1].groups[0].table.HasField("from")
        assert sent[-1].reply_form == pb.REPLY_IN_REGION
        assert (answer.physical_len, answer.groups[0].table_used) == (ROWS // 2, blocks // 2)
        for layer in range(MILLION_LAYERS):
            kept = answer.layers[layer].rows.astype(np.int64)
            assert len(kept) == ROWS // 2
            expected, band = chosen(queries[layer], before[2 * layer].astype(np.float32), ROWS // 2)
            mine = np.zeros(ROWS, bool)
            mine[kept] = True
            assert set((np.flatnonzero(mine != expected) // CHUNK).tolist()) <= band
            for view, old in ((keys, before[2 * layer]), (values, before[2 * layer + 1])):
                now = view[layer, table].reshape(ROWS, 1, DIM)
                assert np.array_equal(now[: ROWS // 2].view(np.uint16), old[kept].view(np.uint16))
                assert np.array_equal(now[ROWS // 2 :].view(np.uint16), old[ROWS // 2 :].view(np.uint16))
        assert {b.slot.name: b.used for b in client.status()}["REGIONS"] == 1, "a region was left behind"
        too_many = chunkkv.Table([0, blocks], "block_runs")
        with pytest.raises(chunkkv.ChunkkvError) as caught:
            client.plan(cache, rows=ROWS + 1, table=too_many, keep_ratio=0.5)
        assert caught.value.field == "compress.groups[0].rows"
        client.unregister_cache(cache)
        client.unregister_region(region)
