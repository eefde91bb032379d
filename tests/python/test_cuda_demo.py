"""tools/demo_cuda.py says in a sentence why it cannot run, and calls nothing a GPU that is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import demo_cuda  # noqa: E402

DAEMON = """\
if [ "$1" = --version ]; then echo chunkkvd; echo 'images for GPUs: sm_90'; exit; fi
echo 'there is no NVIDIA driver' >&2
exit 1
"""
DEVICE = "device: {}; driver of CUDA 13.0; 1 bytes of its memory are the cache"


def script(path: Path, text: str) -> None:
    """A shell script."""
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def test_a_daemon_that_does_not_start_is_a_sentence(tmp_path: Path) -> None:
    script(tmp_path / "chunkkvd", DAEMON)
    command = [sys.executable, ROOT / "tools/demo_cuda.py", "--build", tmp_path, "--driver", "gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("there is no NVIDIA driver")
    assert "Traceback" not in done.stderr
    assert "This ran on" not in done.stdout


@pytest.mark.parametrize(("line", "said"), [
    (DEVICE.format("stand-in for a GPU"), "without a GPU"),
    (DEVICE.format("NVIDIA H100"), "on a GPU, by its own driver"),
    ("", "on no device"),
])
def test_the_device_is_what_the_engine_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    script(tmp_path / "compress-cuda", f"echo '{line}'\necho 'kv: no memory' >&2\nexit 1\n")
    assert demo_cuda.run_engine(tmp_path, "nowhere") == (1, line)
    assert said in demo_cuda.ran_on(line)
    assert "no memory" in capfd.readouterr().err
