"""What a client keeps through the death of a daemon: its control page, what it has registered, its unfinished requests.

A Link has a connection, and makes another when the daemon has died: the same control page, then all regions and
caches that still exist.  They are held weakly, so what the caller has forgotten is not registered again.  Nothing
happens in the background: the next call finds the daemon dead and waits for a new one, within its own time limit.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from weakref import WeakSet

from ._pb import chunkkv_pb2 as pb
from .answer import Outcome
from .cache import Cache
from .checks import out_of_range, whole
from .connection import Connection, code_of, deadline
from .control import KEPT_UNIT, MOST_BYTES, MOST_SLOTS, ControlPage
from .endpoint import Endpoint
from .errors import ChunkkvError, CoreDied, DaemonUnavailable, Draining, SessionLost, Unsupported, from_status
from .region import Region
from .registration import register_message
from .side import OfferKind
from .wire import CacheState, Code, Radius
from .writing import Writing

RETRY_SECONDS = 0.02  # between two looks for a new daemon
CONNECT_SECONDS = 1.0  # for one of them
NANO = 1_000_000_000


def checked(response: pb.Response) -> pb.Response:
    """The response, if it is no error."""
    if code_of(response) != Code.OK:
        raise from_status(response.status)
    return response


def page_of(slots: int, kept_bytes: int) -> ControlPage | None:
    """A control page of these sizes; None for no slots."""
    if whole("control_slots", slots, 0, MOST_SLOTS) == 0:
        return None
    most = (MOST_BYTES // slots - KEPT_UNIT) // KEPT_UNIT * KEPT_UNIT
    if whole("kept_bytes", kept_bytes, KEPT_UNIT, most) % KEPT_UNIT:
        raise out_of_range("kept_bytes", f"must be a multiple of {KEPT_UNIT}, is {kept_bytes}")
    return ControlPage(slots, kept_bytes)


class Link:
    """A client's way to the daemon of now.  Whoever calls holds `lock`, but for cancel().

    Attributes:
        connection: of now.
        regions, caches: those that are registered, or were with a daemon that died.
        unfinished: requests in place whose end is not known, or that wait for a commit or a repair, by their id.
        timeout: seconds that a call may take where it does not say otherwise.
        roll_forward: finish moves here.
    """

    def __init__(self, endpoint: Endpoint, name: str, timeout: float, needs_side: bool, needs: Sequence[str],
                 page: ControlPage | None, roll_forward: bool) -> None:
        self.lock = threading.RLock()
        self.regions: WeakSet[Region] = WeakSet()
        self.caches: WeakSet[Cache] = WeakSet()
        self.unfinished: dict[int, Writing] = {}
        self.timeout, self.roll_forward = timeout, roll_forward
        self._outcomes: dict[int, Outcome] = {}
        self._endpoint, self._name, self._needs_side, self._needs = endpoint, name, needs_side, tuple(needs)
        self._page = page
        self._between = False  # the daemon died, and no session was begun since
        self.connection = self._connect(timeout, 0)

    @property
    def page(self) -> ControlPage | None:
        """The control page, where the daemon has taken it."""
        return self.connection.page

    def until(self, timeout: float | None) -> int:
        """The end of a call that begins now; a daemon that died is replaced before."""
        end = deadline(self.timeout if timeout is None else timeout)
        if self.connection.is_ours and (self._between or self.connection.core_is_dead):
            self.renew(end)
        return end

    def ask(self, body: pb.Request, deadline_ns: int, generation: int = 0,
            request_id: int | None = None) -> pb.Response:
        """A round trip that writes nothing; the daemon's refusal is raised."""
        return checked(self.connection.exchange(self.connection.compose(body, deadline_ns, generation, request_id)))

    def offer(self, fd: int, size: int, kind: OfferKind = OfferKind.MEMFD) -> bytes:
        """Hand a memfd or a VMM allocation over: the token for RegisterRegion."""
        side = self.connection.side
        if side is None:
            raise Unsupported("this session has no side connection, so it can offer no memory",
                              code=Code.UNSUPPORTED, field="register_region.memfd_token")
        return side.offer(fd, size, kind)

    def renew(self, deadline_ns: int) -> None:
        """Begin a new session, with the daemon of now or the next that comes, and register everything again."""
        dead = self._between or self.connection.core_is_dead
        if dead:
            self._settle()
        self._between = dead
        self.connection.close()
        while True:
            left = (deadline_ns - time.monotonic_ns()) / NANO
            try:
                self.connection = self._connect(max(0.001, min(left, CONNECT_SECONDS)),
                                                self.connection.newest_id)
                break
            except (DaemonUnavailable, Draining, SessionLost) as error:
                if left < RETRY_SECONDS or not dead:
                    if dead:
                        raise CoreDied("the daemon died, and no other has come yet", radius=Radius.DAEMON) from error
                    raise
            time.sleep(RETRY_SECONDS)
        self._between = False
        self._register_all(deadline_ns)

    def sweep(self) -> None:
        """Forget requests that ended while nobody waited for them."""
        for number, writing in list(self.unfinished.items()):
            if writing.page.has_ended(writing.ticket):
                writing.close(answered=True)
                del self.unfinished[number]

    def is_dead(self) -> bool:
        """The daemon has died and was not replaced yet: nothing of ours is registered anywhere."""
        return not self.connection.usable or self.connection.core_is_dead

    def outcome(self, request_id: int) -> Outcome | None:
        """What became of a request whose daemon died while nobody waited; None if there was none of that number."""
        return self._outcomes.get(request_id)

    def check_session(self, number: int, field: str) -> None:
        """SessionLost for what is not registered now."""
        if number != self.connection.session.number:
            raise SessionLost("registered in an earlier session: register it again", field=field,
                              radius=Radius.SESSION)

    def close(self) -> None:
        """Close everything; the session ends."""
        self._between = False
        self.connection.close()
        if self._page is not None:
            self._page.close()
            self._page = None

    def _connect(self, timeout: float, newest_id: int) -> Connection:
        return Connection(self._endpoint, self._name, timeout, self._needs_side, self._needs, self._page, newest_id)

    def _settle(self) -> None:
        """The daemon is dead: finish what can be finished of the requests that nobody waits for."""
        for number, writing in list(self.unfinished.items()):
            outcome = writing.outcome_after_death(may_move=self.roll_forward)
            self._outcomes[number] = outcome
            writing.torn = outcome.cache == CacheState.TORN_REPAIRABLE
            if not writing.torn:
                writing.close(answered=True)
                del self.unfinished[number]

    def _register_all(self, deadline_ns: int) -> None:
        """What cannot be registered any more keeps the number of its old session, and says so when it is used."""
        now = self.connection.session.number
        for region in sorted(self.regions, key=lambda item: item.id):
            with contextlib.suppress(ChunkkvError):
                source = region.source()
                if source is None:
                    continue
                body = register_message(source, region.start, region.size, region.access, self.offer)
                reply = self.ask(pb.Request(register_region=body), deadline_ns).region_registered
                region.id, region.shared, region.session = reply.region_id, reply.shared, now
        for cache in sorted(self.caches, key=lambda item: item.id):
            with contextlib.suppress(ChunkkvError):
                if all(plane.region.session == now for plane in cache.layout.planes):
                    answer = self.ask(pb.Request(register_cache=cache.layout.to_message()), deadline_ns)
                    cache.id, cache.fast_path = answer.cache_registered.cache_id, answer.cache_registered.fast_path
                    cache.session = now
