"""How many worker threads there are, and which CPUs they are held to."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon import Daemon, build_directory
from test_cpu_path import device_of

SECONDS = 20.0


def masks_of(daemon: Daemon) -> list[set[int]]:
    """The CPUs that each worker may run on."""
    assert daemon.process
    found = []
    for task in Path(f"/proc/{daemon.process.pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "ckv-cpu-work":
            found.append(os.sched_getaffinity(int(task.name)))
    return found


def until_held(daemon: Daemon, count: int, each: int) -> list[set[int]]:
    """Workers hold themselves as they begin: their masks once all have so many CPUs."""
    end = time.monotonic() + SECONDS
    masks = masks_of(daemon)
    while (len(masks) != count or any(len(mask) != each for mask in masks)) and time.monotonic() < end:
        time.sleep(0.01)
        masks = masks_of(daemon)
    return masks


@pytest.mark.parametrize("pin", ["core", "node", "off", "auto"])
def test_masks(new_daemon: Callable[..., Daemon], pin: str) -> None:
    own = os.sched_getaffinity(0)
    running = new_daemon(options=("--pin", pin, "--threads", "4"))
    nodes = [path for path in Path("/sys/devices/system/node").glob("node*/cpulist") if path.read_text().strip()]
    if len(nodes) > 1 and pin in {"auto", "node"}:
        pytest.skip("this machine has several nodes of memory: test_cpu_nodes knows what to expect of those")
    masks = until_held(running, 3, 1 if pin == "core" else len(own))
    assert len(masks) == 3
    for mask in masks:
        assert len(mask) == (1 if pin == "core" else len(own))
        assert mask <= own


def test_a_mask_makes_fewer_threads(new_daemon: Callable[..., Daemon]) -> None:
    own = os.sched_getaffinity(0)
    one = {min(own)}
    os.sched_setaffinity(0, one)
    try:
        running = new_daemon(options=("--pin", "core"))
    finally:
        os.sched_setaffinity(0, own)
    assert re.search(r"\b1 thread\b", device_of(running))
    assert masks_of(running) == []


def test_no_such_pin(tmp_path: Path) -> None:
    ended = subprocess.run([build_directory() / "chunkkvd", "--runtime-dir", tmp_path, "--pin", "cpu"],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert "--pin is cpu; it may be auto, off, node or core" in ended.stderr
