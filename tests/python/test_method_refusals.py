"""Methods that are asked for in ways that cannot be: each refusal names the field and says what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import chunkkv
from chunkkv import Policy
from daemon import Daemon
from methods_bench import BLOCK, Bench


@pytest.fixture(scope="module")
def bench(daemon: Daemon) -> Iterator[Bench]:
    with chunkkv.Client(daemon.prefix()) as client:
        yield Bench(client)


P = "compress.groups[0].policies[0]."
REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    ("plan", {}, {"queries": None}, "compress.queries", "send them, or ask for scorer knorm or keydiff"),
    ("plan", {"scorer": "drop"}, {"queries": None}, "compress.queries", "knorm or keydiff"),
    ("plan", {"scorer": "given"}, {}, "compress.groups[0].scores_in", "send scores_in, or ask for another scorer"),
    ("plan", {"scorer": "knorm", "pool": "leak"}, {}, P + "scorer", "ask for scorer window, or for pool avg or max"),
    ("plan", {"scorer": "keydiff", "mute": 3}, {}, P + "scorer", "ask for scorer window, or set mute to 0"),
    ("plan", {"heads": "each"}, {}, P + "heads", "ask for IN_PLACE or COPY_OUT, or for heads = sum"),
    ("slots", {"heads": "each"}, {}, P + "heads", "give the table in blocks, or ask for COPY_OUT"),
    ("compress", {"heads": "each"}, {"positions": [(0, 199), (200, 201)], "logical_len": 201}, P + "heads",
     "ask for heads = sum"),
    ("compress", {"heads": "each", "sliding": 50}, {}, P + "heads", "ask for heads = sum"),
    ("compress", {"heads": "each", "layers": "one"}, {}, P + "heads", "layers = each"),
    ("compress", {"heads": "each", "selector": "streaming"}, {}, P + "heads", "heads = sum"),
    ("compress", {"heads": "each", "fill": "none"}, {}, P + "fill", "fill = lead or best"),
    ("compress", {"selector": "page"}, {}, P + "selector", "ask for PLAN, or for selector chunk"),
    ("plan", {"selector": "page", "page": 12}, {}, P + "page", "must be a multiple of 8, is 12"),
    ("plan", {"selector": "page", "layers": "each"}, {}, P + "layers", "layers = one"),
    ("plan", {"page": 16}, {}, P + "page", "selector page alone"),
    ("plan", {"selector": "h2o"}, {"keep_ratio": None}, "compress.queries.rows", "send them all, or ask for selector"),
    ("plan", {"selector": "h2o"}, {}, "compress.groups[0].keep_ratio", "set heavy and recent_part instead"),
    ("plan", {"selector": "h2o", "scorer": "knorm"}, {"keep_ratio": None}, P + "scorer", "scorer window, or selector"),
    ("plan", {"heavy": 1000}, {}, P + "heavy", "selector h2o alone"),
    ("plan", {"beta": 20, "layers": "one"}, {}, P + "beta", "layers = each"),
    ("plan", {"layer_reduce": "top4"}, {}, P + "layer_reduce", "layers = one"),
    ("plan", {"vote_rows": 4}, {}, P + "vote_rows", "window_reduce = max alone"),
    ("plan", {"window_reduce": "max", "scorer": "knorm"}, {}, P + "scorer", "scorer window"),
    ("plan", {"window_reduce": "max", "norm": "mean"}, {}, P + "norm", "norm = sum"),
    ("plan", {"contrast_first": 4}, {}, P + "contrast_end", "set both"),
    ("plan", {"selector": "chunk_at"}, {}, "compress.groups[0].chunk_lengths",
     "send the rows of each, or ask for selector chunk"),
    ("plan", {"selector": "chunk_at", "unit_reduce": "sum"}, {"chunk_lengths": [100, 100]}, P + "unit_reduce",
     "mean or max"),
    ("plan", {"selector": "chunk"}, {"chunk_lengths": [100, 100]}, "compress.groups[0].chunk_lengths",
     "for selector chunk_at and pool leak alone"),
    ("plan", {"profile": "kvpress", "scorer": "drop"}, {}, P + "scorer", "ask for profile default"),
    ("plan", {"profile": "kvpress", "selector": "h2o"}, {}, P + "selector", "ask for profile default"),
    ("plan", {"profile": "paper", "fill": "best"}, {}, P + "fill", "leave it out, or ask for profile default"),
    ("plan", {"profile": "paper"}, {"protect": [(0, 5)]}, "compress.groups[0].protect", "does not let this be set"),
    ("plan", {"window": 65}, {}, "compress.queries.rows", "ask for a smaller window"),
    ("plan", {"selector": "chunk_eg"}, {"scores_in": np.zeros((6, 18), np.float32)}, "compress.groups[0].score_kind",
     "chunk_eg select by scores of rows, which these are not: set score_kind = rows"),
]


@pytest.mark.parametrize(("mode", "policy", "other", "field", "words"), REFUSALS, ids=range(len(REFUSALS)))
def test_refusals_say_what_to_do(bench: Bench, mode: str, policy: dict[str, Any], other: dict[str, Any], field: str,
                                 words: str) -> None:
    """Unknown combinations name the field and say what to do instead; nothing is touched, and the daemon goes on."""
    bench.fill(7, 200)
    request = bench.request(Policy(**policy), **{"timeout": 10, **other})
    if mode == "slots":
        slots = (bench.table[:, None] * BLOCK + np.arange(BLOCK)).ravel()[: bench.rows]
        request["table"] = chunkkv.Table(slots, "tokens")
    run = bench.client.plan if mode == "plan" else bench.client.compress
    with pytest.raises((chunkkv.InvalidArgument, chunkkv.Unsupported)) as caught:
        run(bench.cache, **request)
    assert caught.value.field.removesuffix("[0]") == field
    assert words in str(caught.value)
    assert caught.value.cache == chunkkv.CacheState.CLEAN
    assert all(np.array_equal(plane, before) for plane, before in zip(bench.planes, bench.before, strict=True))
    assert bench.client.ping().in_flight == 0


LAYER_PLANS: list[tuple[list[Policy], str, str]] = [
    ([Policy(layer_first=1)], P + "layer_first", "must be 0 or 0"),
    ([Policy(), Policy(layer_first=6)], "compress.groups[0].policies[1].layer_first", "layer 6 is not in this group"),
    ([Policy(), Policy(layer_first=3), Policy(layer_first=3)], "compress.groups[0].policies[2].layer_first",
     "ascending"),
    ([Policy(), Policy(layer_first=3, selector="page")], "compress.groups[0].policies[1].selector",
     "for selector chunk"),
    ([Policy(), Policy(layer_first=3, align=64)], "compress.groups[0].policies", "must keep equally many"),
]


@pytest.mark.parametrize(("plan", "field", "words"), LAYER_PLANS, ids=range(len(LAYER_PLANS)))
def test_layer_plans_cover_the_layers_once(bench: Bench, plan: list[Policy], field: str, words: str) -> None:
    """A gap, an overlap, or unequal budgets under one table."""
    bench.fill(8, 200)
    with pytest.raises(chunkkv.InvalidArgument) as caught:
        bench.client.plan(bench.cache, **bench.request(plan))
    assert caught.value.field == field
    assert words in str(caught.value)
