"""The numbers with names that answers carry, as Python enums.

Values are those of chunkkv.proto; a test compares each enum with the schema.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """What went wrong."""

    OK = 0
    BAD_MESSAGE = 1
    UNSUPPORTED_VERSION = 2
    INVALID_ARGUMENT = 3
    OUT_OF_RANGE = 4
    NOT_FOUND = 5
    PERMISSION = 6
    QUOTA = 7
    BUSY = 8
    EXPIRED = 9
    CANCELLED = 10
    STALE_BOOT = 11
    CONFLICT = 12
    REPLY_TOO_LARGE = 13
    UNSUPPORTED = 14
    NO_MEMORY = 15
    TOO_MANY_STEPS = 16
    BUDGET_BELOW_PROTECTED = 17
    NONFINITE_SCORE = 18
    BAD_LSE = 19
    HANDLE_INVALID = 20
    HANDLE_STALE = 21
    HANDLE_UNSUPPORTED = 22
    DEVICE_MISMATCH = 23
    SAME_PROCESS = 24
    ALREADY_MAPPED = 25
    NOT_SEALED = 26
    SPARSE = 27
    REGION_LOST = 28
    SESSION_UNKNOWN = 30
    PROTOCOL_VIOLATION = 31
    DEVICE_ERROR = 40
    DEVICE_HUNG = 41
    DRAINING = 50
    INTERNAL = 51


class Radius(IntEnum):
    """How far the damage of an error goes."""

    NONE = 0
    REQUEST = 1
    REGION = 2
    SESSION = 3
    DEVICE = 4
    DAEMON = 5


class CacheState(IntEnum):
    """What became of the tensors of a request.

    CLEAN: as before.  COMMITTED: compressed.  TORN: half written, recompute.  TORN_REPAIRABLE: half written,
    can be rolled forward.  PENDING: nobody knows yet, it may be written at this moment: do not touch it.
    """

    CLEAN = 0
    COMMITTED = 1
    TORN = 2
    TORN_REPAIRABLE = 3
    PENDING = 4


class Phase(IntEnum):
    """How far a request came."""

    NONE = 0
    SUBMITTED = 1
    SCORING = 2
    SELECTED = 3
    COMMITTING = 4
    DONE = 5
    TORN = 6
    CANCELLED = 7
    FAILED = 8


class Mode(IntEnum):
    """What a compress request does: say what would be kept, move it to the front, or copy it elsewhere."""

    NONE = 0
    PLAN = 1
    IN_PLACE = 2
    COPY_OUT = 3


class KeptAll(IntEnum):
    """Why nothing was dropped; DROPPED when something was."""

    DROPPED = 0
    EMPTY = 1
    SHORT = 2
    FITS = 3
    PROTECTED = 4


class Access(IntEnum):
    """What the daemon may do with a region; READ is enough for queries and for plan()."""

    NONE = 0
    READ = 1
    READ_WRITE = 2


class Slot(IntEnum):
    """The budgets that a tenant can use up."""

    NONE = 0
    CONNECTIONS = 1
    SESSIONS = 2
    REGIONS = 3
    MAPPED_BYTES = 4
    REQUESTS = 5
    QUEUED_BYTES = 6
    FDS = 7
    DEVICE_TIME = 8


class PlaneKind(IntEnum):
    """What a plane holds."""

    NONE = 0
    K = 1
    V = 2
    LATENT = 3
    OPAQUE = 4


class DType(IntEnum):
    """Element types of planes and queries."""

    NONE = 0
    F32 = 1
    F16 = 2
    BF16 = 3
    F8_E4M3 = 4
    F8_E5M2 = 5
    I8 = 6
    BYTE = 7

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return {DType.F32: 4, DType.F16: 2, DType.BF16: 2}.get(self, 1)
