"""Kill core, gate or engine at every named point of base/points.def, and look at every cache afterwards.

    build/venv/bin/python tests/python/kill_matrix.py [--seeds N] [--points NAME,...] [--build DIR]

Each trial has a daemon (of make POINTS=1), a cache of random content, random jobs on it - in place with scores, with
given rows and with other rows for each head, hold and commit, copy out - and one process that is killed by SIGKILL
when a point is passed.  What was killed is started again.  Then the cache must be, bit for bit, as before or as it
should be (rows that a daemon which nobody kills would keep), and as the answer or the error says; torn and repairable
is repaired, by the client library or by the restarted daemon, and compared again.  Where engine or gate die, a
neighbour on another endpoint may see no error.

The last line is JSON: points, pairs of point and victim, seeds, trials, lost, seconds.  Exit status 1 if anything was
lost or a point was never passed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "clients" / "python" / "src"), str(Path(__file__).parent)]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import pytest  # noqa: E402

import chunkkv  # noqa: E402
from chunkkv.wire import CacheState  # noqa: E402
from daemon import Daemon, is_alive, is_sanitizer_build  # noqa: E402
from kill_case import KINDS, Case, Lost, last_job, run  # noqa: E402
from test_gate_kill import Neighbour  # noqa: E402

JOBS_MOST = 25
SCORED = {"score_slice", "select_set"}
MANY = {"score_slice", "select_set", "step_stretch", "step_column", "step_turn", "step_written", "step_counted"}
# the engine dies when the core is there
ENGINE_POINTS = ("scoring", "score_slice", "kept_written", "selected", "held", "committing", "step_stretch",
                 "step_counted", "moved", "answered")
FORK = multiprocessing.get_context("fork")


def make_build() -> Path:
    """A release build with points, made where it is not up to date; or where $CHUNKKV_POINTS_BUILD says it is."""
    if os.environ.get("CHUNKKV_POINTS_BUILD"):
        return Path(os.environ["CHUNKKV_POINTS_BUILD"]).resolve()
    targets = [f"build/release-points/{name}" for name in ("chunkkvd", "chunkkv-gate", "fault.so")]
    ours = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    # tests run in several processes, and two makes must not write the same files
    with open(ROOT / "build" / "release-points.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(["make", "-C", ROOT, "BUILD=release", "POINTS=1", "CUDA=0", "-j2", *targets], env=ours,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
    return ROOT / "build" / "release-points"


def skip_if_sanitized() -> None:
    """Tests of the build with points are skipped where the suite has a build for a sanitizer."""
    if is_sanitizer_build():
        pytest.skip("the same daemon with every build: not again with one for a sanitizer")


def all_points() -> list[str]:
    """Names in the table."""
    lines = (ROOT / "base" / "points.def").read_text().splitlines()
    return [line.split("(")[1].split(",")[0] for line in lines if line.startswith("POINT(")]


class Matrix:
    """Trials, and what came of them."""

    def __init__(self) -> None:
        self.oracle = Daemon()
        self.trials, self.lost, self.outcomes = 0, list[str](), Counter[str]()
        self.never: list[str] = []

    def close(self) -> None:
        self.oracle.stop()

    @contextmanager
    def case(self, seed: int) -> Iterator[Case]:
        case = Case(seed)
        try:
            with chunkkv.Client(self.oracle.prefix()) as client:
                case.learn(client)
            yield case
        finally:
            case.close()

    def trial(self, victim: str, point: str, seed: int) -> None:
        """One kill; at a later passing of the point first, and where it is not passed so often, at the first."""
        number = (all_points().index(point) * 3 + ("core", "gate", "engine").index(victim)) * 1000 + seed
        rng = np.random.default_rng(number)
        count = int(rng.integers(1, {True: 40}.get(point in MANY, 4))) if victim != "gate" else int(rng.integers(4, 20))
        self.trials += 1
        with self.case(number) as case:
            for attempt in (count, 1):
                try:
                    said = getattr(self, f"_kill_{victim}")(case, point, attempt, rng)
                except (Lost, AssertionError, chunkkv.ChunkkvError) as error:
                    self.lost.append(f"{victim} at {point}, count {attempt}, seed {seed}: {error!r}")
                    return
                if said:
                    self.outcomes[said] += 1
                    return
            self.never.append(f"{victim} at {point}, seed {seed}")

    def _kinds(self, point: str, rng: np.random.Generator) -> Iterator[str]:
        while True:
            yield "hold" if point == "held" else str(rng.choice([kind for kind in KINDS if point not in SCORED or
                                                                 kind != "given"]))

    def _kill_core(self, case: Case, point: str, count: int, rng: np.random.Generator) -> str:
        by_daemon = point == "repair_checked" or rng.random() < 0.5
        first = f"step_counted:{int(rng.integers(1, 4))}" if point == "repair_checked" else f"{point}:{count}"
        with daemon_told(first) as daemon, chunkkv.Client(daemon.prefix(), roll_forward=not by_daemon) as client:
            at = case.register(client)
            said = self._until_death(case, client, at, point, daemon, rng)
            if not said:
                return ""
            if said.startswith("repairable"):
                said = repair(case, client, daemon, said, f"{point}:1" if point == "repair_checked" else "")
            elif point == "repair_checked":
                return ""
            if not is_alive(daemon.pid):
                restart(daemon, "")
            last_job(case, client, at)
        return said

    def _until_death(self, case: Case, client: chunkkv.Client, at: Any, point: str, daemon: Daemon,
                     rng: np.random.Generator) -> str:
        """Jobs until the core is dead. Return: what came of the last one, or nothing if it still lives."""
        for _, kind in zip(range(JOBS_MOST), self._kinds(point, rng), strict=False):
            case.fill()
            said = run(case, client, at, kind)
            if not alive_in_a_moment(daemon, said):
                return said
            if said != "done":
                raise Lost(f"{said}, and the daemon lives")
        return ""

    def _kill_gate(self, case: Case, point: str, count: int, rng: np.random.Generator) -> str:
        with daemon_told(f"{point}:{max(count, 4)}", "other") as daemon, neighbour_of(daemon), \
                chunkkv.Client(daemon.prefix()) as client:
            at = case.register(client)
            for _, kind in zip(range(JOBS_MOST), self._kinds(point, rng), strict=False):
                case.fill()
                case.check(kind, case.ask(client, at, kind))
                if "GATE_STARTED endpoint=main" in daemon.log().partition(" READY ")[2]:
                    last_job(case, client, at)
                    return "gate replaced"
        return ""

    def _kill_engine(self, case: Case, point: str, count: int, rng: np.random.Generator) -> str:
        ours, theirs = FORK.Pipe()
        engine = FORK.Process(target=live, args=(case, theirs, ours), daemon=True)
        engine.start()
        theirs.close()
        try:
            with daemon_told(f"{point}:{count}:100", "other", "STALL_AT") as daemon, neighbour_of(daemon), \
                    killing(engine, daemon):
                gates = daemon.gates()
                said = self._until_engine_death(case, ours, daemon, point, rng)
                if said:
                    if daemon.gates() != gates:
                        raise Lost("a gate died with an engine")
                    with chunkkv.Client(daemon.prefix()) as client:
                        last_job(case, client, case.register(client))
                return said
        finally:
            ours.close()
            engine.kill()
            engine.join()

    def _until_engine_death(self, case: Case, pipe: Connection, daemon: Daemon, point: str,
                            rng: np.random.Generator) -> str:
        before = daemon.usage().memfd_mappings
        pipe.send(daemon.prefix())
        for _, kind in zip(range(JOBS_MOST), self._kinds(point, rng), strict=False):
            case.fill()
            pipe.send(kind)
            try:
                word = pipe.recv()
            except (EOFError, ConnectionResetError):
                await_forgotten(daemon, before)
                if case.is_old():
                    return "engine dead, cache old"
                if case.is_new(kind):
                    return "engine dead, cache new"
                raise Lost(f"{kind}: torn by a core that lives") from None
            if word != "done":
                raise Lost(f"{kind}: {word}")
        return ""


def live(case: Case, pipe: Connection, other_end: Connection) -> None:
    """An engine that does as it is told, until it is killed."""
    other_end.close()
    try:
        with chunkkv.Client(pipe.recv()) as client:
            at = case.register(client)
            while True:
                kind = pipe.recv()
                case.check(kind, case.ask(client, at, kind))
                pipe.send("done")
    except EOFError:
        os._exit(0)
    except Exception as error:
        pipe.send(repr(error))


def repair(case: Case, client: chunkkv.Client, daemon: Daemon, said: str, order: str) -> str:
    """By the next daemon; by the one after it, if that one dies as well."""
    _, kind, number = said.split()
    restart(daemon, order)
    for _ in range(2):
        try:
            answer = client.repair(int(number))
        except chunkkv.CoreDied as error:
            if error.cache != CacheState.TORN_REPAIRABLE:
                raise Lost(f"{kind}: {error}") from error
            restart(daemon, "")
            continue
        case.check(kind, answer)
        return "repaired"
    raise Lost(f"{kind}: two daemons could not repair it")


def alive_in_a_moment(daemon: Daemon, said: str) -> bool:
    """Its answer may come before its death does."""
    end = time.monotonic() + (0.02 if said == "done" else 5)
    while is_alive(daemon.pid) and time.monotonic() < end:
        time.sleep(0.002)
    return is_alive(daemon.pid)


def await_forgotten(daemon: Daemon, before: int) -> None:
    """Until the core has no memory of a dead engine."""
    end = time.monotonic() + 10
    while daemon.usage().memfd_mappings > before:
        if time.monotonic() > end:
            raise Lost(f"still {daemon.usage().memfd_mappings} mappings of memory")
        time.sleep(0.01)


def restart(daemon: Daemon, order: str) -> None:
    """In the place of one that is dead or dying."""
    assert daemon.process is not None
    daemon.process.wait(10)
    daemon._log.close()
    with told(order):
        daemon.start()


@contextmanager
def told(order: str, verb: str = "KILL_AT") -> Iterator[None]:
    """Processes that start meanwhile are told where to die."""
    if order:
        os.environ[f"CHUNKKVD_{verb}"] = order
    try:
        yield
    finally:
        os.environ.pop(f"CHUNKKVD_{verb}", None)


@contextmanager
def killing(engine: Any, daemon: Daemon) -> Iterator[None]:
    """It dies as soon as the daemon stalls at its point."""
    ending = threading.Event()
    log = (daemon.directory / "log").open("rb")

    def watch() -> None:
        seen = b""
        while not ending.wait(0.002) and b"stalled" not in seen:
            seen += log.read()
        if not ending.is_set():
            engine.kill()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ending.set()
        watcher.join()
        log.close()


@contextmanager
def daemon_told(order: str, other: str = "", verb: str = "KILL_AT") -> Iterator[Daemon]:
    with told(order, verb):
        daemon = Daemon(endpoints=("main", other) if other else ("main",))
    try:
        yield daemon
        assert is_alive(daemon.pid), "the daemon is dead at the end"
    except BaseException:
        daemon.stop(check=False)
        raise
    daemon.stop()


@contextmanager
def neighbour_of(daemon: Daemon) -> Iterator[None]:
    """Somebody else on another endpoint, who must not notice."""
    neighbour = Neighbour(daemon.prefix("other"))
    neighbour.start()
    try:
        yield
    finally:
        neighbour.ending.set()
        neighbour.join()
    if neighbour.error or not neighbour.calls:
        raise Lost(f"a neighbour noticed: {neighbour.error or 'no call went through'}")


def pairs(wanted: list[str]) -> list[tuple[str, str]]:
    """(victim, point)"""
    found = [("gate" if point.startswith("gate_") else "core", point) for point in wanted]
    return found + [("engine", point) for point in ENGINE_POINTS if point in wanted]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--points", default="", help="some only, by name, with commas")
    parser.add_argument("--victims", default="core,gate,engine")
    parser.add_argument("--build", help="directory of a build with POINTS=1; made if not given")
    options = parser.parse_args()
    os.environ["CHUNKKV_BUILD"] = str(Path(options.build).resolve() if options.build else make_build())
    wanted = options.points.split(",") if options.points else all_points()
    chosen = [pair for pair in pairs(wanted) if pair[0] in options.victims.split(",")]
    start = time.monotonic()
    matrix = Matrix()
    try:
        for victim, point in chosen:
            for seed in range(options.seeds):
                matrix.trial(victim, point, seed)
            print(f"{victim} at {point}: {matrix.trials} trials, {len(matrix.lost)} lost", flush=True)
    finally:
        matrix.close()
    for line in [*matrix.lost, *(f"never passed: {name}" for name in matrix.never)]:
        print(line)
    print(json.dumps({"points": len({point for _, point in chosen}), "pairs": len(chosen),
                      "seeds": options.seeds, "trials": matrix.trials, "lost": len(matrix.lost),
                      "never": len(matrix.never), "seconds": round(time.monotonic() - start, 1),
                      "outcomes": dict(matrix.outcomes)}))
    return int(bool(matrix.lost or matrix.never))


if __name__ == "__main__":
    sys.exit(main())
