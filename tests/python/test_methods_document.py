"""docs/methods.md says what is: its tables, its commands, its C, its pictures, its pointers into the tests."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import chunkkv
from chunkkv import methods
from daemon import ROOT, Daemon, build_directory

NEEDLE = ROOT / "tests" / "data" / "needle-1k.safetensors"
DOCUMENT = (ROOT / "docs" / "methods.md").read_text()
SVG = "{http://www.w3.org/2000/svg}"


def load_tool() -> Any:
    """tools/methods.py, which is no package."""
    spec = importlib.util.spec_from_file_location("methods_tool", ROOT / "tools" / "methods.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()


def rows_of(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading."""
    text = DOCUMENT[DOCUMENT.index(f"\n## {heading}\n") :]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].splitlines()[2:]]


def test_tables_are_current() -> None:
    assert tool.filled(DOCUMENT) == DOCUMENT, "tools/methods.py write"


def test_readme_names_every_method() -> None:
    text = (ROOT / "README.md").read_text()
    named = re.findall(r"`([a-z0-9-]+)`", text[text.index("\n## Methods\n") :].split("\n## ")[1])
    assert [name for name in methods.METHODS if name not in named] == []


def test_sources_and_worked_examples_are_there() -> None:
    """Each method has its line, and each test that it points to exists."""
    rows = rows_of("Sources, and examples to check by hand")
    assert [row[0].strip("`") for row in rows] == [*methods.METHODS, "hybrid"]
    for row in rows:
        examples = re.findall(r"`(test_\w+)\.c`: ((?:`\w+`(?:, )?)+)", row[-1])
        assert examples, row
        for file, names in examples:
            code = (ROOT / "tests" / f"{file}.c").read_text()
            for name in re.findall(r"`(\w+)`", names):
                assert f"START_TEST({name})" in code, (file, name)


@pytest.fixture(scope="module")
def planned(daemon: Daemon) -> Any:
    """Kept sets of the file by a policy, as the Python client asks for them."""
    from chunkkv import safetensors

    tensors = safetensors.load(NEEDLE)
    with chunkkv.Client(daemon.prefix()) as client, chunkkv.SharedCache.allocate(
            client, layers=[10, 18], tokens=1024, kv_heads=3, q_heads=9, head_dim=64) as cache:
        for layer in (10, 18):
            for name in ("key", "value", "query"):
                getattr(cache, name)(layer)[...] = tensors[f"layer{layer}.{name}"]
        yield lambda policy, **more: client.plan(cache, rows=1024, keep_ratio=0.2, policy=policy, **more)


def run_plan(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    """What chunkkvctl says of layer 10."""
    return subprocess.run([build_directory() / "chunkkvctl", "plan", NEEDLE, "--endpoint", daemon.prefix(), "--layer",
                           "10", *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", [name for name in methods.METHODS if name not in ("h2o", "page", "snapkv-each")])
def test_chunkkvctl_asks_for_the_same(daemon: Daemon, planned: Any, name: str) -> None:
    """The options of the table give the rows that the method gives."""
    lengths = [7, 600, 400, 17] if name == "chunk-at" else None
    more = ["--chunk-lengths", "7,600,400,17"] if lengths else []
    done = run_plan(daemon, "--json", "--keep-ratio", "0.2", "--layer", "18", *tool.options_of(name), *more)
    assert done.returncode == 0, done.stderr
    answer = planned(methods.get(name), chunk_lengths=lengths)
    for layer in json.loads(done.stdout)["layers"]:
        assert [tuple(pair) for pair in layer["kept"]] == list(answer.layers[layer["layer"]].kept)


@pytest.mark.parametrize(("name", "words", "status"), [
    ("h2o", "send them all, or ask for selector token", 1), ("snapkv-each", "ask for IN_PLACE or COPY_OUT", 1),
    ("page", "", 0)])
def test_chunkkvctl_says_what_it_lacks(daemon: Daemon, name: str, words: str, status: int) -> None:
    """Methods that this file or a plan cannot serve: the daemon's sentence, with the option in front."""
    budget = [] if name == "h2o" else ["--keep-ratio", "0.2"]
    done = run_plan(daemon, *budget, *tool.options_of(name))
    assert done.returncode == status, done.stderr
    assert words in done.stderr


def test_chunkkvctl_lists_the_words(daemon: Daemon) -> None:
    """A word that is none: those that there are."""
    done = run_plan(daemon, "--keep-ratio", "0.2", "--selector", "tokens")
    assert done.returncode == 2
    assert "--selector tokens: must be one of chunk, chunk_at, token, streaming, h2o, chunk_eg, page" in done.stderr


def test_lengths_for_chunkkvctl(daemon: Daemon, tmp_path: Path) -> None:
    """The commands of the document, with this build and this Python."""
    block = re.search(r"^```sh\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert block
    commands = block[1].rstrip() + f" --endpoint {daemon.prefix()} --json"
    for path, here in (("build/venv/bin/python", sys.executable), ("build/lengths", tmp_path / "lengths"),
                       ("build/release", build_directory())):
        commands = commands.replace(path, str(here))
    done = subprocess.run(["sh", "-ec", commands], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert [layer["budget"] for layer in json.loads(done.stdout)["layers"]] == [204] * 8


def test_c_initializers_compile(tmp_path: Path) -> None:
    """The column for C is C."""
    source = tmp_path / "policies.c"
    source.write_text("#include <chunkkv.h>\nstruct chunkkv_policy all[] = {\n" + ",\n".join(
        f"/* {name} */ {tool.initializer_of(name)}" for name in methods.METHODS) + "\n};\n")
    include = ROOT / "clients" / "c" / "include"
    done = subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-I", include, source],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def texts_of(path: Path) -> list[str]:
    """What is written in a picture, but for numbers."""
    texts = [node.text or "" for node in ET.parse(path).getroot().iter(f"{SVG}text")]
    return [text for text in texts if not re.fullmatch(r"[\d./ ]+", text)]


def found_in(path: Path) -> list[list[float]]:
    """The numbers at the right."""
    texts = [node.text or "" for node in ET.parse(path).getroot().iter(f"{SVG}text")]
    return [[float(part) for part in text.split(" / ")] for text in texts if re.fullmatch(r"[\d./ ]+", text)]


def test_pictures_are_current(tmp_path: Path) -> None:
    """Drawn again they show the same methods with the same numbers, but for a row or so of a near tie."""
    done = subprocess.run([sys.executable, ROOT / "tools" / "methods.py", "write", tmp_path], capture_output=True,
                          text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    for name in ("methods.svg", "methods-layers.svg"):
        assert name in DOCUMENT
        assert texts_of(ROOT / "docs" / name) == texts_of(tmp_path / name)
        for drawn, now in zip(found_in(ROOT / "docs" / name), found_in(tmp_path / name), strict=True):
            assert drawn == pytest.approx(now, abs=1.0)
    shown = texts_of(ROOT / "docs" / "methods.svg")
    assert [text for text in shown if text in methods.METHODS] == list(methods.METHODS)
