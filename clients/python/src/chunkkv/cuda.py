"""Device memory, made known to a daemon on the same GPU: nothing is copied, and no framework is needed.

`export()` takes a torch tensor, anything with `__cuda_array_interface__`, or a bare device pointer.  Memory of
cudaMalloc travels as an IPC handle, which opens the *whole* allocation: give a KV cache allocations of its own.
Memory of cuMemCreate travels as descriptors.  Whatever cannot be shared is recognised before the call, and the error
names the allocator and the way out.

The engine frees registered memory only after `Client.unregister_region()`.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import cuda_driver as cu
from .arrays import CudaInterface
from .checks import MOST_64, of_type, whole
from .errors import InvalidArgument, Unsupported, invalid
from .wire import Code

MOST_PIECES = 8192  # of one region
_MOST_FD = (1 << 31) - 1
_TORCH_HANDLE_VERSION = 2  # newest header of torch's handles that is known: version, type, 64 bytes


class _Descriptors:
    """Owner of the descriptors of VMM memory: closes them when the last DeviceMemory that has them is gone."""

    def __init__(self, pieces: tuple[tuple[int, int], ...]) -> None:
        self.all = frozenset(fd for fd, _ in pieces)
        weakref.finalize(self, _close_all, sorted(self.all))

    def __deepcopy__(self, memo: dict[int, Any]) -> _Descriptors:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("descriptors of device memory cannot be pickled: they are numbers of this process alone")


@dataclass(frozen=True)
class DeviceMemory:
    """What a daemon needs to know of device memory.  The handle is a secret of its bearer: it is never shown.

    Attributes:
        address: device pointer of the first byte, here.
        size: bytes, from there.
        device_uuid: 16 bytes, the GPU or MIG instance.
        handle: 64 bytes of cuIpcGetMemHandle; empty for VMM memory.
        alloc_size: bytes of the allocation that the handle opens, or of all pieces.
        offset: of the first byte in it.
        buffer_id: changes when the address is freed and used again.
        pieces: VMM memory: a descriptor for each allocation and its bytes, side by side; they are owned by this
            object and its copies (dataclasses.replace()), and are closed with the last of them.
    """

    address: int
    size: int
    device_uuid: bytes
    handle: bytes
    alloc_size: int
    offset: int
    buffer_id: int
    pieces: tuple[tuple[int, int], ...] = ()
    _owner: _Descriptors | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name, value, least in (("address", self.address, 0), ("size", self.size, 1), ("offset", self.offset, 0),
                                   ("alloc_size", self.alloc_size, 1), ("buffer_id", self.buffer_id, 0)):
            whole(f"DeviceMemory.{name}", value, least, MOST_64)
        of_type("DeviceMemory.device_uuid", self.device_uuid, bytes)
        of_type("DeviceMemory.handle", self.handle, bytes)
        for i, piece in enumerate(self.pieces):
            if not isinstance(piece, tuple | list) or len(piece) != 2:
                raise TypeError(f"DeviceMemory.pieces[{i}] must be a descriptor and its bytes, not {piece!r}")
            whole(f"DeviceMemory.pieces[{i}][0]", piece[0], 0, _MOST_FD)
            whole(f"DeviceMemory.pieces[{i}][1]", piece[1], 1, MOST_64)
        if self._owner is None or not self._owner.all.issuperset(fd for fd, _ in self.pieces):
            object.__setattr__(self, "_owner", _Descriptors(self.pieces) if self.pieces else None)

    def __repr__(self) -> str:
        kind = f"{len(self.pieces)} VMM pieces" if self.pieces else "IPC handle"
        return f"DeviceMemory({self.size} bytes at {self.address:#x}, {kind})"


def _close_all(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def unwrap_handle(handle: bytes) -> bytes:
    """The bare 64 bytes out of what torch's `UntypedStorage._share_cuda_()` calls a handle.

    Torch 2.5 and later put two bytes before them: a version, and 'c' for cudaMalloc or 'e' for expandable segments,
    which have no handle (c10/cuda/CUDACachingAllocator.cpp).
    """
    of_type("handle", handle, bytes, bytearray)
    if len(handle) == cu.HANDLE_BYTES:
        return bytes(handle)
    if len(handle) < 2 or handle[0] > _TORCH_HANDLE_VERSION:
        version = handle[0] if handle else "no"
        raise invalid("register_region.cuda_ipc.handle",
                      f"{len(handle)} bytes with header version {version}; known are the bare 64 bytes of "
                      f"cuIpcGetMemHandle and torch's 66 up to version {_TORCH_HANDLE_VERSION}")
    if handle[1:2] == b"e":
        raise _not_shareable("memory of torch's expandable segments has no IPC handle: give the tensor to "
                             "chunkkv.cuda.export(), or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False")
    if handle[1:2] != b"c" or len(handle) != cu.HANDLE_BYTES + 2:
        raise invalid("register_region.cuda_ipc.handle",
                      f"{len(handle)} bytes of type {handle[1:2]!r}; known is type b'c' with 66 bytes")
    return bytes(handle[2:])


def _not_shareable(detail: str) -> Unsupported:
    return Unsupported(detail, code=Code.HANDLE_UNSUPPORTED, field="register_region")


def _extent(memory: Any, size: int | None) -> tuple[int, int]:
    """Device pointer and bytes of what the caller brings."""
    if hasattr(memory, "untyped_storage"):
        if memory.device.type != "cuda":
            raise invalid("register_region", f"the tensor lies on {memory.device}, not on a CUDA device")
        storage = memory.untyped_storage()
        address, total = storage.data_ptr(), storage.nbytes()
    elif hasattr(memory, "__cuda_array_interface__"):
        array = CudaInterface(memory, "register_region")
        if any(stride < 0 for stride in array.strides):
            raise invalid("register_region", "an array with negative strides")
        address, total = array.address, array.extent
    else:
        if size is None:
            raise TypeError("export() of a device pointer needs its size")
        return whole("register_region.address", memory, 1, MOST_64), whole("register_region.size", size, 1, MOST_64)
    if total == 0:
        raise invalid("register_region", "the tensor or array has no bytes")
    return address, whole("register_region.size", total if size is None else size, 1, total)


def export(memory: Any, size: int | None = None) -> DeviceMemory:
    """Say what `Client.register_region()` needs of device memory, by pointer.

    Args:
        memory: a torch tensor (its whole storage), anything with `__cuda_array_interface__`, or a device pointer.
        size: bytes; None = all of the tensor or array.

    Raises:
        Unsupported: no driver, or memory that no other process can open; the message names the allocator and the way
            out.
        InvalidArgument: not device memory, or longer than its allocation.
    """
    address, size = _extent(memory, size)
    driver = cu.driver()
    try:
        kind = driver.attribute(address, cu.MEMORY_TYPE, ctypes.c_uint)
    except cu.DriverError:
        raise invalid("register_region", f"{address:#x} is no address that CUDA knows") from None
    if kind != cu.DEVICE_MEMORY or driver.flag(address, cu.IS_MANAGED):
        raise _not_shareable("managed or host memory cannot be shared as device memory: allocate the KV cache with "
                             "cudaMalloc (llama.cpp: without GGML_CUDA_ENABLE_UNIFIED_MEMORY)")
    buffer_id = driver.attribute(address, cu.BUFFER_ID, ctypes.c_uint64)
    if driver.flag(address, cu.IS_LEGACY_IPC_CAPABLE):
        handle, base, total = driver.handle(address)
        _check_extent(address, size, base, total)
        return DeviceMemory(address, size, driver.uuid(address), handle, total, address - base, buffer_id)
    return _export_pieces(driver, address, size, buffer_id)


def _check_extent(address: int, size: int, base: int, total: int) -> None:
    if address - base > total or size > total - (address - base):
        raise InvalidArgument(f"{size} bytes from byte {address - base} of an allocation of {total}",
                              code=Code.OUT_OF_RANGE, field="register_region.size")


def _export_pieces(driver: cu.Driver, address: int, size: int, buffer_id: int) -> DeviceMemory:
    """VMM memory: each allocation that the extent touches, as a descriptor."""
    if driver.flag(address, cu.MEMPOOL_HANDLE) or not driver.flag(address, cu.ALLOWED_HANDLE_TYPES):
        raise _not_shareable("memory of a stream-ordered pool (torch backend:cudaMallocAsync, RMM, cudarc) or of "
                             "cuMemCreate without POSIX descriptors cannot be shared: allocate the KV cache with "
                             "cuMemAlloc, or with cuMemCreate and CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR")
    pieces: list[tuple[int, int]] = []
    first, _ = driver.range(address)
    at = first
    try:
        while at < address + size:
            base, bytes_of_piece = driver.range(at)
            if base != at or len(pieces) == MOST_PIECES:
                raise _not_shareable(f"the extent is not made of at most {MOST_PIECES} allocations side by side")
            pieces.append((driver.descriptor(at), bytes_of_piece))
            at += bytes_of_piece
    except BaseException:
        _close_all([fd for fd, _ in pieces])
        raise
    return DeviceMemory(address, size, driver.uuid(address), b"", at - first, address - first, buffer_id, tuple(pieces))
