"""One cache for the tests of methods: f32, a few layers, blocks in no order, room for the queries of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import chunkkv
from chunkkv import Policy

F32 = NDArray[np.float32]
LAYERS, HEADS, Q_HEADS, DIM, BLOCK, MOST_ROWS = 6, 2, 4, 8, 8, 560


class Bench:
    """The cache, its numbers before a request, and requests for it."""

    def __init__(self, client: chunkkv.Client) -> None:
        self.client = client
        shape = (LAYERS, MOST_ROWS // BLOCK, BLOCK, HEADS, DIM)
        plane, queries = 4 * int(np.prod(shape)), 4 * LAYERS * MOST_ROWS * Q_HEADS * DIM
        self.memory = chunkkv.SharedMemory.allocate(2 * plane + queries)
        self.region = client.register_region(self.memory)
        self.planes = [self.memory.numpy(shape, "f32", i * plane) for i in (0, 1)]
        self.queries = self.memory.numpy((LAYERS, MOST_ROWS, Q_HEADS, DIM), "f32", 2 * plane)
        self.table = np.random.default_rng(3).permutation(shape[1])
        self.cache = client.register_cache(chunkkv.CacheLayout.of_arrays(
            [self.planes[0]], [self.planes[1]], axes="lbthd", q_heads=Q_HEADS, region=self.region))

    def fill(self, seed: int, rows: int) -> None:
        rng = np.random.default_rng(seed)
        for plane in (*self.planes, self.queries):
            plane[...] = rng.standard_normal(plane.shape, np.float32)
        self.before = [plane.copy() for plane in self.planes]
        self.rows = rows

    def of(self, plane: F32) -> F32:
        """Rows in order: [layer][row][head][dim]."""
        return plane[:, self.table].reshape(LAYERS, -1, HEADS, DIM)[:, : self.rows]

    def newest(self, count: int) -> F32:
        return self.queries[:, :count]

    def request(self, policy: Policy | Sequence[Policy], query_rows: int = 64, **other: Any) -> dict[str, Any]:
        count = min(query_rows, self.rows)
        return {"rows": self.rows, "table": self.table[: -(-self.rows // BLOCK)], "policy": policy, "keep_ratio": 0.3,
                "queries": chunkkv.Queries.of_array(self.newest(count), region=self.region), **other}
