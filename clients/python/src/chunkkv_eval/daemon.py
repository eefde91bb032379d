"""A daemon to ask: the one at a given endpoint, or a private one that ends with the run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import chunkkv

READY_SECONDS = 20.0
STOP_SECONDS = 20.0


def find_program() -> Path:
    """chunkkvd of $CHUNKKV_BUILD, else of the path.

    Raises:
        FileNotFoundError: there is none.
    """
    build = os.environ.get("CHUNKKV_BUILD")
    found = shutil.which("chunkkvd", path=build) if build else shutil.which("chunkkvd")
    if found is None:
        raise FileNotFoundError(f"no chunkkvd in {build or 'the path'}; say where with --daemon, or name one that runs "
                                "with --endpoint")
    return Path(found).absolute()


def wait_ready(process: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    """Return when a daemon that was just started answers.

    Raises:
        RuntimeError: it ended, or does not answer in time; with what it logged.
    """
    end = time.monotonic() + READY_SECONDS
    while True:
        try:
            with chunkkv.Client(endpoint, timeout=2.0) as client:
                client.ping()
            return
        except chunkkv.ChunkkvError as error:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"chunkkvd is not ready: {error}\n{log.read_text(errors='replace')}") from error
        time.sleep(0.05)


@dataclass(frozen=True)
class Private:
    """A daemon of one's own.

    Attributes:
        endpoint: where it answers.
        pid: of its process.
        directory: of its sockets and log; removed with it.
    """

    endpoint: str
    pid: int
    directory: Path


@contextlib.contextmanager
def private(program: Path | None = None, prefix: str = "chunkkv-eval-", *options: str) -> Iterator[Private]:
    """Run a daemon in a directory of its own, whose name begins with `prefix`, to the end of the block."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    log = directory / "log"
    command = [str(program or find_program()), "--runtime-dir", str(directory), "--endpoint", "main", *options]
    if shutil.which("setpriv"):
        command = ["setpriv", "--pdeathsig", "TERM", *command]
    try:
        with log.open("ab") as stream:
            # in a process group of its own: Ctrl-C is for the caller, who stops the daemon in order
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, process_group=0)
        try:
            endpoint = str(directory / "main")
            wait_ready(process, endpoint, log)
            yield Private(endpoint, process.pid, directory)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def client(endpoint: str | None = None, program: Path | None = None) -> Iterator[chunkkv.Client]:
    """A session with the daemon at an endpoint; without one, with a private daemon."""
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(private(program)).endpoint if endpoint is None else endpoint
        yield stack.enter_context(chunkkv.Client(where, name="chunkkv-eval", timeout=120.0))
