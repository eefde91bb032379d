"""What to keep: a typed policy, and the conversion of ratios to millionths.

Words and meanings are those of the daemon's algorithm: `keep_ratio` is the fraction that is *kept*.  What is
left None is what the profile says; the answer brings back every value that was used.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from numbers import Real
from typing import Any, Literal

from ._pb import chunkkv_pb2 as pb
from .checks import of_type, whole
from .errors import invalid

MILLION = 1_000_000

Profile = Literal["default", "paper", "kvpress", "retrieval", "vote"]
Scorer = Literal["window", "raw_qk", "drop", "knorm", "keydiff", "lagkv", "vk_ratio", "given"]
Selector = Literal["chunk", "chunk_at", "token", "streaming", "h2o", "chunk_eg", "page"]


def millionths(ratio: float | str | Decimal, field: str = "keep_ratio") -> int:
    """A kept fraction as the integer that the wire carries; `field` is what errors call it.

    A float is converted once, by rint(ratio * 1e6); text and Decimal exactly, from their digits.

    >>> millionths(0.1), millionths("0.1"), millionths(0.333333)
    (100000, 100000, 333333)
    """
    if isinstance(ratio, (str, Decimal)):
        try:
            exact = Decimal(ratio)
        except InvalidOperation:
            raise invalid(field, f"{ratio!r} is no decimal number") from None
        if not exact.is_finite() or not 0 <= exact <= 1:
            raise invalid(field, f"{ratio!r} is not in (0, 1]")
        value = int((exact * MILLION).to_integral_value(ROUND_HALF_EVEN))
    else:
        if isinstance(ratio, bool) or not isinstance(ratio, Real):
            raise TypeError(f"{field} must be a number, or text that is one, not {ratio!r}")
        if not 0.0 <= ratio <= 1.0:
            raise invalid(field, f"{ratio!r} is not in (0, 1]")
        value = round(ratio * 1e6)  # round() of a float is rint(): to nearest, ties to even
    if not 1 <= value <= MILLION:
        raise invalid(field, f"{ratio!r} is {value} millionths, not 1 to {MILLION}")
    return value


# field of Policy: (prefix of the enum's values on the wire)
_ENUMS = {
    "profile": "PROFILE_", "scorer": "SCORER_", "selector": "SELECTOR_", "pool": "POOL_", "norm": "NORM_",
    "heads": "HEADS_", "group_heads": "GROUP_", "value_weight": "WEIGHT_", "unit_reduce": "UNIT_", "layers": "LAYERS_",
    "fill": "FILL_", "tight": "TIGHT_", "join": "JOIN_", "window_reduce": "ROWS_", "layer_reduce": "LAYER_",
}
_COUNTS = ("sinks", "recent", "min_tokens", "contrast_first", "contrast_end", "mute")
_REALS = ("scale", "softcap")
_OF_PROFILE = "OF_PROFILE"


def _real(field: str, value: Any) -> float:
    """The value as a float; the daemon judges infinities and the like."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{field} must be a number, not {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise invalid(field, "is too large a number") from None


def _enum_of(name: str) -> Any:
    """The wire's names of a member that is one of some words."""
    return pb.Policy.DESCRIPTOR.fields_by_name[name].enum_type


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How rows are scored and selected.  None = what the profile says.

    Values are looked at when a request is made: one of a wrong type is a TypeError, another that is wrong an
    InvalidArgument.

    `chunkkv.methods` has a function for each published method; a list of policies, each with its `layer_first`, is a
    layer plan (`hybrid`).

    Attributes:
        profile: set of defaults.  "default": w 32, chunks of 10, 4 sinks, the window protected; "paper": ChunkKV to the
            letter; "kvpress": as kvpress' presses; "retrieval": a short window and wide pools; "vote": one set for all
            heads and layers, for questions over a context.
        scorer: where scores come from.  "window": attention of the newest queries; "raw_qk": their bare products;
            "drop": what the output would miss; "knorm", "keydiff": keys alone; "lagkv", "vk_ratio": keys and values;
            "given": scores_in.
        selector: what is kept or dropped together.  "chunk"; "chunk_at": chunks of chunk_lengths; "token"; "streaming":
            the first and newest rows; "h2o": heavy hitters and the newest rows, by the queries of all rows;
            "chunk_eg": chunks, some cut to their best rows; "page": whole blocks, with plan() only.
        layer_first: first layer that this policy holds for; 0 = first of the group.
        window: query rows that vote, 1 to 256; the newest ones of those given.
        chunk: rows of a chunk, 1 to 1024.
        sinks: first rows that are always kept, 0 to 1024.
        recent: newest rows that are always kept.
        min_tokens: shorter sequences stay as they are.
        pool: smoothing of the scores over neighbouring rows; "leak" fades, most where a chunk of chunk_lengths ends.
        pool_size: odd, 1 to 31.
        norm: how scores are divided by the number of queries.
        heads: over KV heads: added up, the largest, or a set for each (compress() and copy_out() only).
        group_heads: over the query heads of one KV head.
        value_weight: weight scores with the norm of the value.
        unit_reduce: from row scores to the score of a chunk.
        layers: a set for each layer, or one for all.
        reuse: each n-th layer scores, the others follow it.
        fill: what is taken of the chunk that does not fit whole: its first rows ("lead"), its best ("best"), or "none",
            which keeps fewer rows than the budget, and no row at all where no chunk fits and none is protected.
        tight: when the protected rows exceed the budget: keep just them, or refuse.
        align: the budget is rounded up to a multiple of so many rows, 1 to 1024.
        join: with profile "paper": cut to the budget, or keep chunks and window whole.
        scale: factor of the logits; 0 or None = 1/sqrt(head_dim).
        softcap: the model's soft cap of the logits.
        sliding: rows of the model's sliding window.
        spike_keep: with "chunk_eg": most rows of a chunk whose weight lies in few, 1 to chunk - 1.
        page: with "page": rows of a page, whole blocks; None = one block.
        beta: PyramidKV's budgets: the steepness with which lower layers keep more; None = equal budgets.
        heavy, recent_part: with "h2o": parts of the rows in millionths, together at most 1000000; they are the budget.
        window_reduce: over query rows: added up, or the largest of the newest vote_rows.
        vote_rows: 1 to window.
        contrast_first, contrast_end: query rows counted back from the newest whose mean is subtracted.
        mute: first rows whose scores count as 0, 0 to 1024.
        layer_reduce: with one set for all layers: added up, or the mean of the four largest.
    """

    profile: Profile = "default"
    scorer: Scorer | None = None
    selector: Selector | None = None
    layer_first: int = 0
    window: int | None = None
    chunk: int | None = None
    sinks: int | None = None
    recent: int | None = None
    min_tokens: int | None = None
    pool: Literal["none", "avg", "max", "leak"] | None = None
    pool_size: int | None = None
    norm: Literal["sum", "mean", "seen"] | None = None
    heads: Literal["sum", "max", "each"] | None = None
    group_heads: Literal["sum", "max", "mean"] | None = None
    value_weight: Literal["none", "l1", "l2"] | None = None
    unit_reduce: Literal["mean", "sum", "max"] | None = None
    layers: Literal["each", "one"] | None = None
    reuse: int | None = None
    fill: Literal["lead", "best", "none"] | None = None
    tight: Literal["raise", "refuse"] | None = None
    align: int | None = None
    join: Literal["cut", "union"] | None = None
    scale: float | None = None
    softcap: float | None = None
    sliding: int | None = None
    spike_keep: int | None = None
    page: int | None = None
    beta: int | None = None
    heavy: int | None = None
    recent_part: int | None = None
    window_reduce: Literal["sum", "max"] | None = None
    vote_rows: int | None = None
    contrast_first: int | None = None
    contrast_end: int | None = None
    mute: int | None = None
    layer_reduce: Literal["sum", "top4"] | None = None

    @property
    def reads_queries(self) -> bool:
        """Are rows scored by what queries say of them?  Where not, none need be sent."""
        return self.selector != "streaming" and self.scorer in (None, "window", "raw_qk", "drop")

    @property
    def keeps_one_set(self) -> bool:
        """Is there one kept set for all layers?"""
        return self.layers == "one" or (self.layers is None and (self.profile == "vote" or self.selector == "page"))

    def to_message(self) -> pb.Policy:
        """The wire's message.

        Raises:
            TypeError: a value is of a wrong type.
            InvalidArgument: it is a value that the message cannot hold.
        """
        message = pb.Policy()
        for item in fields(self):
            name, value = item.name, getattr(self, item.name)
            if value is None:
                continue
            field = f"policy.{name}"
            if name in _ENUMS:
                of_type(field, value, str)
                number = _enum_of(name).values_by_name.get(_ENUMS[name] + value.upper())
                if number is None:
                    known = [key.removeprefix(_ENUMS[name]).lower() for key in _enum_of(name).values_by_name
                             if not key.endswith(_OF_PROFILE)]
                    raise invalid(field, f"must be one of {', '.join(known)}, is {value!r}")
                setattr(message, name, number.number)
            elif name in _REALS:
                setattr(message, name, _real(field, value))
            elif name in _COUNTS:
                getattr(message, name).value = whole(field, value)
            else:
                setattr(message, name, whole(field, value))
        return message

    @classmethod
    def from_message(cls, message: pb.Policy) -> Policy:
        """What an answer says was used."""
        values: dict[str, object] = {}
        for item in fields(cls):
            name = item.name
            if name in _COUNTS:
                if message.HasField(name):
                    values[name] = getattr(message, name).value
            elif name in _ENUMS:
                number = _enum_of(name).values_by_number.get(getattr(message, name))
                text = number.name.removeprefix(_ENUMS[name]) if number is not None else ""
                if text and not text.endswith(_OF_PROFILE):
                    values[name] = text.lower()
            elif getattr(message, name):
                values[name] = getattr(message, name)
        return cls(**values)  # type: ignore[arg-type]


def hybrid(first: Policy, *later: tuple[int, Policy]) -> list[Policy]:
    """A layer plan: one policy up to the layer where the next begins, as the `policy` of a request.

    >>> [(p.layer_first, p.selector) for p in hybrid(Policy(), (15, Policy(selector="token")))]
    [(0, None), (15, 'token')]
    """
    return [replace(first, layer_first=0), *(replace(policy, layer_first=layer) for layer, policy in later)]
