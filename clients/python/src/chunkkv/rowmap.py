"""Where the rows of a sequence came from, while it grows and is compressed again and again.

    rows = chunkkv.RowMap(1024)
    answer = client.compress(cache, keep_ratio=0.5, policy=chunkkv.methods.vote(), **rows.arguments())
    rows.compressed(answer)
    ...                                 # a token: to row rows.physical_len, at position rows.logical_len
    rows.append(1)
    answer = client.compress(cache, max_tokens=512, policy=chunkkv.methods.vote(), **rows.arguments())

Two lengths go on from a compression: positions from `logical_len`, rows from `physical_len`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import ranges as rg
from .answer import Answer
from .checks import whole


class RowMap:
    """Positions of the physical rows of one sequence, in one layer group.

    Layers of the group must keep the same rows, since a request has one list of positions for them: ask for
    layers="one", or give each layer a group of its own.
    """

    def __init__(self, rows: int = 0) -> None:
        """A sequence of so many rows that was not compressed yet."""
        rows = whole("rows", rows)
        self._ranges: list[rg.Range] = [(0, rows)] if rows else []
        self.logical_len = rows

    @property
    def physical_len(self) -> int:
        """Rows now in the cache: where the next token's row goes."""
        return rg.count(self._ranges)

    @property
    def ranges(self) -> list[rg.Range]:
        """Half-open ranges of the positions of all rows, in their order."""
        return list(self._ranges)

    @property
    def positions(self) -> NDArray[np.uint32]:
        """The index map: row i of the cache holds the token at position positions[i]."""
        return rg.rows_from_ranges(self._ranges)

    def row_of(self, position: int) -> int | None:
        """The row that holds the token of a position; None if it was dropped, or is not there yet."""
        row = 0
        for first, end in self._ranges:
            if first <= position < end:
                return row + position - first
            row += end - first
        return None

    def append(self, count: int = 1) -> rg.Range:
        """Tokens were written behind the last row; their positions."""
        first, end = self.logical_len, self.logical_len + whole("count", count)
        if count and self._ranges and self._ranges[-1][1] == first:
            self._ranges[-1] = (self._ranges[-1][0], end)
        elif count:
            self._ranges.append((first, end))
        self.logical_len = end
        return first, end

    def arguments(self) -> dict[str, Any]:
        """What plan(), compress() and copy_out() need to know of the sequence: rows, positions and logical_len."""
        untouched = self._ranges in ([], [(0, self.logical_len)])
        return {"rows": self.physical_len, "logical_len": self.logical_len,
                "positions": None if untouched else self.ranges}

    def compressed(self, answer: Answer, group: int | None = None) -> None:
        """Take over what a compression of this sequence kept.

        Args:
            answer: of compress(), or of copy_out() when the sequence goes on in the destination.
            group: index of the layer group; None = the only one.

        Raises:
            ValueError: layers or KV heads keep different rows, or the answer is of another sequence.
        """
        chosen = [one for one in answer.groups if group in (None, one.group)]
        if any(one.physical_before != self.physical_len for one in chosen) or answer.logical_len != self.logical_len:
            raise ValueError(f"the answer is of other rows than the {self.physical_len} of {self.logical_len} tokens")
        if any(layer.heads for one in chosen for layer in one.layers.values()):
            raise ValueError("the KV heads keep different rows, so a row has no one position")
        self._ranges = answer.positions(group=group)
