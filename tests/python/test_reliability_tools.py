"""The tools that judge: what they call grown, missed, wrong; and that tests show every item of the list of tries."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import soak
import victim
from reliability_report import targets
from tries import CUDA, PROGRAMS, TRIES, Try

HERE = Path(__file__).parent


def test_every_try_is_shown_by_a_test() -> None:
    """Of Python; programs come on top.  What waits for CUDA says so by having none."""
    marked = {int(number) for path in HERE.glob("test_*.py")
              for words in re.findall(r"mark\.tries\(([\d, ]+)\)", path.read_text()) for number in words.split(",")}
    waiting = {n for n, item in TRIES.items() if item.waits == CUDA}
    assert sorted(TRIES) == list(range(1, 31))
    assert marked == set(TRIES) - waiting
    sources = (HERE.parent / "sources.mk").read_text()
    for name, numbers in PROGRAMS.items():
        assert re.search(rf"\b{name}\b", sources), f"{name} is no program"
        assert not waiting & set(numbers)


def test_outcome_of_a_try() -> None:
    item = Try("")
    assert item.outcome() == "not here"
    item.skipped.append("a")
    assert item.outcome() == "not here"
    item.passed = 1
    assert item.outcome() == "right"
    item.failed.append("b")
    assert item.outcome() == "wrong"


def test_percentile() -> None:
    assert victim.p([3.0, 1.0, 2.0], 0.5) == 2.0
    assert victim.p([float(n) for n in range(1, 101)], 0.99) == 99.0
    assert victim.p([1.0], 0.99) == 1.0


def test_ratio_is_that_of_neighbouring_turns() -> None:
    """A machine that becomes slower in the middle changes nothing."""
    alone = [[1.0], [1.0], [1.0], [10.0], [10.0], [10.0], [10.0], [10.0], [10.0]]
    found = victim.figures({"alone": alone, "attack": [[1.5], [15.0], [90.0]], "greedy": [[2.0], [20.0], [20.0]],
                            "busy": [[1.0], [10.0], [10.0]]})
    assert (found["victim_p99_ratio"], found["greedy_p99_ratio"], found["busy_p99_ratio"]) == (1.5, 2.0, 1.0)
    assert found["victim_p99_ratio_spread"] == [1.5, 9.0]


def soaked(core_kib: Callable[[int], float], left: int = 0) -> dict[str, Any]:
    held = dict.fromkeys(soak.MORE, 1000)
    series = {name: [1000.0] * 100 for name in soak.MORE}
    series["core_kib"] = [core_kib(n) for n in range(100)]
    return {"series": series, "before": held, "after": {**held, "core_descriptors": 1000 + left}}


def test_what_has_grown() -> None:
    assert soak.grown(soaked(lambda n: 50_000 + 20 * (n % 7))) == []
    assert soak.grown(soaked(lambda n: min(50_000, 5000 * n))) == [], "that it fills at first is no growth"
    assert soak.grown(soaked(lambda n: 50_000 + 500 * n))[0].startswith("core_kib grew")
    assert soak.grown(soaked(lambda n: 50_000, left=1))[0].startswith("core_descriptors was 1000, is 1001")


GOOD = {"fuzz": {"executions": 5, "crashes": 0, "line_coverage": 0.9}, "kill": {"points": 20, "seeds": 50, "lost": 0},
        "victim_p99_ratio": 2.0, "greedy_p99_ratio": 3.0, "reclaim_p99_s": 1.0, "restart_ready_s": 3.0,
        "tries": {"total": 26, "right": 26}, "exposure": 0.5}


def missed(report: dict[str, Any]) -> int:
    return sum(not target.hit for target in targets(report))


def test_targets() -> None:
    assert missed(GOOD) == 0
    for key, bad in (("fuzz", {"crashes": 1}), ("fuzz", {"executions": 0}), ("kill", {"lost": 1}),
                     ("kill", {"points": 19}), ("kill", {"seeds": 49}),
                     ("kill", {"never": 1}), ("tries", {"right": 25}),
                     ("tries", {"total": 0, "right": 0})):
        report = copy.deepcopy(GOOD)
        report[key].update(bad)  # type: ignore[attr-defined]
        assert missed(report) == 1, (key, bad)
    for key in ("victim_p99_ratio", "greedy_p99_ratio", "reclaim_p99_s", "restart_ready_s", "exposure"):
        assert missed({**GOOD, key: GOOD[key] + 0.1}) == 1  # type: ignore[operator]
        assert missed({**GOOD, key: None}) == 1, "a figure that is not there is a miss"


@pytest.mark.parametrize("name", ["core_kib", "gates_descriptors"])
def test_plot_is_a_picture(name: str, tmp_path: Path) -> None:
    series = {key: [1.0, 2.0] for key in (*soak.MORE, "seconds", "victim_p50_ms", "victim_p99_ms")}
    series[name] = [0.0, 0.0]
    soak.plot(series, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text.count("<polyline") == 7
    assert text.endswith("</svg>\n")
