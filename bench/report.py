#!/usr/bin/env python3
"""What make bench and make bench-peers found, for people: lines, tables, a plot; and docs/performance.md.

    bench/report.py      fill in docs/performance.md and docs/performance.svg from build/bench.json and
                         build/bench-peers.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench")]

import gates  # noqa: E402
import speed_plot  # noqa: E402

Row = dict[str, Any]

COLUMNS = (("tokens", "tokens", 0), ("threads", "threads", 0), ("window", "w", 0), ("queries", "G·w", 0),
           ("chunk", "c", 0),
           ("score_ms", "score ms", 2), ("select_ms", "select ms", 3), ("compact_ms", "compact ms", 2),
           ("request_ms", "request ms", 2), ("floor_ratio", "floor", 2), ("peak_ratio", "peak", 2),
           ("spread", "spread", 2))
WIDTH = 12
# shapes that differ in nothing else that matters to a peak
NARROW = ("window 1", "window 8", "group of 1", "window 16", "profile default", "window 64")


def cell(row: Row, field: str, digits: int) -> str:
    value = row.get(field)
    return "-" if value is None else f"{value:.{digits}f}" if digits else str(value)


def name_of(row: Row) -> str:
    return f"{row['model']}, {row['what']}"


def path_of(row: Row) -> str:
    """The path, and a star if it is the one that is picked."""
    return f"{row['path']}{'*' if row['picked'] else ''}"


# ---- on the terminal

def print_head() -> None:
    print("\n* picked at start; floor: (read K + products + exponentials, each alone) / score; peak: products / score")
    print(f"{'':34}{'path':13}" + "".join(f"{title:>{WIDTH}}" for _, title, _ in COLUMNS))


def print_progress(row: Row) -> None:
    """That a row is measured; the table comes when it is whole."""
    score = "no result" if row["score_ms"] is None else f"{row['score_ms']:.2f} ms"
    lost = f", {dropped(row)} repetitions dropped" if row["dropped"] else ""
    print(f"    {name_of(row)}, {row['tokens']} tokens, {row['threads']} threads, {path_of(row)}: {score}{lost}",
          flush=True)


def print_score(row: Row) -> None:
    lost = f"  {row['dropped']} dropped" if row["dropped"] else ""
    cells = "".join(f"{cell(row, field, digits):>{WIDTH}}" for field, _, digits in COLUMNS)
    print(f"{name_of(row):34}{path_of(row):13}{cells}{lost}", flush=True)


def print_table(result: Row) -> None:
    print_head()
    for row in result["rows"]:
        if "measured_as" not in row:
            print_score(row)
    for other, measured in same_as(result).items():
        print(f"{other}: one layer of it is one of {measured}")


def same_as(result: Row) -> dict[str, str]:
    return {row["model"]: row["measured_as"] for row in result["rows"] if "measured_as" in row}


def rate(row: Row, field: str, unit: str, of: str, digits: int = 1) -> str:
    """A peak, or that too many of its repetitions were dropped."""
    value = row[field]
    return f"no result ({dropped(row, of)} dropped)" if value is None else f"{value:.{digits}f} {unit}"


def peak_drops(row: Row) -> str:
    """Of all loops of a line of peaks."""
    loops = [(row, "read_"), (row, "memcpy_"), *((peak, of) for peak in row["paths"].values()
                                                 for of in ("products_", "exponentials_"))]
    lost, kept = (sum(one[of + field] for one, of in loops) for field in ("dropped", "kept"))
    return f"{lost} of {lost + kept}"


def too_busy(row: Row) -> str | None:
    """What to say where half of the peaks or more have no result: what is measured after them will have none either."""
    found = [row["read_gb_per_s"], row["memcpy_gb_per_s"],
             *(peak[name] for peak in row["paths"].values() for name in ("gflops", "gexps"))]
    none = sum(value is None for value in found)
    if 2 * none < len(found):
        return None
    return (f"{none} of {len(found)} peaks have no result, {peak_drops(row)} repetitions were dropped: this machine is "
            "too busy to be timed by the clock, and most rows will have no result. It goes on all the same; "
            "BENCH_CPU=1 takes CPU time in place of the clock's.")


def print_peaks(peaks: list[Row]) -> None:
    for row in peaks:
        print(f"{row['threads']} threads: read {rate(row, 'read_gb_per_s', 'GB/s', 'read_')}, "
              f"memcpy of {row['memcpy_bytes'] >> 20} MiB each {rate(row, 'memcpy_gb_per_s', 'GB/s', 'memcpy_')} "
              f"(read + written); {peak_drops(row)} repetitions dropped")
        for path, peak in row["paths"].items():
            print(f"    {path:12}  products {rate(peak, 'gflops', 'GFLOP/s', 'products_')}, "
                  f"exponentials {rate(peak, 'gexps', 'Gexp/s', 'exponentials_', 2)}")


def print_round_trips(rpc: Row) -> None:
    print("\n".join(f"    {line}" for line in round_trips(rpc)))


# ---- requests beside bare round trips

TRIP_ROWS = (("p50 of a bare trip over ZeroMQ", "zmq_p50_us", "us"), ("over SOCK_SEQPACKET", "seqpacket_p50_us", "us"),
             ("of both, the floor", "floor_p50_us", "us"), ("of a plan beside its kernels", "p50_us", "us"),
             ("overhead over floor", "ratio", ""), ("switches of threads, floor", "floor_switches", ""),
             ("switches of threads, plan", "switches", ""), ("CPU time of all threads, floor", "floor_run_us", "us"),
             ("CPU time of all threads, plan beside its kernels", "own_run_us", "us"))


def own_run(rpc: Row) -> Row:
    """Figures of round trips, and the CPU time of a plan without its kernels."""
    run, kernels = rpc.get("run_us"), rpc.get("kernels_p50_us")
    return rpc | {"own_run_us": None if run is None or kernels is None else run - kernels}


def why(rpc: Row) -> str | None:
    """Where the CPU time of the overhead goes; None if it was not counted."""
    one = own_run(rpc)
    names = ("own_run_us", "floor_run_us", "switches", "floor_switches")
    if any(not one.get(name) for name in names):
        return None
    own, floor, switches, floor_switches = (one[name] for name in names)
    each = floor / floor_switches
    more = switches - floor_switches
    return (f"On one CPU a switch of the floor costs {each:.1f} us, the transport included. "
            f"A plan has {more:.1f} more of them, at that price {more * each:.0f} us of the {own - floor:.0f} us of "
            f"CPU time that it needs beyond the floor; the other {own - floor - more * each:.0f} us are work of "
            "client, gate and core.")


def round_trips(rpc: Row) -> Iterator[str]:
    """A table of requests beside bare round trips: free, and all on one CPU."""
    sides = [own_run(rpc), own_run(rpc.get("one_cpu") or {})]
    yield from table(["", "free", "all processes on one CPU"], [
        [name, *(f"{cell(side, field, 3 if field == 'ratio' else 1)} {unit}".strip() for side in sides)]
        for name, field, unit in TRIP_ROWS])
    if all(side["own_run_us"] is not None for side in sides):
        yield ""
        yield ("Whoever wakes a thread on another CPU pays for it in CPU time, the floor as much as the plan; on one "
               "CPU nobody does: the right column is what the code takes, and by how much the left one is above it "
               "depends on which threads the scheduler puts together.")
    reason = why(rpc.get("one_cpu") or {})
    if reason:
        yield ""
        yield reason


# ---- Markdown

def table(titles: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(titles) + " |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def about(result: Row) -> Iterator[str]:
    found = result["machine"]
    caches = ", ".join(f"{level} {size}" for level, size in sorted(found["caches"].items()))
    how = "CPU time of each thread, because neighbours did not pause" if result["cpu_time"] else "wall time"
    yield (f"{found['cpu']}, {found['cpus']} CPUs, {caches}, {found['memory_gib']} GiB, Linux {found['kernel']}; "
           f"{found['date']}, `make bench`{'' if result['size'] == 'full' else ' (' + result['size'] + ')'}, {how}."
           f"{' Left out: ' + result['left_out'] + '.' if result.get('left_out') else ''}")
    yield ""
    yield from table(["threads", "read", "memcpy", "products, exponentials of each path", "dropped"], [
        [str(row["threads"]), rate(row, "read_gb_per_s", "GB/s", "read_"),
         rate(row, "memcpy_gb_per_s", "GB/s", "memcpy_"),
         "; ".join(f"{path} {rate(peak, 'gflops', 'GFLOP/s', 'products_', 0)}, "
                   f"{rate(peak, 'gexps', 'G/s', 'exponentials_')}" for path, peak in row["paths"].items()),
         peak_drops(row)] for row in result["peaks"]])


def gate_table(result: Row) -> Iterator[str]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}"

    yield from table(["", "measured", "gate", "aim", ""], [
        [gate["name"], number(gate["value"]),
         ("at most " if gate["most"] else "") + number(gate["gate"]) if gate["gate"] else "-", number(gate["aim"]),
         "**miss**" if gate["outcome"] == "miss" else gate["outcome"]] for gate in result["gates"]])


def score_table(rows: list[Row]) -> Iterator[str]:
    yield from table(["shape", "path", *(title for _, title, _ in COLUMNS)],
                     [[name_of(row), path_of(row), *(cell(row, f, d) for f, _, d in COLUMNS)] for row in rows])


def growth_table(result: Row) -> Iterator[str]:
    yield from table(["rows", "layers", "score ms of one", "ns a row", "over the shortest", "quartiles", "dropped"], [
        [str(row["tokens"]), str(row["layers"]), cell(row, "score_ms", 1),
         f"{1e6 * row['score_ms'] / row['tokens']:.1f}" if row["score_ms"] else "-", cell(row, "over_shortest", 3),
         f"{row['over_low']:.3f}, {row['over_high']:.3f}" if row["over_low"] else "-", dropped(row)]
        for row in result["growth"]])


def narrow_table(result: Row) -> Iterator[str]:
    """What paths reach of their own peak over the queries that read one KV head."""
    few = [row for row in result["rows"] if row["what"] in NARROW and "measured_as" not in row]
    tokens = {row["tokens"] for row in few if not row["main"]}
    most = max((row["threads"] for row in few), default=0)
    few = [row for row in few if row["model"] == "Llama-3-8B" and row["tokens"] in tokens and row["threads"] == most and
           row["path"] != "scalar"]
    paths = list(dict.fromkeys(row["path"] for row in few))
    yield from table(["", "G·w", *paths], [
        [what, str(queries), *(", ".join(cell(row, "peak_ratio", 2) for row in few
                                         if (row["what"], row["path"]) == (what, path)) or "-" for path in paths)]
        for queries, what in sorted({(row["queries"], row["what"]) for row in few})])


def memory_table(result: Row) -> Iterator[str]:
    yield from table(["shape", "rows", "--scratch", "extra memory", "of K", "of what is allowed"], [
        [name_of(row), str(row["tokens"]), mib(row["scratch_bytes"]), mib(row["extra_bytes"]),
         f"{100 * row['extra_bytes'] / row['k_bytes']:.1f} %",
         f"{100 * row['extra_bytes'] / gates.allowed_bytes(row):.0f} %"] for row in result["memory"]])


def mib(count: int) -> str:
    return f"{count / 2**20:.3g} MiB"


def dropped(row: Row, of: str = "") -> str:
    """How many repetitions were dropped; `of`: the loop whose they are."""
    return f"{row[of + 'dropped']} of {row[of + 'kept'] + row[of + 'dropped']}"


def sections(result: Row) -> dict[str, list[str]]:
    """The measured parts of the document, by the name of their marker."""
    own = [row for row in result["rows"] if "measured_as" not in row]
    compact = result["compact"] or {}
    others = [f"Moves reach {cell(compact, 'ratio_20k', 3)} (20 KB runs) and {cell(compact, 'ratio_2k5', 3)} "
              "(2.5 KB runs) of one memcpy of the same bytes."]
    return {"machine": list(about(result)), "gates": list(gate_table(result)),
            "main": list(score_table([row for row in own if row["main"]])),
            "extra": list(score_table([row for row in own if not row["main"]])),
            "narrow": list(narrow_table(result)),
            "growth": list(growth_table(result)), "memory": list(memory_table(result)), "others": others,
            "rpc": list(round_trips(result["rpc"] or {}))}


def peer_section(peers: Row) -> list[str]:
    rows = [[row["path"], str(row["tokens"]), str(row["threads"]), cell(row, "ours_ms", 2), cell(row, "kvpress_ms", 1),
             cell(row, "speedup", 1), cell(row, "spread", 2), "yes" if row["indices_equal"] else "**no**",
             f"{row['jaccard_bf16']:.4f}", f"{row['ours_peak_bytes'] / 2**20:.1f}",
             f"{row['kvpress_peak_bytes'] / 2**20:.0f}"] for row in peers["rows"]]
    return [f"torch {peers['torch']}, kvpress {peers['kvpress']}, medians of {peers['repeats']} pairs"
            f"{', CPU time' if peers['cpu_time'] else ''}.", "",
            *table(["path", "tokens", "threads", "daemon ms", "kvpress ms", "times faster", "spread",
                    "float32: same rows", "bf16: Jaccard", "daemon MiB", "kvpress MiB"], rows)]


def markdown(result: Row) -> str:
    """All of it, for build/bench.md."""
    return "\n\n".join("\n".join(lines) for lines in sections(result).values()) + "\n"


def picture(result: Row) -> str:
    return speed_plot.svg([row for row in result["rows"] if row["main"] and row["model"] == "Llama-3-8B" and
                           row["profile"] == "default"])


# ---- docs/performance.md

def fill_in(document: str, name: str, lines: list[str]) -> str:
    """`document` with other lines between the two markers of `name`."""
    first, last = f"<!-- measured: {name} -->\n", f"<!-- /measured: {name} -->"
    before, found, rest = document.partition(first)
    _, end, after = rest.partition(last)
    if not found or not end:
        raise SystemExit(f"docs/performance.md has no markers for {name}")
    return before + first + "\n".join(lines) + "\n" + last + after


def whole(file: Path) -> Row:
    """The figures of a run that was not stopped."""
    found: Row = json.loads(file.read_text())
    if found.get("partial"):
        raise SystemExit(f"{file} is of a run that was stopped: measure again")
    return found


def main() -> int:
    document = ROOT / "docs" / "performance.md"
    written = document.read_text()
    bench, peers = ROOT / "build" / "bench.json", ROOT / "build" / "bench-peers.json"
    if not bench.exists():
        print("there are no figures yet: run make bench first", file=sys.stderr)
        return 1
    result = whole(bench)
    for name, lines in sections(result).items():
        written = fill_in(written, name, lines)
    if peers.exists():
        written = fill_in(written, "peers", peer_section(whole(peers)))
    document.write_text(written)
    (ROOT / "docs" / "performance.svg").write_text(picture(result))
    for gate in result["gates"]:
        print(gates.text(gate))
    return 0


if __name__ == "__main__":
    sys.exit(main())
