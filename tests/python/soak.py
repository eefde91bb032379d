"""Many users for a long time: honest ones, hostile ones, engines and gates that are killed; does anything grow?

    build/venv/bin/python tests/python/soak.py [--minutes 1] [--users 64] [--hostile 8] [--build DIR] [--out build/soak]
    make soak MINUTES=...

Users are uids of their own where we are root, else sessions.  Honest ones share four endpoints and ask for plans and
for compression in place; each result is compared with what the first one was, each cache bit for bit with the rows
that should be in it.  Hostile ones have an endpoint of their own and go through the tries of attacks.py.  Every two
seconds an honest engine is killed and another comes; every five, a gate.  Each honest request must succeed.

Once a second: memory, descriptors and mappings of core and gates, and the latency of a victim on an endpoint of its
own.  Afterwards everybody leaves, and the core must be what it was before they came.  OUT.json and OUT.svg show it all;
the last line is JSON.  Exit status 1 when something has grown or a result was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "clients" / "python" / "src"), str(ROOT / "tests" / "python")]

import numpy as np  # noqa: E402

import attacks  # noqa: E402
import chunkkv  # noqa: E402
from daemon import Daemon  # noqa: E402
from tenant import FORK, Tenant  # noqa: E402
from victim import p, progress, victim  # noqa: E402

FIRST_USER, FIRST_HOSTILE, VICTIM = 61000, 62000, 63000
SHARED = ("one", "two", "three", "four")
ROWS, HEADS, DIM = 2048, 2, 64
NOISE = np.random.default_rng(64).normal(size=(3, ROWS, HEADS, DIM)).astype(np.float32)
KILL_ENGINE, KILL_GATE = 2.0, 5.0  # seconds
THINK = 1.5  # seconds between requests of a user, at most
# what may come on top, of the second quarter's median and after everybody has left
MORE = {"core_kib": 8192, "core_descriptors": 32, "core_mappings": 64, "gates_descriptors": 64,
        "gates_kib": 256 << 10}  # what one gate may have, until it dies of it
LEFT = {"core_kib": 16384, "core_descriptors": 0, "core_mappings": 8}


def honest(prefix: str, uid: int | None, seed: int, tally: Any, wrong: Any) -> None:
    """A user's engine: plans and compressions until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    attacks.become(uid)
    rng = random.Random(seed)
    parent = os.getppid()
    try:
        with chunkkv.Client(prefix, timeout=60.0) as client:
            cache = chunkkv.SharedCache.allocate(client, layers=1, tokens=ROWS, kv_heads=HEADS, q_heads=2 * HEADS,
                                                 head_dim=DIM, dtype="f32", window=32)
            cache.write(0, key=NOISE[0], value=NOISE[1], query=NOISE[2, :64].reshape(32, 2 * HEADS, DIM))
            expected = client.plan(cache, rows=ROWS, keep_ratio=0.5, timeout=120).layers[0]
            rows = expected.rows
            while os.getppid() == parent:
                if rng.random() < 0.5:
                    same = client.plan(cache, rows=ROWS, keep_ratio=0.5, timeout=120).layers[0].kept == expected.kept
                else:
                    answer = client.compress(cache, rows=ROWS, keep_ratio=0.5, timeout=120)
                    same = answer.layers[0].kept == expected.kept
                    for plane, before in ((cache.key(0), NOISE[0]), (cache.value(0), NOISE[1])):
                        same = same and np.array_equal(plane[: len(rows)], before[rows])
                        plane[...] = before
                if not same:
                    wrong[1] += 1
                    print(f"user {seed}: a wrong result", file=sys.stderr)
                tally[seed] += 1
                time.sleep(rng.uniform(0, THINK))
    except Exception as error:
        wrong[0] += 1
        print(f"user {seed}: {error!r}", file=sys.stderr)


class Users:
    """Honest engines, one for each user; who is killed comes back."""

    def __init__(self, daemon: Daemon, count: int, root: bool) -> None:
        self.daemon, self.root = daemon, root
        self.tally, self.wrong = FORK.Array("q", count), FORK.Array("q", 2)
        self.processes = [self._start(n) for n in range(count)]
        self.killed = 0

    def kill_one(self) -> None:
        n = random.randrange(len(self.processes))
        self.processes[n].kill()
        self.processes[n].join()
        self.processes[n] = self._start(n)
        self.killed += 1

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def _start(self, n: int) -> Any:
        process = FORK.Process(target=honest, args=(self.daemon.prefix(SHARED[n % len(SHARED)]),
                                                    FIRST_USER + n if self.root else None, n, self.tally, self.wrong))
        process.start()
        return process


def own_kib(pid: int) -> int:
    """Resident memory that is not shared: what tenants lend comes and goes with them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), 0)


def sample(daemon: Daemon) -> dict[str, int]:
    """What core and gates hold."""
    usage = daemon.usage()
    found = {"core_kib": own_kib(daemon.pid), "core_descriptors": usage.descriptors, "core_mappings": usage.mappings,
             "gates_kib": 0, "gates_descriptors": 0}
    for pid in daemon.gates():
        with suppress(OSError):  # killed just now
            found["gates_kib"] += own_kib(pid)
            found["gates_descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
    return found


def soak(minutes: float, users: int, hostile: int) -> dict[str, Any]:
    root = os.geteuid() == 0
    series: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        daemon = Daemon(endpoints=(*SHARED, "hostile", "victim"), options=("--socket-mode", "666"))
        stack.callback(daemon.stop)
        daemon.directory.chmod(0o755)
        for endpoint in (*SHARED, "hostile", "victim"):  # what the first ones leave for good
            with chunkkv.Client(daemon.prefix(endpoint)) as client:
                client.ping()
        with Tenant(daemon.prefix("victim"), victim, VICTIM if root else None) as first:
            assert first.hear() == "ready"
            first.say(0.5)
            first.hear()
        time.sleep(0.5)
        before = sample(daemon)
        watched = stack.enter_context(Tenant(daemon.prefix("victim"), victim, VICTIM if root else None))
        assert watched.hear() == "ready"
        crowd = Users(daemon, users, root)
        stack.callback(crowd.end)
        bad = attacks.Attackers(daemon.prefix("hostile"),
                                [FIRST_HOSTILE + n if root else None for n in range(hostile)])
        stack.callback(bad.end)
        bad.tell(attacks.ATTACKS)
        gates_killed = watch(daemon, minutes, crowd, watched, series)
        bad_lives = all(process.is_alive() for process in bad.processes)
        laps = sum(bad.laps)
        crowd.end()
        bad.end()
        watched.end()
        left = settle(daemon, before)
        assert daemon.process is not None
        assert daemon.process.poll() is None, "the daemon has died"
    return {"minutes": minutes, "users": users, "hostile": hostile, "requests": sum(crowd.tally),
            "wrong_results": crowd.wrong[1], "errors": crowd.wrong[0], "engines_killed": crowd.killed,
            "gates_killed": gates_killed, "tries_made": laps, "hostile_live": bad_lives, "before": before,
            "after": left, "series": dict(series)}


def watch(daemon: Daemon, minutes: float, crowd: Users, watched: Tenant, series: dict[str, list[float]]) -> int:
    """Until the time is over; return how many gates were killed."""
    start = time.monotonic()
    end, next_engine, next_gate, gates_killed = start + 60 * minutes, start + KILL_ENGINE, start + KILL_GATE, 0
    while (now := time.monotonic()) < end:
        watched.say(0.8)
        times = watched.hear(120)
        series["seconds"].append(round(now - start, 2))
        for name, value in sample(daemon).items():
            series[name].append(value)
        series["victim_p50_ms"].append(round(1000 * p(times, 0.5), 2))
        series["victim_p99_ms"].append(round(1000 * p(times, 0.99), 2))
        if now > next_engine:
            crowd.kill_one()
            next_engine += KILL_ENGINE
        if now > next_gate:
            gates = daemon.gates()
            if gates:
                with suppress(ProcessLookupError):
                    os.kill(random.choice(gates), signal.SIGKILL)
                gates_killed += 1
            next_gate += KILL_GATE
        progress(f"{now - start:.0f} s: {sum(crowd.tally)} requests, core {series['core_kib'][-1]} KiB, "
                 f"victim p99 {series['victim_p99_ms'][-1]} ms")
    return gates_killed


def settle(daemon: Daemon, before: dict[str, int]) -> dict[str, int]:
    """What is held once all have left, after as long as it takes, 20 s at most."""
    end = time.monotonic() + 20
    while time.monotonic() < end and any(sample(daemon)[name] > before[name] + more for name, more in LEFT.items()):
        time.sleep(0.2)
    return sample(daemon)


def grown(total: dict[str, Any]) -> list[str]:
    """What is more than it should be."""
    found = []
    for name, more in MORE.items():
        values = total["series"][name]
        quarter = max(1, len(values) // 4)
        early, late = statistics.median(values[quarter : 2 * quarter] or values), statistics.median(values[-quarter:])
        # results are stored for repeats, and come to their number in the first minutes
        if late > 1.1 * early + more:
            found.append(f"{name} grew from {early} to {late}")
    found += [f"{name} was {total['before'][name]}, is {total['after'][name]} when all have left"
              for name, more in LEFT.items() if total["after"][name] > total["before"][name] + more]
    return found


def plot(series: dict[str, list[float]], path: Path) -> None:
    """A panel for each thing, against seconds."""
    panels = [("core: memory of its own, MiB", [("core_kib", 1 / 1024)]),
              ("gates: memory of their own, MiB", [("gates_kib", 1 / 1024)]),
              ("descriptors: core, gates", [("core_descriptors", 1), ("gates_descriptors", 1)]),
              ("core: mappings", [("core_mappings", 1)]),
              ("victim: ms, p50 and p99", [("victim_p50_ms", 1), ("victim_p99_ms", 1)])]
    width, height, margin = 800, 120, 60
    wide, bottom = width - margin - 20, len(panels) * 160 + 30
    last = max(series["seconds"][-1], 1e-9)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>']
    for n, (title, lines) in enumerate(panels):
        top = n * (height + 40) + 25
        most = max([factor * value for name, factor in lines for value in series[name]] + [1e-9])
        out += [f'<text x="{margin}" y="{top - 6}">{title}</text>',
                f'<text x="{margin - 6}" y="{top + 10}" text-anchor="end">{most:.4g}</text>',
                f'<text x="{margin - 6}" y="{top + height}" text-anchor="end">0</text>',
                f'<rect x="{margin}" y="{top}" width="{wide}" height="{height}" fill="none" stroke="#999"/>']
        for (name, factor), colour in zip(lines, ("#1f5fa8", "#c0392b"), strict=False):
            points = " ".join(f"{margin + wide * at / last:.1f},{top + height * (1 - factor * value / most):.1f}"
                              for at, value in zip(series["seconds"], series[name], strict=True))
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
    out += [f'<text x="{width - 20}" y="{bottom - 15}" text-anchor="end">{last:.0f} s</text>', "</svg>"]
    path.write_text("\n".join(out) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--hostile", type=int, default=8, help="users who are not honest, beside those")
    parser.add_argument("--build", default=os.environ.get("CHUNKKV_BUILD", str(ROOT / "build/release")))
    parser.add_argument("--out", default=str(ROOT / "build/soak"), help="without the ending")
    options = parser.parse_args()
    os.environ["CHUNKKV_BUILD"] = str(Path(options.build).resolve())
    total = soak(options.minutes, options.users, options.hostile)
    total["grown"] = grown(total)
    Path(options.out + ".json").write_text(json.dumps(total) + "\n")
    plot(total["series"], Path(options.out + ".svg"))
    series = total.pop("series")
    total |= {f"victim_{share}_ms": statistics.median(series[f"victim_{share}_ms"]) for share in ("p50", "p99")}
    for line in total["grown"]:
        print(f"  grown: {line}")
    print(json.dumps(total))
    fine = not total["grown"] and not total["wrong_results"] and not total["errors"] and total["hostile_live"]
    return int(not fine or not total["requests"])


if __name__ == "__main__":
    sys.exit(main())
