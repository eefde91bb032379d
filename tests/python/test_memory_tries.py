"""Memory and descriptors that no honest client sends: refused where it shows, else a lost region; others go on."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import pytest

import chunkkv
from chunkkv import Code
from chunkkv._pb import chunkkv_pb2 as pb
from chunkkv.side import SideRecord, SideType
from chunkkv.wire import Access, CacheState, Slot
from daemon import Daemon
from fuse import SilentFile, can_mount
from tenant import (
    LONG_ROWS,
    ROWS,
    SLOWLY,
    WIDE_ROWS,
    Tenant,
    await_in_flight,
    every_other,
    filled,
    is_sanitized,
    long_to_score,
    neighbour,
    seconds_until,
    used,
    wide,
)
from test_overlaps import Rig

NOBODY = 65534
PAGE = os.sysconf("SC_PAGE_SIZE")
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
FUTURE_WRITE = 0x10
PUNCH_HOLE, KEEP_SIZE = 2, 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_NOTICE_LOST = 2
_USERFAULTFD = 323 if os.uname().machine == "x86_64" else 282


def punch(fd: int, offset: int, size: int) -> None:
    """Give pages of a file back."""
    assert _LIBC.fallocate(fd, PUNCH_HOLE | KEEP_SIZE, ctypes.c_long(offset), ctypes.c_long(size)) == 0


def memfd(size: int, seals: int = SEALS, filled_bytes: int | None = None) -> int:
    fd = os.memfd_create("tries", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if filled_bytes is None or filled_bytes:
        os.posix_fallocate(fd, 0, size if filled_bytes is None else filled_bytes)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def watches() -> bool:
    """Can holes be noticed when they are read?"""
    fd = _LIBC.syscall(_USERFAULTFD, os.O_CLOEXEC | 1)
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


@dataclass
class Scene:
    """A daemon with a neighbour at work, and what the core held before a try."""

    daemon: Daemon
    other: Tenant

    def settled(self, before: tuple[int, int, int]) -> None:
        """All that the try brought is gone again, and the core lives."""
        seconds_until(lambda: all(now <= then for now, then in zip(self.holds(), before, strict=True)), 10)
        assert self.daemon.process is not None
        assert self.daemon.process.poll() is None

    def holds(self) -> tuple[int, int, int]:
        usage = self.daemon.usage()
        return usage.descriptors, usage.memfd_mappings, 0 if is_sanitized(self.daemon) else usage.mappings


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    daemon = Daemon(options=("--socket-mode", "666", *SLOWLY))
    daemon.directory.chmod(0o755)
    with Tenant(daemon.prefix(), neighbour, NOBODY if os.geteuid() == 0 else None) as other:
        assert other.hear() == "ready"
        for _ in range(3):  # threads, arenas and tables that stay are made once
            with chunkkv.Client(daemon.prefix()) as client, filled(client) as cache:
                client.plan(cache, rows=ROWS, keep_ratio=0.5)
        time.sleep(0.2)
        yield Scene(daemon, other)
        other.say("stop")
        laps, slowest = other.hear()
        assert laps > 0
        print(f"neighbour: {laps} plans, slowest {slowest * 1000:.0f} ms")
    daemon.stop()


@pytest.fixture
def attacker(scene: Scene) -> Iterator[chunkkv.Client]:
    """A session that is gone without a trace afterwards."""
    before = scene.holds()
    with chunkkv.Client(scene.daemon.prefix()) as client:
        yield client
        client.ping()
    scene.settled(before)


# ---- what is no memory of the right kind


def _regular_file() -> int:
    with tempfile.TemporaryFile(dir=os.environ.get("TMPDIR", "/var/tmp")) as file:
        file.truncate(PAGE)
        return os.dup(file.fileno())


def _read_only() -> int:
    fd = memfd(PAGE)
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(fd)


def _epoll() -> int:
    with select.epoll() as poll:
        return os.dup(poll.fileno())


def _pipe() -> int:
    ends = os.pipe2(os.O_CLOEXEC)
    os.close(ends[1])
    return ends[0]


def _pair() -> int:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


TRIES: dict[str, tuple[Callable[[], int], int, Code]] = {
    "could be truncated": (lambda: memfd(PAGE, 0), PAGE, Code.NOT_SEALED),
    "could be sealed more": (lambda: memfd(PAGE, SEALS & ~fcntl.F_SEAL_SEAL), PAGE, Code.NOT_SEALED),
    "sealed against writing": (lambda: memfd(PAGE, SEALS | fcntl.F_SEAL_WRITE), PAGE, Code.NOT_SEALED),
    "a hole": (lambda: memfd(8 * PAGE, SEALS, 7 * PAGE), 8 * PAGE, Code.SPARSE),
    "sparse, 1 TiB": (lambda: memfd(1 << 40, SEALS, 0), 1 << 40, Code.SPARSE),
    "another size": (lambda: memfd(PAGE), 2 * PAGE, Code.OUT_OF_RANGE),
    "read-only": (_read_only, PAGE, Code.PERMISSION),
    "sealed against future writing": (lambda: memfd(PAGE, SEALS | FUTURE_WRITE), PAGE, Code.PERMISSION),
    "regular file": (_regular_file, PAGE, Code.HANDLE_INVALID),
    "/dev/zero": (lambda: os.open("/dev/zero", os.O_RDWR), PAGE, Code.HANDLE_INVALID),
    "directory": (lambda: os.open("/", os.O_RDONLY), PAGE, Code.HANDLE_INVALID),
    "name only": (lambda: os.open("/dev/zero", os.O_PATH), PAGE, Code.HANDLE_INVALID),
    "epoll": (_epoll, PAGE, Code.HANDLE_INVALID),
    "pipe": (_pipe, PAGE, Code.HANDLE_INVALID),
    "socket": (_pair, PAGE, Code.HANDLE_INVALID),
}


@pytest.mark.parametrize("name", TRIES)
@pytest.mark.tries(16)
def test_refused_at_registration(scene: Scene, attacker: chunkkv.Client, name: str) -> None:
    make, size, code = TRIES[name]
    rss = scene.daemon.usage().rss_kib
    for _ in range(40):
        fd = make()
        try:
            with pytest.raises(chunkkv.ChunkkvError) as caught:
                attacker.register_region(fd, size=size, access=Access.READ_WRITE)
            assert caught.value.code == code, str(caught.value)
        finally:
            os.close(fd)
        time.sleep(0.001)  # closed beside the loop; whoever sends more than that can keep up with is cut off
    assert scene.daemon.usage().rss_kib < rss + 64 * 1024


def test_read_only_memory_can_be_read(attacker: chunkkv.Client) -> None:
    for fd in (_read_only(), memfd(PAGE, SEALS | FUTURE_WRITE)):
        region = attacker.register_region(fd, access=Access.READ)
        attacker.unregister_region(region)
        os.close(fd)


@pytest.mark.skipif(not can_mount(), reason="needs root and /dev/fuse")
@pytest.mark.tries(16)
def test_file_system_that_never_answers(scene: Scene) -> None:
    before = scene.holds()
    with chunkkv.Client(scene.daemon.prefix()) as client, SilentFile() as silent:
        with pytest.raises(chunkkv.ChunkkvError) as caught:
            client._connection.side.offer(silent.fileno(), 1 << 20)
        assert caught.value.code == Code.HANDLE_INVALID
        for _ in range(5):
            client.ping()
        # its close() waits for an answer that does not come, and nobody else does
        seconds_until(lambda: bool(silent.asked), 5)
        with filled(client) as cache:
            client.plan(cache, rows=ROWS, keep_ratio=0.5)
    scene.settled(before)


# ---- messages that carry too much


def _attached(daemon: Daemon) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(5)
    sock.connect(daemon.prefix() + ".fd")
    sock.send(SideRecord(SideType.ATTACH).pack())
    data, fds, _, _ = socket.recv_fds(sock, 96, 4)
    for fd in fds:
        os.close(fd)
    assert SideRecord.unpack(data).type == SideType.ATTACHED
    return sock


def _credentials(sock: socket.socket) -> None:
    """Beside a descriptor, so that a buffer for one is too small for what comes."""
    fd = memfd(PAGE)
    ours = struct.pack("iii", os.getpid(), os.getuid(), os.getgid())
    sock.sendmsg([SideRecord(SideType.OFFER, kind=1, size=PAGE).pack()], [
        (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", fd, fd, fd)),
        (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, ours)])
    os.close(fd)


def _many(count: int) -> Callable[[socket.socket], None]:
    def send(sock: socket.socket) -> None:
        fd = memfd(PAGE)
        socket.send_fds(sock, [SideRecord(SideType.OFFER, kind=1, size=PAGE).pack()], [fd] * count)
        os.close(fd)
    return send


@pytest.mark.parametrize("send", [_many(2), _many(3), _many(253), _credentials],
                         ids=["2 descriptors", "3 descriptors", "253 descriptors", "3 and credentials"])
@pytest.mark.tries(18)
def test_too_many_descriptors_end_the_connection(scene: Scene, send: Callable[[socket.socket], None]) -> None:
    before = scene.holds()
    for _ in range(20):
        with _attached(scene.daemon) as sock:
            send(sock)
            try:
                assert sock.recv(200) == b""
            except ConnectionResetError:
                pass
    scene.settled(before)


@pytest.mark.tries(18)
def test_our_own_socket(scene: Scene) -> None:
    """The connection itself, sent over itself: nobody but the kernel's collector could close that."""
    before = scene.holds()
    for _ in range(10):
        with _attached(scene.daemon) as sock:
            socket.send_fds(sock, [SideRecord(SideType.OFFER, kind=1, size=PAGE).pack()], [sock.fileno()])
            answer = SideRecord.unpack(sock.recv(200))
            assert (answer.type, answer.code) == (SideType.OFFERED, Code.HANDLE_INVALID)
    scene.settled(before)


# ---- memory that goes away later


class Planning(threading.Thread):
    """A request in the background, and what it ended as."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act
        self.result: object = None
        self.error: chunkkv.ChunkkvError | None = None
        self.start()

    def run(self) -> None:
        """Do it."""
        try:
            self.result = self._act()
        except chunkkv.ChunkkvError as error:
            self.error = error


@pytest.mark.tries(16)
def test_holes_while_it_is_scored(scene: Scene, attacker: chunkkv.Client) -> None:
    cache = long_to_score(attacker)
    rows = LONG_ROWS // 8 if is_sanitized(scene.daemon) else LONG_ROWS
    region = cache.region
    act = Planning(lambda: attacker.plan(cache, rows=rows, keep_ratio=0.5, timeout=60))
    with chunkkv.Client(scene.daemon.prefix()) as watcher:
        await_in_flight(watcher)
    punch(cache.memory.fileno(), 0, cache.memory.size)
    act.join()
    assert act.error is not None
    assert (act.error.code, act.error.cache) == (Code.REGION_LOST, CacheState.CLEAN)
    notices = attacker._connection.side.notices()
    assert [(n.kind, n.region_id) for n in notices] == [(_NOTICE_LOST, region.id)]
    # filled again, it stays lost, until it is registered anew
    cache.key(0)[...] = 0x3F80
    os.posix_fallocate(cache.memory.fileno(), 0, cache.memory.size)
    with pytest.raises(chunkkv.ChunkkvError) as caught:
        attacker.plan(cache, rows=rows, keep_ratio=0.5, timeout=60)
    assert caught.value.code == Code.REGION_LOST
    again = attacker.register_region(cache.memory)
    assert not again.shared
    assert attacker._connection.side.notices() == []


@pytest.mark.skipif(not watches(), reason="this kernel or sandbox has no userfaultfd")
@pytest.mark.tries(16)
def test_holes_that_are_read_afterwards(scene: Scene, attacker: chunkkv.Client) -> None:
    """Reading would fill them with zeros, and nothing would tell them from keys any more."""
    cache = long_to_score(attacker)
    rows = LONG_ROWS // 8 if is_sanitized(scene.daemon) else LONG_ROWS
    layer = cache.key(0).nbytes
    act = Planning(lambda: attacker.plan(cache, rows=rows, keep_ratio=0.5, timeout=60))
    with chunkkv.Client(scene.daemon.prefix()) as watcher:
        await_in_flight(watcher)
    punch(cache.memory.fileno(), 3 * layer, layer)
    act.join()
    assert act.error is not None
    assert (act.error.code, act.error.cache) == (Code.REGION_LOST, CacheState.CLEAN)


@pytest.mark.tries(16)
def test_holes_while_rows_move(attacker: chunkkv.Client) -> None:
    seen: set[tuple[Code, CacheState] | None] = set()
    keep = every_other(WIDE_ROWS)
    for i in range(60):
        with wide(attacker) as cache:
            act = Planning(lambda: attacker.compress(cache, rows=WIDE_ROWS, keep=keep, timeout=60))
            time.sleep(0.001 * (i % 20))
            punch(cache.memory.fileno(), 0, cache.memory.size)
            act.join()
            seen.add((Code(act.error.code), CacheState(act.error.cache)) if act.error else None)
            if (Code.REGION_LOST, CacheState.TORN) in seen and i > 5:
                break
    print(seen)
    lost = {(Code.REGION_LOST, CacheState.CLEAN), (Code.REGION_LOST, CacheState.TORN)}
    assert seen <= lost | {None}
    assert (Code.REGION_LOST, CacheState.TORN) in seen


@pytest.mark.tries(16)
def test_a_hole_never_makes_a_wrong_answer(attacker: chunkkv.Client) -> None:
    """Punched at any moment: the right rows or REGION_LOST."""
    rng = np.random.default_rng(3)
    with filled(attacker) as cache:
        true = attacker.plan(cache, rows=ROWS, keep_ratio=0.3).layers
        start = time.monotonic()
        attacker.plan(cache, rows=ROWS, keep_ratio=0.3)
        takes = time.monotonic() - start
    lost = 0
    for _ in range(100):
        with filled(attacker) as cache:
            act = Planning(lambda: attacker.plan(cache, rows=ROWS, keep_ratio=0.3, timeout=60))
            time.sleep(float(rng.uniform(0, 1.2 * takes)))
            offset = int(rng.integers(cache.memory.size // PAGE)) * PAGE
            punch(cache.memory.fileno(), offset, cache.memory.size - offset)
            act.join()
            if act.error is None:
                assert act.result.layers == true  # type: ignore[attr-defined]
            else:
                assert (act.error.code, act.error.cache) == (Code.REGION_LOST, CacheState.CLEAN)
                lost += 1
    print(f"{lost} of 100 lost")
    assert lost > 0


@pytest.mark.parametrize("reply_form", [pb.REPLY_RUNS, pb.REPLY_IN_REGION])
@pytest.mark.tries(16)
def test_holes_in_tables_and_answers(attacker: chunkkv.Client, reply_form: pb.ReplyForm) -> None:
    spare = chunkkv.SharedMemory.allocate(16 * PAGE)
    region = attacker.register_region(spare)
    rig = Rig(attacker)
    body = rig.compress(reply_form=reply_form)
    body.groups[0].table.ClearField("numbers")
    getattr(body.groups[0].table, "from").CopyFrom(pb.Slice(region_id=region.id, offset=PAGE, size=4))
    if reply_form == pb.REPLY_IN_REGION:
        body.reply_to.CopyFrom(pb.Slice(region_id=region.id, offset=4 * PAGE, size=4 * PAGE))
    assert attacker.call(pb.Request(compress=body), timeout=10).status.code == Code.OK
    punch(spare.fileno(), (4 if reply_form == pb.REPLY_IN_REGION else 1) * PAGE, PAGE)
    with pytest.raises(chunkkv.ChunkkvError) as caught:
        attacker.call(pb.Request(compress=body), timeout=10)
    assert (caught.value.code, caught.value.cache) == (Code.REGION_LOST, CacheState.CLEAN)
    assert attacker.call(pb.Request(compress=rig.compress()), timeout=10).status.code == Code.OK


@pytest.mark.tries(16, 25)
def test_holes_in_the_control_page(scene: Scene, attacker: chunkkv.Client) -> None:
    page = attacker._connection.page
    with filled(attacker) as cache:
        attacker.compress(cache, rows=ROWS, keep_ratio=0.9)
        punch(page.memory.fileno(), 0, page.memory.size)
        for _ in range(4):
            try:
                attacker.compress(cache, rows=ROWS // 2, keep_ratio=0.9, timeout=3)
            except chunkkv.ChunkkvError as error:
                print(error)
        time.sleep(1.2)  # the core beats there twice
    attacker.ping()


def test_pages_are_given_back(scene: Scene) -> None:
    """A hundred regions lost in a hundred sessions leave nothing behind."""
    before = scene.holds()
    for _ in range(100):
        with chunkkv.Client(scene.daemon.prefix()) as client:
            memory = chunkkv.SharedMemory.allocate(16 * PAGE)
            region = client.register_region(memory)
            punch(memory.fileno(), 0, memory.size)
            assert used(client)[Slot.REGIONS] >= 1
            client.unregister_region(region)
    scene.settled(before)


def _never(client: chunkkv.Client, pipe: Connection) -> None:
    pipe.send("connected")


def test_another_user_connects_still(scene: Scene) -> None:
    with Tenant(scene.daemon.prefix(), _never, NOBODY if os.geteuid() == 0 else None) as other:
        assert other.hear() == "connected"
