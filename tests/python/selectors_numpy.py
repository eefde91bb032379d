"""An independent model of selection (S4 to S8), of the whole family, in NumPy: from scores of rows to kept rows.

Written from sections 2.2, 4, 5 and 6 of the specification alone and never from the C sources.  Scores come in as
binary32, so there is no tolerance: what the daemon keeps must be equal.  Scoring is reference_numpy.py and
reference_scorers.py.

A `Part` is a stretch of layers with one policy; a plain request has one, a hybrid several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reference_numpy import Refused, ranking

F32 = NDArray[np.float32]
Scores = F32 | NDArray[np.float64]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
MILLION = 1_000_000
KVPRESS_SINKS = 4


@dataclass(frozen=True)
class Part:
    """Layers with one policy, every value resolved; T[layer][head][row] with one layer where one set serves all."""

    scores: Scores
    count: int  # layers
    profile: str = "default"
    selector: str = "chunk"
    keep_ratio: int | None = None
    max_tokens: int | None = None
    window: int | None = 32  # None: the scorer has none
    chunk: int = 10
    sinks: int = 4
    recent: int = 32
    shortest: int = 0
    fill: str = "lead"
    tight: str = "raise"
    align: int = 1
    unit_reduce: str = "mean"
    layers: str = "each"
    reuse: int = 1
    beta: int = 0
    heavy: int = 100_000
    recent_part: int = 100_000
    page: int = 0
    spike_keep: int = 4
    chunk_lengths: tuple[int, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def length(self) -> int:
        return int(self.scores.shape[2])


@dataclass(frozen=True)
class Sets:
    """The kept rows of each layer and head, and what is said of them."""

    kept: list[list[Rows]]
    outcome: str = "dropped"
    budget: int = 0
    raised: bool = False


# ---- how many rows

def budget_of(p: Part) -> int:
    """S6; H2O has a budget of its own."""
    if p.selector == "h2o":
        asked = p.length * p.heavy // MILLION + p.length * p.recent_part // MILLION
    else:
        bounds = [] if p.keep_ratio is None else [p.length * p.keep_ratio // MILLION]
        asked = min(bounds + ([] if p.max_tokens is None else [p.max_tokens]))
    rounded = -(-asked // p.align) * p.align
    return max(1, rounded if p.max_tokens is None else min(rounded, p.max_tokens))


def pyramid(budget: int, protected: int, length: int, layers: int, beta: int) -> list[int]:
    """4.2: B of every layer."""
    a, room = budget - protected, length - protected
    if beta == 0 or layers == 1 or a < beta:
        return [budget] * layers
    low = a // beta
    high = 2 * a - low
    if high > room:
        low, high = 2 * a - room, room
    d = layers - 1

    def total(n: int) -> int:
        return int(n * (2 * high * d - (high - low) * (n - 1)) // (2 * d))

    return [protected + total(n + 1) - total(n) for n in range(layers)]


# ---- which rows go together

def protected(p: Part, pos: Rows) -> Mask:
    """S5, and 4.4 for pages."""
    mask = np.zeros(p.length, bool)
    recent = p.length * p.recent_part // MILLION if p.selector == "h2o" else p.recent
    mask[: p.sinks] = True
    mask[p.length - min(recent, p.length) :] = True
    for first, end in p.spans:
        mask |= (pos >= first) & (pos < end)
    if p.selector == "page":
        for first in range(0, p.length, p.page):
            page = slice(first, first + p.page)
            mask[page] = mask[page].any() or first + p.page > p.length
    return mask


def grid(p: Part, pos: Rows) -> Rows:
    """S4: the unit of each row."""
    rows = np.arange(p.length)
    match p.selector:
        case "token" | "h2o":
            return rows
        case "page":
            return rows // p.page
        case "chunk_at":
            return np.repeat(np.arange(len(p.chunk_lengths)), p.chunk_lengths)
        case _:
            return (rows if p.profile in ("kvpress", "paper") else pos) // p.chunk


def score_of(t: Scores, how: str) -> np.float32:
    """S4: mean, sum or max of a unit's rows, rounded once."""
    wide = t.astype(np.float64)
    total = np.float64(0)
    for x in wide:
        total += x
    return np.float32({"mean": total / len(t), "sum": total, "max": wide.max()}[how]) + np.float32(0)


def best(t: Scores, rows: Rows, count: int) -> Rows:
    """The rows with the highest T32; ties: the lower row."""
    return rows[ranking(t[rows].astype(np.float32))[:count]]


# ---- S7

def entropy(t: F32) -> np.float32:
    """4.3: how evenly a unit's mass is spread, 0 to 1."""
    y = t.astype(np.float64) - min(0.0, float(t.min()))
    if len(t) == 1 or y.sum() == 0:
        return np.float32(0)
    q = y[y > 0] / y.sum()
    return np.float32(np.clip(-(q * np.log(q)).sum() / np.log(len(t)), 0, 1))


def lower_median(values: list[np.float32]) -> np.float32:
    return sorted(values)[(len(values) - 1) // 2]


def walk(p: Part, t: Scores, mask: Mask, pos: Rows, budget: int) -> Rows:
    """R22, and 4.3 for chunk_eg."""
    keep = mask.copy()
    left = budget - int(keep.sum())
    index = grid(p, pos)
    units = [rows for u in np.unique(index) if len(rows := np.flatnonzero((index == u) & ~mask))]
    if not units:
        return np.flatnonzero(keep)
    gate = p.selector == "chunk_eg"
    if gate:
        t = t.astype(np.float32)  # everything comes from T32
    scores = [score_of(t[rows], "mean" if gate else p.unit_reduce) for rows in units]
    take = [len(rows) for rows in units]
    if gate:
        spread = [entropy(t[rows]) for rows in units]
        high, low = lower_median(scores), lower_median(spread)
        for u, rows in enumerate(units):
            if scores[u] >= high and spread[u] < low:
                take[u] = min(len(rows), p.spike_keep)
    for u in ranking(np.array(scores, np.float32)):
        rows, n = units[u], take[u]
        if n <= left:
            keep[best(t, rows, n)] = True
            left -= n
            continue
        fill = "best" if gate else p.fill
        keep[{"lead": rows[:left], "best": best(t, rows, left), "none": rows[:0]}[fill]] = True
        left = 0
        break
    if gate and left:
        keep[best(t, np.flatnonzero(~keep), left)] = True
    return np.flatnonzero(keep)


def kvpress_chunks(p: Part, t: Scores) -> Rows:
    """R51, R52: whole chunks; those of the window first, by index, then the straddling one."""
    chunks = -(-p.length // p.chunk)
    count = max(1, int(float(chunks) * kvpress_part(p)))
    edge = p.length - (p.window or 0)
    index = np.arange(p.length) // p.chunk
    rows_of = [np.flatnonzero(index == u) for u in range(chunks)]
    inside = [u for u in range(chunks) if rows_of[u][0] >= edge]
    straddling = [u for u in range(chunks) if rows_of[u][0] < edge <= rows_of[u][-1]]
    others = [u for u in range(chunks) if rows_of[u][-1] < edge]
    scores = np.array([score_of(t[rows_of[u]], "mean") for u in others], np.float32)
    order = inside + straddling + [others[i] for i in ranking(scores)]
    return np.flatnonzero(np.isin(index, order[:count]))


def kvpress_part(p: Part) -> float:
    assert p.keep_ratio is not None
    return 1.0 - (MILLION - p.keep_ratio) / 1e6


def kvpress_protected(p: Part, budget: int) -> Mask:
    """R54: the window of SnapKV and TOVA, the sinks of StreamingLLM; never more than the budget, the first of them."""
    mask = np.zeros(p.length, bool)
    rows = np.arange(p.length)
    own = rows[:KVPRESS_SINKS] if p.selector == "streaming" else rows[p.length - (p.window or 0) :]
    mask[own[:budget]] = True
    return mask


def paper(p: Part, t: Scores) -> Rows:
    """The best chunks, cut to make room for the window (join = cut, R50)."""
    most = budget_of(p)
    assert p.window is not None
    index = np.arange(p.length) // p.chunk
    scores = np.array([score_of(t[index == u], "sum") for u in range(index[-1] + 1)], np.float32)
    chosen = np.isin(index, ranking(scores)[: most // p.chunk])
    return np.union1d(np.flatnonzero(chosen)[: most - p.window], np.arange(p.length - p.window, p.length))


# ---- a part

def settled(p: Part, pos: Rows) -> tuple[str, int, bool, Mask]:
    """R20, or the profile's own rules: (outcome, or "" where there is something to decide; B; raised; P)."""
    everything = np.ones(p.length, bool)
    if p.length == 0:
        return "empty", 0, False, everything
    if p.profile == "kvpress":
        if p.keep_ratio == MILLION:
            return "fits", 0, False, everything
        least = KVPRESS_SINKS if p.selector == "streaming" else p.window or 0
        if p.length <= least or (p.selector in ("chunk", "chunk_eg") and p.length < p.chunk):
            raise Refused("UNSUPPORTED")
        budget = max(1, int(float(p.length) * kvpress_part(p)))
        return "", budget, False, kvpress_protected(p, budget)
    budget = budget_of(p)
    if p.profile == "paper":
        assert p.window is not None
        asked = p.length * (p.keep_ratio or 0) // MILLION
        if asked >= p.length:
            return "fits", asked, False, everything
        if p.length <= p.window or p.length < p.chunk:
            raise Refused("UNSUPPORTED")
        if asked < p.window:
            raise Refused("INVALID_ARGUMENT")
        return "", asked, False, everything
    mask = protected(p, pos)
    count = int(mask.sum())
    scored = p.window is not None and p.selector not in ("streaming", "h2o")
    if p.length < p.shortest or (scored and p.length < (p.window or 0)):
        return "short", budget, False, everything
    if budget >= p.length:
        return "fits", budget, False, everything
    if count == p.length:
        return "protected", budget, False, everything
    if count > budget and p.tight == "refuse":
        raise Refused("BUDGET_BELOW_PROTECTED")
    return "", budget, count > budget, mask


def choose(p: Part, t: Scores, mask: Mask, pos: Rows, budget: int) -> Rows:
    """The kept rows of one layer and head."""
    if p.profile == "paper":
        return paper(p, t)
    if p.profile == "kvpress" and p.selector == "chunk":
        return kvpress_chunks(p, t)
    if int(mask.sum()) >= budget:
        return np.flatnonzero(mask)
    if p.selector == "streaming":
        others = np.flatnonzero(~mask)
        keep = mask.copy()
        keep[others[len(others) - (budget - int(mask.sum())) :]] = True
        return np.flatnonzero(keep)
    return walk(p, t, mask, pos, budget)


def select_part(p: Part, first: int, total: int, pos: Rows) -> Sets:
    """Layers `first` and on of `total` compressed ones."""
    heads = p.scores.shape[1]
    outcome, budget, raised, mask = settled(p, pos)
    if outcome:
        return Sets([[np.flatnonzero(mask)] * heads] * p.count, outcome, budget)
    budgets = [budget] * p.count
    if p.beta and not raised:
        budgets = pyramid(budget, int(mask.sum()), p.length, total, p.beta)[first : first + p.count]
    kept: list[list[Rows]] = []
    leader = 0
    for i in range(p.count):
        if (first + i) % p.reuse == 0:
            leader = i  # and layer 0 of a part leads whatever its number
        t = p.scores[0 if p.layers == "one" else leader]
        kept.append([choose(p, t[h], mask, pos, budgets[i]) for h in range(heads)])
    return Sets(kept, "dropped", budget, raised)


def select(parts: Sequence[Part], pos: Rows | None = None) -> list[Sets]:
    """All parts of a group, in the order of their layers."""
    pos = np.arange(parts[0].length) if pos is None else pos
    total = sum(p.count for p in parts)
    firsts = np.cumsum([0] + [p.count for p in parts])
    return [select_part(p, int(first), total, pos) for p, first in zip(parts, firsts, strict=False)]


# ---- layers put together

def top4(scores: F32) -> NDArray[np.float64]:
    """6.1, vote: of [layers][L], the four largest of each row, added in descending order: [1][1][L]."""
    most = -np.sort(-scores.astype(np.float64), axis=0)[:4]
    total = np.zeros(scores.shape[1])
    for layer in most:
        total += layer
    return (total / len(most))[None, None]


def select_sum(scores: F32, p: Part) -> Sets:
    """Section 5, layers = one: C[u] and T32[j] of [layers][L] are each added up over the layers."""
    pos = np.arange(p.length)
    outcome, budget, raised, mask = settled(p, pos)
    assert not outcome
    index = grid(p, pos)
    total_rows = np.zeros(p.length)
    total_units = np.zeros(p.length)  # C[u], at the first row of u
    for t in scores:
        total_rows += t
        for u in np.unique(index[~mask]):
            rows = np.flatnonzero((index == u) & ~mask)
            total_units[rows[0]] += score_of(t[rows], p.unit_reduce)
    keep = mask.copy()
    left = budget - int(keep.sum())
    units = [np.flatnonzero((index == u) & ~mask) for u in np.unique(index[~mask])]
    assert p.fill == "best"
    for u in ranking(np.array([total_units[rows[0]] for rows in units]).astype(np.float32)):
        count = min(left, len(units[u]))
        keep[best(total_rows.astype(np.float32), units[u], count)] = True
        left -= count
        if count < len(units[u]):
            break
    return Sets([[np.flatnonzero(keep)]], "dropped", budget, raised)
