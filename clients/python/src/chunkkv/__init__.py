"""Client of chunkkvd, the daemon that compresses KV caches in place with ChunkKV.

    import chunkkv

    with chunkkv.Client() as client:
        kv = chunkkv.SharedCache.allocate(client, layers=2, tokens=1024, kv_heads=3, q_heads=9, head_dim=64)
        for layer in (0, 1):
            kv.write(layer, key=keys[layer], value=values[layer], query=queries[layer])
        answer = client.compress(kv, rows=1024, keep_ratio=0.2)
        print(answer.physical_len, answer.layers[0].kept)

Afterwards the kept rows lie at the front: row i is what row `answer.layers[0].rows[i]` was.  Two lengths go on
from here: positions from `answer.logical_len`, slots from `answer.physical_len`.

`Client` is a session; `SharedCache` is memory of this package's own; engines describe theirs with `CacheLayout`,
`Table` and `Queries`.  Errors are subclasses of `ChunkkvError`, and `error.cache` says what became of the cache.
"""

from typing import TYPE_CHECKING, Any

from . import cuda, methods, text
from .answer import Answer, Budget, CodePath, GroupResult, LayerResult, Outcome, Pong, Timing, jaccard
from .cache import Cache, SharedCache
from .client import Client
from .dtypes import as_torch, element_type, from_bf16, to_bf16
from .endpoint import Endpoint
from .engines import ENGINES, engine_layout
from .errors import (
    Busy,
    Cancelled,
    CannotCompress,
    ChunkkvError,
    Conflict,
    CoreDied,
    DaemonUnavailable,
    DeadlineExceeded,
    DeviceError,
    Draining,
    InternalError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    RegionError,
    SessionLost,
    SessionUnknown,
    StaleBoot,
    Unsupported,
)
from .job import GroupJob, Queries, Table
from .layout import Axis, CacheLayout, LayerGroup, Plane
from .memory import SharedMemory
from .policy import Policy, hybrid, millionths
from .ranges import ranges_from_rows, ranges_from_runs, rows_from_ranges, runs_from_ranges
from .region import Region, Slice
from .rowmap import RowMap
from .session import Limits, Session
from .side import Notice, NoticeKind
from .timeline import TimelineWord
from .wire import Access, CacheState, Code, DType, KeptAll, Mode, Phase, PlaneKind, Radius, Slot

if TYPE_CHECKING:
    from .transformers import compress as compress

__version__ = "0.1.0"

__all__ = [
    "ENGINES",
    "Access",
    "Answer",
    "Axis",
    "Budget",
    "Busy",
    "Cache",
    "CacheLayout",
    "CacheState",
    "Cancelled",
    "CannotCompress",
    "ChunkkvError",
    "Client",
    "Code",
    "CodePath",
    "Conflict",
    "CoreDied",
    "DType",
    "DaemonUnavailable",
    "DeadlineExceeded",
    "DeviceError",
    "Draining",
    "Endpoint",
    "GroupJob",
    "GroupResult",
    "InternalError",
    "InvalidArgument",
    "KeptAll",
    "LayerGroup",
    "LayerResult",
    "Limits",
    "Mode",
    "NotFound",
    "Notice",
    "NoticeKind",
    "Outcome",
    "PermissionDenied",
    "Phase",
    "Plane",
    "PlaneKind",
    "Policy",
    "Pong",
    "Queries",
    "Radius",
    "Region",
    "RegionError",
    "RowMap",
    "Session",
    "SessionLost",
    "SessionUnknown",
    "SharedCache",
    "SharedMemory",
    "Slice",
    "Slot",
    "StaleBoot",
    "Table",
    "TimelineWord",
    "Timing",
    "Unsupported",
    "as_torch",
    "cuda",
    "element_type",
    "engine_layout",
    "from_bf16",
    "hybrid",
    "jaccard",
    "methods",
    "millionths",
    "ranges_from_rows",
    "ranges_from_runs",
    "rows_from_ranges",
    "runs_from_ranges",
    "text",
    "to_bf16",
]


def __getattr__(name: str) -> Any:
    """`chunkkv.compress` needs torch and transformers, which this package does not: they come when it is asked for."""
    if name == "compress":
        from .transformers import compress

        return compress
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
