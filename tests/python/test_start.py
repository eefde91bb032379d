"""Starts that cannot be: each ends with status 1 and a sentence, and leaves nothing in the way of the next one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from daemon import build_directory

SECONDS = 30


def start(directory: Path, *before: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end, through another program if given."""
    return subprocess.run([*before, str(build_directory() / "chunkkvd"), "--runtime-dir", str(directory)],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.fixture(autouse=True)
def _build() -> None:
    if not (build_directory() / "chunkkvd").exists():
        pytest.skip(f"no daemon in {build_directory()}")


@pytest.mark.parametrize(("inodes", "sentence"), [
    (1, "START_FAILED"),  # not even the lock
    (2, "SOCKET_FAILED"),  # the lock, and no socket
    (3, "SOCKET_FAILED"),  # one socket of two
])
@pytest.mark.tries(23)
def test_full_runtime_directory(tmp_path: Path, inodes: int, sentence: str) -> None:
    # in a mount namespace of its own; the shell gives way to the daemon
    script = f'mount -t tmpfs -o size=64k,nr_inodes={inodes} none "$1" && shift && exec "$@"'
    before = ("unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path))
    if os.geteuid() or subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    ended = start(tmp_path, *before)
    assert ended.returncode == 1, ended.stderr
    line = next(line for line in ended.stderr.splitlines() if sentence in line)
    assert "No space left on device" in line
    assert str(tmp_path) in line


@pytest.mark.parametrize(("call", "what"), [("seccomp", "Function not implemented"),
                                            ("landlock_restrict_self", "Operation not permitted")])
def test_no_sandbox_no_start(tmp_path: Path, call: str, what: str) -> None:
    error = {"Function not implemented": "ENOSYS", "Operation not permitted": "EPERM"}[what]
    before = ("strace", "-o", "/dev/null", "-e", f"inject={call}:error={error}")
    if build_directory().name.endswith(("tsan", "asan")):
        pytest.skip("no sandbox under a sanitizer")
    if not shutil.which("strace") or subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs strace")
    ended = start(tmp_path, *before)
    assert ended.returncode == 1, ended.stderr
    assert "the sandbox cannot be set up" in ended.stderr
    assert "--sandbox off runs without" in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock"]
