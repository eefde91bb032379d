"""The examples that users read first do run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from daemon import ROOT, Daemon

SOURCE = str(ROOT / "clients" / "python" / "src")


def first_python_block(text: str) -> str:
    """The first block between ```python fences."""
    found = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found, "no python block"
    return found[1]


def run(daemon: Daemon, *arguments: str) -> str:
    """Run Python against the daemon, with nothing else in its environment than a user would have."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": SOURCE, "CHUNKKV_ENDPOINT": daemon.prefix()})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", ["README.md", "clients/python/README.md"])
def test_readme_example(daemon: Daemon, path: str) -> None:
    document = ROOT / path
    if not document.exists():
        pytest.skip(f"no {path} yet")
    code = first_python_block(document.read_text())
    assert len([line for line in code.splitlines() if line.strip()]) <= 14
    assert run(daemon, "-c", code).strip()


def test_compress_in_place_example(daemon: Daemon) -> None:
    assert "kept" in run(daemon, str(ROOT / "examples" / "compress_in_place.py"))


@pytest.mark.parametrize(("name", "words"), [("compress_again", "token 500 is"), ("split_scores", "both kept the")])
def test_examples_of_methods(daemon: Daemon, name: str, words: str) -> None:
    assert words in run(daemon, str(ROOT / "examples" / f"{name}.py"))


def test_package_docstring_names_only_what_exists() -> None:
    import chunkkv

    for name in re.findall(r"`([A-Z]\w+)`", chunkkv.__doc__ or ""):
        assert hasattr(chunkkv, name), name
    for name in chunkkv.__all__:
        assert hasattr(chunkkv, name), name
    assert Path(chunkkv.__file__).with_name("py.typed").exists()
