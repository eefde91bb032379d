"""What one compression did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..answer import Answer


@dataclass(frozen=True)
class Report:
    """What one compression did to a cache.

    Attributes:
        sequences: of the batch.
        tokens: that the model had seen.
        rows_before: rows in each compressed layer, by layer number.
        rows_after: likewise.
        bytes_before: shared memory of the cache.
        bytes_after: likewise.
        seconds: from the request to the smaller cache, registration included.
        positions: of the rows that are left, [sequence][layer number][KV head or only one], ascending.
        answers: of the daemon.
    """

    sequences: int
    tokens: int
    rows_before: Mapping[int, int]
    rows_after: Mapping[int, int]
    bytes_before: int
    bytes_after: int
    seconds: float
    positions: Sequence[Mapping[int, Sequence[NDArray[np.uint32]]]] = field(repr=False)
    answers: Sequence[Answer] = field(repr=False)

    def kept(self, layer: int, sequence: int = 0, kv_head: int = 0) -> NDArray[np.uint32]:
        """Positions of the rows that a layer holds now."""
        heads = self.positions[sequence][layer]
        return heads[kv_head if len(heads) > 1 else 0]

    def __str__(self) -> str:
        before, after = (sum(rows.values()) / len(rows) for rows in (self.rows_before, self.rows_after))
        return (f"{before:.0f} rows -> {after:.0f} ({after / before:.1%}) in each of {len(self.rows_after)} layers, "
                f"{self.bytes_before / 1e6:.1f} MB -> {self.bytes_after / 1e6:.1f} MB, {self.seconds * 1e3:.1f} ms")
