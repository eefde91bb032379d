"""Silence, loss and death as the client sees them, against a stand-in gate of a few lines; needs no daemon."""

from __future__ import annotations

import gc
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

import chunkkv
from chunkkv import connection
from chunkkv._pb import chunkkv_pb2 as pb
from chunkkv.wire import CacheState, Code, Phase

Script = Callable[["FakeGate", pb.Request], pb.Response | bytes | None]


class FakeGate:
    """Answers Hello by itself and everything else by a script; None is silence."""

    def __init__(self, directory: Path) -> None:
        self.prefix = str(directory / "fake")
        self.script: Script = lambda gate, request: None
        self.seen: list[bytes] = []
        self._ending = threading.Event()
        self._restart = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def restart(self) -> None:
        """Drop all connections and bind anew, as a core does with a dead gate."""
        self._restart.set()

    def bodies(self, name: str) -> list[bytes]:
        """The requests received with this body."""
        return [data for data in self.seen if pb.Request.FromString(data).WhichOneof("body") == name]

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    def _serve(self) -> None:
        with zmq.Context() as context:
            while not self._ending.is_set():
                self._restart.clear()
                socket = context.socket(zmq.ROUTER)
                socket.linger = 0
                socket.bind(f"ipc://{self.prefix}.zmq")
                while not self._ending.is_set() and not self._restart.is_set():
                    if socket.poll(5):
                        self._answer(socket, *socket.recv_multipart())
                socket.close(0)

    def _answer(self, socket: zmq.Socket[bytes], peer: bytes, data: bytes) -> None:
        self.seen.append(data)
        request = pb.Request.FromString(data)
        answer: pb.Response | bytes | None
        if request.WhichOneof("body") == "hello":
            answer = pb.Response(request_id=request.request_id, boot_id=b"b" * 16,
                                 welcome=pb.Welcome(session_token=b"t" * 16, now_ns=time.monotonic_ns()))
        else:
            answer = self.script(self, request)
        if isinstance(answer, pb.Response):
            answer.request_id = answer.request_id or request.request_id
            answer = answer.SerializeToString()
        if answer is not None:
            socket.send_multipart([peer, answer])


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[FakeGate]:
    fake = FakeGate(tmp_path)
    yield fake
    fake.close()


@pytest.fixture
def client(gate: FakeGate) -> Iterator[chunkkv.Client]:
    made = chunkkv.Client(gate.prefix, needs_side=False)
    yield made
    made._connection.close()


def pong(gate: FakeGate, request: pb.Request) -> pb.Response:
    return pb.Response(pong=pb.Pong(now_ns=5))


COMPRESSED = pb.Response(status=pb.Status(cache=pb.CACHE_COMMITTED), compressed=pb.Compressed(
    phase=pb.PHASE_DONE, logical_len=8, groups=[pb.GroupResult(physical_before=8, physical_len=4, sets=[
        pb.KeptSet(runs=[2, 4])])]))


def copy_of(response: pb.Response) -> pb.Response:
    return pb.Response.FromString(response.SerializeToString())


def compress(client: chunkkv.Client, timeout: float, copy: bool = False) -> chunkkv.Answer:
    """An in-place request, or one that copies, on a cache that exists in name only."""
    group = chunkkv.LayerGroup((0,), 1, 1, 8, 8, 8, 2)
    cache = chunkkv.Cache(chunkkv.CacheLayout((group,), ()), 1, True, client.session.number)
    if copy:
        return client.copy_out(cache, rows=8, table=[0], destination=[1], keep_ratio=0.5, timeout=timeout)
    return client.compress(cache, rows=8, table=[0], keep_ratio=0.5, timeout=timeout)


def test_silence_is_answered_by_the_same_bytes(gate: FakeGate, client: chunkkv.Client) -> None:
    gate.script = lambda g, r: pong(g, r) if len(g.bodies("ping")) == 3 else None
    start = time.monotonic()
    assert client.ping(timeout=0.8).now_ns == 5
    pings = gate.bodies("ping")
    assert len(pings) == 3
    assert len(set(pings)) == 1
    assert 0.3 <= time.monotonic() - start < 0.7  # a quarter of 0.8 s, then of the 0.6 s left


def test_repeats_are_at_least_100_ms_apart(gate: FakeGate, client: chunkkv.Client) -> None:
    with pytest.raises(chunkkv.DeadlineExceeded) as caught:
        client.ping(timeout=0.35)
    assert caught.value.cache == CacheState.CLEAN
    assert 3 <= len(gate.bodies("ping")) <= 4


def test_foreign_and_broken_answers_are_passed_over(gate: FakeGate, client: chunkkv.Client) -> None:
    answers: list[Script] = [lambda g, r: b"\xff\xff\xff", lambda g, r: pb.Response(request_id=r.request_id + 1), pong]
    gate.script = lambda g, r: answers[len(g.bodies("ping")) - 1](g, r)
    assert client.ping(timeout=1.5).now_ns == 5


def test_lost_connection_is_repeated_at_once(gate: FakeGate, client: chunkkv.Client) -> None:
    def script(fake: FakeGate, request: pb.Request) -> pb.Response | None:
        if len(fake.bodies("ping")) == 1:
            fake.restart()
            return None
        return pong(fake, request)

    gate.script = script
    start = time.monotonic()
    client.ping(timeout=40.0)
    assert time.monotonic() - start < 3.0  # and not the 10 s of a quarter
    assert len(set(gate.bodies("ping"))) == 1


def test_in_place_deadline_is_cancelled_and_clean(gate: FakeGate, client: chunkkv.Client) -> None:
    gate.script = lambda g, r: pb.Response(outcome=pb.Outcome(
        target_request_id=r.cancel.target_request_id, phase=pb.PHASE_CANCELLED, code=pb.CODE_CANCELLED)) \
        if r.HasField("cancel") else None
    with pytest.raises(chunkkv.DeadlineExceeded) as caught:
        compress(client, 0.2)
    assert caught.value.cache == CacheState.CLEAN
    target = pb.Request.FromString(gate.bodies("compress")[0]).request_id
    assert pb.Request.FromString(gate.bodies("cancel")[0]).cancel.target_request_id == target


def test_in_place_deadline_while_committing_waits_for_the_rows(gate: FakeGate, client: chunkkv.Client) -> None:
    """Too late to cancel: the answer is asked for again, and it is no error."""
    def script(fake: FakeGate, request: pb.Request) -> pb.Response | None:
        if request.HasField("cancel"):
            return pb.Response(outcome=pb.Outcome(phase=pb.PHASE_COMMITTING, cache=pb.CACHE_PENDING))
        return copy_of(COMPRESSED) if fake.bodies("cancel") else None

    gate.script = script
    answer = compress(client, 0.2)
    assert (answer.cache, answer.phase) == (CacheState.COMMITTED, Phase.DONE)
    assert answer.layers[0].kept == [(2, 6)]
    assert len(set(gate.bodies("compress"))) == 1


def test_in_place_deadline_in_silence_is_pending(gate: FakeGate, client: chunkkv.Client) -> None:
    with pytest.raises(chunkkv.DeadlineExceeded, match="outcome") as caught:
        compress(client, 0.2)
    assert caught.value.cache == CacheState.PENDING


def test_in_place_deadline_of_what_never_arrived_is_clean(gate: FakeGate, client: chunkkv.Client) -> None:
    gate.script = lambda g, r: pb.Response(status=pb.Status(code=pb.CODE_NOT_FOUND)) if r.HasField("cancel") else None
    with pytest.raises(chunkkv.DeadlineExceeded) as caught:
        compress(client, 0.2)
    assert caught.value.cache == CacheState.CLEAN


@pytest.mark.parametrize(("copy", "state"), [(False, CacheState.TORN), (True, CacheState.CLEAN)])
def test_refusal_after_a_restart(gate: FakeGate, client: chunkkv.Client, copy: bool, state: CacheState) -> None:
    """The first sending may have been executed by the daemon that died, the second came to another: a cache that is
    written in place is torn, the source of a copy is never written."""
    gate.script = lambda g, r: pb.Response(status=pb.Status(code=pb.CODE_STALE_BOOT)) \
        if len(g.bodies("compress")) == 2 else None
    with pytest.raises(chunkkv.StaleBoot) as caught:
        compress(client, 2.0, copy)
    assert caught.value.cache == state


def test_session_that_ended_between_two_sendings(gate: FakeGate, client: chunkkv.Client) -> None:
    """The answer to the first may have gone with the gate, and the session after it."""
    gate.script = lambda g, r: pb.Response(status=pb.Status(code=pb.CODE_SESSION_UNKNOWN, cache=pb.CACHE_CLEAN)) \
        if len(g.bodies("compress")) == 2 else None
    with pytest.raises(chunkkv.SessionLost) as caught:
        compress(client, 2.0)
    assert caught.value.cache == CacheState.TORN


def test_in_place_refusal_of_the_only_sending_is_clean(gate: FakeGate, client: chunkkv.Client) -> None:
    gate.script = lambda g, r: pb.Response(status=pb.Status(code=pb.CODE_STALE_BOOT))
    with pytest.raises(chunkkv.StaleBoot) as caught:
        compress(client, 2.0)
    assert caught.value.cache == CacheState.CLEAN


class FakeSide:
    """A side socket whose core is a process of ours."""

    def __init__(self, core: subprocess.Popen[bytes]) -> None:
        self.pidfd = os.pidfd_open(core.pid)
        self.attach_token = b"a" * 16

    def close(self) -> None:
        os.close(self.pidfd)


@pytest.mark.parametrize(("what", "state"), [("compress", CacheState.TORN), ("copy_out", CacheState.CLEAN),
                                             ("ping", CacheState.CLEAN)])
def test_core_death_is_noticed_while_waiting(gate: FakeGate, monkeypatch: pytest.MonkeyPatch, what: str,
                                             state: CacheState) -> None:
    with subprocess.Popen(["sleep", "60"]) as core:
        monkeypatch.setattr(connection, "SideSocket", lambda endpoint, timeout, page=None: FakeSide(core))
        client = chunkkv.Client(gate.prefix)

        def script(fake: FakeGate, request: pb.Request) -> None:
            core.kill()

        gate.script = script
        start = time.monotonic()
        with pytest.raises(chunkkv.CoreDied) as caught:
            client.ping(timeout=60.0) if what == "ping" else compress(client, 60.0, what == "copy_out")
        assert time.monotonic() - start < 5.0
        assert caught.value.cache == state
        client._connection.close()


def test_cancel_gets_through_while_another_thread_waits(gate: FakeGate, client: chunkkv.Client) -> None:
    def script(fake: FakeGate, request: pb.Request) -> pb.Response | None:
        if request.HasField("cancel"):
            return pb.Response(outcome=pb.Outcome(target_request_id=request.cancel.target_request_id,
                                                  phase=pb.PHASE_CANCELLED, code=pb.CODE_CANCELLED))
        if fake.bodies("cancel"):
            return pb.Response(status=pb.Status(code=pb.CODE_CANCELLED))
        return None

    gate.script = script
    errors: list[BaseException] = []

    def work() -> None:
        try:
            compress(client, 3.0)
        except chunkkv.ChunkkvError as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    while not gate.bodies("compress"):
        time.sleep(0.005)
    target = pb.Request.FromString(gate.bodies("compress")[0]).request_id
    outcome = client.cancel(target)
    worker.join()
    assert (outcome.request_id, outcome.phase) == (target, Phase.CANCELLED)
    assert [type(e) for e in errors] == [chunkkv.Cancelled]
    assert errors[0].code == Code.CANCELLED  # type: ignore[attr-defined]


def test_client_does_not_cross_a_fork(gate: FakeGate, client: chunkkv.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client._connection, "_process", 1)
    with pytest.raises(chunkkv.SessionLost, match="fork"):
        client.ping()


def test_closed_client_says_so(gate: FakeGate) -> None:
    gate.script = lambda g, r: pb.Response()
    client = chunkkv.Client(gate.prefix, needs_side=False)
    client.close()
    client.close()
    assert len(gate.bodies("end_session")) == 1
    with pytest.raises(chunkkv.SessionLost, match="closed"):
        client.ping()


def test_too_large_request_is_refused_here(gate: FakeGate, client: chunkkv.Client) -> None:
    object.__setattr__(client.session.limits, "request_bytes", 50)
    with pytest.raises(chunkkv.InvalidArgument, match="region"):
        compress(client, 1.0)
    assert not gate.bodies("compress")


def test_forgotten_client_neither_hangs_nor_leaks(gate: FakeGate) -> None:
    """Never closed and part of a reference cycle, as after an error in a notebook."""
    gate.script = pong
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        client = chunkkv.Client(gate.prefix, needs_side=False)
        client.ping()
        client.cycle = client  # type: ignore[attr-defined]
        del client
    gc.collect()
    end = time.monotonic() + 5.0  # the gate's ends of the connections close when its thread gets to it
    while len(os.listdir("/proc/self/fd")) > before + 1:
        assert time.monotonic() < end, "descriptors of clients that are gone are still open"
        time.sleep(0.01)
