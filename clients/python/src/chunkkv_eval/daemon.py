"""A daemon to ask: the one at a given endpoint, or a private one that ends with the run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import chunkkv

READY_SECONDS = 20.0
STOP_SECONDS = 20.0
OWNED = "owned-"  # in the name of a directory whose owner holds a lock on it
FRESH = 60.0  # seconds in which an owner may not have come to lock it


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


def wait_ready(process: subprocess.Popen[bytes], program: Path, endpoint: str, log: Path) -> None:
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
            ended = process.poll()
            if ended is None and time.monotonic() < end:
                time.sleep(0.05)
                continue
            what = (f"has not answered in {READY_SECONDS:.0f} s ({error})" if ended is None else
                    f"ended with status {ended} before it answered" if ended >= 0 else
                    f"was ended by signal {-ended} before it answered")
            said = log.read_text(errors="replace").strip()
            raise RuntimeError(f"{program} {what}" + (f": {said}" if said else ", and said nothing")) from error


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


def remove_stale(prefix: str, ours: Path) -> None:
    """Remove directories of `private`, older than ours, whose process was killed: the lock that it held is free."""
    now = ours.stat().st_mtime
    for path in ours.parent.glob(f"{prefix}{OWNED}*"):
        with contextlib.suppress(OSError):  # somebody else's, or gone by now
            place = path.lstat()
            if not stat.S_ISDIR(place.st_mode) or place.st_uid != os.getuid() or now - place.st_mtime < FRESH:
                continue
            held = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(held)


@contextlib.contextmanager
def private(program: Path | None = None, prefix: str = "chunkkv-eval-", *options: str) -> Iterator[Private]:
    """Run a daemon in a directory of its own, whose name begins with `prefix`, to the end of the block."""
    program = program or find_program()
    directory = Path(tempfile.mkdtemp(prefix=f"{prefix}{OWNED}"))
    remove_stale(prefix, directory)
    log = directory / "log"
    command = [str(program), "--runtime-dir", str(directory), "--endpoint", "main", *options]
    if shutil.which("setpriv"):
        command = ["setpriv", "--pdeathsig", "TERM", *command]
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with log.open("ab") as stream:
            # in a process group of its own: Ctrl-C is for the caller, who stops the daemon in order
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, process_group=0)
        try:
            endpoint = str(directory / "main")
            wait_ready(process, program, endpoint, log)
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
        os.close(held)


@contextlib.contextmanager
def client(endpoint: str | None = None, program: Path | None = None) -> Iterator[chunkkv.Client]:
    """A session with the daemon at an endpoint; without one, with a private daemon."""
    with contextlib.ExitStack() as stack:
        where = stack.enter_context(private(program)).endpoint if endpoint is None else endpoint
        yield stack.enter_context(chunkkv.Client(where, name="chunkkv-eval", timeout=120.0))
