#!/usr/bin/env python3
"""The main job on real tensors in the memory of a GPU, visibly: what `make demo` shows, with a CUDA engine in C.

Starts chunkkvd with its CUDA backend in a private directory, and another process, the engine examples/compress_cuda.c,
that uploads the cache of SmolLM2 on a chapter with one planted sentence, exports it as a CUDA IPC handle, has it
compressed in place to 10, 20 and 30 %, and compares every row on the device with what the answers name.  Shows the kept
text.  Where there is no GPU it runs on the stand-in for the driver (tests/fake), and says so.  Exits with 1 if a row is
wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))

import demo
import numpy as np

ENGINE_SECONDS = 600.0
STAND_IN = """\
This runs on the STAND-IN for the CUDA driver, without a GPU.  Device memory is shared memory of this machine, and an
emulator runs the source of the kernels on the CPU.  What it shows is handles, order and rows; its times mean nothing.
"""
PROBE = """\
import ctypes, sys
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
sys.exit(driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value < 1)
"""


@dataclass
class Layer:
    """The kept rows of a layer, as half-open ranges and one by one."""

    kept: list[tuple[int, int]]

    @property
    def rows(self) -> np.ndarray:
        """Kept rows, ascending."""
        return np.concatenate([np.arange(first, end) for first, end in self.kept])


def gpu_is_here() -> bool:
    """Does a driver start here and have a GPU?  Asked in another process, as drivers do not like to be forked."""
    return subprocess.run([sys.executable, "-c", PROBE], stderr=subprocess.DEVNULL, check=False).returncode == 0


def daemon_program(build: Path, gpu: bool) -> Path:
    """The daemon; one built with CUDA=0 has no images, and then the stand-in takes those of chunkkvd-standin."""
    version = subprocess.run([build / "chunkkvd", "--version"], capture_output=True, text=True, check=True).stdout
    if "images for GPUs: none" not in version:
        print(version.splitlines()[1])
        return build / "chunkkvd"
    if gpu and not gpu_is_here():
        raise SystemExit("there is no GPU here: no driver starts that has one; --driver stand-in runs without")
    if gpu:
        raise SystemExit("chunkkvd was built with CUDA=0, and a GPU wants images: tools/setup cuda, make demo-cuda")
    print("images for GPUs: none; the stand-in needs none")
    return build / "chunkkvd-standin"


def answers_in(output: str, text: demo.Text) -> dict[float, SimpleNamespace]:
    """What the engine printed, in the form that make demo shows."""
    answers: dict[float, SimpleNamespace] = {}
    for line in output.splitlines():
        if begin := re.match(r"kept (\d+) of \d+ rows in (\d+) us, (\d+) bytes moved", line):
            rows, took, moved = map(int, begin.groups())
            answer = SimpleNamespace(physical_len=rows, timing=SimpleNamespace(total_us=took),
                                     groups=[SimpleNamespace(bytes_moved=moved)], layers={})
            answers[demo.RATIOS[len(answers)]] = answer
        elif layer := re.match(r"  layer (\d+):((?: \d+-\d+)+)$", line):
            kept = [tuple(map(int, part.split("-"))) for part in layer[2].split()]
            answer.layers[text.layers[int(layer[1])]] = Layer(kept)
    return answers


def show(text: demo.Text, answers: dict[float, SimpleNamespace]) -> None:
    """The kept text, and the table."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for answer in answers.values():
        best = max(text.layers, key=lambda layer: demo.needle_rows(answer.layers[layer].rows))
        demo.show(text, answer, best, colour)
    demo.show_table(text, answers)


def ran_on(device: str) -> str:
    """What the engine's line of its device means: a driver may be the stand-in, whoever chose it."""
    if "stand-in" in device:
        return "This ran on the STAND-IN for the driver, without a GPU."
    if device:
        return "This ran on a GPU, by its own driver."
    return "This ran on no device: the engine did not get that far."


def run_engine(build: Path, prefix: str) -> tuple[int, str]:
    """The engine's process from start to end; 1 if anything is wrong, and its line of the device."""
    engine = subprocess.run(
        [build / "compress-cuda", demo.DATA.with_suffix(".safetensors"), *map(str, demo.RATIOS)], capture_output=True,
        text=True, timeout=ENGINE_SECONDS, check=False, env={**os.environ, "CHUNKKV_ENDPOINT": prefix})
    sys.stderr.write(engine.stderr)
    lines = engine.stdout.splitlines()
    if not lines or not lines[0].startswith("device: "):
        return 1, ""
    print(f"the engine: {lines[0]}")
    text = demo.load()
    answers = answers_in(engine.stdout, text)
    if len(answers) == len(demo.RATIOS):
        show(text, answers)
    wrong = [int(n) for n in re.findall(r"^  (\d+) of \d+ rows on the device are not those", engine.stdout, re.M)]
    if engine.returncode or len(wrong) != len(demo.RATIOS):
        print(f"\nWRONG: {sum(wrong)} rows differ" if sum(wrong) else "\nthe engine did not end as it should")
        return 1, lines[0]
    print(f"\nall rows of {len(wrong)} compressions, read back from the device, are bit for bit what the answers name")
    return 0, lines[0]


def run_demo(build: Path, gpu: bool) -> int:
    """Start the daemon, run the engine, stop the daemon; 1 if anything is wrong."""
    options = ["--backend", "cuda"]
    if not gpu:
        print(STAND_IN, end="")
        os.environ["LD_LIBRARY_PATH"] = str(build / "fake")
        # a sandbox lets the daemon read a driver where drivers are, and the stand-in is elsewhere
        options += ["--sandbox", "off"]
    with demo.private(daemon_program(build, gpu), "chunkkv-demo-", *options) as daemon:
        print(f"chunkkvd runs as process {daemon.pid}, sockets in {daemon.directory}")
        sys.stdout.flush()
        bad, device = run_engine(build, daemon.endpoint)
    print(ran_on(device))
    return bad


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    build = Path(os.environ.get("CHUNKKV_BUILD") or demo.ROOT / "build" / "release")
    parser.add_argument("--build", type=Path, default=build, help="where chunkkvd was built")
    parser.add_argument("--driver", choices=("gpu", "stand-in"), help="default: gpu, if there is one")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` stops the daemon
    gpu = arguments.driver == "gpu" if arguments.driver else gpu_is_here()
    try:
        return run_demo(arguments.build.resolve(), gpu)
    except RuntimeError as error:  # of a daemon that does not start; its last line says why
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
