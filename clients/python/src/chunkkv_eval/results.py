"""Records of single answers, kept in a file as they come, and what they add up to.

A record is one method's answer to one question. The file has one JSON object a line; a run that was cut off goes on
where it stood, as what is there is not asked again. A file may hold answers of several runs (other models, seeds, more
questions): what is counted is what one run asks for. Differences between methods are paired: both answered the same
questions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cell:
    """What is compared: one task and length, one method, one budget.

    Attributes:
        task: its name.
        context: tokens of the haystack.
        question: "visible" to the compressor, or "hidden" from it.
        method: its name.
        keep: fraction of the rows to keep; None where rows are given.
        rows: rows to keep; None where a fraction is given.
    """

    task: str
    context: int
    question: str
    method: str
    keep: float | None
    rows: int | None

    @property
    def budget(self) -> str:
        """The budget in words."""
        return f"{self.rows} rows" if self.keep is None else f"{100 * self.keep:g} %"


@dataclass(frozen=True)
class Record:
    """One answer.

    Attributes:
        cell: where it belongs.
        run: model with a digest of its files, element type, texts and seed: records of different runs are not mixed.
        index: of the question.
        length: rows before compression.
        kept: rows kept, mean over layers and heads.
        depth: of the answer in the context.
        exact: is every token of the answer the most likely one?
        token_accuracy: the part of them that are.
        nll: mean negative log-likelihood of the answer's tokens, in nats.
        jaccard: of the kept sets of adjacent layers; None without compression.
        attention_error: of the rows after the prompt, relative; None where it was not measured.
    """

    cell: Cell
    run: str
    index: int
    length: int
    kept: float
    depth: float
    exact: bool
    token_accuracy: float
    nll: float
    jaccard: float | None = None
    attention_error: float | None = None


WHOLE = 1 << 22  # bytes of a file that are read to the last one
PIECES, PIECE = 16, 1 << 16  # of a longer file: so many pieces of so many bytes, evenly spread to its end
MODEL_FILES = ("config.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "*.safetensors", "*.bin", "*.gguf")


def digest_of(model: Path) -> str:
    """What tells a model from others of its name: sizes and contents of its files, long ones by pieces of them."""
    files = [model] if model.is_file() else sorted(
        {path for kind in MODEL_FILES for path in model.glob(kind) if path.is_file()})
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name if model.is_dir() else ''}\0{size}\0".encode())
        with path.open("rb") as file:
            if size <= WHOLE:
                digest.update(file.read())
            else:
                for i in range(PIECES):
                    file.seek((size - PIECE) * i // (PIECES - 1))
                    digest.update(file.read(PIECE))
    return digest.hexdigest()[:12]


class Store:
    """The records of a file; new ones are appended and written at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: list[Record] = []
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]
            if len(whole) < len(lines):  # the run was cut off within a line
                path.write_text("".join(whole))
            self.records = [self._read(number, line) for number, line in enumerate(whole, 1)]
        self._there = {(r.cell, r.run, r.index) for r in self.records}

    def _read(self, number: int, line: str) -> Record:
        try:
            plain = json.loads(line)
            return Record(**{**plain, "cell": Cell(**plain["cell"])})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{self.path}, line {number}: not an answer of chunkkv-eval ({error})") from error

    def has(self, cell: Cell, run: str, index: int) -> bool:
        """Was this answered already?"""
        return (cell, run, index) in self._there

    def of(self, run: str, asked: Sequence[tuple[Sequence[Cell], int]]) -> list[Record]:
        """The records of a run, of so many questions of those cells, by cells and then questions, each once."""
        there = {(r.cell, r.index): r for r in self.records if r.run == run}
        wanted = dict.fromkeys((cell, i) for cells, n in asked for cell in cells for i in range(n))
        return [there[one] for one in wanted if one in there]

    def others(self, run: str) -> list[str]:
        """The other runs that the file has records of."""
        return [name for name in dict.fromkeys(r.run for r in self.records) if name != run]

    def add(self, records: Sequence[Record]) -> None:
        """Append, and write."""
        with self.path.open("a") as file:
            file.write("".join(json.dumps(asdict(record)) + "\n" for record in records))
        self.records += records
        self._there |= {(r.cell, r.run, r.index) for r in records}


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and its standard error (0 for one value)."""
    n = len(values)
    mean = math.fsum(values) / n
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n) if n > 1 else 0.0


def by_cell(records: Iterable[Record]) -> dict[Cell, list[Record]]:
    """Records of each cell in the order of their questions; cells in the order in which they first come."""
    found: dict[Cell, list[Record]] = {}
    for record in records:
        found.setdefault(record.cell, []).append(record)
    return {cell: sorted(own, key=lambda r: (r.run, r.index)) for cell, own in found.items()}


def cells(records: Iterable[Record]) -> dict[str, list[dict[str, Any]]]:
    """What --json writes; fractions are 0 to 1."""
    out = []
    for cell, own in by_cell(records).items():
        exact, error = mean_and_error([r.exact for r in own])
        out.append({**asdict(cell), "n": len(own), "exact": exact, "exact_se": error,
                    "token_accuracy": mean_and_error([r.token_accuracy for r in own])[0],
                    "nll": mean_and_error([r.nll for r in own])[0]})
    return {"cells": out}


def paired(one: Sequence[Record], other: Sequence[Record], value: str) -> tuple[float, float, int]:
    """Mean of one minus other over the questions that both answered, its standard error, and how many those are.

    Raises:
        ValueError: they have none in common.
    """
    theirs = {(r.run, r.index): float(getattr(r, value)) for r in other}
    both = [float(getattr(r, value)) - theirs[r.run, r.index] for r in one if (r.run, r.index) in theirs]
    if not both:
        raise ValueError("no question was answered by both")
    return (*mean_and_error(both), len(both))
