"""The Cache class, and how a cache that Transformers made becomes one whose layers live in shared memory."""

from __future__ import annotations

import weakref
from typing import Any

from transformers.cache_utils import Cache, DynamicCache

from ..errors import Unsupported
from .layer import not_copied
from .models import fresh_layers
from .store import Store

_stores: weakref.WeakKeyDictionary[Cache, Store] = weakref.WeakKeyDictionary()


class ChunkKVCache(DynamicCache):
    """A cache of one or more sequences of equal length, in shared memory.

    `compress()` makes them by itself; make one to go on with it after `generate()`, for another turn:

        cache = ChunkKVCache(model.config)
        with chunkkv.compress(model, keep_ratio=0.2):
            model.generate(**inputs, cache=cache)  # before Transformers 5.24: past_key_values=cache
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config=config.get_text_config(decoder=True))
        adopt(self, config)

    @property
    def store(self) -> Store:
        """Its memory and lengths."""
        return _stores[self]

    def __reduce_ex__(self, _: Any) -> Any:
        """Refused, for copy.copy(), too: two caches would write their new rows to the same place."""
        raise not_copied()


def store_of(cache: Any) -> Store | None:
    """What a cache was made over to; None for one that is not ours."""
    return _stores.get(cache) if isinstance(cache, Cache) else None


# what a cache of another kind is, for whoever gave it
REASONS = {"Quantized": "its rows are integers with scales, which the daemon does not read, and the rounding "
                        "would be scored, too",
           "Static": "its memory has one size for good, so that dropping rows would free nothing",
           "EncoderDecoder": "an encoder's rows are not a prompt that goes on"}


def adopt(cache: Any, config: Any) -> Store:
    """Give an empty DynamicCache layers in shared memory: it stays the same object, which callers hold.

    Raises:
        Unsupported: it is of another kind, holds rows, or has no full-attention layer.
    """
    if not isinstance(cache, DynamicCache):
        kind = type(cache).__name__
        reason = next((words for name, words in REASONS.items() if kind.startswith(name)), "its form is its own")
        raise Unsupported(f"a {kind} cannot be compressed: {reason}; give a DynamicCache, the default, or none")
    if getattr(cache, "offloading", False):
        raise Unsupported("an offloaded cache does not go together with compression")
    # layers of linear attention have neither of the two
    if any(getattr(layer, "is_initialized", False) and layer.get_seq_length() for layer in cache.layers):
        raise Unsupported("this cache holds rows already: it must be empty when compress() first sees it; with "
                          "prefill_chunk_size Transformers 4 fills it past all hooks")
    layers, full = fresh_layers(config, cache.layers)
    if any(getattr(layer, "record_past", False) for layer in layers):
        raise Unsupported("the cache of an assistant model is taken back step by step and cannot be compressed")
    store = Store(full, len(layers))
    for layer in store.layers:
        layers[layer.number] = layer
    cache.layers = layers
    cache.layer_class_to_replicate = None
    if type(cache) is DynamicCache:  # as one that is made of it: it is not copied
        cache.__class__ = ChunkKVCache
    _stores[cache] = store
    return store
