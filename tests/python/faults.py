"""Orders to tests/fault.c: which calls of the C library fail in a core or its first gate, while they run."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kill_matrix
from daemon import Daemon

CALLS = ("malloc accept4 recvmsg sendmsg mmap fstat fcntl epoll_wait epoll_ctl pidfd_open posix_spawn memfd_create "
         "eventfd timerfd_create socketpair getsockopt ftruncate open poll pthread_create read write mincore waitid "
         "posix_fallocate").split()


class Order(ctypes.Structure):
    """struct order of tests/fault.c"""

    _fields_ = [("error", ctypes.c_uint32), ("begin", ctypes.c_uint32), ("count", ctypes.c_uint32),
                ("permyriad", ctypes.c_uint32), ("seen", ctypes.c_uint64), ("failed", ctypes.c_uint64)]


class Faults:
    """What fails in processes that are started by preloaded()."""

    def __init__(self) -> None:
        size = 2 * len(CALLS) * ctypes.sizeof(Order)
        with tempfile.NamedTemporaryFile(prefix="chunkkv-fault-", delete=False) as file:
            file.truncate(size)
            self.path = Path(file.name)
            self._map = mmap.mmap(file.fileno(), size)
        self._orders = (Order * (2 * len(CALLS))).from_buffer(self._map)

    def order(self, call: str, in_gate: bool = False) -> Order:
        """Of one call."""
        found: Order = self._orders[CALLS.index(call) + in_gate * len(CALLS)]
        return found

    def fail(self, call: str, error: int, begin: int, count: int = 1, *, in_gate: bool = False) -> None:
        """`count` calls with `error`, the first of them the `begin`-th from now on."""
        order = self.order(call, in_gate)
        order.error, order.permyriad = 0, 0
        order.seen, order.failed = 0, 0
        order.begin, order.count = begin, count
        order.error = error

    def fail_by_chance(self, call: str, error: int, permyriad: int, seed: int, *, in_gate: bool = False) -> None:
        """So many of 10,000 calls."""
        order = self.order(call, in_gate)
        order.error = 0
        order.seen, order.failed = 0, 0
        order.begin, order.permyriad = seed, permyriad
        order.error = error

    def stop(self) -> int:
        """All goes well from now on. Return: how many calls failed since it was told to."""
        failed = 0
        for order in self._orders:
            failed += order.failed if order.error else 0
            order.error = 0
        return failed

    @contextmanager
    def preloaded(self) -> Iterator[None]:
        """Daemons that start meanwhile obey, and so do their first gates."""
        library = kill_matrix.make_build() / "fault.so"
        ours = {"LD_PRELOAD": str(library), "CHUNKKVD_FAULT": str(self.path)}
        os.environ.update(ours)
        try:
            yield
        finally:
            for name in ours:
                del os.environ[name]

    def daemon(self, endpoints: tuple[str, ...], options: tuple[str, ...]) -> Daemon:
        """One that obeys."""
        with self.preloaded():
            return Daemon(endpoints=endpoints, options=options)

    def close(self) -> None:
        del self._orders
        self._map.close()
        self.path.unlink()
