"""Try everything on the list of tries, and say for each item whether the outcome was right.

    build/venv/bin/python tests/python/tries.py [--build DIR] [--json FILE] [N ...]

The list is below; what shows the outcome of item n are the tests marked `tries(n)` in tests/python, and the programs
that PROGRAMS names, of the same build.  An item is right when at least one of its tests ran and none failed; "not here"
when none could run (not root, say).  Items of CUDA memory wait for a driver to be there and are listed, not counted; of
some items a part waits.  The last line is JSON: total, right, wrong, not_here, waiting.  Exit status 1 unless all that
is counted is right.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from victim import progress

ROOT = Path(__file__).resolve().parents[2]
CUDA = "CUDA"


@dataclass
class Try:
    """An item of the list, and what came of it."""

    title: str
    waits: str = ""  # for CUDA: all of it, or what is named
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def outcome(self) -> str:
        if self.waits == CUDA:
            return "waits"
        if self.failed:
            return "wrong"
        return "right" if self.passed else "not here"


TRIES = {
    1: Try("a routing id that libzmq would give to somebody else"),
    2: Try("70,000 connections of one user"),
    3: Try("frames without an end, large and small"),
    4: Try("forged User-Id and Peer-Address; old protocols"),
    5: Try("64 KiB that decode to nothing good"),
    6: Try("strides, sizes, scales, tables and ranges that cannot be"),
    7: Try("handles that are random, too short, somebody else's", "IPC handles"),
    8: Try("a handle after free, and after a new allocation there", CUDA),
    9: Try("offset and size beyond the memory, or wrapping", "allocations of a device"),
    10: Try("the same memory registered 10,000 times"),
    11: Try("memory of a pool that cannot be shared by handle", CUDA),
    12: Try("engine killed: idle, scoring, moving", "memory of a device"),
    13: Try("core killed in each state"),
    14: Try("request that was queued while the daemon was down"),
    15: Try("cancel against commit, a million times"),
    16: Try("truncated, sparse, sealed, read-only, FUSE, no memory at all"),
    17: Try("squatted name, link, wrong owner, rights for others"),
    18: Try("253 descriptors, our own socket, epoll, directory"),
    19: Try("slow reader, half a handshake, 5,000 connections a second"),
    20: Try("driver that fails, hangs, is reset", CUDA),
    21: Try("the n-th allocation fails; system calls fail"),
    22: Try("stopped engine with a held request, stopped core, stopped gate"),
    23: Try("second daemon, stale socket, full runtime directory"),
    24: Try("clock stepped, suspended, in a time namespace"),
    25: Try("client scribbles the control page"),
    26: Try("engine uses blocks again while they move"),
    27: Try("equal process numbers in two namespaces", CUDA),
    28: Try("token and request id of another user"),
    29: Try("gate that was taken over"),
    30: Try("a move of 13,000 steps"),
}

# What is shown by C programs and scripts, in the directory of the build or here.
PROGRAMS: dict[str, tuple[int, ...]] = {
    "test_admit": (6,),
    "test_admit_tables": (6,),
    "test_tenant": (2, 10),
    "test_control": (15, 25, 30),
    "test_closer": (16,),
    "test_seqpacket": (18,),
    "test_side": (7, 18),
    "test_listen": (23,),
    "test_daemon_process": (22, 23),
    "test_client_faults": (13,),
    "test_sandbox": (29,),
    "test_alloc_core": (21,),
    "test_alloc_client": (21,),
    "test_alloc_parts": (21,),
}


class Collector:
    """Tests that are marked, and how they end."""

    def __init__(self, wanted: set[int]) -> None:
        self.wanted, self.items = wanted, defaultdict[str, set[int]](set)
        self.done = 0

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = []
        for item in items:
            numbers = {n for mark in item.iter_markers("tries") for n in mark.args} & self.wanted
            if numbers:
                self.items[item.nodeid] = numbers
                chosen.append(item)
        items[:] = chosen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.done += 1
            progress(f"{self.done} of {len(self.items)} tests")
        for n in self.items[report.nodeid]:
            if report.failed:
                TRIES[n].failed.append(report.nodeid)
            elif report.skipped:
                TRIES[n].skipped.append(report.nodeid)
            elif report.when == "call":
                TRIES[n].passed += 1


def run_tests(wanted: set[int]) -> int:
    """Python tests. Return: what pytest says, 5 if there was none."""
    collector = Collector(wanted)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:warnings", "--tb=short", "--no-header",
                            "-o", "console_output_style=classic", str(ROOT / "tests/python")], plugins=[collector]))


def run_programs(build: Path, wanted: set[int]) -> None:
    for name, numbers in PROGRAMS.items():
        mine = wanted.intersection(numbers)
        if not mine:
            continue
        progress(name)
        if not (build / name).exists():
            for n in mine:
                TRIES[n].skipped.append(f"{name} (not built)")
            continue
        done = subprocess.run([str(build / name)], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", check=False)
        if done.returncode not in (0, 77):
            print(f"{name}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        for n in mine:
            if done.returncode == 77:
                TRIES[n].skipped.append(name)
            elif done.returncode:
                TRIES[n].failed.append(name)
            else:
                TRIES[n].passed += 1


def report() -> dict[str, object]:
    """Print the list. Return: its sum."""
    found = defaultdict[str, list[int]](list)
    for n, item in TRIES.items():
        found[item.outcome()].append(n)
        count = f"{item.passed} tests" if item.outcome() != "waits" else ""
        waits = f"; waits for CUDA: {item.waits}" if item.waits not in ("", CUDA) else ""
        print(f"{n:3}  {item.outcome():8}  {item.title}{f'  ({count}{waits})' if count else '  (CUDA)'}")
        for name in item.failed:
            print(f"               failed: {name}")
    counted = len(TRIES) - len(found["waits"])
    return {"total": counted, "right": len(found["right"]), "wrong": found["wrong"], "not_here": found["not here"],
            "waiting": found["waits"], "waiting_in_part": [n for n, t in TRIES.items() if t.waits not in ("", CUDA)]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.environ.get("CHUNKKV_BUILD", str(ROOT / "build/release")))
    parser.add_argument("--json", help="write the sum there too")
    parser.add_argument("only", nargs="*", type=int, metavar="N", help="some items only")
    options = parser.parse_args()
    build = Path(options.build).resolve()
    os.environ["CHUNKKV_BUILD"] = str(build)
    os.chdir(ROOT)
    wanted = set(options.only) or set(TRIES)
    for n in set(TRIES) - wanted:
        del TRIES[n]
    start = time.monotonic()
    said = run_tests(wanted)
    run_programs(build, wanted)
    total = {**report(), "seconds": round(time.monotonic() - start, 1)}
    # a run that was broken off has shown nothing
    ended = said in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    if options.json and ended:
        Path(options.json).write_text(json.dumps(total) + "\n")
    print(json.dumps(total))
    return int(not ended or total["right"] != total["total"])


if __name__ == "__main__":
    sys.exit(main())
