"""Core, gate and engine are killed at every named point, and no cache is lost: kill_matrix.py, with few seeds.

$CHUNKKV_KILL_SEEDS says how many (5).  The daemon is a release build with points, whatever build the other tests
have, and is made here; with a build for a sanitizer it would be the same daemon once more, so that is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import kill_matrix
from kill_matrix import ENGINE_POINTS, Matrix, all_points, pairs

# the first test of a run makes a build
pytestmark = [pytest.mark.timeout(600), pytest.mark.tries(13)]
SEEDS = int(os.environ.get("CHUNKKV_KILL_SEEDS", "5"))


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    kill_matrix.skip_if_sanitized()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHUNKKV_BUILD", str(kill_matrix.make_build()))
        made = Matrix()
        yield made
        made.close()


def test_there_are_enough_points() -> None:
    assert len(all_points()) >= 20
    assert set(ENGINE_POINTS) <= set(all_points())


@pytest.mark.parametrize(("victim", "point"), pairs(all_points()))
@pytest.mark.tries(13)
def test_no_cache_is_lost(matrix: Matrix, victim: str, point: str) -> None:
    for seed in range(SEEDS):
        matrix.trial(victim, point, seed)
    lost, matrix.lost, never, matrix.never = matrix.lost, [], matrix.never, []
    assert not lost
    assert not never, "a point was never passed"
