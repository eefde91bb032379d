"""A request that writes, from its sending to its certain end, and what its control slot says when the daemon died.

While the daemon lives, its answers say what became of the cache.  Once it is dead the slot does: before COMMITTING
nothing was written; at DONE all of it; in between the steps that are missing are moved here (forward.py), and the
caller never knows the difference, but for `Answer.repaired`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .answer import Answer, Outcome
from .control import ControlPage, Ticket
from .cuda import DeviceMemory
from .errors import CoreDied
from .exchange import Exchange
from .forward import NotRepairable, check_sets, read_sets, roll_forward
from .wire import CacheState, Code, Phase, Radius


@dataclass
class Writing:
    """A request in place whose end is not known yet, or that waits for a commit.

    Attributes:
        exchange: its arguments.
        page, ticket: its control slot.
        request_id, generation: of the request.
        boot_ids: of the daemons that it was sent to: one, and those that were to repair it.
        session: number of the session.
        selected: its answer, while it is held.
        torn: it is in the middle of its move, and waits for a repair.
    """

    exchange: Exchange
    page: ControlPage
    ticket: Ticket
    request_id: int
    generation: int
    boot_ids: set[bytes]
    session: int
    selected: Answer | None = None
    torn: bool = False

    def close(self, *, answered: bool) -> None:
        """Its end is known, or it is given up: the slot is for others."""
        self.page.give_back(self.ticket, answered=answered)

    def after_death(self, *, may_move: bool = True) -> Answer:
        """The daemon is dead: finish what it began.

        Returns:
            What the daemon would have answered, if the rows are moved now.

        Raises:
            CoreDied: otherwise.  `cache` CLEAN: nothing was written; TORN: recompute; TORN_REPAIRABLE: a daemon may
                still repair it, and the slot stays as it is.
        """
        slot = self.page.read(self.ticket.number)
        if slot.use != self.ticket.use:
            raise self._died("its control slot was overwritten", CacheState.TORN)
        if slot.phase not in (Phase.COMMITTING, Phase.DONE, Phase.TORN):
            self.page.end(self.ticket, Phase.CANCELLED)
            raise self._died("it died before it wrote anything", CacheState.CLEAN)
        if slot.phase == Phase.TORN:
            raise self._died("it died after it had given up in the middle of the move", CacheState.TORN)
        try:
            if slot.boot_id not in self.boot_ids or slot.request_id != self.request_id:
                raise NotRepairable("its control slot is of another request")
            sets = read_sets(slot)
            check_sets(sets, self.exchange.cache.layout, self.exchange.jobs)
            if slot.phase == Phase.COMMITTING:
                if slot.steps and not (may_move and self._within_reach()):
                    raise self._died("it died in the move, which repair() can finish", CacheState.TORN_REPAIRABLE)
                roll_forward(slot, sets, self.exchange.cache.layout, self.exchange.jobs,
                             lambda done: self.page.count_step(self.ticket, done))
        except NotRepairable as why:
            if slot.phase == Phase.DONE:
                raise self._died(f"it died after it had moved the rows, but which is not known: {why}",
                                 CacheState.COMMITTED) from None
            self.page.end(self.ticket, Phase.TORN)
            reason = "with single_pass" if slot.steps == 0 else f"and nobody can finish it: {why}"
            raise self._died(f"it died in the move, {reason}", CacheState.TORN) from None
        self.page.end(self.ticket, Phase.DONE)
        answer = self.selected
        if answer is None:
            answer = self.exchange.answer_of_sets(self.request_id, self.generation, sets)
        return replace(answer, phase=Phase.DONE, cache=CacheState.COMMITTED, held=None,
                       repaired=slot.phase == Phase.COMMITTING)

    def _within_reach(self) -> bool:
        """Can this process move rows?  Those on a device only the next daemon can."""
        return not any(isinstance(plane.region.memory, DeviceMemory) for plane in self.exchange.cache.layout.planes)

    def outcome_after_death(self, *, may_move: bool) -> Outcome:
        """The same for one that nobody waits for now."""
        try:
            self.after_death(may_move=may_move)
        except CoreDied as error:
            phases = {CacheState.CLEAN: Phase.CANCELLED, CacheState.COMMITTED: Phase.DONE,
                      CacheState.TORN_REPAIRABLE: Phase.COMMITTING}
            return Outcome(self.request_id, phases.get(error.cache, Phase.TORN), Code.STALE_BOOT, error.cache)
        return Outcome(self.request_id, Phase.DONE, Code.OK, CacheState.COMMITTED)

    def _died(self, detail: str, cache: CacheState) -> CoreDied:
        error = CoreDied(f"the daemon died: {detail}", radius=Radius.DAEMON, cache=cache)
        error.request_id = self.request_id
        return error
