"""The methods by name, as requests to the daemon: a policy for a budget of so many rows.

All methods get the same number of rows, their window and sinks inside it. `snapkv` and what is built on it keep a
set for each KV head, as kvpress does; `chunkkv` is the paper's setting (chunks of 10, 32 query rows) with kvpress'
pool, and no sinks, which is how the figures that it is held to were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chunkkv import Policy, methods
from chunkkv.policy import MILLION

WINDOW = 64  # query rows that are given to the daemon, where not all are


def _chunkkv(**other: Any) -> Policy:
    return methods.chunkkv(**{"pool": "avg", "pool_size": 5, "sinks": 0, "fill": "best", **other})


def _hybrid(layers: Sequence[int]) -> list[Policy]:
    return methods.hybrid(layers, _chunkkv(), methods.snapkv_each())


Plan = Policy | list[Policy]
_PLANS: dict[str, Callable[[Sequence[int]], Plan]] = {
    "default": lambda _: Policy(),
    "retrieval": lambda _: methods.retrieval(),
    "vote": lambda _: methods.vote(),
    "chunkkv": lambda _: _chunkkv(),
    "chunkkv-reuse2": lambda _: _chunkkv(reuse=2),
    "snapkv": lambda _: methods.snapkv_each(),
    "snapkv-max": lambda _: methods.snapkv_each(window=8, pool="max", pool_size=21),
    "h2o": lambda _: methods.h2o(heads="each"),
    "pyramidkv": lambda _: methods.pyramidkv(window=8, heads="each"),
    "streamingllm": lambda _: methods.streamingllm(),
    "tova": lambda _: methods.tova(),
    "keydiff": lambda _: methods.keydiff(heads="each"),
    "hybrid": _hybrid,
    # beyond the usual list
    "snapkv-max7": lambda _: methods.snapkv_each(pool="max", pool_size=7),
    "snapkv-w8": lambda _: methods.snapkv_each(window=8),
    "chunkkv-w8": lambda _: _chunkkv(window=8),
    "vote-each": lambda _: methods.vote(layers="each"),
    "vote-leak": lambda _: methods.vote(pool="leak"),
    "vote-own": lambda _: methods.snapkv(sinks=1, recent=4),
}
METHODS = ("full", "default", "retrieval", "vote", "chunkkv", "chunkkv-reuse2", "snapkv", "snapkv-max", "h2o",
           "pyramidkv", "streamingllm", "tova", "keydiff", "hybrid")
NEEDS_ENDS = ("vote-leak",)
# name: part of the budget for rows that all layers vote for, found first; each layer has the rest for itself
VOTED = {"vote-own": 0.75}
# name: part of the voted score in the score of each layer, the rest is the layer's own
MIXES = {"vote-mix25": 0.25, "vote-mix50": 0.5, "vote-mix75": 0.75}


def known() -> tuple[str, ...]:
    """Every name, the usual ones first."""
    return (*METHODS, *(name for name in _PLANS if name not in METHODS), *MIXES)


@dataclass(frozen=True)
class Request:
    """What a method asks of the daemon.

    Attributes:
        policy: one, or one for each stretch of layers.
        budget: keyword arguments of the request.
        apart: KV heads keep different rows, so that they are copied out and not planned.
        all_queries: the queries of all rows are needed, not of the newest alone.
        first: what is asked before, as policy and budget, and then protected; None = nothing.
    """

    policy: Plan
    budget: dict[str, Any]
    apart: bool
    all_queries: bool
    first: tuple[Policy, int] | None = None


def mixed(scale: float | None = None) -> tuple[Policy, Policy]:
    """The policies of a mix: one set for all layers, and one for each; both score alike."""
    voted, own = methods.vote(), methods.vote(layers="each")
    return (replace(voted, scale=scale), replace(own, scale=scale)) if scale is not None else (voted, own)


def request(name: str, layers: Sequence[int], rows: int, budget: int, scale: float | None = None) -> Request:
    """The request of a method.

    Args:
        name: of known(), but not "full".
        layers: layer numbers of the cache.
        rows: in the cache.
        budget: rows to keep.
        scale: factor of the logits, where it is not 1/sqrt(head_dim).
    """
    if name not in _PLANS:
        raise ValueError(f"method {name!r} is none of {', '.join(known())}")
    plan = _PLANS[name](layers)
    every = [plan] if isinstance(plan, Policy) else plan
    if scale is not None:
        every = [replace(policy, scale=scale) for policy in every]
    own: dict[str, Any] = {"max_tokens": budget}
    if name == "h2o":
        # half heavy hitters, half recent rows; the least millionths whose floor is that many rows
        recent = budget // 2
        parts = {key: -(-count * MILLION // rows)
                 for key, count in (("heavy", budget - recent), ("recent_part", recent))}
        every, own = [replace(every[0], **parts)], {}
    first = (replace(methods.vote(), scale=scale), max(1, int(budget * VOTED[name]))) if name in VOTED else None
    return Request(every[0] if len(every) == 1 else every, own, any(policy.heads == "each" for policy in every),
                   name == "h2o", first)
