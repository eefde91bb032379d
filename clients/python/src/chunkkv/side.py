"""The side socket: what ZeroMQ cannot carry.

One message is one 96-byte record (proto/side.h) and at most one descriptor, both ways.  The daemon's core
accepts this socket itself; its closing ends the session.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import weakref
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from .control import ControlPage
from .endpoint import Endpoint
from .errors import ChunkkvError, DaemonUnavailable, SessionLost, from_code
from .wire import Code, Radius, Slot

RECORD = struct.Struct("<IHHQIIQQ16s16sIIIIQ")
MAGIC = 0x31534B43  # "CKS1"
VERSION = 1
NOTHING = bytes(16)
DESCRIPTORS_ASKED = 4  # more than one is a breach, but must be closed all the same


class SideType(IntEnum):
    """Type of a record."""

    ATTACH = 1
    ATTACHED = 2
    OFFER = 3
    OFFERED = 4
    WITHDRAW = 5
    NOTICE = 6


class OfferKind(IntEnum):
    """What an offered descriptor is."""

    MEMFD = 1
    CUDA_VMM = 2


class NoticeKind(IntEnum):
    """What the daemon tells unasked."""

    DRAINING = 1
    REGION_LOST = 2
    SESSION_ENDED = 3


@dataclass(frozen=True)
class SideRecord:
    """One record; what a type does not use stays zero."""

    type: int
    cookie: int = 0
    code: int = 0
    kind: int = 0
    size: int = 0
    now_ns: int = 0
    boot_id: bytes = NOTHING
    token: bytes = NOTHING
    slots: int = 0
    kept_bytes: int = 0
    region_id: int = 0
    flags: int = 0

    def pack(self) -> bytes:
        """The 96 bytes."""
        return RECORD.pack(MAGIC, VERSION, self.type, self.cookie, self.code, self.kind, self.size, self.now_ns,
                           self.boot_id, self.token, self.slots, self.kept_bytes, self.region_id, self.flags, 0)

    @classmethod
    def unpack(cls, data: bytes) -> SideRecord:
        """A record out of its bytes; ValueError if it is none."""
        if len(data) != RECORD.size:
            raise ValueError(f"a side record has {RECORD.size} bytes, not {len(data)}")
        magic, version, *fields, zero = RECORD.unpack(data)
        if magic != MAGIC or version != VERSION or zero != 0:
            raise ValueError("not a side record of version 1")
        return cls(*fields)


# A refusal on the side socket is a code alone; these are the fields and sentences that belong to it.
_REFUSALS = {
    Code.NOT_SEALED: ("offer.fd", "the memfd must be sealed SHRINK, GROW and SEAL, and not WRITE"),
    Code.SPARSE: ("offer.fd", "the memfd must be fully allocated: st_blocks * 512 at least its size of {size}"),
    Code.HANDLE_INVALID: ("offer.fd", "the descriptor must be a memfd on tmpfs or hugetlbfs"),
    Code.OUT_OF_RANGE: ("offer.size", "the memfd must have exactly the {size} bytes declared"),
    # the daemon knows one kind that it may not take, CUDA_VMM
    Code.UNSUPPORTED: ("offer.kind", "this daemon serves the CPU and maps no memory of a GPU, {kind}: ask one with "
                                     "--backend cuda, or send a memfd"),
    Code.INVALID_ARGUMENT: ("offer.size", "the size must be at least 1, is {size}"),
    Code.QUOTA: ("offer", "too many descriptors are offered and not yet registered"),
    Code.NOT_FOUND: ("withdraw.token", "no such offer: taken, withdrawn, or older than 60 s"),
}


@dataclass(frozen=True)
class Notice:
    """Something the daemon told unasked: it drains, lost a region, or ended the session."""

    kind: NoticeKind
    region_id: int


class SideSocket:
    """An attached side connection.  Owns its socket and the pidfd of the core; not thread-safe."""

    def __init__(self, endpoint: Endpoint, timeout: float, page: ControlPage | None = None) -> None:
        """Connect and attach, with a control page if one is given; Unsupported if this daemon takes none."""
        self._cookie = 0
        self._notices: deque[Notice] = deque()
        self.pidfd = -1
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(endpoint.side)
            answer, self.pidfd = self._attach(page)
        except OSError as error:
            self.close()
            raise DaemonUnavailable(f"no chunkkvd at {endpoint.side}: {error}", radius=Radius.SESSION) from error
        except BaseException:
            self.close()
            raise
        self._finalizer = weakref.finalize(self, os.close, self.pidfd) if self.pidfd >= 0 else None
        self.boot_id = answer.boot_id
        self.attach_token = answer.token

    def fileno(self) -> int:
        """The socket's descriptor, for polling."""
        return self._socket.fileno()

    def offer(self, fd: int, size: int, kind: OfferKind = OfferKind.MEMFD) -> bytes:
        """Offer memory by its descriptor; the token registers it once, within 60 s.  `fd` stays the caller's."""
        record = SideRecord(SideType.OFFER, kind=kind, size=size)
        return self._ask_only(record, SideType.OFFERED, fd).token

    def withdraw(self, token: bytes) -> None:
        """Take an offer back."""
        self._ask_only(SideRecord(SideType.WITHDRAW, token=token), SideType.OFFERED)

    def notices(self) -> list[Notice]:
        """What the daemon told since the last call."""
        timeout = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            while True:
                self._keep_notice(self._receive()[0])
        except (BlockingIOError, SessionLost):
            pass
        finally:
            self._socket.settimeout(timeout)
        found = list(self._notices)
        self._notices.clear()
        return found

    def close(self) -> None:
        """Close the connection, which ends the session."""
        self._socket.close()
        if self._finalizer is not None:
            self._finalizer()
        self.pidfd = -1

    def _attach(self, page: ControlPage | None) -> tuple[SideRecord, int]:
        """ATTACH.  One connection too many gets a notice and is closed unread, which we may learn by an error first."""
        record, fd = SideRecord(SideType.ATTACH), -1
        if page is not None:
            record = SideRecord(SideType.ATTACH, slots=page.slots, kept_bytes=page.kept_bytes)
            fd = page.memory.fileno()
        try:
            return self._ask(record, SideType.ATTACHED, fd)
        except (BrokenPipeError, ConnectionResetError):
            with contextlib.suppress(OSError, SessionLost):
                self._keep_notice(self._receive()[0])
            raise

    def _ask_only(self, record: SideRecord, expected: SideType, fd: int = -1) -> SideRecord:
        """As _ask(), for an answer that brings no descriptor."""
        try:
            answer, received = self._ask(record, expected, fd)
        except OSError as error:
            raise SessionLost(f"side connection: {error}", radius=Radius.SESSION) from error
        if received >= 0:
            os.close(received)
        return answer

    def _ask(self, record: SideRecord, expected: SideType, fd: int = -1) -> tuple[SideRecord, int]:
        """Send one record, wait for its answer; the descriptor that came with it is the caller's, -1 for none."""
        self._cookie += 1
        data = SideRecord(**{**record.__dict__, "cookie": self._cookie}).pack()
        socket.send_fds(self._socket, [data], [fd] if fd >= 0 else [])
        while True:
            answer, received = self._receive()
            if answer.type == SideType.NOTICE:
                self._keep_notice(answer)
                continue
            if answer.code != Code.OK or answer.type != expected or answer.cookie != self._cookie:
                if received >= 0:
                    os.close(received)
                if answer.code != Code.OK:
                    raise _refusal(record, answer.code)
                raise SessionLost(f"side socket answered {answer.type} to {record.type}", radius=Radius.SESSION)
            return answer, received

    def _receive(self) -> tuple[SideRecord, int]:
        """One record and its descriptor, or -1."""
        data, fds, flags, _ = socket.recv_fds(self._socket, RECORD.size + 1, DESCRIPTORS_ASKED, socket.MSG_CMSG_CLOEXEC)
        if len(fds) > 1 or flags & socket.MSG_CTRUNC:
            for fd in fds:
                os.close(fd)
            raise SessionLost("more than one descriptor on the side socket", radius=Radius.SESSION)
        if not data:
            raise SessionLost("the daemon closed the side connection", radius=Radius.SESSION)
        return SideRecord.unpack(data), fds[0] if fds else -1

    def _keep_notice(self, record: SideRecord) -> None:
        if record.type == SideType.NOTICE and record.code == Code.QUOTA:
            raise from_code(record.code, f"{record.slots} of {record.size} side connections of this user are open",
                            radius=Radius.SESSION, field="attach", slot=Slot.CONNECTIONS)
        if record.type == SideType.NOTICE and record.kind in NoticeKind._value2member_map_:
            self._notices.append(Notice(NoticeKind(record.kind), record.region_id))


def _refusal(record: SideRecord, code: int) -> ChunkkvError:
    """What the daemon meant by refusing this record."""
    name = SideType(record.type).name.lower()
    known = Code(code) if code in Code._value2member_map_ else Code.INTERNAL
    field, detail = _REFUSALS.get(known, (name, f"the daemon refused {name}"))
    kind = OfferKind(record.kind).name if record.kind in OfferKind._value2member_map_ else record.kind
    return from_code(code, detail.format(size=record.size, kind=kind), field=field)
