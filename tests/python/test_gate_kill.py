"""The gate dies again and again, and nothing else does."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np

import chunkkv
from daemon import Daemon

KILLS = 100
ROWS = 256


class Neighbour(threading.Thread):
    """Another session on another endpoint, which must notice nothing."""

    def __init__(self, prefix: str, timeout: float = 5.0) -> None:
        super().__init__()
        self.prefix, self.timeout, self.ending = prefix, timeout, threading.Event()
        self.calls, self.slowest, self.error = 0, 0.0, ""

    def run(self) -> None:
        try:
            with chunkkv.Client(self.prefix, timeout=self.timeout) as client:
                while not self.calls or not self.ending.wait(0.005):
                    start = time.monotonic()
                    client.ping()
                    self.slowest = max(self.slowest, time.monotonic() - start)
                    self.calls += 1
        except chunkkv.ChunkkvError as error:
            self.error = str(error)


def gate_of(daemon: Daemon, endpoint: str) -> int | None:
    """The pid of the gate that serves an endpoint: told apart by what its listening socket is bound to."""
    path = daemon.prefix(endpoint) + ".zmq"
    inodes = {line.split()[6] for line in open("/proc/net/unix").read().splitlines() if line.endswith(path)}
    for pid in daemon.gates():
        try:
            links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        except OSError:
            continue
        if links & {f"socket:[{inode}]" for inode in inodes}:
            return pid
    return None


def prepared(client: chunkkv.Client) -> chunkkv.SharedCache:
    cache = chunkkv.SharedCache.allocate(client, layers=2, tokens=ROWS, kv_heads=2, q_heads=4, head_dim=32,
                                         dtype="f32", window=32)
    rng = np.random.default_rng(3)
    for layer in (0, 1):
        cache.write(layer, key=rng.normal(size=(ROWS, 2, 32)), value=rng.normal(size=(ROWS, 2, 32)),
                    query=rng.normal(size=(32, 4, 32)))
    return cache


def settled_usage(daemon: Daemon, baseline: int) -> object:
    """Usage once the descriptors are back, or after a while."""
    end = time.monotonic() + 5
    while daemon.usage().descriptors > baseline and time.monotonic() < end:
        time.sleep(0.05)
    return daemon.usage()


def test_every_request_is_answered_while_gates_die(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon(endpoints=("main", "other"))
    neighbour = Neighbour(daemon.prefix("other"))
    with chunkkv.Client(daemon.prefix()) as client, prepared(client) as cache:
        untouched = {n: (cache.key(n).copy(), cache.value(n).copy()) for n in (0, 1)}
        expected = client.plan(cache, rows=ROWS, keep_ratio=0.5)
        first = gate_of(daemon, "main")
        other = gate_of(daemon, "other")
        assert first is not None
        assert other is not None
        for _ in range(5):
            client.plan(cache, rows=ROWS, keep_ratio=0.5)
        baseline = daemon.usage()  # before the neighbour comes, and compared after it went
        neighbour.start()
        killed: set[int] = set()
        ending = threading.Event()

        def killer() -> None:
            """Kill each new gate a little after it appears, so that it dies at all moments of its life."""
            rng = np.random.default_rng(5)
            while len(killed) < KILLS and not ending.is_set():
                pid = gate_of(daemon, "main")
                if pid is None or pid in killed:
                    time.sleep(0.001)
                    continue
                time.sleep(float(rng.uniform(0, 0.02)))
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)

        hunter = threading.Thread(target=killer)
        hunter.start()
        answered, slowest = 0, 0.0
        try:
            while hunter.is_alive():
                start = time.monotonic()
                if answered % 2:
                    answer = client.compress(cache, rows=ROWS, keep_ratio=0.5, timeout=60)
                    for n, (key, value) in untouched.items():
                        rows = answer.layers[n].rows
                        for now, before in ((cache.key(n), key), (cache.value(n), value)):
                            moved = before.copy()
                            moved[: len(rows)] = before[rows]
                            assert np.array_equal(now, moved), "moved twice, or not at all"
                            now[...] = before
                else:
                    answer = client.plan(cache, rows=ROWS, keep_ratio=0.5, timeout=60)
                assert answer.layers[0].kept == expected.layers[0].kept
                assert answer.layers[1].kept == expected.layers[1].kept
                slowest = max(slowest, time.monotonic() - start)
                answered += 1
        finally:
            ending.set()
            hunter.join()
        assert len(killed) == KILLS
        client.ping(timeout=30)
        neighbour.ending.set()
        neighbour.join()
        usage = settled_usage(daemon, baseline.descriptors)
        print(f"{KILLS} gates killed, {answered} requests answered, slowest {slowest * 1000:.0f} ms; neighbour: "
              f"{neighbour.calls} calls, slowest {neighbour.slowest * 1000:.0f} ms; {baseline} -> {usage}")
        assert usage.descriptors == baseline.descriptors  # type: ignore[attr-defined]
        assert usage.memfd_mappings == baseline.memfd_mappings  # type: ignore[attr-defined]
        # malloc's own, and the outcomes that are stored for repeats; a sanitizer has red zones and maps of its own
        sanitized = os.environ.get("CHUNKKV_BUILD", "").endswith(("tsan", "asan"))
        assert usage.mappings <= baseline.mappings + (8 if sanitized else 4)  # type: ignore[attr-defined]
        assert usage.rss_kib <= baseline.rss_kib + (16384 if sanitized else 4096)  # type: ignore[attr-defined]
        assert neighbour.error == ""
        assert neighbour.calls > 20
        assert gate_of(daemon, "other") == other, "the neighbour's gate was replaced"
        assert len(daemon.gates()) == 2


def test_session_survives_its_gate(new_daemon: Callable[..., Daemon]) -> None:
    """No registration is lost, and the session is still the same."""
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client, prepared(client) as cache:
        boot, token = client.session.boot_id, client.session.token
        for pid in daemon.gates():
            os.kill(pid, signal.SIGKILL)
        answer = client.plan(cache, rows=ROWS, keep_ratio=0.25, timeout=30)
        assert answer.physical_len == ROWS // 4
        assert (client.session.boot_id, client.session.token) == (boot, token)


def test_dead_gate_does_not_delay_a_new_client(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    for pid in daemon.gates():
        os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    with chunkkv.Client(daemon.prefix(), timeout=10) as client:
        client.ping()
    assert time.monotonic() - start < 3.0
