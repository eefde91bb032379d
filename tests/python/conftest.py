"""Fixtures: a daemon for a module, one of its own for a test, a client."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# matrices here are small: threads would only wait for one another, and worst on a busy machine
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "clients" / "python" / "src"), str(Path(__file__).parent)]

import chunkkv  # noqa: E402
import cuda_engine  # noqa: E402
from daemon import Daemon, build_directory  # noqa: E402

LONGEST_TEST = 300.0  # seconds; the slowest one kills 100 gates, and takes 100 s because the core restarts one a second


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tries(n, ...): shows the right outcome of these items of tries.py")


@pytest.fixture(autouse=True)
def _bounded_time() -> Iterator[None]:
    """A test that hangs ends the whole run, and shows where."""
    faulthandler.dump_traceback_later(LONGEST_TEST, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def _require_build() -> None:
    if (build_directory() / "chunkkvd").exists():
        return
    if os.environ.get("CHUNKKV_BUILD"):
        pytest.fail(f"$CHUNKKV_BUILD holds no chunkkvd: {build_directory()}")
    pytest.skip(f"no daemon in {build_directory()}: run make all")


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for all tests of a module; it must survive them and end cleanly."""
    _require_build()
    running = Daemon()
    yield running
    running.stop()


@pytest.fixture
def new_daemon() -> Iterator[Callable[..., Daemon]]:
    """Daemons of the test's own: new_daemon(endpoints=..., options=...)."""
    _require_build()
    made: list[Daemon] = []

    def make(*args: object, **kwargs: object) -> Daemon:
        made.append(Daemon(*args, **kwargs))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for running in made:
        running.stop()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[chunkkv.Client]:
    """A session with the module's daemon."""
    with chunkkv.Client(daemon.prefix()) as connected:
        yield connected


@pytest.fixture(scope="module")
def gpu() -> Iterator[Daemon]:
    """As daemon(), with the stand-in for a GPU."""
    running = cuda_engine.start()
    yield running
    running.stop()


@pytest.fixture
def gpu_client(gpu: Daemon) -> Iterator[chunkkv.Client]:
    """A session with that daemon."""
    with chunkkv.Client(gpu.prefix()) as connected:
        yield connected


@pytest.fixture
def new_gpu() -> Iterator[Callable[..., Daemon]]:
    """Such daemons of the test's own: new_gpu(*options, **faults); one that has ended by itself was meant to."""
    made: list[Daemon] = []

    def make(*options: str, **faults: str) -> Daemon:
        made.append(cuda_engine.start(*options, **faults))
        return made[-1]

    yield make
    for running in made:
        running.stop(check=running.process is not None and running.process.poll() is None)
