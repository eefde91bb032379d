"""The client: one session with one daemon.

Nothing happens in the background: a call sends, waits and returns, and every call ends by its time limit.
A lock makes it safe to share between threads; one client serves one request at a time, except that
`cancel()` has a connection of its own and gets through while another thread waits.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Unpack

from ._pb import chunkkv_pb2 as pb
from .answer import Answer, Budget, CodePath, Outcome, Pong, outcome_of
from .cache import Cache
from .checks import MOST_64, of_type, whole
from .connection import Connection, deadline
from .control import MOST_SLOTS
from .cuda import DeviceMemory
from .endpoint import Endpoint
from .errors import Busy, ChunkkvError, SessionLost, invalid
from .exchange import Exchange
from .job import Queries
from .layout import CacheLayout
from .link import Link, checked, page_of
from .memory import SharedMemory
from .region import Region
from .registration import register_message, size_of
from .request import CompressRequest, check_names, jobs_of
from .session import Session
from .side import Notice
from .submission import repair, submit
from .wire import Access, DType, Mode, Slot

FAREWELL = 1.0  # seconds, for EndSession
LEAVING_S = 5.0  # for requests that were given up
NO_END = 0xFFFFFFFF  # last of a range, on the wire


class Client:
    """A session with a daemon.

    Args:
        endpoint: path prefix of the daemon's sockets; None = $CHUNKKV_ENDPOINT, else /run/chunkkv/cpu/main.
        name: for the daemon's logs.
        timeout: seconds that a call may take where it does not say otherwise.
        needs_side: open the side socket too.  Without it no shared memory can be registered, and the death of
            the daemon is noticed only by its silence.
        needs: capabilities without which the session is refused, such as "hold".
        control_slots: how many requests in place can be under way, or held, at once and survive the daemon's death in
            the middle of their moves; 0 = none.
        kept_bytes: room for the kept sets of one of them, a multiple of 4096: 24 bytes for each set and 8 for each kept
            run.  A request that may need more goes without a slot.
        roll_forward: finish a move that the daemon died in here; False = leave that to `repair()`.

    Raises:
        DaemonUnavailable: nobody answers there.
    """

    def __init__(self, endpoint: str | os.PathLike[str] | None = None, *, name: str = "chunkkv-python/0.1",
                 timeout: float = 5.0, needs_side: bool = True, needs: Sequence[str] = (),
                 control_slots: int = MOST_SLOTS, kept_bytes: int = 1 << 20, roll_forward: bool = True) -> None:
        self.endpoint = Endpoint.find(endpoint)
        page = page_of(control_slots, kept_bytes) if needs_side else None
        self._link = Link(self.endpoint, name, timeout, needs_side, needs, page, roll_forward)
        self._lock = self._link.lock

    @property
    def timeout(self) -> float:
        """Seconds that a call may take where it does not say otherwise."""
        return self._link.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._link.timeout = seconds

    # ---- session

    @property
    def session(self) -> Session:
        """What was agreed with the daemon: boot id, limits, capabilities."""
        return self._connection.session

    def reconnect(self) -> None:
        """Begin a new session, and register the regions and caches that still exist again.

        After the daemon's death the next call does so by itself, as soon as a new daemon is there.
        """
        with self._lock:
            self._link.renew(deadline(self.timeout))

    def close(self) -> None:
        """End the session: when this returns, the daemon touches nothing of ours any more, or is dead."""
        with self._lock:
            if self._connection.usable:
                # on an error, closing the side socket, or our death, ends it all the same
                with contextlib.suppress(ChunkkvError):
                    self._link.ask(pb.Request(end_session=pb.EndSession()), deadline(FAREWELL))
            self._link.close()

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

    def code_paths(self) -> list[CodePath]:
        """Which code of the daemon scores which shapes; an empty list on a GPU."""
        reply = self.call(pb.Request(get_status=pb.GetStatus())).status_reply
        return [CodePath(DType(p.key_dtype), DType(p.query_dtype), (p.head_dim_first, _end(p.head_dim_last)),
                         (p.queries_first, _end(p.queries_last)), p.path) for p in reply.code_paths
                if {p.key_dtype, p.query_dtype} <= DType._value2member_map_.keys()]

    # ---- memory

    def register_region(self, memory: SharedMemory | DeviceMemory | int, *, size: int | None = None,
                        offset: int = 0, access: Access | None = None, address: int = 0,
                        timeout: float | None = None) -> Region:
        """Let the daemon map memory.

        Args:
            memory: SharedMemory, device memory of `chunkkv.cuda.export()`, or the descriptor of a sealed memfd (it
                stays the caller's).
            size: bytes; None = to the end.
            offset: first byte inside the memory or memfd.
            access: None = READ for read-only memory, else READ_WRITE.
            address: where byte `offset` is mapped in this process, for layouts made from arrays; known unless a
                descriptor is given.
            timeout: seconds.
        """
        offset = whole("register_region.offset", offset, 0, MOST_64)
        chosen = Access.READ_WRITE
        if isinstance(memory, (SharedMemory, DeviceMemory)):
            total, address = memory.size, memory.address + offset
            if isinstance(memory, SharedMemory) and memory.read_only:
                chosen = Access.READ
        else:
            total = size_of(memory) or offset + (size or 0)
        if access is not None and access not in Access._value2member_map_:
            raise invalid("register_region.access", f"{access!r} is no Access")
        access = chosen if access is None else access
        size = whole("register_region.size", total - offset if size is None else size, 0, MOST_64)
        with self._lock:
            until = self._link.until(timeout)
            body = register_message(memory, offset, size, access, self._link.offer)
            reply = self._link.ask(pb.Request(register_region=body), until).region_registered
            region = Region(reply.region_id, size, access, reply.shared, address,
                            None if isinstance(memory, int) else memory, self.session.number, offset)
            if isinstance(memory, int):
                region.keep(memory)
            self._link.regions.add(region)
        return region

    def unregister_region(self, region: Region) -> None:
        """When this returns, the daemon has the region no longer mapped."""
        of_type("region", region, Region)
        with self._lock:
            if not self._link.is_dead():
                self._link.check_session(region.session, "region")
                self.call(pb.Request(unregister_region=pb.UnregisterRegion(region_id=region.id)))
            self._link.regions.discard(region)
            region.forget()

    def register_cache(self, layout: CacheLayout, *, timeout: float | None = None) -> Cache:
        """Tell the daemon where the planes of a cache lie."""
        of_type("layout", layout, CacheLayout)
        layout.check()
        with self._lock:
            until = self._link.until(timeout)
            for plane in layout.planes:
                self._link.check_session(plane.region.session, "register_cache.planes.region_id")
            reply = self._link.ask(pb.Request(register_cache=layout.to_message()), until).cache_registered
            cache = Cache(layout, reply.cache_id, reply.fast_path, self.session.number)
            self._link.caches.add(cache)
        return cache

    def unregister_cache(self, cache: Cache) -> None:
        """Forget a cache; its regions stay."""
        of_type("cache", cache, Cache)
        with self._lock:
            if not self._link.is_dead():
                self._link.check_session(cache.session, "cache")
                self.call(pb.Request(unregister_cache=pb.UnregisterCache(cache_id=cache.id)))
            self._link.caches.discard(cache)

    def unregister_quietly(self, cache: Cache, region: Region) -> None:
        """Unregister both if their session still lives; no error if it does not.

        A request that this side has given up may be in the daemon for a moment longer: it is waited for.
        """
        until = time.monotonic() + LEAVING_S
        while True:
            with self._lock:
                if not self._connection.usable or self.session.number != cache.session:
                    self._link.caches.discard(cache)
                    self._link.regions.discard(region)
                    return
                try:
                    if cache in self._link.caches:
                        self.unregister_cache(cache)
                    self.unregister_region(region)
                    return
                except SessionLost:  # what is to be unregistered is gone with it
                    return
                except Busy:
                    if time.monotonic() >= until:
                        raise
            time.sleep(0.01)

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
            lse (ndarray | Slice): float32 [layers][q_heads][rows]: the log-sum-exp of each query, where the engine has
                it: scoring then reads the keys once instead of twice.
            sink_logits (ndarray | Slice): float32 [layers][q_heads], of models that have them.
            want_kept_mass (bool): fill in `answer.kept_mass`.
            reply_form (str): how the kept rows come back: "runs", "rows", "in_region", or "no_sets" for not at
                all; None = in the message where they fit, else through memory.
            logical_len (int): tokens that the model has seen; default: one past the last row's position.
            timeout (float): seconds.
            generation (int): given back untouched.
            request_id (int): from new_request_id(), to cancel() from another thread.
            hold (bool): answer after selection, in phase SELECTED, and wait for `answer.commit()` or `answer.cancel()`,
                at most `session.limits.hold_ms`.
            wait (TimelineWord): keys, values and queries are read only when the word has come to its value.
            signal (TimelineWord): becomes its value when the request has ended, whatever its outcome, just before it is
                answered; not if it is refused for what it says.
            single_pass (bool): move without steps, which needs no more of them than there may be: the daemon's death in
                the move leaves the cache TORN.

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
        return outcome_of(checked(response).outcome)

    def outcome(self, request_id: int, timeout: float | None = None) -> Outcome:
        """What became of an earlier request, of this session or of one whose daemon died."""
        number = whole("request_id", request_id, 0, MOST_64)
        with self._lock:
            until = self._link.until(timeout)
            known = self._link.outcome(number)
            return known or outcome_of(self._link.ask(
                pb.Request(get_status=pb.GetStatus(target_request_id=number)), until).outcome)

    def repair(self, request_id: int, timeout: float | None = None) -> Answer:
        """Let the daemon of now finish the move that an earlier one died in.

        Meant for what this library cannot finish itself: after CoreDied with cache TORN_REPAIRABLE, whose `request_id`
        this takes.  Waits for the new daemon, and registers everything again.

        Raises:
            NotFound: there is no such request.
            ChunkkvError: `cache` says what became of it.
        """
        with self._lock:
            return repair(self._link, whole("request_id", request_id, 0, MOST_64), timeout)

    def call(self, body: pb.Request, *, timeout: float | None = None, generation: int = 0,
             request_id: int | None = None) -> pb.Response:
        """The low level: send a request as it is, return its answer, raise its error.

        Id, deadline, boot id and session token are filled in.  Meant for requests that write nothing.
        """
        with self._lock:
            return self._link.ask(body, self._link.until(timeout), generation, request_id)

    # ---- inside

    @property
    def _connection(self) -> Connection:
        return self._link.connection

    def _compress(self, method: str, mode: Mode, cache: Cache, request: CompressRequest) -> Answer:
        check_names(method, request)
        of_type("cache", cache, Cache)
        with self._lock:
            until = self._link.until(request.get("timeout"))
            self._link.check_session(cache.session, "compress.cache_id")
            jobs = jobs_of(cache, request)
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
                self._link.check_session(queries.region.session, "compress.queries.data")
            exchange = Exchange(mode, cache, jobs, queries=queries, logical_len=logical_len,
                                reply_form=request.get("reply_form"), limits=self.session.limits,
                                has_memory=self._connection.side is not None,
                                hold=_flag("hold", request.get("hold", False)),
                                single_pass=_flag("single_pass", request.get("single_pass", False)),
                                want_kept_mass=_flag("want_kept_mass", request.get("want_kept_mass", False)),
                                lse=request.get("lse"), sink_logits=request.get("sink_logits"),
                                wait=request.get("wait"), signal=request.get("signal"))
            return submit(self._link, exchange, mode, until, request.get("generation", 0), request.get("request_id"))


def _end(last: int) -> int | None:
    """The end of a range, which may have none."""
    return None if last == NO_END else last


def _flag(name: str, value: object) -> bool:
    of_type(name, value, bool)
    return bool(value)
