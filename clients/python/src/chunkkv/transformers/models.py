"""What a model must be to be compressed: all that can be known of it before it runs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from ..errors import Unsupported

CACHE_NAMES = ("past_key_values", "cache")  # Transformers up to 5.23, and after
TABLE = "ALL_ATTENTION_FUNCTIONS"  # Transformers' attention functions, in every file that calls attention through them


def check_model(model: Any) -> str:
    """Under which name the model takes its cache.

    Raises:
        TypeError: it is no model.
        Unsupported: it is one whose cache cannot be compressed, with the reason.
    """
    kind = type(model).__name__
    if not isinstance(model, torch.nn.Module):
        wrapped = "; a pipeline's is its .model" if isinstance(getattr(model, "model", None), torch.nn.Module) else ""
        raise TypeError(f"model must be a causal language model of Transformers, not "
                        f"{'None' if model is None else f'a {kind}'}{wrapped}")
    names = inspect.signature(model.forward).parameters
    name = next((name for name in CACHE_NAMES if name in names), "")
    if not name or not hasattr(model, "config"):
        inner = "; a compiled model's is its ._orig_mod" if hasattr(model, "_orig_mod") else ""
        raise Unsupported(f"a {kind} takes no cache: give the causal language model itself{inner}")
    if getattr(model.config, "is_encoder_decoder", False):
        raise Unsupported(f"a {kind} is an encoder with a decoder, whose two caches cannot be compressed")
    if not getattr(model, "_supports_default_dynamic_cache", lambda: True)():
        raise Unsupported(f"a {kind} keeps a state of its own kind instead of a DynamicCache")
    _check_decoder(model)
    _check_attention(model)
    if getattr(model, "dtype", None) == torch.float64:
        raise Unsupported("the model is of float64: caches are float32, float16 or bfloat16")
    fresh_layers(model.config)
    return name


def _check_decoder(model: torch.nn.Module) -> None:
    """Attention must look back only: encoders take a cache as an argument, and keep nothing in it."""
    layers = [module for module in model.modules() if hasattr(module, "layer_idx")
              and (hasattr(module, "is_causal") or hasattr(module, "is_decoder"))]
    looking_ahead = [getattr(layer, "is_causal", True) is False or getattr(layer, "is_decoder", True) is False
                     for layer in layers]
    if layers and all(looking_ahead):
        raise Unsupported(f"this {type(model).__name__} is no decoder: its attention looks ahead, as an encoder's "
                          "does, so it keeps no cache, and there is nothing to compress")


def _check_attention(model: torch.nn.Module) -> None:
    """Attention must be called where its queries can be seen."""
    files = attention_files(model)
    if not any(hasattr(sys.modules[file], TABLE) for file in files):
        raise Unsupported(f"a {type(model).__name__} computes attention by itself, not through Transformers' attention "
                          "functions, so its queries cannot be seen, nor what else its logits depend on")


def attention_files(model: torch.nn.Module) -> list[str]:
    """Names of the Python modules that define a model's layers."""
    return sorted({type(module).__module__ for module in model.modules() if hasattr(module, "layer_idx")})


@contextmanager
def without_assistants(model: Any) -> Iterator[None]:
    """Refuse assisted decoding where generate() asks for its candidates, which is before anything runs."""
    name = "_get_candidate_generator"  # of Transformers 4 and 5; where there is none, its own check of crop() says it
    if not hasattr(model, name):
        yield
        return
    before = vars(model).get(name)
    setattr(model, name, _refuse_assistant)
    try:
        yield
    finally:
        delattr(model, name)
        if before is not None:
            setattr(model, name, before)


def _refuse_assistant(*_: Any, **__: Any) -> None:
    raise Unsupported("assisted decoding (assistant_model, prompt_lookup_num_tokens) does not go together with "
                      "compression: it takes back tokens, whose rows may have been dropped or moved")


def fresh_layers(config: Any, layers: list[Any] | None = None) -> tuple[list[Any], list[int]]:
    """Layers of an empty cache, those given or the ones that a configuration asks for; numbers of those that attend
    to all rows.

    Raises:
        Unsupported: there are none of these.
    """
    text = config.get_text_config(decoder=True)
    layers = layers or list(DynamicCache(config=text).layers)
    if not layers:  # a configuration without layer types: every layer is a full one
        layers = [DynamicLayer() for _ in range(text.num_hidden_layers)]
    full = [i for i, layer in enumerate(layers) if type(layer) is DynamicLayer]
    if not full:
        kinds = ", ".join(sorted({type(layer).__name__ for layer in layers}))
        raise Unsupported("no layer of this model attends to all rows and keeps nothing but keys and values, so there "
                          f"is nothing to compress: its layers are {kinds}")
    return layers, full
