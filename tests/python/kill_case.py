"""A cache of one seed, jobs on it, and what must have become of it: for kill_matrix.py."""

from __future__ import annotations

from typing import Any

import numpy as np

import chunkkv
from chunkkv.wire import CacheState, Phase

LAYERS, ROWS, BLOCK, HEADS, DIM = 2, 4096, 64, 2, 64
BLOCKS = 2 * ROWS // BLOCK  # half of them for copies
QUERY_ROWS = 32
KINDS = ("scored", "given", "each", "hold", "copy")


class Lost(Exception):
    """A cache is not what it is said to be, or a call failed that had no reason to."""


class Case:
    """A cache of one seed, in memory that engines and daemons come to and leave."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        half = 2 * LAYERS * ROWS * HEADS * DIM * 4
        self.memory = chunkkv.SharedMemory.allocate(2 * half + LAYERS * HEADS * QUERY_ROWS * DIM * 4)
        self.planes = self.memory.numpy((2, LAYERS, BLOCKS, BLOCK, HEADS, DIM), np.float32)
        self.queries = self.memory.numpy((LAYERS, QUERY_ROWS, HEADS, DIM), np.float32, 2 * half)
        self.before = rng.normal(size=(2, LAYERS, ROWS, HEADS, DIM)).astype(np.float32)
        self.queries[...] = rng.normal(size=self.queries.shape)
        blocks = rng.permutation(BLOCKS)
        self.table, self.spare = blocks[: BLOCKS // 2], blocks[BLOCKS // 2 :]
        self.generation = int(rng.integers(1, 1000))
        starts = np.flatnonzero(rng.random(ROWS // 32) < 0.5) * 32
        self.given = [(int(first), int(first) + int(rng.integers(1, 33))) for first in starts] or [(0, 5)]
        self.expected: dict[str, list[list[Any]]] = {}
        self.fill()

    def fill(self) -> None:
        self.planes[:, :, self.table] = self.before.reshape(2, LAYERS, -1, BLOCK, HEADS, DIM)
        self.planes[:, :, self.spare] = 0

    def close(self) -> None:
        del self.planes, self.queries
        self.memory.close()

    def register(self, client: chunkkv.Client) -> Any:
        region = client.register_region(self.memory)
        layout = chunkkv.CacheLayout.of_arrays(list(self.planes[0]), list(self.planes[1]), axes="bthd", q_heads=HEADS,
                                               region=region)
        return client.register_cache(layout), chunkkv.Queries.of_array(self.queries, region=region)

    def _words(self, kind: str, queries: Any) -> dict[str, Any]:
        words: dict[str, Any] = {"rows": ROWS, "table": self.table, "timeout": 30.0}
        if kind == "given":
            return {**words, "keep": self.given}
        if kind == "each":
            words["policy"] = chunkkv.Policy(heads="each")
        return {**words, "queries": queries, "keep_ratio": 0.5}

    def learn(self, client: chunkkv.Client) -> None:
        """What each kind of job keeps, by plans, and a copy, of a daemon that nobody kills."""
        cache, queries = self.register(client)
        for kind in KINDS:
            words = self._words(kind, queries)
            if kind == "each":  # there is no plan of it
                self.expected[kind] = kept_rows(client.copy_out(cache, destination=self.spare, **words))
            else:
                self.expected[kind] = kept_rows(client.plan(cache, **words))

    def ask(self, client: chunkkv.Client, at: Any, kind: str) -> Any:
        cache, queries = at
        words = self._words(kind, queries)
        if kind == "copy":
            return client.copy_out(cache, destination=self.spare, **words)
        if kind == "hold":
            return client.compress(cache, hold=True, generation=self.generation, **words).commit()
        return client.compress(cache, generation=self.generation, **words)

    def _rows_at(self, table: Any) -> Any:
        return self.planes[:, :, table].reshape(2, LAYERS, ROWS, HEADS, DIM)

    def is_old(self) -> bool:
        return np.array_equal(self._rows_at(self.table), self.before)

    def is_new(self, kind: str) -> bool:
        """Kept rows lie in front, and where the source of a copy was it still is."""
        now = self._rows_at(self.spare if kind == "copy" else self.table)
        for n, layer in enumerate(self.expected[kind]):
            for head, rows in enumerate(layer):
                if not np.array_equal(now[:, n, : len(rows), head], self.before[:, n, rows, head]):
                    return False
        return kind != "copy" or self.is_old()

    def check(self, kind: str, answer: Any) -> None:
        """An answer says done: it is."""
        if kept_rows(answer) != self.expected[kind]:
            raise Lost(f"{kind}: other rows are kept than a daemon keeps that lives")
        if kind != "copy" and (answer.phase, answer.cache, answer.generation) != (
                Phase.DONE, CacheState.COMMITTED, self.generation):
            raise Lost(f"{kind}: {answer.phase}, {answer.cache}, generation {answer.generation}")
        if not self.is_new(kind):
            raise Lost(f"{kind}: said to be done, and is not")


def kept_rows(answer: Any) -> list[list[Any]]:
    """[layer][head] -> rows."""
    rows = []
    for layer in answer.layers.values():
        heads = layer.heads or dict.fromkeys(range(HEADS), layer.kept)
        rows.append([[int(row) for row in chunkkv.rows_from_ranges(heads[head])] for head in range(HEADS)])
    return rows


def run(case: Case, client: chunkkv.Client, at: Any, kind: str) -> str:
    """One job. Return: done, clean, or repairable with kind and number of the request; all of it looked at."""
    try:
        answer = case.ask(client, at, kind)
    except chunkkv.CoreDied as error:
        if error.cache == CacheState.CLEAN and case.is_old():
            return "clean"
        if error.cache == CacheState.TORN_REPAIRABLE and not client._link.roll_forward:
            return f"repairable {kind} {error.request_id}"
        raise Lost(f"{kind}: {error}, old: {case.is_old()}, new: {case.is_new(kind)}") from error
    case.check(kind, answer)
    return "rolled forward" if answer.repaired else "done"


def last_job(case: Case, client: chunkkv.Client, at: Any) -> None:
    """All goes on as ever."""
    case.fill()
    case.check("scored", case.ask(client, at, "scored"))
