"""One compress request as a whole: what of it travels in messages, and what through shared memory.

Tables of very many blocks do not fit a request, and kept sets of many layers do not fit a reply.  Such tables
are sent as runs, or else put into memory that is registered for this one request; such replies are asked for in
memory too.  Scores always go that way.  Whoever calls compress() sees nothing of it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from . import ranges as rg
from ._pb import chunkkv_pb2 as pb
from .answer import Answer, Kept, answer_of
from .cache import Cache
from .checks import MOST_32, of_type, whole, word
from .control import Ticket
from .errors import invalid
from .forward import FoundSet
from .job import AnyTable, GroupJob, Queries, Table, table_of
from .memory import SharedMemory
from .policy import MILLION, Policy, millionths
from .region import Region, Slice
from .session import Limits
from .timeline import TimelineWord
from .wire import Mode

Floats = NDArray[Any] | Slice | None
ReplyForm = Literal["runs", "rows", "in_region", "no_sets"]
ALIGN = 64  # bytes: each piece begins on a cache line of its own
ENVELOPE = 2048  # bytes of a request beside its lists, generously
UNWRITTEN = 0x7FC0DEAD  # a NaN: scores that come out are finite, so what still holds it was not written
SET_HEAD = 6  # words in front of a set in memory: group, layer, head, rows before, rows kept, words of runs
FNV64_INIT, FNV64_PRIME = 0xCBF29CE484222325, 0x100000001B3
CHUNK = {"default": 10, "paper": 10, "kvpress": 20, "retrieval": 10}


def fnv64(hashed: int, data: bytes) -> int:
    """FNV-1a 64 of more bytes."""
    for byte in data:
        hashed = (hashed ^ byte) * FNV64_PRIME & 0xFFFFFFFFFFFFFFFF
    return hashed


@dataclass
class _Piece:
    """A piece of the memory of one request: what is put there, or room for what comes back."""

    offset: int
    size: int
    content: NDArray[Any] | None = None


def unit_rows(job: GroupJob, policy: Policy) -> int:
    """Least rows that are kept or dropped together, but for a few at the edges."""
    if policy.selector not in (None, "chunk") or job.positions is not None:
        return 1
    return policy.chunk or CHUNK.get(policy.profile, 1)


def most_runs(job: GroupJob) -> int:
    """The most kept runs that one set of a group can have; a little more than what the daemon wants room for.

    Units are kept or dropped whole, but for the one at which the budget ends.  Protected rows form a stretch for
    each span, and at both ends.  A kept run holds whole kept units or such a stretch; a dropped run holds whole dropped
    units, or touches a stretch, which has two sides.
    """
    if job.keep is not None:
        return len(job.keep)
    return max(_most_runs(job, policy) for policy in job.policies)


def _most_runs(job: GroupJob, policy: Policy) -> int:
    unit, stretches = unit_rows(job, policy), len(job.protect) + 3
    cut = unit // 2 + 4  # runs inside the unit at which the budget ends
    if policy.beta or policy.selector == "h2o":  # their budgets are not those of the request
        return job.rows // 2 + cut
    least = job.rows if job.keep_ratio is None else job.rows * millionths(job.keep_ratio) // MILLION
    least = min(least, job.rows if job.max_tokens is None else job.max_tokens)
    most = least + (policy.align or 1)
    return min(most // unit + stretches, (job.rows - least) // unit + 2 * stretches, job.rows // 2) + cut


class Exchange:
    """A compress request, from its arguments to its answer.

    Attributes:
        cache, jobs: of the request.
        room: bytes of shared memory that it needs; 0 = none.
        kept_bytes: bytes that its kept sets may need in a control slot.
    """

    def __init__(self, mode: Mode, cache: Cache, jobs: Sequence[GroupJob], *, queries: Queries | None,
                 logical_len: int, reply_form: ReplyForm | None, limits: Limits, has_memory: bool = True,
                 hold: bool = False, single_pass: bool = False, want_kept_mass: bool = False,
                 lse: Floats = None, sink_logits: Floats = None,
                 wait: TimelineWord | None = None, signal: TimelineWord | None = None) -> None:
        """Decide how everything travels; without `has_memory` nothing is moved out of the messages."""
        self._mode, self.cache, self.jobs, self._limits = mode, cache, list(jobs), limits
        self._queries, self._logical_len = queries, logical_len
        self._hold, self._single_pass, self._want_kept_mass = hold, single_pass, want_kept_mass
        self._timeline = {"wait": wait, "signal": signal}
        for name, timed in self._timeline.items():
            if timed is not None:
                of_type(name, timed, TimelineWord)
        self.room = 0
        self._memory: SharedMemory | None = None
        for i, job in enumerate(self.jobs):
            whole(f"compress.groups[{i}].group", job.group, 0, len(cache.layout.groups) - 1)
            # room for scores and sets is taken by it
            whole(f"compress.groups[{i}].rows", job.rows, 0, limits.rows or MOST_32)
        if reply_form is not None:
            word("compress.reply_form", reply_form, get_args(ReplyForm))
        self._has_memory = has_memory
        self._tables = self._choose_tables()
        self._scores_in = [self._piece_of_scores(job, i) for i, job in enumerate(self.jobs)]
        self._scores_out = [self._room_for_scores(job) for job in self.jobs]
        self._floats = {name: place if place is None or isinstance(place, Slice) else self._piece_of_floats(place, name)
                        for name, place in (("lse", lse), ("sink_logits", sink_logits))}
        self._form = reply_form or self._choose_form()
        self.kept_bytes = sum(self._set_bytes(job) for job in self.jobs)
        self._reply = self._take(self.kept_bytes) if self._form == "in_region" else None

    def message(self, region: Region | None, memory: SharedMemory | None, ticket: Ticket | None = None) -> pb.Compress:
        """The request; `region` and `memory` are the room it asked for, `memory` as the region holds it."""
        self._memory = memory
        jobs = []
        for i, job in enumerate(self.jobs):
            table, destination = (self._table(place, region) for place in self._tables[i])
            scores_in, scores_out = self._scores_in[i], self._scores_out[i]
            jobs.append(replace(
                job, table=table, destination=destination,
                scores_in=job.scores_in if scores_in is None else self._put(scores_in, region),
                scores_out=job.scores_out if scores_out is None else self._put(scores_out, region)))
        body = pb.Compress(
            cache_id=self.cache.id, mode=int(self._mode), logical_len=self._logical_len,  # type: ignore[arg-type]
            reply_form=getattr(pb, f"REPLY_{self._form.upper()}"), hold=self._hold, single_pass=self._single_pass,
            want_kept_mass=self._want_kept_mass,
            control_slot=0 if ticket is None else ticket.number, control_use=0 if ticket is None else ticket.use,
            groups=[job.to_message(f"compress.groups[{i}]") for i, job in enumerate(jobs)])
        if self._queries is not None and any(job.needs_queries for job in jobs):
            body.queries.CopyFrom(self._queries.to_message())
            for name, place in self._floats.items():
                if place is not None:
                    where = self._put(place, region) if isinstance(place, _Piece) else place
                    getattr(body.queries, name).CopyFrom(where.to_message())
        for name, timed in self._timeline.items():
            if timed is not None:
                getattr(body, name).CopyFrom(timed.to_message())
        if self._reply is not None:
            body.reply_to.CopyFrom(self._put(self._reply, region).to_message())
        return body

    def answer(self, response: pb.Response) -> Answer:
        """What the response says, with the sets and the scores that came through memory."""
        results = response.compressed.groups
        sets = None if self._reply is None else self._read_sets(results)
        scores = [None if piece is None else self._read_scores(piece, result)
                  for piece, result in zip(self._scores_out, results, strict=True)]
        return answer_of(response, self.cache.layout.groups, self.jobs, sets, scores)

    def answer_of_sets(self, request_id: int, generation: int, found: Sequence[FoundSet]) -> Answer:
        """The answer that a daemon owed who died after it had selected these sets."""
        results = [self._result_of_sets(job, [one for one in found if one.group == job.group]) for job in self.jobs]
        sets = [[Kept(one.layer_first, one.kv_head, one.kept) for one in found if one.group == job.group]
                for job in self.jobs]
        scores = [None if piece is None else self._read_scores(piece, result)
                  for piece, result in zip(self._scores_out, results, strict=True)]
        response = pb.Response(
            request_id=request_id, generation=generation, status=pb.Status(cache=pb.CACHE_COMMITTED),
            compressed=pb.Compressed(phase=pb.PHASE_DONE, logical_len=self._logical_len, groups=results))
        return answer_of(response, self.cache.layout.groups, self.jobs, sets, scores)

    def _result_of_sets(self, job: GroupJob, found: Sequence[FoundSet]) -> pb.GroupResult:
        length = max((rg.count(one.kept) for one in found), default=job.rows)
        digest = FNV64_INIT
        for one in found:
            runs = rg.runs_from_ranges(one.kept)
            digest = fnv64(digest, struct.pack(f"<{SET_HEAD + len(runs)}I", one.group, one.layer_first, one.kv_head,
                                               one.physical_before, rg.count(one.kept), len(runs), *runs))
        whole_blocks = table_of(job.table).form in ("blocks", "block_runs")
        per_entry = self.cache.layout.groups[job.group].tokens_per_block if whole_blocks else 1
        policies = [job.policy] if isinstance(job.policy, Policy) else job.policy
        full: pb.KeptAll = pb.KEPT_FITS if job.rows else pb.KEPT_EMPTY
        return pb.GroupResult(
            group=job.group, physical_before=job.rows, physical_len=length,
            kept_all=pb.DROPPED if length < job.rows else full, table_used=-(-length // per_entry),
            set_count=len(found), kept_digest=digest,
            policies=[policy.to_message() for policy in policies])

    # ---- memory

    def _take(self, size: int, content: NDArray[Any] | None = None) -> _Piece:
        piece = _Piece(self.room, max(size, 4), content)
        self.room = -(-(piece.offset + piece.size) // ALIGN) * ALIGN
        return piece

    def _put(self, piece: _Piece, region: Region | None) -> Slice:
        assert region is not None
        assert self._memory is not None
        if piece.content is not None:
            self._memory.numpy(piece.content.shape, piece.content.dtype, piece.offset)[...] = piece.content
        return region.slice(piece.offset, piece.size)

    def _view(self, piece: _Piece, words: int) -> NDArray[np.uint32]:
        assert self._memory is not None
        return self._memory.numpy(words, np.uint32, piece.offset)

    # ---- tables

    def _choose_tables(self) -> list[list[Table | tuple[_Piece, Table] | None]]:
        """The tables of each job as they will be sent: as given, in runs, or through memory; the largest first."""
        tables: list[list[Any]] = []
        for i, job in enumerate(self.jobs):
            given: tuple[AnyTable | None, ...] = (job.table, job.destination)
            paths = (f"compress.groups[{i}].table", f"compress.groups[{i}].destination")
            tables.append([None if t is None else self._plain(table_of(t), path)
                           for t, path in zip(given, paths, strict=True)])
        left = self._limits.request_bytes or 1 << 62
        left -= ENVELOPE + sum(self._list_bytes(job) for job in self.jobs)
        for shorten in (self._in_runs, self._in_memory) if self._has_memory else (self._in_runs,):
            places = [(i, k) for i, pair in enumerate(tables) for k in (0, 1) if self._inline(pair[k])]
            for i, k in sorted(places, key=lambda place: -self._inline(tables[place[0]][place[1]])):
                if sum(self._inline(t) for pair in tables for t in pair) > left:
                    tables[i][k] = shorten(tables[i][k], f"compress.groups[{i}].{('table', 'destination')[k]}")
        return tables

    @staticmethod
    def _plain(table: Table, path: str) -> Table:
        """With its entries as an array of words."""
        return table if isinstance(table.entries, Slice) else Table(table.words(path), table.form)

    @staticmethod
    def _inline(table: Any) -> int:
        """Bytes of a table in the message."""
        return table.entries.nbytes if isinstance(table, Table) and isinstance(table.entries, np.ndarray) else 0

    @staticmethod
    def _in_runs(table: Table, path: str) -> Table:
        return table.in_runs(path)

    def _in_memory(self, table: Table, path: str) -> tuple[_Piece, Table]:
        words = table.words(path)
        return self._take(words.nbytes, words), table

    def _table(self, place: Table | tuple[_Piece, Table] | None, region: Region | None) -> Any:
        return Table(self._put(place[0], region), place[1].form) if isinstance(place, tuple) else place

    @staticmethod
    def _list_bytes(job: GroupJob) -> int:
        """Bytes of a job beside its tables, at most."""
        runs = 2 * len(job.positions or ()) + 2 * len(job.keep or ()) + len(job.chunk_lengths or ())
        return 512 + 5 * runs + 16 * len(job.protect)

    # ---- scores

    def _sets(self, job: GroupJob) -> int:
        """Kept sets, and sets of scores, at most."""
        group = self.cache.layout.groups[job.group]
        layers = 1 if all(policy.keeps_one_set for policy in job.policies) else len(group.layers)
        return layers * (group.kv_heads if any(policy.heads == "each" for policy in job.policies) else 1)

    def _piece_of_floats(self, floats: NDArray[Any], name: str) -> _Piece:
        """Room for what comes beside the queries; the daemon checks its size."""
        try:
            array = np.ascontiguousarray(floats, np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise invalid(f"compress.queries.{name}", f"is no array of float32: {error}") from None
        return self._take(array.nbytes, array)

    def _piece_of_scores(self, job: GroupJob, index: int) -> _Piece | None:
        if job.scores_in is None or isinstance(job.scores_in, Slice):
            return None
        try:
            scores = np.ascontiguousarray(job.scores_in)
        except (TypeError, ValueError) as error:
            raise invalid(f"compress.groups[{index}].scores_in", f"is no array: {error}") from None
        if scores.dtype != np.float32:
            raise invalid(f"compress.groups[{index}].scores_in", f"{scores.dtype} is not float32")
        return self._take(scores.nbytes, scores)

    def _room_for_scores(self, job: GroupJob) -> _Piece | None:
        if job.scores_out is not True:
            return None
        # units are counted by the daemon: there are at most so many, and what it wrote will be seen
        unit = min(unit_rows(job, policy) for policy in job.policies)
        most = job.rows if job.score_kind == "rows" or job.chunk_lengths is not None else job.rows // unit + 2
        words = self._sets(job) * max(most, 1)
        return self._take(4 * words, np.full(words, UNWRITTEN, np.uint32))

    def _read_scores(self, piece: _Piece, result: pb.GroupResult) -> NDArray[np.float32] | None:
        """The scores as [layers or 1][units or rows], with heads="each" [layers][kv_heads][units or rows], where only
        some layers have sets for each head one after the other; None where nothing had to be scored."""
        words = self._view(piece, piece.size // 4)
        written = np.flatnonzero(words != UNWRITTEN)
        if len(written) == 0:
            return None
        group = self.cache.layout.groups[result.group]
        one = any(policy.layers == pb.LAYERS_ONE for policy in result.policies)
        each = [policy.heads == pb.HEADS_EACH for policy in result.policies]
        shape = (1 if one else len(group.layers), *((group.kv_heads,) if any(each) else ()), -1)
        if any(each) and not all(each):
            shape = (-1,)
        return words[: int(written[-1]) + 1].copy().view(np.float32).reshape(shape)

    # ---- replies

    def _choose_form(self) -> ReplyForm:
        """Runs in the message where they surely fit, else in memory."""
        most = self._limits.reply_bytes
        if not most or not self._has_memory:
            return "runs"
        size = 0
        for job in self.jobs:
            runs = most_runs(job)
            one = 2 * runs + job.rows // 100 + 48
            if job.positions is not None:  # a run of rows breaks where their positions do
                one += 2 * (runs + len(job.positions)) + job.next_position // 100 + 48
            layers = len(self.cache.layout.groups[job.group].layers)
            size += 512 + 512 * len(job.policies) + self._sets(job) * one + 4 * layers
        return "runs" if 2 * size <= most else "in_region"

    def _set_bytes(self, job: GroupJob) -> int:
        return self._sets(job) * (4 * SET_HEAD + 8 * most_runs(job))

    def _read_sets(self, results: Sequence[pb.GroupResult]) -> list[list[Kept]]:
        """The sets of each group out of the reply's memory."""
        assert self._reply is not None
        words = self._view(self._reply, self._reply.size // 4)
        place = 0
        sets: list[list[Kept]] = []
        for result in results:
            of_group = []
            for _ in range(result.set_count):
                _group, layer_first, kv_head, _before, _after, count = words[place : place + SET_HEAD].tolist()
                place += SET_HEAD + count
                of_group.append(Kept(layer_first, kv_head, rg.ranges_from_runs(words[place - count : place].tolist())))
            sets.append(of_group)
        return sets
