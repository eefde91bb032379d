"""Export of device memory by pointer, against the stand-in for the CUDA driver (tests/fake).

Each case is a process of its own that loads the stand-in first: libraries are known by their soname from then on.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import chunkkv
from chunkkv import Code, cuda
from cuda_engine import driver
from daemon import is_sanitizer_build

TOTAL, PIECE = 1 << 20, 64 << 10
U64 = ctypes.c_uint64


def allocate(library: ctypes.CDLL, function: str, *more: int) -> int:
    at = U64()
    assert getattr(library, function)(ctypes.byref(at), ctypes.c_size_t(TOTAL), *more) == 0
    return at.value


def opened_elsewhere(memory: cuda.DeviceMemory) -> bytes:
    """Four bytes of the region, as another process sees them through the handle."""
    child = subprocess.run([sys.executable, __file__, "open_handle"], input=memory.handle, capture_output=True,
                           check=True, timeout=60)
    return child.stdout[memory.offset:memory.offset + 4]


def open_handle() -> None:
    base, library = U64(), driver()
    handle = (ctypes.c_ubyte * 64).from_buffer_copy(sys.stdin.buffer.read())

    class Handle(ctypes.Structure):
        _fields_ = (("reserved", ctypes.c_ubyte * 64),)

    assert library.cuIpcOpenMemHandle_v2(ctypes.byref(base), Handle(handle), 1) == 0
    assert base.value
    sys.stdout.buffer.write(ctypes.string_at(base.value, TOTAL))


def case_handle() -> None:
    base = allocate(driver(), "cuMemAlloc_v2")
    ctypes.memset(base + 300, 7, 100)
    memory = cuda.export(base + 300, 100)
    assert (memory.address, memory.size, memory.offset, memory.alloc_size) == (base + 300, 100, 300, TOTAL)
    assert memory.device_uuid == b"chunkkvd-standin"
    assert memory.buffer_id
    assert opened_elsewhere(memory) == b"\7\7\7\7"
    with pytest.raises(chunkkv.InvalidArgument, match="allocation of 1048576") as caught:
        cuda.export(base + 300, TOTAL)
    assert caught.value.code == Code.OUT_OF_RANGE


def case_any_thread() -> None:
    """A thread without a context exports as well, and has none afterwards."""
    library = driver()
    base = allocate(library, "cuMemAlloc_v2")
    seen: list[object] = []

    def export() -> None:
        seen.append(cuda.export(base, TOTAL).handle)
        seen.append(library.cuMemAlloc_v2(ctypes.byref(U64()), ctypes.c_size_t(8)))

    thread = threading.Thread(target=export)
    thread.start()
    thread.join()
    assert seen == [cuda.export(base, TOTAL).handle, 201]


def case_pieces() -> None:
    """VMM memory: a descriptor for each allocation that the extent touches."""
    library = driver()
    at, handle = U64(), U64()
    prop = (ctypes.c_int * 8)(1, 1, 1, 0, 0, 0, 0, 0)  # CUmemAllocationProp: pinned, descriptors, on device 0
    access = (ctypes.c_int * 3)(1, 0, 3)
    assert library.cuMemAddressReserve(ctypes.byref(at), ctypes.c_size_t(3 * PIECE), 0, 0, 0) == 0
    for i in range(3):
        assert library.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(PIECE), ctypes.byref(prop), 0) == 0
        assert library.cuMemMap(U64(at.value + i * PIECE), ctypes.c_size_t(PIECE), 0, handle, 0) == 0
        assert library.cuMemRelease(handle) == 0
    assert library.cuMemSetAccess(at, ctypes.c_size_t(3 * PIECE), ctypes.byref(access), ctypes.c_size_t(1)) == 0
    memory = cuda.export(at.value + PIECE + 10, PIECE)
    assert (memory.handle, memory.offset, memory.alloc_size) == (b"", 10, 2 * PIECE)
    assert [size for _, size in memory.pieces] == [PIECE, PIECE]
    ctypes.memset(at.value + 2 * PIECE, 9, 4)
    assert os.pread(memory.pieces[1][0], 4, 0) == b"\t\t\t\t"


def case_pool() -> None:
    base = allocate(driver(), "cuMemAllocAsync", 0)
    with pytest.raises(chunkkv.Unsupported, match="stream-ordered pool") as caught:
        cuda.export(base, 100)
    assert caught.value.code == Code.HANDLE_UNSUPPORTED


def case_managed() -> None:
    library = driver()
    host = ctypes.c_void_p()
    assert library.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(4096), 0) == 0
    for address in (allocate(library, "cuMemAllocManaged", 1), host.value):
        with pytest.raises(chunkkv.Unsupported, match="managed or host memory"):
            cuda.export(address, 100)


def case_unknown() -> None:
    driver()
    with pytest.raises(chunkkv.InvalidArgument, match="no address that CUDA knows"):
        cuda.export(4096, 100)


def case_error() -> None:
    """An error of the driver comes with its name and its number."""
    os.environ["FAKECUDA_FAIL"] = "cuIpcGetMemHandle:1:801"
    base = allocate(driver(), "cuMemAlloc_v2")
    with pytest.raises(chunkkv.Unsupported, match=r"cuIpcGetMemHandle: .*\(801\)") as caught:
        cuda.export(base, 100)
    assert caught.value.driver_code == 801
    assert len(cuda.export(base, 100).handle) == 64


CASES: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (case_handle, case_any_thread, case_pieces, case_pool, case_managed, case_unknown, case_error)
}


@pytest.mark.skipif(is_sanitizer_build(), reason="a library with a sanitizer cannot be loaded into Python")
@pytest.mark.parametrize("case", CASES)
def test_export(case: str) -> None:
    child = subprocess.run([sys.executable, __file__, case], capture_output=True, text=True, timeout=120, check=False,
                           env=os.environ | {"PYTHONPATH": os.pathsep.join([p for p in sys.path if p])})
    assert child.returncode == 0, child.stderr


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    (CASES | {"open_handle": open_handle})[sys.argv[1]]()
