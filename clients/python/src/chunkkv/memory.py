"""Sealed shared memory: what a daemon accepts as a region.

A memfd that is fully allocated and sealed against shrinking, growing and further seals.  Read-only memory
is also sealed against future writable mappings, after our own is made: the daemon can then only read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import whole
from .dtypes import element_type, storage

_F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h; Python 3.11 does not name it
_SHM = "/dev/shm"
MOST_BYTES = 1 << 46  # of one region
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def _let_go(fd: int, name: str | None) -> None:
    os.close(fd)
    if name is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_SHM + name)


def _is_torch_type(dtype: Any) -> bool:
    return str(dtype).startswith("torch.")


class SharedMemory:
    """A sealed memfd, or a file with a POSIX shm name, and this process's mapping of it.

    Views stay valid as long as they are referenced, also after close(): they keep the mapping alive.
    """

    def __init__(self, fd: int, size: int, read_only: bool, mapping: mmap.mmap, name: str | None = None) -> None:
        self._fd = fd
        self._finalizer = weakref.finalize(self, _let_go, fd, name)
        self._name = name
        self._size = size
        self._read_only = read_only
        self._mapping: mmap.mmap | None = mapping
        self._address = int(np.frombuffer(mapping, np.uint8).__array_interface__["data"][0])

    @classmethod
    def allocate(cls, size: int, *, name: str = "chunkkv", read_only: bool = False) -> SharedMemory:
        """Memory of at least `size` bytes (whole pages), all zero, allocated now and not on first use.

        Args:
            size: bytes, at least 1.
            name: shown in /proc/PID/maps, for people.
            read_only: the daemon may only read it; enough for queries and for plan().
        """
        size = whole("size", size, 1, MOST_BYTES)
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            os.posix_fallocate(fd, 0, size)
            mapping = mmap.mmap(fd, size)
            seals = _SEALS | (_F_SEAL_FUTURE_WRITE if read_only else 0)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd, size, read_only, mapping)

    @classmethod
    def named(cls, size: int) -> SharedMemory:
        """Memory of at least `size` bytes under a POSIX shm name, for daemons that allow it (`--posix-shm on`).

        Nothing seals it, so the daemon copies it in and out instead of mapping it, and a move in place that is cut
        off cannot be repaired.  Take allocate() wherever a descriptor can be sent.  The name goes with close().
        """
        size = whole("size", size, 1, MOST_BYTES)
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        name = f"/chunkkv-{os.geteuid()}-{secrets.token_hex(16)}"
        fd = os.open(_SHM + name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, size)
            mapping = mmap.mmap(fd, size)
        except BaseException:
            _let_go(fd, name)
            raise
        return cls(fd, size, False, mapping, name)

    @property
    def name(self) -> str | None:
        """Its POSIX shm name, None for a memfd."""
        return self._name

    def fileno(self) -> int:
        """The memfd; it stays owned by this object."""
        if self._fd < 0:
            raise ValueError("shared memory is closed")
        return self._fd

    @property
    def descriptor(self) -> int:
        """The memfd; -1 when it is closed."""
        return self._fd

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    @property
    def read_only(self) -> bool:
        """True when the daemon can only read it."""
        return self._read_only

    @property
    def address(self) -> int:
        """Where the mapping begins in this process."""
        return self._address

    @property
    def buffer(self) -> mmap.mmap:
        """The mapping itself."""
        if self._mapping is None:
            raise ValueError("shared memory is closed")
        return self._mapping

    def numpy(self, shape: int | Sequence[int], dtype: Any, offset: int = 0,
              strides: Sequence[int] | None = None) -> NDArray[Any]:
        """A NumPy view.

        Args:
            shape: elements along each axis.
            dtype: name ("bf16", "f32", ...) or NumPy type; bf16 comes as uint16.
            offset: bytes from the beginning.
            strides: bytes; None = contiguous.
        """
        kind = storage(element_type(dtype)) if isinstance(dtype, (str, int)) or _is_torch_type(dtype) \
            else np.dtype(dtype)
        return np.ndarray(shape, kind, self.buffer, offset, strides)

    def torch(self, shape: Sequence[int], dtype: Any, offset: int = 0) -> Any:
        """A contiguous torch view; torch must be installed.

        Args:
            shape: elements along each axis.
            dtype: a torch type, such as torch.bfloat16.
            offset: bytes from the beginning.
        """
        import torch

        count = int(np.prod(shape, dtype=np.int64))
        return torch.frombuffer(self.buffer, dtype=dtype, count=count, offset=offset).reshape(*shape)

    def close(self) -> None:
        """Close the memfd and drop the mapping; what still has a view of it keeps it alive."""
        self._finalizer()
        self._fd = -1
        self._mapping = None  # not mapping.close(): views may exist, and the last one frees it

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
