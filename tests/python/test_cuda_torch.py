"""Tensors of torch on a GPU, as far as that goes without either: objects with its interface over the stand-in's memory.

What `chunkkv.cuda` reads of a tensor is here as torch has it: storages inside a larger segment of its allocator, views
with an offset and strides in elements, the tuple of `UntypedStorage._share_cuda_()` with its handle of 66 bytes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import chunkkv
from chunkkv import Code, cuda
from cuda_daemon import MARKS, MIB, refused
from cuda_engine import BLOCK, DIM, HEADS, LAYERS, ROWS, WINDOW, DeviceBlock, DeviceCache, driver, kept_of

pytestmark = MARKS
ALIGNMENT = 512  # of torch's caching allocator
BLOCKS = 2 * ROWS // BLOCK
PLANES = (LAYERS, BLOCKS, BLOCK, HEADS, DIM)
QUERIES = (LAYERS, WINDOW, 4 * HEADS, DIM)


class Segment(DeviceBlock):
    """A block as torch's allocator gives it out: somewhere in a segment of 2 MiB, which is the allocation."""

    def __init__(self, size: int, expandable: bool = False) -> None:
        super().__init__(2 * MIB, [MIB] * 2 if expandable else ())
        self.at = 3 * ALIGNMENT
        self.address, self.size = self.address + self.at, size
        self._bytes = (ctypes.c_ubyte * size).from_address(self.address)


class Dtype:
    """torch.float32, as it prints itself."""

    def __repr__(self) -> str:
        return "torch.float32"


@dataclass
class Storage:
    """torch.UntypedStorage of a block."""

    block: Segment

    def data_ptr(self) -> int:
        return self.block.address

    def nbytes(self) -> int:
        return self.block.size

    def _share_cuda_(self) -> tuple[Any, ...]:
        """Device, handle, bytes, offset in the allocation; then a counter of references and an event."""
        if self.block.pieces:
            handle = b"\1e" + bytes(100)
        else:
            raw = (ctypes.c_ubyte * 64)()
            assert driver().cuIpcGetMemHandle(ctypes.byref(raw), ctypes.c_uint64(self.block.address)) == 0
            handle = b"\1c" + bytes(raw)
        return 0, handle, self.block.size, self.block.at, b"/torch_1_1_0", 0, bytes(64), True


class Tensor:
    """torch.Tensor: a view of a storage."""

    dtype = Dtype()
    device = SimpleNamespace(type="cuda", index=0)

    def __init__(self, storage: Storage, offset: int, shape: Sequence[int],
                 strides: Sequence[int] | None = None) -> None:
        self._storage, self._offset, self.shape = storage, offset, tuple(shape)
        dense = [int(np.prod(self.shape[i + 1 :])) for i in range(len(self.shape))]
        self._strides = tuple(dense if strides is None else strides)

    def untyped_storage(self) -> Storage:
        return self._storage

    def storage_offset(self) -> int:
        return self._offset

    def element_size(self) -> int:
        return 4

    def data_ptr(self) -> int:
        return self._storage.data_ptr() + 4 * self._offset

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def __getitem__(self, index: int) -> Tensor:
        return Tensor(self._storage, self._offset + index * self._strides[0], self.shape[1:], self._strides[1:])

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = tuple(4 * stride for stride in self._strides)
        return {"shape": self.shape, "typestr": "<f4", "data": (self.data_ptr(), False), "strides": strides,
                "version": 2}


class OnlyInterface:
    """What CuPy, Numba or JAX show."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


def of_tuple(tensor: Tensor) -> cuda.DeviceMemory:
    """A region as an engine makes it that has torch's tuple alone; its allocation is asked of the driver."""
    _, handle, size, offset, *_ = tensor.untyped_storage()._share_cuda_()
    known = cuda.export(tensor.untyped_storage().data_ptr(), size)
    return replace(known, handle=cuda.unwrap_handle(handle), offset=offset, size=size)


def tensors_of(block: Segment) -> list[Tensor]:
    """Keys, values, queries side by side in one storage, as DeviceCache lays them out."""
    storage, elements = Storage(block), int(np.prod(PLANES))
    return [Tensor(storage, 0, PLANES), Tensor(storage, elements, PLANES), Tensor(storage, 2 * elements, QUERIES)]


BYTES = 4 * (2 * int(np.prod(PLANES)) + int(np.prod(QUERIES)))


@pytest.mark.parametrize("brought", ["tensor", "interface", "pointer", "tuple", "expandable"])
def test_a_cache_of_torch_tensors(gpu_client: chunkkv.Client, brought: str) -> None:
    """Registered, compressed on the device, and every byte of the storage compared."""
    block = Segment(BYTES, expandable=brought == "expandable")
    cache = DeviceCache(gpu_client, seed=7, memory=block)
    wanted = kept_of(gpu_client.plan(cache.cache, **cache.request()))
    gpu_client.unregister_cache(cache.cache)
    gpu_client.unregister_region(cache.region)

    keys, values, queries = tensors_of(block)
    whole = Tensor(keys.untyped_storage(), 0, (BYTES // 4,))
    memory = {"interface": lambda: cuda.export(OnlyInterface(whole)), "tuple": lambda: of_tuple(keys),
              "pointer": lambda: cuda.export(keys.data_ptr(), BYTES)}.get(brought, lambda: cuda.export(values))()
    assert (memory.address, memory.size, memory.offset) == (block.address, BYTES, block.at), "the whole storage, once"
    assert memory.alloc_size == (MIB if memory.pieces else 2 * MIB)
    region = gpu_client.register_region(memory)
    layout = chunkkv.CacheLayout.of_arrays([keys[i] for i in range(LAYERS)], [values[i] for i in range(LAYERS)],
                                           axes="bthd", q_heads=4 * HEADS, region=region)
    registered = gpu_client.register_cache(layout)
    asked = cache.request() | {"queries": chunkkv.Queries.of_array(queries, region=region)}
    kept = kept_of(gpu_client.compress(registered, **asked))
    assert all(np.array_equal(a, b) for a, b in zip(kept, wanted, strict=True))
    assert np.array_equal(cache.everything, cache.moves(kept))


def test_storages_of_one_segment_share_its_handle(gpu_client: chunkkv.Client) -> None:
    """Two tensors of torch may lie in one allocation, which the daemon opens once."""
    block = Segment(8192)
    first = cuda.export(block.address, 4096)
    second = cuda.export(block.address + 4096, 4096)
    assert first.handle == second.handle
    assert second.offset == first.offset + 4096
    regions = [gpu_client.register_region(memory) for memory in (first, second)]
    assert [region.shared for region in regions] == [False, True]
    for region in regions:
        gpu_client.unregister_region(region)


def test_a_tensor_of_the_host_is_refused() -> None:
    tensor = Tensor(Storage(Segment(4096)), 0, (1024,))
    tensor.device = SimpleNamespace(type="cpu")  # type: ignore[misc]
    with pytest.raises(chunkkv.InvalidArgument, match="not on a CUDA device"):
        cuda.export(tensor)


def test_a_handle_that_was_not_unwrapped(gpu_client: chunkkv.Client) -> None:
    """All 66 bytes of torch on the wire: told by field, and nothing is held."""
    block = Segment(4096)
    wrapped = Storage(block)._share_cuda_()[1]
    assert len(wrapped) == 66
    memory = replace(cuda.export(block.address, 4096), handle=wrapped)
    error = refused(Code.BAD_MESSAGE, "register_region.cuda_ipc.handle", lambda: gpu_client.register_region(memory))
    assert "64" in str(error)
    gpu_client.unregister_region(gpu_client.register_region(replace(memory, handle=cuda.unwrap_handle(wrapped))))


def test_an_expandable_segment_has_no_handle() -> None:
    storage = Storage(Segment(4096, expandable=True))
    with pytest.raises(chunkkv.Unsupported, match="expandable_segments:False"):
        cuda.unwrap_handle(storage._share_cuda_()[1])
    memory = cuda.export(Tensor(storage, 0, (1024,)))
    assert [os.fstat(fd).st_size for fd, _ in memory.pieces] == [MIB]
