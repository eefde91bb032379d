"""The NumPy model against the golden file and the worked examples of the specification; needs no daemon."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import reference_numpy as ref
import tensors
from reference_numpy import Params


def test_golden_file_has_what_the_tests_ask_for() -> None:
    assert len(tensors.golden()) == 663
    assert len([c for c in tensors.golden() if tensors.is_covered(c)]) == 659
    assert len([c for c in tensors.golden() if c["profile"] == "paper"]) == 150


@pytest.mark.parametrize("case", [c for c in tensors.golden() if tensors.is_covered(c)], ids=tensors.case_name)
def test_golden(case: dict[str, Any]) -> None:
    layer = tensors.load(case["file"])[case["layer"]]
    plan = ref.plan(*map(tensors.widen, (layer.query, layer.key, layer.value)), tensors.params(case))
    assert plan.ranges == case["kept"]
    assert len(plan.kept) == case["kept_count"]


@pytest.mark.parametrize("example", tensors.STAGE_EXAMPLES, ids=lambda e: e.name)
def test_stage_example(example: tensors.StageExample) -> None:
    plan = ref.select(example.scores, len(example.scores), example.params, example.positions)
    assert plan.kept.tolist() == tensors.rows_of(example.kept)
    assert (plan.outcome, plan.raised) == (example.outcome, example.raised)


def test_stage_example_budget_refused() -> None:
    with pytest.raises(ref.Refused, match="BUDGET_BELOW_PROTECTED"):
        ref.select(tensors.pattern(60), 60, replace(tensors.STAGE, max_tokens=10, tight="refuse"))


@pytest.mark.parametrize("example", tensors.PROFILE_EXAMPLES, ids=lambda e: e.name)
def test_profile_example(example: tensors.StageExample) -> None:
    select = ref.select_paper if example.params.profile == "paper" else ref.select_kvpress
    plan = select(example.scores, len(example.scores), example.params)
    assert (plan.kept.tolist(), plan.outcome) == (tensors.rows_of(example.kept), example.outcome)


@pytest.mark.parametrize(("keep", "length", "chunk", "rows"), tensors.PROFILE_COUNTS)
def test_profile_counts(keep: int, length: int, chunk: int, rows: int) -> None:
    p = Params(profile="kvpress", chunk=chunk, window=8, keep_ratio=keep)
    assert len(ref.select_kvpress(tensors.pattern(length), length, p).kept) == rows


def test_stage_example_paper_refused() -> None:
    with pytest.raises(ref.Refused, match="INVALID_ARGUMENT"):
        ref.select_paper(tensors.pattern(60), 60, Params(profile="paper", chunk=10, window=8, max_tokens=6))


@pytest.mark.parametrize("example", tensors.END_TO_END, ids=lambda e: e.name)
def test_end_to_end_example(example: tensors.EndToEnd) -> None:
    key, value, query = tensors.synthetic()
    assert ref.plan(query, key, value, example.params).kept.tolist() == tensors.rows_of(example.kept)


def test_end_to_end_scores() -> None:
    key, value, query = tensors.synthetic()
    p = tensors.END_TO_END[0].params
    t = ref.row_scores(query, key, value, p)
    assert t[0] == pytest.approx(np.frombuffer(bytes.fromhex("3fd86c7ddc4e2fbe"), ">f8")[0], rel=1e-14)
    assert t.sum() == pytest.approx(16.0, rel=1e-14)
    bits = ref.select(t, 48, p).unit_scores.view(np.uint32)
    expected = "3eaf1179 3e91dff3 3eb5c090 3ea2704c 3eec262b 3eca1753 3e8d394c 3e9fab42 3e8dd9f1".split()
    assert [f"{b:08x}" for b in bits] == expected[: len(bits)]
    assert len(bits) == 9


def test_one_set_adds_up_what_the_layers_say() -> None:
    rng = np.random.default_rng(3)

    def layer() -> ref.Layer:
        return ref.Layer(*(rng.normal(size=shape).astype(np.float32) for shape in ((4, 2, 8), (60, 2, 8), (60, 2, 8))))

    layers = [layer() for _ in range(5)]
    p = Params(window=4, chunk=5, keep_ratio=400000)
    each = ref.plan_layers(layers, p)
    assert len({tuple(x.kept) for x in each}) > 1
    one = ref.plan_layers(layers, replace(p, layers="one"))
    assert len({tuple(x.kept) for x in one}) == 1
    total = sum(x.unit_scores.astype(np.float64) for x in each)
    assert np.array_equal(one[0].unit_scores, total.astype(np.float32))
    reused = ref.plan_layers(layers, replace(p, reuse=2))
    assert [tuple(x.kept) for x in reused] == [tuple(each[i].kept) for i in (0, 0, 2, 2, 4)]
