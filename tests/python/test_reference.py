"""The NumPy model against the golden file and the worked examples of the specification; needs no daemon."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import reference_numpy as ref
import reference_scorers as scorers
import tensors
from reference_numpy import Params


def test_golden_file_has_what_the_tests_ask_for() -> None:
    assert len(tensors.golden()) == 663
    assert len([c for c in tensors.golden() if c["profile"] == "paper"]) == 150


@pytest.mark.parametrize("case", tensors.golden(), ids=tensors.case_name)
def test_golden(case: dict[str, Any]) -> None:
    layer = tensors.load(case["file"])[case["layer"]]
    plan = ref.plan(*map(tensors.widen, (layer.query, layer.key, layer.value)), tensors.params(case))
    assert plan.ranges == case["kept"]
    assert len(plan.kept) == case["kept_count"]


VOTES: list[dict[str, Any]] = json.loads((tensors.DATA / "golden_vote.json").read_text())


@pytest.mark.parametrize("case", VOTES, ids=lambda c: f"{c['file'].split('.')[0]}-{c['query_rows']}-{c['keep_ratio']}")
def test_golden_vote(case: dict[str, Any]) -> None:
    layers = tensors.load(case["file"])
    p = Params(profile="vote", keep_ratio=case["keep_ratio"], selector="token", layers="one", layer_reduce="top4")
    wide = [ref.Layer(*map(tensors.widen, (layers[n].query[-case["query_rows"]:], layers[n].key, layers[n].value)))
            for n in case["layers"]]
    assert ref.plan_layers(wide, p)[0].ranges == case["kept"]


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


# -- scorers by hand: rows [L][1][d], one head ------------------------------------------------------------------------

def column(*values: float) -> ref.F32:
    return np.array(values, np.float32)[:, None, None]


def vectors(*rows: tuple[float, float]) -> ref.F32:
    return np.array(rows, np.float32)[:, None, :]


def score(p: Params, k: ref.F32, v: ref.F32 | None = None, q: ref.F32 | None = None) -> list[float]:
    t: list[float] = ref.row_scores(column() if q is None else q, k, v, p).tolist()
    return t


def test_knorm_and_vk_ratio_by_hand() -> None:
    k, v = vectors((3, 4), (0, 0), (1, 0)), vectors((0, 10), (1, 0), (6, 8))
    assert score(Params(scorer="knorm"), k) == [-5, 0, -1]
    assert score(Params(scorer="knorm", pool="max", pool_size=3), k) == [0, 0, 0]
    assert score(Params(scorer="vk_ratio"), k, v) == [2, 1e12, 10]


def test_keydiff_by_hand() -> None:
    assert score(Params(scorer="keydiff"), vectors((2, 0), (0, 3), (-5, 0))) == pytest.approx([0, -1, 0])
    assert score(Params(scorer="keydiff"), vectors((2, 0), (0, 3), (0, 0))) == pytest.approx([-(0.5**0.5)] * 2 + [0])


def test_lagkv_by_hand() -> None:
    assert score(Params(scorer="lagkv"), column(*range(6)), column(*range(6))) == [1, 1, 1, 1, 0, 0.5]
    place = [i * 37 % 128 for i in range(128)]
    k = vectors(*[(7, 0)] * 4, *[(7, x) for x in place * 3], (7, 9))
    assert score(Params(scorer="lagkv"), k, k) == [1] * 4 + [x / 128 for x in place * 2] + [1] * 129


def test_drop_by_hand() -> None:
    zeros = column(0, 0, 0)
    assert score(Params(scorer="drop", window=1), zeros, column(0, 3, 6), column(0)) == pytest.approx([2.25, 0, 2.25])
    two = score(Params(scorer="drop", window=2), zeros, column(0, 3, 6), column(0, 0))
    assert two == pytest.approx([4.5, 2.25, 2.25])


def test_votes_contrast_and_mute_by_hand() -> None:
    k, q = column(*[0] * 6), column(0, 0, 0, 0)  # weights 1/3, 1/4, 1/5, 1/6
    p = Params(window=2, window_reduce="max")
    assert score(p, k, q=q) == pytest.approx([0.2] * 5 + [1 / 6])
    p = replace(p, contrast_first=2, contrast_end=64)
    assert score(p, k, q=q) == pytest.approx([0, 0, 0, 0.2 - 0.125, 0.2, 1 / 6])
    assert score(replace(p, mute=5), k, q=q) == pytest.approx([0] * 5 + [1 / 6])
    assert score(replace(p, window_reduce="sum", contrast_end=3), k, q=q) == pytest.approx(
        [7 / 60] * 4 + [11 / 30, 1 / 6])


def test_sinks_and_log_sum_exp_by_hand() -> None:
    k, q = column(0, 0, 0), column(0)
    p = Params(window=1, sink_logits=np.zeros(1, np.float32))
    assert score(p, k, q=q) == pytest.approx([0.25] * 3)
    assert score(replace(p, lse=np.log(np.full((1, 1), 4, np.float32))), k, q=q) == pytest.approx([0.25] * 3)
    for off in (0.2, -0.2, np.nan):
        with pytest.raises(scorers.BadLse):
            score(replace(p, lse=np.log(np.full((1, 1), 4, np.float32)) + np.float32(off)), k, q=q)


def test_leak_by_hand() -> None:
    k, q = column(0, 0, 30, 0, 0, 0, 0), column(1)
    w = float(1 / (1 + 6 * np.exp(-30)))
    p = Params(window=1, pool="leak", scale=1.0)
    fade = [0.92**2, 0.92, 1, 0.92, 0.92**2, 0.92**3]
    assert score(p, k, q=q)[:6] == pytest.approx([w * x for x in fade])
    ends = [1, 1, 1, 1, 0.3, 0.3]
    assert score(replace(p, chunk_lengths=(4, 3)), k, q=q)[:6] == pytest.approx(
        [w * x * y for x, y in zip(fade, ends, strict=True)])
