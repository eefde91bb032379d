"""What hostile tenants do, again and again: the tries of the list (tries.py) that a client can make, each short.

A try takes the prefix of an endpoint and may end in any error of the protocol or of a socket: being refused, cut off or
left without a gate is what it asks for.  Used by victim.py and soak.py; what must come of each try is looked at by the
tests that are marked with its number.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "clients" / "python" / "src"), str(ROOT / "tests" / "python")]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

import chunkkv  # noqa: E402
from chunkkv._pb import chunkkv_pb2 as pb  # noqa: E402
from chunkkv.side import SideRecord, SideType  # noqa: E402
from chunkkv.wire import Access  # noqa: E402
from raw import RawSession  # noqa: E402
from tenant import FORK, every_other  # noqa: E402
from test_gate_attacks import BAD, BODIES, ready  # noqa: E402
from test_memory_tries import TRIES as MEMORIES  # noqa: E402
from test_memory_tries import memfd, punch  # noqa: E402
from zmtp import LONG, MORE, SIGNATURE, Closed, Peer  # noqa: E402

PAGE = os.sysconf("SC_PAGE_SIZE")
ROWS = 1024  # of caches here: what a large one takes of the machine is the greedy tenant's figure
EXPECTED = (chunkkv.ChunkkvError, OSError, Closed, AssertionError)
SECONDS = 0.5  # the longest that a try goes on by itself
SLEEPS, ATTACKS, GREEDY, BUSY = range(4)  # what attackers are told


def session(prefix: str) -> chunkkv.Client:
    return chunkkv.Client(prefix, timeout=2.0)


def filled(client: chunkkv.Client) -> chunkkv.SharedCache:
    cache = chunkkv.SharedCache.allocate(client, layers=2, tokens=ROWS, kv_heads=2, q_heads=2, head_dim=64,
                                         dtype="f32", window=32)
    cache.key(0)[...] = 1.0
    cache.query(0)[...] = 1.0
    return cache


@contextmanager
def soon(what: Callable[..., Any], *words: Any) -> Iterator[None]:
    """Beside what is done meanwhile, at any moment of it."""
    timer = threading.Timer(random.uniform(0, 0.005), what, words)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def routing_ids(prefix: str) -> None:
    peers = [ready(prefix + ".zmq", identity=identity) for identity in
             (bytes.fromhex("006b8b4567"), b"", b"same", b"same", b"x" * 255)]
    for peer in peers:
        with suppress(*EXPECTED):
            peer.frame(BAD)
        peer.close()


def connections(prefix: str) -> None:
    peers = []
    for _ in range(300):
        with suppress(OSError):
            peers.append(Peer(prefix + ".zmq"))
    for peer in peers:
        peer.close()


def endless(prefix: str) -> None:
    size = random.choice((32, 512 << 10))
    frame = bytes([MORE, size]) if size < 256 else bytes([MORE | LONG]) + size.to_bytes(8, "big")
    block = (frame + b"A" * size) * max(1, (1 << 20) // size)
    end = time.monotonic() + SECONDS
    with ready(prefix + ".zmq") as peer:
        while time.monotonic() < end:
            peer.push(block)


def forged(prefix: str) -> None:
    lies = [(b"User-Id", b"root"), (b"Peer-Address", b"localhost:1:1:1")]
    with ready(prefix + ".zmq", extra=lies) as peer:
        peer.frame(BAD)
        peer.receive()
    with Peer(prefix + ".zmq") as old:
        old.push(b"\x01\x00")


def undecodable(prefix: str) -> None:
    with ready(prefix + ".zmq") as peer:
        for body in (*BODIES.values(), random.randbytes(4096)):
            peer.frame(body)
            peer.receive()


def absurd_numbers(prefix: str) -> None:
    with session(prefix) as client, filled(client) as cache:
        for words in ({"rows": 1 << 40}, {"rows": 0}, {"table": [7]}, {"keep_ratio": -1.0},
                      {"keep": [(ROWS, ROWS + 9)]}, {"table": range(1 << 16)}, {"keep": [(5, 2)]}):
            with suppress(ValueError, *EXPECTED):
                client.plan(cache, **{"rows": ROWS, "keep_ratio": 0.5, **words})
        with RawSession(client) as raw:
            for _ in range(20):
                body = pb.Compress(cache_id=cache.id, mode=random.randrange(5), logical_len=random.getrandbits(31))
                raw.ask(raw.request(compress=body))


def handles(prefix: str) -> None:
    with session(prefix) as client, RawSession(client) as raw:
        for size in (0, 63, 64, 66):
            raw.ask(raw.request(register_region=pb.RegisterRegion(memfd_token=random.randbytes(16), size=PAGE)))
            handle = pb.CudaIpc(handle=random.randbytes(size), alloc_size=PAGE)
            raw.ask(raw.request(register_region=pb.RegisterRegion(cuda_ipc=handle, size=PAGE)))
        memory = chunkkv.SharedMemory.allocate(1 << 20)
        for offset, size in ((1 << 63, 1 << 62), (PAGE, 1 << 20), (1, 5)):
            with suppress(ValueError, *EXPECTED):
                client.register_region(memory, offset=offset, size=size)


def same_memory(prefix: str) -> None:
    memory = chunkkv.SharedMemory.allocate(1 << 20)
    with session(prefix) as client:
        for _ in range(300):
            client.register_region(memory)


def engine_killed(prefix: str) -> None:
    """While it is idle, scores or moves."""
    here, there = FORK.Pipe()

    def engine() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with suppress(*EXPECTED), session(prefix) as client, filled(client) as cache:
            there.send("ready")
            while True:
                client.compress(cache, rows=ROWS, keep=every_other(ROWS), timeout=10)

    process = FORK.Process(target=engine)
    process.start()
    here.poll(2)
    time.sleep(random.uniform(0, 0.1))
    process.kill()
    process.join()


def wrong_memories(prefix: str) -> None:
    with session(prefix) as client:
        for make, size, _ in MEMORIES.values():
            fd = make()
            with suppress(*EXPECTED):
                client.register_region(fd, size=size, access=Access.READ_WRITE)
            os.close(fd)


def holes(prefix: str) -> None:
    with session(prefix) as client, filled(client) as cache, soon(punch, cache.memory.fileno(), 0, 64 * PAGE):
        client.plan(cache, rows=ROWS, keep_ratio=0.5, timeout=2)


def names(prefix: str) -> None:
    with session(prefix) as client, RawSession(client) as raw:
        for name in ("/etc/passwd", f"/chunkkv-0-{secrets.token_hex(16)}", f"/chunkkv-{os.getuid()}-x", "/../x"):
            raw.ask(raw.request(register_region=pb.RegisterRegion(posix_shm=name, size=PAGE)))


def descriptors(prefix: str) -> None:
    for count in (2, 253):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(2)
            sock.connect(prefix + ".fd")
            sock.send(SideRecord(SideType.ATTACH).pack())
            _, fds, _, _ = socket.recv_fds(sock, 96, 4)
            for fd in fds:
                os.close(fd)
            fd = memfd(PAGE)
            sock.sendmsg([SideRecord(SideType.OFFER, kind=1, size=PAGE).pack()],
                         [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{count}i", *[fd] * count))])
            os.close(fd)


def slow_reader(prefix: str) -> None:
    end = time.monotonic() + SECONDS
    with ready(prefix + ".zmq") as peer:
        peer.socket.settimeout(SECONDS)
        while time.monotonic() < end:
            peer.push((bytes([0, len(BAD)]) + BAD) * 50)


def half_handshakes(prefix: str) -> None:
    peers = [Peer(prefix + ".zmq") for _ in range(8)]
    for byte in SIGNATURE:
        for peer in peers:
            with suppress(Closed):
                peer.push(bytes([byte]))
        time.sleep(0.02)
    for peer in peers:
        peer.close()


def scribbled_page(prefix: str) -> None:
    client = chunkkv.Client(prefix, timeout=2.0, roll_forward=False)
    page = client._link.page
    raw = np.frombuffer(page.memory.buffer, np.uint8)
    rng = np.random.default_rng()
    with filled(client) as cache, suppress(ValueError, *EXPECTED):
        for _ in range(4):
            raw[:1024] = rng.integers(0, 256, 1024)
            client.compress(cache, rows=ROWS, keep=every_other(ROWS), timeout=2)
    del raw
    with suppress(BufferError):
        client.close()


def reused_blocks(prefix: str) -> None:
    with session(prefix) as client, filled(client) as cache, soon(cache.key(0).fill, 1.0):
        client.compress(cache, rows=ROWS, keep=every_other(ROWS), timeout=5)


def foreign_tokens(prefix: str) -> None:
    with session(prefix) as client, RawSession(client) as raw:
        for _ in range(50):
            request = raw.request(ping=pb.Ping())
            request.session_token = random.randbytes(16)
            raw.ask(request)


def many_steps(prefix: str) -> None:
    with session(prefix) as client, filled(client) as cache:
        for _ in range(10):
            with suppress(chunkkv.ChunkkvError):
                client.compress(cache, rows=ROWS, keep=[(1, ROWS)])


def past_deadlines(prefix: str) -> None:
    with session(prefix) as client, filled(client) as cache:
        for _ in range(20):
            with suppress(chunkkv.ChunkkvError):
                client.plan(cache, rows=ROWS, keep_ratio=0.5, timeout=0.001)
            with suppress(chunkkv.ChunkkvError):
                client.compress(cache, rows=ROWS, keep_ratio=0.5, hold=True)


ALL: dict[int, tuple[Callable[[str], None], ...]] = {
    1: (routing_ids,), 2: (connections,), 3: (endless,), 4: (forged,), 5: (undecodable,), 6: (absurd_numbers,),
    7: (handles,), 10: (same_memory,), 12: (engine_killed,), 14: (past_deadlines,), 16: (wrong_memories, holes),
    17: (names,), 18: (descriptors,), 19: (slow_reader, half_handshakes), 25: (scribbled_page,), 26: (reused_blocks,),
    28: (foreign_tokens,), 30: (many_steps,),
}


def become(uid: int | None) -> None:
    """Another user, where there may be one."""
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)


class Attackers:
    """Processes of another user that do as they are told: sleep, go through the list, ask for much, or compute."""

    def __init__(self, prefix: str, uids: list[int | None]) -> None:
        self._told = FORK.Value("i", SLEEPS)
        self.laps = FORK.Array("q", 64)  # for each item of the list; 0: greedy requests
        self.processes = [FORK.Process(target=self._live, args=(prefix, uid, n), daemon=False)
                          for n, uid in enumerate(uids)]
        for process in self.processes:
            process.start()

    def tell(self, what: int) -> None:
        self._told.value = what

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def _live(self, prefix: str, uid: int | None, seed: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        become(uid)
        random.seed(seed)
        tries = [(n, attack) for n, attacks in ALL.items() for attack in attacks]
        random.shuffle(tries)
        parent = os.getppid()
        for n, attack in repeat(tries):
            while self._told.value == SLEEPS:
                time.sleep(0.02)
                if os.getppid() != parent:
                    return
            if os.getppid() != parent:
                return
            if self._told.value == GREEDY:
                with suppress(*EXPECTED):
                    self._ask_for_much(prefix)
            while self._told.value == BUSY:
                random.randbytes(4096)
            if self._told.value != ATTACKS:
                continue
            with suppress(*EXPECTED):
                attack(prefix)
            self.laps[n] += 1

    def _ask_for_much(self, prefix: str) -> None:
        """Back to back, 128k rows each."""
        with chunkkv.Client(prefix, timeout=60.0) as client:
            cache = much(client)
            while self._told.value == GREEDY:
                client.plan(cache, rows=MUCH_ROWS, keep_ratio=0.5, timeout=60)
                self.laps[0] += 1


MUCH_ROWS = 131072


def much(client: chunkkv.Client) -> chunkkv.SharedCache:
    cache = chunkkv.SharedCache.allocate(client, layers=1, tokens=MUCH_ROWS, kv_heads=2, q_heads=8, head_dim=64,
                                         window=32)
    cache.key(0)[...] = 0x3F80  # 1.0
    cache.query(0)[...] = 0x3F80
    return cache


def repeat(tries: list[tuple[int, Any]]) -> Any:
    while True:
        yield from tries
