"""Why a kept set of kvpress differs from the daemon's: each known reason is a check that the difference passes or not.

A reason is accepted only where it accounts for the very rows that differ.  The NumPy model of tests/python gives scores
in binary64; kvpress' scores are its own, in binary32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import presses
import reference_numpy as ref
import selectors_numpy as model
from presses import Input, Method, Rows

F64 = NDArray[np.float64]
MILLION = 1_000_000
# two float32 pipelines differ by less (algorithm.md, R31: "a plain float32 pipeline stayed below 1e-5")
ROUNDING = 1e-5
LAG_SINKS, LAG_ROWS = 4, 128

TIES = "equal scores at the cut: torch's topk leaves their order open, the daemon takes the lower row (R52 (3))"
LAG_SMALL = "LagKV keeps only tied rows below 4 + its tail: which of them, torch leaves open (R54)"
LAG_CONSTANT = "LagKV divides by 0 where a channel is constant in a partition (R54)"
WINDOW_CHUNKS = "chunks of the window alone: all equal but for an ulp of the short last one (R52 (3), (4))"
BUDGETS = "PyramidKV's budgets: kvpress counts the window inside, rounds, and does not conserve the sum (4.2)"
UNPROTECTED = ("EG-ChunkKV does not set the window aside: its padded chunks are in the medians, and the one that "
               "straddles its edge can be cut to some of its tied rows (R54)")
ROUNDED = "scores at the cut equal but for the rounding of float32"


@dataclass(frozen=True)
class Difference:
    """Two kept sets of one layer and head."""

    data: Input
    method: Method
    layer: int
    head: int
    keep_ratio: int  # millionths
    ours: Rows
    theirs: Rows

    @property
    def press(self) -> Any:
        return self.method.press(self.data, (MILLION - self.keep_ratio) / 1e6)

    @property
    def budget(self) -> int:
        return max(1, int(float(self.data.rows) * (1.0 - (MILLION - self.keep_ratio) / 1e6)))

    @property
    def swapped(self) -> Rows:
        return np.setxor1d(self.ours, self.theirs)

    def model_scores(self, heads: str) -> F64:
        """S [Hkv][L], or T [L]: the NumPy model's."""
        policy = self.method.policy(self.data)
        given = {name: value for name, value in policy.items() if name in ("scorer", "window", "chunk", "pool")}
        p = ref.Params(profile="kvpress", keep_ratio=self.keep_ratio, heads=heads, **given)
        n = self.layer
        return np.asarray(ref.row_scores(self.data.q[n], self.data.k[n], self.data.v[n], p))


def near_the_cut(scores: F64, d: Difference, rounding: float) -> bool:
    """Do only rows differ whose scores are those of the last one in and the first one out, but for rounding?"""
    if len(d.ours) != len(d.theirs):
        return False
    cut = np.sort(scores)[::-1][len(d.ours) - 1 : len(d.ours) + 1]
    slack = rounding * float(np.abs(cut).max())
    return bool((np.abs(scores[d.swapped][:, None] - cut[None, :]).min(axis=1) <= slack).all())


def best(scores: F64, count: int) -> Rows:
    """Score descending, then the lower row."""
    return np.sort(np.lexsort((np.arange(len(scores)), -scores))[:count])


def ties(d: Difference) -> str | None:
    """By kvpress' own scores, but with R21's order of equal ones, the set is the daemon's."""
    scores = presses.scores_of(d.press, d.data, d.layer)[d.head].astype(np.float64)
    if not np.isfinite(scores).all() or not np.array_equal(best(scores, len(d.theirs)), d.ours):
        return None
    return TIES


def rounded(d: Difference) -> str | None:
    window = int(d.method.policy(d.data).get("window", 0))
    if window and d.swapped.max() >= d.data.rows - window:
        return None
    one_set = d.method.name == "TOVA"
    scores = d.model_scores("sum" if one_set else "each")
    scores = (scores if one_set else scores[d.head]).copy()
    if window:
        scores[d.data.rows - window :] = np.inf
    return ROUNDED if near_the_cut(scores, d, ROUNDING) else None


# ---- LagKV

def lag_partitions(d: Difference) -> range:
    """First rows of the partitions that have ranks."""
    return range(LAG_SINKS, d.data.rows - 2 * LAG_ROWS + 1, LAG_ROWS)


def lag_small(d: Difference) -> str | None:
    tied = np.ones(d.data.rows, bool)
    for first in lag_partitions(d):
        tied[first : first + LAG_ROWS] = False
    few = d.budget <= int(tied.sum()) and d.data.rows >= LAG_SINKS + 2 * LAG_ROWS
    lowest = np.array_equal(d.ours, np.flatnonzero(tied)[: len(d.ours)])
    return LAG_SMALL if few and lowest and tied[d.theirs].all() else None


def lag_constant(d: Difference) -> str | None:
    if not np.array_equal(best(d.model_scores("each")[d.head], len(d.ours)), d.ours):
        return None
    for x in (d.data.k[d.layer][:, d.head], d.data.v[d.layer][:, d.head]):
        for first in lag_partitions(d):
            behind = x[first + LAG_ROWS : first + 2 * LAG_ROWS]
            if (behind.min(axis=0) == behind.max(axis=0)).any():
                return LAG_CONSTANT
    return None


# ---- PyramidKV

def budgets(d: Difference) -> str | None:
    """Both counts are as each side defines them, and both sets begin the same ranking."""
    kept, layers = min(d.budget, d.data.rows), len(d.data.k)
    ours = model.pyramid(kept, min(d.data.window, kept), d.data.rows, layers, 20)[d.layer]
    theirs = presses.budget_of(d.press, d.data, d.layer)
    if (len(d.ours), len(d.theirs)) != (ours, theirs) or ours == theirs:
        return None
    scores = d.model_scores("each")[d.head].copy()
    scores[d.data.rows - d.data.window :] = np.inf
    for kept_rows in (d.ours, d.theirs):
        left = np.setdiff1d(np.arange(d.data.rows), kept_rows)
        worst, first_out = scores[kept_rows].min(), scores[left].max()
        if worst < first_out * (1 - ROUNDING):
            return None
    return BUDGETS


# ---- chunks

def window_chunks(d: Difference) -> str | None:
    chunk = d.data.chunk
    inside = d.swapped // chunk * chunk >= d.data.rows - d.data.window
    p = ref.Params(profile="kvpress", keep_ratio=d.keep_ratio, window=d.data.window, chunk=chunk)
    by_rule = ref.select_kvpress(d.model_scores("sum"), d.data.rows, p).kept
    return WINDOW_CHUNKS if inside.all() and np.array_equal(by_rule, d.ours) else None


def unprotected(d: Difference) -> str | None:
    """The same gate over the same scores gives either set: the window set aside, or padded and in the medians.

    Of rows with equal scores, such as the padded ones, kvpress may take others, but not more.
    """
    scores = presses.scores_of(d.press, d.data, d.layer).sum(axis=0, dtype=np.float32)
    part = model.Part(scores[None, None], 1, profile="kvpress", selector="chunk_eg", keep_ratio=d.keep_ratio,
                      window=d.data.window, chunk=10, spike_keep=4)
    rows = np.arange(d.data.rows)
    ours = model.walk(part, scores, model.kvpress_protected(part, d.budget), rows, d.budget)
    theirs = model.walk(part, scores, np.zeros(d.data.rows, bool), rows, d.budget)
    scores[d.data.rows - d.data.window :] = np.inf
    exchanged = (np.sort(scores[np.setdiff1d(a, b)]) for a, b in ((theirs, d.theirs), (d.theirs, theirs)))
    return UNPROTECTED if np.array_equal(ours, d.ours) and np.array_equal(*exchanged) else None


CHECKS = {
    "ChunkKV": (window_chunks,), "SnapKV": (ties, rounded), "PyramidKV": (budgets, ties, rounded),
    "TOVA": (ties, rounded), "KeyDiff": (ties, rounded), "Knorm": (ties, rounded),
    "LagKV": (lag_small, ties, lag_constant), "StreamingLLM": (ties,), "EG-ChunkKV": (unprotected,),
}


def reason_for(d: Difference) -> str | None:
    """The first known reason that accounts for a difference; None: there is none."""
    if len(d.ours) != len(d.theirs) and d.method.name not in ("PyramidKV", "ChunkKV"):
        return None
    for check in CHECKS[d.method.name]:
        reason = check(d)
        if reason:
            return reason
    return None
