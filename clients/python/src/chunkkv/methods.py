"""Published methods by the names that people know, each as the `policy` of a request.

    client.compress(cache, rows=1024, keep_ratio=0.2, policy=chunkkv.methods.snapkv())
    client.compress(cache, rows=1024, keep_ratio=0.2, policy=chunkkv.methods.get("snapkv-each", window=16))

Each takes members of `Policy` that differ from the method's own.  What a method needs from the engine is said with it;
"queries" are the newest query rows of each layer.  Budgets are those of the request, in rows, also where the original
counts otherwise.  Numbers are arXiv's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .errors import invalid
from .policy import MILLION, Policy, millionths
from .policy import hybrid as layer_plan


def _policy(defaults: dict[str, Any], other: dict[str, Any]) -> Policy:
    return Policy(**{**defaults, **other})


def chunkkv(**other: Any) -> Policy:
    """ChunkKV (2502.00299) as this daemon does it: whole chunks, an exact budget, sinks and window.  Needs queries."""
    return _policy({}, other)


def chunkkv_paper(**other: Any) -> Policy:
    """ChunkKV to the letter of its Algorithm 1, scored by softmax weights as its code does.  Needs queries."""
    return _policy({"profile": "paper", "scorer": "window"}, other)


def chunkkv_kvpress(**other: Any) -> Policy:
    """kvpress' SnapKVPress in ChunkKVPress, set for set.  Needs 64 queries; keep_ratio only."""
    return _policy({"profile": "kvpress"}, other)


def chunk_at(**other: Any) -> Policy:
    """ChunkKV with chunks of the caller's: sentences, code blocks, examples.  Needs queries and chunk_lengths."""
    return _policy({"selector": "chunk_at"}, other)


def chunk_eg(**other: Any) -> Policy:
    """EG-ChunkKV (kvpress pull request 263): chunks with their weight in few rows give up others.  Needs queries."""
    return _policy({"selector": "chunk_eg"}, other)


def snapkv(**other: Any) -> Policy:
    """SnapKV (2404.14469) with one set for all KV heads, which any engine can hold.  Needs queries."""
    return _policy({"selector": "token", "sinks": 0, "pool": "avg", "pool_size": 5}, other)


def snapkv_each(**other: Any) -> Policy:
    """SnapKV (2404.14469) with a set for each KV head.  Needs queries; compress() and copy_out() only."""
    return snapkv(**{"heads": "each", **other})


def pyramidkv(**other: Any) -> Policy:
    """PyramidKV (2406.02069): SnapKV with larger budgets in lower layers.  Needs queries, and a length per layer."""
    return snapkv(**{"beta": 20, **other})


def h2o(heavy: float = 0.1, recent: float = 0.1, **other: Any) -> Policy:
    """H2O (2306.14048): heavy hitters and the newest rows, as parts of the rows.  Needs the queries of all rows.

    It brings its own budget: give neither keep_ratio nor max_tokens.
    """
    parts = {"heavy": millionths(heavy, "heavy"), "recent_part": millionths(recent, "recent")}
    if sum(parts.values()) > MILLION:
        raise invalid("recent", f"heavy and recent are at most 1 together, are {heavy} and {recent}")
    return _policy({"selector": "h2o", "sinks": 0, **parts}, other)


def streamingllm(**other: Any) -> Policy:
    """StreamingLLM (2309.17453): the first 4 rows and the newest.  Needs neither queries nor scores."""
    return _policy({"selector": "streaming", "sinks": 4, "recent": 1}, other)


def tova(**other: Any) -> Policy:
    """TOVA (2401.06104): rows by the weights of the newest query alone.  Needs one query row."""
    return _policy({"selector": "token", "window": 1, "recent": 1, "sinks": 0}, other)


def knorm(**other: Any) -> Policy:
    """Keys of small norm are kept (2406.11430).  Needs keys alone."""
    return _policy({"scorer": "knorm", "selector": "token", "sinks": 0, "recent": 0}, other)


def keydiff(**other: Any) -> Policy:
    """KeyDiff (2504.15364): keys unlike the mean key are kept.  Needs keys alone."""
    return _policy({"scorer": "keydiff", "selector": "token", "sinks": 0, "recent": 0}, other)


def lagkv(**other: Any) -> Policy:
    """LagKV (2504.04704): rows whose keys and values vary most against the next partition.  Needs no queries."""
    return _policy({"scorer": "lagkv", "selector": "token", "sinks": 0, "recent": 0}, other)


def vk_ratio(**other: Any) -> Policy:
    """The measure of PagedEviction (2509.04377): norm of the value over norm of the key.  Needs no queries."""
    return _policy({"scorer": "vk_ratio", "selector": "token", "sinks": 0, "recent": 0}, other)


def vatp(**other: Any) -> Policy:
    """VATP (2406.12335): SnapKV's weights times the l1 norm of the value.  Needs queries."""
    return snapkv(**{"value_weight": "l1", **other})


def drop(**other: Any) -> Policy:
    """DropKV (kvpress issue 284): how much the output would change without the row.  Needs queries and values."""
    return _policy({"scorer": "drop", "selector": "token"}, other)


def page(**other: Any) -> Policy:
    """Whole blocks are kept or freed, and no byte moves.  Needs queries; plan() only, one set for all layers."""
    return _policy({"selector": "page"}, other)


def retrieval(**other: Any) -> Policy:
    """A short window, wide pools, the largest over heads: finds facts better than the default.  Needs 8 queries."""
    return _policy({"profile": "retrieval"}, other)


def vote(**other: Any) -> Policy:
    """One set for all heads and layers, voted for by the four layers that want a row most.

    For questions over a context.  Needs 8 queries; with 64, what older queries look at, too, is subtracted.
    """
    return _policy({"profile": "vote"}, other)


def hybrid(layers: Sequence[int], lower: Policy | None = None, upper: Policy | None = None) -> list[Policy]:
    """The paper's Table 12: ChunkKV in the lower half of a group's layers, SnapKV in the upper half.  Needs queries.

    Args:
        layers: layer numbers of the group, ascending, at least two.
        lower: policy of the lower half; None = chunkkv().
        upper: policy of the upper half; None = snapkv(), with the sinks of chunkkv().
    """
    if len(layers) < 2:
        raise invalid("layers", f"a hybrid needs two layers, has {len(layers)}")
    half = (layers[len(layers) // 2], snapkv(sinks=4) if upper is None else upper)
    return layer_plan(chunkkv() if lower is None else lower, half)


_ALL: tuple[Callable[..., Policy], ...] = (
    chunkkv, chunkkv_paper, chunkkv_kvpress, chunk_at, chunk_eg, snapkv, snapkv_each, pyramidkv, h2o, streamingllm,
    tova, knorm, keydiff, lagkv, vk_ratio, vatp, drop, page, retrieval, vote)
METHODS: Mapping[str, Callable[..., Policy]] = MappingProxyType({f.__name__.replace("_", "-"): f for f in _ALL})


def get(name: str, **other: Any) -> Policy:
    """A method by its name, such as "snapkv-each"; METHODS lists them."""
    if name not in METHODS:
        raise invalid("method", f"{name!r} is none of {', '.join(METHODS)}")
    return METHODS[name](**other)
