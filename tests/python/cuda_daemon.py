"""What tests of a daemon that serves the stand-in for a GPU have in common; its fixtures are in conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import chunkkv
import cuda_engine as engine
from chunkkv import Code
from daemon import Daemon, build_directory, is_sanitizer_build

MARKS = [
    pytest.mark.skipif(is_sanitizer_build(), reason="a library with a sanitizer cannot be loaded into Python"),
    pytest.mark.skipif(not (build_directory() / "chunkkvd-standin").exists(), reason="built by make check-cuda"),
]
LOST = 75  # exit status of a daemon whose device is at fault
MIB = 1 << 20
KEEP = [(8 * i + 4, 8 * i + 8) for i in range(engine.ROWS // 8)]  # in several steps
KEPT = np.concatenate([np.arange(*run) for run in KEEP])


def mapped(daemon: Daemon) -> int:
    """Memory of the stand-in that the daemon has mapped, its own scratch included."""
    return Path(f"/proc/{daemon.pid}/maps").read_text().count("memfd:fakecuda")


def status_of_end(daemon: Daemon) -> int:
    """Of a daemon that ends by itself."""
    assert daemon.process is not None
    return daemon.process.wait(20)


def refused(code: Code, field: str, call: Callable[[], object], words: str | None = None) -> chunkkv.ChunkkvError:
    """An error of this kind."""
    with pytest.raises(chunkkv.ChunkkvError, match=words) as caught:
        call()
    assert (caught.value.code, caught.value.field) == (code, field), caught.value
    return caught.value


def ends_lost(daemon: Daemon, client: chunkkv.Client) -> None:
    """The daemon ends, and another one without faults is started, to which the client comes again."""
    assert status_of_end(daemon) == LOST
    for name in ("FAKECUDA_FAULT", "FAKECUDA_HANG"):
        daemon.environment.pop(name, None)
    daemon.restart()
    client.reconnect()
