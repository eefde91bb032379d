"""The layout vectors, and small caches in every layout of them, element by element."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import chunkkv

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "layouts.json"
# letters of an engine's own tensor, outermost first, as its memory is: B blocks, H heads, N tokens, D dimensions,
# L layers, 2 key or value, E both in a row (2 D)
MEMORY = {
    "vllm-flash-attention": "2BNHD", "vllm-flashinfer-nhd": "B2NHD", "vllm-flashinfer-hnd": "B2HND",
    "vllm-kv-in-row-nhd": "BNHE", "vllm-kv-in-row-hnd": "BHNE", "vllm-lbnhc": "LBNHE", "vllm-blnhc": "BLNHE",
    "vllm-cpu-vector": "BHNE", "vllm-cpu-amx": "BHNE", "sglang": "BHD", "tensorrt-llm": "BL2HND",
    "llama-cpp": "BNHD", "llama-cpp-transposed-v": "BNHD", "mistral-rs": "BHD", "transformers": "BHND",
    "mla-latent": "BND",
}
LOGICAL = {"vllm-kv-in-row-nhd": "BHNE"}  # what the engine permutes its memory to


@functools.cache
def vectors() -> list[dict[str, Any]]:
    """The rows of layouts.json."""
    rows: list[dict[str, Any]] = json.loads(VECTORS.read_text())
    return rows


@dataclass(frozen=True)
class Shape:
    """Sizes of a cache."""

    layers: int
    blocks: int
    heads: int
    tokens: int
    dim: int


Maker = Callable[[tuple[int, ...], int], Any]  # (shape, which tensor) -> an array of it


def shapes_of(name: str, s: Shape) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Shapes in memory of an engine's tensors: the caches or keys, and the values where they are apart."""
    size = {"B": s.blocks, "H": s.heads, "N": s.tokens, "D": s.dim, "L": s.layers, "2": 2, "E": 2 * s.dim}
    many = 1 if "L" in MEMORY[name] else s.layers
    first = [tuple(size[letter] for letter in MEMORY[name])] * many
    second = first
    if name == "mistral-rs":
        first = [(s.blocks, s.heads, s.dim // 8, s.tokens, 8)] * many
    if name in ("mistral-rs", "llama-cpp-transposed-v"):
        second = [(s.blocks, s.heads, s.dim, s.tokens)] * many
    return first, second if chunkkv.ENGINES[name].split == "arrays" else []


def layout(name: str, s: Shape, make: Maker, **given: Any) -> chunkkv.CacheLayout:
    """The layout of an engine's tensors, which `make` makes one after the other."""
    first, second = shapes_of(name, s)
    tensors = [make(shape, i) for i, shape in enumerate(first)]
    values = [make(shape, len(first) + i) for i, shape in enumerate(second)]
    if name in LOGICAL:
        order = [MEMORY[name].index(letter) for letter in LOGICAL[name]]
        tensors = [tensor.transpose(order) for tensor in tensors]
    return chunkkv.engine_layout(name, tensors, values or None, **given)


def offsets(plane: chunkkv.Plane, layer: int, group: chunkkv.LayerGroup) -> NDArray[np.int64]:
    """Byte offsets of all elements of a layer: [blocks][tokens][heads][dimensions]; written from the formula."""
    dims = group.head_dim_v if plane.kind == chunkkv.PlaneKind.V else group.head_dim_k

    def at(axis: chunkkv.Axis, count: int) -> NDArray[np.int64]:
        i = np.arange(count, dtype=np.int64)
        return i // axis.tile * axis.outer + i % axis.tile * axis.inner

    return (plane.offset + (layer - plane.layer_first) * plane.layer_stride
            + np.arange(group.num_blocks, dtype=np.int64)[:, None, None, None] * plane.block_stride
            + at(plane.token, group.tokens_per_block)[:, None, None]
            + np.arange(group.kv_heads, dtype=np.int64)[:, None] * plane.head_stride + at(plane.dim, dims))


def places(plane: chunkkv.Plane, layer: int, group: chunkkv.LayerGroup, blocks: NDArray[np.int64],
           tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Byte offsets of the elements of some rows: [rows][heads][dimensions]."""
    inside = offsets(plane, layer, replace(group, num_blocks=1))[0]
    return inside[tokens] + (blocks * plane.block_stride)[:, None, None]
