"""The Cache class, and how a cache that Transformers made becomes one whose layers live in shared memory."""

from __future__ import annotations

import weakref
from typing import Any

from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from ..errors import Unsupported
from .store import Store

_stores: weakref.WeakKeyDictionary[Cache, Store] = weakref.WeakKeyDictionary()


class ChunkKVCache(DynamicCache):
    """A cache of one or more sequences of equal length, in shared memory.

    `compress()` makes them by itself; make one to go on with it after `generate()`, for another turn:

        cache = ChunkKVCache(model.config)
        with chunkkv.compress(model, keep_ratio=0.2):
            model.generate(**inputs, past_key_values=cache)
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config=config.get_text_config(decoder=True))
        adopt(self, config)

    @property
    def store(self) -> Store:
        """Its memory and lengths."""
        return _stores[self]


def store_of(cache: Any) -> Store | None:
    """What a cache was made over to; None for one that is not ours."""
    return _stores.get(cache) if isinstance(cache, Cache) else None


def adopt(cache: Any, config: Any) -> Store:
    """Give an empty DynamicCache layers in shared memory: it stays the same object, which callers hold.

    Raises:
        Unsupported: it is of another kind, holds rows, or has no full-attention layer.
    """
    if not isinstance(cache, DynamicCache):
        raise Unsupported(f"a {type(cache).__name__} cannot be compressed: only a DynamicCache, which is the default; "
                          "static, quantised and encoder-decoder caches keep their rows in forms of their own")
    if getattr(cache, "offloading", False):
        raise Unsupported("an offloaded cache does not go together with compression")
    if any(layer.is_initialized and layer.get_seq_length() for layer in cache.layers):
        raise Unsupported("this cache holds rows already: it must be empty when compress() first sees it; with "
                          "prefill_chunk_size Transformers 4 fills it past all hooks")
    layers = cache.layers or DynamicCache(config=config.get_text_config(decoder=True)).layers
    if any(getattr(layer, "record_past", False) for layer in layers):
        raise Unsupported("the cache of an assistant model is taken back step by step and cannot be compressed")
    if not layers:  # a configuration without layer types: every layer is a full one
        layers = [DynamicLayer() for _ in range(config.get_text_config(decoder=True).num_hidden_layers)]
    full = [i for i, layer in enumerate(layers) if type(layer) is DynamicLayer]
    if not full:
        raise Unsupported("no layer of this model attends to all rows, so there is nothing to compress")
    store = Store(full, len(layers))
    for layer in store.layers:
        layers[layer.number] = layer
    cache.layers = layers
    cache.layer_class_to_replicate = None
    _stores[cache] = store
    return store
