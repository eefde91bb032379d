"""The scalar reference behind the same requests: random problems of every kind against the NumPy model.

The CPU path gets its own in test_random.py, test_selectors.py and test_methods.py; bench/random_problems.py asks both
as often as one likes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from daemon import ROOT, build_directory

sys.path.append(str(ROOT / "bench"))

import random_problems

PROBLEMS = 1000


@pytest.fixture(scope="module")
def reference() -> Iterator[random_problems.Side]:
    program = random_problems.PROGRAMS["reference"]
    if not (build_directory() / program).exists():
        pytest.skip(f"no {program} in {build_directory()}: run make check-programs")
    side = random_problems.Side(program)
    yield side
    side.close()


@pytest.mark.parametrize("number", range(PROBLEMS))
def test_reference(reference: random_problems.Side, number: int) -> None:
    reference.ask(number)
