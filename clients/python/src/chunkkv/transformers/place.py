"""Where the rows of a cache lie: in shared memory for a model on the CPU, in memory of the GPU for a model there.

Everything else in this package is the same for both: it allocates, views and registers, and waits, before the daemon
reads, for what the model has queued.  On a GPU the memory is ordinary memory of torch's allocator, made known to the
daemon by its handle.  That was tried on a stand-in for the driver, and not yet on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol
from uuid import UUID

import torch

from .. import cuda
from ..cuda_driver import DriverError
from ..endpoint import DEFAULT_PREFIX, prefixes_of_gpus
from ..errors import Unsupported
from ..memory import SharedMemory
from ..wire import Code


class Memory(Protocol):
    """Bytes that tensors of the model lie in, and that a daemon can be told of.

    Attributes:
        size: bytes.
        source: what `Client.register_region()` takes.
    """

    size: int
    source: SharedMemory | cuda.DeviceMemory

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A contiguous view from a byte on."""
        ...

    def close(self) -> None:
        """Let it go; it is not registered any more.  Views keep it alive."""
        ...


class Place(Protocol):
    """Where a model is, and with it its cache.

    Attributes:
        device: torch's name for it.
    """

    device: torch.device

    @property
    def uuid(self) -> bytes:
        """16 bytes of the GPU; empty for the CPU."""
        ...

    @property
    def start(self) -> str:
        """How to start a daemon for it."""
        ...

    def allocate(self, size: int, name: str) -> Memory:
        """Memory of at least so many bytes; the name is for people."""
        ...

    def synchronize(self) -> None:
        """Return when all that the model has queued is written."""
        ...

    def prefixes(self) -> Sequence[str]:
        """Endpoints of the daemons that may serve it, where none is named."""
        ...


class HostMemory:
    """A piece of shared memory."""

    def __init__(self, size: int, name: str) -> None:
        self.source = SharedMemory.allocate(size, name=name)
        self.size = self.source.size

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A contiguous view from a byte on."""
        view: torch.Tensor = self.source.torch(shape, dtype, offset)
        return view

    def close(self) -> None:
        """Let it go; views keep it alive."""
        self.source.close()


class HostPlace:
    """The CPU."""

    uuid = b""
    start = "`chunkkvd --runtime-dir DIR --endpoint main`"

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __str__(self) -> str:
        return "the CPU"

    def allocate(self, size: int, name: str) -> HostMemory:
        """Shared memory; its name shows in /proc/PID/maps."""
        return HostMemory(size, name)

    def synchronize(self) -> None:
        """Nothing to wait for: what torch does on the CPU is done when it returns."""

    def prefixes(self) -> Sequence[str]:
        """That of the system's own instance for the CPU."""
        return [DEFAULT_PREFIX]


class GpuMemory:
    """Memory of a GPU from torch's allocator, which may lie in a larger allocation: the daemon opens all of that.

    Torch frees it by putting it aside for other tensors, in the order of its stream; so it is unregistered before.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self._bytes: torch.Tensor | None = torch.empty(size, dtype=torch.uint8, device=device)
        try:
            self.source = cuda.export(self._bytes.data_ptr(), size)
        except DriverError:
            raise
        except Unsupported as error:
            if error.code != Code.HANDLE_UNSUPPORTED:
                raise
            raise Unsupported(f"torch allocates memory on {device} that no other process can open: set "
                              "PYTORCH_CUDA_ALLOC_CONF=backend:native,expandable_segments:False before the program "
                              f"starts ({error.detail})", code=error.code) from None

    def tensor(self, shape: Sequence[int], dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
        """A contiguous view from a byte on."""
        assert self._bytes is not None
        end = offset + math.prod(shape) * dtype.itemsize
        return self._bytes[offset:end].view(dtype).reshape(*shape)

    def close(self) -> None:
        """Let it go; views keep it alive."""
        self._bytes = None


class GpuPlace:
    """One GPU of CUDA."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __str__(self) -> str:
        return f"{self.device} ({gpu_name(torch.cuda.get_device_name(self.device), self.uuid)})"

    @cached_property
    def uuid(self) -> bytes:
        """That of the GPU or MIG instance, as the driver says it of memory there."""
        memory = GpuMemory(1, self.device)
        return memory.source.device_uuid

    @property
    def start(self) -> str:
        """With the GPU by its UUID, as numbers depend on who counts."""
        return f"`chunkkvd --backend cuda --device {UUID(bytes=self.uuid)} --runtime-dir DIR --endpoint main`"

    def allocate(self, size: int, name: str) -> GpuMemory:
        """Memory of torch's allocator, which has no names."""
        return GpuMemory(size, self.device)

    def synchronize(self) -> None:
        """Wait for the stream of this thread: the daemon is in another process, which no event of ours can hold."""
        torch.cuda.current_stream(self.device).synchronize()

    def prefixes(self) -> Sequence[str]:
        """Those of all GPUs of this machine: which one is ours, their daemons say."""
        return prefixes_of_gpus()


def gpu_name(name: str, uuid: bytes) -> str:
    """A GPU, or an instance of one, for people."""
    return f"{name}, UUID {UUID(bytes=uuid)}"


PLACES: dict[str, Callable[[torch.device], Place]] = {"cpu": HostPlace, "cuda": GpuPlace}  # by torch's device type


def place_at(device: torch.device) -> Place:
    """The place of tensors on a device.

    Raises:
        Unsupported: there is no daemon for such.
    """
    if device.type not in PLACES:
        raise Unsupported(f"the model is on {device}: chunkkv.transformers takes models on the CPU or on a GPU of CUDA")
    return PLACES[device.type](device)


def place_of(model: torch.nn.Module) -> Place:
    """The one place of a model's weights.

    Raises:
        Unsupported: they are on several, or where no daemon is.
    """
    # meta: weights that accelerate brings to where they are needed
    devices = {weight.device for weight in model.parameters() if weight.device.type != "meta"}
    if len(devices) > 1:
        raise Unsupported(f"the model is spread over {', '.join(sorted(map(str, devices)))}: all layers of a cache are "
                          "compressed together, by the daemon of one device; load the model onto one, such as "
                          'device_map="cuda:0"')
    return place_at(devices.pop() if devices else torch.device("cpu"))
