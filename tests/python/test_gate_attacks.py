"""What a hostile peer of the request socket can do: harm to itself, at worst a new gate, never to another endpoint.

CHUNKKV_CONNECTS enlarges the flood of connections (3000; 70000 takes a minute).
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

import chunkkv
from chunkkv._pb import chunkkv_pb2 as pb
from chunkkv.wire import Code
from daemon import Daemon
from tenant import FORK
from test_gate_kill import Neighbour, gate_of
from zmtp import LONG, MORE, SIGNATURE, Closed, Peer

CONNECTS = int(os.environ.get("CHUNKKV_CONNECTS", "3000"))
HELD = 16  # connections of one user, base/limits.def
MIB = 1 << 20
NOBODY = 65534
GATE_SECONDS = 5.0  # until another gate serves
BAD = b"\xff" * 8  # no protobuf


def status_kib(pid: int, field: str) -> int:
    """A line of /proc/PID/status, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def mapped_by_sanitizer(pid: int) -> bool:
    return status_kib(pid, "VmSize") > 1 << 30


class Scene:
    """A daemon whose endpoint `main` is attacked while somebody works on `other`."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.path = daemon.prefix() + ".zmq"
        self.gate = gate_of(daemon, "main")
        assert self.gate is not None
        self.core_kib = status_kib(daemon.pid, "VmRSS")
        self.neighbour = Neighbour(daemon.prefix("other"))
        self.neighbour.start()
        self._await_calls(5)

    def check(self) -> None:
        """The endpoint serves, and nobody else has noticed anything."""
        end = time.monotonic() + GATE_SECONDS
        while True:
            with suppress(chunkkv.ChunkkvError), chunkkv.Client(self.daemon.prefix(), timeout=2.0) as client:
                client.ping()
                break
            assert time.monotonic() < end, f"main does not serve any more\n{self.daemon.log()}"
            time.sleep(0.1)
        self._await_calls(self.neighbour.calls + 5)
        self.neighbour.ending.set()
        self.neighbour.join()
        assert not self.neighbour.error
        if not mapped_by_sanitizer(self.daemon.pid):
            assert status_kib(self.daemon.pid, "VmRSS") < self.core_kib + 1024

    def _await_calls(self, count: int) -> None:
        end = time.monotonic() + 10
        while self.neighbour.calls < count:
            assert not self.neighbour.error
            assert time.monotonic() < end, "nobody answers on the other endpoint"
            time.sleep(0.01)

    def same_gate(self) -> bool:
        return gate_of(self.daemon, "main") == self.gate


@pytest.fixture
def scene(new_daemon: Callable[..., Daemon]) -> Iterator[Scene]:
    daemon = new_daemon(endpoints=("main", "other"), options=("--socket-mode", "0666"))
    daemon.directory.chmod(0o711)
    # what the first requests allocate for good is not an attack's
    for endpoint in ("main", "other"):
        with chunkkv.Client(daemon.prefix(endpoint)) as client:
            client.ping()
    running = Scene(daemon)
    yield running
    running.neighbour.ending.set()
    running.neighbour.join()


def ready(path: str, **what: object) -> Peer:
    peer = Peer(path)
    peer.ready(**what)  # type: ignore[arg-type]
    return peer


# ---- 1: routing ids


@pytest.mark.tries(1)
def test_claimed_identity(scene: Scene) -> None:
    # what libzmq would generate first if it were not seeded, then somebody whom it has to give one
    first = ready(scene.path, identity=bytes.fromhex("006b8b4567"))
    others = [ready(scene.path) for _ in range(4)]
    for peer in (first, *others):
        peer.frame(BAD)
        assert pb.Response.FromString(peer.receive()).status.code == int(Code.BAD_MESSAGE)
        peer.close()
    scene.check()
    assert scene.same_gate()


@pytest.mark.parametrize("identity", [b"same", b"\0leading", b"x" * 65, b"y" * 255])
@pytest.mark.tries(1)
def test_identity_of_another(scene: Scene, identity: bytes) -> None:
    victim = ready(scene.path, identity=identity)
    thief = ready(scene.path, identity=identity)
    for peer in (victim, thief):
        with suppress(Closed):
            peer.frame(BAD)
    if len(identity) <= 64 and identity[0]:
        # who was there first is heard and answered
        assert pb.Response.FromString(victim.receive()).status.code == int(Code.BAD_MESSAGE)
    victim.close()
    thief.close()
    scene.check()
    assert scene.same_gate()


# ---- 2: connections


def flood(path: str, pipe: Connection) -> None:
    """Connect CONNECTS times and keep what is not closed; say how many those are, then again when asked."""
    peers: list[Peer] = []
    for n in range(CONNECTS):
        try:
            peers.append(Peer(path))
        except OSError:
            continue
        if n % 100 == 99:
            peers = [peer for peer in peers if not closed(peer)]
    time.sleep(0.2)
    pipe.send(sum(not closed(peer) for peer in peers))
    pipe.recv()


def closed(peer: Peer) -> bool:
    peer.socket.setblocking(False)
    try:
        return not peer.socket.recv(64)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def visit(path: str, pipe: Connection) -> None:
    """As another user: how long until the gate's greeting is there, again and again."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    times: list[float] = []
    pipe.send("there")
    while not pipe.poll():
        start = time.monotonic()
        with Peer(path) as peer:
            peer.push(SIGNATURE)
            peer.read(len(SIGNATURE))
            times.append(time.monotonic() - start)
        time.sleep(0.06)  # fewer than what one user may
    pipe.send(times)


@pytest.mark.tries(2)
def test_flood_of_connections(scene: Scene) -> None:
    here, there = FORK.Pipe()
    attacker = FORK.Process(target=flood, args=(scene.path, there), daemon=True)
    visitor = None
    if os.geteuid() == 0:
        mine, theirs = FORK.Pipe()
        visitor = FORK.Process(target=visit, args=(scene.path, theirs), daemon=True)
        visitor.start()
        assert mine.recv() == "there"
    attacker.start()
    assert here.poll(120)
    held = here.recv()
    if visitor is not None:
        mine.send("enough")
        times = mine.recv()
        visitor.join()
        print(f"{CONNECTS} connects: {held} held; another user's {len(times)} greetings: median "
              f"{statistics.median(times) * 1000:.2f} ms, longest {max(times) * 1000:.2f} ms")
        assert statistics.median(times) < 0.010
    assert 0 < held <= HELD
    here.send("enough")
    attacker.join()
    scene.check()
    assert scene.same_gate()
    assert "GATE_STATS endpoint=main" in scene.daemon.log()


@pytest.mark.tries(2)
def test_out_of_descriptors(scene: Scene) -> None:
    if os.geteuid():
        pytest.skip("needs many users, so root")
    pids = []
    for uid in range(20001, 20041):  # 40 users with 16 connections each, and the gate may have 512 descriptors
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                peers = [Peer(scene.path) for _ in range(HELD)]
                time.sleep(20)
                del peers
            os._exit(0)
        pids.append(pid)
    try:
        time.sleep(2.0)
        assert scene.same_gate()
        assert len(os.listdir(f"/proc/{scene.gate}/fd")) <= 512
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    scene.check()
    assert scene.same_gate()


# ---- 3: messages without an end


@pytest.mark.parametrize("size", [512 << 10, 32])
@pytest.mark.tries(3)
def test_endless_message(scene: Scene, size: int) -> None:
    assert scene.gate is not None
    if mapped_by_sanitizer(scene.gate):
        pytest.skip("no limit of memory under a sanitizer")
    peer = ready(scene.path)
    frame = bytes([MORE, size]) if size < 256 else bytes([MORE | LONG]) + size.to_bytes(8, "big")
    block = (frame + b"A" * size) * max(1, MIB // size)
    sent = 0
    with suppress(Closed, TimeoutError):
        while sent < 1024 * MIB:
            peer.push(block)
            sent += len(block)
            if scene.same_gate():
                with suppress(OSError, StopIteration):
                    assert status_kib(scene.gate, "VmRSS") < 300 << 10
    print(f"frames of {size} bytes: {sent / MIB:.0f} MiB sent, gate {'lives' if scene.same_gate() else 'replaced'}")
    assert sent < 1024 * MIB, "nothing stopped it"
    peer.close()
    scene.check()


# ---- 4: who it says it is


@pytest.mark.tries(4)
def test_forged_identity(scene: Scene) -> None:
    with chunkkv.Client(scene.daemon.prefix()) as client:
        lies = [(b"User-Id", b"root"), (b"Peer-Address", b"localhost:4711:4711:1"),
                (b"peer-address", b"localhost:1:1:1")]
        with ready(scene.path, extra=lies) as peer:
            peer.frame(pb.Request(request_id=client.new_request_id(), deadline_ns=time.monotonic_ns() + 10**9,
                                  boot_id=client.session.boot_id, session_token=client.session.token,
                                  ping=pb.Ping()).SerializeToString())
            answer = pb.Response.FromString(peer.receive())
            # the session belongs to this process; from process 1 of user 4711 it would be PERMISSION
            assert answer.status.code == int(Code.OK), answer.status
    scene.check()
    assert scene.same_gate()


@pytest.mark.parametrize("greeting", [
    b"\x01\x00",  # ZMTP 1.0: an anonymous peer
    SIGNATURE + b"\x01\x05" + b"\x00\x00",  # ZMTP 2.0: revision 1, DEALER, an empty identity
])
@pytest.mark.tries(4)
def test_old_protocol_is_not_let_in(scene: Scene, greeting: bytes) -> None:
    with Peer(scene.path) as peer:
        with suppress(Closed):
            peer.push(greeting)
            peer.frame(BAD)
        assert peer.is_cut(1.0)  # at once; half a handshake would last 2 s
    scene.check()
    assert scene.same_gate()


# ---- 5: what does not decode


def nested(depth: int) -> bytes:
    body = b""
    for _ in range(depth):
        length = len(body)
        varint = bytearray()
        while length > 127:
            varint.append(length & 127 | 128)
            length >>= 7
        body = b"\x72" + bytes(varint) + bytes([length]) + body
    return body


BODIES = {"empty submessages": b"\x22\x00" * 32768, "nesting": nested(10000), "unknown fields": b"\xb8\x3e\x01" * 20000,
          "long unknown": b"\xc2\x3e\xff\xff\x03" + bytes(65535), "cut": b"\x0a\xff\xff\xff\x7f" + bytes(60000)}


@pytest.mark.parametrize("what", BODIES)
@pytest.mark.tries(5)
def test_undecodable(scene: Scene, what: str) -> None:
    assert scene.gate is not None
    times: list[float] = []
    with ready(scene.path) as peer:
        peer.frame(BAD + bytes(65536))
        peer.receive()  # buffers of this size are there now
        before = status_kib(scene.gate, "VmHWM")
        for _ in range(20):
            start = time.monotonic()
            peer.frame(BODIES[what])
            answer = pb.Response.FromString(peer.receive())
            times.append(time.monotonic() - start)
            assert answer.status.code == int(Code.BAD_MESSAGE), answer.status
    grown = status_kib(scene.gate, "VmHWM") - before
    print(f"{what}: {len(BODIES[what])} bytes, median {statistics.median(times) * 1000:.2f} ms, "
          f"gate grew by {grown} KiB")
    if not mapped_by_sanitizer(scene.gate):
        assert grown < 1024 + 256  # the budget of decoding, and malloc's own
        assert statistics.median(times) < 0.005
    scene.check()
    assert scene.same_gate()


# ---- 19: slow and half ones


@pytest.mark.tries(19)
def test_who_does_not_read_is_dropped(scene: Scene) -> None:
    peer = ready(scene.path)
    peer.socket.settimeout(20)
    start = time.monotonic()
    with suppress(Closed):
        while time.monotonic() - start < 20:
            peer.push((bytes([0, len(BAD)]) + BAD) * 50)
            time.sleep(0.005)
    assert time.monotonic() - start < 10
    peer.close()
    scene.check()
    assert scene.same_gate()
    assert "GATE_SHED endpoint=main" in scene.daemon.log()


@pytest.mark.tries(19)
def test_half_a_handshake(scene: Scene) -> None:
    silent, dribbling = Peer(scene.path), Peer(scene.path)
    start = time.monotonic()
    greeting = SIGNATURE + bytes((3, 0)) + b"NULL".ljust(20, b"\0") + bytes(32)
    with suppress(Closed):
        for byte in greeting:
            dribbling.push(bytes([byte]))
            if dribbling.is_cut(1.0):
                break
    assert time.monotonic() - start < 4.5
    assert silent.is_cut(3.0)
    silent.close()
    dribbling.close()
    scene.check()
    assert scene.same_gate()


@pytest.mark.tries(19)
def test_five_thousand_connects_a_second(scene: Scene) -> None:
    assert scene.gate is not None
    start, before, n = time.monotonic(), cpu_seconds(scene.gate), 0
    while time.monotonic() - start < 2.0:
        Peer(scene.path).close()
        n += 1
        ahead = n / 5000 - (time.monotonic() - start)
        if ahead > 0.002:
            time.sleep(ahead)
    seconds, used = time.monotonic() - start, cpu_seconds(scene.gate) - before
    print(f"{n / seconds:.0f} connects a second: the gate took {used / seconds:.2f} of a core")
    assert used < seconds
    scene.check()
    assert scene.same_gate()


# ---- 22: a gate that sleeps


@pytest.mark.tries(22)
def test_stopped_gate_is_replaced(scene: Scene) -> None:
    assert scene.gate is not None
    os.kill(scene.gate, signal.SIGSTOP)
    start = time.monotonic()
    while scene.same_gate():
        assert time.monotonic() - start < 6
        time.sleep(0.05)
    assert "no answer to GATE_PING for 3 s" in scene.daemon.log()
    scene.check()
