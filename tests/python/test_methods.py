"""Every method that the client has a name for, from its name to the moved rows, against the NumPy models.

A request brings its row scores along: they must be those of the model (R31), and the kept rows must be exactly what the
model selects by them.  So there is no gap to allow for.  Then what else users do with methods: log-sum-exp beside the
queries, sequences that grow and are compressed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chunkkv
import reference_numpy as ref
import selectors_numpy as model
from chunkkv import Policy, methods
from daemon import Daemon
from methods_bench import BLOCK, DIM, HEADS, LAYERS, Q_HEADS, Bench

F32 = NDArray[np.float32]
LENGTHS = (150, 77, 555)  # LagKV scores sequences below 4 + 2 * 128 rows by their row number alone
QUERY_FREE = ("knorm", "keydiff", "lagkv", "vk_ratio")
TOLERANCE = {"keydiff": (1e-4, 2e-5), "knorm": (2e-5, 0.0), "vk_ratio": (2e-5, 0.0), "drop": (1e-3, 1e-7)}
NAMES = [*methods.METHODS, "hybrid"]


@pytest.fixture(scope="module")
def bench(daemon: Daemon) -> Iterator[Bench]:
    with chunkkv.Client(daemon.prefix()) as client:
        yield Bench(client)


def params(policy: Policy, rows: int, lengths: tuple[int, ...]) -> ref.Params:
    """A resolved policy as the scorers' model has it."""
    known = {item.name for item in fields(ref.Params)}
    given = {item.name: getattr(policy, item.name) for item in fields(Policy) if item.name in known}
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("value_weight") == "none":
        del given["value_weight"]
    window = rows if policy.selector == "h2o" else policy.window
    return ref.Params(**{**given, "window": window, "chunk_lengths": lengths})


def part(policy: Policy, scores: F32, count: int, ratio: int | None, lengths: tuple[int, ...]) -> model.Part:
    """A resolved policy as the selectors' model has it; scores [layers or 1][heads][rows]."""
    window = None if policy.scorer in QUERY_FREE else policy.window
    names = ("profile", "selector", "chunk", "sinks", "recent", "fill", "tight", "align", "unit_reduce", "layers",
             "reuse", "beta", "heavy", "recent_part", "page", "spike_keep")
    given = {name: value for name in names if (value := getattr(policy, name)) is not None}
    return model.Part(scores, count, keep_ratio=ratio, window=window, shortest=policy.min_tokens or 0,
                      chunk_lengths=lengths, **given)


def expected_scores(bench: Bench, policy: Policy, layers: range, query_rows: int, lengths: tuple[int, ...]) -> Any:
    """T[j] of the model, [layers or 1][heads][rows]."""
    p = params(policy, bench.rows, lengths)
    q, k, v = bench.newest(query_rows), bench.of(bench.before[0]), bench.of(bench.before[1])
    leaders = [layers[0] + i - i % (policy.reuse or 1) for i in range(len(layers))]
    t = np.stack([np.atleast_2d(ref.row_scores(q[i], k[i], v[i], p)) for i in leaders])
    if policy.layers != "one":
        return t
    if policy.layer_reduce == "top4":
        return np.sort(t, axis=0)[::-1][:4].sum(axis=0, keepdims=True) / min(4, len(t))
    return t.astype(np.float32).astype(np.float64).sum(axis=0, keepdims=True)


def assert_close(got: F32, want: Any, scorer: str) -> None:
    if scorer == "lagkv":  # ranks: two rows that nearly tie may stand the other way round
        assert (np.abs(got - want) > 1e-6).mean() < 0.01
        assert np.abs(got - want).max() < 0.02
        return
    rtol, atol = TOLERANCE.get(scorer, (1e-4, 1e-6))
    np.testing.assert_allclose(got, want, rtol, atol)


def ask(bench: Bench, name: str) -> tuple[chunkkv.Answer, int, int | None, tuple[int, ...]]:
    """The request of a method. Returns the answer, query rows, keep ratio, chunk lengths."""
    policy = methods.hybrid(range(LAYERS)) if name == "hybrid" else methods.get(name)
    query_rows = bench.rows if name == "h2o" else min(64, bench.rows)
    ratio = None if name == "h2o" else 700_000 if bench.rows < 200 else 300_000  # more than window and sinks
    lengths: tuple[int, ...] = ()
    if name == "chunk-at":
        lengths = (30, 7, 23, bench.rows - 60)
    run = bench.client.compress if name == "snapkv-each" else bench.client.plan
    request = bench.request(
        policy, query_rows, keep_ratio=None if ratio is None else ratio / 1e6, chunk_lengths=lengths or None,
        scores_out=True, score_kind="rows", want_kept_mass=True, timeout=60)
    if not any(p.reads_queries for p in ([policy] if isinstance(policy, Policy) else policy)):
        request["queries"] = None
    answer = run(bench.cache, **request)
    return answer, query_rows, ratio, lengths


@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("name", NAMES)
def test_method(bench: Bench, name: str, rows: int) -> None:
    """Scores as the model's, rows exactly those that the model selects by them, bytes those of the rows."""
    bench.fill(rows, rows)
    answer, query_rows, ratio, lengths = ask(bench, name)
    group = answer.groups[0]
    firsts = [p.layer_first for p in group.policies] + [LAYERS]
    place = 0
    for i, policy in enumerate(group.policies):
        layers = range(firsts[i], firsts[i + 1])
        count = 1 if policy.layers == "one" else len(layers)
        if policy.selector == "streaming":
            scores = np.zeros((count, 1, rows), np.float32)
        else:
            assert group.scores is not None
            want = expected_scores(bench, policy, layers, query_rows, lengths)
            scores = group.scores.reshape(-1, want.shape[1], rows)[place : place + count]
            assert_close(scores, want, policy.scorer or "")
        place += count
        sets = model.select([part(policy, scores, len(layers), ratio, lengths)])[0]
        assert sets.outcome == "dropped"
        for layer, kept in zip(layers, sets.kept, strict=True):
            for head in range(HEADS):
                found = answer.layers[layer].rows_of(head)
                assert found.tolist() == kept[head if len(kept) > 1 else 0].tolist(), (layer, head)
                check_bytes(bench, answer, layer, head, found)
            if layer in answer.kept_mass and policy.heads != "each" and policy.layers == "each":
                t = scores[layer - layers[0], 0].astype(np.float64)
                assert answer.kept_mass[layer] == pytest.approx(t[kept[0]].sum() / t.sum(), rel=1e-4)


def check_bytes(bench: Bench, answer: chunkkv.Answer, layer: int, head: int, rows: NDArray[np.uint32]) -> None:
    for plane, before in zip(bench.planes, bench.before, strict=True):
        if answer.cache == chunkkv.CacheState.COMMITTED:
            assert np.array_equal(bench.of(plane)[layer, : len(rows), head], bench.of(before)[layer, rows, head])
        else:
            assert np.array_equal(plane[layer], before[layer])


@pytest.mark.parametrize("mode", ["compress", "copy_out"])
@pytest.mark.parametrize("name", ["snapkv", "knorm", "vote", "hybrid", "streamingllm", "pyramidkv"])
def test_moves_as_planned(bench: Bench, name: str, mode: str) -> None:
    """What a plan says is what is moved, whatever the method."""
    bench.fill(4, 250)
    policy = methods.hybrid(range(LAYERS)) if name == "hybrid" else methods.get(name)
    request = bench.request(policy)
    planned = bench.client.plan(bench.cache, **request)
    used = -(-bench.rows // BLOCK)
    if mode == "copy_out":
        answer = bench.client.copy_out(bench.cache, destination=bench.table[used : 2 * used], **request)
    else:
        answer = bench.client.compress(bench.cache, **request)
    assert answer.groups[0].kept_digest == planned.groups[0].kept_digest
    start = used if mode == "copy_out" else 0
    for layer, result in answer.layers.items():
        for plane, before in zip(bench.planes, bench.before, strict=True):
            now = plane[layer, bench.table].reshape(-1, HEADS, DIM)[start * BLOCK :]
            assert np.array_equal(now[: len(result.rows)], bench.of(before)[layer, result.rows])


@pytest.mark.parametrize("name", ["knorm", "keydiff", "lagkv", "vk-ratio", "streamingllm"])
def test_without_queries(bench: Bench, name: str) -> None:
    """Query-free methods are asked for like any other; queries that come along change nothing."""
    bench.fill(5, 300)
    request = bench.request(methods.get(name))
    with_queries = bench.client.plan(bench.cache, **request)
    without = bench.client.plan(bench.cache, **{**request, "queries": None})
    assert with_queries.groups[0].kept_digest == without.groups[0].kept_digest


# ---- log-sum-exp and sink logits

def softmax_sums(bench: Bench, count: int, sinks: F32 | None = None) -> F32:
    """[layer][query head][row] of the newest queries."""
    k, q = bench.of(bench.before[0]).astype(np.float64), bench.newest(count).astype(np.float64)
    out = np.empty((LAYERS, Q_HEADS, count))
    for head in range(Q_HEADS):
        logits = np.einsum("lrd,ljd->lrj", q[:, :, head], k[:, :, head // (Q_HEADS // HEADS)]) / np.sqrt(DIM)
        seen = np.arange(bench.rows)[None, :] <= (bench.rows - count + np.arange(count))[:, None]
        total = np.where(seen, np.exp(logits), 0).sum(axis=2)
        out[:, head] = np.log(total if sinks is None else total + np.exp(sinks[:, head, None].astype(np.float64)))
    return out.astype(np.float32)


@pytest.mark.parametrize("in_region", [False, True])
def test_log_sum_exp(bench: Bench, in_region: bool) -> None:
    """It saves a pass and changes nothing; sink logits do change something; a wrong one is refused by name."""
    bench.fill(6, 200)
    request = bench.request(Policy(), 40)
    plain = bench.client.plan(bench.cache, scores_out=True, score_kind="rows", **request)
    lse = softmax_sums(bench, 40)
    place: Any = lse
    if in_region:
        memory = chunkkv.SharedMemory.allocate(lse.nbytes)
        memory.numpy(lse.shape, np.float32)[...] = lse
        place = bench.client.register_region(memory).slice(0, lse.nbytes)
    with_lse = bench.client.plan(bench.cache, lse=place, scores_out=True, score_kind="rows", **request)
    assert plain.groups[0].scores is not None
    assert with_lse.groups[0].scores is not None
    np.testing.assert_allclose(with_lse.groups[0].scores, plain.groups[0].scores, rtol=1e-4)
    sinks = np.linspace(2, 4, LAYERS * Q_HEADS, dtype=np.float32).reshape(LAYERS, Q_HEADS)
    with_sinks = bench.client.plan(bench.cache, sink_logits=sinks, scores_out=True, score_kind="rows", **request)
    both = bench.client.plan(bench.cache, sink_logits=sinks, lse=softmax_sums(bench, 40, sinks), scores_out=True,
                             score_kind="rows", **request)
    assert with_sinks.groups[0].scores is not None
    assert both.groups[0].scores is not None
    assert (with_sinks.groups[0].scores < plain.groups[0].scores).all()
    np.testing.assert_allclose(both.groups[0].scores, with_sinks.groups[0].scores, rtol=1e-4)
    wrong = lse.copy()
    wrong[3, 2, 39] -= 0.3
    with pytest.raises(chunkkv.CannotCompress) as caught:
        bench.client.plan(bench.cache, lse=wrong, **request)
    assert caught.value.code == chunkkv.Code.BAD_LSE
    assert caught.value.field == "compress.queries.lse"
    assert "layer 3, query head 2" in str(caught.value)
    with pytest.raises(chunkkv.InvalidArgument, match="the slice has"):
        bench.client.plan(bench.cache, lse=lse[:, :, 1:], **request)


# ---- again and again, as a sequence grows

GROWING = {"vote": methods.vote(), "chunkkv": methods.chunkkv(layers="one"), "streamingllm": methods.streamingllm(),
           "knorm": methods.knorm(layers="one")}


@pytest.mark.parametrize("policy", GROWING.values(), ids=GROWING)
def test_rounds_of_growth(bench: Bench, policy: Policy) -> None:
    """Each row carries its position in its first value; after every round it is where the map says."""
    rng = np.random.default_rng(9)
    slots = [(int(b), t) for b in bench.table for t in range(BLOCK)]
    rows = chunkkv.RowMap()

    def write(count: int) -> None:
        first = rows.physical_len
        for position in range(*rows.append(count)):
            block, token = slots[first + position - (rows.logical_len - count)]
            for plane in bench.planes:
                plane[:, block, token] = rng.standard_normal((LAYERS, HEADS, DIM), np.float32)
                plane[:, block, token, :, 0] = position / 1000

    bench.queries[...] = rng.standard_normal(bench.queries.shape, np.float32)
    write(300)
    for _ in range(6):
        bench.rows = rows.physical_len
        before = rows.positions
        answer = bench.client.compress(bench.cache, **{
            **bench.request(policy), "table": bench.table[: -(-rows.physical_len // BLOCK)], "keep_ratio": None,
            "max_tokens": 120, **rows.arguments()})
        rows.compressed(answer)
        assert rows.physical_len == answer.physical_len == 120
        assert np.array_equal(rows.positions, before[answer.layers[0].rows])
        write(int(rng.integers(1, 90)))
        stored = np.stack([[plane[0, b, t, 0, 0] for b, t in slots[: rows.physical_len]] for plane in bench.planes])
        assert np.array_equal(stored, np.stack([(rows.positions / 1000).astype(np.float32)] * 2))
        for row in (0, 60, rows.physical_len - 1):
            assert rows.row_of(int(rows.positions[row])) == row
    assert rows.row_of(rows.logical_len) is None
    gone = np.setdiff1d(np.arange(rows.logical_len), rows.positions)
    assert rows.row_of(int(gone[0])) is None


def test_a_map_is_of_one_sequence(bench: Bench) -> None:
    bench.fill(10, 200)
    answer = bench.client.plan(bench.cache, **bench.request(methods.chunkkv(layers="one")))
    with pytest.raises(ValueError, match="of other rows"):
        chunkkv.RowMap(201).compressed(answer)
    with pytest.raises(ValueError, match="lists of positions"):
        chunkkv.RowMap(200).compressed(bench.client.plan(bench.cache, **bench.request(methods.snapkv())))
    with pytest.raises(ValueError, match="no one position"):
        chunkkv.RowMap(200).compressed(bench.client.compress(bench.cache, **bench.request(methods.snapkv_each())))


def test_jaccard(bench: Bench) -> None:
    """Kept rows in common over kept rows in all; one set for all layers is the same everywhere."""
    bench.fill(11, 200)
    answer = bench.client.plan(bench.cache, **bench.request(methods.snapkv()))
    likeness = chunkkv.jaccard(answer)
    assert likeness.shape == (LAYERS, LAYERS)
    assert np.array_equal(likeness, likeness.T)
    one, other = (set(answer.layers[layer].rows.tolist()) for layer in (1, 4))
    assert likeness[1, 4] == len(one & other) / len(one | other)
    assert 0 < likeness[1, 4] < 1
    assert (bench.client.plan(bench.cache, **bench.request(methods.vote())).jaccard() == 1).all()
    each = bench.client.compress(bench.cache, **bench.request(methods.snapkv_each())).jaccard()
    assert (np.diag(each) == 1).all()
    assert 0 < each[0, 1] < 1


def test_names() -> None:
    assert methods.get("snapkv-each", window=16) == Policy(selector="token", sinks=0, pool="avg", pool_size=5,
                                                           heads="each", window=16)
    with pytest.raises(chunkkv.InvalidArgument, match="none of chunkkv"):
        methods.get("snapkw")
    with pytest.raises(chunkkv.InvalidArgument, match="two layers"):
        methods.hybrid([3])
    assert [p.layer_first for p in methods.hybrid([2, 3, 10, 11, 18])] == [0, 10]


def test_ranks_vote_as_the_whole_does(daemon: Daemon) -> None:
    """docs/methods.md, Tensor parallel: the maximum over ranks of each layer, then the four largest layers."""
    rng = np.random.default_rng(6)
    layers, rows, heads = 6, 400, 4
    keys, values = rng.standard_normal((2, layers, rows, heads, 8), np.float32)
    queries = rng.standard_normal((layers, 64, heads, 8), np.float32)
    request: dict[str, Any] = {"rows": rows, "keep_ratio": 0.2, "score_kind": "rows"}

    def cache_of(client: chunkkv.Client, part: slice) -> chunkkv.SharedCache:
        count = len(range(heads)[part])
        cache = chunkkv.SharedCache.allocate(client, layers=layers, tokens=rows, kv_heads=count, q_heads=count,
                                             head_dim=8, dtype="f32")
        for i in range(layers):
            cache.write(i, key=keys[i][:, part], value=values[i][:, part], query=queries[i][:, part])
        return cache

    with chunkkv.Client(daemon.prefix()) as client:
        ranks = [cache_of(client, slice(0, 2)), cache_of(client, slice(2, 4))]
        whole = cache_of(client, slice(0, 4))
        expected = client.plan(whole, policy=methods.vote(), **request).layers[0].rows
        each = [client.plan(rank, policy=methods.vote(layers="each"), scores_out=True, **request).groups[0].scores
                for rank in ranks]
        largest = np.sort(np.maximum(*each), axis=0)[-4:].astype(np.float64)  # type: ignore[arg-type]
        total = largest.mean(axis=0, keepdims=True).astype(np.float32)
        for rank in ranks:
            answer = client.compress(rank, policy=methods.vote(), scores_in=total, **request)
            assert np.array_equal(answer.layers[0].rows, expected)
        for cache in (*ranks, whole):
            cache.close()
