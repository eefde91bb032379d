"""Errors of the client: one class for each thing that a caller does differently.

Every error says what became of the cache (`error.cache`), because that is the first question of whoever
catches it.  Argument errors that the client finds itself look like those that the daemon answers.
"""

from __future__ import annotations

from . import wire
from ._pb import chunkkv_pb2 as pb
from .wire import CacheState, Code, Radius


class ChunkkvError(Exception):
    """Base of all errors of this package.

    Attributes:
        code: what went wrong; None when the daemon did not answer at all.
        radius: how far the damage goes.
        cache: what became of the tensors of the request.
        field: path of the field at fault, such as "compress.groups[0].table"; may be empty.
        detail: one sentence for a person; never parse it.
        retry_after_ms: 0 = do not repeat unchanged.
        driver_code: CUDA driver error or -errno behind it; 0 = none.
        slot: with QUOTA, the budget that is used up.
        request_id: with CoreDied or DeviceError of a request that writes, its id, for `Client.repair()`; else 0.
    """

    def __init__(self, detail: str, *, code: Code | None = None, radius: Radius = Radius.REQUEST,
                 cache: CacheState = CacheState.CLEAN, field: str = "", retry_after_ms: int = 0,
                 driver_code: int = 0, slot: wire.Slot = wire.Slot.NONE) -> None:
        self.code = code
        self.radius = radius
        self.cache = cache
        self.field = field
        self.detail = detail
        self.retry_after_ms = retry_after_ms
        self.driver_code = driver_code
        self.slot = slot
        self.request_id = 0
        super().__init__(detail)

    def __str__(self) -> str:
        name = self.code.name if self.code is not None else ""
        if self.slot:
            name += f" of {self.slot.name.lower()}"
        return ": ".join(word for word in (name, self.field, self.detail) if word) + f" (cache {self.cache.name})"

    def __repr__(self) -> str:
        code = self.code.name if self.code is not None else None
        slot = f", slot={self.slot.name}" if self.slot else ""
        return (f"{type(self).__name__}({self.detail!r}, code={code}, field={self.field!r}, "
                f"cache={self.cache.name}{slot})")


class InvalidArgument(ChunkkvError, ValueError):
    """A value, size or combination is wrong; `field` names it.  The caller has a bug."""


class Unsupported(ChunkkvError):
    """This daemon has no such method, type or protocol version.  Go without it."""


class NotFound(ChunkkvError):
    """No such region, cache or request in this session."""


class PermissionDenied(ChunkkvError):
    """Not yours, or registered for reading only."""


class Busy(ChunkkvError):
    """A budget, queue or workspace is used up.  Wait `retry_after_ms`, or go on uncompressed."""


class DeadlineExceeded(ChunkkvError, TimeoutError):
    """The time was over.  `cache` says whether anything was written: PENDING means that it may still be."""


class Cancelled(ChunkkvError):
    """The request was cancelled before anything was written."""


class Conflict(ChunkkvError):
    """A request id was used with another body, or is too old."""


class CannotCompress(ChunkkvError):
    """This sequence cannot be compressed as asked (budget, scores, steps).  Go on uncompressed."""


class RegionError(ChunkkvError):
    """The memory behind a region is not acceptable, or was lost.  Export and register it again."""


class DeviceError(ChunkkvError):
    """The device failed; the daemon restarts."""


class Draining(ChunkkvError):
    """The daemon is shutting down."""


class InternalError(ChunkkvError):
    """A bug of the daemon, or an answer that this client cannot read."""


class DaemonUnavailable(ChunkkvError, ConnectionError):
    """Nobody answers at the endpoint."""


class SessionLost(ChunkkvError):
    """The session is over: call `Client.reconnect()` and register again."""


class StaleBoot(SessionLost):
    """The daemon was restarted since this session began; the request was not executed by the new one."""


class SessionUnknown(SessionLost):
    """The session was ended, or never begun."""


class CoreDied(SessionLost):
    """The daemon's process died while a request was unanswered.  The next call waits for a new one and goes on.

    `cache` TORN_REPAIRABLE: `Client.repair(error.request_id)` finishes the move.
    """


_CLASSES: dict[Code, type[ChunkkvError]] = {
    Code.BAD_MESSAGE: InvalidArgument, Code.INVALID_ARGUMENT: InvalidArgument, Code.OUT_OF_RANGE: InvalidArgument,
    Code.REPLY_TOO_LARGE: InvalidArgument,
    Code.UNSUPPORTED: Unsupported, Code.UNSUPPORTED_VERSION: Unsupported,
    Code.NOT_FOUND: NotFound, Code.PERMISSION: PermissionDenied,
    Code.QUOTA: Busy, Code.BUSY: Busy, Code.NO_MEMORY: Busy,
    Code.EXPIRED: DeadlineExceeded, Code.CANCELLED: Cancelled, Code.CONFLICT: Conflict,
    Code.TOO_MANY_STEPS: CannotCompress, Code.BUDGET_BELOW_PROTECTED: CannotCompress,
    Code.NONFINITE_SCORE: CannotCompress, Code.BAD_LSE: CannotCompress,
    Code.HANDLE_INVALID: RegionError, Code.HANDLE_STALE: RegionError, Code.HANDLE_UNSUPPORTED: RegionError,
    Code.DEVICE_MISMATCH: RegionError, Code.SAME_PROCESS: RegionError, Code.ALREADY_MAPPED: RegionError,
    Code.NOT_SEALED: RegionError, Code.SPARSE: RegionError, Code.REGION_LOST: RegionError,
    Code.STALE_BOOT: StaleBoot, Code.SESSION_UNKNOWN: SessionUnknown, Code.PROTOCOL_VIOLATION: SessionLost,
    Code.DEVICE_ERROR: DeviceError, Code.DEVICE_HUNG: DeviceError,
    Code.DRAINING: Draining, Code.INTERNAL: InternalError,
}


def from_code(code: int, detail: str, *, radius: int = Radius.REQUEST, cache: int = CacheState.CLEAN, field: str = "",
              retry_after_ms: int = 0, driver_code: int = 0, slot: int = 0) -> ChunkkvError:
    """The error object for a code of the wire; a code that this client does not know becomes InternalError."""
    known = Code(code) if code in Code._value2member_map_ else None
    kind = _CLASSES.get(known, InternalError) if known is not None else InternalError
    return kind(detail or f"code {code}", code=known, radius=Radius(radius), cache=CacheState(cache), field=field,
                retry_after_ms=retry_after_ms, driver_code=driver_code, slot=wire.Slot(slot))


def from_status(status: pb.Status) -> ChunkkvError:
    """The error object for a Status whose code is not OK."""
    return from_code(status.code, status.detail, radius=status.radius, cache=status.cache, field=status.field,
                     retry_after_ms=status.retry_after_ms, driver_code=status.driver_code, slot=status.slot)


def invalid(field: str, detail: str) -> InvalidArgument:
    """An argument error that the client found before sending."""
    return InvalidArgument(detail, code=Code.INVALID_ARGUMENT, field=field)
