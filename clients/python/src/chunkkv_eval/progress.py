"""A progress bar of one line on a terminal; elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 30
SECONDS = 60.0  # between lines where there is no terminal


class Progress:
    """How many of how many are done, and how long the rest may take."""

    def __init__(self, total: int, out: TextIO | None = None) -> None:
        self.total, self.done = total, 0
        self._out = sys.stderr if out is None else out
        self._began = self._said = time.monotonic()

    def step(self, what: str) -> None:
        """One more is done."""
        self.done += 1
        now = time.monotonic()
        last = self.done == self.total
        if not self._out.isatty() and not last and now - self._said < SECONDS:
            return
        self._said = now
        full = WIDTH * self.done // max(1, self.total)
        left = (now - self._began) / self.done * (self.total - self.done)
        line = f"[{'#' * full}{'.' * (WIDTH - full)}] {self.done}/{self.total} {what}, {left / 60:.1f} min left"
        self._out.write(f"\r{line:<100}" + ("\n" if last else "") if self._out.isatty() else line + "\n")
        self._out.flush()
