"""A progress bar of one line on a terminal; elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 30
SECONDS = 60.0  # between lines where there is no terminal


class Progress:
    """How many of how many are done, and how long the rest may take.

    Args:
        weights: of the steps in their order: how long each takes, in whatever unit.
        out: where to; standard error.
    """

    def __init__(self, weights: list[float], out: TextIO | None = None) -> None:
        self.done = 0
        self._weights = weights
        self._out = sys.stderr if out is None else out
        self._began = self._said = time.monotonic()

    def step(self, what: str) -> None:
        """One more is done."""
        self.done += 1
        now, total = time.monotonic(), len(self._weights)
        last = self.done == total
        if not self._out.isatty() and not last and now - self._said < SECONDS:
            return
        self._said = now
        full = WIDTH * self.done // total
        left = (now - self._began) / sum(self._weights[: self.done]) * sum(self._weights[self.done :])
        line = f"[{'#' * full}{'.' * (WIDTH - full)}] {self.done}/{total} {what}, {left / 60:.1f} min left"
        self._out.write(f"\r{line:<100}" + ("\n" if last else "") if self._out.isatty() else line + "\n")
        self._out.flush()
