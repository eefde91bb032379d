"""Engines as processes of their own, which a test may kill or stop; what they do; and how far they are."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import chunkkv
from chunkkv.wire import Slot
from daemon import Daemon

FORK = multiprocessing.get_context("fork")
PR_SET_PDEATHSIG = 1
ROWS = 4096  # of the caches that are compared bit for bit
SLOWLY = ("--cpu-path", "scalar")  # options of a daemon whose long work must last until somebody has looked at it
LONG_ROWS = 32768  # of the one that takes long to score: a second of such a daemon, a tenth where the machine is fast
WIDE_ROWS = 8192  # of the one that takes long to move: 4 KiB for each row and plane
NOISE = np.random.default_rng(1).normal(size=(4, ROWS, 2, 64))  # made here: a tenant of another user imports nothing

Work = Callable[[chunkkv.Client, Connection], None]


def _live(prefix: str, work: Work, uid: int | None, pipe: Connection) -> None:
    # should the tests be killed, their tenants go too
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        with chunkkv.Client(prefix) as client:
            work(client, pipe)
    except Exception as error:
        pipe.send(f"failed: {error!r}")


class Tenant:
    """Runs `work(client, pipe)` in a forked process, as `uid` if given; the other end of the pipe is here."""

    def __init__(self, prefix: str, work: Work, uid: int | None = None) -> None:
        self._pipe, theirs = FORK.Pipe()
        self._process = FORK.Process(target=_live, args=(prefix, work, uid, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def say(self, word: object) -> None:
        """Send it something."""
        try:
            self._pipe.send(word)
        except BrokenPipeError:
            raise AssertionError(f"the tenant has ended: {self.hear()}") from None

    def hear(self, seconds: float = 60.0) -> Any:
        """What it says next; a failure of it is one of the test."""
        assert self._pipe.poll(seconds), "the tenant is silent"
        word = self._pipe.recv()
        assert not (isinstance(word, str) and word.startswith("failed")), word
        return word

    def signal(self, number: int) -> None:
        """SIGSTOP, SIGCONT or SIGKILL."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def end(self) -> None:
        """Kill it, if it still lives, and forget it."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def __enter__(self) -> Tenant:
        return self

    def __exit__(self, *of_no_interest: object) -> None:
        self.end()


# ---- caches, and what to do with them


def filled(client: chunkkv.Client) -> chunkkv.SharedCache:
    cache = chunkkv.SharedCache.allocate(client, layers=2, tokens=ROWS, kv_heads=2, q_heads=8, head_dim=64,
                                         dtype="f32", window=32)
    for layer in (0, 1):
        cache.write(layer, key=NOISE[layer], value=NOISE[layer + 2], query=NOISE[layer, :128].reshape(32, 8, 64))
    return cache


def long_to_score(client: chunkkv.Client) -> chunkkv.SharedCache:
    cache = chunkkv.SharedCache.allocate(client, layers=4, tokens=LONG_ROWS, kv_heads=1, q_heads=32, head_dim=64,
                                         window=64)
    for layer in range(4):
        cache.key(layer)[...] = 0x3F80  # 1.0
        cache.query(layer)[...] = 0x3F80
    return cache


def wide(client: chunkkv.Client) -> chunkkv.SharedCache:
    return chunkkv.SharedCache.allocate(client, layers=1, tokens=WIDE_ROWS, kv_heads=8, q_heads=8, head_dim=128,
                                        dtype="f32", window=1)


def every_other(rows: int) -> list[tuple[int, int]]:
    """Half of the rows, in pieces of 64, none of them where it is to go."""
    return [(first, first + 64) for first in range(64, rows, 128)]


def idle(client: chunkkv.Client, pipe: Connection) -> None:
    with filled(client):
        pipe.send("ready")
        signal.pause()


def offering(client: chunkkv.Client, pipe: Connection) -> None:
    """Descriptors that no region has taken yet."""
    memory = chunkkv.SharedMemory.allocate(1 << 20)
    for _ in range(3):
        assert client._connection.side is not None
        client._connection.side.offer(memory.fileno(), memory.size)
    pipe.send("ready")
    signal.pause()


def scoring(client: chunkkv.Client, pipe: Connection) -> None:
    cache = long_to_score(client)
    pipe.send("ready")
    while True:
        client.plan(cache, rows=LONG_ROWS, keep_ratio=0.5, timeout=60)


def moving(client: chunkkv.Client, pipe: Connection) -> None:
    cache = wide(client)
    pipe.send("ready")
    while True:
        client.compress(cache, rows=WIDE_ROWS, keep=every_other(WIDE_ROWS), timeout=60)


def neighbour(client: chunkkv.Client, pipe: Connection) -> None:
    """Makes the same plan again and again until it is told to stop; then says how often, and the slowest."""
    with filled(client) as cache:
        first = client.plan(cache, rows=ROWS, keep_ratio=0.5)
        pipe.send("ready")
        laps, slowest = 0, 0.0
        while not pipe.poll(0.002):
            start = time.monotonic()
            again = client.plan(cache, rows=ROWS, keep_ratio=0.5, timeout=20)
            slowest = max(slowest, time.monotonic() - start)
            assert again.layers == first.layers
            laps += 1
        pipe.send((laps, slowest))


def answering(client: chunkkv.Client, pipe: Connection) -> None:
    """One plan for each word."""
    cache = long_to_score(client)
    pipe.send("ready")
    while pipe.recv():
        pipe.send(client.plan(cache, rows=LONG_ROWS, keep_ratio=0.5, timeout=60).physical_len)


# ---- what is looked at


def used(client: chunkkv.Client) -> dict[Slot, int]:
    """What is held; device time is not, it runs out by itself."""
    return {budget.slot: budget.used for budget in client.status() if budget.slot != Slot.DEVICE_TIME}


def is_sanitized(daemon: Daemon) -> bool:
    """Then mappings come and go with the allocator's moods."""
    maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    return "libasan" in maps or "libtsan" in maps


def await_in_flight(client: chunkkv.Client) -> None:
    """Until a request of this user is being worked on."""
    end = time.monotonic() + 20
    while used(client)[Slot.REQUESTS] == 0:
        assert time.monotonic() < end, "no request came"


def seconds_until(condition: Callable[[], bool], most: float) -> float:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < most, f"not so after {most} s"
        time.sleep(0.002)
    return time.monotonic() - start
