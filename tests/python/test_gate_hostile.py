"""A gate that was taken over: what it can make the core do, and what not (tests/hostile_gate.c)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

import chunkkv
from daemon import Daemon, build_directory, children, is_sanitizer_build
from test_gate_kill import ROWS, prepared

# what the core says of it when it kills the gate
BREACHES = {
    "garbage": "wrong magic or version", "version": "wrong magic or version", "type": "unknown type of record",
    "sequence": "wrong sequence number", "repeat": "wrong sequence number", "nobody": "no connection number",
    "ring-ahead": "impossible position in the ring", "ring-offset": "attachment not where it must be",
    "ring-end": "attachment not where it must be", "ring-long": "attachment too long",
    "ring-stray": "ring offset without an attachment", "counts": "impossible counts", "short": "malformed record",
}
SILENT = {"silent": "no answer to GATE_PING for 3 s"}
HARMLESS = ("strange", "flood")


@pytest.fixture
def make(new_daemon: Callable[..., Daemon]) -> Callable[..., Daemon]:
    program = build_directory() / "hostile_gate"
    if not program.exists():
        pytest.skip("no hostile gate: make check-programs builds it")

    def with_gates(*endpoints: str) -> Daemon:
        # the hostile program becomes the real gate for `main`, and the sandbox lets a gate execute nothing
        return new_daemon(endpoints=("main",), options=("--gate", str(program), "--sandbox", "off",
                                                        *(word for name in endpoints for word in ("--endpoint", name))))

    return with_gates


@pytest.mark.tries(29)
def test_breaches_end_the_gate_and_nothing_else(make: Callable[..., Daemon]) -> None:
    wrong = BREACHES | SILENT
    daemon = make(*wrong)
    with chunkkv.Client(daemon.prefix()) as client, prepared(client) as cache:
        end = time.monotonic() + 20
        waiting = set(wrong)
        while waiting:
            assert time.monotonic() < end, f"never killed: {waiting}\n{daemon.log()}"
            client.plan(cache, rows=ROWS, keep_ratio=0.5)
            lines = daemon.log().splitlines()
            waiting = {name for name in waiting
                       if not any(f"GATE_KILLED endpoint={name} " in line and wrong[name] in line for line in lines)}
        # and each has a successor
        while len(children(daemon.pid)) < 1 + len(wrong):
            assert time.monotonic() < end
            client.plan(cache, rows=ROWS, keep_ratio=0.5)
    assert "endpoint=main pid" in daemon.log()
    assert "GATE_DIED endpoint=main" not in daemon.log()


@pytest.mark.parametrize("what", HARMLESS)
@pytest.mark.tries(29)
def test_records_that_lie_are_refused(make: Callable[..., Daemon], what: str) -> None:
    daemon = make(what)
    times: list[float] = []
    with chunkkv.Client(daemon.prefix()) as client, prepared(client) as cache:
        before = daemon.usage()
        end = time.monotonic() + 4
        while time.monotonic() < end:
            start = time.monotonic()
            client.plan(cache, rows=ROWS, keep_ratio=0.5)
            times.append(time.monotonic() - start)
        after = daemon.usage()
    print(f"{what}: {len(times)} requests beside it, median {statistics.median(times) * 1000:.1f} ms, "
          f"longest {max(times) * 1000:.0f} ms")
    assert "GATE_DIED endpoint=main" not in daemon.log()
    assert max(times) < 1.0
    assert after.descriptors <= before.descriptors  # offers are closed beside the loop, perhaps after the first look
    # a sanitizer has maps of its own, which grow with its quarantine
    assert after.mappings <= before.mappings + (64 if is_sanitizer_build() else 4)
