"""The memory of one cache: keys and values of all its layers, and a ring of query rows."""

from __future__ import annotations

import math

import torch

from ..errors import Unsupported
from ..layout import MOST_TOKENS_PER_BLOCK
from .place import Place

PAGE = 4096  # bytes: planes begin on pages of their own
STEP = 64  # rows: capacities are multiples
HEADROOM = 256  # rows that fit before the first growth
TYPES = (torch.float32, torch.float16, torch.bfloat16)


def _aligned(size: int) -> int:
    return -(-size // PAGE) * PAGE


class Arena:
    """Keys and values of some layers of equal shape, each [batch, kv_heads, capacity, dim], in one piece.

    Attributes:
        keys, values: one tensor for each layer, views of the memory.
        capacity: rows that there is room for.
        memory: what it all lies in.
        place: where that is.
    """

    def __init__(self, place: Place, layers: int, key: torch.Size, value: torch.Size, dtype: torch.dtype,
                 capacity: int) -> None:
        """Room for `capacity` rows; of `key` and `value` all but the third size counts."""
        if capacity > MOST_TOKENS_PER_BLOCK:
            raise Unsupported(f"a sequence of {capacity} rows: this cache holds at most {MOST_TOKENS_PER_BLOCK}")
        self.place, self.capacity, self.dtype, self._key, self._value = place, capacity, dtype, key, value
        sizes = [_aligned(math.prod((*shape[:2], capacity, shape[3])) * dtype.itemsize) for shape in (key, value)]
        self.memory = place.allocate(layers * sum(sizes), "chunkkv-transformers")
        at = [i * sum(sizes) for i in range(layers)]
        self.keys = [self.memory.tensor((*key[:2], capacity, key[3]), dtype, offset) for offset in at]
        self.values = [self.memory.tensor((*value[:2], capacity, value[3]), dtype, offset + sizes[0]) for offset in at]

    def fits(self, key: torch.Tensor, value: torch.Tensor) -> bool:
        """Are these rows of a layer of this shape and type, and on this device?"""
        return (key.dtype == value.dtype == self.dtype and key.device == value.device == self.keys[0].device
                and all(tuple(t.shape[i] for i in (0, 1, 3)) == tuple(shape[i] for i in (0, 1, 3))
                        for t, shape in ((key, self._key), (value, self._value))))

    def resized(self, capacity: int, lengths: list[int]) -> Arena:
        """Another one with the first rows of every layer; this one is closed."""
        other = Arena(self.place, len(self.keys), self._key, self._value, self.dtype, capacity)
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            for source, target, rows in zip(mine, theirs, lengths, strict=True):
                target[:, :, :rows] = source[:, :, :rows]
        self.close()
        return other

    def close(self) -> None:
        """Let the memory go; tensors that others still hold keep their part of it alive."""
        self.keys, self.values = [], []
        self.memory.close()


class QueryRing:
    """The newest query rows of some layers, [batch, layers, rows, q_heads, dim], the oldest overwritten first.

    Attributes:
        all: grows instead, and keeps every row.
        tensor: the view of the memory.
    """

    def __init__(self, place: Place, layers: int, query: torch.Tensor, rows: int, keep_all: bool = False) -> None:
        """Room for `rows` rows like those of a layer's `query`, [batch, q_heads, tokens, dim]."""
        self.all = keep_all
        self._place, self._counts = place, [0] * layers
        self._allocate((query.shape[0], layers, rows, query.shape[1], query.shape[3]), query.dtype)

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        # not read-only: the daemon takes both, and a torch view of read-only memory warns
        self.memory = self._place.allocate(math.prod(shape) * dtype.itemsize, "chunkkv-queries")
        self.tensor = self.memory.tensor(shape, dtype)

    def write(self, layer: int, query: torch.Tensor) -> None:
        """The next rows of a layer, [batch, q_heads, tokens, dim]."""
        count, new, rows = self._counts[layer], query.shape[2], self.tensor.shape[2]
        if self.all and count + new > rows:
            old, held = self.memory, self.tensor
            shape = list(held.shape)
            shape[2] = max(count + new, 2 * rows)
            self._allocate(tuple(shape), held.dtype)
            self.tensor[:, :, :rows] = held
            old.close()
            rows = shape[2]
        taken = min(new, rows)
        newest = query[:, :, new - taken :].detach().transpose(1, 2)
        slot = (count + new - taken) % rows
        ahead = min(taken, rows - slot)  # the others begin at the front again
        self.tensor[:, layer, slot : slot + ahead] = newest[:, :ahead]
        self.tensor[:, layer, : taken - ahead] = newest[:, ahead:]
        self._counts[layer] = count + new

    def filled(self) -> tuple[int, int]:
        """How many rows every layer has, and which slot holds the oldest; 0 rows where layers differ."""
        count, rows = self._counts[0], int(self.tensor.shape[2])
        if any(other != count for other in self._counts):
            return 0, 0
        return (count, 0) if count <= rows else (rows, count % rows)

    def clear(self) -> None:
        """Forget the rows."""
        self._counts = [0] * len(self._counts)

    def close(self) -> None:
        """Let the memory go."""
        del self.tensor
        self.memory.close()


def check_tensor(key: torch.Tensor) -> None:
    """Unsupported for rows of a type that the daemon does not read."""
    if key.dtype not in TYPES:
        raise Unsupported(f"keys are of {key.dtype}, which is none of {', '.join(str(t)[6:] for t in TYPES)}")


def capacity_for(rows: int) -> int:
    """Room for so many rows and some more."""
    room = -(-(rows + HEADROOM) // STEP) * STEP
    return room if rows > MOST_TOKENS_PER_BLOCK else min(room, MOST_TOKENS_PER_BLOCK)
