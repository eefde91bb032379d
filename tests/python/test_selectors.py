"""Random policies of the whole family over given scores: the daemon against the NumPy model, row for row.

Scores are few whole quarters, so whole chunks tie and R21 decides; they come in as binary32, so there is no tolerance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chunkkv
import selectors_numpy as model
from daemon import Daemon
from reference_numpy import Refused
from selectors_numpy import Part

PROBLEMS = 500
LAYERS, BLOCK, MOST_ROWS, DIM, QUERY_ROWS = 6, 8, 320, 4, 40
ran: Counter[str] = Counter()


@dataclass
class Bench:
    """Keys of six layers for each number of heads, f32, and queries."""

    client: chunkkv.Client
    caches: dict[int, tuple[chunkkv.Cache, NDArray[np.float32]]]
    queries: dict[int, tuple[chunkkv.Queries, NDArray[np.float32]]]

    @classmethod
    def of(cls, client: chunkkv.Client) -> Bench:
        caches, queries = {}, {}
        for heads in (1, 2, 3):
            shape = (LAYERS, MOST_ROWS // BLOCK, BLOCK, heads, DIM)
            size = 4 * int(np.prod(shape))
            memory = chunkkv.SharedMemory.allocate(2 * size + 4 * LAYERS * QUERY_ROWS * heads * DIM)
            region = client.register_region(memory)
            keys, values = memory.numpy(shape, "f32"), memory.numpy(shape, "f32", size)
            layout = chunkkv.CacheLayout.of_arrays([keys], [values], axes="lbthd", q_heads=heads, region=region)
            caches[heads] = client.register_cache(layout), keys.reshape(LAYERS, MOST_ROWS, heads, DIM)
            rows = memory.numpy((LAYERS, QUERY_ROWS, heads, DIM), "f32", 2 * size)
            queries[heads] = chunkkv.Queries.of_array(rows, region=region), rows
        return cls(client, caches, queries)


@pytest.fixture(scope="module")
def bench(daemon: Daemon) -> Iterator[Bench]:
    with chunkkv.Client(daemon.prefix()) as client:
        yield Bench.of(client)


class Problem:
    """One request: parts, their scores, and the same in the client's words."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.length = int(rng.integers(30, MOST_ROWS)) if rng.random() < 0.9 else int(rng.integers(1, 30))
        self.heads = int(rng.integers(1, 4))
        self.keep_ratio: int | None = int(rng.integers(30_000, 1_000_001))
        profile = str(rng.choice(["default", "kvpress", "paper"], p=[0.7, 0.2, 0.1]))
        hybrid = profile == "default" and rng.random() < 0.3
        self.firsts = [0, int(rng.integers(1, LAYERS))] if hybrid else [0]
        self.common: dict[str, Any] = {
            "tight": str(rng.choice(["raise", "refuse"])), "sinks": int(rng.integers(0, 6)),
            "recent": int(rng.integers(1, 10)), "min_tokens": int(rng.integers(0, 40))}
        steps = np.where(rng.random(self.length) < 0.1, rng.integers(2, 20, self.length), 1)
        self.positions = np.cumsum(steps) - int(steps[0]) if rng.random() < 0.3 else np.arange(self.length)
        self.spans = tuple((first, first + int(rng.integers(1, 20))) for first in
                           rng.integers(0, 300, int(rng.integers(0, 3))).tolist()) if profile == "default" else ()
        self.chunk_lengths = self._lengths()
        counts = np.diff([*self.firsts, LAYERS]).tolist()
        self.policies: list[dict[str, Any]] = []
        self.each = False
        self.parts = [getattr(self, f"_{profile}")(first, count)
                      for first, count in zip(self.firsts, counts, strict=True)]
        if self.each:  # a row has no one position then, and there are no earlier rounds
            self.positions = np.arange(self.length)

    def _lengths(self) -> tuple[int, ...]:
        cuts = np.unique(self.rng.integers(1, max(self.length, 2), int(self.rng.integers(0, 30))))
        return tuple(np.diff(np.r_[0, cuts[cuts < self.length], self.length]).tolist())

    def _scores(self, layers: int, heads: int) -> NDArray[np.float32]:
        return (self.rng.integers(-1, 5, (layers, heads, self.length)) / 4).astype(np.float32)

    def _part(self, count: int, policy: dict[str, Any], each: bool, one: bool, **other: Any) -> Part:
        self.policies.append(policy)
        self.each = self.each or each
        return Part(self._scores(1 if one else count, self.heads if each else 1), count, keep_ratio=self.keep_ratio,
                    layers="one" if one else "each", spans=self.spans, chunk_lengths=self.chunk_lengths, **other)

    def _default(self, first: int, count: int) -> Part:
        rng, whole = self.rng, len(self.firsts) == 1
        selector = str(rng.choice(["chunk", "chunk_at", "token", "streaming", "chunk_eg", *["h2o", "page"] * whole]))
        one = selector == "page" or (whole and rng.random() < 0.2)
        each = not one and selector != "streaming" and rng.random() < 0.4
        fill = "none" if selector == "page" else str(rng.choice(["lead", "best"] if each else ["lead", "best", "none"]))
        policy: dict[str, Any] = {
            "selector": selector, "layer_first": first, "chunk": int(rng.integers(2, 20)), "window": 1, "fill": fill,
            "layers": "one" if one else "each", "heads": "each" if each else None,
            "reuse": int(rng.integers(1, count + 1)), "unit_reduce": str(rng.choice(["mean", "max"])),
            "beta": int(rng.integers(1, 30)) if not one and rng.random() < 0.4 else None,
            "align": int(rng.choice([1, 16])) if whole else 1, **self.common}
        own: dict[str, Any] = {}
        if selector == "h2o":
            self.keep_ratio = None
            own = {"heavy": int(rng.integers(1, 500_000)), "recent_part": int(rng.integers(1, 500_000))}
            del policy["recent"]
        if selector == "page":
            own = {"page": BLOCK * int(rng.integers(1, 4))}
        spike = min(4, policy["chunk"] - 1)
        return self._part(count, {**policy, **own}, each, one, selector=selector, chunk=policy["chunk"], window=1,
                          fill=fill, tight=policy["tight"], reuse=policy["reuse"], beta=policy["beta"] or 0,
                          align=policy["align"], unit_reduce=policy["unit_reduce"], sinks=policy["sinks"],
                          recent=policy.get("recent", 0), shortest=policy["min_tokens"], spike_keep=spike, **own)

    def _kvpress(self, first: int, count: int) -> Part:
        rng = self.rng
        selector = str(rng.choice(["chunk", "token", "token", "streaming", "chunk_eg"]))
        scorer = str(rng.choice(["window", "knorm", "keydiff", "lagkv"]))
        policy = {"profile": "kvpress", "selector": selector, "scorer": scorer, "chunk": int(rng.integers(5, 20)),
                  "window": int(rng.choice([1, 4, 16])), "layer_first": first}
        window = policy["window"] if scorer == "window" and selector != "streaming" else None
        each = selector == "token" and window != 1
        beta = int(rng.integers(1, 30)) if selector == "token" and rng.random() < 0.4 else 0
        return self._part(count, {**policy, "beta": beta or None}, each, False, profile="kvpress", selector=selector,
                          window=window, chunk=policy["chunk"], beta=beta, spike_keep=4)

    def _paper(self, first: int, count: int) -> Part:
        policy: dict[str, Any] = {"profile": "paper", "chunk": int(self.rng.integers(2, 20)),
                                  "window": int(self.rng.integers(1, 20))}
        return self._part(count, policy, False, False, profile="paper", chunk=policy["chunk"], window=policy["window"])

    def request(self) -> dict[str, Any]:
        used = any(p.get("selector") == "chunk_at" for p in self.policies)
        runs = model_ranges(self.positions)
        return {"rows": self.length, "table": range(-(-self.length // BLOCK)), "protect": self.spans,
                "policy": [chunkkv.Policy(**policy) for policy in self.policies], "score_kind": "rows",
                "keep_ratio": None if self.keep_ratio is None else self.keep_ratio / 1e6,
                "chunk_lengths": self.chunk_lengths if used else None,
                "positions": None if np.array_equal(self.positions, np.arange(self.length)) else runs,
                "scores_in": np.concatenate([part.scores.ravel() for part in self.parts])}


def model_ranges(rows: NDArray[np.int64]) -> list[tuple[int, int]]:
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [(int(x[0]), int(x[-1]) + 1) for x in np.split(rows, cuts)]


@pytest.mark.parametrize("seed", range(PROBLEMS))
def test_selection(bench: Bench, seed: int) -> None:
    problem = Problem(seed)
    cache, keys = bench.caches[problem.heads]
    keys[...] = np.arange(keys.size, dtype=np.float32).reshape(keys.shape)
    before = keys.copy()
    run = bench.client.compress if problem.each else bench.client.plan
    try:
        expected = model.select([replace(p, keep_ratio=problem.keep_ratio) for p in problem.parts], problem.positions)
    except Refused as refusal:
        with pytest.raises(chunkkv.ChunkkvError) as caught:
            run(cache, **problem.request())
        assert caught.value.code is not None
        assert caught.value.code.name == refusal.code
        assert np.array_equal(keys, before)
        return
    answer = run(cache, **problem.request())
    # rows are numbered: each can be told from any other
    layer = 0
    for part, sets in zip(problem.parts, expected, strict=True):
        ran[f"{part.profile} {part.selector}"] += sets.outcome == "dropped"
        for kept in sets.kept:
            for head in range(problem.heads):
                rows = kept[head if len(kept) > 1 else 0]
                assert answer.layers[layer].rows_of(head).tolist() == rows.tolist(), (layer, head, part)
                if problem.each and sets.outcome == "dropped":
                    assert np.array_equal(keys[layer, : len(rows), head], before[layer, rows, head])
            layer += 1


def test_every_selector_ran() -> None:
    assert len(ran) == 0 or min(ran.values()) >= 3, ran
    assert len(ran) in (0, 12), ran


@pytest.mark.parametrize("given", [{"profile": "vote"}, {"layer_reduce": "top4"}, {"layer_reduce": "top4", "reuse": 2},
                                   {"profile": "vote", "selector": "chunk", "unit_reduce": "max"}, {"fill": "best"},
                                   {"layer_reduce": "top4", "reuse": 3, "selector": "chunk_eg"}],
                         ids=["vote", "top4", "reuse", "chunks", "sum", "gate"])
@pytest.mark.parametrize("seed", range(5))
def test_layers_are_put_together(bench: Bench, seed: int, given: dict[str, Any]) -> None:
    """One set for all layers, from the scores that each layer gives by itself; and the mass each keeps of its own."""
    rng = np.random.default_rng(seed)
    heads, length = seed % 3 + 1, 320 - seed % 150  # a quarter of it is more than the protected rows
    cache, keys = bench.caches[heads]
    queries, rows = bench.queries[heads]
    keys[...] = 3 * rng.standard_normal(keys.shape, np.float32)
    rows[...] = rng.standard_normal(rows.shape, np.float32)
    request: dict[str, Any] = {"rows": length, "table": range(-(-length // BLOCK)), "keep_ratio": 0.25,
                               "queries": queries, "score_kind": "rows"}
    alone = {name: value for name, value in given.items() if name != "layer_reduce"}
    by_layer = bench.client.plan(cache, policy=chunkkv.Policy(**{**alone, "layers": "each", "selector": "token"}),
                                 scores_out=True, **request).groups[0].scores
    assert by_layer is not None
    answer = bench.client.plan(cache, policy=chunkkv.Policy(**{**given, "layers": "one"}), want_kept_mass=True,
                               **request)
    vote = given.get("profile") == "vote"
    scored = by_layer[:: given.get("reuse", 1)]
    common: dict[str, Any] = {
        "count": 1, "keep_ratio": 250_000, "chunk": 10, "window": 8 if vote else 32, "sinks": 1 if vote else 4,
        "recent": 4 if vote else 32, "selector": given.get("selector", "token" if vote else "chunk"),
        "fill": given.get("fill", "lead"), "unit_reduce": given.get("unit_reduce", "mean")}
    if vote or "layer_reduce" in given:
        expected = model.select([Part(model.top4(scored), **common)])[0]
    else:
        expected = model.select_sum(scored, Part(scored[:1, None], **common))
    kept = expected.kept[0][0]
    assert answer.layers[0].rows.tolist() == kept.tolist()
    own = by_layer.astype(np.float64)
    for i in range(LAYERS):
        assert answer.kept_mass[i] == pytest.approx(own[i, kept].sum() / own[i].sum(), rel=1e-5)
