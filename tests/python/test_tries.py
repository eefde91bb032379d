"""Tries of the list (tries.py) that no other file has: held requests of stopped engines, stopped cores, scribbled
control pages, blocks reused too early, tokens and request ids of others.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

import chunkkv
from chunkkv._pb import chunkkv_pb2 as pb
from chunkkv.wire import CacheState, Code, Slot
from daemon import Daemon
from raw import RawSession
from tenant import (
    ROWS,
    WIDE_ROWS,
    Tenant,
    every_other,
    filled,
    idle,
    neighbour,
    seconds_until,
    used,
    wide,
)

OWNER, THIEF, BYSTANDER = 60011, 60012, 60013
AS_USERS = os.geteuid() == 0
WATCHDOG_SECONDS = 1.0
SCRIBBLES = 25
REUSES = 12


def open_to_all(new_daemon: Callable[..., Daemon], *options: str, endpoints: tuple[str, ...] = ("main",)) -> Daemon:
    daemon = new_daemon(endpoints=endpoints, options=("--socket-mode", "666", *options))
    daemon.directory.chmod(0o755)
    return daemon


def as_user(uid: int) -> int | None:
    return uid if AS_USERS else None


# ---- 22: engines and cores that stand still


def holding(client: chunkkv.Client, pipe: Connection) -> None:
    """Holds a request, commits it when told so, and says what came of it and whether a byte has changed."""
    with filled(client) as cache:
        before = cache.memory.numpy(cache.memory.size, np.uint8).copy()
        held = client.compress(cache, rows=ROWS, keep_ratio=0.5, hold=True, timeout=60)
        pipe.send(client.session.limits.hold_ms)
        pipe.recv()
        try:
            held.commit()
            pipe.send("committed")
        except chunkkv.ChunkkvError as error:
            same = np.array_equal(before, cache.memory.numpy(cache.memory.size, np.uint8))
            pipe.send((error.code, error.cache, same))


@pytest.mark.tries(22)
def test_held_request_of_a_stopped_engine_ends(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client, Tenant(daemon.prefix(), holding) as engine:
        seconds = engine.hear() / 1000
        assert used(client)[Slot.REQUESTS] == 1
        engine.signal(signal.SIGSTOP)
        took = seconds_until(lambda: used(client)[Slot.REQUESTS] == 0, seconds + 2)
        print(f"held for {seconds} s: ended after {took:.2f} s")
        assert took > seconds / 2, "ended before its time"
        assert used(client)[Slot.REGIONS] > 0, "the engine lives"
        engine.signal(signal.SIGCONT)
        engine.say("commit")
        code, cache, same = engine.hear()
        assert code in (Code.EXPIRED, Code.CANCELLED, Code.CONFLICT)
        assert (cache, same) == (CacheState.CLEAN, True)


class Manager:
    """What a service manager hears from a daemon."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def hears(self, word: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                if word in self._socket.recv(4096).decode().split("\n"):
                    return True
            except TimeoutError:
                break
        return False

    def forget(self) -> None:
        self._socket.setblocking(False)
        try:
            while self._socket.recv(4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._socket.close()


@pytest.mark.tries(22)
def test_stopped_core_is_missed_by_the_watchdog(new_daemon: Callable[..., Daemon], tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """No word comes from it; killed for that, as a service manager does, another serves the same engine."""
    manager = Manager(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_SECONDS * 1e6)))
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client, filled(client) as cache:
        for _ in range(3):
            assert manager.hears("WATCHDOG=1", WATCHDOG_SECONDS)
        os.kill(daemon.pid, signal.SIGSTOP)
        manager.forget()
        assert not manager.hears("WATCHDOG=1", WATCHDOG_SECONDS)
        daemon.restart()
        assert client.compress(cache, rows=ROWS, keep_ratio=0.5, timeout=20).physical_len == ROWS // 2
        assert manager.hears("WATCHDOG=1", WATCHDOG_SECONDS)
    manager.close()


# ---- 25, 26: what an engine does to itself


@pytest.mark.tries(25)
def test_scribbled_control_page_harms_its_owner_only(new_daemon: Callable[..., Daemon]) -> None:
    """Random bytes all over the page, before, in and after each request: it may fail, and nothing else."""
    daemon = open_to_all(new_daemon, endpoints=("main", "other"))
    rng = np.random.default_rng(25)
    keep = every_other(WIDE_ROWS)
    codes: dict[str, int] = {}
    with Tenant(daemon.prefix("other"), neighbour, as_user(BYSTANDER)) as other:
        assert other.hear() == "ready"
        before = daemon.usage()
        for n in range(SCRIBBLES):
            client = chunkkv.Client(daemon.prefix(), roll_forward=False)
            page = client._link.page
            assert page is not None
            raw = np.frombuffer(page.memory.buffer, np.uint8)
            ending = threading.Event()

            def scribble(raw: np.ndarray = raw, ending: threading.Event = ending, seed: int = n) -> None:
                own = np.random.default_rng(seed)
                while not ending.is_set():
                    at = int(own.integers(0, 256 if own.random() < 0.5 else raw.size - 64))
                    raw[at : at + 64] = own.integers(0, 256, 64)
                    time.sleep(float(own.uniform(0, 0.0005)))

            writer = threading.Thread(target=scribble)
            with wide(client) as cache:
                if n % 5 == 0:
                    raw[: 64 + 8 * 128] = rng.integers(0, 256, 64 + 8 * 128)
                writer.start()
                try:
                    client.compress(cache, rows=WIDE_ROWS, keep=keep, timeout=10)
                    said = "OK"
                except chunkkv.ChunkkvError as error:
                    said = error.code.name
                except ValueError:  # the page makes no sense any more, which the library sees first
                    said = "not sent"
                finally:
                    ending.set()
                    writer.join()
                codes[said] = codes.get(said, 0) + 1
            del raw
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(page, "close", lambda: None)  # a view of it may live on in what was raised
                client.close()
        print(f"requests of a scribbler: {codes}")
        assert len(codes) > 1, "the scribbler comes too late each time"
        seconds_until(lambda: daemon.usage().descriptors <= before.descriptors, 10)
        seconds_until(lambda: daemon.usage().memfd_mappings <= before.memfd_mappings, 10)
        with chunkkv.Client(daemon.prefix()) as fresh, filled(fresh) as cache:
            assert fresh.compress(cache, rows=ROWS, keep_ratio=0.5).physical_len == ROWS // 2
        other.say("stop")
        laps, _ = other.hear()
        assert laps > 0


@pytest.mark.tries(26)
def test_blocks_reused_while_they_move_spoil_that_cache_only(new_daemon: Callable[..., Daemon]) -> None:
    daemon = open_to_all(new_daemon)
    with Tenant(daemon.prefix(), neighbour, as_user(BYSTANDER)) as other:
        assert other.hear() == "ready"
        with chunkkv.Client(daemon.prefix()) as client, wide(client) as cache, filled(client) as second:
            untouched = second.memory.numpy(second.memory.size, np.uint8).copy()
            ending = threading.Event()

            def reuse(*planes: np.ndarray) -> None:
                rng = np.random.default_rng(26)
                while not ending.is_set():
                    at = int(rng.integers(0, WIDE_ROWS - 256))
                    planes[int(rng.integers(0, 2))][at : at + 256] = rng.normal()

            writer = threading.Thread(target=reuse, args=(cache.key(0), cache.value(0)))
            writer.start()
            try:
                for _ in range(REUSES):
                    answer = client.compress(cache, rows=WIDE_ROWS, keep=every_other(WIDE_ROWS), timeout=20)
                    assert (answer.cache, answer.physical_len) == (CacheState.COMMITTED, WIDE_ROWS // 2)
            finally:
                ending.set()
                writer.join()
            assert np.array_equal(untouched, second.memory.numpy(second.memory.size, np.uint8)), "another cache"
        other.say("stop")
        laps, _ = other.hear()  # and its plans have all been the same
        assert laps > 0


# ---- 28: what belongs to others


def owner(client: chunkkv.Client, pipe: Connection) -> None:
    """Tells what it should keep for itself; holds a request, then commits it, and all is as if nobody had tried."""
    with filled(client) as cache:
        held = client.compress(cache, rows=ROWS, keep_ratio=0.5, hold=True, timeout=60)
        pipe.send((client.session.token, client.session.boot_id, held.request_id, cache.id))
        pipe.recv()
        done = held.commit()
        pipe.send((done.cache, done.physical_len))


def replay(token: bytes, request_id: int, cache_id: int) -> Callable[[chunkkv.Client, Connection], None]:
    """As another user: with the token, and in a session of its own with the ids."""

    def work(client: chunkkv.Client, pipe: Connection) -> None:
        codes = []
        with RawSession(client) as raw:
            for body in ({"ping": pb.Ping()}, {"commit": pb.Commit(target_request_id=request_id)},
                         {"cancel": pb.Cancel(target_request_id=request_id)}, {"end_session": pb.EndSession()},
                         {"unregister_cache": pb.UnregisterCache(cache_id=cache_id)}):
                for same_id in (False, True):
                    request = raw.request(**body)
                    request.session_token = token
                    if same_id:
                        request.request_id = request_id
                    codes.append(raw.ask(request).status.code)
            own = [raw.ask(raw.request(commit=pb.Commit(target_request_id=request_id))).status.code,
                   raw.ask(raw.request(unregister_cache=pb.UnregisterCache(cache_id=cache_id))).status.code]
        pipe.send((codes, own))

    return work


@pytest.mark.tries(28)
@pytest.mark.skipif(not AS_USERS, reason="needs root, to be two users")
def test_token_and_request_id_of_another_user(new_daemon: Callable[..., Daemon]) -> None:
    daemon = open_to_all(new_daemon)
    with Tenant(daemon.prefix(), owner, OWNER) as victim:
        token, _, request_id, cache_id = victim.hear()
        for _ in range(2):
            with Tenant(daemon.prefix(), replay(token, request_id, cache_id), THIEF) as thief:
                codes, own = thief.hear()
                assert set(codes) == {pb.CODE_PERMISSION}, codes
                assert pb.CODE_OK not in own, "ids of another session mean something"
        victim.say("commit")
        assert victim.hear() == (CacheState.COMMITTED, ROWS // 2)
    lines = [line for line in daemon.log().splitlines() if " FOREIGN_TOKEN " in line]
    assert len(lines) == 1, lines
    assert f"owner={OWNER} " in lines[0]
    assert f"uid={THIEF} " in lines[0]


# ---- 12: all at once


@pytest.mark.tries(12)
def test_many_engines_die_at_once(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client:
        before, charges = daemon.usage(), used(client)
        engines = [Tenant(daemon.prefix(), idle) for _ in range(8)]
        for engine in engines:
            assert engine.hear() == "ready"
        for engine in engines:
            engine.signal(signal.SIGKILL)
        seconds_until(lambda: daemon.usage().memfd_mappings <= before.memfd_mappings, 3)
        seconds_until(lambda: daemon.usage().descriptors <= before.descriptors, 3)
        seconds_until(lambda: used(client) == charges, 2)
        for engine in engines:
            engine.end()
