"""The images for GPUs inside the daemon are those that it lists, and a kernel that takes too much fails the build."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from daemon import build_directory

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = [80, 86, 89, 90, 100, 120]
EM_CUDA = 190
NVCC_LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'ckv_k_{name}' for 'sm_{arch}'
ptxas info    : Function properties for ckv_k_{name}
    {stack} bytes stack frame, {stack} bytes spill stores, 0 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers
"""


def kernels() -> set[str]:
    """Names of all kernels, as the driver finds them."""
    text = (ROOT / "kernels/cuda/kernels.def").read_text()
    return {f"ckv_k_{name}" for name in re.findall(r"^KERNEL\((\w+)", text, re.MULTILINE)}


def images_in(program: bytes) -> Iterator[tuple[int, set[str]]]:
    """Architecture and kernels of each piece of machine code for GPUs in a program, from ELF header and sections."""
    at = program.find(b"\x7fELF\x02\x01", 1)
    while at >= 0:
        (machine,) = struct.unpack_from("<H", program, at + 18)
        if machine == EM_CUDA:
            (sections,) = struct.unpack_from("<Q", program, at + 40)
            (flags,) = struct.unpack_from("<I", program, at + 48)
            size, count, names = struct.unpack_from("<HHH", program, at + 58)
            headers = [struct.unpack_from("<IIQQQQ", program, at + sections + i * size) for i in range(count)]
            found = set()
            for name, *_ in headers:
                start = at + headers[names][4] + name
                found.add(program[start : program.index(b"\0", start)].decode())
            architecture = flags >> 8 & 0xFF if program[at + 8] >= 8 else flags & 0xFF
            yield architecture, {name.removeprefix(".text.") for name in found if name.startswith(".text.")}
        at = program.find(b"\x7fELF\x02\x01", at + 1)


def version() -> list[str]:
    """What chunkkvd --version prints."""
    program = build_directory() / "chunkkvd"
    return subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_images_listed_are_those_inside() -> None:
    program = (build_directory() / "chunkkvd").read_bytes()
    first, second = version()
    assert re.fullmatch(r"chunkkvd \d+\.\d+\.\d+", first)
    found = list(images_in(program))
    ptx = re.findall(rb"\.target sm_(\d+)\s*\n", program)
    if second == "images for GPUs: none, built with CUDA=0":
        assert not found
        assert not ptx
        return
    listed = re.fullmatch(
        r"images for GPUs: (?P<code>(?:sm_\d+ ?)+), PTX compute_80; (?P<compiler>(?:nvcc|nvrtc) \d+\.\d+\.\d+); "
        r"for drivers of series (?P<series>\d+) \(CUDA (?P<cuda>\d+)\.0\) or newer",
        second,
    )
    assert listed, second
    assert [int(name.removeprefix("sm_")) for name in listed["code"].split()] == ARCHITECTURES
    assert [architecture for architecture, _ in found] == ARCHITECTURES
    assert listed["cuda"] == listed["compiler"].split()[1].split(".")[0]
    assert listed["series"] == {"12": "525", "13": "580"}[listed["cuda"]]
    assert ptx == [b"80"]


def test_each_image_has_every_kernel_and_no_other() -> None:
    program = (build_directory() / "chunkkvd").read_bytes()
    found = list(images_in(program))
    if not found:
        assert version()[1].endswith("built with CUDA=0")
        return
    for architecture, names in found:
        assert names == kernels(), f"sm_{architecture}"
    entries = {name.decode() for name in re.findall(rb"\.visible \.entry (ckv_k_\w+)\(", program)}
    assert entries == kernels()


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/cuda-images with two kernels and a table of bounds of its own."""
    path = str(ROOT / "tools/cuda-images")
    spec = importlib.util.spec_from_loader("cuda_images", importlib.machinery.SourceFileLoader("cuda_images", path))
    assert spec
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    monkeypatch.setattr(module, "KERNELS", tmp_path / "kernels.def")
    monkeypatch.setattr(module, "BOUNDS", tmp_path / "registers.txt")
    module.KERNELS.write_text("KERNEL(one, score)\nKERNEL(two, score)\n")
    module.BOUNDS.write_text("# nothing\n")
    return module


def compile_of(tool: ModuleType, out: Path, stack: int = 0, registers: int = 40) -> None:
    """As if nvcc 13 had compiled both kernels; kernel one takes on sm_90 what is given."""
    logs = [
        NVCC_LOG.format(name=name, arch=arch, stack=taken[0], registers=taken[1])
        for arch in ARCHITECTURES
        for name in ("one", "two")
        for taken in [(stack, registers) if (name, arch) == ("one", 90) else (0, 40)]
    ]
    tool.write_resources("nvcc 13.0.88", out, logs)


def test_a_spill_fails_unless_it_is_listed(tool: ModuleType, tmp_path: Path) -> None:
    compile_of(tool, tmp_path)
    tool.check_resources("nvcc 13.0.88", tmp_path)
    compile_of(tool, tmp_path, stack=8)
    with pytest.raises(tool.Failed, match="ckv_k_one on sm_90: a stack frame of 8 bytes, 8 bytes of spill stores"):
        tool.check_resources("nvcc 13.0.88", tmp_path)
    tool.BOUNDS.write_text("spills nvcc 13.0.88 ckv_k_two\nspills nvrtc 12.8.93 ckv_k_one\n")
    with pytest.raises(tool.Failed):
        tool.check_resources("nvcc 13.0.88", tmp_path)
    tool.BOUNDS.write_text("spills nvcc 13.0.88 ckv_k_two ckv_k_one  # until it is mended\n")
    tool.check_resources("nvcc 13.0.88", tmp_path)


def test_registers_are_bounded_for_the_compiler_they_were_measured_with(tool: ModuleType, tmp_path: Path) -> None:
    bound = "nvcc 13.0.88 ckv_k_{} 40 40 40 40 40 40\n"
    tool.BOUNDS.write_text(bound.format("one") + bound.format("two"))
    compile_of(tool, tmp_path, registers=40)
    tool.check_resources("nvcc 13.0.88", tmp_path)
    compile_of(tool, tmp_path, registers=41)
    with pytest.raises(tool.Failed, match=r"ckv_k_one on sm_90: 41 registers, and .* allows 40"):
        tool.check_resources("nvcc 13.0.88", tmp_path)
    tool.check_resources("nvcc 13.1.5", tmp_path)


def test_every_kernel_has_bounds_for_both_compilers(tool: ModuleType, tmp_path: Path) -> None:
    tool.BOUNDS = ROOT / "kernels/cuda/registers.txt"
    for compiler in ("nvcc 13.0.88", "nvrtc 12.8.93"):
        bounds = tool.Bounds(compiler)
        assert {kernel for kernel, _ in bounds.registers} == kernels(), compiler
        assert not bounds.may_spill


def test_a_log_that_says_nothing_of_a_kernel_fails(tool: ModuleType, tmp_path: Path) -> None:
    logs = [NVCC_LOG.format(name="one", arch=arch, stack=0, registers=40) for arch in ARCHITECTURES]
    with pytest.raises(tool.Failed, match="does not speak of the kernels"):
        tool.write_resources("nvcc 13.0.88", tmp_path, logs)


def test_machine_code_of_another_architecture_is_refused(tool: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "sm_90.cubin"
    for abi, flags in [(7, 0x5A055A), (8, 0xA005A04)]:
        head = bytearray(64)
        head[:9] = b"\x7fELF\x02\x01\x01\x41" + bytes([abi])
        struct.pack_into("<H", head, 18, EM_CUDA)
        struct.pack_into("<I", head, 48, flags)
        path.write_bytes(head)
        tool.check_machine_code(path, 90)
        with pytest.raises(tool.Failed, match="machine 190, sm_90"):
            tool.check_machine_code(path, 80)


@pytest.mark.parametrize(("environment", "expected"), [
    ({"MAKEFLAGS": " -j2 --jobserver-auth=3,4"}, 2),
    ({"MAKEFLAGS": "kw -j13 --jobserver-auth=fifo:/tmp/x -- CUDA=1 O=a-j9 -j7"}, 13),
    ({"MAKEFLAGS": ""}, 1),
    ({"MAKEFLAGS": "rR --no-print-directory"}, 1),
    ({"MAKEFLAGS": " -j"}, len(os.sched_getaffinity(0))),
    ({}, len(os.sched_getaffinity(0))),
    ({"CUDA_JOBS": "3"}, 3),
    ({"CUDA_JOBS": "3", "MAKEFLAGS": " -j2"}, 3),
])
def test_as_many_compilers_as_make_was_told(tool: ModuleType, environment: dict[str, str], expected: int) -> None:
    assert tool.jobs(environment) == expected


@pytest.mark.parametrize("jobs", ["0", "-1", "two", "1.5"])
def test_a_number_of_compilers_that_is_none(tool: ModuleType, jobs: str) -> None:
    with pytest.raises(tool.Failed, match=f'CUDA_JOBS must be a number above 0, is "{jobs}"'):
        tool.jobs({"CUDA_JOBS": jobs})


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Of a checkout what chooses the compiler; its tools/setup only leaves a mark."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/cuda-compiler", tmp_path / "tools")
    shutil.copy(ROOT / "kernels/cuda/images.mk", tmp_path)
    script(tmp_path / "tools/setup", "touch installed")
    return tmp_path


def script(path: Path, line: str) -> None:
    """A shell script of one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def say_cuda(checkout: Path, *variables: str, **environment: str) -> str:
    """What `make all` says of images, with no compiler on PATH unless one is given."""
    kept = {"LANG": os.environ.get("LANG", "C")}
    bare = checkout / "bare"
    bare.mkdir(exist_ok=True)
    for name in ("sh", "sed", "touch", "dirname"):
        if not (bare / name).exists():
            (bare / name).symlink_to(shutil.which(name) or name)
    path = os.pathsep.join([*filter(None, [environment.get("PATH")]), str(bare)])
    make = [shutil.which("make") or "make", "--no-print-directory", "-f", "images.mk", "say-cuda", *variables]
    environment = {**kept, **environment, "PATH": path}
    done = subprocess.run(make, cwd=checkout, env=environment, check=True, capture_output=True, text=True)
    assert not done.stderr
    return done.stdout.strip()


def test_a_build_without_a_compiler_says_how_to_get_one_and_installs_none(checkout: Path) -> None:
    without = "CUDA=0: no images for GPUs: there is no {} to use, and `tools/setup {}` installs one"
    assert say_cuda(checkout) == without.format("nvcc", "cuda")
    assert say_cuda(checkout, "CUDA_COMPILER=nvrtc") == without.format("nvrtc", "nvrtc")
    assert say_cuda(checkout, "CUDA=0") == "CUDA=0: no images for GPUs"
    assert not (checkout / "installed").exists()


def nvcc(folder: Path, version: str) -> str:
    """A program that says that it is nvcc of this version."""
    script(folder / "bin/nvcc", f'echo "Cuda compilation tools, release {version[:4]}, V{version}"')
    return str(folder)


def test_the_compiler_of_cuda_home_comes_before_that_on_path(checkout: Path) -> None:
    home, path = nvcc(checkout / "home", "13.0.88"), nvcc(checkout / "path", "12.8.93") + "/bin"
    assert say_cuda(checkout, CUDA_HOME=home, PATH=path) == f"CUDA=1: images for GPUs by nvcc 13.0.88 ({home}/bin/nvcc)"
    assert say_cuda(checkout, PATH=path) == f"CUDA=1: images for GPUs by nvcc 12.8.93 ({path}/nvcc)"
    nowhere = f"CUDA=1: images for GPUs by nvcc 12.8.93 ({path}/nvcc); not used: CUDA_HOME=/nonexistent has no bin/nvcc"
    assert say_cuda(checkout, CUDA_HOME="/nonexistent", PATH=path) == nowhere


def test_a_compiler_that_is_too_old_is_named(checkout: Path) -> None:
    path = nvcc(checkout / "path", "12.4.131") + "/bin"
    assert say_cuda(checkout, PATH=path) == (
        "CUDA=0: no images for GPUs: there is no nvcc to use, and `tools/setup cuda` installs one; "
        f"not used: {path}/nvcc is 12.4.131, and 12.8 or newer is wanted"
    )
