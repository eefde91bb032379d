"""Where the bytes of a KV cache lie, in strides.

Element (layer l, block b, head h, token t, dimension d) of a plane lies at byte

    offset + (l - layer_first) * layer_stride + b * block_stride + h * head_stride + token.at(t) + dim.at(d)

of its region.  `CacheLayout.of_arrays` takes all of that from the strides of NumPy arrays or torch tensors
and a string that names their axes, so no layout needs a name of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ._pb import chunkkv_pb2 as pb
from .arrays import Axes, no_array
from .checks import of_type, out_of_range, whole
from .dtypes import element_type
from .errors import invalid
from .region import Region
from .wire import DType, PlaneKind

MOST_TOKENS_PER_BLOCK = 65536
MOST_LAYERS = 65536
MOST_BYTES = 1 << 46
LETTERS = "lbhtdLBHTD"


@dataclass(frozen=True)
class Axis:
    """A two-level axis, in bytes: index i lies at (i / tile) * outer + (i % tile) * inner."""

    tile: int = 1
    outer: int = 0
    inner: int = 0

    @classmethod
    def stride(cls, stride: int) -> Axis:
        """A plain axis of one stride."""
        return cls(1, stride, 0)

    def at(self, index: int) -> int:
        """Byte offset of an index."""
        return index // self.tile * self.outer + index % self.tile * self.inner

    def last(self, count: int) -> int:
        """The largest offset of the indices 0 .. count-1."""
        whole = (count - 1) // self.tile
        return max(self.at(count - 1), self.at(whole * self.tile - 1) if whole else 0)


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share one block table."""

    layers: tuple[int, ...]
    kv_heads: int
    q_heads: int
    head_dim_k: int
    head_dim_v: int
    tokens_per_block: int
    num_blocks: int

    def check(self, path: str) -> None:
        """InvalidArgument names the first field that the daemon would refuse."""
        for i, layer in enumerate(self.layers):
            whole(f"{path}.layers[{i}]", layer, 0, MOST_LAYERS - 1)
        if not self.layers or list(self.layers) != sorted(set(self.layers)):
            raise invalid(f"{path}.layers", "layer numbers must be strictly ascending, and at least one")
        for name, value, most in (("kv_heads", self.kv_heads, 1024), ("head_dim_k", self.head_dim_k, 1024),
                                  ("tokens_per_block", self.tokens_per_block, MOST_TOKENS_PER_BLOCK),
                                  ("num_blocks", self.num_blocks, 0xFFFFFFFF)):
            whole(f"{path}.{name}", value, 1, most)
        whole(f"{path}.head_dim_v", self.head_dim_v, 0, 1024)
        if whole(f"{path}.q_heads", self.q_heads, 1) % self.kv_heads:
            raise invalid(f"{path}.q_heads", f"{self.q_heads} is no multiple of {self.kv_heads} KV heads")


@dataclass(frozen=True)
class Plane:
    """The keys, or the values, of some consecutive layers."""

    kind: PlaneKind
    dtype: DType
    region: Region
    offset: int
    layer_first: int = 0
    layer_count: int = 1
    layer_stride: int = 0
    block_stride: int = 0
    head_stride: int = 0
    token: Axis = Axis()
    dim: Axis = Axis()
    scale: float = 0.0

    @property
    def layers(self) -> range:
        """The layers it holds."""
        return range(self.layer_first, self.layer_first + self.layer_count)

    def address(self, layer: int, block: int, head: int, token: int, dim: int) -> int:
        """Byte offset of an element inside the region."""
        return (self.offset + (layer - self.layer_first) * self.layer_stride + block * self.block_stride
                + head * self.head_stride + self.token.at(token) + self.dim.at(dim))

    def end(self, group: LayerGroup) -> int:
        """One past the last byte that the group can reach through this plane."""
        dims = group.head_dim_v if self.kind == PlaneKind.V else group.head_dim_k
        return (self.offset + (self.layer_count - 1) * self.layer_stride + (group.num_blocks - 1) * self.block_stride
                + (group.kv_heads - 1) * self.head_stride + self.token.last(group.tokens_per_block)
                + self.dim.last(dims) + self.dtype.itemsize)

    def check(self, group: LayerGroup, path: str) -> None:
        """InvalidArgument if a stride is impossible or a row can lie outside the region."""
        strides = {"offset": self.offset, "layer_stride": self.layer_stride, "block_stride": self.block_stride,
                   "head_stride": self.head_stride, "token.outer": self.token.outer, "token.inner": self.token.inner,
                   "dim.outer": self.dim.outer, "dim.inner": self.dim.inner}
        for name, value in strides.items():
            whole(f"{path}.{name}", value, 0, MOST_BYTES)
        for name, axis in (("token", self.token), ("dim", self.dim)):
            whole(f"{path}.{name}.tile", axis.tile, 1)
        of_type(f"{path}.scale", self.scale, int, float)
        end = self.end(group)
        if end > self.region.size:
            raise out_of_range(path, f"the plane ends at byte {end} of a region of {self.region.size}")

    def to_message(self) -> pb.Plane:
        """The wire's message."""
        return pb.Plane(
            kind=int(self.kind), dtype=int(self.dtype), layer_first=self.layer_first,  # type: ignore[arg-type]
            layer_count=self.layer_count, region_id=self.region.id, offset=self.offset,
            layer_stride=self.layer_stride, block_stride=self.block_stride, head_stride=self.head_stride,
            token=pb.Axis(tile=self.token.tile, outer=self.token.outer, inner=self.token.inner),
            dim=pb.Axis(tile=self.dim.tile, outer=self.dim.outer, inner=self.dim.inner), scale=self.scale)


def _axis(named: Axes, name: str) -> Axis:
    """The two-level axis of a letter."""
    inner, outer = named.stride.get(name, 0), named.stride.get(name.upper())
    return Axis.stride(inner) if outer is None else Axis(named.size.get(name, 1), outer, inner)


def _plane(array: Any, axes: str, kind: PlaneKind, region: Region, layer: int, dtype: DType, scale: float,
           path: str) -> tuple[Plane, Axes]:
    """A plane of the layers of one array, from its own strides."""
    of_type("axes", axes, str)
    unknown = set(axes) - set(LETTERS)
    if unknown:
        raise invalid("axes", f"{axes!r} has {', '.join(sorted(unknown))}, which is none of {LETTERS}")
    named = Axes(array, axes, path)
    plane = Plane(kind, dtype, region, region.offset_of(array, path), layer, named.size.get("l", 1),
                  named.stride.get("l", 0), named.stride.get("b", 0), named.stride.get("h", 0), _axis(named, "t"),
                  _axis(named, "d"), scale)
    return plane, named


def regions_of(region: Region | Sequence[Region], count: int) -> list[Region]:
    """A region for each of so many arrays."""
    of_type("region", region, Region, list, tuple)
    regions = [region] * count if isinstance(region, Region) else list(region)
    for i, item in enumerate(regions):
        of_type(f"region[{i}]", item, Region)
    if len(regions) != count:
        raise invalid("region", f"must be one, or one for each of {count} arrays, is {len(regions)}")
    return regions


def _planes(arrays: Sequence[Any], axes: str, kind: PlaneKind, region: Region | Sequence[Region],
            layers: Sequence[int] | None, dtype: DType, scale: float,
            path: str) -> tuple[list[Plane], tuple[int, int, int, int]]:
    """The planes of one kind, and the shape they have in common: blocks, heads, tokens, dimensions."""
    regions = regions_of(region, len(arrays))
    planes: list[Plane] = []
    shapes: set[tuple[int, int, int, int]] = set()
    first = 0
    for i, (array, place) in enumerate(zip(arrays, regions, strict=True)):
        number = layers[first] if layers is not None and first < len(layers) else first
        plane, named = _plane(array, axes, kind, place, number, dtype, scale, f"{path}[{i}]")
        shapes.add((named.length("b"), named.length("h"), named.length("t"), named.length("d")))
        planes.append(plane)
        first += plane.layer_count
    if len(shapes) != 1:
        raise invalid("layout", f"the layers differ in shape: {sorted(shapes)}")
    return planes, shapes.pop()


def _check_arrays(name: str, arrays: Any) -> None:
    """TypeError unless it can be counted and indexed, as a list can, and an array whose first axis is the layers."""
    if not hasattr(arrays, "__len__") or not hasattr(arrays, "__getitem__") or isinstance(arrays, str | bytes | dict):
        raise TypeError(f"{name} must be a sequence of arrays, not {type(arrays).__name__}")


def _checked_layers(layers: Any) -> tuple[int, ...] | None:
    """The layers that were named, each a number that a cache can have."""
    if layers is None:
        return None
    if not hasattr(layers, "__len__") or isinstance(layers, str | bytes | dict):
        raise TypeError(f"layers must be a sequence of whole numbers, not {type(layers).__name__}")
    return tuple(whole(f"layers[{i}]", number, 0, MOST_LAYERS - 1) for i, number in enumerate(layers))


def _dtype_of(array: Any, field: str) -> Any:
    if not hasattr(array, "dtype"):
        raise no_array(array, field)
    return array.dtype


def _numbers(planes: Sequence[Plane], layers: Sequence[int] | None) -> tuple[int, ...]:
    """The layers that planes of one kind hold, which must be those that were named."""
    numbers = tuple(n for plane in planes for n in plane.layers)
    if layers is not None and numbers != tuple(layers):
        raise invalid("layers", f"{tuple(layers)} does not fit the arrays: {numbers}")
    return numbers


@dataclass(frozen=True)
class CacheLayout:
    """What RegisterCache says: groups of layers, and the planes that hold them."""

    groups: tuple[LayerGroup, ...]
    planes: tuple[Plane, ...]

    @classmethod
    def of_arrays(cls, keys: Sequence[Any], values: Sequence[Any] | None = None, *, axes: str, q_heads: int,
                  region: Region | Sequence[Region], value_axes: str | None = None,
                  value_region: Region | Sequence[Region] | None = None, layers: Sequence[int] | None = None,
                  dtype: Any = None, scale: float = 0.0) -> CacheLayout:
        """One group of layers that share a block table, described by arrays that view the cache.

        Args:
            keys: one array for each layer, or one with an axis "l"; with an axis "2" it holds keys (index 0)
                and values (index 1) together.
            values: likewise; None with an axis "2".
            axes: a letter for each axis: l layer, b block, h KV head, t token in its block, d dimension, 2 key or
                value.  An axis in two levels has a capital for the outer one: vLLM's [blocks, heads, D/x, tokens, x]
                is "bhDtd".  Without "b", all tokens are one block.
            q_heads: query heads of the model.
            region: where all arrays lie, or one for each array of `keys`.
            value_axes: axes of the values, where they differ from those of the keys.
            value_region: where the values lie, if elsewhere than the keys.
            layers: their numbers, ascending; None = 0, 1, 2, ...
            dtype: element type, needed where the array's own does not tell ("bf16" held as uint16).
            scale: value = stored value * scale; 0 = 1.

        Example: `CacheLayout.of_arrays(caches, axes="b2thd", q_heads=32, region=region)`.
        """
        of_type("axes", axes, str)
        layers = _checked_layers(layers)
        _check_arrays("keys", keys)
        if "2" in axes:
            place, axes = axes.index("2"), axes.replace("2", "")
            at = (slice(None),) * place
            for i, array in enumerate(keys):
                if not hasattr(array, "shape"):
                    raise no_array(array, f"keys[{i}]")
                if len(array.shape) <= place or int(array.shape[place]) != 2:
                    raise invalid(f"keys[{i}]", f"shape {tuple(array.shape)} has no axis of 2 where the axes say so")
            keys, values = [a[(*at, 0)] for a in keys], [a[(*at, 1)] for a in keys]
        if values is not None:
            _check_arrays("values", values)
        if values is None or len(keys) != len(values) or not keys:
            raise invalid("layout", "as many values as keys are needed, at least one")
        kind = element_type(dtype if dtype is not None else _dtype_of(keys[0], "keys[0]"))
        k_planes, (blocks, heads, tokens, dim_k) = _planes(keys, axes, PlaneKind.K, region, layers, kind, scale, "keys")
        v_planes, (blocks_v, heads_v, tokens_v, dim_v) = _planes(
            values, value_axes or axes, PlaneKind.V, region if value_region is None else value_region, layers, kind,
            scale, "values")
        if (blocks, heads, tokens) != (blocks_v, heads_v, tokens_v):
            raise invalid("layout", "keys and values differ in blocks, heads or tokens")
        group = LayerGroup(_numbers(k_planes, layers), heads, q_heads, dim_k, dim_v, tokens, blocks)
        planes = [plane for pair in zip(k_planes, v_planes, strict=True) for plane in pair]
        layout = cls((group,), tuple(planes))
        layout.check()
        return layout

    @classmethod
    def of_latent(cls, arrays: Sequence[Any], *, axes: str, q_heads: int, region: Region | Sequence[Region],
                  layers: Sequence[int] | None = None, dtype: Any = None, scale: float = 0.0) -> CacheLayout:
        """One group of layers that hold a latent row for each token instead of keys and values (MLA).

        Requests for it bring the absorbed query, as wide as a latent row, and a policy with the model's scale.

        Args:
            arrays: one for each layer, or one with an axis "l".
            axes: letters as in of_arrays(), such as "btd"; without "h" there is one head.
            q_heads: query heads of the model.
            region: where all arrays lie, or one for each.
            layers: their numbers, ascending; None = 0, 1, 2, ...
            dtype: element type, needed where the array's own does not tell ("bf16" held as uint16).
            scale: value = stored value * scale; 0 = 1.
        """
        layers = _checked_layers(layers)
        _check_arrays("arrays", arrays)
        if not len(arrays):
            raise invalid("layout", "at least one array is needed")
        kind = element_type(dtype if dtype is not None else _dtype_of(arrays[0], "arrays[0]"))
        planes, (blocks, heads, tokens, dim) = _planes(arrays, axes, PlaneKind.LATENT, region, layers, kind, scale,
                                                       "arrays")
        layout = cls((LayerGroup(_numbers(planes, layers), heads, q_heads, dim, 0, tokens, blocks),), tuple(planes))
        layout.check()
        return layout

    def check(self) -> None:
        """InvalidArgument if the daemon would refuse it: dimensions, strides, planes outside their region."""
        of_layer: dict[int, LayerGroup] = {}
        for i, group in enumerate(self.groups):
            group.check(f"register_cache.groups[{i}]")
            of_layer |= dict.fromkeys(group.layers, group)
        held: dict[tuple[int, PlaneKind], int] = {}
        for i, plane in enumerate(self.planes):
            path = f"register_cache.planes[{i}]"
            whole(f"{path}.layer_first", plane.layer_first, 0, MOST_LAYERS - 1)
            whole(f"{path}.layer_count", plane.layer_count, 1, 1024)
            for layer in plane.layers:
                if layer not in of_layer:
                    raise invalid(f"{path}.layer_first", f"layer {layer} is in no group")
                if held.setdefault((layer, plane.kind), i) != i and plane.kind != PlaneKind.OPAQUE:
                    raise invalid(f"{path}.layer_first", f"layer {layer} has two planes {plane.kind.name}")
            plane.check(of_layer[plane.layer_first], path)

    def to_message(self) -> pb.RegisterCache:
        """The wire's message."""
        groups = [pb.LayerGroup(layers=g.layers, kv_heads=g.kv_heads, q_heads=g.q_heads, head_dim_k=g.head_dim_k,
                                head_dim_v=g.head_dim_v, tokens_per_block=g.tokens_per_block, num_blocks=g.num_blocks)
                  for g in self.groups]
        return pb.RegisterCache(groups=groups, planes=[plane.to_message() for plane in self.planes])
