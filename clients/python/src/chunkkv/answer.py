"""What came of a request, as plain Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from . import ranges as rg
from ._pb import chunkkv_pb2 as pb
from .job import GroupJob
from .layout import LayerGroup
from .policy import Policy
from .wire import CacheState, Code, DType, KeptAll, Phase, Slot


@dataclass(frozen=True)
class LayerResult:
    """What was kept of one layer.

    Attributes:
        layer: its number.
        kept: half-open ranges of rows, as the cache was when the request was made; of KV head 0 with heads="each".
        positions: half-open ranges of their positions, where the request gave positions; else the same as kept.
        heads: with heads="each" the kept ranges of every KV head, which differ; else empty.
    """

    layer: int
    kept: Sequence[rg.Range]
    positions: Sequence[rg.Range]
    heads: Mapping[int, Sequence[rg.Range]] = field(default_factory=dict)

    @property
    def rows(self) -> NDArray[np.uint32]:
        """Every kept row as a number: row i of the compressed cache was row rows[i]."""
        return rg.rows_from_ranges(self.kept)

    def rows_of(self, kv_head: int) -> NDArray[np.uint32]:
        """The kept rows of one KV head; all heads' where they share a set."""
        return rg.rows_from_ranges(self.heads.get(kv_head, self.kept))


@dataclass(frozen=True)
class GroupResult:
    """What came of one layer group.

    Attributes:
        group: its index.
        physical_before: rows before.
        physical_len: rows now.
        kept_all: why nothing was dropped; DROPPED otherwise.
        table_used: entries of the table still in use; those behind them are free.
        budget: rows that were to be kept.
        budget_raised: the protected rows alone were more than the budget.
        kept_digest: equal on all ranks that keep the same rows.
        bytes_moved: read plus written.
        policies: every value that was used.
        layers: by layer number.
        scores: binary32, [layers or 1][units or rows], where the request asked for them and anything was scored; with
            heads="each" [layers][kv_heads][units or rows]; where only some layers of a plan have that, one after the
            other, as scores_in takes them.
        kept_mass: with want_kept_mass, by layer number: scores of the kept rows over those of all; not of layers where
            nothing was scored.
    """

    group: int
    physical_before: int
    physical_len: int
    kept_all: KeptAll
    table_used: int
    budget: int
    budget_raised: bool
    kept_digest: int
    bytes_moved: int
    policies: Sequence[Policy]
    layers: Mapping[int, LayerResult]
    scores: NDArray[np.float32] | None = None
    kept_mass: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timing:
    """Microseconds of each phase."""

    queue_us: int
    score_us: int
    select_us: int
    move_us: int
    total_us: int


class Held(Protocol):
    """What a selected request waits for."""

    def commit(self, selected: Answer, timeout: float | None) -> Answer:
        """Let the daemon move the rows."""

    def cancel(self, timeout: float | None) -> Outcome:
        """Give it up."""


@dataclass(frozen=True)
class Answer:
    """What came of a plan or a compression.

    Attributes:
        phase: DONE, or SELECTED for what waits for a commit.
        cache: COMMITTED when rows were moved, else CLEAN.
        logical_len: tokens that the model has seen: positions go on from here.
        groups: in the order of the request.
        timing: of the daemon.
        request_id: of the request.
        generation: as given.
        repeated: the stored answer to an earlier sending of the same request.
        repaired: the daemon died in the move, and this library, or `Client.repair()`, finished it.  Of such an answer
            the times, the budget and bytes_moved are 0, and the policies are those of the request.
    """

    phase: Phase
    cache: CacheState
    logical_len: int
    groups: Sequence[GroupResult]
    timing: Timing
    request_id: int
    generation: int
    repeated: bool
    repaired: bool = False
    held: Held | None = field(default=None, repr=False, compare=False)

    def commit(self, timeout: float | None = None) -> Answer:
        """With hold: move the rows now; the answer is that of compress() without hold.  ValueError without hold.

        Raises:
            ChunkkvError: as compress(); CANCELLED or EXPIRED when the hold had ended: nothing was written.
        """
        if self.held is None:
            raise ValueError(f"there is nothing to commit: the request is {self.phase.name}")
        return self.held.commit(self, timeout)

    def cancel(self, timeout: float | None = None) -> Outcome:
        """With hold: give the request up, nothing is written; the outcome says if it had ended before."""
        if self.held is None:
            raise ValueError(f"there is nothing to cancel: the request is {self.phase.name}")
        return self.held.cancel(timeout)

    @property
    def physical_len(self) -> int:
        """Rows now in the cache: slots go on from here.  ValueError where groups differ: ask each group."""
        lengths = {group.physical_len for group in self.groups}
        if len(lengths) != 1:
            raise ValueError(f"the groups differ in length: {sorted(lengths)}")
        return lengths.pop()

    @property
    def layers(self) -> Mapping[int, LayerResult]:
        """The results of all groups, by layer number."""
        return MappingProxyType({n: layer for group in self.groups for n, layer in group.layers.items()})

    @property
    def kept_mass(self) -> Mapping[int, float]:
        """With want_kept_mass, of all groups by layer number: scores of the kept rows over those of all."""
        return MappingProxyType({n: mass for group in self.groups for n, mass in group.kept_mass.items()})

    def jaccard(self) -> NDArray[np.float64]:
        """How alike the kept sets of any two layers are, [layers][layers] in the order of `layers`; see `jaccard()`."""
        return jaccard(self)

    def positions(self, rows: int | None = None, group: int | None = None) -> list[rg.Range]:
        """Positions of the rows that are now in the cache: what the next request for it gives as `positions`.

        Args:
            rows: rows now in the cache, with those that were appended since, at positions from logical_len on;
                None = none were.
            group: index into CacheLayout.groups; None = the only one.

        Raises:
            ValueError: layers differ in what they keep, so there is no one list, and layers="one" makes them agree; or
                there are several groups.
        """
        chosen = [g for g in self.groups if group in (None, g.group)]
        lists = {tuple(layer.positions) for g in chosen for layer in g.layers.values()}
        if len(chosen) != 1:
            raise ValueError(f"the answer is of groups {[g.group for g in self.groups]}: say which")
        if len(lists) != 1:
            raise ValueError(f"the layers have {len(lists)} lists of positions, and not one: ask for layers=\"one\"")
        found = list(lists.pop())
        more = 0 if rows is None else rows - rg.count(found)
        if more < 0:
            raise ValueError(f"{rows} rows are fewer than the {rg.count(found)} that were kept")
        if more and found and found[-1][1] == self.logical_len:
            found[-1] = (found[-1][0], self.logical_len + more)
        elif more:
            found.append((self.logical_len, self.logical_len + more))
        return found


def jaccard(answer: Answer) -> NDArray[np.float64]:
    """Kept rows that two layers have in common, over those that at least one has: what the paper's Table 2 compares.

    With heads="each" it is the mean over KV heads.  Layers must have been equally long, and have equally many heads.

    Returns:
        [layers][layers] in the order of `answer.layers`, 1 on the diagonal.
    """
    results = list(answer.layers.values())
    heads = max((len(result.heads) for result in results), default=0) or 1
    sets = [[result.rows_of(head) for head in range(heads)] for result in results]
    out = np.ones((len(results), len(results)))
    for i, one in enumerate(sets):
        for k, other in enumerate(sets[:i]):
            shares = []
            for a, b in zip(one, other, strict=True):
                both = len(np.intersect1d(a, b, assume_unique=True))
                union = len(a) + len(b) - both
                shares.append(both / union if union else 1.0)
            out[i, k] = out[k, i] = float(np.mean(shares))
    return out


@dataclass(frozen=True)
class Kept:
    """One kept set: it holds from its layer up to the next set's."""

    layer_first: int
    kv_head: int
    kept: Sequence[rg.Range]
    positions: Sequence[rg.Range] | None = None  # None: to be derived from the positions of all rows


def _sets_of(result: pb.GroupResult) -> list[Kept]:
    """The sets that an answer carries itself."""
    return [Kept(s.layer_first, s.kv_head, rg.ranges_from_rows(s.rows) if s.rows else rg.ranges_from_runs(s.runs),
                 rg.ranges_from_runs(s.position_runs) if s.position_runs else None) for s in result.sets]


def _layer_results(result: pb.GroupResult, group: LayerGroup, job: GroupJob,
                   sets: Sequence[Kept]) -> dict[int, LayerResult]:
    """The kept sets spelled out for each layer."""
    found: dict[int, LayerResult] = {}
    if not sets and result.kept_all:
        sets = [Kept(group.layers[0], 0, [(0, result.physical_before)] if result.physical_before else [])]
    if not sets:
        return {}
    spelled: dict[int, tuple[Sequence[rg.Range], Sequence[rg.Range], dict[int, Sequence[rg.Range]]]] = {}
    for one in sets:
        if one.layer_first not in spelled:
            positions = rg.positions_of(one.kept, job.positions) if one.positions is None else one.positions
            spelled[one.layer_first] = (one.kept, positions, {})
        spelled[one.layer_first][2][one.kv_head] = one.kept
    first = min(spelled)
    for layer in group.layers:
        first = layer if layer in spelled else first
        kept, positions, heads = spelled[first]
        found[layer] = LayerResult(layer, kept, positions, heads if len(heads) > 1 else {})
    return found


def _masses(result: pb.GroupResult, group: LayerGroup) -> dict[int, float]:
    """Kept mass by layer number; NaN stands for a layer where nothing was scored."""
    return {layer: mass for layer, mass in zip(group.layers, result.kept_mass, strict=False) if mass == mass}


def answer_of(response: pb.Response, groups: Sequence[LayerGroup], jobs: Sequence[GroupJob],
              sets: Sequence[Sequence[Kept]] | None = None,
              scores: Sequence[NDArray[np.float32] | None] | None = None) -> Answer:
    """An Answer out of a Response whose body is Compressed.

    Args:
        response: what came.
        groups: of the cache.
        jobs: of the request, in its order, which is that of the results.
        sets: those of each group, where the answer does not carry them itself.
        scores: those of each group.
    """
    body = response.compressed
    results = [GroupResult(
        r.group, r.physical_before, r.physical_len, KeptAll(r.kept_all), r.table_used, r.budget, r.budget_raised,
        r.kept_digest, r.bytes_moved, [Policy.from_message(p) for p in r.policies],
        MappingProxyType(_layer_results(r, groups[r.group], jobs[i], _sets_of(r) if sets is None else sets[i])),
        None if scores is None else scores[i], MappingProxyType(_masses(r, groups[r.group])))
        for i, r in enumerate(body.groups)]
    t = body.timing
    return Answer(Phase(body.phase), CacheState(response.status.cache), body.logical_len, results,
                  Timing(t.queue_us, t.score_us, t.select_us, t.move_us, t.total_us), response.request_id,
                  response.generation, response.repeated_answer)


@dataclass(frozen=True)
class Outcome:
    """What became of an earlier request."""

    request_id: int
    phase: Phase
    code: Code
    cache: CacheState


def outcome_of(message: pb.Outcome) -> Outcome:
    """An Outcome out of the wire's; a code that this client does not know becomes INTERNAL."""
    code = Code(message.code) if message.code in Code._value2member_map_ else Code.INTERNAL
    return Outcome(message.target_request_id, Phase(message.phase), code, CacheState(message.cache))


@dataclass(frozen=True)
class Pong:
    """A sign of life.

    Attributes:
        now_ns: the daemon's CLOCK_MONOTONIC.
        last_progress_ns: when the device last finished anything.
        in_flight: requests of this session.
        draining: new work is refused.
    """

    now_ns: int
    last_progress_ns: int
    in_flight: int
    draining: bool


@dataclass(frozen=True)
class Budget:
    """One of the tenant's budgets, in its own unit."""

    slot: Slot
    used: int
    limit: int


@dataclass(frozen=True)
class CodePath:
    """Which code of a daemon on a CPU scores a range of shapes, picked when it started.

    Attributes:
        key_dtype: of K; types that have no entry of their own go with F32.
        query_dtype: of the queries; NONE: of all types that no other entry for these keys has.
        head_dim: head dimensions of K, first and last; None: no end.
        queries: queries of one KV head, which are the query heads of its group times the window; first and last.
        path: "scalar", "avx2", "avx512", "avx512bf16" or "amx".
    """

    key_dtype: DType
    query_dtype: DType
    head_dim: tuple[int, int | None]
    queries: tuple[int, int | None]
    path: str


