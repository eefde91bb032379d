"""Every method that the client has a name for, from its name to the moved rows, against the NumPy models.

A request brings its row scores along: they must be those of the model (R31), and the kept rows must be exactly what the
model selects by them.  So there is no gap to allow for.  Then what else users do with methods: refusals that say what
to do instead, log-sum-exp beside the queries, sequences that grow and are compressed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

F32 = NDArray[np.float32]
LAYERS, HEADS, Q_HEADS, DIM, BLOCK, MOST_ROWS = 6, 2, 4, 8, 8, 560
LENGTHS = (150, 77, 555)  # LagKV scores sequences below 4 + 2 * 128 rows by their row number alone
QUERY_FREE = ("knorm", "keydiff", "lagkv", "vk_ratio")
TOLERANCE = {"keydiff": (1e-4, 2e-5), "knorm": (2e-5, 0.0), "vk_ratio": (2e-5, 0.0), "drop": (1e-3, 1e-7)}
NAMES = [*methods.METHODS, "hybrid"]


class Bench:
    """One cache, f32, blocks in no order, with room for the queries of all rows."""

    def __init__(self, client: chunkkv.Client) -> None:
        self.client = client
        shape = (LAYERS, MOST_ROWS // BLOCK, BLOCK, HEADS, DIM)
        plane, queries = 4 * int(np.prod(shape)), 4 * LAYERS * MOST_ROWS * Q_HEADS * DIM
        self.memory = chunkkv.SharedMemory.allocate(2 * plane + queries)
        self.region = client.register_region(self.memory)
        self.planes = [self.memory.numpy(shape, "f32", i * plane) for i in (0, 1)]
        self.queries = self.memory.numpy((LAYERS, MOST_ROWS, Q_HEADS, DIM), "f32", 2 * plane)
        self.table = np.random.default_rng(3).permutation(shape[1])
        self.cache = client.register_cache(chunkkv.CacheLayout.of_arrays(
            [self.planes[0]], [self.planes[1]], axes="lbthd", q_heads=Q_HEADS, region=self.region))

    def fill(self, seed: int, rows: int) -> None:
        rng = np.random.default_rng(seed)
        for plane in (*self.planes, self.queries):
            plane[...] = rng.standard_normal(plane.shape, np.float32)
        self.before = [plane.copy() for plane in self.planes]
        self.rows = rows

    def of(self, plane: F32) -> F32:
        """Rows in order: [layer][row][head][dim]."""
        return plane[:, self.table].reshape(LAYERS, -1, HEADS, DIM)[:, : self.rows]

    def newest(self, count: int) -> F32:
        return self.queries[:, :count]

    def request(self, policy: Policy | Sequence[Policy], query_rows: int = 64, **other: Any) -> dict[str, Any]:
        count = min(query_rows, self.rows)
        return {"rows": self.rows, "table": self.table[: -(-self.rows // BLOCK)], "policy": policy, "keep_ratio": 0.3,
                "queries": chunkkv.Queries.of_array(self.newest(count), region=self.region), **other}


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


# ---- what does not go, and what to do instead

P = "compress.groups[0].policies[0]."
REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("plan", {}, {"queries": None}, "compress.queries", "send them, or ask for scorer knorm or keydiff"),
    ("plan", {"scorer": "drop"}, {"queries": None}, "compress.queries", "knorm or keydiff"),
    ("plan", {"scorer": "given"}, {}, "compress.groups[0].scores_in", "is required"),
    ("plan", {"heads": "each"}, {}, P + "heads", "ask for IN_PLACE or COPY_OUT, or for heads = sum"),
    ("slots", {"heads": "each"}, {}, P + "heads", "give the table in blocks, or ask for COPY_OUT"),
    ("compress", {"heads": "each"}, {"positions": [(0, 199), (200, 201)], "logical_len": 201}, P + "heads",
     "ask for heads = sum"),
    ("compress", {"heads": "each", "sliding": 50}, {}, P + "heads", "ask for heads = sum"),
    ("compress", {"heads": "each", "layers": "one"}, {}, P + "heads", "layers = each"),
    ("compress", {"heads": "each", "selector": "streaming"}, {}, P + "heads", "heads = sum"),
    ("compress", {"heads": "each", "fill": "none"}, {}, P + "fill", "fill = lead or best"),
    ("compress", {"selector": "page"}, {}, P + "selector", "ask for PLAN, or for selector chunk"),
    ("plan", {"selector": "page", "page": 12}, {}, P + "page", "must be a multiple of 8, is 12"),
    ("plan", {"selector": "page", "layers": "each"}, {}, P + "layers", "layers = one"),
    ("plan", {"page": 16}, {}, P + "page", "selector page alone"),
    ("plan", {"selector": "h2o"}, {"keep_ratio": None}, "compress.queries.rows", "send them all, or ask for selector"),
    ("plan", {"selector": "h2o"}, {}, "compress.groups[0].keep_ratio", "set heavy and recent_part instead"),
    ("plan", {"selector": "h2o", "scorer": "knorm"}, {"keep_ratio": None}, P + "scorer", "scorer window, or selector"),
    ("plan", {"heavy": 1000}, {}, P + "heavy", "selector h2o alone"),
    ("plan", {"beta": 20, "layers": "one"}, {}, P + "beta", "layers = each"),
    ("plan", {"layer_reduce": "top4"}, {}, P + "layer_reduce", "layers = one"),
    ("plan", {"vote_rows": 4}, {}, P + "vote_rows", "window_reduce = max alone"),
    ("plan", {"window_reduce": "max", "scorer": "knorm"}, {}, P + "scorer", "scorer window"),
    ("plan", {"window_reduce": "max", "norm": "mean"}, {}, P + "norm", "norm = sum"),
    ("plan", {"contrast_first": 4}, {}, P + "contrast_end", "set both"),
    ("plan", {"selector": "chunk_at"}, {}, "compress.groups[0].chunk_lengths", "is required"),
    ("plan", {"selector": "chunk_at", "unit_reduce": "sum"}, {"chunk_lengths": [100, 100]}, P + "unit_reduce",
     "mean or max"),
    ("plan", {"selector": "chunk"}, {"chunk_lengths": [100, 100]}, "compress.groups[0].chunk_lengths", "must not be"),
    ("plan", {"profile": "kvpress", "scorer": "drop"}, {}, P + "scorer", "ask for profile default"),
    ("plan", {"profile": "kvpress", "selector": "h2o"}, {}, P + "selector", "ask for profile default"),
    ("plan", {"profile": "paper", "fill": "best"}, {}, P + "fill", "does not let this be set"),
    ("plan", {"profile": "paper"}, {"protect": [(0, 5)]}, "compress.groups[0].protect", "does not let this be set"),
    ("plan", {"window": 65}, {}, "compress.queries.rows", "window is 65, but only 64"),
]


@pytest.mark.parametrize(("mode", "policy", "other", "field", "words"), REFUSALS, ids=range(len(REFUSALS)))
def test_refusals_say_what_to_do(bench: Bench, mode: str, policy: dict[str, Any], other: dict[str, Any], field: str,
                                 words: str) -> None:
    """Unknown combinations name the field and say what to do instead; nothing is touched, and the daemon goes on."""
    bench.fill(7, 200)
    request = bench.request(Policy(**policy), **{"timeout": 10, **other})
    if mode == "slots":
        slots = (bench.table[:, None] * BLOCK + np.arange(BLOCK)).ravel()[: bench.rows]
        request["table"] = chunkkv.Table(slots, "tokens")
    run = bench.client.plan if mode == "plan" else bench.client.compress
    with pytest.raises((chunkkv.InvalidArgument, chunkkv.Unsupported)) as caught:
        run(bench.cache, **request)
    assert caught.value.field.removesuffix("[0]") == field
    assert words in str(caught.value)
    assert caught.value.cache == chunkkv.CacheState.CLEAN
    assert all(np.array_equal(plane, before) for plane, before in zip(bench.planes, bench.before, strict=True))
    assert bench.client.ping().in_flight == 0


LAYER_PLANS: list[tuple[list[Policy], str, str]] = [
    ([Policy(layer_first=1)], P + "layer_first", "must be 0 or 0"),
    ([Policy(), Policy(layer_first=6)], "compress.groups[0].policies[1].layer_first", "layer 6 is not in this group"),
    ([Policy(), Policy(layer_first=3), Policy(layer_first=3)], "compress.groups[0].policies[2].layer_first",
     "ascending"),
    ([Policy(), Policy(layer_first=3, align=64)], "compress.groups[0].policies", "must keep equally many"),
]


@pytest.mark.parametrize(("plan", "field", "words"), LAYER_PLANS, ids=range(len(LAYER_PLANS)))
def test_layer_plans_cover_the_layers_once(bench: Bench, plan: list[Policy], field: str, words: str) -> None:
    """A gap, an overlap, or unequal budgets under one table."""
    bench.fill(8, 200)
    with pytest.raises(chunkkv.InvalidArgument) as caught:
        bench.client.plan(bench.cache, **bench.request(plan))
    assert caught.value.field == field
    assert words in str(caught.value)


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
