"""One layer of a cache: rows in memory that the daemon shares, two lengths.

`length` is how many rows lie there, `seen` how many tokens the model has processed.  They part when the daemon drops
rows: positions go on from `seen`, rows from `length`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from transformers.cache_utils import DynamicLayer

from ..errors import Unsupported

if TYPE_CHECKING:
    from .store import Store


def not_copied() -> Unsupported:
    """What is said of copies, of a cache or of one of its layers."""
    return Unsupported("a cache that the daemon shares can be neither copied nor pickled: go on with it, or give the "
                       "prompt again")


class ChunkKVLayer(DynamicLayer):
    """Keys and values of one full-attention layer, in the memory of its Store.

    Attributes:
        length: rows in the cache.
        seen: tokens so far.
        number: of the layer in the model.
        place: of the layer in the store.
    """

    is_croppable = False

    def __init__(self, store: Store, number: int, place: int) -> None:
        # weakly: a cycle would keep the memory of a cache that nobody has any more
        self._store, self.number, self.place = ref(store), number, place
        self.length = self.seen = 0
        super().__init__()

    @property
    def store(self) -> Store:
        """What it belongs to, which lives as long as the cache."""
        store = self._store()
        if store is None:
            raise Unsupported("the cache of this layer is gone, and with it the rows: keep the cache")
        return store

    @property
    def keys(self) -> torch.Tensor | None:
        """Rows of now, [batch, kv_heads, length, dim]; None before the first."""
        arena = self.store.arena
        return None if arena is None else arena.keys[self.place][:, :, : self.length]

    @keys.setter
    def keys(self, value: torch.Tensor | None) -> None:
        self._refuse_assignment(value)

    @property
    def values(self) -> torch.Tensor | None:
        """Likewise."""
        arena = self.store.arena
        return None if arena is None else arena.values[self.place][:, :, : self.length]

    @values.setter
    def values(self, value: torch.Tensor | None) -> None:
        self._refuse_assignment(value)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor | None = None) -> None:
        """Transformers' name for what happens before the first rows."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new rows behind the last; all rows of now."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        count = key_states.shape[2]
        arena = self.store.reserve(self, key_states, value_states)
        for part, new in ((arena.keys, key_states), (arena.values, value_states)):
            part[self.place][:, :, self.length : self.length + count] = new.detach()
        self.length += count
        self.seen += count
        return (arena.keys[self.place][:, :, : self.length], arena.values[self.place][:, :, : self.length])

    def get_seq_length(self, *_: Any) -> int:
        """Tokens so far: where positions go on."""
        return self.seen

    def get_mask_sizes(self, query: Any) -> tuple[int, int]:
        """Columns of the mask, and the index of the first.

        Kept rows get indices below every new query, and new rows line up with theirs, so that "column <= query" is
        right for one query and for many.  `query` is a count or, in Transformers 4, the cache positions.
        """
        count = query if isinstance(query, int) else int(query.shape[0])
        return self.length + count, self.seen - self.length

    def get_max_cache_shape(self) -> int:
        """No maximum, as Transformers says it."""
        return -1

    get_max_length = get_max_cache_shape

    def reset(self) -> None:
        """Forget all rows."""
        self.length = self.seen = 0
        self.store.reset()

    def crop(self, max_length: int) -> None:
        """Refused: assisted decoding takes back tokens, whose rows may have been dropped or moved."""
        if max_length != 0 and (max_length < 0 or max_length < self.seen):
            raise Unsupported("this cache cannot be cropped: assisted decoding does not go together with compression")

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Refused unless nothing changes: beams would share one memory."""
        if not torch.equal(beam_idx.cpu(), torch.arange(len(beam_idx))):
            raise Unsupported("beam search does not go together with compression: sequences may not change places")

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refused: give the prompt several times instead."""
        if repeats != 1:
            raise Unsupported("a compressed cache cannot be repeated: give the prompt so many times instead")

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Refused: sequences may not change places."""
        raise Unsupported("sequences of a compressed cache cannot be picked")

    def offload(self) -> None:
        """Refused: the daemon compresses it where it is."""
        raise Unsupported("an offloaded cache does not go together with compression")

    def __reduce_ex__(self, _: Any) -> Any:
        """Refused: the memory is shared with the daemon, once."""
        raise not_copied()

    @staticmethod
    def _refuse_assignment(value: torch.Tensor | None) -> None:
        if value is not None:
            raise Unsupported("keys and values of this cache lie in memory that the daemon shares, and cannot be "
                              "replaced")
