"""The rows of all full-attention layers of one cache, how many there are, and which tokens they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..errors import CannotCompress, Unsupported
from ..layout import MOST_TOKENS_PER_BLOCK
from ..ranges import Range
from .arena import Arena, QueryRing, capacity_for, check_tensor
from .layer import ChunkKVLayer
from .place import place_at

if TYPE_CHECKING:
    from .registered import Registered


class Store:
    """Memory, lengths and history of a cache.

    Attributes:
        stride: layers of the model, full or not: layer n of sequence b is number b * stride + n to the daemon.
        layers: the full-attention ones.
        arena: keys and values; None before the first rows.
        ring: query rows; None where none are wanted.
        q_heads, scale, softcap: of the model's attention, as it was called.
        done: the prompt was compressed, or need not be.
        since: tokens that had been seen at the last compression.
        positions: for each sequence and layer number, ranges of the positions that the rows had then.
        broken: why the rows are not to be used any more.
        registered: what the daemon knows of it now.
    """

    def __init__(self, full: Sequence[int], stride: int) -> None:
        self.stride = stride
        self.layers = [ChunkKVLayer(self, number, place) for place, number in enumerate(full)]
        self.by_number = {layer.number: layer for layer in self.layers}
        self.arena: Arena | None = None
        self.ring: QueryRing | None = None
        self.q_heads = 0
        self.scale: float | None = None
        self.softcap: float | None = None
        self.registered: Registered | None = None
        self.broken = ""
        self._forget()

    def _forget(self) -> None:
        self.done = False
        self.since = 0
        self.positions: list[dict[int, Sequence[Range]]] = []

    @property
    def seen(self) -> int:
        """Tokens so far."""
        return self.layers[0].seen

    @property
    def batch(self) -> int:
        """Sequences."""
        return 0 if self.arena is None else int(self.arena.keys[0].shape[0])

    def check_whole(self) -> None:
        """CannotCompress where rows were lost: nothing may go on with them."""
        if self.broken:
            raise CannotCompress(f"this cache lost its rows: {self.broken}")

    def reserve(self, layer: ChunkKVLayer, key: torch.Tensor, value: torch.Tensor) -> Arena:
        """Make room for new rows of a layer, in larger memory if need be."""
        self.check_whole()
        needed = layer.length + key.shape[2]
        if self.arena is None:
            check_tensor(key)
            self.arena = Arena(place_at(key.device), len(self.layers), key.shape, value.shape, key.dtype,
                               capacity_for(needed))
        if not self.arena.fits(key, value):
            raise Unsupported(f"layer {layer.number} has keys of shape {list(key.shape)} and type {key.dtype} on "
                              f"{key.device}, other than the layers or rows before it")
        if needed > self.arena.capacity:
            # doubled, but for the last step to the most that there may be
            capacity = max(min(2 * self.arena.capacity, MOST_TOKENS_PER_BLOCK), capacity_for(needed))
            self.resize(capacity)
        return self.arena

    def resize(self, capacity: int) -> None:
        """Move the rows to memory of another size; the daemon forgets the old."""
        assert self.arena is not None
        self.release()
        self.arena = self.arena.resized(capacity, [layer.length for layer in self.layers])

    def record(self, layer: ChunkKVLayer, query: torch.Tensor, rows: int, keep_all: bool) -> None:
        """Keep the newest query rows of a layer."""
        if self.ring is None:
            assert self.arena is not None
            room = capacity_for(query.shape[2]) if keep_all else rows
            self.ring = QueryRing(self.arena.place, len(self.layers), query, room, keep_all)
        self.ring.write(layer.place, query)

    def forget_queries(self) -> None:
        """No more query rows are wanted."""
        if self.ring is not None:
            self.release()
            self.ring.close()
            self.ring = None

    def reset(self) -> None:
        """A layer was reset; when all were, the next prompt begins."""
        if not any(layer.seen for layer in self.layers):
            self._forget()
            self.forget_queries()

    def ranges(self, sequence: int, layer: ChunkKVLayer) -> list[Range]:
        """Positions of the rows of now."""
        if not self.positions:
            return [(0, layer.seen)] if layer.seen else []
        ranges = list(self.positions[sequence][layer.number])
        if layer.seen > self.since:
            if ranges and ranges[-1][1] == self.since:
                ranges[-1] = (ranges[-1][0], layer.seen)
            else:
                ranges.append((self.since, layer.seen))
        return ranges

    def release(self) -> None:
        """Let the daemon forget the memory."""
        if self.registered is not None:
            self.registered.release()
            self.registered = None
