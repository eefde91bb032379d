"""Allocations and system calls fail in core and gate, one here and there, or by chance: nobody else notices.

A fault may end the request of whoever met it, or its session; a gate may be replaced.  The core lives, memory and
descriptors are given back, and the same requests afterwards have the same answers.  A daemon that meets one at its
start either works or ends with a sentence.  $CHUNKKV_FAULTS=all tries everything, else some are drawn.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkkv
import kill_matrix
from daemon import build_directory, is_alive
from faults import CALLS, Faults
from test_gate_kill import gate_of

# the first test of a run makes a build
pytestmark = [pytest.mark.timeout(600), pytest.mark.tries(21)]
ALL = os.environ.get("CHUNKKV_FAULTS") == "all"
SEED = int(os.environ.get("CHUNKKV_FAULT_SEED", "1"))
ROWS, BLOCK, HEADS, DIM, LAYERS = 256, 16, 2, 16, 2
# what each call can say; what the kernel never says of a call proves nothing
ERRORS = {
    "malloc": "ENOMEM", "accept4": "EMFILE ENFILE ENOMEM EINTR EAGAIN ECONNABORTED EPERM",
    "recvmsg": "EINTR EAGAIN ENOMEM ECONNRESET", "sendmsg": "EINTR EAGAIN ENOMEM EPIPE ENOBUFS",
    "mmap": "ENOMEM EAGAIN EPERM ENFILE", "fstat": "ENOMEM EIO", "fcntl": "EMFILE EINTR EPERM EAGAIN",
    "epoll_wait": "EINTR", "epoll_ctl": "ENOMEM ENOSPC", "pidfd_open": "EMFILE ENFILE ENOMEM ESRCH",
    "posix_spawn": "EAGAIN ENOMEM EMFILE", "memfd_create": "EMFILE ENFILE ENOMEM", "eventfd": "EMFILE ENFILE ENOMEM",
    "timerfd_create": "EMFILE ENFILE ENOMEM", "socketpair": "EMFILE ENFILE ENOMEM", "getsockopt": "ENOMEM",
    "ftruncate": "EINTR ENOMEM", "open": "EMFILE ENFILE ENOMEM EINTR", "poll": "EINTR ENOMEM",
    "pthread_create": "EAGAIN", "read": "EINTR EAGAIN", "write": "EINTR EAGAIN EIO", "mincore": "EAGAIN ENOMEM",
    "waitid": "EINTR", "posix_fallocate": "ENOSPC EINTR",
}
IN_A_GATE = ("accept4", "recvmsg", "sendmsg", "mmap", "fcntl", "epoll_wait", "epoll_ctl", "eventfd", "getsockopt",
             "poll", "read", "write")
FOR_A_GATE = ("posix_spawn", "socketpair", "memfd_create", "mmap", "ftruncate", "fcntl", "pidfd_open", "epoll_ctl",
              "malloc", "sendmsg", "waitid", "posix_fallocate", "fstat")
FAULTS = [(call, name) for call, names in ERRORS.items() for name in names.split()]


def drawn(cases: list[Any], most: int) -> list[Any]:
    """All of them, or so many, by the seed."""
    if ALL or len(cases) <= most:
        return cases
    chosen = np.random.default_rng(SEED).choice(len(cases), most, replace=False)
    return [cases[i] for i in sorted(chosen.tolist())]


class Tenant:
    """A client with a cache that asks for all there is to ask, and knows what must come of it."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        size = LAYERS * ROWS * HEADS * DIM
        self.memory = chunkkv.SharedMemory.allocate(4 * (5 * size))
        self.planes = self.memory.numpy((2, LAYERS, 2 * ROWS // BLOCK, BLOCK, HEADS, DIM), np.float32)
        self.queries = self.memory.numpy((LAYERS, 32, HEADS, DIM), np.float32, self.planes.nbytes)
        rng = np.random.default_rng(4)
        self.before = rng.normal(size=(2, LAYERS, ROWS, HEADS, DIM)).astype(np.float32)
        self.queries[...] = rng.normal(size=self.queries.shape)
        self.expected: list[Any] = []

    def fill(self) -> None:
        self.planes[:, :, : ROWS // BLOCK] = self.before.reshape(2, LAYERS, -1, BLOCK, HEADS, DIM)

    def rows(self, first: int = 0) -> Any:
        blocks = self.planes[:, :, first : first + ROWS // BLOCK]
        return blocks.reshape(2, LAYERS, ROWS, HEADS, DIM)

    def check_whole(self) -> None:
        assert np.array_equal(self.rows(), self.before), "a cache was written"

    def check_moved(self, answer: chunkkv.Answer, first: int = 0) -> None:
        for n in range(LAYERS):
            rows = answer.layers[n].rows
            assert np.array_equal(self.rows(first)[:, n, : len(rows)], self.before[:, n, rows])

    def live(self, timeout: float = 10.0) -> list[Any]:
        """A whole session. Return: digests of its answers; what fails is an error of ChunkKV, and nothing else."""
        self.fill()
        with chunkkv.Client(self.prefix, timeout=timeout, name="victim") as client:
            region = client.register_region(self.memory)
            layout = chunkkv.CacheLayout.of_arrays(list(self.planes[0]), list(self.planes[1]), axes="bthd",
                                                   q_heads=HEADS, region=region)
            cache = client.register_cache(layout)
            words = {"rows": ROWS, "table": range(ROWS // BLOCK), "keep_ratio": 0.5,
                     "queries": chunkkv.Queries.of_array(self.queries, region=region)}
            answers = [client.plan(cache, **words)]
            answers.append(client.copy_out(cache, destination=range(ROWS // BLOCK, 2 * ROWS // BLOCK), **words))
            self.check_whole()
            self.check_moved(answers[-1], ROWS // BLOCK)
            held = client.compress(cache, hold=True, **words)
            held.cancel()
            self.check_whole()
            answers.append(client.compress(cache, **words))
            self.check_moved(answers[-1])
            self.fill()
            answers.append(client.compress(cache, hold=True, **words).commit())
            self.check_moved(answers[-1])
            client.ping()
            return [answer.groups[0].kept_digest for answer in answers]

    def try_to_live(self) -> str:
        """The same under faults. Return: the error, if there was one."""
        try:
            said = self.live(3.0)
        except chunkkv.ChunkkvError as error:
            return str(error) or repr(error)
        assert said == self.expected, "another answer"
        return ""

    def close(self) -> None:
        del self.planes, self.queries
        self.memory.close()


class Stage:
    """A daemon whose calls fail when told, a tenant who meets the faults, and another who must not."""

    def __init__(self, of_a_gate: bool = False) -> None:
        self.faults = Faults()
        # the library of tests/fault.c is none of the files that a sandbox lets a gate read
        options = ("--sandbox", "off") if of_a_gate else ()
        self.daemon = self.faults.daemon(("main", "other"), options)
        self.victim = Tenant(self.daemon.prefix())
        self.victim.expected = self.victim.live()
        self.other = Tenant(self.daemon.prefix("other"))
        self.other.expected = self.other.live()
        assert self.other.expected == self.victim.expected
        time.sleep(0.3)
        self.usual = self.used()

    def used(self) -> tuple[int, int]:
        """Descriptors, mappings of memory."""
        usage = self.daemon.usage()
        return usage.descriptors, usage.memfd_mappings

    def check(self, what: str) -> None:
        """All is as if nothing had been."""
        assert is_alive(self.daemon.pid), f"{what}: the core is dead:\n{self.daemon.log()[-3000:]}"
        assert self.other.live() == self.other.expected, what
        end = time.monotonic() + 8
        while (error := self.victim.try_to_live()) and time.monotonic() < end:
            time.sleep(0.1)
        assert not error, f"{what}: still {error}"
        end = time.monotonic() + 6
        while self.used() != self.usual and time.monotonic() < end:
            time.sleep(0.01)
        assert self.used() == self.usual, f"{what}: (descriptors, mappings) are not back"

    def close(self) -> None:
        self.faults.stop()
        try:
            self.daemon.stop()
        finally:
            self.victim.close()
            self.other.close()
            self.faults.close()


@pytest.fixture(scope="module")
def points() -> Iterator[None]:
    kill_matrix.skip_if_sanitized()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHUNKKV_BUILD", str(kill_matrix.make_build()))
        yield


@pytest.fixture(scope="module")
def stage(points: None) -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def counted(stage: Stage, call: str, in_gate: bool) -> int:
    """How often a session makes that call."""
    order = stage.faults.order(call, in_gate)
    before = int(order.seen)
    stage.victim.live()
    return int(order.seen) - before


@pytest.mark.tries(21)
def test_one_allocation_of_the_core_fails(stage: Stage) -> None:
    total = counted(stage, "malloc", in_gate=False)
    assert total > 20
    met: dict[str, int] = {}
    # the first ones make connection, session and region; jobs, which are alike, come behind
    for n in [*range(1, 46), *drawn(list(range(46, total + 1)), 30)]:
        stage.faults.fail("malloc", errno.ENOMEM, n)
        error = stage.victim.try_to_live()
        stage.faults.stop()
        met[error.split(":")[0]] = met.get(error.split(":")[0], 0) + 1
        stage.check(f"allocation {n}: {error}")
    print(f"{total} allocations in a session of the core; {met}")


@pytest.mark.tries(21)
def test_one_allocation_of_a_gate_fails(points: None) -> None:
    """It is the first one of a daemon that obeys, so each has a daemon of its own."""
    total = 0
    for part in drawn(list(range(20)), 8):
        stage = Stage(of_a_gate=True)
        total = total or counted(stage, "malloc", in_gate=True)
        assert total > 20
        n = 1 + total * part // 20
        stage.faults.fail("malloc", errno.ENOMEM, n, in_gate=True)
        error = stage.victim.try_to_live()
        stage.faults.stop()
        stage.check(f"allocation {n} of a gate: {error}")
        stage.close()


@pytest.mark.parametrize("in_gate", [False, True], ids=["core", "gate"])
@pytest.mark.tries(21)
def test_one_in_a_hundred_allocations_fails(points: None, in_gate: bool) -> None:
    for seed in range(10 if ALL else 2):
        stage = Stage(of_a_gate=in_gate)
        stage.faults.fail_by_chance("malloc", errno.ENOMEM, 100, SEED * 1000 + seed, in_gate=in_gate)
        errors = [stage.victim.try_to_live() for _ in range(8)]
        stage.faults.stop()
        stage.check(f"seed {seed}: {errors}")
        stage.close()


@pytest.mark.tries(21)
def test_every_call_has_its_errors() -> None:
    assert list(ERRORS) == CALLS


@pytest.mark.parametrize("call", [call for call in ERRORS if call != "malloc"])
@pytest.mark.tries(21)
def test_system_calls_of_the_core_fail(stage: Stage, call: str) -> None:
    cases = list(itertools.product(ERRORS[call].split(), [1, 2, 3, 4, 6, 9, 15, 25, 50], [1, 3]))
    met = 0
    for name, begin, count in drawn(cases, 3):
        stage.faults.fail(call, getattr(errno, name), begin, count)
        error = stage.victim.try_to_live()
        met += bool(stage.faults.stop())
        stage.check(f"{call}, {name}, from {begin}, {count} times: {error}")
    print(f"{call}: {met} of {len(drawn(cases, 3))} met a fault")


def gate_was_replaced(stage: Stage) -> bool:
    """The next one does not obey."""
    return "GATE_STARTED endpoint=main" in stage.daemon.log().partition(" READY ")[2]


@pytest.mark.tries(21)
def test_system_calls_of_a_gate_fail(points: None) -> None:
    cases = [case for case in itertools.product(FAULTS, [1, 2, 5]) if case[0][0] in IN_A_GATE]
    stage = Stage(of_a_gate=True)
    met = 0
    for (call, name), begin in drawn(cases, 25):
        if gate_was_replaced(stage):
            stage.close()
            stage = Stage(of_a_gate=True)
        stage.faults.fail(call, getattr(errno, name), begin, 2, in_gate=True)
        error = stage.victim.try_to_live()
        met += bool(stage.faults.stop())
        stage.check(f"gate: {call}, {name}, from {begin}: {error}")
    stage.close()
    assert met > 3
    print(f"{met} of {len(drawn(cases, 25))} met a fault")


@pytest.mark.tries(21)
def test_calls_fail_while_a_gate_is_replaced(stage: Stage) -> None:
    """What only the start of a gate needs: if that fails, the core tries again."""
    cases = [(call, name, n) for (call, name), n in itertools.product(FAULTS, (1, 2, 3, 5))
             if call in FOR_A_GATE]
    cases += [("malloc", "ENOMEM", n) for n in range(6, 40)]
    met = 0
    for call, name, n in drawn(cases, 12):
        pid = gate_of(stage.daemon, "main")
        assert pid is not None
        stage.faults.fail(call, getattr(errno, name), n)
        os.kill(pid, signal.SIGKILL)
        error = stage.victim.try_to_live()
        met += bool(stage.faults.stop())
        stage.check(f"gate replaced, {call}, {name}, {n}: {error}")
    assert met
    print(f"{met} of {len(drawn(cases, 12))} met a fault while a gate was replaced")


def start_under(faults: Faults, directory: Path) -> tuple[int | None, str]:
    """Start a daemon. Return: its exit status, or None if it works, and its log."""
    log = directory / "log"
    with faults.preloaded(), log.open("wb") as file:
        process = subprocess.Popen([str(build_directory() / "chunkkvd"), "--runtime-dir", str(directory), "--endpoint",
                                    "main"], stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    end = time.monotonic() + 15
    works = False
    while process.poll() is None and not works and time.monotonic() < end:
        try:
            with chunkkv.Client(str(directory / "main"), timeout=1.0) as client:
                client.ping()
            works = True
        except chunkkv.ChunkkvError:
            time.sleep(0.02)
    failed = process.poll()
    if failed is None:
        process.terminate()
        status = process.wait(10)
        assert works, f"neither works nor ends:\n{log.read_text()}"
        assert status == 0, f"ended with {status} on SIGTERM:\n{log.read_text()}"
    return failed, log.read_text()


@pytest.mark.tries(21)
def test_faults_at_the_start(points: None) -> None:
    """Ready in spite of it, or an end with a sentence; never a crash, never neither."""
    faults = Faults()
    cases = [("malloc", "ENOMEM", n) for n in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)]
    cases += [(call, name, n) for (call, name), n in itertools.product(FAULTS, (1, 2, 4)) if call != "malloc"]
    started, refused = 0, 0
    for call, name, n in drawn(cases, 40):
        faults.fail(call, getattr(errno, name), n)
        with tempfile.TemporaryDirectory(prefix="chunkkv-") as directory:
            status, log = start_under(faults, Path(directory))
        faults.stop()
        started += status is None
        refused += status is not None
        if status is not None:
            assert status > 0, f"{call}, {name}, {n}: ended by signal {-status}:\n{log}"
            assert log.strip(), f"{call}, {name}, {n}: status {status} without a word"
    faults.close()
    print(f"{started} started, {refused} refused with a sentence")
