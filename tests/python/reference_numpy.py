"""An independent model of what chunkkvd computes, in NumPy and binary64.

Written from the specification (rules R1 to R54) alone and never from the C sources, so that a shared
misreading shows up as a difference.  It covers every scorer with its options (reference_scorers.py), scores
given by the caller, the selectors `chunk`, `chunk_at` and `token`, one set for all layers and reuse, and the
profiles `default`, `retrieval`, `paper` and `kvpress`.  It is meant to be read: nothing in it is fast, and
sums may be associated differently from the C reference, which rule R32 allows for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import reference_scorers as scorers

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
Rows = NDArray[np.int64]

MILLION = 1_000_000
RTOL, ATOL = 1e-4, 1e-30  # R31, attention scorers
RTOL_RAW = 1e-5  # R31, raw_qk: of the sum of absolute products


class Refused(Exception):
    """The request is refused; `code` is the name of the wire's code without its prefix."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Params:
    """Parameters in the words of the specification; None means what the profile says."""

    profile: str = "default"
    keep_ratio: int | None = None  # millionths
    max_tokens: int | None = None
    chunk: int | None = None
    window: int | None = None
    sinks: int | None = None
    recent: int | None = None
    min_tokens: int | None = None
    pool: str | None = None
    pool_size: int | None = None
    spans: tuple[tuple[int, int], ...] = ()  # half-open ranges of positions
    protect_prefix: int = 0  # rows, whole blocks
    align: int = 1
    tight: str = "raise"
    fill: str = "lead"
    scorer: str | None = None
    selector: str = "chunk"
    chunk_lengths: tuple[int, ...] = ()  # selector chunk_at
    norm: str | None = None
    heads: str | None = None
    group_heads: str | None = None
    unit_reduce: str | None = None
    value_weight: str | None = None
    scale: float | None = None
    softcap: float = 0.0
    sliding: int = 0
    layers: str = "each"
    layer_reduce: str = "sum"  # layers = one
    reuse: int = 1
    join: str = "cut"
    last_row: int | None = None  # cache row of the newest query
    window_reduce: str | None = None
    vote_rows: int | None = None
    contrast_first: int | None = None
    contrast_end: int | None = None
    mute: int | None = None
    lse: F32 | None = None  # [Hq][query rows]
    sink_logits: F32 | None = None  # [Hq]

    def _of_profile(self, name: str) -> Any:
        given = getattr(self, name)
        return PROFILES[self.profile][name] if given is None else given

    @property
    def w(self) -> int:
        if self.scores_by in scorers.QUERY_FREE and self.profile not in ("kvpress", "paper"):
            return 32  # counts in r and min_tokens
        return int(self._of_profile("window"))

    @property
    def c(self) -> int:
        return int(self._of_profile("chunk"))

    @property
    def n_s(self) -> int:
        return int(self._of_profile("sinks"))

    @property
    def r(self) -> int:
        recent = self._of_profile("recent")
        return self.w if recent is None else int(recent)

    @property
    def shortest(self) -> int:
        shortest = self._of_profile("min_tokens")
        return self.w + self.c + self.n_s if shortest is None else int(shortest)

    @property
    def votes(self) -> int:
        """Rows of the window whose largest weight counts."""
        return min(int(self._of_profile("vote_rows") or self.w), self.w)

    @property
    def contrast(self) -> tuple[int, int]:
        """Query rows back from the newest, half open; empty: none."""
        return int(self._of_profile("contrast_first") or 0), int(self._of_profile("contrast_end") or 0)

    @property
    def muted(self) -> int:
        return int(self._of_profile("mute"))

    @property
    def scores_by(self) -> str:
        return str(self._of_profile("scorer"))

    def how(self, name: str) -> str:
        """pool, norm, heads, group_heads, unit_reduce: as given or as the profile says."""
        return str(self._of_profile(name))


def _profile(**other: object) -> dict[str, object]:
    return {"scorer": "window", "window": 32, "chunk": 10, "pool": "none", "pool_size": 5, "norm": "sum",
            "group_heads": "sum", "heads": "sum", "unit_reduce": "mean", "window_reduce": "sum", "vote_rows": None,
            "sinks": 4, "recent": None, "min_tokens": None, "contrast_first": None, "contrast_end": None, "mute": 0,
            **other}


PROFILES: dict[str, dict[str, object]] = {
    "default": _profile(),
    "retrieval": _profile(window=8, pool="max", pool_size=13, group_heads="max", heads="max"),
    "paper": _profile(scorer="raw_qk", unit_reduce="sum"),
    "vote": _profile(window=8, pool="max", pool_size=21, group_heads="max", heads="max", window_reduce="max",
                     vote_rows=8, sinks=1, recent=4, min_tokens=22, contrast_first=32, contrast_end=64, mute=4),
    "kvpress": _profile(window=64, chunk=20, pool="avg", norm="mean", group_heads="mean"),
}


@dataclass(frozen=True)
class Plan:
    """What is kept of one sequence in one layer, and why."""

    kept: Rows
    outcome: str = "dropped"  # or empty, short, fits, protected: KEPT_ALL
    budget: int = 0
    raised: bool = False
    unit_of_row: Rows = field(default_factory=lambda: np.empty(0, np.int64))  # -1: a protected row
    unit_ids: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    unit_scores: F32 = field(default_factory=lambda: np.empty(0, np.float32))
    tolerance: float | None = None  # absolute, of any unit score; None: R31's for attention scorers
    chosen: NDArray[np.bool_] | None = None  # profile paper: the units taken before the cut

    @property
    def ranges(self) -> list[list[int]]:
        return ranges(self.kept)


def ranges(rows: Rows) -> list[list[int]]:
    """Ascending rows as half-open ranges."""
    if len(rows) == 0:
        return []
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [[int(part[0]), int(part[-1]) + 1] for part in np.split(rows, cuts)]


def reduced(a: F64, v: F32 | None, hkv: int, p: Params) -> F64:
    """S3: from A [Hq][L], or S [Hkv][L], to T[j]; heads = each: T [Hkv][L]."""
    length = a.shape[1]
    grouped = a.reshape(hkv, -1, length)
    s: F64 = {"sum": grouped.sum, "mean": grouped.mean, "max": grouped.max}[p.how("group_heads")](axis=1)
    if p.value_weight:
        assert v is not None
        value = v.astype(np.float64)
        norm = np.abs(value).sum(2) if p.value_weight == "l1" else np.sqrt((value * value).sum(2))
        s = s * norm.T
    if p.how("heads") == "each":
        return s
    return s.sum(axis=0) if p.how("heads") == "sum" else s.max(axis=0)


def row_scores(q: F32, k: F32, v: F32 | None, p: Params, pos: Rows | None = None) -> F64:
    """S1 to S3: one number T[j] for each row, all heads together; heads = each: [Hkv][L]."""
    length, hkv, _ = k.shape
    pos = np.arange(length) if pos is None else pos
    return reduced(scorers.scores(q, k, v, p, pos), v, hkv, p)


def raw_tolerance(q: F32, k: F32, v: F32 | None, p: Params) -> float:
    """R31 for raw_qk: 1e-5 of the sum of absolute products, of the unit where that is largest."""
    t = row_scores(np.abs(q), np.abs(k), v, p)
    return RTOL_RAW * float(t.max()) * (p.c if p.how("unit_reduce") == "sum" else 1)


def asked_rows(length: int, p: Params) -> int:
    """B0 of S6."""
    bounds = []
    if p.keep_ratio is not None:
        bounds.append(length * p.keep_ratio // MILLION)
    if p.max_tokens is not None:
        bounds.append(p.max_tokens)
    return min(bounds)


def budget_rows(length: int, p: Params) -> int:
    """B of S6, integers only."""
    b = -(-asked_rows(length, p) // p.align) * p.align
    return max(1, b if p.max_tokens is None else min(b, p.max_tokens))


def protected_rows(length: int, p: Params, pos: Rows) -> NDArray[np.bool_]:
    """S5: sinks and the newest rows go by row, spans by position."""
    mask = np.zeros(length, bool)
    mask[: min(p.n_s, length)] = True
    mask[length - min(p.r, length) :] = True
    mask[: p.protect_prefix] = True
    for first, end in p.spans:
        mask |= (pos >= first) & (pos < end)
    return mask


def units(length: int, p: Params, pos: Rows, mask: NDArray[np.bool_]) -> Rows:
    """S4: the unit of each row; -1 for protected ones."""
    if p.selector == "chunk_at":
        of_row = np.repeat(np.arange(len(p.chunk_lengths)), p.chunk_lengths)
    elif p.selector == "token":
        of_row = np.arange(length)
    else:
        of_row = pos // p.c
    return np.where(mask, -1, of_row)


def scores_of_units(t: F64, unit_of_row: Rows, p: Params) -> F32:
    """S4: C[u] in binary32, of the units that have rows, ascending."""
    ids = np.unique(unit_of_row[unit_of_row >= 0])
    reduce = {"mean": np.mean, "sum": np.sum, "max": np.max}[p.how("unit_reduce")]
    return to_f32(np.array([reduce(t[unit_of_row == u]) for u in ids], np.float64))


def to_f32(values: F64) -> F32:
    """R13: -0 becomes +0; R23: nothing but finite numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = values.astype(np.float32) + np.float32(0)
    if not np.isfinite(rounded).all():
        raise Refused("NONFINITE_SCORE")
    return rounded


def ranking(scores: F32) -> Rows:
    """R21: score descending, then lower index."""
    return np.lexsort((np.arange(len(scores)), -scores.astype(np.float64)))


def settle(length: int, p: Params, pos: Rows) -> Plan | None:
    """R20: the plan, where lengths alone decide it; None where scores are needed."""
    everything = np.arange(length)
    budget = budget_rows(length, p)
    if length == 0:
        return Plan(everything, "empty", budget)
    if length < p.shortest or (p.scores_by not in scorers.QUERY_FREE and length < p.w):
        return Plan(everything, "short", budget)
    if budget >= length:
        return Plan(everything, "fits", budget)
    mask = protected_rows(length, p, pos)
    count = int(mask.sum())
    if count == length:
        return Plan(everything, "protected", budget)
    if count > budget:
        if p.tight == "refuse":
            raise Refused("BUDGET_BELOW_PROTECTED")
        return Plan(np.flatnonzero(mask), "dropped", budget, raised=True)
    return Plan(np.flatnonzero(mask), "dropped", budget) if count == budget else None


def walk(c: F32, t32: F32 | None, length: int, p: Params, pos: Rows) -> Plan:
    """S7 and S8 from C[u], and T32[j] where `fill` needs it."""
    budget = budget_rows(length, p)
    keep = protected_rows(length, p, pos)
    unit_of_row = units(length, p, pos, keep)
    ids = np.unique(unit_of_row[unit_of_row >= 0])
    left = budget - int(keep.sum())
    for u in ranking(c):
        rows = np.flatnonzero(unit_of_row == ids[u])
        if len(rows) <= left:
            keep[rows] = True
            left -= len(rows)
            continue
        # R22: the first unit that does not fit ends the walk
        if p.fill == "lead":
            keep[rows[:left]] = True
        elif p.fill == "best":
            assert t32 is not None
            keep[rows[ranking(t32[rows])[:left]]] = True
        break
    return Plan(np.flatnonzero(keep), "dropped", budget, False, unit_of_row, ids, c)


def select(t: F64, length: int, p: Params, pos: Rows | None = None) -> Plan:
    """S4 to S8 of profiles `default` and `retrieval` from row scores."""
    pos = np.arange(length) if pos is None else pos
    settled = settle(length, p, pos)
    if settled is not None:
        return settled
    c = scores_of_units(t, units(length, p, pos, protected_rows(length, p, pos)), p)
    return walk(c, to_f32(t), length, p, pos)


def select_paper(t: F64 | None, length: int, p: Params) -> Plan:
    """Section 6.1, paper: the best chunks, cut to make room for the window, or joined with it (R50)."""
    everything = np.arange(length)
    most = asked_rows(length, p)
    if most >= length:
        return Plan(everything, "fits", most)
    if length <= p.w or length < p.c:
        raise Refused("UNSUPPORTED")
    if most < p.w:
        raise Refused("INVALID_ARGUMENT")
    assert t is not None
    unit_of_row = everything // p.c
    scores = scores_of_units(t, unit_of_row, p)
    chosen = np.isin(np.arange(len(scores)), ranking(scores)[: most // p.c])
    rows = everything[chosen[unit_of_row]]
    if p.join == "cut":
        rows = rows[: most - p.w]
    kept = np.union1d(rows, everything[length - p.w :])
    return Plan(kept, "dropped", most, False, unit_of_row, np.unique(unit_of_row), scores, None, chosen)


def select_kvpress(t: F64, length: int, p: Params) -> Plan:
    """R51 and R52: whole chunks, window chunks first, no protection."""
    if length <= p.w or length < p.c:
        raise Refused("UNSUPPORTED")
    assert p.keep_ratio is not None
    everything = np.arange(length)
    if p.keep_ratio == MILLION:
        return Plan(everything, "fits")
    chunks = -(-length // p.c)
    removed = (MILLION - p.keep_ratio) / 1e6
    count = max(1, int(float(chunks) * (1.0 - removed)))
    edge = length - p.w
    first = np.arange(chunks) * p.c
    last = np.minimum(first + p.c, length)
    inside = np.flatnonzero(first >= edge)
    straddling = np.flatnonzero((first < edge) & (last > edge))
    others = np.flatnonzero(last <= edge)
    unit_of_row = everything // p.c
    unit_of_row = np.where(np.isin(unit_of_row, others), unit_of_row, -1)
    scores = scores_of_units(t, unit_of_row, p)
    order = np.concatenate([inside, straddling, others[ranking(scores)]])[:count]
    kept = everything[np.isin(everything // p.c, order)]
    return Plan(kept, "dropped", 0, False, unit_of_row, others, scores)


@dataclass(frozen=True)
class Layer:
    """One layer's tensors: q [rows][Hq][d], k [L][Hkv][d], v [L][Hkv][dv] or None for a latent cache."""

    q: F32
    k: F32
    v: F32 | None


def scored_layers(count: int, p: Params) -> list[int]:
    """Section 5: the layers that score; the others follow the one before."""
    return list(range(0, count, p.reuse))


def plan_layers(layers: Sequence[Layer], p: Params, pos: Rows | None = None) -> list[Plan]:
    """The whole pipeline for the layers of one group."""
    length = len(layers[0].k)
    pos = np.arange(length) if pos is None else pos
    if p.profile in ("kvpress", "paper"):
        if length == 0:
            return [Plan(np.arange(0), "empty")] * len(layers)
        if p.profile == "kvpress" and (length <= p.w or length < p.c):
            raise Refused("UNSUPPORTED")
        if p.profile == "paper":
            if length <= p.w or length < p.c or not p.w <= asked_rows(length, p) < length:
                return [select_paper(None, length, p)] * len(layers)
            return [with_tolerance(select_paper(row_scores(x.q, x.k, x.v, p, pos), length, p), x, p) for x in layers]
        return [with_tolerance(select_kvpress(row_scores(x.q, x.k, x.v, p, pos), length, p), x, p) for x in layers]
    settled = settle(length, p, pos)
    if settled is not None:
        return [settled] * len(layers)
    scored = scored_layers(len(layers), p)
    t = {i: row_scores(layers[i].q, layers[i].k, layers[i].v, p, pos) for i in scored}
    unit_of_row = units(length, p, pos, protected_rows(length, p, pos))
    c = {i: scores_of_units(t[i], unit_of_row, p) for i in scored}
    t32 = {i: to_f32(t[i]) for i in scored}
    if p.layers == "one":
        if p.layer_reduce == "top4":
            best = np.sort(np.stack([t[i] for i in scored]), axis=0)[::-1][:4]
            t32_one = to_f32(best.sum(axis=0) / len(best))
            c_one = scores_of_units(t32_one.astype(np.float64), unit_of_row, p)
        else:
            # in binary64, ascending, then rounded once
            c_one = to_f32(np.sum([c[i].astype(np.float64) for i in scored], axis=0))
            t32_one = to_f32(np.sum([t32[i].astype(np.float64) for i in scored], axis=0))
        one = walk(c_one, t32_one, length, p, pos)
        tolerances = [x for x in (with_tolerance(one, layers[i], p).tolerance for i in scored) if x is not None]
        return [replace(one, tolerance=sum(tolerances) if tolerances else None)] * len(layers)
    plans = {i: with_tolerance(walk(c[i], t32[i], length, p, pos), layers[i], p) for i in scored}
    return [plans[i - i % p.reuse] for i in range(len(layers))]


def with_tolerance(plan: Plan, layer: Layer, p: Params) -> Plan:
    """The plan with the tolerance that its scorer allows."""
    if len(plan.unit_ids) == 0:
        return plan
    if p.scores_by == "raw_qk":
        return replace(plan, tolerance=raw_tolerance(layer.q, layer.k, layer.v, p))
    most = float(np.abs(plan.unit_scores.astype(np.float64)).max())
    if p.scores_by in scorers.QUERY_FREE:
        return replace(plan, tolerance=1e-5 * most + (1e-5 * layer.k.shape[1] if p.scores_by == "keydiff" else 0.0))
    if p.scores_by == "window" and p.contrast[0] < p.contrast[1]:
        # R31: of the score without contrast
        whole = row_scores(layer.q, layer.k, layer.v, replace(p, contrast_first=0, contrast_end=0))
        return replace(plan, tolerance=RTOL * float(whole.max()) * (p.c if p.how("unit_reduce") == "sum" else 1))
    return plan


def plan(q: F32, k: F32, v: F32 | None, p: Params, pos: Rows | None = None) -> Plan:
    """The whole pipeline for one layer of one sequence."""
    return plan_layers([Layer(q, k, v)], p, pos)[0]


def gap_band(reference: Plan) -> Rows:
    """R32: the units in which a fast kernel may differ from this plan."""
    scores = reference.unit_scores.astype(np.float64)
    if reference.chosen is not None:
        taken, left = scores[reference.chosen], scores[~reference.chosen]
    else:
        keep = np.isin(np.arange(len(reference.unit_of_row)), reference.kept)
        rows_of = [reference.unit_of_row == u for u in reference.unit_ids]
        taken = scores[[bool(keep[rows].any()) for rows in rows_of]]
        left = scores[[not keep[rows].all() for rows in rows_of]]
    if len(taken) == 0 or len(left) == 0:
        return np.empty(0, np.int64)
    t_in, t_out = taken.min(), left.max()
    x = 2.01 * (RTOL * max(abs(t_in), abs(t_out)) + ATOL if reference.tolerance is None else reference.tolerance)
    return reference.unit_ids[(scores >= t_in - x) & (scores <= t_out + x)]


def kept_mass(reference: Plan, kept: Rows) -> float:
    """R32, second half: sum of R[u] times the rows taken of u."""
    score = dict(zip(reference.unit_ids.tolist(), reference.unit_scores.astype(float).tolist(), strict=True))
    return sum(score.get(int(u), 0.0) for u in reference.unit_of_row[kept])


def difference_allowed(reference: Plan, kept: Rows) -> bool:
    """True when `kept` equals the plan, or differs from it in units of the gap band only."""
    if np.array_equal(reference.kept, kept):
        return True
    if reference.chosen is not None:
        return len(gap_band(reference)) > 1  # another chunk chosen moves the cut as well
    if len(reference.kept) != len(kept) or len(reference.unit_ids) == 0:
        return False
    changed = set(reference.unit_of_row[np.setxor1d(reference.kept, kept)].tolist())
    if not changed <= set(gap_band(reference).tolist()):
        return False
    if reference.tolerance is not None:
        return True  # scores can be negative there, and mass means nothing
    return kept_mass(reference, kept) >= (1 - 2 * RTOL) * kept_mass(reference, reference.kept)
