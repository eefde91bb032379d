"""Starting, watching and ending a chunkkvd; used by the fixtures and by tools."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import chunkkv

READY_SECONDS = 20.0
STOP_SECONDS = 20.0
ROOT = Path(__file__).resolve().parents[2]


def build_directory() -> Path:
    """Where the daemon was built: $CHUNKKV_BUILD, else build/release."""
    given = os.environ.get("CHUNKKV_BUILD")
    path = Path(given) if given else ROOT / "build" / "release"
    return path if path.is_absolute() else ROOT / path


def is_sanitizer_build() -> bool:
    """Was what is tested built with a sanitizer?"""
    settings = build_directory() / "settings"
    return settings.exists() and "-fsanitize" in settings.read_text()


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`, whichever of its threads made them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue  # the thread ended meanwhile
    return found


def is_alive(pid: int) -> bool:
    """True for a process that is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@dataclass(frozen=True)
class Usage:
    """What the core holds."""

    descriptors: int
    mappings: int
    memfd_mappings: int  # without control pages, which live with their connections
    rss_kib: int


class Daemon:
    """A chunkkvd with sockets in a private directory."""

    def __init__(self, endpoints: tuple[str, ...] = ("main",), options: tuple[str, ...] = (),
                 program: str = "chunkkvd", environment: Mapping[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="chunkkv-"))
        self._endpoints, self._options, self._program = endpoints, options, program
        self.environment = dict(environment or {})  # of the next start, beside that of the tests
        self._seen: set[int] = set()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it and wait until every endpoint answers."""
        binary = build_directory() / self._program
        # should the tests be killed, the daemon goes with them
        arguments = ["setpriv", "--pdeathsig", "TERM", str(binary), "--runtime-dir", str(self.directory)]
        for name in self._endpoints:
            arguments += ["--endpoint", name]
        self._log = (self.directory / "log").open("ab")
        self.process = subprocess.Popen([*arguments, *self._options], stdin=subprocess.DEVNULL, stdout=self._log,
                                        stderr=self._log, env=os.environ | self.environment)
        try:
            for name in self._endpoints:
                self._wait_ready(name)
        except BaseException:
            self.stop(check=False)
            raise
        self._seen.update([self.pid, *self.gates()])

    @property
    def pid(self) -> int:
        """Of the core."""
        assert self.process is not None
        return self.process.pid

    def prefix(self, endpoint: str = "main") -> str:
        """What a client takes as endpoint."""
        return str(self.directory / endpoint)

    def gates(self) -> list[int]:
        """Pids of the gates."""
        found = children(self.pid)
        self._seen.update(found)
        return found

    def usage(self) -> Usage:
        """What the core holds now."""
        maps = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        status = Path(f"/proc/{self.pid}/status").read_text()
        rss = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        memfds = [line for line in maps if "memfd:" in line and "memfd:chunkkv-control" not in line]
        return Usage(len(os.listdir(f"/proc/{self.pid}/fd")), len(maps), len(memfds),
                     int(rss.split()[1]))

    def log(self) -> str:
        """What it has written."""
        return (self.directory / "log").read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL the core, and wait for its end."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(STOP_SECONDS)

    def stop(self, check: bool = True) -> None:
        """SIGTERM it; `check` that it ended by itself with 0 and left no process behind.  Then remove everything."""
        process, self.process = self.process, None
        code: int | None = None
        left: list[int] = []
        if process is not None:
            if process.poll() is None:
                self._seen.update(children(process.pid))
                process.terminate()
            try:
                code = process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS)
            left = self._wait_gone()
        self._log.close()
        log = self.log()
        shutil.rmtree(self.directory, ignore_errors=True)
        if check:
            assert code == 0, f"chunkkvd ended with {code} on SIGTERM:\n{log}"
            assert not left, f"processes left behind: {left}"

    def restart(self) -> None:
        """Kill the core and start another on the same sockets."""
        self.kill()
        assert not self._wait_gone(), "a gate outlived its core"
        self._log.close()
        self.start()

    def _wait_ready(self, endpoint: str) -> None:
        assert self.process is not None
        end = time.monotonic() + READY_SECONDS
        while True:
            try:
                with chunkkv.Client(self.prefix(endpoint), timeout=2.0) as client:
                    client.ping()
                return
            except (chunkkv.DaemonUnavailable, chunkkv.Draining, chunkkv.SessionLost) as error:
                if self.process.poll() is not None or time.monotonic() > end:
                    raise AssertionError(f"chunkkvd is not ready: {error}\n{self.log()}") from error
            time.sleep(0.02)

    def _wait_gone(self) -> list[int]:
        """Those of our processes that are still there after a while; they are killed."""
        end = time.monotonic() + STOP_SECONDS
        left = [pid for pid in self._seen if is_alive(pid)]
        while left and time.monotonic() < end:
            time.sleep(0.02)
            left = [pid for pid in left if is_alive(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self._seen.clear()
        return left
