"""A region: memory that the daemon has mapped, and slices of it."""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._pb import chunkkv_pb2 as pb
from .arrays import address_of
from .checks import MOST_64, out_of_range, whole
from .cuda import DeviceMemory
from .errors import invalid
from .memory import SharedMemory
from .wire import Access


@dataclass(frozen=True)
class Slice:
    """A piece of a registered region, in bytes."""

    region: Region
    offset: int
    size: int

    def to_message(self) -> pb.Slice:
        """The wire's message."""
        whole("slice.offset", self.offset, 0, MOST_64)
        whole("slice.size", self.size, 0, MOST_64)
        return pb.Slice(region_id=self.region.id, offset=self.offset, size=self.size)


@dataclass(eq=False)
class Region:
    """Memory that the daemon has mapped.  A daemon that is started anew maps it again, under another number.

    Attributes:
        id: the daemon's number for it, in the session of now.
        size: bytes.
        access: what the daemon may do with it.
        shared: the daemon had mapped this memory already.
        address: where the region begins in this process; 0 = not mapped here.
        memory: what lies behind it; None if only a descriptor was given.
        session: which session of this process it belongs to.
        start: where it begins in its memory or file.
    """

    id: int
    size: int
    access: Access
    shared: bool = False
    address: int = 0
    memory: SharedMemory | DeviceMemory | None = None
    session: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        self._fd = -1

    def __repr__(self) -> str:
        return f"Region(id={self.id}, size={self.size}, access={self.access.name}, session={self.session})"

    def keep(self, fd: int) -> None:
        """Keep a descriptor of the file for registering it again; `fd` stays the caller's."""
        self._fd = os.dup(fd)
        self._finalizer = weakref.finalize(self, os.close, self._fd)

    def forget(self) -> None:
        """It is not registered any more: close what was kept."""
        if self._fd >= 0:
            self._finalizer()
            self._fd = -1

    def source(self) -> SharedMemory | DeviceMemory | int | None:
        """What it was registered from, to register it again; None when that is closed."""
        if isinstance(self.memory, DeviceMemory):
            return self.memory
        return None if self.fileno() < 0 else self._fd if self.memory is None else self.memory

    def fileno(self) -> int:
        """The file behind it; -1 when it is closed, or device memory."""
        if isinstance(self.memory, DeviceMemory):
            return -1
        return self._fd if self.memory is None else self.memory.descriptor

    def view(self) -> NDArray[np.uint8] | None:
        """All bytes of it, as they are mapped here; None when the memory behind it is closed, or on a device."""
        fd = self.fileno()
        if fd < 0:
            return None
        if isinstance(self.memory, SharedMemory):
            return np.frombuffer(self.memory.buffer, np.uint8, self.size, self.start)
        access = mmap.ACCESS_READ if self.access == Access.READ else mmap.ACCESS_WRITE
        try:
            return np.frombuffer(mmap.mmap(fd, self.start + self.size, access=access), np.uint8, self.size, self.start)
        except OSError:
            return None

    def slice(self, offset: int = 0, size: int | None = None) -> Slice:
        """A piece of the region; size None = to its end."""
        offset = whole("slice.offset", offset, 0, self.size)
        size = self.size - offset if size is None else whole("slice.size", size, 0, MOST_64)
        if offset + size > self.size:
            raise out_of_range("slice", f"bytes {offset} to {offset + size} of a region of {self.size}")
        return Slice(self, offset, size)

    def offset_of(self, array: Any, path: str = "array") -> int:
        """Byte offset of an array's first element, which must lie in the region."""
        offset = address_of(array, path) - self.address
        if self.address == 0 or not 0 <= offset < self.size:
            raise invalid(path, f"the array does not lie in region {self.id}")
        return offset
