"""Questions through the model and the daemon: one full pass for each, all methods and budgets on it.

"visible": the compressor has seen all of the prompt but its last token, which runs again on the compressed cache,
so that the first token of the answer depends on what was kept, too. "hidden": only the context is compressed, and
the question runs on what is left of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

import chunkkv
from chunkkv.text import chunk_lengths

from . import expense, haystack, methods, tasks
from .progress import Progress
from .results import Cell, Record, Store
from .selector import Kept, Selector, jaccard_of_neighbours
from .suites import Job

if TYPE_CHECKING:
    from .model import Model, Prefill

SLACK = 160  # rows of a prompt beside its haystack: the planted sentence, the question
BATCH = 16  # kept sets that are answered on at once


def budget_of(cell: Cell, rows: int) -> int:
    """Rows to keep of so many."""
    if cell.rows is not None:
        return min(cell.rows, rows)
    assert cell.keep is not None
    return max(1, rows * chunkkv.millionths(cell.keep) // 1_000_000)


def run_name(model: str, digest: str, dtype: str, texts: Sequence[str], seed: int) -> str:
    """What a record says of the run that it comes from."""
    prose = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]
    return f"{model} {digest} {dtype} texts {prose} seed {seed}"


class Runner:
    """Answers the questions of jobs that a store does not have yet."""

    def __init__(self, model: Model, client: chunkkv.Client, texts: list[str], seed: int, store: Store) -> None:
        self.model, self.client, self.texts, self.seed, self.store = model, client, texts, seed, store
        self.run_name = run_name(model.name, model.digest, model.dtype, texts, seed)

    def run(self, jobs: Sequence[Job]) -> None:
        """Answer them all; says first how long that may take.

        Raises:
            ValueError: the model has fewer positions than a prompt.
        """
        longest = max(job.context for job in jobs)
        if (positions := self.model.positions) is not None and longest + SLACK > positions:
            raise ValueError(f"--context {longest}: {self.model.name} has {positions} positions "
                             f"(max_position_embeddings), {SLACK} of them set aside for the question and its answer: "
                             f"at most {positions - SLACK}")
        open_ = [(job, i, cells) for job, every in [(job, job.cells()) for job in jobs] for i in range(job.n)
                 if (cells := [cell for cell in every if not self.store.has(cell, self.run_name, i)])]
        if not open_:
            return
        weights = [expense.passes(cells) for _, _, cells in open_]
        print(f"chunkkv-eval: {len(open_)} of {sum(job.n for job in jobs)} questions to answer, about "
              f"{sum(weights) * self._pass_seconds() / 60:.1f} minutes", file=sys.stderr, flush=True)
        progress = Progress(weights)
        selector: Selector | None = None
        room = (0, 0)
        try:
            for job, i, cells in open_:
                tokens = job.context + SLACK
                wanted = tokens, tokens if any(cell.method == "h2o" for cell in cells) else methods.WINDOW
                if selector is None or any(need > there for need, there in zip(wanted, room, strict=True)):
                    if selector is not None:
                        selector.close()
                    room = max(room[0], wanted[0]), max(room[1], wanted[1])
                    selector = Selector(self.client, self.model.shape, *room)
                self.store.add(self._answer(selector, job, i, cells))
                progress.step(f"{job.task} {job.context} {job.question}")
        except BaseException:
            # it may come amid a request that still uses the cache; the end of the session frees all of it
            if selector is not None:
                with contextlib.suppress(chunkkv.ChunkkvError):
                    selector.close()
            raise
        if selector is not None:
            selector.close()

    def _pass_seconds(self) -> float:
        """How long the model takes for a pass of expense.PASS tokens, the faster of two."""
        tokens = self.model.encode(self.texts[0][: expense.PASS * haystack.CHARACTERS_PER_TOKEN])[: expense.PASS]
        times = []
        for _ in range(2):
            began = time.monotonic()
            self.model.prefill(tokens, 0, 1)
            times.append(time.monotonic() - began)
        return min(times)

    def _answer(self, selector: Selector, job: Job, index: int, cells: Sequence[Cell]) -> list[Record]:
        sample = tasks.make(job.task, self.texts, job.context, self.seed, index, self.model.encode, self.model.prefix)
        prompt = sample.context + sample.question
        rows = len(sample.context) if job.question == "hidden" else len(prompt) - 1
        every = any(cell.method == "h2o" for cell in cells)
        first = 0 if every else max(0, rows - methods.WINDOW)
        tokens = prompt + sample.answer[:-1]
        prefill = self.model.prefill(tokens, first, len(sample.answer))
        ends = any(cell.method in methods.NEEDS_ENDS for cell in cells)
        selector.load(*self.model.rows_of(prefill, rows, rows if every else methods.WINDOW),
                      chunk_lengths(self.model.tokenizer, prompt[:rows]) if ends else None)
        records = [self._record(cell, index, sample, rows, prefill.logits, None, prefill)
                   for cell in cells if cell.method == "full"]
        asked = [cell for cell in cells if cell.method != "full"]
        for begin in range(0, len(asked), BATCH):
            some = asked[begin : begin + BATCH]
            kept = [selector.keep(cell.method, budget_of(cell, rows)) for cell in some]
            logits = self.model.replay(prefill, rows, kept, tokens[rows:])[:, -len(sample.answer) :]
            records += [self._record(cell, index, sample, rows, logits[i], kept[i], prefill)
                        for i, cell in enumerate(some)]
        return records

    def _record(self, cell: Cell, index: int, sample: tasks.Sample, rows: int, logits: torch.Tensor,
                kept: Kept | None, prefill: Prefill) -> Record:
        answer = torch.tensor(sample.answer)
        hits = logits.argmax(-1) == answer
        sizes = [len(chosen) for layer in kept or [] for chosen in layer]
        return Record(
            cell, self.run_name, index, rows, sum(sizes) / len(sizes) if sizes else rows, round(sample.depth, 4),
            bool(hits.all()), float(hits.float().mean()), float(torch.nn.functional.cross_entropy(logits, answer)),
            None if kept is None else jaccard_of_neighbours(kept, rows),
            self.model.attention_error(prefill, rows, kept) if kept is not None and cell.task == "perplexity" else None)
