"""The control page: how far each request has come, and all that is needed to finish its move after the daemon's death.

A sealed memfd of ours that the daemon maps too (proto/control.h): a header, slots of 128 bytes, and behind them a kept
area for each slot.  A request that names a slot leaves there, before its first row moves, which rows are kept, and
while they move, how many steps are done.

Of a slot this side writes its word only, and only while the daemon does not: from free or ended to submitted, before
the request is sent; from submitted to cancelled, when it is certain that the daemon will not take it up; and once the
daemon is dead.  Python cannot compare-and-swap, so a request that runs is cancelled by a message.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .memory import SharedMemory
from .wire import Phase

MAGIC = 0x50564B43  # "CKVP"
VERSION = 1
HEADER = struct.Struct("<IHHIIIIQ16sQQ")
SLOT = struct.Struct("<QQQQQ16sIIIIIIIII36x")
WORD, STEPS_DONE = 0, 72  # bytes into a slot
KEPT_UNIT = 4096
MOST_SLOTS = 8
MOST_BYTES = 16 << 20  # of a page
ENDED = (Phase.NONE, Phase.DONE, Phase.TORN, Phase.CANCELLED, Phase.FAILED)


@dataclass(frozen=True)
class Ticket:
    """A slot for one request."""

    number: int  # 1, 2, ... as on the wire
    use: int


@dataclass(frozen=True)
class SlotState:
    """A slot as it lies on the page; `kept` is a copy of what is used of its kept area, empty if that is absurd."""

    use: int
    phase: int
    request_id: int
    generation: int
    table_hash: int
    deadline_ns: int
    boot_id: bytes
    cache_id: int
    code: int
    batch_rows: int
    steps: int
    steps_done: int
    set_count: int
    kept_crc: int
    mode: int
    kept: bytes


class ControlPage:
    """A control page and who uses its slots.  The caller serialises."""

    def __init__(self, slots: int, kept_bytes: int) -> None:
        self.slots, self.kept_bytes = slots, kept_bytes
        self._kept_offset = -(-(HEADER.size + slots * SLOT.size) // KEPT_UNIT) * KEPT_UNIT
        self.memory = SharedMemory.allocate(self._kept_offset + slots * kept_bytes, name="chunkkv-control")
        HEADER.pack_into(self.memory.buffer, 0, MAGIC, VERSION, SLOT.size, slots, self._kept_offset, kept_bytes, 0,
                         self.memory.size, bytes(16), 0, 0)
        self._taken: set[int] = set()
        words = memoryview(self.memory.buffer).cast("Q")  # stores of whole words
        self._word_of = {n: words[(HEADER.size + (n - 1) * SLOT.size) // 8 :][:1] for n in range(1, slots + 1)}

    def take(self) -> Ticket | None:
        """A slot whose last request has ended, marked submitted; None if there is none."""
        for number in range(1, self.slots + 1):
            word = self._word_of[number][0]
            if number not in self._taken and word & 0xFFFFFFFF in ENDED:
                use = (word >> 32) + 1 & 0xFFFFFFFF
                self._word_of[number][0] = use << 32 | Phase.SUBMITTED
                self._taken.add(number)
                return Ticket(number, use)
        return None

    def give_back(self, ticket: Ticket, *, answered: bool) -> None:
        """The caller is done with its slot.

        Args:
            ticket: what take() returned.
            answered: the request has its answer, or was never sent: one that the daemon did not take up will not be.
                Else the slot stays in use until its word has ended.
        """
        if answered and self._word_of[ticket.number][0] == ticket.use << 32 | Phase.SUBMITTED:
            self._word_of[ticket.number][0] = ticket.use << 32 | Phase.CANCELLED
        self._taken.discard(ticket.number)

    def end(self, ticket: Ticket, phase: Phase) -> None:
        """Write the last word of a request whose daemon is dead."""
        self._word_of[ticket.number][0] = ticket.use << 32 | phase

    def has_ended(self, ticket: Ticket) -> bool:
        """The daemon is done with this request, whatever its answer says."""
        return self._word_of[ticket.number][0] & 0xFFFFFFFF in ENDED

    def count_step(self, ticket: Ticket, done: int) -> None:
        """Steps that are done now, of a request whose daemon is dead."""
        struct.pack_into("<I", self.memory.buffer, self._at(ticket.number) + STEPS_DONE, done)

    def read(self, number: int) -> SlotState:
        """A slot as it is."""
        (word, request_id, generation, table_hash, deadline_ns, boot_id, cache_id, code, batch_rows, steps, steps_done,
         set_count, kept_used, kept_crc, mode) = SLOT.unpack_from(self.memory.buffer, self._at(number))
        area = self._kept_offset + (number - 1) * self.kept_bytes
        kept = self.memory.buffer[area : area + kept_used] if kept_used <= self.kept_bytes else b""
        return SlotState(word >> 32, word & 0xFFFFFFFF, request_id, generation, table_hash, deadline_ns, boot_id,
                         cache_id, code, batch_rows, steps, steps_done, set_count, kept_crc, mode, kept)

    def close(self) -> None:
        """Let the memory go; the daemon's mapping of it is its own."""
        for word in self._word_of.values():
            word.release()
        self.memory.close()

    def _at(self, number: int) -> int:
        return HEADER.size + (number - 1) * SLOT.size


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli, reflected), as in RFC 3720.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
