/*
 * libchunkkv: the C client of chunkkvd.
 *
 * The daemon compresses KV caches that lie in shared memory.  An engine
 *
 *     1. connects                         chunkkv_connect()
 *     2. makes shared memory, or has it   chunkkv_memory_create()
 *     3. registers it                     chunkkv_region_register()
 *     4. says where K and V lie in it     chunkkv_cache_register()
 *     5. asks, as often as it likes       chunkkv_compress()
 *     6. leaves                           chunkkv_close()
 *
 * Words.  A *row* is one token's place in one sequence, counted from 0 in the
 * order of its block table.  Offsets, sizes and strides are bytes.  Kept rows
 * come as *runs*: lengths in rows dropped, kept, dropped, kept, ..., kept, of
 * which only the first may be 0; chunkkv_runs_next() walks them as ranges.
 *
 * Calls.  Each function that can fail returns 0 or a negative errno value, and on failure
 * fills in a struct chunkkv_error if one was passed.  Outputs (ret_*) are
 * written on success only.  Initialise input structs with {0}: a member that
 * is 0 or NULL means what its comment says, or else "not given".
 *
 * Returned errors.  Any function that talks to the daemon may return
 *
 *     -EREMOTEIO   the daemon refused; chunkkv_error.code, field and detail say what
 *     -ETIMEDOUT   no answer within the timeout
 *     -EOWNERDEAD  the daemon died, or no new one came in time; chunkkv_error.cache says what became of the tensors
 *     -ECONNRESET  the daemon ended the session, as when it is stopped; radius SESSION: close, and connect anew
 *     -EPROTO      the answer does not follow the protocol
 *     -EMSGSIZE    the request is longer than the daemon takes, also with its tables in shared memory
 *     -EINVAL      an argument is wrong in itself; field names it
 *     -ENOMEM      no memory here
 *
 * Threads.  There is no global state.  A connection may be used by several
 * threads at once: while one waits for an answer the others may submit, wait
 * and cancel; only a descriptor on its way, in chunkkv_region_register(), holds
 * them up.  chunkkv_close() comes last.  A connection does not survive fork().
 *
 * Sizes.  What would be too long for a message goes through shared memory by
 * itself: tables first as runs, then in a region of the library's own, which is
 * registered then and kept for the next time; so do kept sets that would be too
 * long for an answer.  Lists of runs, chunk lengths and protected spans have no
 * such form: with them -EMSGSIZE is final.
 *
 * Versions.  The shared library is libchunkkv.so.0.  A change that old programs
 * would not survive, like another member of a struct, makes another number.
 *
 * Crashes.  A daemon that dies does not take a cache with it.  Jobs in place
 * leave on a page shared with the daemon which rows are kept and how many steps
 * of the move are done; when it dies, chunkkv_compress_wait() finishes the move
 * by itself and returns a result, with chunkkv_result.repaired.  The next call
 * waits for the new daemon, and registers all regions and caches again: their
 * numbers stay good.  The caller does nothing, but for keeping the memory alive.
 */
#ifndef CHUNKKV_H
#define CHUNKKV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CHUNKKV_API __attribute__((visibility("default")))

/* ---- numbers with names; those of proto/chunkkv.proto */

enum chunkkv_code {
        CHUNKKV_CODE_OK = 0, CHUNKKV_CODE_BAD_MESSAGE = 1, CHUNKKV_CODE_UNSUPPORTED_VERSION = 2,
        CHUNKKV_CODE_INVALID_ARGUMENT = 3, CHUNKKV_CODE_OUT_OF_RANGE = 4, CHUNKKV_CODE_NOT_FOUND = 5,
        CHUNKKV_CODE_PERMISSION = 6, CHUNKKV_CODE_QUOTA = 7, CHUNKKV_CODE_BUSY = 8, CHUNKKV_CODE_EXPIRED = 9,
        CHUNKKV_CODE_CANCELLED = 10, CHUNKKV_CODE_STALE_BOOT = 11, CHUNKKV_CODE_CONFLICT = 12,
        CHUNKKV_CODE_REPLY_TOO_LARGE = 13, CHUNKKV_CODE_UNSUPPORTED = 14, CHUNKKV_CODE_NO_MEMORY = 15,
        CHUNKKV_CODE_TOO_MANY_STEPS = 16, CHUNKKV_CODE_BUDGET_BELOW_PROTECTED = 17, CHUNKKV_CODE_NONFINITE_SCORE = 18,
        CHUNKKV_CODE_BAD_LSE = 19, CHUNKKV_CODE_HANDLE_INVALID = 20, CHUNKKV_CODE_HANDLE_STALE = 21,
        CHUNKKV_CODE_HANDLE_UNSUPPORTED = 22, CHUNKKV_CODE_DEVICE_MISMATCH = 23, CHUNKKV_CODE_SAME_PROCESS = 24,
        CHUNKKV_CODE_ALREADY_MAPPED = 25, CHUNKKV_CODE_NOT_SEALED = 26, CHUNKKV_CODE_SPARSE = 27,
        CHUNKKV_CODE_REGION_LOST = 28, CHUNKKV_CODE_SESSION_UNKNOWN = 30, CHUNKKV_CODE_PROTOCOL_VIOLATION = 31,
        CHUNKKV_CODE_DEVICE_ERROR = 40, CHUNKKV_CODE_DEVICE_HUNG = 41, CHUNKKV_CODE_DRAINING = 50,
        CHUNKKV_CODE_INTERNAL = 51,
};

/* How far the damage of an error goes: what has to be registered or begun anew. */
enum chunkkv_radius {
        CHUNKKV_RADIUS_NONE, CHUNKKV_RADIUS_REQUEST, CHUNKKV_RADIUS_REGION, CHUNKKV_RADIUS_SESSION,
        CHUNKKV_RADIUS_DEVICE, CHUNKKV_RADIUS_DAEMON,
};

/* What became of the tensors of a request. */
enum chunkkv_cache_state {
        CHUNKKV_CACHE_CLEAN,            /* nothing was written */
        CHUNKKV_CACHE_COMMITTED,        /* compressed, whole */
        CHUNKKV_CACHE_TORN,             /* in between for good: do not use it, recompute */
        CHUNKKV_CACHE_TORN_REPAIRABLE,  /* in between: chunkkv_repair() */
        CHUNKKV_CACHE_PENDING,          /* not known: the daemon may still write; hands off until chunkkv_close() */
};

enum chunkkv_phase {
        CHUNKKV_PHASE_NONE, CHUNKKV_PHASE_SUBMITTED, CHUNKKV_PHASE_SCORING, CHUNKKV_PHASE_SELECTED,
        CHUNKKV_PHASE_COMMITTING, CHUNKKV_PHASE_DONE, CHUNKKV_PHASE_TORN, CHUNKKV_PHASE_CANCELLED, CHUNKKV_PHASE_FAILED,
};

enum chunkkv_backend { CHUNKKV_BACKEND_NONE, CHUNKKV_BACKEND_CPU, CHUNKKV_BACKEND_CUDA };
enum chunkkv_access { CHUNKKV_ACCESS_NONE, CHUNKKV_ACCESS_READ, CHUNKKV_ACCESS_READ_WRITE };

enum chunkkv_slot {
        CHUNKKV_SLOT_NONE, CHUNKKV_SLOT_CONNECTIONS, CHUNKKV_SLOT_SESSIONS, CHUNKKV_SLOT_REGIONS,
        CHUNKKV_SLOT_MAPPED_BYTES, CHUNKKV_SLOT_REQUESTS, CHUNKKV_SLOT_QUEUED_BYTES, CHUNKKV_SLOT_FDS,
        CHUNKKV_SLOT_DEVICE_TIME,
};

enum chunkkv_dtype {
        CHUNKKV_DTYPE_NONE, CHUNKKV_DTYPE_F32, CHUNKKV_DTYPE_F16, CHUNKKV_DTYPE_BF16, CHUNKKV_DTYPE_F8_E4M3,
        CHUNKKV_DTYPE_F8_E5M2, CHUNKKV_DTYPE_I8, CHUNKKV_DTYPE_BYTE,
};

enum chunkkv_plane_kind { CHUNKKV_PLANE_NONE, CHUNKKV_PLANE_K, CHUNKKV_PLANE_V, CHUNKKV_PLANE_LATENT,
        CHUNKKV_PLANE_OPAQUE };

enum chunkkv_mode {
        CHUNKKV_MODE_NONE,
        CHUNKKV_MODE_PLAN,              /* says what would be kept, writes nothing */
        CHUNKKV_MODE_IN_PLACE,          /* moves the kept rows to rows 0 .. n-1 of the same table */
        CHUNKKV_MODE_COPY_OUT,          /* writes the kept rows to chunkkv_group_job.destination alone */
};

enum chunkkv_reply_form {
        CHUNKKV_REPLY_RUNS, CHUNKKV_REPLY_ROWS, CHUNKKV_REPLY_IN_REGION, CHUNKKV_REPLY_IN_SLOT, CHUNKKV_REPLY_NO_SETS,
};

/* BLOCKS: block ids; TOKENS: slots, block * tokens_per_block + token; *_RUNS: pairs (first, count) of those. */
enum chunkkv_table_form {
        CHUNKKV_TABLE_NONE, CHUNKKV_TABLE_BLOCKS, CHUNKKV_TABLE_BLOCK_RUNS, CHUNKKV_TABLE_TOKENS,
        CHUNKKV_TABLE_TOKEN_RUNS,
};

/* Why nothing was dropped, if nothing was: a legal answer. */
enum chunkkv_kept_all {
        CHUNKKV_KEPT_NOT_ALL, CHUNKKV_KEPT_EMPTY, CHUNKKV_KEPT_SHORT, CHUNKKV_KEPT_FITS, CHUNKKV_KEPT_PROTECTED,
};

enum chunkkv_profile {
        CHUNKKV_PROFILE_DEFAULT, CHUNKKV_PROFILE_PAPER, CHUNKKV_PROFILE_KVPRESS, CHUNKKV_PROFILE_RETRIEVAL,
        CHUNKKV_PROFILE_VOTE,
};
enum chunkkv_scorer {
        CHUNKKV_SCORER_OF_PROFILE, CHUNKKV_SCORER_WINDOW, CHUNKKV_SCORER_RAW_QK, CHUNKKV_SCORER_DROP,
        CHUNKKV_SCORER_KNORM, CHUNKKV_SCORER_KEYDIFF, CHUNKKV_SCORER_LAGKV, CHUNKKV_SCORER_VK_RATIO,
        CHUNKKV_SCORER_GIVEN,
};
enum chunkkv_selector {
        CHUNKKV_SELECTOR_OF_PROFILE, CHUNKKV_SELECTOR_CHUNK, CHUNKKV_SELECTOR_CHUNK_AT, CHUNKKV_SELECTOR_TOKEN,
        CHUNKKV_SELECTOR_STREAMING, CHUNKKV_SELECTOR_H2O, CHUNKKV_SELECTOR_CHUNK_EG, CHUNKKV_SELECTOR_PAGE,
};
enum chunkkv_pool { CHUNKKV_POOL_OF_PROFILE, CHUNKKV_POOL_NONE, CHUNKKV_POOL_AVG, CHUNKKV_POOL_MAX,
        CHUNKKV_POOL_LEAK };
enum chunkkv_norm { CHUNKKV_NORM_OF_PROFILE, CHUNKKV_NORM_SUM, CHUNKKV_NORM_MEAN, CHUNKKV_NORM_SEEN };
enum chunkkv_heads { CHUNKKV_HEADS_OF_PROFILE, CHUNKKV_HEADS_SUM, CHUNKKV_HEADS_MAX, CHUNKKV_HEADS_EACH };
enum chunkkv_group_heads { CHUNKKV_GROUP_OF_PROFILE, CHUNKKV_GROUP_SUM, CHUNKKV_GROUP_MAX, CHUNKKV_GROUP_MEAN };
enum chunkkv_value_weight { CHUNKKV_WEIGHT_NONE, CHUNKKV_WEIGHT_L1, CHUNKKV_WEIGHT_L2 };
enum chunkkv_unit_reduce { CHUNKKV_UNIT_OF_PROFILE, CHUNKKV_UNIT_MEAN, CHUNKKV_UNIT_SUM, CHUNKKV_UNIT_MAX };
enum chunkkv_layers { CHUNKKV_LAYERS_OF_PROFILE, CHUNKKV_LAYERS_EACH, CHUNKKV_LAYERS_ONE };
enum chunkkv_fill { CHUNKKV_FILL_OF_PROFILE, CHUNKKV_FILL_LEAD, CHUNKKV_FILL_BEST, CHUNKKV_FILL_NONE };
enum chunkkv_tight { CHUNKKV_TIGHT_OF_PROFILE, CHUNKKV_TIGHT_RAISE, CHUNKKV_TIGHT_REFUSE };
enum chunkkv_join { CHUNKKV_JOIN_OF_PROFILE, CHUNKKV_JOIN_CUT, CHUNKKV_JOIN_UNION };
enum chunkkv_window_reduce { CHUNKKV_ROWS_OF_PROFILE, CHUNKKV_ROWS_SUM, CHUNKKV_ROWS_MAX };
enum chunkkv_score_kind { CHUNKKV_SCORE_UNITS, CHUNKKV_SCORE_ROWS };
enum chunkkv_layer_reduce { CHUNKKV_LAYER_OF_PROFILE, CHUNKKV_LAYER_SUM, CHUNKKV_LAYER_TOP4 };

/* ---- errors */

struct chunkkv_error {
        int error;                      /* what the function returned */
        uint32_t code;                  /* chunkkv_code; with -EREMOTEIO the daemon's, else CHUNKKV_CODE_OK */
        uint32_t radius;                /* chunkkv_radius */
        uint32_t cache;                 /* chunkkv_cache_state of the tensors of this request */
        uint32_t slot;                  /* chunkkv_slot: with CHUNKKV_CODE_QUOTA the budget that is used up */
        uint32_t retry_after_ms;        /* 0 = do not repeat unchanged */
        int32_t driver_code;            /* driver error, or -errno, behind it; 0 = none */
        uint64_t request_id;            /* 0 = none was made */
        char field[97];                 /* path of the field at fault, "compress.groups[0].table"; or "" */
        char detail[201];               /* one sentence for a person */
};

/**
 * chunkkv_code_to_string() - "INVALID_ARGUMENT"; "?" for a number without a name
 *
 * Return: constant text.
 */
CHUNKKV_API const char *chunkkv_code_to_string(uint32_t code);

/**
 * chunkkv_cache_state_to_string() - "COMMITTED"; "?" for a number without a name
 *
 * Return: constant text.
 */
CHUNKKV_API const char *chunkkv_cache_state_to_string(uint32_t state);

#define CHUNKKV_ERROR_TEXT 400          /* characters that hold any error, the final NUL included */

/**
 * chunkkv_error_format() - an error as one line for a person, "OUT_OF_RANGE, FIELD: SENTENCE; the cache is CLEAN",
 * "QUOTA of sessions: ..."
 * @ret_text: [size] always terminated
 *
 * Return: characters of the whole line, as snprintf() counts.
 */
CHUNKKV_API size_t chunkkv_error_format(const struct chunkkv_error *error, char *ret_text, size_t size);

/* ---- connection */

struct chunkkv_client;

#define CHUNKKV_NO_SLOTS UINT8_MAX

struct chunkkv_options {
        const char *endpoint;           /* of the sockets PREFIX.zmq and PREFIX.fd; NULL = chunkkv_default_endpoint() */
        const char *name;               /* for logs, at most 64 printable characters; NULL = "libchunkkv/VERSION" */
        uint32_t timeout_ms;            /* for all of chunkkv_connect(); 0 = 5000 */
        uint8_t control_slots;          /* jobs in place at once that survive the daemon's death; 0 = 8, CHUNKKV_NO_SLOTS */
        bool no_roll_forward;           /* leave a torn move to chunkkv_repair() */
        uint16_t kept_pages;            /* of 4096 bytes, room for the kept sets of one such job; 0 = 256: 24 bytes for each
                                           set and 8 for each kept run; a job that may need more goes without */
};

/* What the daemon said about itself.  Limits: 0 = it did not say. */
struct chunkkv_info {
        char daemon[65];                /* name and version */
        char device[65];                /* the one device served */
        uint32_t backend;               /* chunkkv_backend */
        uint32_t minor;                 /* version of the protocol in use: chunkkv.v1, minor */
        uint64_t capabilities;          /* bit n = Capability n of chunkkv.proto */
        uint32_t request_bytes, reply_bytes, in_flight, regions, rows, planes, groups, spans, control_slots;
        uint64_t mapped_bytes;
};

/**
 * chunkkv_default_endpoint() - $CHUNKKV_ENDPOINT, or /run/chunkkv/cpu/main without it
 *
 * Return: borrowed text, good until the environment changes.
 */
CHUNKKV_API const char *chunkkv_default_endpoint(void);

/**
 * chunkkv_connect() - attach to a daemon and begin a session
 * @options:    copied; NULL = all defaults
 * @ret_client: the caller's, ends with chunkkv_close()
 * @ret_error:  may be NULL
 *
 * The session lives as long as the process and this connection.  When the
 * daemon is started anew the connection goes over to the new one by itself.
 *
 * Return: 0; -ENOENT or -ECONNREFUSED if no daemon serves the endpoint, -EACCES
 * if it may not be used, -ENAMETOOLONG; or as above.
 */
CHUNKKV_API int chunkkv_connect(const struct chunkkv_options *options, struct chunkkv_client **ret_client,
                                struct chunkkv_error *ret_error);

/**
 * chunkkv_close() - end the session, wait up to a second for the daemon to let go of all memory, free the client
 * @client: NULL is fine; requests in flight are cancelled
 *
 * Return: NULL, to assign back.
 */
CHUNKKV_API struct chunkkv_client *chunkkv_close(struct chunkkv_client *client);

/**
 * chunkkv_info() - what the daemon said about itself when the session began
 *
 * Return: borrowed from the client.
 */
CHUNKKV_API const struct chunkkv_info *chunkkv_info(const struct chunkkv_client *client);

struct chunkkv_pong {
        uint64_t now_ns;                /* CLOCK_MONOTONIC of the daemon */
        uint64_t last_progress_ns;      /* last time the device finished anything */
        uint64_t round_trip_ns;
        uint32_t in_flight;             /* requests of this session */
        bool draining;                  /* shutting down: new work is refused */
};

/**
 * chunkkv_ping() - is it there, and does its device make progress?
 * @timeout_ms: 0 = 5000, at most 600000; so in every call
 *
 * Return: 0 or as above.
 */
CHUNKKV_API int chunkkv_ping(struct chunkkv_client *client, uint32_t timeout_ms, struct chunkkv_pong *ret_pong,
                             struct chunkkv_error *ret_error);

#define CHUNKKV_BUDGETS_MAX 16

struct chunkkv_budget {
        uint32_t slot;                  /* chunkkv_slot */
        uint64_t used, limit;           /* of this user, in the slot's own unit */
};

/**
 * chunkkv_budgets() - what this user may hold, and holds
 * @ret_budgets: room for CHUNKKV_BUDGETS_MAX
 * @ret_count:   how many of them were written
 *
 * Return: 0 or as above.
 */
CHUNKKV_API int chunkkv_budgets(struct chunkkv_client *client, uint32_t timeout_ms,
                                struct chunkkv_budget ret_budgets[CHUNKKV_BUDGETS_MAX], size_t *ret_count,
                                struct chunkkv_error *ret_error);

#define CHUNKKV_CODE_PATHS_MAX 64

/* Which code of a daemon on a CPU scores a range of shapes. Both ends of a range belong to it; UINT32_MAX as the last: no end. */
struct chunkkv_code_path {
        uint32_t key_dtype;             /* chunkkv_dtype; types that have no entry of their own go with F32 */
        uint32_t query_dtype;           /* chunkkv_dtype; 0: of all types that no other entry for these keys has */
        uint32_t head_dim_first, head_dim_last;     /* of K */
        uint32_t queries_first, queries_last;       /* of one KV head: query heads of its group times window */
        char path[24];                  /* "scalar", "avx2", "avx512", "avx512bf16", "amx" */
};

/**
 * chunkkv_code_paths() - what the daemon picked when it started, for as long as it runs
 * @ret_paths: room for CHUNKKV_CODE_PATHS_MAX
 * @ret_count: how many of them were written; 0 on a GPU
 *
 * Return: 0 or as above.
 */
CHUNKKV_API int chunkkv_code_paths(struct chunkkv_client *client, uint32_t timeout_ms,
                                   struct chunkkv_code_path ret_paths[CHUNKKV_CODE_PATHS_MAX], size_t *ret_count,
                                   struct chunkkv_error *ret_error);

/* ---- memory */

struct chunkkv_memory {
        int fd;                         /* sealed memfd */
        void *address;                  /* mapped shared, readable and writable here */
        uint64_t size;                  /* bytes */
};

/**
 * chunkkv_memory_create() - shared memory in the form that the daemon takes: allocated whole, zero, sealed
 * @name:       for /proc/PID/maps; not unique
 * @size:       1 .. 2^46
 * @access:     CHUNKKV_ACCESS_READ: nobody but this mapping can write it (F_SEAL_FUTURE_WRITE);
 *              READ_WRITE: the daemon can, too
 * @ret_memory: the caller's, ends with chunkkv_memory_release()
 *
 * Does not talk to a daemon.
 *
 * Return: 0; -EINVAL, -ENOMEM, -ENOSPC, or what memfd_create, fallocate, mmap or fcntl said.
 */
CHUNKKV_API int chunkkv_memory_create(const char *name, uint64_t size, enum chunkkv_access access,
                                      struct chunkkv_memory *ret_memory, struct chunkkv_error *ret_error);

/**
 * chunkkv_memory_release() - unmap and close; a daemon that has it registered keeps its own mapping
 * @memory: all of it zero afterwards but fd = -1; a released one is fine
 */
CHUNKKV_API void chunkkv_memory_release(struct chunkkv_memory *memory);

struct chunkkv_region {
        int fd;                         /* memfd, full and sealed F_SEAL_SHRINK, GROW and SEAL; *NOT* consumed */
        uint64_t offset, size;          /* part of it; size 0 = up to its end */
        enum chunkkv_access access;     /* READ is enough for queries and for CHUNKKV_MODE_PLAN */
};

/**
 * chunkkv_region_register() - let the daemon map a part of a memfd
 * @ret_region_id: valid in this session, until chunkkv_region_unregister()
 *
 * Return: 0 or as above.
 */
CHUNKKV_API int chunkkv_region_register(struct chunkkv_client *client, const struct chunkkv_region *region,
                                        uint32_t timeout_ms, uint32_t *ret_region_id, struct chunkkv_error *ret_error);

/**
 * chunkkv_region_unregister() - after success the daemon has unmapped it and nothing of it is in use
 *
 * Return: 0; -EREMOTEIO with CHUNKKV_CODE_BUSY while a cache or a request uses it; or as above.
 */
CHUNKKV_API int chunkkv_region_unregister(struct chunkkv_client *client, uint32_t region_id, uint32_t timeout_ms,
                                          struct chunkkv_error *ret_error);

/* ---- device memory */

/* What a daemon on the same GPU needs to know of device memory. Fill it by chunkkv_device_export(). */
struct chunkkv_device_memory {
        uint64_t address, size;         /* device pointer of the first byte, and bytes from there */
        uint8_t device_uuid[16];        /* GPU or MIG instance */
        uint8_t handle[64];             /* opens the whole allocation; whoever has it can do so: never log it */
        uint64_t alloc_size, offset;    /* bytes of the allocation, or of all pieces; where in it the first byte lies */
        uint64_t buffer_id;             /* changes when the address is freed and used again */
        size_t piece_count;             /* VMM memory: allocations side by side instead of a handle; else 0 */
        int *piece_fds;
        uint64_t *piece_sizes;          /* bytes */
};

/**
 * chunkkv_device_export() - make known device memory, by its pointer
 * @address:    CUdeviceptr, anywhere in memory of cuMemAlloc, or of cuMemCreate with POSIX descriptors
 * @size:       bytes from there, at least 1
 * @ret_memory: the caller's, ends with chunkkv_device_release()
 *
 * Needs the CUDA driver, and nothing else of CUDA. Any thread may call. The daemon can see all of the allocation: give a KV cache
 * allocations of its own, and free them only after chunkkv_region_unregister().
 *
 * Return: 0; -ENODEV without a driver; -EINVAL if it is no device memory or longer than its allocation; -EOPNOTSUPP for memory
 * that cannot be shared, whose message names the allocator and the way out; -EIO for an error of the driver; -ENOMEM.
 */
CHUNKKV_API int chunkkv_device_export(uint64_t address, uint64_t size, struct chunkkv_device_memory *ret_memory,
                                      struct chunkkv_error *ret_error);

/* chunkkv_device_release() - close what export opened; not the memory itself, and a daemon keeps its own mapping */
CHUNKKV_API void chunkkv_device_release(struct chunkkv_device_memory *memory);

/**
 * chunkkv_region_register_device() - let the daemon map device memory
 * @memory:        may be released afterwards
 * @ret_region_id: valid in this session, until chunkkv_region_unregister()
 *
 * Return: 0 or as above.
 */
CHUNKKV_API int chunkkv_region_register_device(struct chunkkv_client *client, const struct chunkkv_device_memory *memory,
                                               enum chunkkv_access access, uint32_t timeout_ms, uint32_t *ret_region_id,
                                               struct chunkkv_error *ret_error);

/* ---- slices */

/* A part of a registered region; region_id 0 = not given. */
struct chunkkv_slice {
        uint32_t region_id;
        uint64_t offset, size;
};

/* ---- what a cache looks like */

/* Layers that share one block table. */
struct chunkkv_group {
        const uint32_t *layers;         /* [layer_count] ascending layer numbers, each in one group only */
        size_t layer_count;
        uint32_t kv_heads;              /* 1 .. 1024 */
        uint32_t q_heads;               /* a multiple of kv_heads */
        uint32_t head_dim_k;            /* elements, 1 .. 1024 */
        uint32_t head_dim_v;            /* elements; 0 with CHUNKKV_PLANE_LATENT */
        uint32_t tokens_per_block;      /* 1 .. 65536; 1 = a token-granular pool */
        uint32_t num_blocks;            /* block ids are 0 .. num_blocks-1 */
};

/* i -> (i / tile) * outer + (i % tile) * inner, bytes; tile 0 = 1, and then i -> i * outer */
struct chunkkv_axis {
        uint32_t tile;
        uint64_t outer, inner;
};

/* Element (layer l, block b, head h, token t, dimension d) lies at
 * offset + (l - layer_first) * layer_stride + b * block_stride + h * head_stride + token(t) + dim(d). */
struct chunkkv_plane {
        uint32_t kind;                  /* chunkkv_plane_kind */
        uint32_t dtype;                 /* chunkkv_dtype */
        uint32_t layer_first, layer_count;      /* consecutive layer numbers */
        uint32_t region_id;
        uint64_t offset;                /* inside the region */
        uint64_t layer_stride, block_stride, head_stride;
        struct chunkkv_axis token;      /* of 0 .. tokens_per_block-1 */
        struct chunkkv_axis dim;        /* of 0 .. head_dim-1 */
        float scale;                    /* value = stored value * scale; 0 = 1.0 */
};

/**
 * chunkkv_plane_offset() - where in its region an element lies
 * @head: KV head
 *
 * Does not talk to a daemon.
 *
 * Return: 0; -EINVAL if the element is outside the group or the plane, -EOVERFLOW if its place is not below 2^64.
 */
CHUNKKV_API int chunkkv_plane_offset(const struct chunkkv_group *group, const struct chunkkv_plane *plane,
                                     uint32_t layer, uint32_t block, uint32_t head, uint32_t token, uint32_t dim,
                                     uint64_t *ret_offset, struct chunkkv_error *ret_error);

/**
 * chunkkv_plane_check() - does all that a group can reach through a plane lie inside a region?
 * @region_size: bytes
 * @ret_end:     one past the last byte that can be reached; may be NULL
 *
 * What the daemon checks too, for those who want to know before, or in bytes.
 *
 * Return: 0; -EINVAL for an impossible descriptor, -EOVERFLOW, -ERANGE if it passes the region's end.
 */
CHUNKKV_API int chunkkv_plane_check(const struct chunkkv_group *group, const struct chunkkv_plane *plane,
                                    uint64_t region_size, uint64_t *ret_end, struct chunkkv_error *ret_error);

/**
 * chunkkv_cache_register() - describe a cache that lies in registered regions
 * @groups:        [group_count]
 * @planes:        [plane_count]; each layer of each group has K and V, or LATENT, once
 * @ret_cache_id:  valid in this session, until chunkkv_cache_unregister()
 * @ret_fast_path: false: works, but on slower kernels; may be NULL
 *
 * Return: 0 or as above.
 */
CHUNKKV_API int chunkkv_cache_register(struct chunkkv_client *client, const struct chunkkv_group *groups,
                                       size_t group_count, const struct chunkkv_plane *planes, size_t plane_count,
                                       uint32_t timeout_ms,
                                       uint32_t *ret_cache_id, bool *ret_fast_path, struct chunkkv_error *ret_error);

/**
 * chunkkv_cache_unregister() - forget a cache; its regions stay
 *
 * Return: 0 or as above.
 */
CHUNKKV_API int chunkkv_cache_unregister(struct chunkkv_client *client, uint32_t cache_id, uint32_t timeout_ms,
                                         struct chunkkv_error *ret_error);

/* ---- what to keep */

/* A number that may be 0 and need not be given. */
struct chunkkv_count {
        bool given;
        uint32_t value;
};

/* How rows are scored and chosen.  0 or not given = what the profile says. */
struct chunkkv_policy {
        uint32_t profile, scorer, selector;     /* chunkkv_profile and so on, here and below */
        uint32_t layer_first;           /* first layer this policy holds for; 0 = first of the group */
        uint32_t window;                /* query rows that vote, 1 .. 256 */
        uint32_t chunk;                 /* rows of a chunk, 1 .. 1024 */
        struct chunkkv_count sinks, recent;     /* first and last rows, always kept */
        struct chunkkv_count min_tokens;        /* shorter sequences are kept whole */
        uint32_t pool, pool_size;       /* odd, 1 .. 31 */
        uint32_t norm, heads, value_weight, unit_reduce;
        uint32_t layers, reuse;         /* a set for each layer, or one; each n-th layer scores */
        uint32_t fill, tight, align, join;      /* align: rows, 1 .. 1024 */
        double scale, softcap;          /* the model's; scale 0 = 1 / sqrt(head_dim_k), softcap 0 = none */
        uint32_t sliding;               /* rows of the model's sliding window; 0 = full attention */
        uint32_t spike_keep;            /* SELECTOR_CHUNK_EG: rows of a chunk whose weight lies in few, 1 .. chunk - 1 */
        uint32_t page;                  /* SELECTOR_PAGE: rows, whole blocks; 0 = one block */
        uint32_t beta;                  /* slope of PyramidKV's budgets over layers; 0 = equal budgets */
        uint32_t heavy, recent_part;    /* SELECTOR_H2O: millionths of the rows, its budget */
        uint32_t group_heads, window_reduce;
        uint32_t vote_rows;             /* ROWS_MAX: the newest so many query rows, 1 .. window */
        struct chunkkv_count contrast_first, contrast_end;      /* query rows back from the newest, whose mean is subtracted */
        struct chunkkv_count mute;      /* first rows whose scores count as 0 */
        uint32_t layer_reduce;
};

/* Where the rows of a sequence lie: numbers here, or the same little-endian words in a region. */
struct chunkkv_table {
        uint32_t form;                  /* chunkkv_table_form; 0 = no table */
        const uint32_t *numbers;        /* [count] */
        size_t count;
        struct chunkkv_slice from;
};

struct chunkkv_span {
        uint32_t first, count;          /* positions; count >= 1 */
};

/* Work on one group of the cache. */
struct chunkkv_group_job {
        uint32_t group;                 /* index into the groups of chunkkv_cache_register() */
        uint32_t physical_len;          /* rows now in the cache */
        struct chunkkv_table table;     /* covers at least physical_len rows, no row twice */
        struct chunkkv_table destination;       /* CHUNKKV_MODE_COPY_OUT only */
        const struct chunkkv_policy *policies;  /* [policy_count] one; or several, layer_first ascending */
        size_t policy_count;
        uint32_t keep_ratio;            /* millionths of physical_len, 1 .. 1000000; 0 = not given */
        uint32_t max_tokens;            /* rows; 0 = not given; with both, the smaller */
        uint32_t protect_prefix;        /* first rows, kept and never written; rounded up to whole blocks */
        const struct chunkkv_span *protect;     /* [protect_count] kept, but may move */
        size_t protect_count;
        const uint32_t *position_runs;  /* [position_run_count] positions of the rows, after an earlier compression */
        size_t position_run_count;
        const uint32_t *chunk_lengths;  /* [chunk_length_count] for SELECTOR_CHUNK_AT, POOL_LEAK: rows, together physical_len */
        size_t chunk_length_count;
        const uint32_t *given_runs;     /* [given_run_count] runs: keep exactly this, score nothing */
        size_t given_run_count;
        uint32_t score_kind;            /* chunkkv_score_kind: float32 [layers or 1][units], or [layers or 1][rows] */
        struct chunkkv_slice scores_out;        /* the scores are written there */
        struct chunkkv_slice scores_in;         /* select by these; nothing is scored */
};

/* The newest queries after rotary embedding, [layers][q_heads][rows][head_dim_k] by strides, dimensions adjacent. */
struct chunkkv_queries {
        struct chunkkv_slice data;
        uint32_t dtype;                 /* F32, F16 or BF16 */
        uint32_t rows;                  /* 1 .. 256, with SELECTOR_H2O physical_len; the newest of the window vote */
        uint32_t ring_start;            /* row r lies at ((ring_start + r) % rows) * row_stride */
        uint64_t layer_stride, head_stride, row_stride;
        const uint32_t *layers;         /* [layer_count] ascending: those present; none = all of all groups named */
        size_t layer_count;
        uint32_t last_row;              /* cache row of the newest query; 0 = physical_len - 1 */
        struct chunkkv_slice lse;       /* float32 [layers][q_heads][rows], ln of softmax sums, in the ring's order; optional */
        struct chunkkv_slice sink_logits;       /* float32 [layers][q_heads]; optional */
};

struct chunkkv_job {
        uint32_t cache_id;
        uint32_t mode;                  /* chunkkv_mode */
        uint32_t logical_len;           /* tokens the model has seen; 0 = the largest physical_len */
        uint64_t generation;            /* the caller's own number, given back */
        const struct chunkkv_group_job *groups; /* [group_count] */
        size_t group_count;
        const struct chunkkv_queries *queries;  /* NULL: every group brings given_runs or scores_in */
        uint32_t reply_form;            /* chunkkv_reply_form; RUNS, ROWS, IN_REGION or NO_SETS */
        struct chunkkv_slice reply_to;  /* with IN_REGION: written there, for chunkkv_region_set_next() */
        bool single_pass;               /* no steps, so never TOO_MANY_STEPS: the daemon's death in the move leaves TORN */
        bool want_kept_mass;            /* for chunkkv_kept_mass() */
        bool hold;                      /* select, answer in phase SELECTED, and wait for chunkkv_commit() */
};

/* ---- what was kept */

/* One kept set: of the layers from layer_first up to the next set's, or of one KV head of them (CHUNKKV_HEADS_EACH). */
struct chunkkv_set {
        uint32_t layer_first, kv_head;
        const uint32_t *runs;           /* [run_count] checked: they lie within physical_before rows */
        size_t run_count;
        const uint32_t *rows;           /* [row_count] with CHUNKKV_REPLY_ROWS instead: kept rows, ascending */
        size_t row_count;
        const uint32_t *position_runs;  /* [position_run_count] runs in positions, where the job gave position_runs */
        size_t position_run_count;
};

struct chunkkv_group_result {
        uint32_t group;
        uint32_t physical_before, physical_len; /* rows before, and now (with CHUNKKV_MODE_PLAN: as they would be) */
        uint32_t kept_all;              /* chunkkv_kept_all; not 0: nothing was dropped and sets may be empty */
        uint32_t table_used;            /* entries of the table still in use; those behind are free */
        uint32_t budget;                /* rows that were to be kept */
        bool budget_raised;             /* the protected rows alone were more */
        uint64_t kept_digest, bytes_moved;
        const struct chunkkv_set *sets; /* [set_count] */
        size_t set_count;
        size_t set_total;               /* also with NO_SETS and IN_REGION, where set_count is 0 */
        const struct chunkkv_policy *policies;  /* [policy_count] the values that were used */
        size_t policy_count;
};

struct chunkkv_result {
        uint64_t request_id, generation;
        uint32_t phase;                 /* chunkkv_phase */
        uint32_t cache;                 /* chunkkv_cache_state */
        uint32_t logical_len;
        bool repeated_answer;           /* the stored answer to an earlier copy of the request */
        bool repaired;                  /* the daemon died in the move, and others finished it: no times, policies, budget */
        const struct chunkkv_group_result *groups;      /* [group_count] in the order of the job */
        size_t group_count;
        uint32_t queue_us, score_us, select_us, move_us, total_us;
};

/**
 * chunkkv_compress() - submit a job and wait for its answer
 * @job:        read only during the call; the memory it names must stay untouched until the answer
 * @timeout_ms: also the daemon's deadline: it does not begin to write after it
 * @ret_result: the caller's, ends with chunkkv_result_free()
 *
 * When the time is up before an answer to a job that writes, the job is
 * cancelled and its fate waited for, at most two seconds more.  So success may
 * come a little late, and after -ETIMEDOUT chunkkv_error.cache says CLEAN if
 * nothing was written, and PENDING if that could not be found out.  After
 * -EOWNERDEAD it says TORN where a move in place could not be finished.
 *
 * Return: 0 or as above.
 */
CHUNKKV_API int chunkkv_compress(struct chunkkv_client *client, const struct chunkkv_job *job, uint32_t timeout_ms,
                                 struct chunkkv_result **ret_result, struct chunkkv_error *ret_error);

/**
 * chunkkv_compress_submit() - the first half of chunkkv_compress()
 * @job:            read only during the call
 * @ret_request_id: for chunkkv_compress_wait(), which must follow, and chunkkv_cancel()
 *
 * Return: 0 or as above; on failure there is nothing to wait for.
 */
CHUNKKV_API int chunkkv_compress_submit(struct chunkkv_client *client, const struct chunkkv_job *job,
                                        uint32_t timeout_ms, uint64_t *ret_request_id, struct chunkkv_error *ret_error);

/* A word of shared memory, and what it is to come to: (int64_t)(word - value) >= 0. region_id 0 = none. */
struct chunkkv_timeline {
        uint32_t region_id;             /* of a memfd */
        uint64_t offset;                /* of 8 bytes in the region, a multiple of 8 */
        uint64_t value;
};

/**
 * chunkkv_compress_submit_ordered() - chunkkv_compress_submit() in step with the engine's own stream
 * @wait:   nothing of the cache or the queries is read before this word has come to its value; at the deadline the job expires.
 *          NULL: do not wait
 * @signal: becomes its value when the job has ended, whatever its outcome, just before it is answered; not if it is refused for
 *          what it says. NULL: none
 *
 * A GPU engine lets its stream write the first word (cuStreamWriteValue64) and need not be synchronised.
 *
 * Return: 0 or as above.
 */
CHUNKKV_API int chunkkv_compress_submit_ordered(struct chunkkv_client *client, const struct chunkkv_job *job,
                                                const struct chunkkv_timeline *wait, const struct chunkkv_timeline *signal,
                                                uint32_t timeout_ms, uint64_t *ret_request_id, struct chunkkv_error *ret_error);

/**
 * chunkkv_compress_wait() - the second half: wait until the answer, or the timeout given at submission
 * @request_id: no longer known afterwards, whatever the outcome
 *
 * Return: as chunkkv_compress(); -EINVAL for an unknown request_id.
 */
CHUNKKV_API int chunkkv_compress_wait(struct chunkkv_client *client, uint64_t request_id,
                                      struct chunkkv_result **ret_result, struct chunkkv_error *ret_error);

/**
 * chunkkv_commit() - let the daemon move the rows of a job that it holds
 * @request_id: chunkkv_result.request_id of a result in phase SELECTED
 * @ret_result: the caller's; its sets are those of the held result, and it has none itself unless it is repaired
 *
 * The daemon holds a job for two seconds, or as its operator said; chunkkv_cancel() ends it sooner.
 *
 * Return: as chunkkv_compress(); -EREMOTEIO if the hold has ended: nothing was written; -EINVAL for an unknown request_id.
 */
CHUNKKV_API int chunkkv_commit(struct chunkkv_client *client, uint64_t request_id, uint32_t timeout_ms,
                               struct chunkkv_result **ret_result, struct chunkkv_error *ret_error);

/**
 * chunkkv_repair() - let the daemon of now finish the move that an earlier one died in
 * @request_id: chunkkv_error.request_id of an error whose cache is TORN_REPAIRABLE
 *
 * For what the library does not finish itself.  Waits for the new daemon, and registers everything again.
 *
 * Return: as chunkkv_compress(); -EINVAL for an unknown request_id.
 */
CHUNKKV_API int chunkkv_repair(struct chunkkv_client *client, uint64_t request_id, uint32_t timeout_ms,
                               struct chunkkv_result **ret_result, struct chunkkv_error *ret_error);

struct chunkkv_outcome {
        uint32_t phase, code, cache;    /* chunkkv_phase, chunkkv_code, chunkkv_cache_state */
};

/**
 * chunkkv_cancel() - ask that a submitted request end; its own answer is still to be waited for, but for a held one
 * @ret_outcome: what became of the request so far; may be NULL
 *
 * Return: 0; -EREMOTEIO if it is past the point where it can be cancelled, or unknown; or as above.
 */
CHUNKKV_API int chunkkv_cancel(struct chunkkv_client *client, uint64_t request_id, uint32_t timeout_ms,
                               struct chunkkv_outcome *ret_outcome, struct chunkkv_error *ret_error);

/**
 * chunkkv_result_free() - free a result and all that it points to; NULL is fine
 *
 * Return: NULL, to assign back.
 */
CHUNKKV_API struct chunkkv_result *chunkkv_result_free(struct chunkkv_result *result);

/**
 * chunkkv_set_find() - the kept set that holds for one layer and KV head
 *
 * Where the KV heads of a layer share a set, it is that of every KV head.
 *
 * Return: borrowed from the result; NULL if no set covers the layer, as when kept_all is not 0.
 */
CHUNKKV_API const struct chunkkv_set *chunkkv_set_find(const struct chunkkv_group_result *group, uint32_t layer,
                                                       uint32_t kv_head);

/**
 * chunkkv_kept_mass() - with chunkkv_job.want_kept_mass: how much of its scores each layer kept
 * @group:    index into result->groups
 * @ret_mass: in the order of the group's layers: scores of the kept rows over those of all rows; NaN for a layer where
 *            nothing was scored.  Borrowed from the result.
 *
 * Return: how many layers; 0, and nothing written, if it was not asked for or nothing was scored.
 */
CHUNKKV_API size_t chunkkv_kept_mass(const struct chunkkv_result *result, size_t group, const float **ret_mass);

/* A kept set as it lies in memory after CHUNKKV_REPLY_IN_REGION. */
struct chunkkv_region_set {
        uint32_t group, layer_first, kv_head;
        uint32_t physical_before, physical_len;
        const uint32_t *runs;           /* [run_count] borrowed from the memory; checked */
        size_t run_count;
};

/**
 * chunkkv_region_set_next() - next set of chunkkv_job.reply_to
 * @reply: [size] bytes of that slice as mapped here, aligned to 4
 * @at:    bytes read so far, 0 at first; moves on
 *
 * chunkkv_group_result.set_total says how many there are; what lies behind the last is no set.
 *
 * Return: true; false if no well-formed set begins there.
 */
CHUNKKV_API bool chunkkv_region_set_next(const void *reply, uint64_t size, uint64_t *at,
                                         struct chunkkv_region_set *ret_set);

/* A place in a list of runs; start with {0}. */
struct chunkkv_cursor {
        size_t at;
        uint32_t row;
};

/**
 * chunkkv_runs_next() - next kept range of a list of runs
 * @runs:   [count]
 * @cursor: moves on
 *
 * Return: true and the half-open range [*ret_first, *ret_end); false at the end.
 */
CHUNKKV_API bool chunkkv_runs_next(const uint32_t *runs, size_t count, struct chunkkv_cursor *cursor,
                                   uint32_t *ret_first, uint32_t *ret_end);

/* chunkkv_runs_kept() - rows that a list of runs keeps */
CHUNKKV_API uint64_t chunkkv_runs_kept(const uint32_t *runs, size_t count);

/**
 * chunkkv_runs_to_rows() - the kept rows, one by one
 * @ret_rows: [room] ascending
 *
 * Return: how many there are, which may be more than @room.
 */
CHUNKKV_API size_t chunkkv_runs_to_rows(const uint32_t *runs, size_t count, uint32_t *ret_rows, size_t room);

/**
 * chunkkv_runs_encode() - ascending, disjoint, non-empty ranges to runs, for given_runs and position_runs
 * @ranges:   [2 * range_count] first and count of each; adjacent ones are merged
 * @ret_runs: room for 2 * range_count words
 *
 * Return: words written.
 */
CHUNKKV_API size_t chunkkv_runs_encode(const uint32_t *ranges, size_t range_count, uint32_t *ret_runs);

/* ---- chunks out of text */

/**
 * chunkkv_text_chunks() - chunks that end where sentences and lines do, for chunk_lengths
 * @text:        UTF-8, but no other bytes do harm
 * @offsets:     [rows + 1] bytes, ascending: token i is text[offsets[i]] up to text[offsets[i + 1]]; it may be empty, as
 *               markers without text are
 * @min_rows:    no chunk is shorter, unless rows is; 0 = 4
 * @max_rows:    none is longer, at least 2 * min_rows; 0 = 32, or 2 * min_rows if that is more
 * @wrapped:     the lines of the text are wrapped: none but an empty one ends a chunk
 * @ret_lengths: room for rows / min_rows + 1 words; rows of each chunk, together @rows
 *
 * A chunk ends after the first sentence or line that its bounds allow, else after a clause, a word or at least a
 * character.  chunkkv.text of the Python package gives the same.  A row is a token here: a prompt that was compressed
 * before has fewer rows than tokens.
 *
 * Return: 0 or -EINVAL.
 */
CHUNKKV_API int chunkkv_text_chunks(const char *text, const uint64_t *offsets, uint32_t rows, uint32_t min_rows,
                                    uint32_t max_rows, bool wrapped, uint32_t *ret_lengths, size_t *ret_count,
                                    struct chunkkv_error *ret_error);

/* ---- one dense sequence, in three calls */

/* Keys and values [layers][rows][kv_heads][head_dim], queries [layers][query_rows][q_heads][head_dim], each layer's
 * three parts somewhere in it, and all layers alike. */
struct chunkkv_shape {
        uint32_t layers, rows;          /* 1 .. 1024, 1 .. 1048576 */
        uint32_t kv_heads, q_heads, head_dim;   /* 1 .. 1024, a multiple of kv_heads .. 65536, 1 .. 1024 */
        uint32_t query_rows;            /* 0 .. 256, of the prompt's end, newest last; 0 where no policy reads any */
        uint32_t dtype;                 /* chunkkv_dtype: F32, F16 or BF16 */
        uint64_t key, value, query;     /* bytes from the start of a layer; all 0 = one after the other */
        uint64_t layer_stride;          /* bytes from layer to layer; 0 = as long as its parts */
};

struct chunkkv_dense {
        struct chunkkv_shape shape;     /* with nothing left 0 */
        struct chunkkv_memory memory;   /* the caller's to fill and to read, but for the time of a job */
        uint32_t region_id, cache_id;
};

/**
 * chunkkv_dense_create() - make shared memory for a sequence and register it
 * @ret_dense: the caller's, ends with chunkkv_dense_release()
 *
 * Return: 0 or as above.
 */
CHUNKKV_API int chunkkv_dense_create(struct chunkkv_client *client, const struct chunkkv_shape *shape,
                                     struct chunkkv_dense *ret_dense, struct chunkkv_error *ret_error);

/**
 * chunkkv_dense_row() - a row of one layer
 * @kind: CHUNKKV_PLANE_K, CHUNKKV_PLANE_V, or CHUNKKV_PLANE_NONE for queries
 *
 * Return: [heads][head_dim] borrowed from the memory; NULL if there is no such row.
 */
CHUNKKV_API void *chunkkv_dense_row(const struct chunkkv_dense *dense, enum chunkkv_plane_kind kind, uint32_t layer,
                                    uint32_t row);

/**
 * chunkkv_dense_compress() - keep a part of the first rows, as the profile "default" says
 * @rows:       1 .. shape.rows, else -EINVAL
 * @keep_ratio: millionths
 * @ret_result: the caller's, ends with chunkkv_result_free()
 *
 * Fewer query rows than the 32 of the profile vote alone.
 *
 * Return: as chunkkv_compress().
 */
CHUNKKV_API int chunkkv_dense_compress(struct chunkkv_client *client, const struct chunkkv_dense *dense,
                                       enum chunkkv_mode mode, uint32_t rows, uint32_t keep_ratio,
                                       struct chunkkv_result **ret_result, struct chunkkv_error *ret_error);

/**
 * chunkkv_dense_compress_by() - the same by any method, such as &(struct chunkkv_policy){ .profile = CHUNKKV_PROFILE_VOTE }
 * @policy:     one for all layers; docs/methods.md has a line for each method
 * @keep_ratio: millionths; 0 with SELECTOR_H2O, which has a budget of its own
 * @ret_result: the caller's, ends with chunkkv_result_free()
 *
 * Return: as chunkkv_compress().
 */
CHUNKKV_API int chunkkv_dense_compress_by(struct chunkkv_client *client, const struct chunkkv_dense *dense,
                                          const struct chunkkv_policy *policy, enum chunkkv_mode mode, uint32_t rows,
                                          uint32_t keep_ratio, struct chunkkv_result **ret_result,
                                          struct chunkkv_error *ret_error);

/**
 * chunkkv_dense_release() - unregister and free the memory
 * @client: NULL if it is closed already
 * @dense:  all of it zero afterwards; a released one is fine
 */
CHUNKKV_API void chunkkv_dense_release(struct chunkkv_client *client, struct chunkkv_dense *dense);

#ifdef __cplusplus
}
#endif

#endif
