"""Whole requests to a daemon, through chunkkv-bench-request, and what processes used meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from daemon import Daemon, build_directory


def by_cpu_time() -> bool:
    """Is CPU time asked for, because neighbours never pause?"""
    return os.environ.get("BENCH_CPU") == "1"


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of all threads of some processes."""
    return sum(int(stat.read_text().split()[0]) for pid in pids
               for stat in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def delay_seconds(pids: Iterable[int]) -> float:
    """How long threads of some processes were ready to run and did not, all together."""
    return sum(int(stat.read_text().split()[1]) for pid in pids
               for stat in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _status(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.endswith(" kB")}


def own_bytes(pid: int) -> int:
    """Memory that a process holds and shares with nobody."""
    return _status(pid)["RssAnon"]


def own_peak(pid: int, work: Callable[[], Any]) -> int:
    """The most of it that a process held during some work, in bytes; shared memory must not grow meanwhile."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the kernel counts the peak anew
    work()
    after = _status(pid)
    return after["VmHWM"] - after["RssShmem"] - after["RssFile"]


def rows_said(command: list[str], name: str, environment: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """The JSON lines of a program as they come; ends everything if it fails, and it where the reader stops."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield json.loads(line)
        except BaseException:
            process.terminate()  # or its end would be waited for
            raise
    if process.returncode != 0:
        raise SystemExit(f"{name} ended with {process.returncode}")


class Requester:
    """A chunkkv-bench-request: caches of one layer each, compressed one at a time."""

    def __init__(self, daemon: Daemon, tokens: int, kv_heads: int, q_heads: int, dim: int, dtype: str, window: int,
                 chunk: int, profile: str, places: int, file: Path | None = None) -> None:
        command = [str(x) for x in (build_directory() / "chunkkv-bench-request", daemon.prefix(), tokens, kv_heads,
                                    q_heads, dim, dtype, window, chunk, profile, places, *([file] if file else []))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"chunkkv-bench-request ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def request(self, place: int) -> dict[str, Any]:
        """Compress one layer; times in ms and us."""
        return self._ask(str(place))

    def rows(self) -> list[int]:
        """Compress the first layer; the rows that were kept."""
        runs, at, rows = self._ask("0+")["runs"], 0, []
        for i, length in enumerate(runs):
            if i % 2:
                rows += range(at, at + length)
            at += length
        return rows

    def __enter__(self) -> Requester:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
