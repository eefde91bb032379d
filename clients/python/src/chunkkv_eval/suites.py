"""Jobs, and lists of them by name: what `make eval-quick` and `make eval` measure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .methods import METHODS, MIXES
from .results import Cell


@dataclass(frozen=True)
class Job:
    """Questions of one kind.

    Attributes:
        task: one of tasks.TASKS.
        context: tokens of the haystack.
        n: how many questions.
        methods: names.
        keep: fractions to keep.
        rows: numbers of rows to keep.
        question: "visible" or "hidden".
    """

    task: str
    context: int
    n: int
    methods: tuple[str, ...]
    keep: tuple[float, ...] = ()
    rows: tuple[int, ...] = ()
    question: str = "visible"

    def cells(self) -> list[Cell]:
        """One for each method and budget; the full cache has one, without a budget."""
        plain = Cell(self.task, self.context, self.question, "full", 1.0, None)
        budgets: list[tuple[float | None, int | None]] = [*((k, None) for k in self.keep),
                                                          *((None, r) for r in self.rows)]
        return [plain] * ("full" in self.methods) + [
            replace(plain, method=name, keep=keep, rows=rows)
            for keep, rows in budgets for name in self.methods if name != "full"]


RIVALS = ("full", "default", "vote", "chunkkv", "snapkv", "snapkv-max")
VOTES = ("full", "snapkv", "snapkv-max", "default", "vote", "vote-each", "vote-leak")

SUITES: dict[str, list[Job]] = {
    "quick": [
        Job("number", 1024, 40, METHODS, keep=(0.1, 0.2)),
        Job("fact", 512, 40, METHODS, rows=(64, 128)),
        Job("numrev", 512, 40, METHODS, rows=(64,)),
        Job("icl", 512, 40, METHODS, rows=(64, 128)),
        Job("number", 512, 20, RIVALS, keep=(0.1,)),
        Job("number", 2048, 20, RIVALS, keep=(0.1,)),
        Job("perplexity", 1024, 8, METHODS, keep=(0.1, 0.2)),
    ],
    "paper": [
        Job("number", 1024, 100, (*METHODS, "snapkv-max7", "snapkv-w8", "chunkkv-w8"), keep=(0.05, 0.1, 0.2, 0.3)),
    ],
    "vote": [
        Job("fact", 512, 100, (*METHODS, "vote-each", "vote-leak"), rows=(64, 128)),
        Job("numrev", 512, 100, (*METHODS, "vote-each", "vote-leak"), rows=(64, 128)),
        Job("icl", 512, 100, (*METHODS, "vote-each", "vote-leak"), rows=(64, 128)),
    ],
    "plain": [
        Job("perplexity", 1024, 24, (*METHODS, "vote-each", "vote-leak", "vote-own", *MIXES), keep=(0.1, 0.2)),
    ],
    "long": [
        Job("number", 2048, 40, METHODS, rows=(128, 256)),
        Job("number", 4096, 20, VOTES, rows=(128, 256)),
    ],
    "hidden": [
        Job("number", 512, 40, METHODS, rows=(64, 128), question="hidden"),
    ],
    "other-model": [
        Job("number", 1024, 100, VOTES, keep=(0.1, 0.2)),
        Job("fact", 512, 100, VOTES, rows=(64, 128)),
        Job("numrev", 512, 100, VOTES, rows=(64, 128)),
        Job("icl", 512, 100, VOTES, rows=(64, 128)),
    ],
}
