"""What is asked of every compression of a model: method, budget, when, and what to do if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal, get_args

from .. import methods
from ..errors import Unsupported, invalid
from ..policy import MILLION, Policy, millionths
from ..ranges import Range
from .store import Store

HYBRID = "hybrid"  # the one method that is a plan for the layers of a model
LEAST_QUERIES = 64  # what the profiles look at, at most
WINDOWS = {"kvpress": 64, "retrieval": 8, "vote": 8}  # query rows that a profile must have; others 32

OnError = Literal["raise", "continue"]


@dataclass(frozen=True)
class Settings:
    """Arguments of `compress()`, checked.

    Attributes:
        plan: policies, the first for the first layer; None = the hybrid of the layers that the model has.
    """

    plan: Sequence[Policy] | None
    options: dict[str, Any]
    keep_ratio: float | str | Decimal | None
    max_tokens: int | None
    every: int | None
    protect: Sequence[Range]
    chunk_lengths: Sequence[int] | None
    on_error: OnError
    timeout: float

    @classmethod
    def of(cls, method: str | Policy | Sequence[Policy], options: dict[str, Any], **others: Any) -> Settings:
        """From what a user wrote; errors name the argument."""
        plan: Sequence[Policy] | None
        if method == HYBRID:
            plan = None
            methods.hybrid((0, 1), **options)  # to see wrong options now
        elif isinstance(method, str):
            plan, options = [methods.get(method, **options)], {}
        else:
            plan = [method] if isinstance(method, Policy) else list(method)
            if options:
                raise TypeError(f"options {', '.join(options)} go with a method's name, not with a policy")
            if not plan or not all(isinstance(policy, Policy) for policy in plan):
                raise TypeError(f"method must be a name, a Policy or several, not {method!r}")
        settings = cls(plan, options, **others)
        settings._check()
        return settings

    def _check(self) -> None:
        if self.on_error not in get_args(OnError):
            raise invalid("on_error", f"must be one of {', '.join(get_args(OnError))}, is {self.on_error!r}")
        if self.keep_ratio is not None:
            millionths(self.keep_ratio)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise invalid("max_tokens", f"must be at least 1, is {self.max_tokens}")
        policies = self.policies((0, 1))
        own = all(policy.selector == "h2o" for policy in policies)
        if own == (self.keep_ratio is not None or self.max_tokens is not None):
            raise invalid("keep_ratio", "method h2o brings its own budget: give heavy and recent" if own else
                          "one of keep_ratio and max_tokens is needed")
        if any(policy.selector == "page" for policy in policies):
            raise Unsupported("method page frees blocks of a paged cache, and a cache of Transformers has none")
        if self.every is not None:
            self._check_every(policies)

    def _check_every(self, policies: Sequence[Policy]) -> None:
        """Compressing again needs positions, one list for all heads, and enough new queries."""
        if self.every is None or self.every < 1:
            raise invalid("every", f"must be at least 1, is {self.every}")
        reasons = {"h2o needs the queries of all rows": any(p.selector == "h2o" for p in policies),
                   "the heads keep different rows": any(p.heads == "each" for p in policies),
                   "layers keep different numbers of rows": any(p.beta for p in policies),
                   "layers that reuse scores would need the same rows as their leader": any(
                       (p.reuse or 1) > 1 for p in policies),
                   "profile kvpress compresses once": any(p.profile == "kvpress" for p in policies)}
        for reason, holds in reasons.items():
            if holds:
                raise Unsupported(f"every={self.every} does not go together with this method: {reason}")
        window = max((p.window or WINDOWS.get(p.profile, 32) for p in policies if p.reads_queries), default=1)
        if self.every < window:
            raise invalid("every", f"must be at least {window}, the query rows that vote, is {self.every}")

    def policies(self, layers: Sequence[int]) -> list[Policy]:
        """The plan for a model with these full-attention layers."""
        return methods.hybrid(layers, **self.options) if self.plan is None else list(self.plan)

    def query_rows(self) -> int:
        """Newest query rows to record; 0 = none."""
        reading = [policy for policy in self.policies((0, 1)) if policy.reads_queries]
        return max([LEAST_QUERIES, *(policy.window or 0 for policy in reading)]) if reading else 0

    @property
    def all_queries(self) -> bool:
        """Are the queries of all rows needed?"""
        return any(policy.selector == "h2o" for policy in self.policies((0, 1)))

    @property
    def each_layer(self) -> bool:
        """Do layers go on with positions of their own, which a request can only have in groups of their own?"""
        return self.every is not None and not all(policy.keeps_one_set for policy in self.policies((0, 1)))

    def check_batch(self, sequences: int) -> None:
        """Unsupported where sequences of a batch could keep different numbers of rows."""
        if sequences > 1 and any(p.profile in ("kvpress", "paper") or p.fill == "none" for p in self.policies((0, 1))):
            raise Unsupported(f"a batch of {sequences} must keep equally many rows of each sequence: profiles kvpress "
                              "and paper, and fill=\"none\", do not promise that")
        if sequences > 1 and self.chunk_lengths is not None:
            raise Unsupported(f"chunk_lengths are those of one sequence, and this is a batch of {sequences}")

    def budget(self, store: Store) -> dict[str, Any]:
        """keep_ratio and max_tokens of a request; later ones count in all tokens so far, not in the rows left."""
        if not store.positions or self.keep_ratio is None:
            return {"keep_ratio": self.keep_ratio, "max_tokens": self.max_tokens}
        rows = max(1, store.seen * millionths(self.keep_ratio) // MILLION)
        return {"max_tokens": rows if self.max_tokens is None else min(rows, self.max_tokens)}


def of_the_model(policy: Policy, store: Store) -> Policy:
    """The policy with the scale and soft cap that the model's attention is called with, where they are unusual."""
    assert store.arena is not None
    usual = float(store.arena.keys[0].shape[3]) ** -0.5
    found: dict[str, Any] = {}
    if policy.scale is None and store.scale is not None and abs(store.scale - usual) > 1e-6 * usual:
        found["scale"] = store.scale
    if policy.softcap is None and store.softcap:
        found["softcap"] = store.softcap
    return replace(policy, **found) if found and policy.reads_queries else policy
