"""Seeing the queries of a model as its attention gets them: after q norm and rotary embedding, whatever the model.

Transformers calls attention by name, through one table for all models, or through the function
`eager_attention_forward` of the model's own file.  Both are wrapped while a `compress()` block is open, once however
many there are; a wrapper acts only inside a forward of such a block's model, and on layers whose keys lie in its cache.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..errors import Unsupported
from .models import attention_files
from .store import Store

EAGER = "eager_attention_forward"

_lock = threading.Lock()
_local = threading.local()
_wrapped: dict[tuple[int, str], tuple[int, Any]] = {}  # (table, name): how often, and what was there


class Call:
    """One forward of a model.

    Attributes:
        store: of its cache.
        rows: query rows to keep; 0 = record none.
        keep_all: keep every row instead.
    """

    def __init__(self, store: Store, rows: int, keep_all: bool) -> None:
        self.store, self.rows, self.keep_all = store, rows, keep_all

    def attend(self, module: Any, query: torch.Tensor, key: torch.Tensor, mask: Any, name: str,
               options: dict[str, Any]) -> Any:
        """Record the queries of one layer; the mask, with as many columns as the layer has rows."""
        layer = self.store.by_number.get(getattr(module, "layer_idx", -1))
        if layer is None or layer.keys is None:
            return mask
        if key.data_ptr() != layer.keys.data_ptr():
            self._check_foreign(layer.number)
            return mask
        if options.get("s_aux") is not None:
            raise Unsupported("attention with sink logits is not supported by chunkkv.transformers")
        self.store.q_heads = query.shape[1]
        scale, cap = options.get("scaling"), options.get("softcap")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        if self.store.scale not in (None, scale):
            raise Unsupported(f"layer {layer.number} scales its logits by {scale}, others by {self.store.scale}")
        self.store.scale = scale
        # of Transformers' own functions only these two put the cap on
        self.store.softcap = float(cap) if cap and name in (EAGER, "flex_attention") else None
        if self.rows or self.keep_all:
            self.store.record(layer, query, self.rows, self.keep_all)
        return fitted(mask, key.shape[2])


    def _check_foreign(self, number: int) -> None:
        """Attention is given other keys than the cache holds: in some layers, or in all, as in latent caches."""
        if self.store.scale is None and (self.rows or self.keep_all):
            raise Unsupported(f"layer {number} hands other keys to its attention than the cache holds, as models with "
                              "a latent cache do, so its queries say nothing of the rows: take a method without them, "
                              "such as keydiff, knorm, lagkv, vk-ratio or streamingllm")


def fitted(mask: Any, columns: int) -> Any:
    """A mask for another number of old rows, all of which every query sees: layers may keep different numbers."""
    if not isinstance(mask, torch.Tensor) or mask.ndim != 4 or mask.shape[-1] == columns:
        return mask
    if mask.shape[-1] > columns:
        return mask[..., -columns:]
    visible = torch.ones if mask.dtype == torch.bool else torch.zeros
    missing = (*mask.shape[:-1], columns - mask.shape[-1])
    return torch.cat([visible(missing, dtype=mask.dtype, device=mask.device), mask], dim=-1)


@contextmanager
def recording(model: torch.nn.Module) -> Iterator[None]:
    """Wrap the attention functions that a model may call, until the end of the block."""
    places: list[tuple[MutableMapping[str, Any], str]] = [
        (ALL_ATTENTION_FUNCTIONS, name) for name in list(ALL_ATTENTION_FUNCTIONS.keys())]
    places += [(vars(sys.modules[file]), EAGER) for file in attention_files(model) if hasattr(sys.modules[file], EAGER)]
    with _lock:
        for table, name in places:
            times, original = _wrapped.get((id(table), name), (0, None))
            if times == 0:
                original = table[name]
                table[name] = _wrapper(original, name)
            _wrapped[id(table), name] = (times + 1, original)
    try:
        yield
    finally:
        with _lock:
            for table, name in places:
                times, original = _wrapped.pop((id(table), name))
                if times > 1:
                    _wrapped[id(table), name] = (times - 1, original)
                else:
                    table[name] = original


def _wrapper(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any,
                  **options: Any) -> Any:
        call = getattr(_local, "call", None)
        if call is not None:
            attention_mask = call.attend(module, query, key, attention_mask, name, options)
        return original(module, query, key, value, attention_mask, *args, **options)

    return attention


def begin(call: Call) -> None:
    """A forward of this thread begins."""
    _local.call = call


def end() -> None:
    """It has ended."""
    _local.call = None
