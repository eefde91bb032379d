"""Kept rows in their three forms, and the way between them.

- *ranges*: half-open pairs `(first, end)`, ascending and apart: what people read.
- *runs*: alternating lengths dropped, kept, dropped, kept, ..., kept, of which only the first may be 0:
  what the wire carries.  Such a list cannot be unsorted or overlap.
- *rows*: every kept row as a number, for indexing.

>>> ranges_from_runs([0, 4, 16, 10])
[(0, 4), (20, 30)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import whole
from .errors import invalid

Range = tuple[int, int]


def ranges_from_runs(runs: Sequence[int]) -> list[Range]:
    """Half-open ranges of the rows that `runs` keeps; InvalidArgument if it is no legal list of runs."""
    if len(runs) % 2:
        raise invalid("runs", f"{len(runs)} lengths: each dropped length needs a kept one behind it")
    out = []
    place = 0
    for i in range(0, len(runs), 2):
        dropped, kept = int(runs[i]), int(runs[i + 1])
        if kept < 1 or dropped < (0 if i == 0 else 1):
            raise invalid(f"runs[{i}]", "a length is 0; only the first may be")
        out.append((place + dropped, place + dropped + kept))
        place += dropped + kept
    return out


def runs_from_ranges(ranges: Iterable[Range]) -> list[int]:
    """The runs that keep exactly these ranges; they must be ascending and not overlap, touching is fine."""
    out: list[int] = []
    place = 0
    for i, (first, end) in enumerate(ranges):
        if first < place or end <= first:
            raise invalid(f"ranges[{i}]", f"({first}, {end}) is empty, or not behind the one before")
        if out and first == place:
            out[-1] += end - first
        else:
            out += [first - place, end - first]
        place = end
    return out


def rows_from_ranges(ranges: Iterable[Range]) -> NDArray[np.uint32]:
    """Every row of the ranges, in order."""
    parts = [np.arange(first, end, dtype=np.uint32) for first, end in ranges]
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)


def ranges_from_rows(rows: ArrayLike) -> list[Range]:
    """Strictly ascending rows as half-open ranges."""
    array = np.asarray(rows, np.int64)
    if array.size == 0:
        return []
    steps = np.diff(array)
    if array[0] < 0 or (steps < 1).any():
        raise invalid("rows", "rows must be strictly ascending and not negative")
    cuts = np.flatnonzero(steps != 1) + 1
    firsts = array[np.r_[0, cuts]]
    lasts = array[np.r_[cuts - 1, array.size - 1]]
    return [(int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)]


def positions_of(kept: Sequence[Range], positions: Sequence[Range] | None) -> list[Range]:
    """Positions of the rows `kept`, where all rows have these positions; None = each row its own number.

    >>> positions_of([(0, 2), (3, 5)], [(0, 4), (10, 14)])
    [(0, 2), (3, 4), (10, 11)]
    """
    if positions is None:
        return list(kept)
    return ranges_from_rows(rows_from_ranges(positions)[rows_from_ranges(kept)])


def checked(ranges: Iterable[Range], field: str, *, ascending: bool) -> list[Range]:
    """The same as plain numbers, each a half-open range of numbers below 2^32; in order, where that is asked for."""
    try:
        items = list(ranges)
    except TypeError:
        raise TypeError(f"{field} must be a list of pairs (first, end), not {ranges!r}") from None
    out: list[Range] = []
    for i, item in enumerate(items):
        path = f"{field}[{i}]"
        try:
            first, end = item
        except (TypeError, ValueError):
            raise TypeError(f"{path} must be a pair (first, end), not {item!r}") from None
        first, end = whole(path, first), whole(path, end)
        if end <= first:
            raise invalid(path, f"({first}, {end}) is no half-open range: the end must be above the first")
        if ascending and out and first < out[-1][1]:
            raise invalid(path, f"({first}, {end}) is not behind the one before, which ends at {out[-1][1]}")
        out.append((first, end))
    return out


def count(ranges: Iterable[Range]) -> int:
    """Number of rows in the ranges."""
    return sum(end - first for first, end in ranges)
