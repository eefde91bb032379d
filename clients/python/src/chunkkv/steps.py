"""The batch rule: how a move in place is cut so that anybody can finish it.

Row i of a compressed cache is what row k[i] was, with k ascending, so k[i] >= i.  Leading rows with k[i] = i stay
where they are and are never written.  The destination rows behind them are cut in ascending order into batches
[begin, end), each as long as it may be: end <= k[begin], end - begin <= batch_rows (0: no cap), and end <= the number
of kept rows.  A batch writes rows below its end and reads rows from its end on, so it may be done again, whatever part
of it was done already, but only before the next one begins.

Step p of a job is batch p of every kept set that has one.  `steps_done` = p says that the steps before p are done and
that no step behind p was begun.  The rule is the daemon's (kernels/steps.h); tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from .ranges import Range, rows_from_ranges

Batch = tuple[int, int]


def stay(kept: Sequence[Range]) -> int:
    """Rows at the front that are where they belong."""
    return kept[0][1] if kept and kept[0][0] == 0 else 0


def batches(kept: Sequence[Range], batch_rows: int = 0) -> Iterator[Batch]:
    """The batches of one kept set, given as ascending ranges that do not touch.

    >>> list(batches([(0, 4), (20, 30), (31, 50)]))
    [(4, 20), (20, 33)]
    """
    rows: NDArray[np.uint32] = rows_from_ranges(kept)
    begin = stay(kept)
    while begin < len(rows):
        end = min(len(rows), int(rows[begin]))
        if batch_rows:
            end = min(end, begin + batch_rows)
        yield begin, end
        begin = end


def lock_step(sets: Iterable[Sequence[Range]], batch_rows: int = 0) -> Iterator[list[Batch | None]]:
    """The steps of a job: for each, the batch of every set, None where a set has no more."""
    return (list(step) for step in zip_longest(*(batches(kept, batch_rows) for kept in sets)))
