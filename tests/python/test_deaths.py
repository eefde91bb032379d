"""Engines and gates die at any moment: nothing hangs, nothing leaks, others go on.  The core: test_deaths_core.py."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import chunkkv
from chunkkv.wire import CacheState, Mode, Slot
from daemon import Daemon
from tenant import (
    LONG_ROWS,
    ROWS,
    SLOWLY,
    WIDE_ROWS,
    Tenant,
    Work,
    answering,
    await_in_flight,
    every_other,
    filled,
    idle,
    long_to_score,
    moving,
    neighbour,
    offering,
    scoring,
    seconds_until,
    used,
    wide,
)

NOBODY = 65534


def two_tenants(new_daemon: Callable[..., Daemon]) -> tuple[Daemon, int | None]:
    """A daemon, and another user than ours who may connect, where we are root and can make one."""
    daemon = new_daemon(options=("--socket-mode", "666", *SLOWLY))
    daemon.directory.chmod(0o755)
    return daemon, NOBODY if os.geteuid() == 0 else None


# ---- engines


@pytest.mark.parametrize("work", [idle, offering, scoring, moving])
@pytest.mark.tries(12)
def test_killed_engine_is_gone_within_a_second(new_daemon: Callable[..., Daemon], work: Work) -> None:
    daemon, other_user = two_tenants(new_daemon)
    rng = np.random.default_rng(7)
    with chunkkv.Client(daemon.prefix()) as client, Tenant(daemon.prefix(), neighbour, other_user) as other:
        assert other.hear() == "ready"
        before, charges = daemon.usage(), used(client)
        if other_user is not None:
            assert charges[Slot.REGIONS] == 0, "charged for the neighbour"
        gone: list[float] = []
        for _ in range(3):
            with Tenant(daemon.prefix(), work) as engine:
                assert engine.hear() == "ready"
                if work in (scoring, moving):
                    await_in_flight(client)
                    time.sleep(float(rng.uniform(0, 0.02)))
                assert work is offering or daemon.usage().memfd_mappings > before.memfd_mappings
                engine.signal(signal.SIGKILL)
                gone.append(seconds_until(
                    lambda: daemon.usage().memfd_mappings <= before.memfd_mappings
                    and daemon.usage().descriptors <= before.descriptors, 5.0))
            if other_user is not None:  # else the neighbour's requests come and go among them
                seconds_until(lambda: used(client) == charges, 2)  # descriptors are closed beside the loop
        other.say("stop")
        laps, slowest = other.hear()
        print(f"{work.__name__}: all gone after at most {max(gone) * 1000:.0f} ms; neighbour: {laps} plans, slowest "
              f"{slowest * 1000:.0f} ms")
        assert sorted(gone)[1] < 1.0, gone  # one of three may meet a busy machine
        assert laps > 0
        assert daemon.process is not None
        assert daemon.process.poll() is None


@pytest.mark.tries(22)
def test_stopped_engine_is_not_dead(new_daemon: Callable[..., Daemon]) -> None:
    """It keeps what it has, idle or with a request, and goes on as if nothing had been."""
    daemon = new_daemon(options=SLOWLY)
    with chunkkv.Client(daemon.prefix()) as client, Tenant(daemon.prefix(), answering) as engine:
        assert engine.hear() == "ready"
        holds, mapped = used(client), daemon.usage().memfd_mappings
        engine.signal(signal.SIGSTOP)
        time.sleep(1.5)
        assert (used(client), daemon.usage().memfd_mappings) == (holds, mapped)
        engine.signal(signal.SIGCONT)
        engine.say("plan")
        assert engine.hear() == LONG_ROWS // 2

        engine.say("plan")
        await_in_flight(client)
        engine.signal(signal.SIGSTOP)
        seconds_until(lambda: used(client)[Slot.REQUESTS] == 0, 20)  # its job ends without it
        assert used(client)[Slot.REGIONS] == holds[Slot.REGIONS]
        engine.signal(signal.SIGCONT)
        assert engine.hear() == LONG_ROWS // 2


# ---- gates


@pytest.mark.parametrize("mode", [Mode.PLAN, Mode.IN_PLACE])
def test_gate_dies_during_long_work(new_daemon: Callable[..., Daemon], mode: Mode) -> None:
    """Short requests and 100 gates: test_gate_kill.py."""
    daemon = new_daemon(options=SLOWLY)
    rng = np.random.default_rng(11)
    with chunkkv.Client(daemon.prefix()) as client:
        cache = long_to_score(client) if mode == Mode.PLAN else wide(client)
        keys = np.arange(cache.tokens, dtype=np.float32)
        keep = every_other(WIDE_ROWS)
        killed: list[int] = []
        for _ in range(4):  # the core waits before it starts a fifth
            seconds_until(lambda: bool(set(daemon.gates()) - set(killed)), 5)
            killed.append((set(daemon.gates()) - set(killed)).pop())
            timer = threading.Timer(float(rng.uniform(0, 0.05)), os.kill, (killed[-1], signal.SIGKILL))
            timer.start()
            if mode == Mode.PLAN:
                assert client.plan(cache, rows=LONG_ROWS, keep_ratio=0.5, timeout=30).physical_len == LONG_ROWS // 2
            else:
                cache.key(0)[...] = keys[:, None, None]
                rows = client.compress(cache, rows=WIDE_ROWS, keep=keep, timeout=30).layers[0].rows
                expected = keys.copy()
                expected[: len(rows)] = rows
                assert (cache.key(0) == expected[:, None, None]).all(), "moved twice, or not at all"
            timer.join()


# ---- an orderly end


class Asking(threading.Thread):
    """A plan that takes long, asked in the background."""

    def __init__(self, client: chunkkv.Client, cache: chunkkv.SharedCache) -> None:
        super().__init__()
        self._client, self._cache = client, cache
        self.answer: chunkkv.Answer | None = None
        self.error: chunkkv.ChunkkvError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._client.plan(self._cache, rows=LONG_ROWS, keep_ratio=0.5, timeout=30)
        except chunkkv.ChunkkvError as error:
            self.error = error


def test_stop_lets_running_work_end(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon(options=SLOWLY)
    assert daemon.process is not None
    with chunkkv.Client(daemon.prefix()) as client, chunkkv.Client(daemon.prefix()) as late:
        cache = filled(late)
        asking = Asking(client, long_to_score(client))
        await_in_flight(late)
        daemon.process.terminate()
        seconds_until(lambda: bool(late.notices()), 5)
        with pytest.raises(chunkkv.Draining) as caught:
            late.plan(cache, rows=ROWS, keep_ratio=0.5)
        assert caught.value.cache == CacheState.CLEAN
        asking.join()
        assert asking.error is None
        assert asking.answer is not None
        assert asking.answer.physical_len == LONG_ROWS // 2
        assert [notice.kind for notice in client.notices()][:1] == [chunkkv.NoticeKind.DRAINING]
        assert daemon.process.wait(10) == 0


def test_stop_does_not_wait_for_ever(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon(options=("--stop-timeout", "0", *SLOWLY))
    assert daemon.process is not None
    with chunkkv.Client(daemon.prefix()) as client, chunkkv.Client(daemon.prefix()) as late:
        asking = Asking(client, long_to_score(client))
        await_in_flight(late)
        start = time.monotonic()
        daemon.process.terminate()
        assert daemon.process.wait(10) == 0
        assert time.monotonic() - start < 2.0
        asking.join()
        assert asking.error is not None
        assert asking.error.cache == CacheState.CLEAN
        assert "DRAIN_TIMEOUT" in daemon.log()
