#!/usr/bin/env python3
"""make bench: measure the CPU device, say what hits its gate and what misses, write build/bench.json, .md and .svg.

    bench/run.py [--quick | --tiny]

The measuring is done by programs in C, which write lines of JSON: chunkkv-bench (scores, peaks, growth),
chunkkv-bench-move (compaction against memcpy), chunkkv-bench-rpc (round trips) and chunkkv-bench-request (whole
requests to a daemon with the path forced).  BENCH_CPU=1 takes CPU time where neighbours never pause.

build/bench.json is written as figures come, with "partial": true until all are there, so that a run that is stopped
leaves what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "clients" / "python" / "src"), str(ROOT / "tests" / "python"), str(ROOT / "bench")]

import gates  # noqa: E402
import report  # noqa: E402
from daemon import Daemon, build_directory  # noqa: E402
from requester import Requester, by_cpu_time, cpu_seconds, rows_said  # noqa: E402

Row = dict[str, Any]

# one layer of it is one of the other's
SAME_LAYER = {"Llama-3-8B": "Mistral-7B"}
KV_HEADS = {"Llama-3-8B": 8, "Qwen2-7B": 4}
REQUEST_BYTES = 160 << 20  # K and V that requests go through in turn
SMALL_SCRATCH_KIB = 16 << 10  # for long sequences less than 2 % of K


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    tokens: tuple[int, ...] = (2048, 8192, 32768, 131072)
    extra_tokens: int = 8192
    longest: int = 1 << 20  # of the growth
    growth_pool_mib: int = 2112
    pool_mib: int = 640
    job_tokens: int = 32768
    repeats: int = 9
    extra_repeats: int = 5
    growth_repeats: int = 7
    requests: int = 5
    one_thread: bool = True
    beside: bool = True  # moves beside memcpy, round trips: some seconds, and more than a gigabyte
    trips: int = 4000


PLANS = {
    "full": Plan(),
    "quick": Plan(tokens=(2048, 8192), longest=1 << 17, growth_pool_mib=512, job_tokens=16384, repeats=5,
                  extra_tokens=2048, growth_repeats=5, requests=3, one_thread=False),
    # a test that all of it runs; its figures mean nothing
    "tiny": Plan(tokens=(1024,), longest=1 << 13, growth_pool_mib=64, pool_mib=32, job_tokens=1024, repeats=1,
                 extra_tokens=1024, extra_repeats=1, growth_repeats=1, requests=1, one_thread=False, beside=False),
}


class Stopped(BaseException):
    """A signal asks for an end; what was started is taken down on the way out."""


def on_signal(number: int, _: object) -> None:
    raise Stopped(number)


def left_out(plan: Plan) -> str:
    """What a plan does not measure of all there is, in words; nothing of the whole plan."""
    full = PLANS["full"]
    said = []
    if shorter := [str(tokens) for tokens in full.tokens if tokens not in plan.tokens]:
        said.append(f"sequences of {', '.join(shorter)} tokens")
    if full.one_thread and not plan.one_thread:
        said.append("one thread")
    if plan.longest < full.longest:
        said.append(f"growth past {plan.longest} rows")
    if full.beside and not plan.beside:
        said.append("moves beside memcpy, round trips")
    if plan.repeats < full.repeats:
        said.append(f"{full.repeats - plan.repeats} of {full.repeats} repetitions")
    return "; ".join(said)


def lines_of(program: str, *arguments: object) -> Iterator[Row]:
    """What a program says, line by line as it comes; ends everything if the program fails."""
    # should this program be killed, what it started goes with it
    command = ["setpriv", "--pdeathsig", "TERM", str(build_directory() / program), *map(str, arguments)]
    yield from rows_said(command, " ".join(command))


def machine() -> Row:
    """What the figures are of."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    caches = {}
    for cache in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        kind = (cache / "type").read_text().strip()
        if kind != "Instruction":
            caches[f"L{(cache / 'level').read_text().strip()}"] = (cache / "size").read_text().strip()
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {"cpu": names[0] if names else platform.machine(), "cpus": len(os.sched_getaffinity(0)), "caches": caches,
            "memory_gib": round(int(memory) / 2**20), "kernel": platform.release(),
            "date": time.strftime("%Y-%m-%d", time.gmtime())}


def scores(plan: Plan, threads: list[int], rows: list[Row], keep: Callable[[], None]) -> None:
    def add(row: Row) -> None:
        report.print_progress(row)
        rows.append(row)
        keep()

    common = ("--pool", plan.pool_mib, "--check")
    for count in threads:
        for row in lines_of("chunkkv-bench", "score", "--tokens", ",".join(map(str, plan.tokens)), "--threads", count,
                            "--repeats", plan.repeats, "--job", plan.job_tokens, *common):
            add(row)
    for row in lines_of("chunkkv-bench", "score", "--extra", "--tokens", plan.extra_tokens, "--threads", threads[-1],
                        "--repeats", plan.extra_repeats, "--job", plan.extra_tokens, *common):
        add(row)


def request_times(daemon: Daemon, row: Row, plan: Plan) -> Row:
    """Medians of whole requests of the row's shape."""
    heads = KV_HEADS[row["model"]]
    places = max(1, REQUEST_BYTES // (4 * row["tokens"] * heads * row["head_dim"]))
    with Requester(daemon, row["tokens"], heads, heads * row["group"], row["head_dim"], row["dtype"], row["window"],
                   row["chunk"], row["profile"], places) as requester:
        pids = [daemon.pid, *daemon.gates(), requester.pid]
        for place in range(places):
            requester.request(place)  # the daemon touches its mapping for the first time
        answers = []
        for turn in range(plan.requests):
            before = cpu_seconds(pids)
            answer = requester.request(turn)
            if by_cpu_time():
                answer["request_ms"] = 1e3 * (cpu_seconds(pids) - before) / row["threads"]
            answers.append(answer)
    return {"request_ms": round(statistics.median(a["request_ms"] for a in answers), 4),
            "compact_ms": round(statistics.median(a["move_us"] for a in answers) / 1e3, 4)}


def add_requests(rows: list[Row], plan: Plan, keep: Callable[[], None]) -> None:
    """Whole requests: every path on all threads, the picked one also on one."""
    most = max(row["threads"] for row in rows)
    wanted = [row for row in rows if row["main"] and (row["threads"] == most or row["picked"])]
    for row in rows:
        row["request_ms"] = row["compact_ms"] = None
    for path, threads in sorted({(row["path"], row["threads"]) for row in wanted}):
        print(f"requests: {path}, {threads} threads", flush=True)
        daemon = Daemon(options=("--threads", str(threads), "--cpu-path", path))
        try:
            for row in wanted:
                if (row["path"], row["threads"]) == (path, threads):
                    row |= request_times(daemon, row, plan)
                    keep()
        finally:
            daemon.stop()


@contextlib.contextmanager
def one_cpu() -> Iterator[None]:
    """Whatever is started meanwhile shares one CPU, the last of this process."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def round_trips(trips: int) -> tuple[Row, Row]:
    """Requests beside bare round trips: all figures, and those of the table."""
    daemon = Daemon()
    try:
        figures, summary = lines_of("chunkkv-bench-rpc", daemon.prefix(), trips, daemon.pid, *daemon.gates())
    finally:
        daemon.stop()
    return figures, summary["rpc"]


def add_others(result: Row, trips: int) -> None:
    """Moves beside memcpy, requests beside bare round trips, free and with all processes on one CPU."""
    result["others"] = []
    print("moves beside memcpy", flush=True)
    for row in lines_of("chunkkv-bench-move"):
        if "compact" in row:
            result |= row
        else:
            result["others"].append(row)
    print("requests beside bare round trips", flush=True)
    free, result["rpc"] = round_trips(trips)
    with one_cpu():
        bound, result["rpc"]["one_cpu"] = round_trips(trips)
    result["others"] += [free | {"cpus": "free"}, bound | {"cpus": "one"}]
    report.print_round_trips(result["rpc"])


def picked_within(rows: list[Row]) -> float | None:
    """How much longer than the best path the picked one takes, at worst."""
    over = [row["picked_over_this"] for row in rows if row["picked_over_this"] is not None]
    return round(max(over) - 1, 4) if over else None


def same_layers(rows: list[Row]) -> list[Row]:
    """The rows of models whose layers are those of another."""
    return [row | {"model": SAME_LAYER[row["model"]], "measured_as": row["model"]}
            for row in rows if row["main"] and row["model"] in SAME_LAYER]


def peaks(plan: Plan, threads: list[int]) -> list[Row]:
    rows = []
    for count in threads:
        for row in lines_of("chunkkv-bench", "peaks", "--threads", count, "--repeats", plan.repeats,
                            "--pool", plan.pool_mib):
            if (busy := report.too_busy(row)) and not any(map(report.too_busy, rows)):
                print(f"bench: {busy}", file=sys.stderr, flush=True)
            rows.append(row)
    report.print_peaks(rows)
    return rows


def measure(plan: Plan, result: Row, keep: Callable[[], None]) -> None:
    """All figures of a plan, into `result`; `keep` is called as they come."""
    found = machine()
    threads = [1, found["cpus"]] if plan.one_thread and found["cpus"] > 1 else [found["cpus"]]
    rows: list[Row] = []
    result |= {"machine": found, "cpu_time": by_cpu_time(), "left_out": left_out(plan), "compact": None, "rpc": None,
               "others": [], "peaks": [], "rows": rows, "growth": [], "memory": [], "picked_within": None}
    print(f"{found['cpu']}, {found['cpus']} CPUs" + (f"; left out: {result['left_out']}" if result["left_out"] else ""),
          flush=True)
    keep()
    print("peaks", flush=True)
    result["peaks"] = peaks(plan, threads)
    keep()
    if plan.beside:
        add_others(result, plan.trips)
        keep()
    print("scores; * picked at start", flush=True)
    scores(plan, threads, rows, keep)
    add_requests(rows, plan, keep)
    print("growth with the rows", flush=True)
    common = ("--tokens", plan.longest, "--threads", threads[-1], "--pool", plan.growth_pool_mib)
    result["growth"] = list(lines_of("chunkkv-bench", "linear", "--repeats", plan.growth_repeats, *common))
    keep()
    result["memory"] = [row for kib in (0, SMALL_SCRATCH_KIB)
                        for row in lines_of("chunkkv-bench", "memory", "--scratch", kib, *common)]
    result["picked_within"] = picked_within(rows)
    result["rows"] = rows + same_layers(rows)


def save(out: Path, result: Row) -> None:
    """Put the figures in their place: there is never half a file."""
    written = out.with_suffix(".tmp")
    written.write_text(json.dumps(result, indent=1) + "\n")
    written.replace(out)


def finish(out: Path, result: Row) -> int:
    """What all figures together say, on the terminal and beside them. Return: the exit status."""
    result["gates"] = gates.judge(result)
    save(out, result)
    out.with_suffix(".md").write_text(report.markdown(result))
    out.with_suffix(".svg").write_text(report.picture(result))
    report.print_table(result)
    gates.show(result["gates"])
    return 1 if any(gate["outcome"] == "miss" for gate in result["gates"]) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="the CPU device beside what bounds it")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const="quick", dest="size",
                      help=f"a minute, without {left_out(PLANS['quick'])}")
    size.add_argument("--tiny", action="store_const", const="tiny", dest="size", help="seconds; figures mean nothing")
    size.add_argument("--beside", action="store_true", help="moves and bare round trips again, into what --out holds")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench.json")
    args = parser.parse_args()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    start = time.monotonic()
    result: Row = {"size": args.size or "full", "partial": True}
    try:
        if args.beside:
            result = report.whole(args.out)
            add_others(result, PLANS["full"].trips)
        else:
            measure(PLANS[result["size"]], result, lambda: save(args.out, result))
            del result["partial"]
    except Stopped as stopped:
        kept = "what was there" if args.beside else f"{len(result.get('rows', []))} rows, marked as partial"
        print(f"stopped; {args.out} has {kept}", file=sys.stderr)
        return 128 + int(stopped.args[0])
    status = finish(args.out, result)
    print(f"{time.monotonic() - start:.0f} s; all in {args.out}, table and plot beside it")
    return status


if __name__ == "__main__":
    sys.exit(main())
