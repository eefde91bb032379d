"""The client: one session with one daemon.

Nothing happens in the background: a call sends, waits and returns, and every call ends by its time limit.
A lock makes it safe to share between threads; one client serves one request at a time, except that
`cancel()` has a connection of its own and gets through while another thread waits.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import threading
from collections.abc import Sequence
from dataclasses import fields
from decimal import Decimal
from types import TracebackType
from typing import Any, Literal, TypedDict, Unpack

from numpy.typing import NDArray

from . import ranges as rg
from ._pb import chunkkv_pb2 as pb
from .answer import Answer, Budget, Outcome, Pong, outcome_of
from .cache import Cache
from .checks import MOST_64, of_type, whole
from .connection import Connection, code_of, deadline
from .endpoint import Endpoint
from .errors import ChunkkvError, SessionLost, Unsupported, from_status, invalid
from .exchange import Exchange, ReplyForm
from .job import AnyTable, GroupJob, Queries
from .layout import CacheLayout
from .memory import SharedMemory
from .policy import Policy
from .region import Region, Slice
from .session import Session
from .side import Notice
from .wire import Access, CacheState, Code, Mode, Radius, Slot

FAREWELL = 1.0  # seconds, for EndSession


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


class Client:
    """A session with a daemon.

    Args:
        endpoint: path prefix of the daemon's sockets; None = $CHUNKKV_ENDPOINT, else /run/chunkkv/cpu/main.
        name: for the daemon's logs.
        timeout: seconds that a call may take where it does not say otherwise.
        needs_side: open the side socket too.  Without it no shared memory can be registered, and the death of
            the daemon is noticed only by its silence.
        needs: capabilities without which the session is refused, such as "hold".

    Raises:
        DaemonUnavailable: nobody answers there.
    """

    def __init__(self, endpoint: str | os.PathLike[str] | None = None, *, name: str = "chunkkv-python/0.1",
                 timeout: float = 5.0, needs_side: bool = True, needs: Sequence[str] = ()) -> None:
        self.endpoint = Endpoint.find(endpoint)
        self.timeout = timeout
        self._name, self._needs_side, self._needs = name, needs_side, tuple(needs)
        self._lock = threading.RLock()
        self._connection = self._connect()

    # ---- session

    @property
    def session(self) -> Session:
        """What was agreed with the daemon: boot id, limits, capabilities."""
        return self._connection.session

    def reconnect(self) -> None:
        """Begin a new session.  Regions and caches of the old one are gone: register them again."""
        with self._lock:
            self._connection.close()
            self._connection = self._connect()

    def close(self) -> None:
        """End the session: when this returns, the daemon touches nothing of ours any more, or is dead."""
        with self._lock:
            if self._connection.usable:
                # on an error, closing the side socket, or our death, ends it all the same
                with contextlib.suppress(ChunkkvError):
                    self.call(pb.Request(end_session=pb.EndSession()), timeout=FAREWELL)
            self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def notices(self) -> list[Notice]:
        """What the daemon told unasked since the last call: draining, a lost region, the session's end."""
        with self._lock:
            side = self._connection.side
            return side.notices() if side is not None and self._connection.usable else []

    def ping(self, timeout: float | None = None) -> Pong:
        """Ask for a sign of life."""
        pong = self.call(pb.Request(ping=pb.Ping()), timeout=timeout).pong
        return Pong(pong.now_ns, pong.last_progress_ns, pong.in_flight, pong.draining)

    def status(self) -> list[Budget]:
        """The tenant's budgets."""
        reply = self.call(pb.Request(get_status=pb.GetStatus())).status_reply
        return [Budget(Slot(b.slot), b.used, b.limit) for b in reply.budgets if b.slot in Slot._value2member_map_]

    # ---- memory

    def register_region(self, memory: SharedMemory | int, *, size: int | None = None, offset: int = 0,
                        access: Access | None = None, address: int = 0, timeout: float | None = None) -> Region:
        """Let the daemon map memory.

        Args:
            memory: SharedMemory, or the descriptor of a sealed memfd (it stays the caller's).
            size: bytes; None = to the end.
            offset: first byte inside the memfd.
            access: None = READ for read-only memory, else READ_WRITE.
            address: where byte `offset` is mapped in this process, for layouts made from arrays; known for
                SharedMemory.
            timeout: seconds.
        """
        offset = whole("register_region.offset", offset, 0, MOST_64)
        if isinstance(memory, SharedMemory):
            fd, total, address = memory.fileno(), memory.size, memory.address + offset
            chosen = Access.READ if memory.read_only else Access.READ_WRITE
        else:
            # what is no file has no size; the daemon then says what it is instead
            fd, total, chosen = memory, _size_of(memory) or offset + (size or 0), Access.READ_WRITE
        if access is not None and access not in Access._value2member_map_:
            raise invalid("register_region.access", f"{access!r} is no Access")
        access = chosen if access is None else access
        size = whole("register_region.size", total - offset if size is None else size, 0, MOST_64)
        with self._lock:
            side = self._connection.side
            if side is None:
                raise Unsupported("this session has no side connection, so it can offer no memory",
                                  code=Code.UNSUPPORTED, field="register_region.memfd_token")
            body = pb.RegisterRegion(memfd_token=side.offer(fd, total), offset=offset, size=size,
                                     access=int(access))  # type: ignore[arg-type]
            reply = self.call(pb.Request(register_region=body), timeout=timeout).region_registered
        return Region(reply.region_id, size, access, reply.shared, address,
                      memory if isinstance(memory, SharedMemory) else None, self.session.number)

    def unregister_region(self, region: Region) -> None:
        """When this returns, the daemon has the region no longer mapped."""
        of_type("region", region, Region)
        self._check_session(region.session, "region")
        self.call(pb.Request(unregister_region=pb.UnregisterRegion(region_id=region.id)))

    def register_cache(self, layout: CacheLayout, *, timeout: float | None = None) -> Cache:
        """Tell the daemon where the planes of a cache lie."""
        of_type("layout", layout, CacheLayout)
        layout.check()
        for plane in layout.planes:
            self._check_session(plane.region.session, "register_cache.planes.region_id")
        reply = self.call(pb.Request(register_cache=layout.to_message()), timeout=timeout).cache_registered
        return Cache(layout, reply.cache_id, reply.fast_path, self.session.number)

    def unregister_cache(self, cache: Cache) -> None:
        """Forget a cache; its regions stay."""
        of_type("cache", cache, Cache)
        self._check_session(cache.session, "cache")
        self.call(pb.Request(unregister_cache=pb.UnregisterCache(cache_id=cache.id)))

    def unregister_quietly(self, cache: Cache, region: Region) -> None:
        """Unregister both if their session still lives; no error if it does not."""
        with self._lock:
            if not self._connection.usable or self.session.number != cache.session:
                return
            with contextlib.suppress(SessionLost):  # what is to be unregistered is gone with it
                self.unregister_cache(cache)
                self.unregister_region(region)

    # ---- compression

    def plan(self, cache: Cache, **request: Unpack[CompressRequest]) -> Answer:
        """Say which rows would be kept; writes nothing.  Arguments as compress()."""
        return self._compress("plan", Mode.PLAN, cache, request)

    def compress(self, cache: Cache, **request: Unpack[CompressRequest]) -> Answer:
        """Keep the best rows of a sequence and move them to the front, in place.

        Args:
            cache: what register_cache() or SharedCache.allocate() returned.
            **request: as follows.

        Keyword Args:
            rows (int): rows now in the cache.
            keep_ratio (float | str): fraction to keep, at most 1.
            max_tokens (int): rows to keep; with both, the smaller.
            policy (Policy): how to score and select.
            table (Table | Sequence[int] | ndarray | Slice): where the rows are; a SharedCache knows.
            protect, protect_prefix, positions, keep, chunk_lengths, scores_out, scores_in, score_kind: as in GroupJob;
                positions of an earlier answer are `answer.positions()`.
            jobs (Sequence[GroupJob]): instead of all those, for several layer groups.
            queries (Queries): the newest query rows; a SharedCache knows.
            reply_form (str): how the kept rows come back: "runs", "rows", "in_region", or "no_sets" for not at
                all; None = in the message where they fit, else through memory.
            logical_len (int): tokens that the model has seen; default: one past the last row's position.
            timeout (float): seconds.
            generation (int): given back untouched.
            request_id (int): from new_request_id(), to cancel() from another thread.

        Raises:
            ChunkkvError: error.cache says what became of the cache.
        """
        return self._compress("compress", Mode.IN_PLACE, cache, request)

    def copy_out(self, cache: Cache, **request: Unpack[CompressRequest]) -> Answer:
        """Copy the kept rows in order to `destination` (a table); the source is never written.

        Further arguments as compress().  The destination needs room for all kept rows, in blocks that the source does
        not use.  Where nothing is to be dropped (`kept_all` says why), nothing is copied: go on with the source.  After
        an error the destination may hold anything.
        """
        return self._compress("copy_out", Mode.COPY_OUT, cache, request)

    def new_request_id(self) -> int:
        """An id for one request of this session."""
        return self._connection.new_request_id()

    def cancel(self, request_id: int, timeout: float | None = None) -> Outcome:
        """Cancel a request of this session, from any thread; the outcome says whether it was too late."""
        request_id = whole("request_id", request_id, 0, MOST_64)
        response = self._connection.cancel(request_id, deadline(self.timeout if timeout is None else timeout))
        return outcome_of(_checked(response).outcome)

    def outcome(self, request_id: int, timeout: float | None = None) -> Outcome:
        """What became of an earlier request of this session."""
        body = pb.Request(get_status=pb.GetStatus(target_request_id=whole("request_id", request_id, 0, MOST_64)))
        return outcome_of(self.call(body, timeout=timeout).outcome)

    def call(self, body: pb.Request, *, timeout: float | None = None, generation: int = 0,
             request_id: int | None = None) -> pb.Response:
        """The low level: send a request as it is, return its answer, raise its error.

        Id, deadline, boot id and session token are filled in.  Meant for requests that write nothing.
        """
        with self._lock:
            until = deadline(self.timeout if timeout is None else timeout)
            return _checked(self._connection.exchange(
                self._connection.compose(body, until, generation, request_id)))

    # ---- inside

    def _connect(self) -> Connection:
        return Connection(self.endpoint, self._name, self.timeout, self._needs_side, self._needs)

    def _check_session(self, number: int, field: str) -> None:
        if number != self.session.number:
            raise SessionLost("registered in an earlier session: register it again", field=field,
                              radius=Radius.SESSION)

    def _compress(self, method: str, mode: Mode, cache: Cache, request: CompressRequest) -> Answer:
        _check_names(method, request)
        of_type("cache", cache, Cache)
        self._check_session(cache.session, "compress.cache_id")
        jobs = _jobs(cache, request)
        queries = request.get("queries")
        if queries is None:
            queries = cache.default_queries()
        else:
            of_type("queries", queries, Queries)
        logical_len = request.get("logical_len")
        if logical_len is None:
            logical_len = max(job.next_position for job in jobs)
        logical_len = whole("compress.logical_len", logical_len)
        if queries is not None and any(job.needs_queries for job in jobs):
            self._check_session(queries.region.session, "compress.queries.data")
        timeout = request.get("timeout")
        with self._lock, contextlib.ExitStack() as at_end:
            exchange = Exchange(mode, cache, jobs, queries=queries, logical_len=logical_len,
                                reply_form=request.get("reply_form"), limits=self.session.limits,
                                has_memory=self._connection.side is not None)
            region, memory = None, None
            if exchange.room:
                memory = at_end.enter_context(SharedMemory.allocate(exchange.room, name="chunkkv-request"))
                region = self.register_region(memory)
                at_end.callback(self._forget, region)
            pending = self._connection.compose(
                pb.Request(compress=exchange.message(region, memory)),
                deadline(self.timeout if timeout is None else timeout),
                request.get("generation", 0), request.get("request_id"))
            if mode == Mode.PLAN:
                response = self._connection.exchange(pending)
            else:
                response = self._connection.exchange_writing(
                    pending, CacheState.TORN if mode == Mode.IN_PLACE else CacheState.CLEAN)
            return exchange.answer(_checked(response))

    def _forget(self, region: Region) -> None:
        """Unregister what one request needed; where that fails, the session's end does it."""
        if self._connection.usable and region.session == self.session.number:
            with contextlib.suppress(ChunkkvError):
                self.call(pb.Request(unregister_region=pb.UnregisterRegion(region_id=region.id)), timeout=FAREWELL)


_OF_A_JOB = {item.name for item in fields(GroupJob)}


def _check_names(method: str, request: CompressRequest) -> None:
    """TypeError for an argument that there is not, as any function has it: a typo must not leave rows unprotected."""
    known = CompressRequest.__annotations__
    for name in request:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}{hint}")


def _jobs(cache: Cache, request: CompressRequest) -> list[GroupJob]:
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


def _size_of(fd: int) -> int:
    """Bytes of the file behind a descriptor."""
    of_type("memory", fd, SharedMemory, int)
    try:
        return os.fstat(fd).st_size
    except (OSError, OverflowError):
        raise invalid("memory", f"{fd} is no open descriptor") from None


def _checked(response: pb.Response) -> pb.Response:
    """The response, if it is no error."""
    if code_of(response) != Code.OK:
        raise from_status(response.status)
    return response
