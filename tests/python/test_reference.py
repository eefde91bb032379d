"""The NumPy model against the golden file and the worked examples of the specification; needs no daemon."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import reference_numpy as ref
import tensors
from reference_numpy import Params


def rows_of(text: str) -> list[int]:
    """'0-3 20 22-27' as rows."""
    out: list[int] = []
    for word in text.split():
        first, _, last = word.partition("-")
        out += range(int(first), int(last or first) + 1)
    return out


def covered(case: dict[str, Any]) -> bool:
    return case["profile"] in ("default", "kvpress") and case.get("scorer") not in tensors.WITHOUT_MODEL


def test_golden_file_has_what_the_tests_ask_for() -> None:
    plain = [c for c in tensors.golden() if tensors.is_plain(c)]
    assert len(tensors.golden()) == 663
    assert len(plain) >= 300


@pytest.mark.parametrize("case", [c for c in tensors.golden() if covered(c)], ids=tensors.case_name)
def test_golden(case: dict[str, Any]) -> None:
    layer = tensors.load(case["file"])[case["layer"]]
    plan = ref.plan(*map(tensors.widen, (layer.query, layer.key, layer.value)), tensors.params(case))
    assert plan.ranges == case["kept"]
    assert len(plan.kept) == case["kept_count"]


def pattern(length: int) -> np.ndarray:
    j = np.arange(length)
    return ((j * j + 7 * j + 3) % 97).astype(np.float64)


STAGE = Params(chunk=10, window=1, sinks=4, recent=8, min_tokens=0)
EXAMPLES = [
    ("E1", 60, {"keep_ratio": 500000}, "0-3 20-27 30-39 52-59"),
    ("E2", 60, {"keep_ratio": 500000, "fill": "none"}, "0-3 30-39 52-59"),
    ("E3", 60, {"keep_ratio": 500000, "fill": "best"}, "0-3 20 22-27 29-39 52-59"),
    ("E4", 60, {"keep_ratio": 500000, "max_tokens": 20}, "0-3 30-37 52-59"),
    ("E5", 60, {"max_tokens": 10}, "0-3 52-59"),
    ("E7", 57, {"keep_ratio": 400000}, "0-3 30-39 49-56"),
    ("E8", 60, {"keep_ratio": 500000, "spans": ((20, 25),)}, "0-3 20-27 30-39 52-59"),
    ("E10a", 60, {"keep_ratio": 500000, "align": 16}, "0-3 20-39 52-59"),
    ("E10b", 60, {"keep_ratio": 500000, "align": 16, "max_tokens": 31}, "0-3 20-28 30-39 52-59"),
    ("E11a", 60, {"keep_ratio": 666667}, "0-9 20-39 50-59"),
    ("E11b", 60, {"keep_ratio": 666666}, "0-8 20-39 50-59"),
    ("E12", 60, {"keep_ratio": 666667, "unit_reduce": "sum"}, "0-3 10-17 20-39 52-59"),
    ("E13", 60, {"keep_ratio": 500000, "sinks": 0, "recent": 0}, "20-39 50-59"),
    ("E15", 60, {"keep_ratio": 500000, "selector": "token"},
     "0-3 5-6 10 13 16 18 20 22 24 26 29 32-33 36-39 51-59"),
]


@pytest.mark.parametrize(("name", "length", "given", "kept"), EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_stage_example(name: str, length: int, given: dict[str, Any], kept: str) -> None:
    plan = ref.select(pattern(length), length, replace(STAGE, **given))
    assert plan.kept.tolist() == rows_of(kept)
    assert plan.raised == (name == "E5")


def test_stage_example_equal_scores() -> None:
    assert ref.select(np.ones(60), 60, replace(STAGE, keep_ratio=500000)).kept.tolist() == rows_of("0-21 52-59")


def test_stage_example_budget_refused() -> None:
    with pytest.raises(ref.Refused, match="BUDGET_BELOW_PROTECTED"):
        ref.select(pattern(60), 60, replace(STAGE, max_tokens=10, tight="refuse"))


def test_stage_example_positions() -> None:
    pos = np.r_[0:20, 35:60]
    plan = ref.select(pattern(45), 45, replace(STAGE, keep_ratio=500000), pos)
    assert plan.kept.tolist() == rows_of("0-3 25-32 35-44")


@pytest.mark.parametrize(("length", "given", "outcome"), [
    (12, {"keep_ratio": 500000}, "protected"), (1, {"keep_ratio": 500000}, "fits"),
    (5, {"keep_ratio": 100000}, "protected"), (12, {"keep_ratio": 500000, "min_tokens": 22}, "short")])
def test_stage_example_keeps_all(length: int, given: dict[str, Any], outcome: str) -> None:
    plan = ref.select(pattern(length), length, replace(STAGE, **given))
    assert (plan.outcome, len(plan.kept)) == (outcome, length)


@pytest.mark.parametrize(("length", "c", "w", "keep", "kept"), [
    (60, 10, 8, 500000, "20-39 50-59"), (57, 10, 8, 500000, "30-56"), (100, 20, 8, 100000, "80-99"),
    (100, 10, 8, 100000, "90-99"), (200, 10, 8, 100000, "190-199"), (200, 10, 8, 200000, "30-39 90-99 190-199"),
    (45, 10, 32, 300000, "20-29"), (1003, 10, 64, 50000, "940-989")])
def test_stage_example_kvpress(length: int, c: int, w: int, keep: int, kept: str) -> None:
    p = Params(profile="kvpress", chunk=c, window=w, keep_ratio=keep)
    assert ref.select_kvpress(pattern(length), length, p).kept.tolist() == rows_of(kept)


END_TO_END = [
    ("default", {}, "0-4 10-14 20-29 44-47"),
    ("softcap", {"softcap": 1.0}, "0-4 10-14 20-29 44-47"),
    ("sliding", {"sliding": 20}, "0-1 25-33 35-47"),
    ("avg5", {"pool": "avg", "pool_size": 5}, "0-4 15-29 44-47"),
    ("max7", {"pool": "max", "pool_size": 7}, "0-1 5-7 15-29 44-47"),
    ("l2", {"value_weight": "l2"}, "0-4 10-14 20-29 44-47"),
    ("kvpress5", {"profile": "kvpress"}, "15-29 40-47"),
    ("kvpress2", {"profile": "kvpress", "keep_ratio": 200000}, "45-47"),
]


@pytest.mark.parametrize(("name", "given", "kept"), END_TO_END, ids=[e[0] for e in END_TO_END])
def test_end_to_end_example(name: str, given: dict[str, Any], kept: str) -> None:
    base = Params(chunk=5, window=4, sinks=2, recent=4, min_tokens=0, keep_ratio=500000)
    key, value, query = tensors.synthetic()
    assert ref.plan(query, key, value, replace(base, **given)).kept.tolist() == rows_of(kept)


def test_end_to_end_scores() -> None:
    key, value, query = tensors.synthetic()
    p = Params(chunk=5, window=4, sinks=2, recent=4, min_tokens=0, keep_ratio=500000)
    t = ref.row_scores(query, key, value, p)
    assert t[0] == pytest.approx(np.frombuffer(bytes.fromhex("3fd86c7ddc4e2fbe"), ">f8")[0], rel=1e-14)
    assert t.sum() == pytest.approx(16.0, rel=1e-14)
    bits = ref.select(t, 48, p).unit_scores.view(np.uint32)
    expected = "3eaf1179 3e91dff3 3eb5c090 3ea2704c 3eec262b 3eca1753 3e8d394c 3e9fab42 3e8dd9f1".split()
    assert [f"{b:08x}" for b in bits] == expected[: len(bits)]
    assert len(bits) == 9
