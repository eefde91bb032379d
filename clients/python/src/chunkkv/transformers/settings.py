"""What is asked of every compression of a model: method, budget, when, and what to do if it fails."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal, get_args

from .. import methods
from ..answer import GroupResult
from ..checks import whole
from ..connection import deadline
from ..errors import ChunkkvError, Unsupported, invalid
from ..policy import MILLION, Policy, millionths
from ..ranges import Range, checked
from ..wire import KeptAll
from .asked import as_argument, check_lengths, check_policy, halves_of, policies_of
from .store import Store

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
    voted: float | str | Decimal | None
    chunk_lengths: Sequence[int] | None
    on_error: OnError
    timeout: float

    @classmethod
    def of(cls, method: Any, options: dict[str, Any], **others: Any) -> Settings:
        """From what a user wrote; errors name the argument and its limit."""
        plan = policies_of(method, options)
        if plan is not None:
            options = {}
        settings = cls(plan, options, **others)
        settings._check()
        return settings

    def _check(self) -> None:
        if self.on_error not in get_args(OnError):
            raise invalid("on_error", f"must be one of {', '.join(get_args(OnError))}, is {self.on_error!r}")
        deadline(self.timeout)
        if self.keep_ratio is not None:
            millionths(self.keep_ratio)
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 1)
        checked(self.protect, "protect", ascending=False)
        if self.chunk_lengths is not None:
            check_lengths(self.chunk_lengths)
        policies = self.policies((0, 1))
        for policy in policies:
            check_policy(policy)
        self._check_budget(policies)
        if any(policy.selector == "page" for policy in policies):
            raise Unsupported("method page frees blocks of a paged cache, and a cache of Transformers has none")
        if self.voted is not None:
            self._check_voted(policies)
        if self.every is not None:
            self._check_every(policies)

    def _check_voted(self, policies: Sequence[Policy]) -> None:
        """The vote gets a part of a budget, and the method what is left of it."""
        assert self.voted is not None
        if millionths(self.voted, "voted") == MILLION:
            raise invalid("voted", f"is {self.voted!r}, which leaves nothing to the method: that is method=\"vote\"")
        if any(policy.selector == "h2o" for policy in policies):
            raise Unsupported("voted is a part of a budget, and h2o has budgets of its own")

    def _check_budget(self, policies: Sequence[Policy]) -> None:
        """A budget is needed, but for H2O, which has parts of the rows instead, or halves of a budget."""
        given = self.keep_ratio is not None or self.max_tokens is not None
        own = all(policy.selector == "h2o" for policy in policies)
        if not own and not given:
            raise invalid("keep_ratio", "one of keep_ratio and max_tokens is needed")
        if own and given and not self.halves:
            raise invalid("keep_ratio" if self.keep_ratio is not None else "max_tokens",
                          "method h2o takes either keep_ratio or max_tokens, a half of which goes to heavy hitters, "
                          "the other to the newest rows, or else heavy and recent, its parts of the rows, such as "
                          "heavy=0.1, recent=0.1; both were given")

    @property
    def halves(self) -> bool:
        """Is H2O to take a half of the budget for each of its parts?"""
        return ((self.keep_ratio is not None or self.max_tokens is not None)
                and all(policy.selector == "h2o" and policy.heavy is None and policy.recent_part is None
                        for policy in self.policies((0, 1))))

    def _check_every(self, policies: Sequence[Policy]) -> None:
        """Compressing again needs positions, one list for all heads, and enough new queries."""
        every = whole("every", self.every, 1)
        reason = self._only_once(policies)
        if reason:
            raise Unsupported(f"every={self.every} does not go together with this method: {reason}")
        window = max((p.window or WINDOWS.get(p.profile, 32) for p in policies if p.reads_queries), default=1)
        if every < window:
            raise invalid("every", f"must be at least {window}, the query rows that vote, is {self.every}")

    def _only_once(self, policies: Sequence[Policy]) -> str:
        """Why a cache cannot be compressed by these more than once; "" where it can."""
        reasons = {"voted is one set for all layers, which then hold different rows": self.voted is not None,
                   "h2o needs the queries of all rows": any(p.selector == "h2o" for p in policies),
                   "the heads keep different rows": any(p.heads == "each" for p in policies),
                   "layers keep different numbers of rows": any(p.beta for p in policies),
                   "layers that reuse scores would need the same rows as their leader": any(
                       (p.reuse or 1) > 1 for p in policies),
                   "profile kvpress compresses once": any(p.profile == "kvpress" for p in policies)}
        return next((reason for reason, holds in reasons.items() if holds), "")

    def policies(self, layers: Sequence[int]) -> list[Policy]:
        """The plan for a model with these full-attention layers."""
        return methods.hybrid(layers, **self.options) if self.plan is None else list(self.plan)

    def query_rows(self) -> int:
        """Newest query rows to record; 0 = none."""
        reading = [policy for policy in self.policies((0, 1)) if policy.reads_queries]
        if not reading and self.voted is None:
            return 0
        return max([LEAST_QUERIES, *(policy.window or 0 for policy in reading)])

    @property
    def all_queries(self) -> bool:
        """Are the queries of all rows needed?"""
        return any(policy.selector == "h2o" for policy in self.policies((0, 1)))

    def each_layer(self, again: bool) -> bool:
        """Do layers have positions of their own, or go on with them, which a request can only have in groups of their
        own?"""
        return ((again or self.every is not None)
                and not all(policy.keeps_one_set for policy in self.policies((0, 1))))

    def check_again(self, store: Store) -> None:
        """Unsupported where a cache that was compressed before cannot be now, with the reason."""
        if not store.done:
            return
        begins = f"this cache was compressed at {store.since} tokens"
        reads = self.all_queries or self.query_rows() > 0
        if reads and store.positions and store.seen == store.since:
            raise Unsupported(f"{begins}, and none came since whose queries could say which rows to drop")
        reason = self._only_once(self.policies((0, 1)))
        if store.positions and reason:
            raise Unsupported(f"{begins}, and this method cannot do it again: {reason}")
        if reads and self.every is None and store.seen > store.since:
            raise Unsupported(f"{begins if store.positions else 'the prompt of this cache was passed over'}, and the "
                              "queries of later ones are recorded with `every` only")

    def check_batch(self, sequences: int) -> None:
        """Unsupported where sequences of a batch could keep different numbers of rows."""
        if sequences > 1 and any(p.profile in ("kvpress", "paper") or p.fill == "none" for p in self.policies((0, 1))):
            raise Unsupported(f"a batch of {sequences} must keep equally many rows of each sequence: profiles kvpress "
                              "and paper, and fill=\"none\", do not promise that")
        if sequences > 1 and self.chunk_lengths is not None:
            raise Unsupported(f"chunk_lengths are those of one sequence, and this is a batch of {sequences}")

    def job(self, layers: Sequence[int], rows: int, seen: int = 0) -> tuple[list[Policy], dict[str, Any]]:
        """Policies, and keep_ratio and max_tokens, of a request for so many rows.

        Args:
            layers: numbers of the full-attention layers.
            rows: that there are.
            seen: tokens so far, where rows were dropped before: keep_ratio counts in these; else 0.
        """
        plan = self.policies(layers)
        if self.halves:
            return halves_of(plan, rows, self.rows_to_keep(rows))
        if not seen or self.keep_ratio is None:
            return plan, {"keep_ratio": self.keep_ratio, "max_tokens": self.max_tokens}
        return plan, {"max_tokens": self.rows_to_keep(seen)}

    def vote(self, rows: int) -> tuple[Policy, int]:
        """What is asked first, with `voted`: the policy, and its part of the budget for so many rows."""
        assert self.voted is not None
        return methods.vote(), max(1, self.rows_to_keep(rows) * millionths(self.voted, "voted") // MILLION)

    def as_asked(self, error: ChunkkvError) -> ChunkkvError:
        """The error with its field in terms of compress()'s arguments."""
        error = as_argument(error)
        ranges = re.match(r"protect\[(\d+)\]", error.field)
        if self.voted is not None and ranges and int(ranges[1]) >= len(self.protect):
            error.field = "voted"
        return error

    def rows_to_keep(self, tokens: int) -> int:
        """The budget for so many tokens, as the daemon counts it; all of them where there is none."""
        ratio = MILLION if self.keep_ratio is None else millionths(self.keep_ratio)
        return min(max(1, tokens * ratio // MILLION), tokens if self.max_tokens is None else self.max_tokens)

    def rows_asked(self, tokens: int) -> int:
        """The same; with H2O the parts that it has where no budget is given."""
        if self.keep_ratio is None and self.max_tokens is None:
            policy = self.policies((0, 1))[0]
            parts = (policy.heavy or MILLION // 10, policy.recent_part or MILLION // 10)
            return max(1, sum(tokens * part // MILLION for part in parts))
        return self.rows_to_keep(tokens)

    def check_protected(self, tokens: int) -> None:
        """InvalidArgument where ranges to protect are of no token; with `every` they may still come."""
        for i, (first, end) in enumerate(self.protect):
            if end > tokens and self.every is None:
                raise invalid(f"protect[{i}]", f"({first}, {end}) ends behind the {tokens} tokens of the prompt")


def ranges_voted(result: GroupResult) -> Sequence[Range]:
    """The rows of a vote, which all layers share; none where it dropped nothing: it is for the method to say."""
    return next(iter(result.layers.values())).kept if result.kept_all == KeptAll.DROPPED else ()


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
