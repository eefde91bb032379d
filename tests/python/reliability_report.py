"""Show what the daemon survives: run everything that has a figure, and say for each whether it is good enough.

    build/venv/bin/python tests/python/reliability_report.py [--minutes 1] [--seeds 50] [--build DIR] [--points DIR]
    make reliability-report MINUTES=1

In turn: the victim of a hostile tenant and of a greedy one, deaths of engines and cores (victim.py), the list of
tries (tries.py), the kill matrix (kill_matrix.py), fuzzing (tools/fuzz), and what systemd-analyze says of the unit.
What each part prints is shown while it runs.  Writes build/reliability.json and a page, build/reliability.md.  The last
lines say hit or miss for each target; exit status 1 when one is missed, also by a part that broke off.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
LEAST_POINTS, LEAST_SEEDS = 20, 50
OPEN_MARK, CLOSE_MARK = "<!-- figures -->", "<!-- /figures -->"
MOST_EXPOSURE = 0.5  # as tests/test_systemd_units.sh


def run(title: str, command: list[str]) -> str:
    """Run a part; what it prints is shown while it runs, and returned."""
    print(f"== {title}: {' '.join(command).replace(str(ROOT) + '/', '')}", flush=True)
    start, lines = time.monotonic(), []
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if not line.startswith("{"):
                print(f"   {line}", end="", flush=True)
    print(f"   {time.monotonic() - start:.0f} s, exit status {process.returncode}", flush=True)
    return "".join(lines)


def last_json(text: str) -> dict[str, Any]:
    """The last line, if that is JSON."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        found = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        found = {}
    return found if isinstance(found, dict) else {}


def victim(options: argparse.Namespace) -> dict[str, Any]:
    """Victim, greedy neighbour, deaths of engines and cores."""
    return last_json(run("victim", [PYTHON, "tests/python/victim.py", "--build", options.build,
                                    "--repeats", str(options.repeats), "--deaths", "101"]))


def tries(options: argparse.Namespace) -> dict[str, Any]:
    """The list of tries."""
    return last_json(run("tries", [PYTHON, "tests/python/tries.py", "--build", options.build]))


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """Core, gate and engine killed at every point."""
    command = [PYTHON, "tests/python/kill_matrix.py", "--seeds", str(options.seeds)]
    return last_json(run("kill", command + (["--build", options.points] if options.points else [])))


def fuzz(options: argparse.Namespace) -> dict[str, Any]:
    """Every fuzz target for its share of the time."""
    path = ROOT / "build/fuzz.json"
    path.unlink(missing_ok=True)  # what is there is of another day
    run("fuzz", ["tools/fuzz", str(options.minutes)])
    found = json.loads(path.read_text()) if path.exists() else {}
    return found if isinstance(found, dict) else {}


def exposure(options: argparse.Namespace) -> dict[str, Any]:
    """From 0 (best) to 10."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return {}
    with tempfile.TemporaryDirectory() as directory:
        unit = Path(directory) / "chunkkvd@cpu.service"
        shutil.copy(ROOT / "systemd/chunkkvd@.service", unit)
        text = run("exposure", [program, "security", "--offline=true", "--no-pager", str(unit)])
    found = re.search(r"exposure level for \S+: ([0-9.]+)", text)
    return {"exposure": float(found[1])} if found else {}


@dataclass
class Target:
    """A figure, what it has to be, and the command that shows it."""

    name: str
    wanted: str
    value: Any
    hit: bool
    command: str


def targets(report: dict[str, Any]) -> list[Target]:
    """Hit or miss; a figure that is not there is a miss."""
    fuzzed, killed, tried = report["fuzz"], report["kill"], report["tries"]

    def most(name: str, title: str, limit: float, unit: str = "") -> Target:
        value = report.get(name)
        shown = "none" if value is None else f"{value}{unit}"
        return Target(title, f"at most {limit:g}{unit}", shown, value is not None and value <= limit,
                      "tests/python/victim.py" if name != "exposure" else "systemd-analyze security --offline=true")

    return [
        Target("fuzzing: crashes", "0",
               f"{fuzzed.get('crashes', 'none')} in {fuzzed.get('executions', 0):,} executions, "
               f"{100 * fuzzed.get('line_coverage', 0):.1f} % of the readers' lines",
               fuzzed.get("crashes") == 0 and fuzzed.get("executions", 0) > 0, "make fuzz"),
        Target("kills: caches lost", f"0, {LEAST_POINTS} points x {LEAST_SEEDS} seeds",
               f"{killed.get('lost', 'none')} at {killed.get('points', 0)} points x {killed.get('seeds', 0)} seeds",
               killed.get("lost") == 0 and killed.get("never", 0) == 0 and killed["points"] >= LEAST_POINTS
               and killed["seeds"] >= LEAST_SEEDS, "tests/python/kill_matrix.py"),
        most("victim_p99_ratio", "victim's p99, attacked / alone", 2),
        most("greedy_p99_ratio", "victim's p99, beside a greedy tenant / alone", 3),
        most("reclaim_p99_s", "memory of a dead engine released, p99", 1, " s"),
        most("restart_ready_s", "restart to ready, p99", 3, " s"),
        Target("tries with the right outcome", "all", f"{tried.get('right', 0)} of {tried.get('total', 0)}",
               0 < tried.get("total", 0) == tried.get("right"), "tests/python/tries.py"),
        most("exposure", "exposure of the unit", MOST_EXPOSURE),
    ]


def machine() -> str:
    """What it was measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} x {model}, {platform.system()} {platform.release()}"


def page(report: dict[str, Any], found: list[Target]) -> str:
    """The report to read."""
    lines = ["# Reliability: a run of `make reliability-report`", "",
             f"{report['when']} UTC, {report['machine']}, load "
             f"{report['load'][0]:.1f} before and {report['load'][1]:.1f} after, {report['seconds']:.0f} s.", "",
             "| figure | wanted | seen | | command |", "|---|---|---|---|---|"]
    lines += [f"| {t.name} | {t.wanted} | {t.value} | {'hit' if t.hit else '**miss**'} | `{t.command}` |"
              for t in found]
    seen = report.get("victim", {})
    if seen:
        lines += ["", "## The victim", "", "| | p50 ms | p99 ms | longest ms | requests |", "|---|---|---|---|---|"]
        lines += [f"| {kind} | {turn['p50']} | {turn['p99']} | {turn['longest']} | {turn['requests']} |"
                  for kind in ("alone", "attack", "greedy", "busy") if (turn := seen.get(f"{kind}_ms"))]
        lines += ["", f"Ratio of turn to turn, with the least and the most: attacked {seen['victim_p99_ratio']} "
                  f"{seen['victim_p99_ratio_spread']}; beside a greedy tenant {seen['greedy_p99_ratio']} "
                  f"{seen['greedy_p99_ratio_spread']}; beside processes that compute and let the daemon alone "
                  f"{seen['busy_p99_ratio']} {seen['busy_p99_ratio_spread']}. {seen['tries_made']} tries were made."]
    tried = report["tries"]
    lines += ["", "## Tries", "",
              f"Wrong: {tried.get('wrong', [])}. Not here: {tried.get('not_here', [])}. For CUDA memory only, not "
              f"counted: {tried.get('waiting', [])}; of {tried.get('waiting_in_part', [])} a part.", ""]
    return "\n".join(lines)


def publish(report: dict[str, Any]) -> None:
    """The figures into docs/reliability.md."""
    path = ROOT / "docs/reliability.md"
    head, rest = path.read_text().split(OPEN_MARK)
    tail = rest.split(CLOSE_MARK)[1]
    text = page(report, targets(report))
    when = text.split("\n\n")[1]
    table = text.split("\n\n")[2]
    path.write_text(f"{head}{OPEN_MARK}\n{when}\n\n{table.strip()}\n{CLOSE_MARK}{tail}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="of fuzzing")
    parser.add_argument("--seeds", type=int, default=LEAST_SEEDS, help="of the kill matrix")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each kind for the victim")
    parser.add_argument("--build", default=os.environ.get("CHUNKKV_BUILD", str(ROOT / "build/release")))
    parser.add_argument("--points", help="a build with POINTS=1; made if not given")
    parser.add_argument("--only", default="victim,tries,kill,fuzz,exposure", help="parts; the others are then misses")
    parser.add_argument("--out", default=str(ROOT / "build/reliability"), help="without the ending")
    parser.add_argument("--docs", action="store_true", help="run nothing: last run's figures to docs/reliability.md")
    options = parser.parse_args()
    if options.docs:
        publish(json.loads(Path(options.out + ".json").read_text()))
        return 0
    options.build = str(Path(options.build).resolve())
    parts: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "victim": victim, "tries": tries, "kill": kills, "fuzz": fuzz, "exposure": exposure}
    start, load = time.monotonic(), os.getloadavg()[0]
    seen: dict[str, dict[str, Any]] = {}
    for n, (name, part) in enumerate(parts.items(), 1):
        if name in options.only.split(","):
            print(f"[{n} of {len(parts)}, {time.monotonic() - start:.0f} s]", flush=True)
            seen[name] = part(options)
    none: dict[str, Any] = {}
    figures = seen.get("victim", none)
    report: dict[str, Any] = {
        "fuzz": {"executions": 0, "crashes": None, "line_coverage": 0.0, **{
            name: value for name, value in seen.get("fuzz", none).items()
            if name in ("executions", "crashes", "line_coverage")}},
        "kill": {"points": 0, "seeds": 0, "lost": None, **seen.get("kill", none)},
        "victim_p99_ratio": figures.get("victim_p99_ratio"), "greedy_p99_ratio": figures.get("greedy_p99_ratio"),
        "reclaim_p99_s": figures.get("reclaim_p99_s"), "restart_ready_s": figures.get("restart_ready_s"),
        "tries": {"total": 0, "right": 0, **seen.get("tries", none)},
        "exposure": seen.get("exposure", none).get("exposure"), "victim": figures,
        "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "machine": machine(),
        "load": [load, os.getloadavg()[0]], "seconds": round(time.monotonic() - start, 1),
    }
    found = targets(report)
    report["missed"] = [t.name for t in found if not t.hit]
    Path(options.out + ".json").write_text(json.dumps(report, indent=1) + "\n")
    Path(options.out + ".md").write_text(page(report, found))
    print(f"== {options.out}.md and .json")
    for t in found:
        print(f"  {'hit ' if t.hit else 'MISS'}  {t.name}: {t.value} (wanted: {t.wanted})")
    return int(bool(report["missed"]))


if __name__ == "__main__":
    sys.exit(main())
