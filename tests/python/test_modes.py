"""What a request can bring and take beside a budget: destinations, kept sets, positions, scores, other reply forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chunkkv
import reference_numpy as ref
import tensors
from chunkkv import CacheState
from chunkkv._pb import chunkkv_pb2 as pb
from daemon import Daemon
from reference_numpy import Params

LAYERS, HEADS, Q_HEADS, DIM, WINDOW, BLOCK, ROWS = 4, 2, 6, 16, 8, 8, 200
BLOCKS = 2 * ROWS // BLOCK
BASE = Params(window=WINDOW, chunk=5)
POLICY = {"window": WINDOW, "chunk": 5}


@dataclass
class Bench:
    """Keys, values and queries of four layers, in blocks 0 to 24 of 50."""

    client: chunkkv.Client
    memory: chunkkv.SharedMemory
    region: chunkkv.Region
    cache: chunkkv.Cache
    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    queries: NDArray[np.float32]
    everything: NDArray[np.uint8]

    def rows(self, plane: NDArray[np.float32], layer: int, first_block: int = 0) -> NDArray[np.float32]:
        """Rows of a layer from a block on, as a view."""
        view: NDArray[np.float32] = plane[layer].reshape(BLOCKS * BLOCK, HEADS, DIM)[first_block * BLOCK :]
        return view

    def request(self, rows: int = ROWS, **given: Any) -> dict[str, Any]:
        policy = {**POLICY, **given.pop("policy", {})}
        return {"rows": rows, "table": range(-(-rows // BLOCK)), "policy": chunkkv.Policy(**policy),
                "queries": chunkkv.Queries.of_array(self.queries, region=self.region), **given}

    def plans(self, p: Params, rows: int = ROWS, pos: NDArray[np.int64] | None = None) -> list[ref.Plan]:
        layers = [ref.Layer(self.queries[i], self.rows(self.keys, i)[:rows], self.rows(self.values, i)[:rows])
                  for i in range(LAYERS)]
        return ref.plan_layers(layers, p, pos)


@pytest.fixture(scope="module")
def everything(daemon: Daemon) -> Iterator[Bench]:
    with chunkkv.Client(daemon.prefix()) as client:
        memory = chunkkv.SharedMemory.allocate(2 << 20)
        region = client.register_region(memory)
        shape = (LAYERS, BLOCKS, BLOCK, HEADS, DIM)
        keys = memory.numpy(shape, "f32")
        values = memory.numpy(shape, "f32", keys.nbytes)
        queries = memory.numpy((LAYERS, WINDOW, Q_HEADS, DIM), "f32", 2 * keys.nbytes)
        cache = client.register_cache(chunkkv.CacheLayout.of_arrays([keys], [values], axes="lbthd", q_heads=Q_HEADS,
                                                                    region=region))
        yield Bench(client, memory, region, cache, keys, values, queries, memory.numpy(memory.size, np.uint8))


@pytest.fixture
def bench(everything: Bench) -> Bench:
    rng = np.random.default_rng(17)
    everything.everything[...] = 0xFF
    for array in (everything.keys, everything.values, everything.queries):
        array[...] = rng.standard_normal(array.shape, np.float32)
    return everything


def kept_of(answer: chunkkv.Answer) -> list[list[int]]:
    return [answer.layers[i].rows.tolist() for i in range(LAYERS)]


def kept_by(plans: list[ref.Plan]) -> list[list[int]]:
    return [plan.kept.tolist() for plan in plans]


# ---- kept sets from the caller

@pytest.mark.parametrize("mode", ["plan", "compress", "copy_out"])
def test_given_rows_need_no_queries(bench: Bench, mode: str) -> None:
    keep = [(0, 3), (10, 20), (33, 34), (190, 200)]
    rows = chunkkv.rows_from_ranges(keep)
    keys, before = bench.keys.copy(), bench.everything.copy()
    request: dict[str, Any] = {"rows": ROWS, "table": range(25), "keep": keep}
    if mode == "copy_out":
        request["destination"] = chunkkv.Table([40, 3], "block_runs")
    answer = getattr(bench.client, mode)(bench.cache, **request)
    assert kept_of(answer) == [rows.tolist()] * LAYERS
    assert answer.physical_len == answer.groups[0].budget == len(rows)
    if mode == "plan":
        assert np.array_equal(bench.everything, before)
    else:
        first = 40 if mode == "copy_out" else 0
        expected = keys.reshape(LAYERS, -1, HEADS, DIM).copy()
        expected[:, first * BLOCK : first * BLOCK + len(rows)] = expected[:, rows]
        assert np.array_equal(bench.keys, expected.reshape(bench.keys.shape))


def test_plan_of_one_rank_is_given_to_another(bench: Bench) -> None:
    """Rank 0 plans, and all get its rows: the digests agree."""
    planned = bench.client.plan(bench.cache, **bench.request(keep_ratio=0.3, policy={"layers": "one"}))
    given = bench.client.plan(bench.cache, rows=ROWS, table=range(25), keep=planned.layers[0].kept)
    assert given.groups[0].kept_digest == planned.groups[0].kept_digest
    assert kept_of(given) == kept_of(planned)


def test_digest_is_that_of_the_protocol(bench: Bench) -> None:
    """FNV-1a 64 over, for each set: group, first layer, head, rows before, rows kept, words of runs, runs."""
    answer = bench.client.plan(bench.cache, **bench.request(keep_ratio=0.3, policy={"reuse": 2}))
    words: list[int] = []
    for layer in (0, 2):
        runs = chunkkv.runs_from_ranges(answer.layers[layer].kept)
        words += [0, layer, 0, ROWS, len(answer.layers[layer].rows), len(runs), *runs]
    digest = 0xCBF29CE484222325
    for byte in np.array(words, "<u4").tobytes():
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    assert answer.groups[0].kept_digest == digest


# ---- positions

def test_second_compression_goes_on_where_the_first_left_off(bench: Bench) -> None:
    """Compress, decode, compress again: positions of one answer are those of the next request."""
    one = {"layers": "one"}
    first = bench.client.compress(bench.cache, **bench.request(keep_ratio=0.4, policy=one))
    pos = np.array(first.layers[0].rows, np.int64)
    assert first.positions() == first.layers[0].kept
    decoded = 50
    rows = first.physical_len + decoded
    # the rows behind the kept ones hold whatever they held: take them for the decoded ones
    pos = np.r_[pos, ROWS : ROWS + decoded]
    positions = first.positions(rows)
    assert chunkkv.rows_from_ranges(positions).tolist() == pos.tolist()
    expected = bench.plans(Params(window=WINDOW, chunk=5, keep_ratio=500_000, layers="one", spans=((150, 160),)), rows,
                           pos)
    kept_keys = bench.rows(bench.keys, 1)[expected[0].kept].copy()
    second = bench.client.compress(bench.cache, **bench.request(rows, keep_ratio=0.5, positions=positions, policy=one,
                                                                protect=[(150, 160)]))
    assert kept_of(second) == kept_by(expected)
    assert chunkkv.rows_from_ranges(second.positions()).tolist() == pos[expected[0].kept].tolist()
    assert second.logical_len == ROWS + decoded
    assert np.array_equal(bench.rows(bench.keys, 1)[: len(kept_keys)], kept_keys)
    # and a third time, with nothing decoded in between, from the second answer alone
    third = bench.client.plan(bench.cache, **bench.request(second.physical_len, keep_ratio=0.5, policy=one,
                                                           positions=second.positions(),
                                                           logical_len=second.logical_len))
    assert set(chunkkv.rows_from_ranges(third.positions())) <= set(chunkkv.rows_from_ranges(second.positions()))


def test_positions_come_back_in_every_reply_form(bench: Bench) -> None:
    positions = [(0, 50), (70, 120), (130, 230)]
    given = {"keep_ratio": 0.3, "positions": positions}
    answers = [bench.client.plan(bench.cache, **bench.request(**given, reply_form=form))
               for form in ("runs", "rows", "in_region")]
    for layer in range(LAYERS):
        of = {tuple(answer.layers[layer].positions) for answer in answers}
        assert len(of) == 1
        mapped = chunkkv.rows_from_ranges(positions)[answers[0].layers[layer].rows]
        assert chunkkv.rows_from_ranges(of.pop()).tolist() == mapped.tolist()


def test_layers_that_differ_have_no_one_list_of_positions(bench: Bench) -> None:
    answer = bench.client.plan(bench.cache, **bench.request(keep_ratio=0.3))
    assert len({tuple(rows) for rows in kept_of(answer)}) > 1
    with pytest.raises(ValueError, match="lists of positions"):
        answer.positions()
    same = bench.client.plan(bench.cache, **bench.request(keep_ratio=0.3, policy={"layers": "one"}))
    with pytest.raises(ValueError, match="fewer"):
        same.positions(same.physical_len - 1)


# ---- protected prefix

@pytest.mark.parametrize("prefix", [1, 8, 20])
def test_prefix_is_kept_and_never_written(bench: Bench, prefix: int) -> None:
    whole = -(-prefix // BLOCK) * BLOCK
    before = bench.keys.copy()
    answer = bench.client.compress(bench.cache, **bench.request(keep_ratio=0.3, protect_prefix=prefix))
    for layer in range(LAYERS):
        assert answer.layers[layer].rows[:whole].tolist() == list(range(whole))
    assert np.array_equal(bench.keys[:, : whole // BLOCK], before[:, : whole // BLOCK])


@pytest.mark.parametrize("given", [
    {"policy": {"profile": "kvpress"}, "keep_ratio": 0.3}, {"policy": {"profile": "paper"}, "keep_ratio": 0.3},
    {"keep": [(0, 5), (100, 200)]}, {"keep": [(8, 20)]}], ids=["kvpress", "paper", "first rows only", "dropped"])
def test_prefix_that_would_be_written_is_refused(bench: Bench, given: dict[str, Any]) -> None:
    before = bench.everything.copy()
    with pytest.raises(chunkkv.InvalidArgument) as caught:
        bench.client.compress(bench.cache, **bench.request(protect_prefix=10, **given))
    assert caught.value.cache == CacheState.CLEAN
    assert np.array_equal(bench.everything, before)


# ---- scores

@pytest.mark.parametrize("kind", ["units", "rows"])
@pytest.mark.parametrize("given", [{}, {"layers": "one"}, {"reuse": 2}, {"selector": "token"}, {"fill": "best"}],
                         ids=["each", "one", "reuse", "token", "best"])
def test_scores_out_select_the_same_when_they_come_in(bench: Bench, kind: str, given: dict[str, Any]) -> None:
    request = bench.request(keep_ratio=0.35, policy=given, score_kind=kind)
    scored = bench.client.plan(bench.cache, scores_out=True, **request)
    scores = scored.groups[0].scores
    assert scores is not None
    p = Params(window=WINDOW, chunk=5, keep_ratio=350_000, **given)
    plans = bench.plans(p)
    assert kept_of(scored) == kept_by(plans)
    assert len(scores) == (1 if given.get("layers") == "one" else LAYERS)
    if kind == "units" or given.get("selector") == "token":
        want = np.stack([plan.unit_scores for plan in plans[: len(scores)]])
        got = scores if kind == "units" else scores[:, plans[0].unit_ids]
        np.testing.assert_allclose(got, want, rtol=ref.RTOL)
    else:
        assert scores.shape[1] == ROWS
    if (kind, given.get("fill")) == ("units", "best"):
        return  # the best rows of a unit need scores of rows
    request.pop("queries")
    again = bench.client.plan(bench.cache, scores_in=scores, **request)
    assert again.groups[0].kept_digest == scored.groups[0].kept_digest
    # and they are what decides
    other = bench.client.plan(bench.cache, scores_in=-scores, **request)
    assert other.groups[0].kept_digest != scored.groups[0].kept_digest


@pytest.mark.parametrize(("sliding", "seen"), [(ROWS - WINDOW, False), (ROWS - WINDOW + 1, True)])
def test_sliding_window_ends_where_it_should(bench: Bench, sliding: int, seen: bool) -> None:
    """Row 0 is as far as its width from the oldest query, or one row less."""
    answer = bench.client.plan(bench.cache, scores_out=True, score_kind="rows",
                               **bench.request(keep_ratio=0.3, policy={"sliding": sliding}))
    scores = answer.groups[0].scores
    assert scores is not None
    assert (scores[:, 0] > 0).all() == seen
    assert (scores[:, 1] > 0).all()
    assert seen or not scores[:, 0].any()


def test_scores_of_a_plan_with_heads_apart_in_some_layers(bench: Bench) -> None:
    """Layers 0 and 1 have a score for each KV head, 2 and 3 one for all: no array has that shape."""
    policy = chunkkv.hybrid(chunkkv.Policy(heads="each", window=WINDOW, selector="token"),
                            (2, chunkkv.Policy(window=WINDOW, selector="token")))
    request = {**bench.request(), "policy": policy, "keep_ratio": 0.5, "score_kind": "rows",
               "destination": range(BLOCKS // 2, BLOCKS)}
    first = bench.client.copy_out(bench.cache, scores_out=True, **request)
    scores = first.groups[0].scores
    assert scores is not None
    assert scores.shape == ((2 * HEADS + 2) * ROWS,)
    second = bench.client.copy_out(bench.cache, scores_in=scores, **request)
    for layer in range(LAYERS):
        for head in range(HEADS):
            assert np.array_equal(first.layers[layer].rows_of(head), second.layers[layer].rows_of(head))


def test_scores_of_a_slice_of_the_callers(bench: Bench) -> None:
    at = bench.memory.size - 4096
    request = bench.request(keep_ratio=0.35, policy={"layers": "one"}, score_kind="rows")
    answer = bench.client.plan(bench.cache, scores_out=bench.region.slice(at, 4 * ROWS), **request)
    assert answer.groups[0].scores is None
    written = bench.memory.numpy(ROWS, "f32", at)
    assert np.isfinite(written).all()
    again = bench.client.plan(bench.cache, scores_in=bench.region.slice(at, 4 * ROWS), **request)
    assert again.groups[0].kept_digest == answer.groups[0].kept_digest


def test_nothing_to_score_gives_no_scores(bench: Bench) -> None:
    answer = bench.client.plan(bench.cache, scores_out=True, **bench.request(keep_ratio=1.0))
    assert answer.groups[0].kept_all == chunkkv.KeptAll.FITS
    assert answer.groups[0].scores is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_no_numbers_are_refused(bench: Bench, value: float) -> None:
    request = bench.request(keep_ratio=0.35, policy={"layers": "one"}, score_kind="rows")
    scores = np.ones((1, ROWS), np.float32)
    scores[0, 77] = value
    with pytest.raises(chunkkv.CannotCompress) as caught:
        bench.client.plan(bench.cache, scores_in=scores, **request)
    assert caught.value.code == chunkkv.Code.NONFINITE_SCORE
    with pytest.raises(chunkkv.InvalidArgument, match="float32"):
        bench.client.plan(bench.cache, scores_in=scores.astype(np.float64), **request)


def stage_examples() -> list[Any]:
    """Each with scores of rows; with scores of units too, where there are units to be chosen and no rows of them."""
    cases = [pytest.param("rows", example, id=f"{example.name}-rows") for example in tensors.STAGE_EXAMPLES]
    cases += [pytest.param("units", example, id=f"{example.name}-units") for example in tensors.STAGE_EXAMPLES
              if example.outcome == "dropped" and not example.raised and example.params.fill != "best"]
    return cases


@pytest.mark.parametrize(("kind", "example"), stage_examples())
def test_stage_example(bench: Bench, kind: str, example: tensors.StageExample) -> None:
    """E1 to E17 through the daemon: the table's scores come in, as rows, and as units formed of them."""
    p, length = example.params, len(example.scores)
    pos = np.arange(length) if example.positions is None else example.positions
    scores = example.scores.astype(np.float32)[None]
    if kind == "units":
        of_row = ref.units(length, p, pos, ref.protected_rows(length, p, pos))
        scores = ref.scores_of_units(example.scores, of_row, p)[None]
    policy = chunkkv.Policy(layers="one", chunk=p.chunk, window=p.window, sinks=p.sinks, recent=p.recent,
                            min_tokens=p.min_tokens, selector=p.selector, align=p.align, fill=p.fill,  # type: ignore
                            unit_reduce=p.unit_reduce)  # type: ignore[arg-type]
    answer = bench.client.plan(
        bench.cache, rows=length, table=range(-(-length // BLOCK)), policy=policy, scores_in=scores, score_kind=kind,
        keep_ratio=p.keep_ratio / 1e6 if p.keep_ratio else None, max_tokens=p.max_tokens, protect=p.spans,
        chunk_lengths=p.chunk_lengths or None,
        positions=None if example.positions is None else chunkkv.ranges_from_rows(example.positions))
    assert answer.layers[0].rows.tolist() == tensors.rows_of(example.kept)
    group = answer.groups[0]
    assert (group.kept_all.name.lower(), group.budget_raised) == (example.outcome, example.raised)


def test_stage_example_e18(bench: Bench) -> None:
    """The entropy gate: exact from the scores of rows; the scores of units alone are not enough for it."""
    policy = chunkkv.Policy(layers="one", chunk=10, window=1, sinks=4, recent=8, min_tokens=0, selector="chunk_eg")
    scores = tensors.spiked().astype(np.float32)[None]
    answer = bench.client.plan(bench.cache, rows=60, table=range(-(-60 // BLOCK)), policy=policy, keep_ratio=0.4,
                               scores_in=scores, score_kind="rows")
    assert answer.layers[0].rows.tolist() == tensors.rows_of("0-3 20-22 25 30-37 52-59")
    assert answer.groups[0].policies[0].spike_keep == 4
    with pytest.raises(chunkkv.ChunkkvError) as caught:
        bench.client.plan(bench.cache, rows=60, table=range(-(-60 // BLOCK)), policy=policy, keep_ratio=0.4,
                          scores_in=np.ones((1, 6), np.float32), score_kind="units")
    assert caught.value.field == "compress.groups[0].score_kind"


@pytest.mark.parametrize("example", tensors.PROFILE_EXAMPLES, ids=lambda e: e.name)
def test_profile_example(client: chunkkv.Client, example: tensors.StageExample) -> None:
    """Section 6.3 through the daemon, from scores of rows."""
    p, length = example.params, len(example.scores)
    policy = chunkkv.Policy(profile=p.profile, chunk=p.chunk, window=p.window,  # type: ignore[arg-type]
                            join="union" if p.join == "union" else None)
    with chunkkv.SharedCache.allocate(client, layers=1, tokens=length, kv_heads=1, q_heads=1, head_dim=8) as cache:
        answer = client.plan(cache, rows=length, policy=policy, max_tokens=p.max_tokens, score_kind="rows",
                             keep_ratio=p.keep_ratio / 1e6 if p.keep_ratio else None,
                             scores_in=example.scores.astype(np.float32)[None])
        assert answer.layers[0].rows.tolist() == tensors.rows_of(example.kept)
        assert answer.groups[0].kept_all.name.lower() == example.outcome


@pytest.mark.parametrize(("keep", "length", "chunk", "rows"), tensors.PROFILE_COUNTS)
def test_profile_counts(client: chunkkv.Client, keep: int, length: int, chunk: int, rows: int) -> None:
    with chunkkv.SharedCache.allocate(client, layers=1, tokens=length, kv_heads=1, q_heads=1, head_dim=8) as cache:
        answer = client.plan(cache, rows=length, policy=chunkkv.Policy(profile="kvpress", chunk=chunk, window=8),
                             keep_ratio=keep / 1e6, score_kind="rows",
                             scores_in=tensors.pattern(length).astype(np.float32)[None])
        assert answer.physical_len == rows


def test_tensor_parallel_ranks_agree(bench: Bench) -> None:
    """Two ranks with half of the heads each: scores out, added in the order of ranks, scores in, equal digests."""
    half = HEADS // 2
    ranks = []
    for rank in range(2):
        heads = slice(rank * half, (rank + 1) * half)
        q_heads = slice(rank * Q_HEADS // 2, (rank + 1) * Q_HEADS // 2)
        layout = chunkkv.CacheLayout.of_arrays([bench.keys[:, :, :, heads]], [bench.values[:, :, :, heads]],
                                               axes="lbthd", q_heads=Q_HEADS // 2, region=bench.region)
        cache = bench.client.register_cache(layout)
        queries = chunkkv.Queries.of_array(bench.queries[:, :, q_heads], region=bench.region)
        ranks.append((cache, bench.request(keep_ratio=0.3) | {"queries": queries}))
    alone = [bench.client.plan(cache, scores_out=True, **request) for cache, request in ranks]
    assert alone[0].groups[0].kept_digest != alone[1].groups[0].kept_digest
    scores = [answer.groups[0].scores for answer in alone]
    assert scores[0] is not None
    assert scores[1] is not None
    total = (scores[0].astype(np.float64) + scores[1].astype(np.float64)).astype(np.float32)
    expected = bench.plans(Params(window=WINDOW, chunk=5, keep_ratio=300_000))
    before = bench.keys.copy().reshape(LAYERS, -1, HEADS, DIM)
    together = [bench.client.compress(cache, scores_in=total, **request) for cache, request in ranks]
    assert together[0].groups[0].kept_digest == together[1].groups[0].kept_digest
    for answer in together:
        for layer in range(LAYERS):
            assert ref.difference_allowed(expected[layer], answer.layers[layer].rows.astype(np.int64))
    for layer in range(LAYERS):
        kept = together[0].layers[layer].rows
        assert np.array_equal(bench.rows(bench.keys, layer)[: len(kept)], before[layer, kept])
    for cache, _ in ranks:
        bench.client.unregister_cache(cache)


# ---- layers

def test_followers_need_no_queries(bench: Bench) -> None:
    """With reuse 2, queries of layers 0 and 2 are enough; without them it is refused."""
    request = bench.request(keep_ratio=0.3, policy={"reuse": 2})
    leaders = chunkkv.Queries.of_array(bench.queries[::2], region=bench.region, layers=(0, 2))
    whole = bench.client.plan(bench.cache, **request)
    assert kept_of(whole) == kept_by(bench.plans(Params(window=WINDOW, chunk=5, keep_ratio=300_000, reuse=2)))
    fewer = bench.client.plan(bench.cache, **(request | {"queries": leaders}))
    assert fewer.groups[0].kept_digest == whole.groups[0].kept_digest
    without = chunkkv.Queries.of_array(bench.queries[:1], region=bench.region, layers=(0,))
    with pytest.raises(chunkkv.InvalidArgument, match="quer"):
        bench.client.plan(bench.cache, **(request | {"queries": without}))


def test_two_groups_in_one_request(bench: Bench) -> None:
    """Layers 0 and 1 with one table and budget, 2 and 3 with others; each is what it would be alone."""
    planes = chunkkv.CacheLayout.of_arrays([bench.keys], [bench.values], axes="lbthd", q_heads=Q_HEADS,
                                           region=bench.region)
    of = planes.groups[0]
    groups = tuple(chunkkv.LayerGroup(layers, of.kv_heads, of.q_heads, of.head_dim_k, of.head_dim_v,
                                      of.tokens_per_block, of.num_blocks) for layers in ((0, 1), (2, 3)))
    split = tuple(chunkkv.Plane(p.kind, p.dtype, p.region, p.offset + first * p.layer_stride, first, 2,
                                p.layer_stride, p.block_stride, p.head_stride, p.token, p.dim)
                  for first in (0, 2) for p in planes.planes)
    cache = bench.client.register_cache(chunkkv.CacheLayout(groups, split))
    policy = chunkkv.Policy(**POLICY)
    jobs = [chunkkv.GroupJob(group=0, rows=ROWS, table=range(25), policy=policy, keep_ratio=0.3,
                             destination=range(25, 50)),
            chunkkv.GroupJob(group=1, rows=120, table=range(15), policy=policy, max_tokens=40,
                             destination=chunkkv.Table(range(399, 299, -1), "tokens"))]
    queries = chunkkv.Queries.of_array(bench.queries, region=bench.region)
    expected = bench.plans(Params(window=WINDOW, chunk=5, keep_ratio=300_000))[:2] + bench.plans(
        Params(window=WINDOW, chunk=5, max_tokens=40), 120)[2:]
    for form in ("runs", "in_region"):
        answer = bench.client.copy_out(cache, jobs=jobs, queries=queries, reply_form=form, logical_len=ROWS)
        assert kept_of(answer) == kept_by(expected)
        assert [group.physical_len for group in answer.groups] == [60, 40]
        with pytest.raises(ValueError, match="differ in length"):
            _ = answer.physical_len
    for layer, plan in enumerate(expected):
        source = bench.rows(bench.values, layer)[plan.kept]
        copied = (bench.rows(bench.values, layer, 25)[:60] if layer < 2
                  else bench.rows(bench.values, layer)[399:359:-1])
        assert np.array_equal(copied, source)
    bench.client.unregister_cache(cache)


# ---- replies and tables

def test_reply_forms_say_the_same(bench: Bench) -> None:
    request = bench.request(keep_ratio=0.3)
    plain = bench.client.plan(bench.cache, **request)
    for form in ("rows", "in_region"):
        answer = bench.client.plan(bench.cache, reply_form=form, **request)
        assert answer.layers == plain.layers
        assert answer.groups[0].kept_digest == plain.groups[0].kept_digest
    nothing = bench.client.plan(bench.cache, reply_form="no_sets", **request)
    assert nothing.layers == {}
    assert nothing.physical_len == plain.physical_len
    assert nothing.groups[0].kept_digest == plain.groups[0].kept_digest


def small_limits(monkeypatch: pytest.MonkeyPatch, bench: Bench, **limits: int) -> list[pb.Compress]:
    """The client believes in these limits; what it then sends is collected."""
    sent: list[pb.Compress] = []
    session = bench.client.session
    for name, value in limits.items():
        monkeypatch.setitem(session.limits.__dict__, name, value)
    compose = bench.client._connection.compose

    def watch(body: pb.Request, *args: Any, **kwargs: Any) -> Any:
        if body.HasField("compress"):
            sent.append(body.compress)
        return compose(body, *args, **kwargs)

    monkeypatch.setattr(bench.client._connection, "compose", watch)
    return sent


@pytest.mark.parametrize(("table", "form", "sent_form", "in_memory"), [
    (np.arange(200, 400), "tokens", pb.TABLE_TOKEN_RUNS, False),
    (np.random.default_rng(1).permutation(400)[:200], "tokens", pb.TABLE_TOKENS, True),
    (np.stack([np.arange(399, 199, -1), np.ones(200, int)], 1).ravel(), "token_runs", pb.TABLE_TOKEN_RUNS, True),
    (np.arange(25), "blocks", pb.TABLE_BLOCKS, False)], ids=["in runs", "in memory", "runs in memory", "fits"])
def test_long_tables_find_another_way(bench: Bench, monkeypatch: pytest.MonkeyPatch, table: NDArray[np.int64],
                                      form: Any, sent_form: int, in_memory: bool) -> None:
    request = bench.request(keep_ratio=0.3) | {"table": chunkkv.Table(table, form)}
    expected = bench.client.plan(bench.cache, **request)
    sent = small_limits(monkeypatch, bench, request_bytes=3100)
    regions = {b.slot.name: b.used for b in bench.client.status()}["REGIONS"]
    answer = bench.client.plan(bench.cache, **request)
    assert answer.layers == expected.layers
    assert len(sent) == 1
    assert sent[0].groups[0].table.form == sent_form
    assert getattr(sent[0].groups[0].table, "from").ByteSize() > 0 if in_memory else True
    assert bool(sent[0].groups[0].table.numbers) != in_memory
    assert {b.slot.name: b.used for b in bench.client.status()}["REGIONS"] == regions, "a region was left behind"


def test_long_replies_come_through_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    request = bench.request(keep_ratio=0.5, policy={"chunk": 1})
    expected = bench.client.plan(bench.cache, **request)
    sent = small_limits(monkeypatch, bench, reply_bytes=2000)
    answer = bench.client.plan(bench.cache, **request)
    assert sent[0].reply_form == pb.REPLY_IN_REGION
    assert answer.layers == expected.layers
