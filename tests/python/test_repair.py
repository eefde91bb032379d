"""The core dies in the middle of moves: each cache is afterwards as before or as it should be, never silently torn.

At random moments; with a build of POINTS=1 (base/points.def) at every point of a request in place too.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkkv
from chunkkv.wire import CacheState, Phase
from daemon import Daemon, build_directory

SEEDS = 40
LAYERS, ROWS, BLOCK, HEADS, DIM = 2, 8192, 64, 4, 64
POINTS = Path(__file__).resolve().parents[2] / "base" / "points.def"
# what a request in place passes, and what may come of it when the core dies there
CLEAN, WHOLE = "clean", "whole"
EXPECTED = {
    "scoring": CLEAN, "kept_written": CLEAN, "selected": CLEAN, "may_commit": CLEAN, "committing": WHOLE,
    "move_begin": WHOLE, "step_stretch": WHOLE, "step_column": WHOLE, "step_turn": WHOLE, "step_written": WHOLE,
    "step_counted": WHOLE, "move_end": WHOLE, "moved": WHOLE, "done": WHOLE, "answered": WHOLE,
}


def kept_of(layer: int, head: int) -> list[tuple[int, int]]:
    """Half of the rows, in pieces of 64, another for each layer."""
    return [(first, first + 64) for first in range(64 * (layer + head % 2), ROWS, 128)]


class Trial:
    """A cache of known content in blocks that lie in no order, and requests on it."""

    def __init__(self, client: chunkkv.Client) -> None:
        self.client = client
        self.memory = chunkkv.SharedMemory.allocate(2 * LAYERS * ROWS * HEADS * DIM * 4)
        self.planes = self.memory.numpy((2, LAYERS, ROWS // BLOCK, BLOCK, HEADS, DIM), np.float32)
        rng = np.random.default_rng(7)
        self.table = rng.permutation(ROWS // BLOCK)
        self.before = rng.normal(size=(2, LAYERS, ROWS, HEADS, DIM)).astype(np.float32)
        self.region = client.register_region(self.memory)
        self.cache = client.register_cache(chunkkv.CacheLayout.of_arrays(
            list(self.planes[0]), list(self.planes[1]), axes="bthd", q_heads=HEADS, region=self.region))
        self.fill()

    def fill(self) -> None:
        self.planes[:, :, self.table] = self.before.reshape(2, LAYERS, -1, BLOCK, HEADS, DIM)

    def now(self) -> np.ndarray[Any, Any]:
        return self.planes[:, :, self.table].reshape(2, LAYERS, ROWS, HEADS, DIM)

    def compress(self, **more: Any) -> chunkkv.Answer:
        return self.client.compress(self.cache, rows=ROWS, table=self.table, keep=kept_of(0, 0), timeout=20,
                                    generation=9, **more)

    def is_clean(self) -> bool:
        return np.array_equal(self.now(), self.before)

    def check_done(self, answer: chunkkv.Answer) -> None:
        assert (answer.phase, answer.cache, answer.generation) == (Phase.DONE, CacheState.COMMITTED, 9)
        now = self.now()
        for n in range(LAYERS):
            rows = answer.layers[n].rows
            assert answer.layers[n].kept == kept_of(0, 0)
            assert np.array_equal(now[:, n, : len(rows)], self.before[:, n, rows]), "said to be done, and is not"
        assert answer.groups[0].table_used == ROWS // 2 // BLOCK


def outcome_of(trial: Trial, daemon: Daemon, ask: Callable[[], chunkkv.Answer]) -> str:
    """What came of a request over which the core dies; the cache is as is said, or the test fails."""
    try:
        answer = ask()
    except chunkkv.CoreDied as error:
        assert error.cache == CacheState.CLEAN, f"{error}\n{daemon.log()}"
        assert trial.is_clean(), "said to be clean, and is not"
        return "clean"
    trial.check_done(answer)
    return "repaired" if answer.repaired else "done"


@pytest.mark.tries(13)
def test_no_cache_is_torn_at_random_moments(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    rng = np.random.default_rng(3)
    seen: dict[str, int] = {}
    slowest = 0.0
    with chunkkv.Client(daemon.prefix()) as client:
        trial = Trial(client)
        start = time.monotonic()
        digest = trial.compress().groups[0].kept_digest
        seconds = time.monotonic() - start
        for _ in range(SEEDS):
            trial.fill()
            client.ping()
            delay = float(rng.uniform(0, 1.2 * seconds))

            def strike(delay: float, pid: int) -> None:
                time.sleep(delay)
                os.kill(pid, signal.SIGKILL)

            killer = threading.Thread(target=strike, args=(delay, daemon.pid))
            killer.start()
            said = outcome_of(trial, daemon, trial.compress)
            killer.join()
            seen[said] = seen.get(said, 0) + 1
            daemon.restart()
            start = time.monotonic()
            plan = client.plan(trial.cache, rows=ROWS, table=trial.table, keep=kept_of(0, 0))
            slowest = max(slowest, time.monotonic() - start)
            assert plan.groups[0].kept_digest == digest
    print(f"{SEEDS} cores killed: {seen}; registered again within {slowest * 1000:.0f} ms")
    assert slowest < 5.0
    assert seen.get("repaired"), "no core died in a move: the test kills at the wrong moments"


def test_repaired_answers_are_what_the_daemon_would_have_said(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client:
        trial = Trial(client)
        whole = trial.compress()
        repaired = die_in_move(trial, daemon, trial.compress)
        assert repaired.repaired
        for name in ("phase", "cache", "logical_len", "generation"):
            assert getattr(repaired, name) == getattr(whole, name)
        for name in ("physical_before", "physical_len", "kept_all", "table_used", "kept_digest", "layers"):
            assert getattr(repaired.groups[0], name) == getattr(whole.groups[0], name)


def die_in_move(trial: Trial, daemon: Daemon, ask: Callable[[], chunkkv.Answer]) -> chunkkv.Answer:
    """Kill the core as soon as a row has moved; retried until it died before the move was through."""
    page = trial.client._link.page
    assert page is not None
    for _ in range(200):
        trial.fill()
        trial.client.ping()
        page = trial.client._link.page
        assert page is not None

        def strike(page: Any, pid: int, stop: threading.Event) -> None:
            while not stop.is_set():
                if any(page.read(n).phase == Phase.COMMITTING for n in range(1, page.slots + 1)):
                    os.kill(pid, signal.SIGKILL)
                    return

        stop = threading.Event()
        killer = threading.Thread(target=strike, args=(page, daemon.pid, stop))
        killer.start()
        try:
            answer = ask()
        except chunkkv.CoreDied:
            raise
        finally:
            stop.set()
            killer.join()
            if not alive(daemon.pid):
                daemon.restart()
        if answer.repaired:
            return answer
    raise AssertionError("no core died in a move")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_commit_is_finished_too(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client:
        trial = Trial(client)
        answer = die_in_move(trial, daemon, lambda: trial.compress(hold=True).commit())
        trial.check_done(answer)
        assert answer.repaired


@pytest.mark.tries(13)
def test_a_hold_ends_with_its_daemon(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client:
        trial = Trial(client)
        for revived in (False, True):
            held = trial.compress(hold=True)
            daemon.restart()
            if revived:
                client.ping()
            with pytest.raises(chunkkv.CoreDied) as caught:
                held.commit()
            assert caught.value.cache == CacheState.CLEAN
            assert held.cancel().cache == CacheState.CLEAN
            assert trial.is_clean()
        trial.check_done(trial.compress())
        assert not client._link.unfinished


def test_a_single_pass_is_torn_and_says_so(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client:
        trial = Trial(client)
        with pytest.raises(chunkkv.CoreDied, match="single_pass") as caught:
            die_in_move(trial, daemon, lambda: trial.compress(single_pass=True))
        assert caught.value.cache == CacheState.TORN
        trial.fill()
        trial.check_done(trial.compress())


def test_the_daemon_repairs_on_demand(new_daemon: Callable[..., Daemon]) -> None:
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix(), roll_forward=False) as client:
        trial = Trial(client)
        digest = trial.compress().groups[0].kept_digest
        with pytest.raises(chunkkv.CoreDied) as caught:
            die_in_move(trial, daemon, trial.compress)
        error = caught.value
        assert error.cache == CacheState.TORN_REPAIRABLE
        answer = client.repair(error.request_id)
        trial.check_done(answer)
        assert (answer.repaired, answer.request_id) == (True, error.request_id)
        assert answer.groups[0].kept_digest == digest
        with pytest.raises(chunkkv.NotFound):
            client.repair(error.request_id)
        trial.fill()
        trial.check_done(trial.compress())


def test_a_request_that_nobody_waited_for(new_daemon: Callable[..., Daemon]) -> None:
    """Its caller gave up while it may still have been written; the daemon died; the next call finds out."""
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix()) as client:
        trial = Trial(client)
        number = client.new_request_id()
        os.kill(daemon.pid, signal.SIGSTOP)
        with pytest.raises(chunkkv.DeadlineExceeded) as caught:
            client.compress(trial.cache, rows=ROWS, table=trial.table, keep=kept_of(0, 0), timeout=0.2,
                            request_id=number)
        assert caught.value.cache == CacheState.PENDING
        daemon.restart()
        outcome = client.outcome(number)
        assert (outcome.phase, outcome.cache) == (Phase.CANCELLED, CacheState.CLEAN)
        assert trial.is_clean()
        trial.check_done(trial.compress())


# ---- at named points


def points_build() -> Path | None:
    """A daemon that can be told where to die: $CHUNKKV_BUILD itself, or one beside it."""
    for path in (build_directory(), build_directory().with_name(build_directory().name + "-points")):
        program = path / "chunkkvd"
        if program.exists() and b"CHUNKKVD_KILL_AT" in program.read_bytes():
            return path
    return None


def test_every_point_is_known() -> None:
    """A point that comes to be has to be thought of here."""
    not_in_place = {"score_slice", "select_set", "held", "repair_checked"}  # nothing is scored; hold and repair below
    names = {line.split("(")[1].split(",")[0] for line in POINTS.read_text().splitlines() if line.startswith("POINT(")}
    names = {name for name in names if not name.startswith("gate_")}  # kill_matrix.py
    assert names == set(EXPECTED) | not_in_place


@pytest.mark.parametrize("each_head", [False, True], ids=["one set", "each head"])
@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("point", EXPECTED)
def test_no_cache_is_torn_at_a_point(new_daemon: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch, point: str,
                                     count: int, each_head: bool) -> None:
    build = points_build()
    if build is None:
        pytest.skip("no daemon of POINTS=1")
    monkeypatch.setenv("CHUNKKV_BUILD", str(build))
    monkeypatch.setenv("CHUNKKVD_KILL_AT", f"{point}:{count}")
    daemon = new_daemon()
    monkeypatch.delenv("CHUNKKVD_KILL_AT")
    with chunkkv.Client(daemon.prefix()) as client:
        trial = Trial(client)
        for _ in range(count):
            trial.fill()
            said = outcome_of(trial, daemon, trial.compress) if not each_head else heads_outcome(trial)
            if not alive(daemon.pid):
                break
        if alive(daemon.pid):
            pytest.skip(f"{point} was passed less than {count} times")
        if EXPECTED[point] == CLEAN:
            assert said == "clean"
        else:
            assert said in ("repaired", "done")
        assert daemon.process is not None
        daemon.process.wait(10)
        daemon.start()
        trial.fill()
        trial.check_done(trial.compress())


@pytest.mark.parametrize("point", ["repair_checked", "committing", "step_written", "step_counted", "moved", "done"])
def test_a_repair_may_die_too(new_daemon: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    build = points_build()
    if build is None:
        pytest.skip("no daemon of POINTS=1")
    monkeypatch.setenv("CHUNKKV_BUILD", str(build))
    monkeypatch.setenv("CHUNKKVD_KILL_AT", "step_counted:1")
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix(), roll_forward=False) as client:
        trial = Trial(client)
        with pytest.raises(chunkkv.CoreDied) as caught:
            trial.compress()
        number = caught.value.request_id
        assert caught.value.cache == CacheState.TORN_REPAIRABLE
        assert daemon.process is not None
        daemon.process.wait(10)
        monkeypatch.setenv("CHUNKKVD_KILL_AT", f"{point}:1")
        daemon.start()
        monkeypatch.delenv("CHUNKKVD_KILL_AT")
        try:
            answer = client.repair(number)
        except chunkkv.CoreDied as error:
            assert (error.cache, error.request_id) == (CacheState.TORN_REPAIRABLE, number)
            daemon.process.wait(10)
            daemon.start()
            answer = client.repair(number)
        trial.check_done(answer)
        assert answer.repaired
        if not alive(daemon.pid):  # all was moved, so nothing was left for another one
            daemon.process.wait(10)
            daemon.start()


def test_a_repair_that_is_refused_can_be_repeated(new_daemon: Callable[..., Daemon]) -> None:
    """Nothing was done, but the cache is not clean for that."""
    daemon = new_daemon()
    with chunkkv.Client(daemon.prefix(), roll_forward=False) as client:
        trial = Trial(client)
        with pytest.raises(chunkkv.CoreDied) as caught:
            die_in_move(trial, daemon, trial.compress)
        number = caught.value.request_id
        client.ping()
        writing = client._link.unfinished[number]
        ticket, writing.ticket = writing.ticket, chunkkv.control.Ticket(5, 1)
        with pytest.raises(chunkkv.ChunkkvError) as refused:
            client.repair(number)
        assert refused.value.cache == CacheState.TORN_REPAIRABLE
        writing.ticket = ticket
        trial.check_done(client.repair(number))


def heads_outcome(trial: Trial) -> str:
    """A request that keeps other rows of each KV head."""
    scores = np.random.default_rng(2).normal(size=(LAYERS * HEADS, ROWS)).astype(np.float32)
    try:
        answer = trial.client.compress(trial.cache, rows=ROWS, table=trial.table, keep_ratio=0.5, scores_in=scores,
                                       policy=chunkkv.Policy(heads="each"), score_kind="rows", timeout=20)
    except chunkkv.CoreDied as error:
        assert error.cache == CacheState.CLEAN
        assert trial.is_clean()
        return "clean"
    now = trial.now()
    for n in range(LAYERS):
        heads = answer.layers[n].heads or dict.fromkeys(range(HEADS), answer.layers[n].kept)
        for head, kept in heads.items():
            rows = chunkkv.rows_from_ranges(kept)
            assert np.array_equal(now[:, n, : len(rows), head], trial.before[:, n, rows, head])
    return "repaired" if answer.repaired else "done"
