"""The arguments of a compress request: their names, and the jobs that they make."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import fields
from decimal import Decimal
from typing import Any, Literal, TypedDict

from numpy.typing import NDArray

from . import ranges as rg
from .cache import Cache
from .checks import of_type, whole
from .errors import invalid
from .exchange import Floats, ReplyForm
from .job import AnyTable, GroupJob, Queries
from .policy import Policy
from .region import Slice
from .timeline import TimelineWord


class CompressRequest(TypedDict, total=False):
    """Keyword arguments of `Client.plan` and `Client.compress`; described there."""

    rows: int
    keep_ratio: float | str | Decimal | None
    max_tokens: int | None
    policy: Policy | Sequence[Policy] | None
    table: AnyTable | None
    protect: Sequence[rg.Range]
    protect_prefix: int
    positions: Sequence[rg.Range] | None
    keep: Sequence[rg.Range] | None
    chunk_lengths: Sequence[int] | None
    destination: AnyTable | None
    scores_out: bool | Slice
    scores_in: NDArray[Any] | Slice | None
    score_kind: Literal["units", "rows"]
    jobs: Sequence[GroupJob] | None
    reply_form: ReplyForm | None
    queries: Queries | None
    logical_len: int | None
    timeout: float | None
    generation: int
    request_id: int | None
    lse: Floats
    sink_logits: Floats
    want_kept_mass: bool
    wait: TimelineWord | None
    signal: TimelineWord | None
    hold: bool
    single_pass: bool


_OF_A_JOB = {item.name for item in fields(GroupJob)}


def check_names(method: str, request: CompressRequest) -> None:
    """TypeError for an argument that there is not, as any function has it: a typo must not leave rows unprotected."""
    known = CompressRequest.__annotations__
    for name in request:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}{hint}")


def jobs_of(cache: Cache, request: CompressRequest) -> list[GroupJob]:
    """The jobs of a request, checked."""
    given = request.get("jobs")
    if given is None:
        jobs = [_only_job(cache, request)]
    else:
        of_type("jobs", given, Sequence)
        jobs = list(given)
        if not jobs:
            raise invalid("jobs", "must have at least 1 entry, has 0")
        for name, value in request.items():
            if name in _OF_A_JOB and value is not None:
                raise invalid(name, "must not be set together with jobs: each GroupJob has its own")
    for i, job in enumerate(jobs):
        of_type(f"jobs[{i}]", job, GroupJob)
    return [job.checked(f"compress.groups[{i}]") for i, job in enumerate(jobs)]


def _only_job(cache: Cache, request: CompressRequest) -> GroupJob:
    """The GroupJob of a request that does not bring its own."""
    if "rows" not in request:
        raise invalid("rows", "the number of rows in the cache is needed")
    rows = whole("compress.groups[0].rows", request["rows"])
    table = request.get("table")
    if table is None:
        table = cache.default_table(rows)
    if table is None:
        raise invalid("table", "this cache does not know where the rows of a sequence are")
    return GroupJob(
        rows=rows, table=table, policy=Policy() if (policy := request.get("policy")) is None else policy,
        keep_ratio=request.get("keep_ratio"), max_tokens=request.get("max_tokens"),
        protect=request.get("protect", ()), protect_prefix=request.get("protect_prefix", 0),
        positions=request.get("positions"), keep=request.get("keep"), chunk_lengths=request.get("chunk_lengths"),
        destination=request.get("destination"), scores_out=request.get("scores_out", False),
        scores_in=request.get("scores_in"), score_kind=request.get("score_kind", "units"))
