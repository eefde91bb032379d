from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

ACCESS_NONE: Access
ACCESS_READ: Access
ACCESS_READ_WRITE: Access
BACKEND_CPU: Backend
BACKEND_CUDA: Backend
BACKEND_NONE: Backend
CACHE_CLEAN: CacheState
CACHE_COMMITTED: CacheState
CACHE_PENDING: CacheState
CACHE_TORN: CacheState
CACHE_TORN_REPAIRABLE: CacheState
CAP_CONTROL_PAGE: Capability
CAP_COPY_OUT: Capability
CAP_CUDA_IPC: Capability
CAP_CUDA_VMM: Capability
CAP_HOLD: Capability
CAP_LSE: Capability
CAP_MEMFD: Capability
CAP_NONE: Capability
CAP_POSIX_SHM: Capability
CAP_REPAIR: Capability
CAP_REPLY_IN_REGION: Capability
CAP_SCORES: Capability
CAP_TABLE_IN_REGION: Capability
CAP_TIMELINE: Capability
CODE_ALREADY_MAPPED: Code
CODE_BAD_LSE: Code
CODE_BAD_MESSAGE: Code
CODE_BUDGET_BELOW_PROTECTED: Code
CODE_BUSY: Code
CODE_CANCELLED: Code
CODE_CONFLICT: Code
CODE_DEVICE_ERROR: Code
CODE_DEVICE_HUNG: Code
CODE_DEVICE_MISMATCH: Code
CODE_DRAINING: Code
CODE_EXPIRED: Code
CODE_HANDLE_INVALID: Code
CODE_HANDLE_STALE: Code
CODE_HANDLE_UNSUPPORTED: Code
CODE_INTERNAL: Code
CODE_INVALID_ARGUMENT: Code
CODE_NONFINITE_SCORE: Code
CODE_NOT_FOUND: Code
CODE_NOT_SEALED: Code
CODE_NO_MEMORY: Code
CODE_OK: Code
CODE_OUT_OF_RANGE: Code
CODE_PERMISSION: Code
CODE_PROTOCOL_VIOLATION: Code
CODE_QUOTA: Code
CODE_REGION_LOST: Code
CODE_REPLY_TOO_LARGE: Code
CODE_SAME_PROCESS: Code
CODE_SESSION_UNKNOWN: Code
CODE_SPARSE: Code
CODE_STALE_BOOT: Code
CODE_TOO_MANY_STEPS: Code
CODE_UNSUPPORTED: Code
CODE_UNSUPPORTED_VERSION: Code
DESCRIPTOR: _descriptor.FileDescriptor
DROPPED: KeptAll
DTYPE_BF16: DType
DTYPE_BYTE: DType
DTYPE_F16: DType
DTYPE_F32: DType
DTYPE_F8_E4M3: DType
DTYPE_F8_E5M2: DType
DTYPE_I8: DType
DTYPE_NONE: DType
FILL_BEST: Fill
FILL_LEAD: Fill
FILL_NONE: Fill
FILL_OF_PROFILE: Fill
GROUP_MAX: GroupHeads
GROUP_MEAN: GroupHeads
GROUP_OF_PROFILE: GroupHeads
GROUP_SUM: GroupHeads
HEADS_EACH: Heads
HEADS_MAX: Heads
HEADS_OF_PROFILE: Heads
HEADS_SUM: Heads
JOIN_CUT: Join
JOIN_OF_PROFILE: Join
JOIN_UNION: Join
KEPT_EMPTY: KeptAll
KEPT_FITS: KeptAll
KEPT_PROTECTED: KeptAll
KEPT_SHORT: KeptAll
LAYERS_EACH: Layers
LAYERS_OF_PROFILE: Layers
LAYERS_ONE: Layers
LAYER_OF_PROFILE: LayerReduce
LAYER_SUM: LayerReduce
LAYER_TOP4: LayerReduce
MODE_COPY_OUT: Mode
MODE_IN_PLACE: Mode
MODE_NONE: Mode
MODE_PLAN: Mode
NORM_MEAN: Norm
NORM_OF_PROFILE: Norm
NORM_SEEN: Norm
NORM_SUM: Norm
PHASE_CANCELLED: Phase
PHASE_COMMITTING: Phase
PHASE_DONE: Phase
PHASE_FAILED: Phase
PHASE_NONE: Phase
PHASE_SCORING: Phase
PHASE_SELECTED: Phase
PHASE_SUBMITTED: Phase
PHASE_TORN: Phase
PLANE_K: PlaneKind
PLANE_LATENT: PlaneKind
PLANE_NONE: PlaneKind
PLANE_OPAQUE: PlaneKind
PLANE_V: PlaneKind
POOL_AVG: Pool
POOL_LEAK: Pool
POOL_MAX: Pool
POOL_NONE: Pool
POOL_OF_PROFILE: Pool
PROFILE_DEFAULT: Profile
PROFILE_KVPRESS: Profile
PROFILE_PAPER: Profile
PROFILE_RETRIEVAL: Profile
PROFILE_VOTE: Profile
RADIUS_DAEMON: Radius
RADIUS_DEVICE: Radius
RADIUS_NONE: Radius
RADIUS_REGION: Radius
RADIUS_REQUEST: Radius
RADIUS_SESSION: Radius
REPLY_IN_REGION: ReplyForm
REPLY_IN_SLOT: ReplyForm
REPLY_NO_SETS: ReplyForm
REPLY_ROWS: ReplyForm
REPLY_RUNS: ReplyForm
ROWS_MAX: WindowReduce
ROWS_OF_PROFILE: WindowReduce
ROWS_SUM: WindowReduce
SCORER_DROP: Scorer
SCORER_GIVEN: Scorer
SCORER_KEYDIFF: Scorer
SCORER_KNORM: Scorer
SCORER_LAGKV: Scorer
SCORER_OF_PROFILE: Scorer
SCORER_RAW_QK: Scorer
SCORER_VK_RATIO: Scorer
SCORER_WINDOW: Scorer
SCORE_ROWS: ScoreKind
SCORE_UNITS: ScoreKind
SELECTOR_CHUNK: Selector
SELECTOR_CHUNK_AT: Selector
SELECTOR_CHUNK_EG: Selector
SELECTOR_H2O: Selector
SELECTOR_OF_PROFILE: Selector
SELECTOR_PAGE: Selector
SELECTOR_STREAMING: Selector
SELECTOR_TOKEN: Selector
SLOT_CONNECTIONS: Slot
SLOT_DEVICE_TIME: Slot
SLOT_FDS: Slot
SLOT_MAPPED_BYTES: Slot
SLOT_NONE: Slot
SLOT_QUEUED_BYTES: Slot
SLOT_REGIONS: Slot
SLOT_REQUESTS: Slot
SLOT_SESSIONS: Slot
TABLE_BLOCKS: TableForm
TABLE_BLOCK_RUNS: TableForm
TABLE_NONE: TableForm
TABLE_TOKENS: TableForm
TABLE_TOKEN_RUNS: TableForm
TIGHT_OF_PROFILE: Tight
TIGHT_RAISE: Tight
TIGHT_REFUSE: Tight
UNIT_MAX: UnitReduce
UNIT_MEAN: UnitReduce
UNIT_OF_PROFILE: UnitReduce
UNIT_SUM: UnitReduce
WEIGHT_L1: ValueWeight
WEIGHT_L2: ValueWeight
WEIGHT_NONE: ValueWeight

class Axis(_message.Message):
    __slots__ = ["inner", "outer", "tile"]
    INNER_FIELD_NUMBER: _ClassVar[int]
    OUTER_FIELD_NUMBER: _ClassVar[int]
    TILE_FIELD_NUMBER: _ClassVar[int]
    inner: int
    outer: int
    tile: int
    def __init__(self, tile: _Optional[int] = ..., outer: _Optional[int] = ..., inner: _Optional[int] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ["limit", "slot", "used"]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    limit: int
    slot: Slot
    used: int
    def __init__(self, slot: _Optional[_Union[Slot, str]] = ..., used: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class CacheRegistered(_message.Message):
    __slots__ = ["cache_id", "fast_path"]
    CACHE_ID_FIELD_NUMBER: _ClassVar[int]
    FAST_PATH_FIELD_NUMBER: _ClassVar[int]
    cache_id: int
    fast_path: bool
    def __init__(self, cache_id: _Optional[int] = ..., fast_path: bool = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ["target_request_id"]
    TARGET_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    target_request_id: int
    def __init__(self, target_request_id: _Optional[int] = ...) -> None: ...

class CodePath(_message.Message):
    __slots__ = ["head_dim_first", "head_dim_last", "key_dtype", "path", "queries_first", "queries_last", "query_dtype"]
    HEAD_DIM_FIRST_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_LAST_FIELD_NUMBER: _ClassVar[int]
    KEY_DTYPE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIRST_FIELD_NUMBER: _ClassVar[int]
    QUERIES_LAST_FIELD_NUMBER: _ClassVar[int]
    QUERY_DTYPE_FIELD_NUMBER: _ClassVar[int]
    head_dim_first: int
    head_dim_last: int
    key_dtype: DType
    path: str
    queries_first: int
    queries_last: int
    query_dtype: DType
    def __init__(self, key_dtype: _Optional[_Union[DType, str]] = ..., query_dtype: _Optional[_Union[DType, str]] = ..., head_dim_first: _Optional[int] = ..., head_dim_last: _Optional[int] = ..., queries_first: _Optional[int] = ..., queries_last: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ["target_request_id"]
    TARGET_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    target_request_id: int
    def __init__(self, target_request_id: _Optional[int] = ...) -> None: ...

class Compress(_message.Message):
    __slots__ = ["cache_id", "control_slot", "control_use", "groups", "hold", "logical_len", "mode", "queries", "reply_form", "reply_to", "signal", "single_pass", "wait", "want_kept_mass"]
    CACHE_ID_FIELD_NUMBER: _ClassVar[int]
    CONTROL_SLOT_FIELD_NUMBER: _ClassVar[int]
    CONTROL_USE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_LEN_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    REPLY_FORM_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    SINGLE_PASS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    WANT_KEPT_MASS_FIELD_NUMBER: _ClassVar[int]
    cache_id: int
    control_slot: int
    control_use: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupJob]
    hold: bool
    logical_len: int
    mode: Mode
    queries: Queries
    reply_form: ReplyForm
    reply_to: Slice
    signal: TimelineWord
    single_pass: bool
    wait: TimelineWord
    want_kept_mass: bool
    def __init__(self, cache_id: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., hold: bool = ..., control_slot: _Optional[int] = ..., control_use: _Optional[int] = ..., logical_len: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupJob, _Mapping]]] = ..., queries: _Optional[_Union[Queries, _Mapping]] = ..., reply_form: _Optional[_Union[ReplyForm, str]] = ..., reply_to: _Optional[_Union[Slice, _Mapping]] = ..., single_pass: bool = ..., want_kept_mass: bool = ..., wait: _Optional[_Union[TimelineWord, _Mapping]] = ..., signal: _Optional[_Union[TimelineWord, _Mapping]] = ...) -> None: ...

class Compressed(_message.Message):
    __slots__ = ["groups", "logical_len", "phase", "timing"]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_LEN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupResult]
    logical_len: int
    phase: Phase
    timing: Timing
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., logical_len: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupResult, _Mapping]]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ...) -> None: ...

class Count(_message.Message):
    __slots__ = ["value"]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class CudaIpc(_message.Message):
    __slots__ = ["alloc_size", "handle"]
    ALLOC_SIZE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    alloc_size: int
    handle: bytes
    def __init__(self, handle: _Optional[bytes] = ..., alloc_size: _Optional[int] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ["backend", "name", "uuid"]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    backend: Backend
    name: str
    uuid: bytes
    def __init__(self, backend: _Optional[_Union[Backend, str]] = ..., uuid: _Optional[bytes] = ..., name: _Optional[str] = ...) -> None: ...

class EndSession(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GetStatus(_message.Message):
    __slots__ = ["target_request_id"]
    TARGET_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    target_request_id: int
    def __init__(self, target_request_id: _Optional[int] = ...) -> None: ...

class GroupJob(_message.Message):
    __slots__ = ["chunk_lengths", "destination", "given_runs", "group", "keep_ratio", "max_tokens", "physical_len", "policies", "position_runs", "protect", "protect_prefix", "score_kind", "scores_in", "scores_out", "table"]
    CHUNK_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    GIVEN_RUNS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KEEP_RATIO_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_LEN_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    POSITION_RUNS_FIELD_NUMBER: _ClassVar[int]
    PROTECT_FIELD_NUMBER: _ClassVar[int]
    PROTECT_PREFIX_FIELD_NUMBER: _ClassVar[int]
    SCORES_IN_FIELD_NUMBER: _ClassVar[int]
    SCORES_OUT_FIELD_NUMBER: _ClassVar[int]
    SCORE_KIND_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    chunk_lengths: _containers.RepeatedScalarFieldContainer[int]
    destination: Table
    given_runs: _containers.RepeatedScalarFieldContainer[int]
    group: int
    keep_ratio: int
    max_tokens: int
    physical_len: int
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    position_runs: _containers.RepeatedScalarFieldContainer[int]
    protect: _containers.RepeatedCompositeFieldContainer[Span]
    protect_prefix: int
    score_kind: ScoreKind
    scores_in: Slice
    scores_out: Slice
    table: Table
    def __init__(self, group: _Optional[int] = ..., physical_len: _Optional[int] = ..., table: _Optional[_Union[Table, _Mapping]] = ..., destination: _Optional[_Union[Table, _Mapping]] = ..., policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ..., keep_ratio: _Optional[int] = ..., max_tokens: _Optional[int] = ..., protect_prefix: _Optional[int] = ..., protect: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., position_runs: _Optional[_Iterable[int]] = ..., chunk_lengths: _Optional[_Iterable[int]] = ..., given_runs: _Optional[_Iterable[int]] = ..., score_kind: _Optional[_Union[ScoreKind, str]] = ..., scores_out: _Optional[_Union[Slice, _Mapping]] = ..., scores_in: _Optional[_Union[Slice, _Mapping]] = ...) -> None: ...

class GroupResult(_message.Message):
    __slots__ = ["budget", "budget_raised", "bytes_moved", "group", "kept_all", "kept_digest", "kept_mass", "physical_before", "physical_len", "policies", "set_count", "sets", "table_used"]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    BUDGET_RAISED_FIELD_NUMBER: _ClassVar[int]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KEPT_ALL_FIELD_NUMBER: _ClassVar[int]
    KEPT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KEPT_MASS_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_BEFORE_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_LEN_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    SET_COUNT_FIELD_NUMBER: _ClassVar[int]
    TABLE_USED_FIELD_NUMBER: _ClassVar[int]
    budget: int
    budget_raised: bool
    bytes_moved: int
    group: int
    kept_all: KeptAll
    kept_digest: int
    kept_mass: _containers.RepeatedScalarFieldContainer[float]
    physical_before: int
    physical_len: int
    policies: _containers.RepeatedCompositeFieldContainer[Policy]
    set_count: int
    sets: _containers.RepeatedCompositeFieldContainer[KeptSet]
    table_used: int
    def __init__(self, group: _Optional[int] = ..., physical_before: _Optional[int] = ..., physical_len: _Optional[int] = ..., kept_all: _Optional[_Union[KeptAll, str]] = ..., table_used: _Optional[int] = ..., sets: _Optional[_Iterable[_Union[KeptSet, _Mapping]]] = ..., set_count: _Optional[int] = ..., kept_digest: _Optional[int] = ..., budget: _Optional[int] = ..., budget_raised: bool = ..., bytes_moved: _Optional[int] = ..., policies: _Optional[_Iterable[_Union[Policy, _Mapping]]] = ..., kept_mass: _Optional[_Iterable[float]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ["attach_token", "client", "minor_max", "minor_min", "needs", "now_ns"]
    ATTACH_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    MINOR_MAX_FIELD_NUMBER: _ClassVar[int]
    MINOR_MIN_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    attach_token: bytes
    client: str
    minor_max: int
    minor_min: int
    needs: _containers.RepeatedScalarFieldContainer[Capability]
    now_ns: int
    def __init__(self, minor_min: _Optional[int] = ..., minor_max: _Optional[int] = ..., client: _Optional[str] = ..., now_ns: _Optional[int] = ..., attach_token: _Optional[bytes] = ..., needs: _Optional[_Iterable[_Union[Capability, str]]] = ...) -> None: ...

class KeptSet(_message.Message):
    __slots__ = ["kv_head", "layer_first", "position_runs", "rows", "runs"]
    KV_HEAD_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIRST_FIELD_NUMBER: _ClassVar[int]
    POSITION_RUNS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    kv_head: int
    layer_first: int
    position_runs: _containers.RepeatedScalarFieldContainer[int]
    rows: _containers.RepeatedScalarFieldContainer[int]
    runs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, layer_first: _Optional[int] = ..., kv_head: _Optional[int] = ..., runs: _Optional[_Iterable[int]] = ..., rows: _Optional[_Iterable[int]] = ..., position_runs: _Optional[_Iterable[int]] = ...) -> None: ...

class LayerGroup(_message.Message):
    __slots__ = ["head_dim_k", "head_dim_v", "kv_heads", "layers", "num_blocks", "q_heads", "tokens_per_block"]
    HEAD_DIM_K_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_V_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    Q_HEADS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    head_dim_k: int
    head_dim_v: int
    kv_heads: int
    layers: _containers.RepeatedScalarFieldContainer[int]
    num_blocks: int
    q_heads: int
    tokens_per_block: int
    def __init__(self, layers: _Optional[_Iterable[int]] = ..., kv_heads: _Optional[int] = ..., q_heads: _Optional[int] = ..., head_dim_k: _Optional[int] = ..., head_dim_v: _Optional[int] = ..., tokens_per_block: _Optional[int] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ["control_slots", "groups", "hold_ms", "in_flight", "mapped_bytes", "message_parts", "planes", "regions", "reply_bytes", "request_bytes", "rows", "spans"]
    CONTROL_SLOTS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MAPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_PARTS_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    REPLY_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    control_slots: int
    groups: int
    hold_ms: int
    in_flight: int
    mapped_bytes: int
    message_parts: int
    planes: int
    regions: int
    reply_bytes: int
    request_bytes: int
    rows: int
    spans: int
    def __init__(self, request_bytes: _Optional[int] = ..., reply_bytes: _Optional[int] = ..., in_flight: _Optional[int] = ..., regions: _Optional[int] = ..., mapped_bytes: _Optional[int] = ..., rows: _Optional[int] = ..., planes: _Optional[int] = ..., groups: _Optional[int] = ..., spans: _Optional[int] = ..., hold_ms: _Optional[int] = ..., control_slots: _Optional[int] = ..., message_parts: _Optional[int] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ["cache", "code", "phase", "target_request_id"]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    TARGET_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    cache: CacheState
    code: Code
    phase: Phase
    target_request_id: int
    def __init__(self, target_request_id: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., code: _Optional[_Union[Code, str]] = ..., cache: _Optional[_Union[CacheState, str]] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Plane(_message.Message):
    __slots__ = ["block_stride", "dim", "dtype", "head_stride", "kind", "layer_count", "layer_first", "layer_stride", "offset", "region_id", "scale", "token"]
    BLOCK_STRIDE_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    HEAD_STRIDE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIRST_FIELD_NUMBER: _ClassVar[int]
    LAYER_STRIDE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    block_stride: int
    dim: Axis
    dtype: DType
    head_stride: int
    kind: PlaneKind
    layer_count: int
    layer_first: int
    layer_stride: int
    offset: int
    region_id: int
    scale: float
    token: Axis
    def __init__(self, kind: _Optional[_Union[PlaneKind, str]] = ..., dtype: _Optional[_Union[DType, str]] = ..., layer_first: _Optional[int] = ..., layer_count: _Optional[int] = ..., region_id: _Optional[int] = ..., offset: _Optional[int] = ..., layer_stride: _Optional[int] = ..., block_stride: _Optional[int] = ..., head_stride: _Optional[int] = ..., token: _Optional[_Union[Axis, _Mapping]] = ..., dim: _Optional[_Union[Axis, _Mapping]] = ..., scale: _Optional[float] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ["align", "beta", "chunk", "contrast_end", "contrast_first", "fill", "group_heads", "heads", "heavy", "join", "layer_first", "layer_reduce", "layers", "min_tokens", "mute", "norm", "page", "pool", "pool_size", "profile", "recent", "recent_part", "reuse", "scale", "scorer", "selector", "sinks", "sliding", "softcap", "spike_keep", "tight", "unit_reduce", "value_weight", "vote_rows", "window", "window_reduce"]
    ALIGN_FIELD_NUMBER: _ClassVar[int]
    BETA_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CONTRAST_END_FIELD_NUMBER: _ClassVar[int]
    CONTRAST_FIRST_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    GROUP_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAVY_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIRST_FIELD_NUMBER: _ClassVar[int]
    LAYER_REDUCE_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MUTE_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    POOL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    RECENT_PART_FIELD_NUMBER: _ClassVar[int]
    REUSE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    SCORER_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    SINKS_FIELD_NUMBER: _ClassVar[int]
    SLIDING_FIELD_NUMBER: _ClassVar[int]
    SOFTCAP_FIELD_NUMBER: _ClassVar[int]
    SPIKE_KEEP_FIELD_NUMBER: _ClassVar[int]
    TIGHT_FIELD_NUMBER: _ClassVar[int]
    UNIT_REDUCE_FIELD_NUMBER: _ClassVar[int]
    VALUE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    VOTE_ROWS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    WINDOW_REDUCE_FIELD_NUMBER: _ClassVar[int]
    align: int
    beta: int
    chunk: int
    contrast_end: Count
    contrast_first: Count
    fill: Fill
    group_heads: GroupHeads
    heads: Heads
    heavy: int
    join: Join
    layer_first: int
    layer_reduce: LayerReduce
    layers: Layers
    min_tokens: Count
    mute: Count
    norm: Norm
    page: int
    pool: Pool
    pool_size: int
    profile: Profile
    recent: Count
    recent_part: int
    reuse: int
    scale: float
    scorer: Scorer
    selector: Selector
    sinks: Count
    sliding: int
    softcap: float
    spike_keep: int
    tight: Tight
    unit_reduce: UnitReduce
    value_weight: ValueWeight
    vote_rows: int
    window: int
    window_reduce: WindowReduce
    def __init__(self, profile: _Optional[_Union[Profile, str]] = ..., scorer: _Optional[_Union[Scorer, str]] = ..., selector: _Optional[_Union[Selector, str]] = ..., layer_first: _Optional[int] = ..., window: _Optional[int] = ..., chunk: _Optional[int] = ..., sinks: _Optional[_Union[Count, _Mapping]] = ..., recent: _Optional[_Union[Count, _Mapping]] = ..., min_tokens: _Optional[_Union[Count, _Mapping]] = ..., pool: _Optional[_Union[Pool, str]] = ..., pool_size: _Optional[int] = ..., norm: _Optional[_Union[Norm, str]] = ..., heads: _Optional[_Union[Heads, str]] = ..., value_weight: _Optional[_Union[ValueWeight, str]] = ..., unit_reduce: _Optional[_Union[UnitReduce, str]] = ..., layers: _Optional[_Union[Layers, str]] = ..., reuse: _Optional[int] = ..., fill: _Optional[_Union[Fill, str]] = ..., tight: _Optional[_Union[Tight, str]] = ..., align: _Optional[int] = ..., join: _Optional[_Union[Join, str]] = ..., scale: _Optional[float] = ..., softcap: _Optional[float] = ..., sliding: _Optional[int] = ..., spike_keep: _Optional[int] = ..., page: _Optional[int] = ..., beta: _Optional[int] = ..., heavy: _Optional[int] = ..., recent_part: _Optional[int] = ..., group_heads: _Optional[_Union[GroupHeads, str]] = ..., window_reduce: _Optional[_Union[WindowReduce, str]] = ..., vote_rows: _Optional[int] = ..., contrast_first: _Optional[_Union[Count, _Mapping]] = ..., contrast_end: _Optional[_Union[Count, _Mapping]] = ..., mute: _Optional[_Union[Count, _Mapping]] = ..., layer_reduce: _Optional[_Union[LayerReduce, str]] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ["draining", "in_flight", "last_progress_ns", "now_ns"]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LAST_PROGRESS_NS_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    draining: bool
    in_flight: int
    last_progress_ns: int
    now_ns: int
    def __init__(self, now_ns: _Optional[int] = ..., last_progress_ns: _Optional[int] = ..., in_flight: _Optional[int] = ..., draining: bool = ...) -> None: ...

class Queries(_message.Message):
    __slots__ = ["data", "dtype", "head_stride", "last_row", "layer_stride", "layers", "lse", "ring_start", "row_stride", "rows", "sink_logits"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    HEAD_STRIDE_FIELD_NUMBER: _ClassVar[int]
    LAST_ROW_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    LAYER_STRIDE_FIELD_NUMBER: _ClassVar[int]
    LSE_FIELD_NUMBER: _ClassVar[int]
    RING_START_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROW_STRIDE_FIELD_NUMBER: _ClassVar[int]
    SINK_LOGITS_FIELD_NUMBER: _ClassVar[int]
    data: Slice
    dtype: DType
    head_stride: int
    last_row: int
    layer_stride: int
    layers: _containers.RepeatedScalarFieldContainer[int]
    lse: Slice
    ring_start: int
    row_stride: int
    rows: int
    sink_logits: Slice
    def __init__(self, data: _Optional[_Union[Slice, _Mapping]] = ..., dtype: _Optional[_Union[DType, str]] = ..., rows: _Optional[int] = ..., ring_start: _Optional[int] = ..., layer_stride: _Optional[int] = ..., head_stride: _Optional[int] = ..., row_stride: _Optional[int] = ..., layers: _Optional[_Iterable[int]] = ..., last_row: _Optional[int] = ..., lse: _Optional[_Union[Slice, _Mapping]] = ..., sink_logits: _Optional[_Union[Slice, _Mapping]] = ...) -> None: ...

class RegionRegistered(_message.Message):
    __slots__ = ["region_id", "shared"]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    shared: bool
    def __init__(self, region_id: _Optional[int] = ..., shared: bool = ...) -> None: ...

class RegisterCache(_message.Message):
    __slots__ = ["groups", "planes"]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PLANES_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[LayerGroup]
    planes: _containers.RepeatedCompositeFieldContainer[Plane]
    def __init__(self, groups: _Optional[_Iterable[_Union[LayerGroup, _Mapping]]] = ..., planes: _Optional[_Iterable[_Union[Plane, _Mapping]]] = ...) -> None: ...

class RegisterRegion(_message.Message):
    __slots__ = ["access", "buffer_id", "cuda_ipc", "device_uuid", "memfd_token", "offset", "posix_shm", "size", "vmm_tokens"]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    BUFFER_ID_FIELD_NUMBER: _ClassVar[int]
    CUDA_IPC_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    MEMFD_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    POSIX_SHM_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    VMM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    access: Access
    buffer_id: int
    cuda_ipc: CudaIpc
    device_uuid: bytes
    memfd_token: bytes
    offset: int
    posix_shm: str
    size: int
    vmm_tokens: bytes
    def __init__(self, cuda_ipc: _Optional[_Union[CudaIpc, _Mapping]] = ..., memfd_token: _Optional[bytes] = ..., vmm_tokens: _Optional[bytes] = ..., posix_shm: _Optional[str] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., device_uuid: _Optional[bytes] = ..., access: _Optional[_Union[Access, str]] = ..., buffer_id: _Optional[int] = ...) -> None: ...

class Repair(_message.Message):
    __slots__ = ["control_slot", "job", "target_request_id"]
    CONTROL_SLOT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TARGET_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    control_slot: int
    job: Compress
    target_request_id: int
    def __init__(self, target_request_id: _Optional[int] = ..., control_slot: _Optional[int] = ..., job: _Optional[_Union[Compress, _Mapping]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ["boot_id", "cancel", "commit", "compress", "deadline_ns", "end_session", "generation", "get_status", "hello", "ping", "register_cache", "register_region", "repair", "request_id", "session_token", "traceparent", "unregister_cache", "unregister_region"]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    COMPRESS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_NS_FIELD_NUMBER: _ClassVar[int]
    END_SESSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    GET_STATUS_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    REGISTER_CACHE_FIELD_NUMBER: _ClassVar[int]
    REGISTER_REGION_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    UNREGISTER_CACHE_FIELD_NUMBER: _ClassVar[int]
    UNREGISTER_REGION_FIELD_NUMBER: _ClassVar[int]
    boot_id: bytes
    cancel: Cancel
    commit: Commit
    compress: Compress
    deadline_ns: int
    end_session: EndSession
    generation: int
    get_status: GetStatus
    hello: Hello
    ping: Ping
    register_cache: RegisterCache
    register_region: RegisterRegion
    repair: Repair
    request_id: int
    session_token: bytes
    traceparent: str
    unregister_cache: UnregisterCache
    unregister_region: UnregisterRegion
    def __init__(self, request_id: _Optional[int] = ..., deadline_ns: _Optional[int] = ..., generation: _Optional[int] = ..., boot_id: _Optional[bytes] = ..., session_token: _Optional[bytes] = ..., traceparent: _Optional[str] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., get_status: _Optional[_Union[GetStatus, _Mapping]] = ..., end_session: _Optional[_Union[EndSession, _Mapping]] = ..., register_region: _Optional[_Union[RegisterRegion, _Mapping]] = ..., unregister_region: _Optional[_Union[UnregisterRegion, _Mapping]] = ..., register_cache: _Optional[_Union[RegisterCache, _Mapping]] = ..., unregister_cache: _Optional[_Union[UnregisterCache, _Mapping]] = ..., compress: _Optional[_Union[Compress, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., repair: _Optional[_Union[Repair, _Mapping]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ["boot_id", "cache_registered", "compressed", "generation", "outcome", "pong", "region_registered", "repeated_answer", "request_id", "status", "status_reply", "welcome"]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    CACHE_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    COMPRESSED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    REGION_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    REPEATED_ANSWER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_REPLY_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    boot_id: bytes
    cache_registered: CacheRegistered
    compressed: Compressed
    generation: int
    outcome: Outcome
    pong: Pong
    region_registered: RegionRegistered
    repeated_answer: bool
    request_id: int
    status: Status
    status_reply: StatusReply
    welcome: Welcome
    def __init__(self, request_id: _Optional[int] = ..., generation: _Optional[int] = ..., boot_id: _Optional[bytes] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., repeated_answer: bool = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., status_reply: _Optional[_Union[StatusReply, _Mapping]] = ..., region_registered: _Optional[_Union[RegionRegistered, _Mapping]] = ..., cache_registered: _Optional[_Union[CacheRegistered, _Mapping]] = ..., compressed: _Optional[_Union[Compressed, _Mapping]] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class Slice(_message.Message):
    __slots__ = ["offset", "region_id", "size"]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    region_id: int
    size: int
    def __init__(self, region_id: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ["count", "first"]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    count: int
    first: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ["cache", "code", "detail", "driver_code", "field", "radius", "retry_after_ms", "slot"]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DRIVER_CODE_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RADIUS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    cache: CacheState
    code: Code
    detail: str
    driver_code: int
    field: str
    radius: Radius
    retry_after_ms: int
    slot: Slot
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., radius: _Optional[_Union[Radius, str]] = ..., cache: _Optional[_Union[CacheState, str]] = ..., field: _Optional[str] = ..., detail: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., driver_code: _Optional[int] = ..., slot: _Optional[_Union[Slot, str]] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ["budgets", "code_paths"]
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    CODE_PATHS_FIELD_NUMBER: _ClassVar[int]
    budgets: _containers.RepeatedCompositeFieldContainer[Budget]
    code_paths: _containers.RepeatedCompositeFieldContainer[CodePath]
    def __init__(self, budgets: _Optional[_Iterable[_Union[Budget, _Mapping]]] = ..., code_paths: _Optional[_Iterable[_Union[CodePath, _Mapping]]] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ["form", "numbers"]
    FORM_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    form: TableForm
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, form: _Optional[_Union[TableForm, str]] = ..., numbers: _Optional[_Iterable[int]] = ..., **kwargs) -> None: ...

class TimelineWord(_message.Message):
    __slots__ = ["value", "word"]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    WORD_FIELD_NUMBER: _ClassVar[int]
    value: int
    word: Slice
    def __init__(self, word: _Optional[_Union[Slice, _Mapping]] = ..., value: _Optional[int] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ["move_us", "queue_us", "score_us", "select_us", "total_us"]
    MOVE_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    SCORE_US_FIELD_NUMBER: _ClassVar[int]
    SELECT_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    move_us: int
    queue_us: int
    score_us: int
    select_us: int
    total_us: int
    def __init__(self, queue_us: _Optional[int] = ..., score_us: _Optional[int] = ..., select_us: _Optional[int] = ..., move_us: _Optional[int] = ..., total_us: _Optional[int] = ...) -> None: ...

class UnregisterCache(_message.Message):
    __slots__ = ["cache_id"]
    CACHE_ID_FIELD_NUMBER: _ClassVar[int]
    cache_id: int
    def __init__(self, cache_id: _Optional[int] = ...) -> None: ...

class UnregisterRegion(_message.Message):
    __slots__ = ["region_id"]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    def __init__(self, region_id: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ["capabilities", "daemon", "device", "limits", "minor", "now_ns", "session_token"]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    DAEMON_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    capabilities: _containers.RepeatedScalarFieldContainer[Capability]
    daemon: str
    device: Device
    limits: Limits
    minor: int
    now_ns: int
    session_token: bytes
    def __init__(self, minor: _Optional[int] = ..., session_token: _Optional[bytes] = ..., now_ns: _Optional[int] = ..., capabilities: _Optional[_Iterable[_Union[Capability, str]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., daemon: _Optional[str] = ...) -> None: ...

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class CacheState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Radius(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Backend(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Access(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ReplyForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class TableForm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class PlaneKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Profile(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class WindowReduce(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class LayerReduce(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class GroupHeads(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ScoreKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Scorer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Selector(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Pool(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Norm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Heads(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ValueWeight(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class UnitReduce(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Layers(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Fill(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Tight(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Join(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class KeptAll(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Slot(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Capability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
