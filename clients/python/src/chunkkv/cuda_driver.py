"""The few entry points of the CUDA driver that an exporter of memory needs, by ctypes.

The driver is there wherever CUDA runs, whatever framework uses it.  Symbols are the exact versioned ones: cuda.h hides
the suffixes behind macros, and the plain names are older functions.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any

from .errors import Unsupported
from .wire import Code

CONTEXT, MEMORY_TYPE, BUFFER_ID, IS_MANAGED, DEVICE_ORDINAL = 1, 2, 7, 8, 9  # CUpointer_attribute
IS_LEGACY_IPC_CAPABLE, ALLOWED_HANDLE_TYPES, MEMPOOL_HANDLE = 10, 14, 17
DEVICE_MEMORY = 2  # CU_MEMORYTYPE_DEVICE
POSIX_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
HANDLE_BYTES = 64

_NAMES = (
    "cuInit", "cuGetErrorName", "cuGetErrorString", "cuPointerGetAttribute", "cuMemGetAddressRange_v2",
    "cuIpcGetMemHandle", "cuDeviceGet", "cuDeviceGetUuid_v2", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
    "cuMemRetainAllocationHandle", "cuMemExportToShareableHandle", "cuMemRelease",
)


class DriverError(Unsupported):
    """A call of the CUDA driver failed; `driver_code` is its CUresult."""


class Driver:
    """The driver's entry points: each call raises DriverError unless it succeeds."""

    def __init__(self, path: str = "libcuda.so.1") -> None:
        try:
            library = ctypes.CDLL(path)
            self._functions = {name: getattr(library, name) for name in _NAMES}
        except (OSError, AttributeError) as error:
            raise Unsupported(f"no CUDA driver that can export memory: {error}", code=Code.UNSUPPORTED,
                              field="register_region") from None
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """One call; arguments are ctypes values or ints that fit a C int."""
        status = self._functions[name](*arguments)
        if status != 0:
            raise DriverError(f"{name}: {self._text(status)}", code=Code.HANDLE_UNSUPPORTED, driver_code=status,
                              field="register_region")

    def attribute(self, address: int, number: int, kind: Any) -> int:
        """A pointer's attribute, as the ctypes integer type `kind`."""
        value = kind()
        self.call("cuPointerGetAttribute", ctypes.byref(value), number, ctypes.c_uint64(address))
        return int(value.value or 0)

    def flag(self, address: int, number: int) -> bool:
        """A yes-or-no attribute; no where this driver does not know it."""
        try:
            return self.attribute(address, number, ctypes.c_int) != 0
        except DriverError:
            return False

    def range(self, address: int) -> tuple[int, int]:
        """Base and bytes of the allocation that an address lies in."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return base.value, size.value

    def uuid(self, address: int) -> bytes:
        """The 16 bytes that name the GPU or MIG instance of an address."""
        device, name = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGet", ctypes.byref(device), self.attribute(address, DEVICE_ORDINAL, ctypes.c_int))
        self.call("cuDeviceGetUuid_v2", ctypes.byref(name), device)
        return bytes(name)

    def handle(self, address: int) -> tuple[bytes, int, int]:
        """The IPC handle of the allocation that an address lies in, its base and its bytes."""
        handle = (ctypes.c_ubyte * HANDLE_BYTES)()
        with self._context_of(address):
            base, size = self.range(address)
            self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle), base, size

    def descriptor(self, address: int) -> int:
        """A new descriptor of the VMM allocation that is mapped at an address; the caller closes it."""
        allocation, fd = ctypes.c_uint64(), ctypes.c_int(-1)
        self.call("cuMemRetainAllocationHandle", ctypes.byref(allocation), ctypes.c_void_p(address))
        try:
            self.call("cuMemExportToShareableHandle", ctypes.byref(fd), allocation, POSIX_DESCRIPTOR,
                      ctypes.c_uint64(0))
        finally:
            self.call("cuMemRelease", allocation)
        return fd.value

    @contextlib.contextmanager
    def _context_of(self, address: int) -> Iterator[None]:
        """Any thread may export: the memory's own context is current meanwhile."""
        context = self.attribute(address, CONTEXT, ctypes.c_void_p)
        self.call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _text(self, status: int) -> str:
        text = ctypes.c_char_p()
        known = self._functions["cuGetErrorName"](status, ctypes.byref(text)) == 0 and text.value
        return f"{text.value.decode() if known and text.value else 'error'} ({status})"


@cache
def driver() -> Driver:
    """The driver of this process; Unsupported where there is none."""
    return Driver()
