"""The core dies at any moment: every call ends, and says what became of the cache; the next daemon takes its place.

Without a control page; with one, which leaves no cache torn: test_repair.py.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import chunkkv
from chunkkv._pb import chunkkv_pb2 as pb
from chunkkv.wire import CacheState, Code, Mode, Slot
from daemon import Daemon
from raw import RawSession
from tenant import FORK, NOISE, ROWS, Tenant, await_in_flight, filled, moving, used

SEEDS = 30


class Trial:
    """Requests on a cache of known content, and whether the cache is what an answer or an error says."""

    BLOCKS, BLOCK = 2 * ROWS // 64, 64  # room for the rows, and behind them for a copy

    def __init__(self, client: chunkkv.Client) -> None:
        self.client = client
        self.memory = chunkkv.SharedMemory.allocate(5 * NOISE.nbytes)
        # [key or value][layer][row, and room for a copy][head][dimension]
        self.planes = self.memory.numpy((2, 2, 2 * ROWS, 2, 64), np.float32)
        self.queries = self.memory.numpy((2, 64, 32, 64), np.float32, self.planes.nbytes)
        self.queries[...] = NOISE[:2, :1024].reshape(2, 64, 32, 64)
        self.before = NOISE.astype(np.float32).reshape(2, 2, ROWS, 2, 64)
        self.sent = b""
        self.asked = threading.Event()  # ask() has begun a request
        self.restore()
        self.region = self.client.register_region(self.memory)
        keys, values = self.planes.reshape(2, 2, self.BLOCKS, self.BLOCK, 2, 64)
        layout = chunkkv.CacheLayout.of_arrays(list(keys), list(values), axes="bthd", q_heads=32, region=self.region)
        self.cache = self.client.register_cache(layout)

    def ask(self, mode: Mode) -> chunkkv.Answer:
        compose = self.client._connection.compose

        def remember(*args: Any) -> Any:
            pending = compose(*args)
            self.sent = pending.payload
            self.asked.set()
            return pending

        self.client._connection.compose = remember  # type: ignore[method-assign]
        table, spare = range(self.BLOCKS // 2), range(self.BLOCKS // 2, self.BLOCKS)
        queries = chunkkv.Queries.of_array(self.queries, region=self.region)
        if mode == Mode.PLAN:
            return self.client.plan(self.cache, rows=ROWS, table=table, queries=queries, keep_ratio=0.5, timeout=20)
        if mode == Mode.IN_PLACE:
            return self.client.compress(self.cache, rows=ROWS, table=table, queries=queries, keep_ratio=0.5,
                                        timeout=20)
        return self.client.copy_out(self.cache, rows=ROWS, table=table, queries=queries, destination=spare,
                                    keep_ratio=0.5, timeout=20)

    def check_clean(self) -> None:
        """The rows are untouched; what lies behind them is a copy's destination."""
        assert np.array_equal(self.planes[:, :, :ROWS], self.before), "said to be clean, and is not"

    def check_done(self, mode: Mode, answer: chunkkv.Answer) -> None:
        if mode != Mode.IN_PLACE:
            self.check_clean()
        if mode == Mode.PLAN:
            return
        first = 0 if mode == Mode.IN_PLACE else ROWS
        for n in (0, 1):
            rows = answer.layers[n].rows
            assert len(rows) == ROWS // 2
            assert np.array_equal(self.planes[:, n, first : first + len(rows)], self.before[:, n, rows]), \
                "said to be done, and is not"

    def restore(self) -> None:
        self.planes[:, :, :ROWS] = self.before
        self.planes[:, :, ROWS:] = 0


EXPECTED = {Mode.PLAN: {CacheState.CLEAN}, Mode.COPY_OUT: {CacheState.CLEAN},
            Mode.IN_PLACE: {CacheState.CLEAN, CacheState.TORN}}


def typical_seconds(trial: Trial, mode: Mode) -> float:
    times: list[float] = []
    for _ in range(3):
        start = time.monotonic()
        answer = trial.ask(mode)
        times.append(time.monotonic() - start)
        trial.check_done(mode, answer)
        trial.restore()
    return min(times)


@pytest.mark.tries(13)
def test_core_dies_at_any_moment(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    rng = np.random.default_rng(13)
    seen: dict[str, int] = {}
    slowest = 0.0
    with chunkkv.Client(daemon.prefix(), control_slots=0) as client:
        trial = Trial(client)
        seconds = {mode: typical_seconds(trial, mode) for mode in EXPECTED}
        for seed in range(SEEDS):
            mode = list(EXPECTED)[seed % 3]
            delay = float(rng.uniform(0, 1.5 * seconds[mode]))
            victims = [daemon.pid]
            if seed % 5 == 4:  # its gate just before it
                victims = [daemon.gates()[0], daemon.pid]

            def strike(victims: list[int], delay: float) -> None:
                trial.asked.wait()  # a call that finds it dead waits for another, which comes below
                time.sleep(delay)
                for pid in victims:
                    os.kill(pid, signal.SIGKILL)

            killer = threading.Thread(target=strike, args=(victims, delay))
            trial.asked.clear()
            killer.start()
            start = time.monotonic()
            try:
                trial.check_done(mode, trial.ask(mode))
                said = "done"
            except chunkkv.CoreDied as error:
                assert error.cache in EXPECTED[mode]
                assert error.radius == chunkkv.Radius.DAEMON
                if error.cache == CacheState.CLEAN:
                    trial.check_clean()
                said = error.cache.name
            slowest = max(slowest, time.monotonic() - start)
            killer.join()
            seen[f"{mode.name} {said}"] = seen.get(f"{mode.name} {said}", 0) + 1

            daemon.restart()
            # the old session is dead here, and nothing of it is executed there
            with RawSession(client) as raw:
                answer = raw.ask(raw.request(ping=pb.Ping()))
                assert answer.status.code == int(Code.STALE_BOOT)
                raw.send(trial.sent)
                late = raw.receive()
                assert late is not None
                assert late.status.code == int(Code.STALE_BOOT)
            # the next call begins a new one, with all that still exists
            assert used(client)[Slot.REGIONS] == 1
            trial.restore()
        trial.check_done(Mode.IN_PLACE, trial.ask(Mode.IN_PLACE))
    print(f"{SEEDS} cores killed, slowest call {slowest * 1000:.0f} ms: {dict(sorted(seen.items()))}")
    assert slowest < 5.0
    assert daemon.log().count("SOCKET_STALE") >= SEEDS
    assert seen.get("IN_PLACE TORN"), "no core died over an in-place request: the test kills at the wrong moments"
    assert seen.get("PLAN CLEAN")
    assert seen.get("COPY_OUT CLEAN")


def refused_after_fork(client: chunkkv.Client) -> None:
    with pytest.raises(chunkkv.SessionLost):
        client.ping(timeout=0.1)


def test_a_new_core_may_come_after_a_call_gave_up(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client, filled(client) as cache:
        first = client.plan(cache, rows=ROWS, keep_ratio=0.5)
        daemon.kill()
        for _ in range(2):
            with pytest.raises(chunkkv.CoreDied, match="no other has come"):
                client.plan(cache, rows=ROWS, keep_ratio=0.5, timeout=0.1)
            child = FORK.Process(target=refused_after_fork, args=(client,))
            child.start()
            child.join()
            assert child.exitcode == 0
        daemon.restart()
        assert client.plan(cache, rows=ROWS, keep_ratio=0.5).layers == first.layers
    with pytest.raises(chunkkv.SessionLost, match="closed"):
        client.ping()


def test_engine_and_core_die_together(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client, Tenant(daemon.prefix(), moving) as engine:
        fresh = daemon.usage()
        assert engine.hear() == "ready"
        await_in_flight(client)
        engine.signal(signal.SIGKILL)
        daemon.restart()
        client.reconnect()
        page = client._connection.page
        assert page is not None
        assert used(client)[Slot.MAPPED_BYTES] == page.memory.size
        assert daemon.usage().memfd_mappings <= fresh.memfd_mappings
        with filled(client) as cache:
            assert client.plan(cache, rows=ROWS, keep_ratio=0.5).physical_len == ROWS // 2
