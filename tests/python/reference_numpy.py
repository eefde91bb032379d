"""An independent model of what chunkkvd computes, in NumPy and binary64.

Written from the specification (rules R1 to R54) alone and never from the C sources, so that a shared
misreading shows up as a difference.  It covers the scorer `window` with its options, the selectors
`chunk` and `token`, and the profiles `default` and `kvpress`.  It is meant to be read: nothing in it is
fast, and sums may be associated differently from the C reference, which rule R32 allows for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
Rows = NDArray[np.int64]

MILLION = 1_000_000
RTOL, ATOL = 1e-4, 1e-30  # R31, attention scorers


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
    align: int = 1
    tight: str = "raise"
    fill: str = "lead"
    selector: str = "chunk"
    heads: str = "sum"
    group_heads: str | None = None
    unit_reduce: str = "mean"
    value_weight: str | None = None
    scale: float | None = None
    softcap: float = 0.0
    sliding: int = 0

    @property
    def w(self) -> int:
        return self.window if self.window is not None else {"default": 32, "kvpress": 64}[self.profile]

    @property
    def c(self) -> int:
        return self.chunk if self.chunk is not None else {"default": 10, "kvpress": 20}[self.profile]

    @property
    def n_s(self) -> int:
        return self.sinks if self.sinks is not None else 4

    @property
    def r(self) -> int:
        return self.recent if self.recent is not None else self.w

    @property
    def shortest(self) -> int:
        return self.min_tokens if self.min_tokens is not None else self.w + self.c + self.n_s

    @property
    def pooling(self) -> str:
        return self.pool if self.pool is not None else {"default": "none", "kvpress": "avg"}[self.profile]


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

    @property
    def ranges(self) -> list[list[int]]:
        return ranges(self.kept)


def ranges(rows: Rows) -> list[list[int]]:
    """Ascending rows as half-open ranges."""
    if len(rows) == 0:
        return []
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [[int(part[0]), int(part[-1]) + 1] for part in np.split(rows, cuts)]


def attention(q: F32, k: F32, p: Params, pos: Rows) -> F64:
    """S1, scorer `window`: q [w][Hq][d], k [L][Hkv][d] give A [Hq][L]."""
    w, hq, d = q.shape
    length, hkv, _ = k.shape
    scale = p.scale if p.scale else 1.0 / np.sqrt(float(d))
    if p.profile == "kvpress":
        scale = 1.0 / np.sqrt(float(d))
    qpos = pos[length - w :]
    allowed = pos[None, :] <= qpos[:, None]
    if p.sliding:
        allowed &= qpos[:, None] - pos[None, :] < p.sliding
    out = np.zeros((hq, length))
    keys = k.astype(np.float64)
    for h in range(hq):
        key = keys[:, h // (hq // hkv), :]
        # R34: what the mask forbids is left out, whatever it holds
        logits = q[:, h, :].astype(np.float64) @ np.where(allowed.any(0)[:, None], key, 0.0).T * scale
        if p.softcap > 0:
            logits = p.softcap * np.tanh(logits / p.softcap)
        logits = np.where(allowed, logits, -np.inf)
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        out[h] = (e / e.sum(axis=1, keepdims=True)).sum(axis=0)
    return out / w if p.profile == "kvpress" else out


def pooled(a: F64, p: Params) -> F64:
    """S2 over rows j < L - w; the window's own rows stay as they are."""
    if p.pooling == "none":
        return a
    size = p.pool_size or 5
    half = (size - 1) // 2
    end = a.shape[1] - p.w
    out = a.copy()
    for j in range(end):
        near = a[:, max(0, j - half) : min(end, j + half + 1)]
        out[:, j] = near.sum(axis=1) / size if p.pooling == "avg" else near.max(axis=1)
    return out


def row_scores(q: F32, k: F32, v: F32, p: Params, pos: Rows | None = None) -> F64:
    """S1 to S3: one number T[j] for each row, all heads together."""
    length, hkv, _ = k.shape
    pos = np.arange(length) if pos is None else pos
    a = pooled(attention(q[len(q) - p.w :], k, p, pos), p)
    grouped = a.reshape(hkv, -1, length)
    how = p.group_heads or ("mean" if p.profile == "kvpress" else "sum")
    s: F64 = {"sum": grouped.sum, "mean": grouped.mean, "max": grouped.max}[how](axis=1)
    if p.value_weight:
        value = v.astype(np.float64)
        norm = np.abs(value).sum(2) if p.value_weight == "l1" else np.sqrt((value * value).sum(2))
        s = s * norm.T
    return s.sum(axis=0) if p.heads == "sum" else s.max(axis=0)


def budget_rows(length: int, p: Params) -> int:
    """S6, integers only."""
    bounds = []
    if p.keep_ratio is not None:
        bounds.append(length * p.keep_ratio // MILLION)
    if p.max_tokens is not None:
        bounds.append(p.max_tokens)
    b = -(-min(bounds) // p.align) * p.align
    return max(1, b if p.max_tokens is None else min(b, p.max_tokens))


def protected_rows(length: int, p: Params, pos: Rows) -> NDArray[np.bool_]:
    """S5: sinks and the newest rows go by row, spans by position."""
    mask = np.zeros(length, bool)
    mask[: min(p.n_s, length)] = True
    mask[length - min(p.r, length) :] = True
    for first, end in p.spans:
        mask |= (pos >= first) & (pos < end)
    return mask


def scores_of_units(t: F64, unit_of_row: Rows, p: Params) -> tuple[Rows, F32]:
    """S4: the units that have rows, ascending, and C[u] in binary32."""
    ids = np.unique(unit_of_row[unit_of_row >= 0])
    reduce = {"mean": np.mean, "sum": np.sum, "max": np.max}[p.unit_reduce]
    values = np.array([reduce(t[unit_of_row == u]) for u in ids], np.float64)
    c = values.astype(np.float32) + np.float32(0)  # R13: -0 becomes +0
    if not np.isfinite(c).all():
        raise Refused("NONFINITE_SCORE")
    return ids, c


def ranking(scores: F32) -> Rows:
    """R21: score descending, then lower index."""
    return np.lexsort((np.arange(len(scores)), -scores.astype(np.float64)))


def select(t: F64, length: int, p: Params, pos: Rows | None = None) -> Plan:
    """S4 to S8 of profile `default` from row scores."""
    pos = np.arange(length) if pos is None else pos
    everything = np.arange(length)
    if length == 0:
        return Plan(everything, "empty")
    budget = budget_rows(length, p)
    if length < p.shortest or length < p.w:
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
    if count == budget:
        return Plan(np.flatnonzero(mask), "dropped", budget)
    size = p.c if p.selector == "chunk" else 1
    unit_of_row = np.where(mask, -1, pos // size)
    ids, scores = scores_of_units(t, unit_of_row, p)
    left = budget - count
    keep = mask.copy()
    for u in ranking(scores):
        rows = np.flatnonzero(unit_of_row == ids[u])
        if len(rows) <= left:
            keep[rows] = True
            left -= len(rows)
            continue
        # R22: the first unit that does not fit ends the walk
        if p.fill == "lead":
            keep[rows[:left]] = True
        elif p.fill == "best":
            keep[rows[ranking(t[rows].astype(np.float32))[:left]]] = True
        break
    return Plan(np.flatnonzero(keep), "dropped", budget, False, unit_of_row, ids, scores)


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
    ids, scores = scores_of_units(t, unit_of_row, p)
    order = np.concatenate([inside, straddling, ids[ranking(scores)]])[:count]
    kept = everything[np.isin(everything // p.c, order)]
    return Plan(kept, "dropped", 0, False, unit_of_row, ids, scores)


def plan(q: F32, k: F32, v: F32, p: Params, pos: Rows | None = None) -> Plan:
    """The whole pipeline for one layer of one sequence: q [rows][Hq][d], k and v [L][Hkv][d]."""
    length = len(k)
    if p.profile == "kvpress":
        if length <= p.w or length < p.c:
            raise Refused("UNSUPPORTED")
        return select_kvpress(row_scores(q, k, v, p, pos), length, p)
    if length < p.w:
        return select(np.zeros(length), length, p, pos)
    return select(row_scores(q, k, v, p, pos), length, p, pos)


def gap_band(reference: Plan) -> Rows:
    """R32: the units in which a fast kernel may differ from this plan."""
    keep = np.isin(np.arange(len(reference.unit_of_row)), reference.kept)
    taken, left = [], []
    for u, score in zip(reference.unit_ids, reference.unit_scores.astype(np.float64), strict=True):
        rows = reference.unit_of_row == u
        if keep[rows].any():
            taken.append(score)
        if not keep[rows].all():
            left.append(score)
    if not taken or not left:
        return np.empty(0, np.int64)
    t_in, t_out = min(taken), max(left)
    x = 2.01 * (RTOL * max(abs(t_in), abs(t_out)) + ATOL)
    scores = reference.unit_scores.astype(np.float64)
    return reference.unit_ids[(scores >= t_in - x) & (scores <= t_out + x)]


def kept_mass(reference: Plan, kept: Rows) -> float:
    """R32, second half: sum of R[u] times the rows taken of u."""
    score = dict(zip(reference.unit_ids.tolist(), reference.unit_scores.astype(float).tolist(), strict=True))
    return sum(score.get(int(u), 0.0) for u in reference.unit_of_row[kept])


def difference_allowed(reference: Plan, kept: Rows) -> bool:
    """True when `kept` equals the plan, or differs from it in units of the gap band only."""
    if np.array_equal(reference.kept, kept):
        return True
    if len(reference.kept) != len(kept) or len(reference.unit_ids) == 0:
        return False
    units = set(reference.unit_of_row[np.setxor1d(reference.kept, kept)].tolist())
    mass = kept_mass(reference, reference.kept)
    return units <= set(gap_band(reference).tolist()) and kept_mass(reference, kept) >= (1 - 2 * RTOL) * mass
