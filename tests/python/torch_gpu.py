"""A GPU for torch: a real one, or on machines without one the stand-in for the driver.

With the stand-in, models compute on the CPU, and their caches lie in its device memory, which is memory of this
machine that only a daemon of `--backend cuda` can be told of.  Of torch three functions are replaced: the allocation of
bytes on a GPU, the stream, and the GPU's name.  Nothing of chunkkv.transformers is.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

import pytest
import torch

import chunkkv
import cuda_engine as engine
from chunkkv import cuda_driver
from chunkkv.transformers import place
from daemon import Daemon

REAL = os.environ.get("CHUNKKV_TEST_DEVICE") == "cuda"  # set by make check-transformers DEVICE=cuda
DEVICE = torch.device("cuda", 0)
SMALL, SHARED, ALIGN = 1 << 20, 2 << 20, 512  # bytes: as torch's allocator puts small tensors into one allocation


class StandIn:
    """What torch's allocator gives on a GPU, from the stand-in.

    Attributes:
        kind: "malloc" = allocations of cudaMalloc, small tensors inside a larger one; "segments" = expandable segments
            with descriptors; "pool" = cudaMallocAsync.
        events: what happened, in order: "wait", "register", "compress", "unregister", "free".
    """

    def __init__(self) -> None:
        self.kind = "malloc"
        self.events: list[str] = []
        self._shared: Any = None
        self._used = SHARED

    def empty(self, size: int) -> torch.Tensor:
        """Bytes that hold anything."""
        address = {"malloc": self._malloc, "segments": self._segments, "pool": self._pool}[self.kind](size)
        array = (ctypes.c_ubyte * size).from_address(address)
        ctypes.memset(address, 0xFF, size)  # not a number, in every type
        weakref.finalize(array, self._free, address, size).atexit = False
        return torch.frombuffer(array, dtype=torch.uint8)

    def _malloc(self, size: int) -> int:
        if size >= SMALL:
            return int(engine.DeviceBlock(size).address)
        if self._used + size > SHARED:
            self._shared, self._used = engine.DeviceBlock(SHARED), 0
        at = self._shared.address + self._used
        self._used += -(-size // ALIGN) * ALIGN
        return int(at)

    @staticmethod
    def _segments(size: int) -> int:
        return int(engine.DeviceBlock(0, [engine.GRANULE] * (size // engine.GRANULE + 1)).address)

    @staticmethod
    def _pool(size: int) -> int:
        at = ctypes.c_uint64()
        assert engine.driver().cuMemAllocAsync(ctypes.byref(at), ctypes.c_size_t(size), None) == 0
        return at.value

    def _free(self, address: int, size: int) -> None:
        """Torch would give it to another tensor."""
        self.events.append("free")
        ctypes.memset(address, 0xFF, size)


class Gpu:
    """The GPU of a test.

    Attributes:
        daemon: that serves it.
        device: where to put models and prompts.
        stand_in: None with a real one.
    """

    def __init__(self, daemon: Daemon, stand_in: StandIn | None) -> None:
        self.daemon, self.stand_in = daemon, stand_in
        self.device = DEVICE if stand_in is None else torch.device("cpu")

    @property
    def endpoint(self) -> str:
        """Of its daemon."""
        return self.daemon.prefix()


def start_daemon() -> Daemon:
    """A daemon for the GPU."""
    if not REAL:
        return engine.start()
    assert torch.cuda.is_available(), "this torch sees no GPU: make check-transformers DEVICE=cuda PYTHON=..."
    uuid = torch.cuda.get_device_properties(DEVICE).uuid
    return Daemon(options=("--backend", "cuda", "--device", str(uuid)))


def put_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Let torch have the stand-in for a GPU until the end of the test; models on the CPU count as being there."""
    made, empty = StandIn(), torch.empty
    engine.driver()

    def allocate(*shape: Any, **given: Any) -> torch.Tensor:
        if getattr(given.get("device"), "type", "") != "cuda":
            return empty(*shape, **given)
        assert given == {"dtype": torch.uint8, "device": DEVICE}
        return made.empty(*shape)

    class Stream:
        def __init__(self, device: torch.device) -> None:
            assert device == DEVICE

        def synchronize(self) -> None:
            made.events.append("wait")

    def told(name: str, event: str) -> None:
        original = getattr(chunkkv.Client, name)

        def call(*args: Any, **given: Any) -> Any:
            made.events.append(event)
            return original(*args, **given)

        monkeypatch.setattr(chunkkv.Client, name, call)

    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"stand-in {device.index}")
    monkeypatch.setitem(place.PLACES, "cpu", lambda _: place.GpuPlace(DEVICE))
    told("register_region", "register")
    told("compress", "compress")
    told("unregister_region", "unregister")
    return made


def other_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the model's GPU is another than the daemon's."""
    monkeypatch.setattr(cuda_driver.Driver, "uuid", lambda *_: bytes(range(16)))
