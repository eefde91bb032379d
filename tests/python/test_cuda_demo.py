"""tools/demo_cuda.py says in a sentence why it cannot run, and calls nothing a GPU that is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from daemon import build_directory

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "needle-1k.safetensors"
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


@pytest.mark.parametrize(("here", "words"), [(False, "there is no GPU here.*--driver stand-in"),
                                             (True, "make demo-cuda")])
def test_a_gpu_that_is_asked_for_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool, words: str
) -> None:
    """Images are advised only where there is a GPU to load them."""
    script(tmp_path / "chunkkvd", DAEMON.replace("sm_90", "none"))
    monkeypatch.setattr(demo_cuda, "gpu_is_here", lambda: here)
    with pytest.raises(SystemExit, match=words):
        demo_cuda.daemon_program(tmp_path, gpu=True)


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


# ---- the engine, examples/compress_cuda.c

needs_engine = pytest.mark.skipif(not (build_directory() / "compress-cuda").exists(), reason="built by make check-cuda")


def engine_refuses(*arguments: str | Path) -> str:
    """What the engine says, on the stand-in for the driver and without a daemon, in one line."""
    done = subprocess.run([build_directory() / "compress-cuda", *arguments], capture_output=True, text=True,
                          check=False, env={**os.environ, "LD_LIBRARY_PATH": str(build_directory() / "fake")})
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
    return done.stderr


@needs_engine
@pytest.mark.parametrize("ratio", ["0.2x", "abc", "", "-1", "0", "1.1", "nan", "0x1", " 0.2", "1e-1", "0.0000001"])
def test_a_ratio_that_is_none(ratio: str) -> None:
    assert engine_refuses(DATA, "0.2", ratio).startswith(f"RATIO {ratio}: must be a decimal number of at least 0.00")


@needs_engine
def test_a_file_that_is_none(tmp_path: Path) -> None:
    short, huge = tmp_path / "short", tmp_path / "huge"
    short.write_bytes(DATA.read_bytes()[:100000])
    huge.write_bytes(b"\xff" * 100000)
    for path in (Path("/dev/null"), short, huge):
        assert engine_refuses(path, "0.2") == f"{path}: no safetensors file of at least 7323648 bytes of tensors\n"
    assert engine_refuses(tmp_path, "0.2") == f"{tmp_path}: Is a directory\n"
    assert engine_refuses(tmp_path / "nope", "0.2") == f"{tmp_path}/nope: No such file or directory\n"
