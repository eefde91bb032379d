"""The code path of the CPU device: chosen by measurement, or by an operator; each keeps what the golden cases say."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chunkkv
from daemon import Daemon, build_directory
from test_golden import GROUPS, Bench, kept_of

PATHS = ["scalar", "avx2", "avx512", "avx512bf16", "amx"]
FEW = GROUPS[:: max(1, len(GROUPS) // 8)]  # of all golden cases: test_golden runs them all, on the path that was picked


def refused(name: str) -> str:
    """The log of a daemon that is asked for a path that it cannot take."""
    with tempfile.TemporaryDirectory() as directory:
        ended = subprocess.run([build_directory() / "chunkkvd", "--runtime-dir", directory, "--cpu-path", name],
                               stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1, ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if "BACKEND_FAILED" in line)
    assert f"--cpu-path is {name};" in line
    assert "READY" not in ended.stderr
    return line


@functools.cache
def usable() -> list[str]:
    """Paths that this machine can take, as the daemon lists them."""
    found = re.search(r'this machine can take: ([a-z0-9, ]*)"', refused("mmx"))
    assert found
    return found[1].split(", ")


def picks_of(daemon: Daemon) -> str:
    """What the log says of the paths in use; said once."""
    (picks,) = re.findall(r'CPU_PATHS paths="([^"]*)"', daemon.log())
    return picks


def ctl(daemon: Daemon, *words: str) -> str:
    """What chunkkvctl prints."""
    environment = {**os.environ, "CHUNKKV_ENDPOINT": daemon.prefix()}
    return subprocess.run([build_directory() / "chunkkvctl", *words], env=environment, capture_output=True, text=True,
                          timeout=60, check=True).stdout


def device_of(daemon: Daemon) -> str:
    """What chunkkvctl status says of the device."""
    return ctl(daemon, "status").splitlines()[0]


def test_measured(daemon: Daemon) -> None:
    picks = picks_of(daemon)
    assert re.search(r"CPU_PATHS .* tried_us=[1-9]", daemon.log())
    assert "CPU_PATH_WRONG" not in daemon.log()
    names = re.findall(r"(?:^|; )([a-z0-9]+)", picks)
    assert names
    assert set(names) <= set(usable())
    assert f", {'+'.join(names)}, " in device_of(daemon)


def code_paths_of(daemon: Daemon) -> list[dict[str, Any]]:
    """The picks, as chunkkvctl status --json has them."""
    return json.loads(ctl(daemon, "status", "--json"))["code_paths"]


def test_picks_of_each_shape(daemon: Daemon) -> None:
    """Types, head dimensions and queries are divided without gaps; log, both forms of status and the client agree."""
    entries = code_paths_of(daemon)
    types = [("bf16", "bf16"), ("bf16", None), ("f16", None), ("f32", None)]
    assert list(dict.fromkeys((e["key_dtype"], e["query_dtype"]) for e in entries)) == types
    for pair in types:
        own = [e for e in entries if (e["key_dtype"], e["query_dtype"]) == pair]
        widths = list(dict.fromkeys(tuple(e["head_dim"]) for e in own))
        counts = list(dict.fromkeys(tuple(e["queries"]) for e in own))
        assert [(tuple(e["head_dim"]), tuple(e["queries"])) for e in own] == [(d, q) for d in widths for q in counts]
        for ends in (widths, counts):
            assert ends[0][0] == 1
            assert ends[-1][1] is None
            assert [first for first, _ in ends[1:]] == [last + 1 for _, last in ends[:-1]]
    assert counts == [(1, 24), (25, 96), (97, None)]
    picks = picks_of(daemon)
    assert {e["path"] for e in entries} == set(re.findall(r"(?:^|; )([a-z0-9]+)", picks))
    cells = ctl(daemon, "status").partition("code paths")[2].splitlines()[2:]
    assert [word for line in cells for word in line.split()[3:]] == [e["path"] for e in entries]
    with chunkkv.Client(daemon.prefix(), needs_side=False) as client:
        told = client.code_paths()
    assert [(p.key_dtype.name.lower(), p.head_dim, p.queries, p.path) for p in told] == [
        (e["key_dtype"], tuple(e["head_dim"]), tuple(e["queries"]), e["path"]) for e in entries]
    assert {p.query_dtype for p in told} == {chunkkv.DType.BF16, chunkkv.DType.NONE}


@pytest.mark.parametrize("name", ["AVX2", "avx", "avx512 ", "best"])
def test_unknown(name: str) -> None:
    assert refused(name).rpartition("take: ")[2].rstrip('"').split(", ") == usable()


@pytest.mark.parametrize("name", PATHS)
def test_not_on_this_machine(name: str) -> None:
    assert usable() == [known for known in PATHS if known in usable()]
    assert usable()[0] == "scalar"
    if name in usable():
        pytest.skip("it is on this machine")
    refused(name)


def test_too_long(tmp_path: Path) -> None:
    ended = subprocess.run([build_directory() / "chunkkvd", "--runtime-dir", tmp_path, "--cpu-path", "x" * 17],
                           capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert "cpu-path" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_given_twice(tmp_path: Path) -> None:
    """Which of two values was meant nobody knows: the daemon does not start, and says which option it is."""
    words = ["--cpu-path", "scalar", "--rows", "9", "--cpu-path", "avx2"]
    ended = subprocess.run([build_directory() / "chunkkvd", "--runtime-dir", tmp_path, *words],
                           capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert '--cpu-path: is given twice, the second time as "avx2"' in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", PATHS)
def test_golden_on_each_path(new_daemon: Callable[..., Daemon], name: str) -> None:
    if name not in usable():
        pytest.skip("not on this machine")
    running = new_daemon(options=("--cpu-path", name))
    # what it does not take goes to the one before it
    used = [name, "avx512"] if name in ("avx512bf16", "amx") else [name]
    assert re.findall(r"(?:^|; )([a-z0-9]+)", picks_of(running)) == used
    assert f'option="--cpu-path {name}"' in running.log()
    assert f", {'+'.join(used)}, " in device_of(running)
    assert {e["path"] for e in code_paths_of(running) if e["query_dtype"]} == {name}
    with chunkkv.Client(running.prefix()) as client:
        bench = Bench(client)
        for _, cases in FEW:
            check(bench, cases)


def check(bench: Bench, cases: list[dict[str, Any]]) -> None:
    """Plan and compression keep the rows of the golden case."""
    file = bench.file(cases[0]["file"])
    request = bench.request(file, cases[0])
    kept = kept_of(bench.client.plan(file.cache, **request), file, cases)
    try:
        kept_of(bench.client.compress(file.cache, **request), file, cases)
        assert np.array_equal(file.everything, file.expected(kept, file.table))
    finally:
        file.everything[...] = file.pristine
