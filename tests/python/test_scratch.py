"""With how little memory the CPU device scores: the same rows as ever."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import chunkkv
from daemon import Daemon, build_directory
from test_cpu_path import FEW, check
from test_golden import Bench


def test_golden_with_little(new_daemon: Callable[..., Daemon]) -> None:
    running = new_daemon(options=("--scratch", "64K"))
    with chunkkv.Client(running.prefix()) as client:
        bench = Bench(client)
        for _, cases in FEW:
            check(bench, cases)


@pytest.mark.parametrize("bytes_asked", ["63K", "65535", "64G1", "65G"])
def test_bounds(tmp_path: Path, bytes_asked: str) -> None:
    ended = subprocess.run([build_directory() / "chunkkvd", "--runtime-dir", tmp_path, "--scratch", bytes_asked],
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert f'--scratch: must be 64K to 64G bytes, is "{bytes_asked}"' in ended.stderr
