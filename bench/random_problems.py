#!/usr/bin/env python3
"""Random problems in every layout, type and method: the reference, the CPU path and the NumPy model must agree.

    make bench-random-problems PROBLEMS=100000

Two daemons are asked each problem: one as it ships, and one whose plans the scalar reference makes.  Both answers, and
every byte of the memory where rows move, are held to the NumPy model of tests/python, written from the specification
and not from the C sources.  A problem is *equal* when all three keep the same rows, *in the band* when one differs
inside the gap band of R32 only, and *different* otherwise; the numbers of those are listed, and `1 --first NUMBER` asks
one again.  SIGTERM ends it with what there is.  Problems are of the kinds that the Python tests make, of which `make
check` asks some thousands.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "clients" / "python" / "src"), str(ROOT / "tests" / "python")]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import chunkkv  # noqa: E402
import methods_bench  # noqa: E402
import problems  # noqa: E402
import test_methods  # noqa: E402
import test_random  # noqa: E402
import test_selectors  # noqa: E402
from daemon import Daemon  # noqa: E402

PROGRAMS = {"cpu": "chunkkvd", "reference": "chunkkvd-reference"}
# of 100 problems
TENSORS, SELECTIONS, METHODS = 45, 42, 10
LAYER_PLANS = [{"profile": "vote"}, {"layer_reduce": "top4"}, {"layer_reduce": "top4", "reuse": 2}, {"fill": "best"},
               {"profile": "vote", "selector": "chunk", "unit_reduce": "max"},
               {"layer_reduce": "top4", "reuse": 3, "selector": "chunk_eg"}]
FEWEST_ROWS, MOST_ROWS = 77, 555  # of problems of methods; so many rows fit the bench
PROGRESS = 1000
SHOWN = 5  # differences that are printed whole


class Side:
    """One daemon, and memory registered with it for each kind of problem."""

    def __init__(self, program: str) -> None:
        self.daemon = Daemon(program=program)
        self.client = chunkkv.Client(self.daemon.prefix(), timeout=60)
        self.tensors = problems.Bench(self.client)
        self.selections = test_selectors.Bench.of(self.client)
        self.methods = methods_bench.Bench(self.client)

    def ask(self, number: int) -> tuple[str, bool]:
        """One problem; AssertionError if the answer is none that the model allows.

        Returns: what kind of problem it is, and whether kept rows differ inside the band.
        """
        kind, seed = number % 100, number // 100
        if kind < TENSORS:
            before = len(test_random.in_band)
            test_random.test_random(self.tensors, number)
            return "tensors", len(test_random.in_band) > before
        if kind < TENSORS + SELECTIONS:
            test_selectors.test_selection(self.selections, number)
            return "given scores", False
        if kind < TENSORS + SELECTIONS + METHODS:
            names, which = test_methods.NAMES, seed * METHODS + kind - TENSORS - SELECTIONS
            rows = FEWEST_ROWS + which // len(names) % (MOST_ROWS - FEWEST_ROWS + 1)
            test_methods.test_method(self.methods, names[which % len(names)], rows)
            return "methods", False
        plan = LAYER_PLANS[seed % len(LAYER_PLANS)]
        test_selectors.test_layers_are_put_together(self.selections, number, plan)
        return "one set for all layers", False

    def close(self) -> None:
        self.client.close()
        self.daemon.stop()


def judge(sides: dict[str, Side], number: int, complain: Callable[[str], None]) -> tuple[str, str]:
    """Returns: the kind of a problem, and equal, in the band or different."""
    kind, verdict = "?", "equal"
    for name, side in sides.items():
        try:
            kind, in_band = side.ask(number)
            if in_band and verdict == "equal":
                verdict = "in the band"
        except (AssertionError, chunkkv.ChunkkvError):
            verdict = "different"
            complain(f"problem {number}, {name}:\n{traceback.format_exc(limit=-3)}")
    return kind, verdict


def table(counts: Counter[tuple[str, str]]) -> str:
    verdicts = ("equal", "in the band", "different")
    lines = [f"{'':24}" + "".join(f"{v:>14}" for v in verdicts)]
    for kind in sorted({k for k, _ in counts}):
        lines.append(f"{kind:24}" + "".join(f"{counts[kind, v]:14}" for v in verdicts))
    sums = [sum(n for (_, v), n in counts.items() if v == verdict) for verdict in verdicts]
    return "\n".join([*lines, f"{'all':24}" + "".join(f"{n:14}" for n in sums)])


def main() -> int:
    parser = argparse.ArgumentParser(description="reference, CPU path and NumPy model on random problems")
    parser.add_argument("problems", type=int, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long, with what there is")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "random-problems.json")
    args = parser.parse_args()

    ending: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda which, _: ending.append(which))
    shown: list[str] = []

    def complain(text: str) -> None:
        shown.append(text)
        if len(shown) <= SHOWN:
            print(text, flush=True)

    sides: dict[str, Side] = {}
    counts: Counter[tuple[str, str]] = Counter()
    listed: dict[str, list[int]] = {"in the band": [], "different": []}
    start, number = time.monotonic(), args.first
    try:
        for name, program in PROGRAMS.items():
            sides[name] = Side(program)
        for number in range(args.first, args.first + args.problems):
            if ending or time.monotonic() - start > args.seconds:
                break
            kind, verdict = judge(sides, number, complain)
            counts[kind, verdict] += 1
            if verdict != "equal":
                listed[verdict].append(number)
            if counts.total() % PROGRESS == 0:
                print(f"{counts.total()} problems in {time.monotonic() - start:.0f} s, {len(listed['in the band'])} in "
                      f"the band, {len(listed['different'])} different", flush=True)
    finally:
        for side in sides.values():
            side.close()
    print(table(counts))
    result: dict[str, Any] = {
        "problems": counts.total(), "first": args.first, "seconds": round(time.monotonic() - start), **listed,
        "counts": {f"{kind}: {verdict}": n for (kind, verdict), n in sorted(counts.items())}}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if listed["different"] or not counts else 0


if __name__ == "__main__":
    sys.exit(main())
