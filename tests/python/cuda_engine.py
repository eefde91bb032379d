"""Engines with device memory, and daemons that serve it, on the stand-in for the CUDA driver (tests/fake).

A device pointer of the stand-in is an address of this process, so what lies on the device can be looked at with NumPy.
The daemon is chunkkvd-standin, which carries images that no driver takes.  The stand-in opens memory of other processes
through /proc/PID/fd, which the daemon's sandbox forbids, and lies where the sandbox lets nothing be read: daemons here
run without, but for the tests of the sandbox itself.
"""

from __future__ import annotations

import ctypes
import functools
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

import chunkkv
from chunkkv import cuda
from daemon import Daemon, build_directory

GRANULE = 64 << 10  # of the stand-in's VMM
UUID = b"chunkkvd-standin"
U64 = ctypes.c_uint64


@functools.cache
def driver() -> ctypes.CDLL:
    """The stand-in, with the device's context on this thread; from then on it is what libcuda.so.1 means here."""
    library = ctypes.CDLL(str(build_directory() / "fake" / "libcuda.so.1"))
    context = ctypes.c_void_p()
    assert library.cuInit(0) == 0
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert library.cuCtxSetCurrent(context) == 0
    return library


class DeviceBlock:
    """Memory on the device: one allocation, or pieces side by side; all of it 0."""

    def __init__(self, size: int, pieces: Sequence[int] = ()) -> None:
        at, self.pieces = U64(), pieces
        if not pieces:
            assert driver().cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)) == 0
        else:
            size = sum(pieces)
            assert driver().cuMemAddressReserve(ctypes.byref(at), ctypes.c_size_t(size), 0, 0, 0) == 0
            self._map(at.value, pieces)
        self.address, self.size = at.value, size
        self._bytes = (ctypes.c_ubyte * size).from_address(self.address)

    @staticmethod
    def _map(at: int, pieces: Sequence[int]) -> None:
        prop = (ctypes.c_int * 8)(1, 1, 1, 0, 0, 0, 0, 0)  # CUmemAllocationProp: pinned, descriptors, on device 0
        access = (ctypes.c_int * 3)(1, 0, 3)
        handle = U64()
        for piece in pieces:
            assert driver().cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(piece), ctypes.byref(prop), 0) == 0
            assert driver().cuMemMap(U64(at), ctypes.c_size_t(piece), 0, handle, 0) == 0
            assert driver().cuMemRelease(handle) == 0
            assert driver().cuMemSetAccess(U64(at), ctypes.c_size_t(piece), ctypes.byref(access),
                                           ctypes.c_size_t(1)) == 0
            at += piece

    def free(self) -> None:
        """cuMemFree; whoever has opened it keeps it."""
        assert not self.pieces
        assert driver().cuMemFree_v2(U64(self.address)) == 0

    def numpy(self, shape: int | Sequence[int], dtype: Any, offset: int = 0,
              strides: Sequence[int] | None = None) -> NDArray[Any]:
        """A view, as SharedMemory.numpy()."""
        kind = np.uint16 if isinstance(dtype, str) and dtype == "bf16" else np.dtype(dtype)
        return np.ndarray(shape, kind, self._bytes, offset, strides)

    def export(self, offset: int = 0, size: int | None = None) -> cuda.DeviceMemory:
        """What register_region() takes."""
        return cuda.export(self.address + offset, self.size - offset if size is None else size)


def environment(**more: str) -> dict[str, str]:
    """Of a daemon that is to find the stand-in; FAIL="cuIpcOpenMemHandle_v2:1:205" and the like set its faults."""
    faults = {f"FAKECUDA_{name}": value for name, value in more.items()}
    return {"LD_LIBRARY_PATH": str(build_directory() / "fake"), **faults}


def start(*options: str, **faults: str) -> Daemon:
    """A daemon that serves the stand-in's one GPU."""
    return Daemon(options=("--backend", "cuda", "--sandbox", "off", *options), program="chunkkvd-standin",
                  environment=environment(**faults))


# ---- caches of engines

ROWS, HEADS, DIM, LAYERS, WINDOW, BLOCK = 128, 1, 16, 2, 8, 16
HALF = {"keep_ratio": 0.5, "policy": chunkkv.Policy(window=WINDOW)}
Memory = DeviceBlock | chunkkv.SharedMemory


class DeviceCache:
    """A paged cache of noise on the device, with queries; room for a copy of all rows behind it.

    With `memory`, it lies there instead: a twin on the host.
    """

    def __init__(self, client: chunkkv.Client, seed: int = 1, vmm: bool = False, memory: Memory | None = None) -> None:
        blocks = 2 * ROWS // BLOCK
        self.table = np.random.default_rng(seed).permutation(blocks)
        shape, queries_shape = (LAYERS, blocks, BLOCK, HEADS, DIM), (LAYERS, WINDOW, 4 * HEADS, DIM)
        size = 4 * int(np.prod(shape))
        total = 2 * size + 4 * int(np.prod(queries_shape))
        pieces = [GRANULE * (1 + i % 3) for i in range(total // GRANULE + 1)] if vmm else []
        self.memory = DeviceBlock(total, pieces) if memory is None else memory
        self.everything = self.memory.numpy(total, np.uint8)
        self.everything.view(np.float32)[...] = np.random.default_rng(seed).standard_normal(total // 4, np.float32)
        self.pristine = self.everything.copy()
        shared = self.memory.export() if isinstance(self.memory, DeviceBlock) else self.memory
        self.region = client.register_region(shared)
        self.planes = [self.memory.numpy(shape, np.float32, i * size) for i in (0, 1)]
        self.queries = chunkkv.Queries.of_array(self.memory.numpy(queries_shape, np.float32, 2 * size),
                                                region=self.region, dtype="f32")
        self.cache = client.register_cache(chunkkv.CacheLayout.of_arrays(
            list(self.planes[0]), list(self.planes[1]), axes="bthd", q_heads=4 * HEADS, region=self.region,
            dtype="f32"))

    def request(self) -> dict[str, Any]:
        """Half of the rows."""
        return {"rows": ROWS, "table": self.table[: ROWS // BLOCK], "queries": self.queries, "timeout": 60, **HALF}

    @property
    def spare(self) -> NDArray[Any]:
        """Blocks for a copy."""
        return self.table[ROWS // BLOCK :]

    def moves(self, kept: Sequence[NDArray[Any]], table: NDArray[Any] | None = None) -> NDArray[np.uint8]:
        """All bytes after these rows of each layer went to the first rows of a table; None: of the cache's own."""
        after = self.pristine.copy()
        table = self.table if table is None else table
        for number, plane in enumerate(self.planes):
            old, new = (np.ndarray(plane.shape, np.float32, of.data, number * plane.nbytes)
                        for of in (self.pristine, after))
            for layer, rows in enumerate(kept):
                to = np.arange(len(rows))
                new[layer, table[to // BLOCK], to % BLOCK] = old[layer, self.table[rows // BLOCK], rows % BLOCK]
        return after


def kept_of(answer: chunkkv.Answer) -> list[NDArray[np.int64]]:
    """Rows that each layer keeps."""
    return [answer.layers[i].rows.astype(np.int64) for i in range(LAYERS)]


# ---- what engines do in processes of their own


def idle(client: chunkkv.Client, pipe: Connection) -> None:
    """Registered, and waiting to be killed."""
    cache = DeviceCache(client, vmm=pipe.recv())
    pipe.send("ready")
    signal.pause()
    del cache


def planning(client: chunkkv.Client, pipe: Connection) -> None:
    """One request after the other, so that one is in the device whenever the kill comes."""
    cache = DeviceCache(client, vmm=pipe.recv())
    pipe.send("ready")
    while True:
        client.plan(cache.cache, **cache.request())


def registering(client: chunkkv.Client, pipe: Connection) -> None:
    """In the middle of a registration when the kill comes."""
    memory = DeviceBlock(1 << 20).export()
    pipe.send("ready")
    client.register_region(memory, timeout=60)


def checking(client: chunkkv.Client, pipe: Connection) -> None:
    """In place again and again, each time compared with the plan, byte by byte, until told to stop."""
    seed, vmm = pipe.recv()
    cache, laps = DeviceCache(client, seed, vmm), 0
    expected = cache.moves(kept_of(client.plan(cache.cache, **cache.request())))
    pipe.send("ready")
    while not pipe.poll() or laps == 0:
        cache.everything[...] = cache.pristine
        client.compress(cache.cache, **cache.request())
        assert np.array_equal(cache.everything, expected), "other bytes than those of the plan"
        laps += 1
    pipe.send(laps)


def bringing(client: chunkkv.Client, pipe: Connection) -> None:
    """Registers what it is sent, and tells the code it got."""
    try:
        client.register_region(pipe.recv())
    except chunkkv.ChunkkvError as error:
        pipe.send(error.code)
    else:
        pipe.send(chunkkv.Code.OK)
