"""The layouts of known engines, by name.

An engine's tensors are viewed by the axes that they have in memory; offsets and strides are always taken from
the tensors themselves, since engines permute, pad and slice them.  A tensor that no longer looks as its engine's
name promises is refused, or describes what it is: nothing is assumed about sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .arrays import Axes, strides_of
from .dtypes import element_type
from .errors import invalid
from .layout import Axis, CacheLayout, LayerGroup, Plane, regions_of
from .region import Region
from .wire import DType, PlaneKind

Split = Literal["axis", "row", "head", "arrays", "latent"]


@dataclass(frozen=True)
class Engine:
    """How an engine's tensor is to be read.

    Attributes:
        axes: its axes, as CacheLayout.of_arrays names them; without "l" a tensor holds one layer.
        split: keys and values are two places of an axis "2", halves of each row, halves of each head's block,
            tensors of their own, or there is one latent row instead.
        value_axes: axes of the values, where they differ.
        tiled: with "head": in tiles of the CPU's matrix unit.
    """

    axes: str
    split: Split
    value_axes: str | None = None
    tiled: bool = False


ENGINES: dict[str, Engine] = {
    "vllm-flash-attention": Engine("2bthd", "axis"),
    "vllm-flashinfer-nhd": Engine("b2thd", "axis"),
    "vllm-flashinfer-hnd": Engine("b2htd", "axis"),
    "vllm-kv-in-row-nhd": Engine("bhtd", "row"),
    "vllm-kv-in-row-hnd": Engine("bhtd", "row"),
    "vllm-lbnhc": Engine("lbthd", "row"),
    "vllm-blnhc": Engine("blthd", "row"),
    "vllm-cpu-vector": Engine("bhtd", "head"),
    "vllm-cpu-amx": Engine("bhtd", "head", tiled=True),
    "sglang": Engine("bhd", "arrays"),
    "tensorrt-llm": Engine("bl2htd", "axis"),
    "llama-cpp": Engine("bthd", "arrays"),
    "llama-cpp-transposed-v": Engine("bthd", "arrays", "bhdt"),
    "mistral-rs": Engine("bhDtd", "arrays", "bhdt"),
    "transformers": Engine("bhtd", "arrays"),
    "mla-latent": Engine("btd", "latent"),
}
AMX_ROWS, AMX_PAIR = 16, 2  # a tile of the matrix unit: 16 rows of pairs


def engine_layout(engine: str, tensors: Sequence[Any], values: Sequence[Any] | None = None, *, q_heads: int,
                  region: Region | Sequence[Region], value_region: Region | Sequence[Region] | None = None,
                  layers: Sequence[int] | None = None, dtype: Any = None) -> CacheLayout:
    """The layout of an engine's tensors, NumPy or torch.

    Args:
        engine: a name of ENGINES.
        tensors: the caches, or the keys where values are apart: one for each layer, or one for all where the
            engine's own holds all.
        values: the values, for engines that keep them apart.
        q_heads: query heads of the model.
        region: where all tensors lie, or one for each.
        value_region: where the values lie, if elsewhere.
        layers: their numbers, ascending; None = 0, 1, 2, ...
        dtype: element type, needed where the tensor's own does not tell ("bf16" held as uint16).
    """
    known = ENGINES.get(engine)
    if known is None:
        raise invalid("engine", f"{engine!r} is none of {', '.join(ENGINES)}")
    if (values is not None) != (known.split == "arrays"):
        raise invalid("values", f"{engine} keeps keys and values {'apart' if values is None else 'together'}")
    if known.split == "latent":
        return CacheLayout.of_latent(tensors, axes=known.axes, q_heads=q_heads, region=region, layers=layers,
                                     dtype=dtype)
    if known.split == "head":
        return _split_heads(known, tensors, q_heads, region, layers, dtype)
    if known.split == "row":
        tensors, values = [t[..., : _half(t)] for t in tensors], [t[..., _half(t) :] for t in tensors]
    return CacheLayout.of_arrays(tensors, values, axes=known.axes, value_axes=known.value_axes, q_heads=q_heads,
                                 region=region, value_region=value_region, layers=layers, dtype=dtype)


def _half(tensor: Any) -> int:
    size = int(tensor.shape[-1])
    if size % 2:
        raise invalid("tensors", f"a row of {size} elements does not hold as many keys as values")
    return size // 2


def _split_heads(engine: Engine, tensors: Sequence[Any], q_heads: int, region: Region | Sequence[Region],
                 layers: Sequence[int] | None, dtype: Any) -> CacheLayout:
    """vLLM's CPU caches: a head's part of a block is all its keys, then all its values, in orders of their own."""
    regions = regions_of(region, len(tensors))
    if not tensors or (layers is not None and len(layers) != len(tensors)):
        raise invalid("layers", f"must be one for each of {len(tensors)} tensors, at least one")
    kind = element_type(dtype if dtype is not None else tensors[0].dtype)
    planes: list[Plane] = []
    shapes = set()
    for i, (tensor, place) in enumerate(zip(tensors, regions, strict=True)):
        path = f"tensors[{i}]"
        named = Axes(tensor, engine.axes, path)
        tokens, dims = named.size["t"], _half(tensor)
        if strides_of(tensor)[-1] != kind.itemsize or (tokens > 1 and named.stride["t"] != 2 * dims * kind.itemsize):
            raise invalid(path, "what a head holds of a block must be adjacent")
        if engine.tiled and (tokens % (2 * AMX_ROWS) or dims % AMX_ROWS):
            raise invalid(path, f"{tokens} tokens of {dims} dimensions are not whole tiles")
        shapes.add((named.size["b"], named.size["h"], tokens, dims))
        offset, number = place.offset_of(tensor, path), i if layers is None else layers[i]
        for kv, start in ((PlaneKind.K, 0), (PlaneKind.V, tokens * dims * kind.itemsize)):
            token, dim = _axes_of_head(engine.tiled, kv, tokens, dims, kind)
            planes.append(Plane(kv, kind, place, offset + start, number, block_stride=named.stride["b"],
                                head_stride=named.stride["h"], token=token, dim=dim))
    if len(shapes) != 1:
        raise invalid("layout", f"the layers differ in shape: {sorted(shapes)}")
    blocks, heads, tokens, dims = shapes.pop()
    numbers = tuple(plane.layer_first for plane in planes[::2])
    layout = CacheLayout((LayerGroup(numbers, heads, q_heads, dims, dims, tokens, blocks),), tuple(planes))
    layout.check()
    return layout


def _axes_of_head(tiled: bool, kind: PlaneKind, tokens: int, dims: int, dtype: DType) -> tuple[Axis, Axis]:
    """Axes of tokens and dimensions: keys are (D, N), values (N, D); in tiles, 16 of one by pairs of the other."""
    size = dtype.itemsize
    if not tiled:
        near, far = Axis.stride(size), Axis.stride((tokens if kind == PlaneKind.K else dims) * size)
        return (near, far) if kind == PlaneKind.K else (far, near)
    pair = AMX_PAIR * size
    paired = Axis(AMX_PAIR, AMX_ROWS * pair, size)

    def rows(across: int) -> Axis:
        return Axis(AMX_ROWS, across // AMX_PAIR * AMX_ROWS * pair, pair)

    return (rows(dims), paired) if kind == PlaneKind.K else (paired, rows(tokens))
