"""A session's connection: the side socket, the request channels, and what an unanswered request means.

Requests that write nothing end with an answer, DeadlineExceeded or CoreDied, and the cache is CLEAN.  A
request that writes is never given up silently: at its deadline it is cancelled, and the error says whether the
cache was written, was not, or may still be.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Sequence
from numbers import Real

from ._pb import chunkkv_pb2 as pb
from .answer import outcome_of
from .channel import Channel, CoreGone, NoAnswer, Pending
from .checks import MOST_64, of_type, out_of_range, whole
from .control import ControlPage
from .endpoint import Endpoint
from .errors import (
    CoreDied,
    DaemonUnavailable,
    DeadlineExceeded,
    SessionLost,
    Unsupported,
    from_status,
    invalid,
)
from .session import Session, hello
from .side import SideSocket
from .wire import CacheState, Code, Phase, Radius

NANO = 1_000_000_000
SETTLE_NS = 2 * NANO  # after a deadline, to learn what became of a cache that may be in the middle of a move
LONGEST_TIMEOUT = 599.0  # seconds; the daemon accepts deadlines 600 s ahead


def deadline(seconds: float) -> int:
    """A time limit as a point of this process's CLOCK_MONOTONIC."""
    if not isinstance(seconds, Real):
        raise TypeError(f"timeout must be a number of seconds, not {seconds!r}")
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise invalid("timeout", f"must be above 0 and at most {LONGEST_TIMEOUT} s, is {seconds}")
    return time.monotonic_ns() + int(seconds * NANO)


def code_of(response: pb.Response) -> int:
    """The code of an answer, as a plain number."""
    return int(response.status.code)


class Connection:
    """A connected session: made by connecting, ended by close().  Everything but cancel() needs a lock outside.

    Attributes:
        page: the control page that the daemon has taken; None = it takes none.
        side: the side connection, if there is one.
        session: what was agreed.
        newest_id: of a request; a session that replaces this one goes on from it.
    """

    def __init__(self, endpoint: Endpoint, name: str, timeout: float, needs_side: bool, needs: Sequence[str],
                 page: ControlPage | None = None, newest_id: int = 0) -> None:
        self._endpoint = endpoint
        self._process = os.getpid()
        self._ids = itertools.count(newest_id + 1)
        self.newest_id = newest_id
        self._cancel_lock = threading.Lock()
        self._channel: Channel | None = None
        self._cancel_channel: Channel | None = None
        of_type("name", name, str)
        until = deadline(timeout)
        self.page = page
        self.side = self._attach(timeout) if needs_side else None
        try:
            self._channel = self._open_channel()
            self.session = self._say_hello(name, until, tuple(needs))
            if "control_page" not in self.session.capabilities:
                self.page = None
        except (NoAnswer, CoreGone):
            self.close()
            raise DaemonUnavailable(f"no chunkkvd answers at {endpoint.requests}", radius=Radius.SESSION) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all sockets, which ends a session that has a side socket."""
        with self._cancel_lock:
            for part in (self._cancel_channel, self._channel, self.side):
                if part is not None:
                    part.close()
            self._cancel_channel = self._channel = None

    @property
    def usable(self) -> bool:
        """False after close(), and in another process than the one that connected."""
        return self._channel is not None and self.is_ours

    @property
    def is_ours(self) -> bool:
        """False in another process than the one that connected: a client does not cross fork()."""
        return os.getpid() == self._process

    @property
    def core_is_dead(self) -> bool:
        """True once the daemon's process is dead, as far as one can know: by its pidfd."""
        channel = self._channel
        return channel is not None and channel.core_is_dead()

    def await_death(self, seconds: float) -> bool:
        """The daemon was replaced: wait until the old one is certainly dead."""
        end = time.monotonic() + seconds
        while not self.core_is_dead and time.monotonic() < end:
            time.sleep(0.001)
        return self.core_is_dead

    def new_request_id(self) -> int:
        """An id not used before in this session."""
        number = next(self._ids)
        self.newest_id = max(self.newest_id, number)
        return number

    def compose(self, body: pb.Request, deadline_ns: int, generation: int = 0,
                request_id: int | None = None) -> Pending:
        """A request ready to be sent."""
        if request_id is None:
            request_id = self.new_request_id()
        elif not 1 <= whole("request_id", request_id, 0, MOST_64) <= self.newest_id:
            # one that is far ahead would move the daemon's window, and end the use of all that come before it
            raise out_of_range("request_id", f"must be of new_request_id(), 1 to {self.newest_id}, is {request_id}")
        generation = whole("generation", generation, 0, MOST_64)
        payload = self.session.compose(body, request_id, deadline_ns, generation)
        most = self.session.limits.request_bytes
        if most and len(payload) > most:
            raise invalid(body.WhichOneof("body") or "", f"the request has {len(payload)} bytes, the daemon takes "
                          f"{most}: a table can lie in a region, all else must fit, as lists of runs and of chunk "
                          "lengths")
        return Pending(request_id, payload, deadline_ns)

    def exchange(self, pending: Pending) -> pb.Response:
        """Send a request that writes nothing and return its answer, whatever its code."""
        return _read_only(self._open(), pending)

    def cancel(self, target: int, deadline_ns: int) -> pb.Response:
        """Send a Cancel over a connection of its own, from any thread."""
        with self._cancel_lock:
            self._open()
            if self._cancel_channel is None:
                self._cancel_channel = self._open_channel()
            body = pb.Request(cancel=pb.Cancel(target_request_id=target))
            return _read_only(self._cancel_channel, self.compose(body, deadline_ns))

    def exchange_writing(self, pending: Pending, lost: CacheState = CacheState.TORN,
                         target: int | None = None) -> pb.Response:
        """Send a request that writes, and never leave it open whether the cache was written.

        Args:
            pending: the request.
            lost: what became of the cache if the daemon dies over it: a request that copies leaves it alone.
            target: the compress request that it commits; None = it is one itself.
        """
        channel = self._open()
        try:
            try:
                response = channel.exchange(pending)
            except NoAnswer:
                response = self._settle(channel, pending, pending.request_id if target is None else target)
        except CoreGone:
            state = lost if pending.sent else CacheState.CLEAN
            raise CoreDied("the daemon died before it answered", radius=Radius.DAEMON, cache=state) from None
        if code_of(response) in (Code.STALE_BOOT, Code.SESSION_UNKNOWN) and pending.sent > 1:
            # an earlier sending may have reached the daemon that died since, or the session before it ended
            error = from_status(response.status)
            error.cache = lost
            raise error
        return response

    def _settle(self, channel: Channel, pending: Pending, target: int) -> pb.Response:
        """The deadline of a writing request passed: cancel it, and wait for what became of it."""
        if pending.sent == 0:
            raise DeadlineExceeded("no connection in time, nothing was sent", code=Code.EXPIRED)
        until = time.monotonic_ns() + SETTLE_NS
        body = pb.Request(cancel=pb.Cancel(target_request_id=target))
        cancel = self.compose(body, until)
        waiting, state = [pending, cancel], CacheState.PENDING
        pending.deadline_ns = until  # repeated now and then while we wait
        while True:
            try:
                item, response = channel.wait(waiting, until)
            except NoAnswer:
                raise DeadlineExceeded(f"no answer in time; ask outcome({target}) before you touch the "
                                       "cache", code=Code.EXPIRED, cache=state) from None
            if item is pending:
                if code_of(response) == Code.CANCELLED:
                    response.status.code = pb.CODE_EXPIRED  # by ourselves, because of the deadline
                return response
            waiting.remove(cancel)
            if code_of(response) == Code.NOT_FOUND:
                # it never arrived, and when it does it will be too late: deadlines are checked on arrival
                raise DeadlineExceeded("it did not reach the daemon in time", code=Code.EXPIRED)
            if code_of(response) != Code.OK:
                continue
            result = outcome_of(response.outcome)
            state = result.cache
            if result.phase in (Phase.CANCELLED, Phase.FAILED, Phase.TORN):
                raise DeadlineExceeded("cancelled at its deadline", code=Code.EXPIRED, cache=state)
            pending.due_ns = 0  # committed, or being so: its own answer has the rows

    def _attach(self, timeout: float) -> SideSocket:
        """The side connection, with the control page if the daemon takes one."""
        if self.page is not None:
            try:
                return SideSocket(self._endpoint, timeout, self.page)
            except Unsupported:
                self.page = None
        return SideSocket(self._endpoint, timeout)

    def _say_hello(self, name: str, until_ns: int, needs: tuple[str, ...]) -> Session:
        request_id = self.new_request_id()
        asked_ns = time.monotonic_ns()
        token = self.side.attach_token if self.side is not None else b""
        payload = hello(request_id, name, asked_ns, token, needs)
        response = self._open().exchange(Pending(request_id, payload, until_ns))
        if code_of(response) != Code.OK:
            raise from_status(response.status)
        return Session.of_welcome(response, asked_ns, time.monotonic_ns())

    def _open_channel(self) -> Channel:
        return Channel(self._endpoint.requests, self.side.pidfd if self.side is not None else -1)

    def _open(self) -> Channel:
        if self._channel is None:
            raise SessionLost("the client is closed", radius=Radius.SESSION)
        if not self.is_ours:
            raise SessionLost("a client does not cross fork(): make a new one", radius=Radius.SESSION)
        return self._channel


def _read_only(channel: Channel, pending: Pending) -> pb.Response:
    try:
        return channel.exchange(pending)
    except NoAnswer:
        raise DeadlineExceeded("no answer in time", code=Code.EXPIRED) from None
    except CoreGone:
        raise CoreDied("the daemon died", radius=Radius.DAEMON) from None
