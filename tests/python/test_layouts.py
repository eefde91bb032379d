"""The layouts of sixteen engines: addresses, builders, and the right answer in each of them, on either path."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import chunkkv
import layouts
import reference_numpy as ref
from chunkkv._pb import chunkkv_pb2 as pb

ROWS = layouts.vectors()
BY_NAME = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
FAR = 1 << 44  # between allocations, so that a plane in the wrong region is noticed
BASE = 1 << 20


@functools.cache
def region(number: int) -> chunkkv.Region:
    """A region that is only spoken of: these layouts are up to 20 GB large."""
    return chunkkv.Region(number + 1, FAR, chunkkv.Access.READ_WRITE, address=BASE + number * FAR)


def plane_of(entry: dict[str, Any]) -> chunkkv.Plane:
    """A plane of the vectors, through the wire's message, which has all its fields."""
    axes = {name: pb.Axis(**entry[name]) for name in ("token", "dim")}
    other = {k: v for k, v in entry.items() if k not in ("kind", "dtype", "region", "token", "dim")}
    message = pb.Plane(kind=f"PLANE_{entry['kind']}", dtype=f"DTYPE_{entry['dtype']}", region_id=entry["region"] + 1,
                       **axes, **other)
    return chunkkv.Plane(
        chunkkv.PlaneKind(message.kind), chunkkv.DType(message.dtype), region(entry["region"]), message.offset,
        message.layer_first, message.layer_count, message.layer_stride, message.block_stride, message.head_stride,
        chunkkv.Axis(message.token.tile, message.token.outer, message.token.inner),
        chunkkv.Axis(message.dim.tile, message.dim.outer, message.dim.inner))


def group_of(row: dict[str, Any]) -> chunkkv.LayerGroup:
    g = row["group"]
    return chunkkv.LayerGroup(tuple(range(g["layers"])), g["kv_heads"], g["q_heads"], g["head_dim_k"],
                              g["head_dim_v"], g["tokens_per_block"], g["num_blocks"])


def test_vectors_are_those_of_the_specification() -> None:
    assert [row["row"] for row in ROWS] == list(range(1, 17))
    assert {row["name"] for row in ROWS} == set(chunkkv.ENGINES)
    assert [row["row"] for row in ROWS if not row["fast_path"]] == [8, 9, 13, 14]


@BY_NAME
def test_address(row: dict[str, Any]) -> None:
    planes = [plane_of(entry) for entry in row["planes"]]
    layout = chunkkv.CacheLayout((group_of(row),), tuple(planes))
    layout.check()
    assert {example["plane"] for example in row["examples"]} == set(range(len(planes)))
    for example in row["examples"]:
        plane = planes[example["plane"]]
        place = [example[name] for name in ("layer", "block", "head", "token", "dim")]
        assert plane.address(*place) == example["offset"]
        if example["layer"] == 0 and example["block"] < 100:
            layer, block, head, token, dim = place
            some = replace(group_of(row), tokens_per_block=min(row["group"]["tokens_per_block"], 2048), num_blocks=10)
            assert layouts.offsets(plane, layer, some)[block, token, head, dim] == example["offset"]


@BY_NAME
def test_builder(row: dict[str, Any]) -> None:
    """An engine's tensor, by its shape in memory, gives exactly the planes of the vector."""
    g = row["group"]
    shape = layouts.Shape(g["layers"], g["num_blocks"], g["kv_heads"], g["tokens_per_block"], g["head_dim_k"])
    regions = [region(i) for i in range(2)]
    apart = chunkkv.ENGINES[row["name"]].split == "arrays"

    def make(of: tuple[int, ...], index: int) -> FakeTensor:
        return FakeTensor(of, regions[index if apart else 0].address)

    layout = layouts.layout(row["name"], shape, make, q_heads=g["q_heads"], region=regions[0],
                            value_region=regions[1] if apart else None, dtype=row["planes"][0]["dtype"].lower())
    assert layout.groups == (group_of(row),)
    assert layout.planes == tuple(plane_of(entry) for entry in row["planes"])


class FakeTensor:
    """A contiguous tensor of 2-byte elements that exists as numbers only, and can be sliced and permuted."""

    def __init__(self, shape: tuple[int, ...], address: int, strides: tuple[int, ...] = ()) -> None:
        steps = [1]
        for size in reversed(shape[1:]):
            steps.append(steps[-1] * size)
        self.shape, self._address, self._strides = shape, address, strides or tuple(reversed(steps))
        self.dtype = "torch.bfloat16"

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return 2

    def data_ptr(self) -> int:
        return self._address

    def transpose(self, order: list[int]) -> FakeTensor:
        return FakeTensor(tuple(self.shape[i] for i in order), self._address, tuple(self._strides[i] for i in order))

    def __getitem__(self, index: Any) -> FakeTensor:
        index = index if isinstance(index, tuple) else (index,)
        if index[0] is Ellipsis:
            index = (slice(None),) * (len(self.shape) - len(index) + 1) + index[1:]
        address, shape, strides = self._address, [], []
        for axis, (size, step) in enumerate(zip(self.shape, self._strides, strict=True)):
            at = index[axis] if axis < len(index) else slice(None)
            first = at if isinstance(at, int) else at.indices(size)[0]
            address += 2 * first * step
            if not isinstance(at, int):
                shape.append(len(range(*at.indices(size))))
                strides.append(step)
        return FakeTensor(tuple(shape), address, tuple(strides))


def test_builder_refuses_what_it_cannot_be() -> None:
    given: dict[str, Any] = {"q_heads": 8, "region": region(0), "dtype": "bf16"}
    tensor = FakeTensor((4, 2, 32, 64), BASE)
    for name, tensors, values, what in (
            ("vllm-gpu", [tensor], None, "none of"), ("transformers", [tensor], None, "apart"),
            ("vllm-lbnhc", [tensor], [tensor], "together"),
            ("vllm-kv-in-row-hnd", [FakeTensor((4, 2, 32, 63), BASE)], None, "63 elements"),
            ("vllm-cpu-amx", [FakeTensor((4, 2, 33, 64), BASE)], None, "tiles"),
            ("vllm-cpu-vector", [tensor.transpose([0, 2, 1, 3])], None, "adjacent"),
            ("vllm-cpu-vector", [tensor, FakeTensor((5, 2, 32, 64), BASE)], None, "differ in shape"),
            ("sglang", [tensor], [tensor], "axes")):
        with pytest.raises(chunkkv.InvalidArgument, match=what):
            chunkkv.engine_layout(name, tensors, values, **given)


@BY_NAME
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_each_layout_is_compressed_rightly(client: chunkkv.Client, row: dict[str, Any], dtype: str) -> None:
    """A small cache of each layout: the model's rows are kept, they are moved, nothing else, and the reply says
    which path ran."""
    latent = row["name"] == "mla-latent"
    tokens = 1 if row["name"] == "sglang" else 32
    shape = layouts.Shape(layers=2, blocks=128 // tokens, heads=1 if latent else 2, tokens=tokens, dim=16)
    rng = np.random.default_rng(row["row"])
    kind = np.dtype({"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[dtype])
    length, q_heads, window = 90, 4, 4
    with chunkkv.SharedMemory.allocate(1 << 20) as memory:
        everything = memory.numpy(memory.size, np.uint8)
        everything[...] = 0xFF  # NaN in every type
        where = client.register_region(memory)

        def make(of: tuple[int, ...], index: int) -> np.ndarray:
            return memory.numpy(of, kind, 65536 + index * 65536)

        layout = layouts.layout(row["name"], shape, make, q_heads=q_heads, region=where, dtype=dtype)
        cache = client.register_cache(layout)
        assert cache.fast_path == row["fast_path"]
        table = rng.permutation(shape.blocks)[: -(-length // tokens)]
        flat = memory.numpy(memory.size // kind.itemsize, kind)
        rows = np.arange(length)
        places = [[layouts.offsets(p, layer, layout.groups[0])[table[rows // tokens], rows % tokens] // kind.itemsize
                   for p in layout.planes if layer in p.layers] for layer in (0, 1)]
        numbers: list[list[np.ndarray]] = []
        for of_layer in places:
            numbers.append([rng.normal(size=place.shape).astype(np.float32) for place in of_layer])
            for place, values in zip(of_layer, numbers[-1], strict=True):
                flat[place] = chunkkv.to_bf16(values) if dtype == "bf16" else values.astype(kind)
                values[...] = chunkkv.from_bf16(flat[place]) if dtype == "bf16" else flat[place]
        queries = memory.numpy((2, window, q_heads, shape.dim), "f32", 1024)
        queries[...] = rng.normal(size=queries.shape)
        before = everything.copy()
        policy = chunkkv.Policy(window=window, chunk=5, scale=0.25)
        answer = client.compress(cache, rows=length, table=table, policy=policy, keep_ratio=0.4,
                                 queries=chunkkv.Queries.of_array(queries, region=where))
        expected = before.copy()
        after = expected.view(kind)
        params = ref.Params(window=window, chunk=5, scale=0.25, keep_ratio=400000)
        for layer in (0, 1):
            k, v = numbers[layer][0], None if latent else numbers[layer][1]
            kept = answer.layers[layer].rows
            assert kept.tolist() == ref.plan(queries[layer], k, v, params).kept.tolist()
            for place in places[layer]:
                after[place[: len(kept)]] = before.view(kind)[place[kept]]
        assert np.array_equal(everything, expected)
        client.unregister_cache(cache)
        client.unregister_region(where)
