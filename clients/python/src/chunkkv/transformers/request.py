"""One compression of a cache: the request, and what becomes of the rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from ..answer import Answer
from ..cache import Cache
from ..client import Client
from ..errors import CannotCompress, ChunkkvError, CoreDied, DeviceError
from ..job import GroupJob, Table
from ..policy import Policy
from ..ranges import Range, count, positions_of, rows_from_ranges
from ..request import CompressRequest
from ..wire import CacheState, Code
from .arena import capacity_for
from .registered import Registered, Unit
from .report import Report
from .settings import Settings, of_the_model, ranges_voted
from .store import Store

LOOK_SECONDS = 0.05  # between two looks for the next daemon


def compress_store(client: Client, store: Store, settings: Settings) -> Report:
    """Let the daemon compress the rows of now in place, and go on in memory of the size that is needed.

    Raises:
        ChunkkvError: `cache` CLEAN: nothing was changed.  Else the cache refuses to go on.
    """
    assert store.arena is not None
    store.check_whole()
    settings.check_again(store)
    settings.check_batch(store.batch)
    settings.check_protected(store.seen)
    store.arena.place.synchronize()
    began = time.perf_counter()
    wanted = settings.rows_asked(store.seen)
    before = {layer.number: layer.length for layer in store.layers}
    bytes_before = store.arena.memory.size
    if store.registered is None or not store.registered.serves(client):
        store.release()
        store.registered = Registered(client, store, settings.each_layer(bool(store.positions)))
    registered = store.registered
    answers: list[Answer] = []
    found: list[tuple[Unit, Answer, int]] = []
    try:
        for cache, units in registered.parts:
            jobs = [_job(store, settings, i, unit) for i, unit in enumerate(units)]
            queries = None
            if settings.voted is not None or any(job.needs_queries for job in jobs):
                queries = registered.queries(store, units)
            if settings.voted is not None:
                ask = [_vote(store, settings, job, unit) for job, unit in zip(jobs, units, strict=True)]
                vote = client.plan(cache, jobs=ask, queries=queries, logical_len=store.seen, timeout=settings.timeout)
                jobs = [_with_voted(job, vote) for job in jobs]
            answer = _ask(client, cache, settings.timeout, jobs=jobs, queries=queries, logical_len=store.seen)
            answers.append(answer)
            found += [(unit, answer, i) for i, unit in enumerate(units)]
    except ChunkkvError as error:
        if error.cache != CacheState.CLEAN or found:
            store.broken = str(error)
        raise settings.as_asked(error) from None
    heads = _take_over(store, found)
    _settle(store, settings)
    return Report(
        sequences=store.batch, tokens=store.seen, budget=wanted, rows_before=before,
        rows_after={layer.number: layer.length for layer in store.layers}, bytes_before=bytes_before,
        bytes_after=store.arena.memory.size, seconds=time.perf_counter() - began,
        positions=[{number: [rows_from_ranges(ranges) for ranges in each] for number, each in layers.items()}
                   for layers in heads], answers=answers)


def _ask(client: Client, cache: Cache, timeout: float, **request: Unpack[CompressRequest]) -> Answer:
    """The answer, also if the device fails while rows move: the next daemon goes on where this one stopped.

    Memory of a GPU needs a daemon for that; in shared memory the client finishes by itself.  A move of more steps than
    there may be, as where nearly all rows stay, is made in one, and nobody could go on with that.
    """
    try:
        return client.compress(cache, timeout=timeout, **request)
    except CannotCompress as error:
        if error.code != Code.TOO_MANY_STEPS:
            raise
        return client.compress(cache, timeout=timeout, **{**request, "single_pass": True})
    except (CoreDied, DeviceError) as error:
        if error.cache != CacheState.TORN_REPAIRABLE:
            raise
        return _repaired(client, error.request_id, time.monotonic() + timeout)


def _repaired(client: Client, request_id: int, until: float) -> Answer:
    """The answer of the next daemon; the one whose device is lost may still be ending, and says so in several ways."""
    while True:
        try:
            return client.repair(request_id, max(until - time.monotonic(), LOOK_SECONDS))
        except ChunkkvError as error:
            if error.cache not in (CacheState.PENDING, CacheState.TORN_REPAIRABLE) or time.monotonic() > until:
                if error.cache == CacheState.CLEAN:  # of this call; the rows are as the first daemon left them
                    error.cache = CacheState.TORN_REPAIRABLE
                raise
        time.sleep(LOOK_SECONDS)


def _job(store: Store, settings: Settings, group: int, unit: Unit) -> GroupJob:
    """What is asked for the layers of a unit, whose rows are of the same tokens."""
    first = unit.layers[0]
    plan, budget = settings.job([layer.number for layer in store.layers], first.length,
                                store.seen if store.positions else 0)
    positions = store.ranges(unit.sequence, first) if store.positions else None
    return GroupJob(rows=first.length, table=Table([0]), group=group,
                    policy=_for_unit([of_the_model(policy, store) for policy in plan], store, unit),
                    protect=settings.protect, positions=positions, chunk_lengths=settings.chunk_lengths, **budget)


def _vote(store: Store, settings: Settings, job: GroupJob, unit: Unit) -> GroupJob:
    """What is asked before a job: the rows that all layers agree on."""
    policy, most = settings.vote(job.rows)
    return replace(job, policy=_for_unit([of_the_model(policy, store)], store, unit), chunk_lengths=None,
                   keep_ratio=None, max_tokens=most)


def _with_voted(job: GroupJob, vote: Answer) -> GroupJob:
    """The job, which keeps what was voted for as well."""
    result = next(one for one in vote.groups if one.group == job.group)
    return replace(job, protect=[*job.protect, *ranges_voted(result)])


def _for_unit(plan: Sequence[Policy], store: Store, unit: Unit) -> list[Policy]:
    """The plan in the layer numbers that the daemon knows."""
    if len(unit.layers) < len(store.layers):
        number = unit.layers[0].number
        in_force = [policy for policy in plan if (policy.layer_first or 0) <= number] or list(plan[:1])
        return [replace(in_force[-1], layer_first=0)]
    base = unit.sequence * store.stride
    return [replace(policy, layer_first=policy.layer_first + base) if policy.layer_first else policy
            for policy in plan]


Heads = list[dict[int, list[Sequence[Range]]]]  # [sequence][layer number]: positions of each KV head, or of all


def _take_over(store: Store, found: Sequence[tuple[Unit, Answer, int]]) -> Heads:
    """The new lengths and positions."""
    heads: Heads = [{} for _ in range(store.batch)]
    lengths: dict[int, int] = {}
    for unit, answer, group in found:
        result = next(one for one in answer.groups if one.group == group)
        for layer in unit.layers:
            one = result.layers[unit.sequence * store.stride + layer.number]
            own = list(one.heads.values()) or [one.kept]
            old = store.ranges(unit.sequence, layer)
            heads[unit.sequence][layer.number] = [positions_of(kept, old) for kept in own]
            rows = count(own[0])
            if lengths.setdefault(layer.number, rows) != rows:
                store.broken = "sequences of the batch kept different numbers of rows"
    for layer in store.layers:
        layer.length = lengths[layer.number]
    store.positions = [{number: each[0] for number, each in layers.items()} for layers in heads]
    store.done, store.since = True, store.seen
    return heads


def _settle(store: Store, settings: Settings) -> None:
    """Smaller memory where three quarters of it would do; registrations and queries only for the next time."""
    assert store.arena is not None
    needed = capacity_for(max(layer.length for layer in store.layers) + (settings.every or 0))
    if 4 * needed <= 3 * store.arena.capacity:
        store.resize(needed)
    if settings.every is None:
        store.release()
        store.forget_queries()
    elif store.ring is not None:
        store.ring.clear()
