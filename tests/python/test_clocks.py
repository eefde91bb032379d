"""Clocks that do not agree: a client in a time namespace, a daemon that was suspended, a step of the wall clock.

A daemon with a CLOCK_MONOTONIC of its own stands for one whose client was carried over a suspend: deadlines are
times of the daemon's clock, and clients learn it from Welcome.  Setting the clock of the machine is no test's
business; that nothing but CLOCK_MONOTONIC is asked for times that matter is looked up in the sources instead.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import chunkkv
from chunkkv.wire import Code
from daemon import ROOT, Daemon, build_directory
from test_gate_kill import Neighbour, prepared

HOUR = 3600
CLIENT = """
import json, sys, time
sys.path[:0] = sys.argv[2:]
import chunkkv
from test_gate_kill import prepared, ROWS
with chunkkv.Client(sys.argv[1], timeout=5.0) as client, prepared(client) as cache:
    client.ping()
    kept = client.plan(cache, rows=ROWS, keep_ratio=0.5).groups[0].kept_digest
    offset = client.session.clock_offset_ns
    print(json.dumps({"kept": kept, "offset": offset, "now": time.monotonic()}))
"""


def in_time_namespace(offset: int) -> list[str]:
    """How to run a command whose CLOCK_MONOTONIC is that many seconds off, or skip."""
    words = ["unshare", "--time", "--fork", "--kill-child", f"--monotonic={offset}"]
    try:
        done = subprocess.run([*words, sys.executable, "-c", "import time; print(time.monotonic())"],
                              capture_output=True, text=True, timeout=20)
    except FileNotFoundError:
        pytest.skip("no unshare")
    if done.returncode or abs(float(done.stdout) - time.monotonic() - offset) > 20:
        pytest.skip(f"no time namespaces here: {done.stderr.strip()}")
    return words


def offsets() -> list[int]:
    """An hour ahead, and as far back as the machine is up, but no more."""
    return [HOUR, -min(HOUR, int(time.monotonic()) - 60)]


@pytest.mark.parametrize("which", [0, 1], ids=["ahead", "behind"])
@pytest.mark.tries(24)
def test_a_client_with_another_clock(daemon: Daemon, which: int) -> None:
    offset = offsets()[which]
    words = in_time_namespace(offset)
    done = subprocess.run([*words, sys.executable, "-c", CLIENT, daemon.prefix(), str(ROOT / "clients/python/src"),
                           str(Path(__file__).parent)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert abs(said["offset"] + offset * 1e9) < 1e9
    with chunkkv.Client(daemon.prefix()) as client, prepared(client) as cache:
        assert client.session.clock_offset_ns == 0
        assert client.plan(cache, rows=256, keep_ratio=0.5).groups[0].kept_digest == said["kept"]


@pytest.mark.parametrize("which", [0, 1], ids=["ahead", "behind"])
@pytest.mark.tries(24)
def test_a_program_in_c_with_another_clock(daemon: Daemon, which: int) -> None:
    words = in_time_namespace(offsets()[which])
    plan = ["plan", str(ROOT / "tests/data/needle-1k.safetensors"), "--keep-ratio", "0.5"]
    for order in (["ping"], ["status"], plan):
        done = subprocess.run([*words, str(build_directory() / "chunkkvctl"), *order, "--endpoint", daemon.prefix(),
                               "--timeout", "5", "--json"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{order}: {done.stdout}{done.stderr}"


@pytest.mark.tries(24)
def test_nothing_expires_by_a_pause(new_daemon: Callable[..., Daemon]) -> None:
    """All processes of the daemon stand still for a while, as in a suspend: sessions and requests go on."""
    daemon = new_daemon(endpoints=("main", "other"))
    neighbour = Neighbour(daemon.prefix("other"), timeout=20.0)
    with chunkkv.Client(daemon.prefix(), timeout=20.0) as client, prepared(client) as cache:
        digest = client.plan(cache, rows=256, keep_ratio=0.5).groups[0].kept_digest
        neighbour.start()
        while not neighbour.calls and neighbour.is_alive():
            time.sleep(0.01)
        pids = [daemon.pid, *daemon.gates()]
        for _ in range(2):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(2.5)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            assert client.plan(cache, rows=256, keep_ratio=0.5).groups[0].kept_digest == digest
        neighbour.ending.set()
        neighbour.join()
    assert not neighbour.error
    assert [pid for pid in pids if pid not in [daemon.pid, *daemon.gates()]] == [], "a gate was replaced for nothing"


def test_a_deadline_of_the_past_is_told_so(daemon: Daemon) -> None:
    """What a client with a clock of its own would get if it did not look at Welcome."""
    with chunkkv.Client(daemon.prefix()) as client:
        session = client._connection.session
        object.__setattr__(session, "clock_offset_ns", -30 * 10**9)
        with pytest.raises(chunkkv.ChunkkvError) as caught:
            client.ping()
        assert caught.value.code == Code.EXPIRED


@pytest.mark.tries(24)
def test_no_time_that_matters_is_read_off_the_wall() -> None:
    """A step of CLOCK_REALTIME can make nothing expire that never asks for it."""
    wall = re.compile(r"CLOCK_REALTIME|gettimeofday\(|[^_a-z]time\(NULL|time\.time\(")
    allowed = {"daemon/closer.c"}  # how long the end of the process waits for a thread that hangs
    sources = [path for folder in ("base", "ipc", "proto", "kernels", "daemon", "clients/c/src", "clients/python/src")
               for path in (ROOT / folder).rglob("*.[chp]*") if path.suffix in (".c", ".h", ".py")]
    found = {str(path.relative_to(ROOT)) for path in sources if wall.search(path.read_text())}
    assert found <= allowed, found - allowed
