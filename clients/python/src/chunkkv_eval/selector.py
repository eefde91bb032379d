"""Kept sets, by the daemon: keys, values and queries of a prompt lie in shared memory, and every method is asked about
them.

Nothing is selected here. Sets that all KV heads share are planned; where heads differ the daemon copies the kept
rows to blocks of their own, and the source stays as it was, so that one prefill serves all methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import chunkkv

from . import methods

BLOCK = 64  # rows
Rows = NDArray[np.int64]
Kept = list[list[Rows]]  # by layer of the cache and KV head, ascending


@dataclass(frozen=True)
class Shape:
    """Sizes of a model's cache, as far as its layers attend to all rows.

    Attributes:
        layers: their numbers, ascending.
        kv_heads: of each.
        q_heads: of each.
        head_dim: of keys and values.
        dtype: "bf16", "f16" or "f32".
        scale: factor of the logits; None = 1/sqrt(head_dim).
    """

    layers: tuple[int, ...]
    kv_heads: int
    q_heads: int
    head_dim: int
    dtype: str
    scale: float | None = None


class Selector:
    """The cache of one prompt at a time, registered with the daemon once.

    Args:
        client: a session.
        shape: of the cache.
        tokens: rows that there is room for.
        queries: query rows that there is room for.
    """

    def __init__(self, client: chunkkv.Client, shape: Shape, tokens: int, queries: int = methods.WINDOW) -> None:
        self.client, self.shape, self.tokens = client, shape, tokens
        self._blocks = -(-tokens // BLOCK)
        planes = (len(shape.layers), 2 * self._blocks, BLOCK, shape.kv_heads, shape.head_dim)
        rows = (len(shape.layers), queries, shape.q_heads, shape.head_dim)
        width = chunkkv.element_type(shape.dtype).itemsize
        plane, query = (-(-int(np.prod(sizes)) * width // 4096) * 4096 for sizes in (planes, rows))
        self.memory = chunkkv.SharedMemory.allocate(2 * plane + query, name="chunkkv-eval")
        self._planes = [self.memory.numpy(planes, shape.dtype, i * plane) for i in (0, 1)]
        self._queries = self.memory.numpy(rows, shape.dtype, 2 * plane)
        self._region = client.register_region(self.memory)
        self._cache = client.register_cache(chunkkv.CacheLayout.of_arrays(
            list(self._planes[0]), list(self._planes[1]), axes="bthd", q_heads=shape.q_heads, region=self._region,
            layers=shape.layers, dtype=shape.dtype))
        self.rows = self._given = 0
        self._lengths: Sequence[int] | None = None

    def load(self, keys: Sequence[NDArray[np.generic]], values: Sequence[NDArray[np.generic]],
             queries: Sequence[NDArray[np.generic]], lengths: Sequence[int] | None = None) -> None:
        """Put a prompt in.

        Args:
            keys: for each layer [rows][kv_heads][head_dim], in the type of the shape (bf16 as its bits).
            values: likewise.
            queries: for each layer [rows][q_heads][head_dim], the newest rows, newest last.
            lengths: rows of its sentences, of methods that ask for them.
        """
        self.rows, self._given = len(keys[0]), len(queries[0])
        room = self._queries.shape[1]
        if self.rows > self.tokens or self._given > room:
            raise ValueError(f"{self.rows} rows and {self._given} query rows do not fit into {self.tokens} and {room}")
        for plane, source in zip(self._planes, (keys, values), strict=True):
            flat = plane.reshape(len(self.shape.layers), -1, self.shape.kv_heads, self.shape.head_dim)
            for layer, rows in enumerate(source):
                flat[layer, : self.rows] = rows
        for layer, rows in enumerate(queries):
            self._queries[layer, room - self._given :] = rows
        self._lengths = lengths

    def keep(self, method: str, budget: int) -> Kept:
        """The rows that a method keeps of what was loaded, at most `budget` of each layer on average."""
        if method in methods.MIXES:
            return self._keep_mixed(methods.MIXES[method], budget)
        ask = methods.request(method, self.shape.layers, self.rows, budget, self.shape.scale)
        wanted = self.rows if ask.all_queries else min(self._given, methods.WINDOW)
        if wanted > self._given:
            raise ValueError(f"{method} wants the queries of all {self.rows} rows, has {self._given}")
        queries, blocks = self._newest(wanted), -(-self.rows // BLOCK)
        run = self.client.copy_out if ask.apart else self.client.plan
        answer = run(self._cache, rows=self.rows, policy=ask.policy, queries=queries, table=range(blocks),
                     protect=self._voted(*ask.first) if ask.first else (),
                     destination=range(self._blocks, self._blocks + blocks) if ask.apart else None,
                     chunk_lengths=self._lengths if method in methods.NEEDS_ENDS else None, **ask.budget)
        return self._sets(answer)

    def _keep_mixed(self, part: float, budget: int) -> Kept:
        """The voted score and each layer's own come from the daemon, their mix goes back to it."""
        voted, own = methods.mixed(self.shape.scale)
        ask: Any = {"rows": self.rows, "table": range(-(-self.rows // BLOCK)), "max_tokens": budget,
                    "score_kind": "rows", "queries": self._newest(min(self._given, methods.WINDOW))}
        scores = [self.client.plan(self._cache, policy=policy, scores_out=True, **ask).groups[0].scores
                  for policy in (voted, own)]
        if scores[0] is None or scores[1] is None:  # all rows are kept, nothing was scored
            return self._sets(self.client.plan(self._cache, policy=own, **ask))
        mix = part * scores[0].reshape(1, -1) + (1 - part) * scores[1]
        return self._sets(self.client.plan(self._cache, policy=own, scores_in=mix.astype(np.float32), **ask))

    def _voted(self, policy: chunkkv.Policy, budget: int) -> Sequence[tuple[int, int]]:
        """The rows that all layers agree on."""
        answer = self.client.plan(self._cache, rows=self.rows, table=range(-(-self.rows // BLOCK)), policy=policy,
                                  queries=self._newest(min(self._given, methods.WINDOW)), max_tokens=budget)
        dropped = answer.groups[0].kept_all == chunkkv.KeptAll.DROPPED
        return answer.layers[self.shape.layers[0]].kept if dropped else ()

    def _newest(self, rows: int) -> chunkkv.Queries:
        return chunkkv.Queries.of_array(self._queries[:, self._queries.shape[1] - rows :], region=self._region,
                                        dtype=self.shape.dtype)

    def _sets(self, answer: chunkkv.Answer) -> Kept:
        return [[answer.layers[number].rows_of(head).astype(np.int64) for head in range(self.shape.kv_heads)]
                for number in self.shape.layers]

    def close(self) -> None:
        """Unregister, and let the memory go."""
        self.client.unregister_cache(self._cache)
        self.client.unregister_region(self._region)
        self._planes, self._queries = [], np.zeros(0)
        self.memory.close()


def jaccard_of_neighbours(kept: Kept, rows: int) -> float:
    """Rows that adjacent layers share over those that one has, mean over KV heads and layers; 1 for one layer."""
    if len(kept) < 2:
        return 1.0
    masks = np.zeros((len(kept), len(kept[0]), rows), bool)
    for layer, heads in enumerate(kept):
        for head, chosen in enumerate(heads):
            masks[layer, head, chosen] = True
    both, either = masks[1:] & masks[:-1], masks[1:] | masks[:-1]
    return float((both.sum(-1) / np.maximum(either.sum(-1), 1)).mean())
