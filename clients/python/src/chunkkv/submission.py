"""From the arguments of a compress request to its answer, whoever dies in between; commit, cancel and repair too."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from ._pb import chunkkv_pb2 as pb
from .answer import Answer, Outcome, Timing, outcome_of
from .channel import Pending
from .connection import deadline
from .errors import ChunkkvError, CoreDied, NotFound, SessionLost, StaleBoot
from .exchange import Exchange
from .link import Link, checked
from .memory import SharedMemory
from .region import Region
from .wire import Access, CacheState, Code, Mode, Phase, Radius
from .writing import Writing

FAREWELL = 1.0  # seconds, for what is unregistered on the way out
DEATH_SECONDS = 2.0  # for a daemon that was replaced to be dead


def submit(link: Link, exchange: Exchange, mode: Mode, until_ns: int, generation: int,
           request_id: int | None) -> Answer:
    """Send a compress request, and return its answer."""
    if mode == Mode.IN_PLACE and link.page is not None and exchange.kept_bytes <= link.page.kept_bytes:
        try:
            return _submit(link, exchange, mode, until_ns, generation, request_id, with_slot=True)
        except ChunkkvError as error:
            # by the daemon's own bound its kept sets might not fit: a move that cannot be repaired is better than none
            if error.code != Code.REPLY_TOO_LARGE or error.field != "compress.control_slot":
                raise
            request_id = None  # this one has an answer
    return _submit(link, exchange, mode, until_ns, generation, request_id, with_slot=False)


def _submit(link: Link, exchange: Exchange, mode: Mode, until_ns: int, generation: int, request_id: int | None, *,
            with_slot: bool) -> Answer:
    with contextlib.ExitStack() as at_end:
        region, memory = _room(link, exchange, until_ns, at_end)
        if not with_slot or link.page is None:
            ticket = None
        else:
            link.sweep()
            ticket = link.page.take()
        body = pb.Request(compress=exchange.message(region, memory, ticket))
        try:
            pending = link.connection.compose(body, until_ns, generation, request_id)
        except BaseException:
            if ticket is not None and link.page is not None:
                link.page.give_back(ticket, answered=True)
            raise
        session = link.connection.session
        if mode == Mode.PLAN:
            return exchange.answer(checked(link.connection.exchange(pending)))
        if ticket is None or link.page is None:
            lost = CacheState.TORN if mode == Mode.IN_PLACE else CacheState.CLEAN
            answer = exchange.answer(checked(link.connection.exchange_writing(pending, lost)))
            if answer.phase == Phase.SELECTED:
                return replace(answer, held=Hold(link, None, answer.request_id, session.number, lost))
            return answer
        writing = Writing(exchange, link.page, ticket, pending.request_id, generation, {session.boot_id},
                          session.number)
        return _await(link, writing, pending, pending.request_id)


def repair(link: Link, request_id: int, timeout: float | None) -> Answer:
    """Let the daemon finish a move that an earlier one died in."""
    with contextlib.ExitStack() as at_end:
        until_ns = link.until(timeout)
        writing = link.unfinished.get(request_id)
        if writing is None:
            raise NotFound("no request of this id waits for a repair", code=Code.NOT_FOUND, field="request_id")
        link.check_session(writing.exchange.cache.session, "repair.job.cache_id")
        region, memory = _room(link, writing.exchange, until_ns, at_end)
        job = writing.exchange.message(region, memory, writing.ticket)
        pending = link.connection.compose(pb.Request(repair=pb.Repair(
            target_request_id=request_id, control_slot=writing.ticket.number, job=job)), until_ns, writing.generation)
        writing.boot_ids.add(link.connection.session.boot_id)
        return replace(_await(link, writing, pending, pending.request_id), request_id=request_id, repaired=True)


@dataclass(frozen=True)
class Hold:
    """A request that is selected and waits; `writing` is None where it has no control slot."""

    link: Link
    writing: Writing | None
    request_id: int
    session: int
    lost: CacheState  # without a slot: what becomes of the cache if the daemon dies in the move

    def commit(self, selected: Answer, timeout: float | None) -> Answer:
        """Let the daemon move the rows."""
        with self.link.lock:
            known = self.link.outcome(self.request_id) if self.link.is_dead() else None
            if self.session != self.link.connection.session.number or self.link.is_dead():
                cache = known.cache if known else CacheState.CLEAN
                raise CoreDied("the daemon died, and the hold with it", radius=Radius.DAEMON, cache=cache)
            until_ns = deadline(self.link.timeout if timeout is None else timeout)
            pending = self.link.connection.compose(
                pb.Request(commit=pb.Commit(target_request_id=self.request_id)), until_ns, selected.generation)
            if self.writing is None:
                reply = checked(self.link.connection.exchange_writing(pending, self.lost, self.request_id))
                return _committed(selected, reply)
            return _await(self.link, self.writing, pending, self.request_id)

    def cancel(self, timeout: float | None) -> Outcome:
        """Give it up.  Where the daemon is dead, or the session another, it has ended, and nothing was written."""
        with self.link.lock:
            if self.session != self.link.connection.session.number or self.link.is_dead():
                return Outcome(self.request_id, Phase.CANCELLED, Code.CANCELLED, CacheState.CLEAN)
            response = self.link.connection.cancel(
                self.request_id, deadline(self.link.timeout if timeout is None else timeout))
            outcome = outcome_of(checked(response).outcome)
            if self.writing is not None and outcome.phase in (Phase.CANCELLED, Phase.FAILED, Phase.DONE):
                self.link.unfinished.pop(self.request_id, None)
                self.writing.close(answered=True)
            return outcome


def _room(link: Link, exchange: Exchange, until_ns: int,
          at_end: contextlib.ExitStack) -> tuple[Region | None, SharedMemory | None]:
    """The shared memory that a request needs, registered for it alone."""
    if not exchange.room:
        return None, None
    memory = at_end.enter_context(SharedMemory.allocate(exchange.room, name="chunkkv-request"))
    body = pb.RegisterRegion(memfd_token=link.offer(memory.fileno(), memory.size), size=memory.size,
                             access=pb.ACCESS_READ_WRITE)
    reply = link.ask(pb.Request(register_region=body), until_ns).region_registered
    region = Region(reply.region_id, memory.size, Access.READ_WRITE, address=memory.address, memory=memory,
                    session=link.connection.session.number)
    at_end.callback(_forget, link, region)
    return region, memory


def _forget(link: Link, region: Region) -> None:
    """Unregister what one request needed; where that fails, the session's end does it."""
    if region.session == link.connection.session.number and not link.is_dead():
        with contextlib.suppress(ChunkkvError):
            link.ask(pb.Request(unregister_region=pb.UnregisterRegion(region_id=region.id)), deadline(FAREWELL))


def _await(link: Link, writing: Writing, pending: Pending, target: int) -> Answer:
    """The answer to a request with a control slot, or to its commit or repair, also if the daemon dies.

    `target` is the request that is cancelled when the time is up.
    """
    link.unfinished[writing.request_id] = writing
    try:
        response = checked(link.connection.exchange_writing(pending, CacheState.TORN, target))
    except (CoreDied, StaleBoot) as error:
        return _after_death(link, writing, error)
    except ChunkkvError as error:
        if writing.torn and error.cache == CacheState.CLEAN:  # the repair did nothing
            error.cache = CacheState.TORN_REPAIRABLE
        if error.cache == CacheState.TORN_REPAIRABLE:  # the daemon is about to die: its device was lost in the move
            writing.torn, error.request_id = True, writing.request_id
        if error.cache not in (CacheState.PENDING, CacheState.TORN_REPAIRABLE) and not isinstance(error, SessionLost):
            _end(link, writing)
        raise
    if writing.selected is not None:
        answer = _committed(writing.selected, response)
    else:
        answer = writing.exchange.answer(response)
    if answer.phase != Phase.SELECTED:
        _end(link, writing)
        return answer
    writing.selected = answer
    return replace(answer, held=Hold(link, writing, writing.request_id, writing.session, CacheState.TORN))


def _after_death(link: Link, writing: Writing, error: ChunkkvError) -> Answer:
    """What the slot says.  Only of a daemon that is certainly dead: one that was replaced may still be dying."""
    if not link.connection.await_death(DEATH_SECONDS):
        raise error
    try:
        answer = writing.after_death(may_move=link.roll_forward)
    except CoreDied as died:
        if died.cache == CacheState.TORN_REPAIRABLE:
            writing.torn = True
        else:
            _end(link, writing)
        raise died from error
    _end(link, writing)
    return answer


def _end(link: Link, writing: Writing) -> None:
    link.unfinished.pop(writing.request_id, None)
    writing.close(answered=True)


def _committed(selected: Answer, response: pb.Response) -> Answer:
    """The answer of a commit: what was selected, and what moving it took."""
    moved = {result.group: result.bytes_moved for result in response.compressed.groups}
    t = response.compressed.timing
    timing = Timing(t.queue_us, t.score_us, t.select_us, t.move_us, t.total_us)
    groups = [replace(group, bytes_moved=moved.get(group.group, 0)) for group in selected.groups]
    return replace(selected, phase=Phase(response.compressed.phase), cache=CacheState(response.status.cache), held=None,
                   groups=groups, timing=timing, repeated=response.repeated_answer)
