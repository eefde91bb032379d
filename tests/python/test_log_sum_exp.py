"""Log-sum-exp and sink logits of the engine, through the daemon: the sets of the NumPy model, and R40's alarm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import chunkkv
import reference_numpy as ref
import reference_scorers as scorers
from daemon import Daemon
from problems import Bench, Instance, Problem, decode


@pytest.fixture(scope="module")
def bench(daemon: Daemon) -> Iterator[Bench]:
    with chunkkv.Client(daemon.prefix()) as client:
        yield Bench(client)


def suits(seed: int) -> bool:
    """One layer, softmax weights, and something to drop, without the options that this test would have to repeat."""
    problem = Problem(seed)
    p = problem.params
    ours = p.profile in ("default", "retrieval")
    return (problem.layers == 1 and not problem.latent and p.scores_by == "window" and ours
            and p.softcap == 0 and p.sliding == 0 and p.last_row is None and problem.length > 100)


def log_sum_exp(q: ref.F32, k: ref.F32, p: ref.Params, pos: ref.Rows) -> ref.F32:
    """[Hq][query rows], over the rows that each query sees and the sink."""
    assert p.sink_logits is not None
    allowed = scorers.visible(np.arange(len(q))[::-1], pos, p)
    keys = np.repeat(k.astype(np.float64), q.shape[1] // k.shape[1], axis=1)
    s = np.einsum("thd,jhd->htj", q.astype(np.float64), keys) * (p.scale or 1 / np.sqrt(q.shape[2]))
    e = np.where(allowed, np.exp(s), 0.0).sum(axis=2) + np.exp(p.sink_logits.astype(np.float64))[:, None]
    return np.log(e).astype(np.float32)


alarms: list[int] = []
SEEDS = [seed for seed in range(2000) if suits(seed)][:20]


@pytest.mark.parametrize("seed", SEEDS)
def test_sets_and_alarm(bench: Bench, seed: int) -> None:
    problem = Problem(seed)
    instance = Instance(bench, problem)
    q = np.roll(decode(instance._queries, problem.query_dtype), -instance.ring_start, axis=1)[0]
    k, v = instance.rows[0]
    heads = q.shape[1]
    p = replace(problem.params, sink_logits=np.random.default_rng(seed).normal(size=heads).astype(np.float32))
    lse = log_sum_exp(q, k, p, problem.pos())
    cache = bench.client.register_cache(instance.layout)
    try:
        expected = ref.plan(q, k, v, p, problem.pos())
    except ref.Refused:
        bench.client.unregister_cache(cache)
        return
    request = {**instance.request(), "sink_logits": p.sink_logits[None]}
    ring = np.roll(lse, instance.ring_start, axis=1)[None].copy()
    for given in ({}, {"lse": ring}):
        answer = bench.client.plan(cache, **request, **given)
        assert ref.difference_allowed(expected, answer.layers[0].rows.astype(np.int64))
    if expected.outcome == "dropped" and len(expected.unit_ids):
        ring[0, heads - 1, (instance.ring_start + len(q) - 1) % len(q)] += 0.3  # the newest row of the last head
        with pytest.raises(chunkkv.ChunkkvError, match="BAD_LSE"):
            bench.client.plan(cache, **request, lse=ring)
        alarms.append(seed)
    bench.client.unregister_cache(cache)


def test_most_had_something_to_be_wrong_about() -> None:
    assert len(alarms) == 0 or len(alarms) >= len(SEEDS) // 2
