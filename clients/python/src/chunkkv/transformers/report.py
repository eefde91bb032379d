"""What one compression did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..answer import Answer
from ..errors import invalid
from ..wire import KeptAll

REMARKS = {KeptAll.SHORT: "; too short for this method", KeptAll.FITS: "; within the budget",
           KeptAll.PROTECTED: "; all of it is protected"}


class BudgetRaised(UserWarning):
    """More rows are kept than asked for, because the rows that are always kept are more."""


@dataclass(frozen=True)
class Report:
    """What one compression did to a cache.

    Attributes:
        sequences: of the batch.
        tokens: that the model had seen.
        budget: rows of each layer that were asked for, on average.
        rows_before: rows in each compressed layer, by layer number.
        rows_after: likewise.
        bytes_before: memory of the cache.
        bytes_after: likewise.
        seconds: from the request to the smaller cache, registration included.
        positions: of the rows that are left, [sequence][layer number][KV head or only one], ascending.
        answers: of the daemon.
    """

    sequences: int
    tokens: int
    budget: int
    rows_before: Mapping[int, int]
    rows_after: Mapping[int, int]
    bytes_before: int
    bytes_after: int
    seconds: float
    positions: Sequence[Mapping[int, Sequence[NDArray[np.uint32]]]] = field(repr=False)
    answers: Sequence[Answer] = field(repr=False)

    def kept(self, layer: int, sequence: int = 0, kv_head: int = 0) -> NDArray[np.uint32]:
        """Positions of the rows that a layer held after this compression.

        Raises:
            InvalidArgument: there is no such sequence or compressed layer, or KV head where each has rows of its own.
        """
        _one_of("sequence", sequence, range(self.sequences))
        _one_of("layer", layer, sorted(self.positions[sequence]))
        heads = self.positions[sequence][layer]
        if len(heads) == 1:
            return heads[0]
        _one_of("kv_head", kv_head, range(len(heads)))
        return heads[kv_head]

    @property
    def kept_all(self) -> KeptAll:
        """Why nothing was dropped: the prompt is too SHORT for the method, or FITS the budget, or all of it is
        PROTECTED; DROPPED where rows were."""
        return self.answers[0].groups[0].kept_all

    @property
    def budget_raised(self) -> bool:
        """More rows were kept than asked for, because the rows that are always kept are more."""
        return any(group.budget_raised for answer in self.answers for group in answer.groups)

    def __str__(self) -> str:
        before, after = (sum(rows.values()) / len(rows) for rows in (self.rows_before, self.rows_after))
        least, most = min(self.rows_after.values()), max(self.rows_after.values())
        where = f"in each of {len(self.rows_after)} layers"
        if least < most:
            where = f"in the mean of {len(self.rows_after)} layers, which have {least} to {most}"
        return (f"{before:.0f} rows -> {after:.0f} ({after / before:.1%}{self._remark()}) {where}, "
                f"{self.bytes_before / 1e6:.1f} MB -> {self.bytes_after / 1e6:.1f} MB, {self.seconds * 1e3:.1f} ms")

    def _remark(self) -> str:
        if self.budget_raised:
            return f"; {self.budget} asked for, but these are always kept"
        return REMARKS.get(self.kept_all, "")


def _one_of(field: str, number: int, known: Sequence[int]) -> None:
    """InvalidArgument unless the number is known; it says which are."""
    if number not in known:
        whole = list(known) == list(range(known[0], known[-1] + 1))
        which = f"{known[0]} to {known[-1]}" if whole else ", ".join(map(str, known))
        raise invalid(field, f"{number} was not compressed: these were {which}")
