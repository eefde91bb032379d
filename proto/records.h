/*
 * The fixed-layout records between chunkkv-gate and chunkkvd (protocol.md 7).
 *
 * Each record is one 320-byte message on a SOCK_SEQPACKET pair: a head that is
 * the same for all types, and a body.  What does not fit (tables, policies,
 * kept sets) travels in a ring, one for each direction: `ring_offset` and
 * `ring_bytes` name the attachment of this record.  Native little-endian,
 * naturally aligned, no pointer, no string: names of fields and sentences are
 * numbers (proto/fields.def, proto/details.def) that the gate spells out.
 *
 * The core trusts nothing in a record.  Unused bytes are zero, and checked.
 * Numbers of enums are those of proto/chunkkv.proto.
 */
#ifndef CKV_PROTO_RECORDS_H
#define CKV_PROTO_RECORDS_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define CKV_RECORD_MAGIC UINT32_C(0x52564b43)    /* "CKVR" */
#define CKV_RECORD_VERSION 1
#define CKV_RECORD_BYTES 320
#define CKV_RECORD_BODY_BYTES 176
#define CKV_RING_BYTES (UINT32_C(4) << 20)               /* one ring, each direction */
#define CKV_ATTACHMENT_MAX_BYTES (UINT32_C(2) << 20)     /* one attachment */
#define CKV_ACCESS_RANGES_MAX 64                         /* ranges of users and groups of one endpoint */

/* Descriptors that the core gives a gate at exec. */
enum ckv_gate_fd { CKV_GATE_FD_LISTEN = 3, CKV_GATE_FD_PAIR = 4, CKV_GATE_FD_RING_TO_CORE = 5, CKV_GATE_FD_RING_TO_GATE = 6 };

enum ckv_record_type {
        /* gate to core: one for each body of Request (same order as in chunkkv.proto) */
        CKV_RECORD_HELLO = 1,
        CKV_RECORD_PING,
        CKV_RECORD_GET_STATUS,
        CKV_RECORD_END_SESSION,
        CKV_RECORD_REGISTER_REGION,
        CKV_RECORD_UNREGISTER_REGION,
        CKV_RECORD_REGISTER_CACHE,
        CKV_RECORD_UNREGISTER_CACHE,
        CKV_RECORD_COMPRESS,
        CKV_RECORD_COMMIT,
        CKV_RECORD_CANCEL,
        CKV_RECORD_REPAIR,
        /* gate to core, about itself */
        CKV_RECORD_GONE,        /* connection will not be heard of again */
        CKV_RECORD_PONG,        /* answers CKV_RECORD_GATE_PING; also carries ring_consumed when nothing else does */
        CKV_RECORD_STATS,
        /* core to gate */
        CKV_RECORD_WELCOME = 64,
        CKV_RECORD_RESULT,
        CKV_RECORD_DROP,        /* forget a connection */
        CKV_RECORD_LIMITS,      /* first record to a new gate */
        CKV_RECORD_GATE_PING,
};

/* Bits of ckv_record_head.flags. */
enum {
        CKV_RECORD_REPEATED_ANSWER = 1 << 0,    /* to gate: Response.repeated_answer */
        CKV_RECORD_HAS_TRACE = 1 << 1,          /* to core: trace[] holds version, trace id, parent id, flags (26 bytes) */
};

struct ckv_record_head {
        uint32_t magic;                 /*   0 CKV_RECORD_MAGIC */
        uint16_t version, type;         /*   4 */
        uint32_t connection;            /*   8 the gate's number of the ZeroMQ peer; >= 1, never reused */
        uint32_t flags;                 /*  12 */
        uint32_t uid, gid, pid, minor;  /*  16 of the peer, from the kernel; minor: 0 in this version */
        uint64_t sequence;              /*  32 first record of each direction: 1; then last + 1 */
        uint64_t request_id;            /*  40 */
        uint64_t generation;            /*  48 */
        uint64_t deadline_ns;           /*  56 absolute CLOCK_MONOTONIC; the gate has replaced 0 by now + 5 s where that is legal */
        uint8_t boot_id[16];            /*  64 */
        uint8_t token[16];              /*  80 session token */
        uint8_t trace[32];              /*  96 */
        uint32_t ring_offset;           /* 128 of the attachment, inside the writer's ring */
        uint32_t ring_bytes;            /* 132 0 = no attachment */
        uint64_t ring_consumed;         /* 136 how far the sender of this record has read the other ring, see ipc/ring.h */
};

/* A reference into a registered region; region_id 0 = not given. */
struct ckv_record_slice {
        uint32_t region_id, zero;
        uint64_t offset, size;
};

/* ---- bodies, gate to core */

struct ckv_record_hello {
        uint32_t minor_min, minor_max;
        uint64_t now_ns;
        uint8_t attach_token[16];
        uint32_t has_attach_token;
        uint32_t needs_count;
        uint8_t needs[32];              /* Capability numbers */
};

struct ckv_record_target { uint64_t target_request_id; };       /* GET_STATUS, COMMIT, CANCEL, REPAIR (+ control_slot in compress) */
struct ckv_record_id { uint32_t id; };                          /* UNREGISTER_REGION, UNREGISTER_CACHE */

enum ckv_record_source { CKV_SOURCE_MEMFD = 1, CKV_SOURCE_CUDA_IPC = 2, CKV_SOURCE_CUDA_VMM = 3, CKV_SOURCE_POSIX_SHM = 4 };

struct ckv_record_region {              /* REGISTER_REGION; VMM: + 16 bytes for each token in the ring */
        uint32_t source, access;
        uint64_t offset, size, buffer_id, alloc_size;
        uint8_t device_uuid[16];
        uint32_t has_device_uuid, token_count;
        union {
                uint8_t memfd_token[16];
                uint8_t cuda_handle[64];
                struct { uint32_t uid, zero; uint8_t hex[16]; } posix_shm;      /* "/chunkkv-<uid>-<32 hex digits>" */
        } handle;
};

struct ckv_record_cache {               /* REGISTER_CACHE */
        uint32_t group_count, plane_count, layer_word_count, zero;
        /* in the ring: ckv_record_cache_group[group_count], ckv_record_plane[plane_count],
         * then uint32_t layer numbers, layer_count of each group in order */
};

struct ckv_record_cache_group {
        uint32_t layer_count, kv_heads, q_heads, head_dim_k, head_dim_v, tokens_per_block, num_blocks, zero;
};

struct ckv_record_plane {
        uint16_t kind, dtype;
        uint32_t layer_first, layer_count, region_id;
        uint64_t offset, layer_stride, block_stride, head_stride;
        uint32_t token_tile, dim_tile;
        uint64_t token_outer, token_inner, dim_outer, dim_inner;
        float scale;
        uint32_t zero;
};

struct ckv_record_compress {            /* COMPRESS; REPAIR has the same, with ckv_record_repair first in the ring */
        uint32_t cache_id;
        uint8_t mode, hold, reply_form, single_pass;
        uint32_t control_slot, control_use, logical_len, group_count, policy_count, query_layer_count;
        uint32_t query_dtype, query_rows, query_ring_start, query_last_row;
        uint16_t has_queries;
        uint8_t want_kept_mass, has_timeline;
        uint32_t word_count;
        uint64_t query_layer_stride, query_head_stride, query_row_stride;
        struct ckv_record_slice queries, lse, sink_logits, reply_to;
        /* in the ring: ckv_record_group[group_count], ckv_record_policy[policy_count] (those of group 0 first),
         * ckv_record_timeline if has_timeline, then word_count words: query layers, and for each group table,
         * destination, spans (first, count), position runs, chunk lengths, given runs */
};

struct ckv_record_repair { uint64_t target_request_id, zero; };

struct ckv_record_timeline {            /* a slice with region 0: not given */
        struct ckv_record_slice wait, signal;
        uint64_t wait_value, signal_value;
};

struct ckv_record_group {
        uint32_t group, physical_len;
        uint32_t table_form, table_count;               /* TableForm; words inline */
        uint32_t destination_form, destination_count;
        uint32_t policy_count, keep_ratio, max_tokens, protect_prefix;
        uint32_t span_count, position_run_count, chunk_length_count, given_run_count, score_kind, zero;
        struct ckv_record_slice table_from, destination_from, scores_out, scores_in;
};

/* Bits of ckv_record_policy.given: equal to those of enum ckv_policy_given, asserted in daemon/. */
enum {
        CKV_RECORD_GIVEN_SINKS = 1 << 0,
        CKV_RECORD_GIVEN_RECENT = 1 << 1,
        CKV_RECORD_GIVEN_MIN_TOKENS = 1 << 2,
        CKV_RECORD_GIVEN_CONTRAST_FIRST = 1 << 3,
        CKV_RECORD_GIVEN_CONTRAST_END = 1 << 4,
        CKV_RECORD_GIVEN_MUTE = 1 << 5,
};

struct ckv_record_policy {
        uint8_t profile, scorer, selector, pool, norm, heads, group_heads, value_weight;
        uint8_t unit_reduce, layers, fill, tight, join, window_reduce, layer_reduce, zero8;
        uint32_t given, layer_first, window, chunk, sinks, recent, min_tokens, pool_size, reuse, align, sliding;
        uint32_t spike_keep, page, beta, heavy, recent_part, vote_rows, contrast_first, contrast_end, mute;
        double scale, softcap;
        uint64_t zero[2];
};

/* ---- bodies, core to gate */

struct ckv_record_status {              /* Status of chunkkv.proto, with numbers for its strings */
        uint16_t code;                  /* Code */
        uint8_t radius, cache;          /* Radius, CacheState */
        uint16_t field, detail;         /* ckv_field, ckv_detail; 0 = empty */
        uint16_t index[2];              /* what the field's brackets hold, in order */
        uint32_t slot, retry_after_ms;
        int32_t driver_code;
        uint64_t arg[3];                /* what the detail's braces hold, in order */
};

struct ckv_record_welcome {
        struct ckv_record_status status;
        uint32_t minor, backend;                        /* Backend */
        uint8_t session_token[16];
        uint64_t now_ns, capabilities;                  /* capabilities: bit n = Capability n */
        uint32_t request_bytes, reply_bytes, in_flight, regions, rows, planes, groups, spans, hold_ms, control_slots, message_parts;
        uint32_t zero;
        uint64_t mapped_bytes;
        uint8_t device_uuid[16];
        /* in the ring: device name, at most 64 bytes of printable ASCII written by the core itself */
};

/* What a RESULT answers with besides its status. */
enum ckv_record_answer {
        CKV_ANSWER_NONE, CKV_ANSWER_PONG, CKV_ANSWER_STATUS, CKV_ANSWER_REGION, CKV_ANSWER_CACHE, CKV_ANSWER_COMPRESSED,
        CKV_ANSWER_OUTCOME,
};

struct ckv_record_result {
        struct ckv_record_status status;
        uint32_t answer, zero;
        union {
                struct { uint64_t now_ns, last_progress_ns; uint32_t in_flight, draining; } pong;
                struct { uint32_t budget_count, code_path_count; } budgets;     /* ring: ckv_record_budget[budget_count], then
                                                                                 * ckv_record_code_path[code_path_count] */
                struct { uint32_t region_id, shared; } region;
                struct { uint32_t cache_id, fast_path; } cache;
                struct {
                        uint32_t phase, logical_len, group_count, policy_count, set_count, word_count, reply_form, mass_count;
                        uint32_t queue_us, score_us, select_us, move_us, total_us, zero2;
                        /* ring: ckv_record_group_result[group_count], ckv_record_policy[policy_count], mass_count floats: the
                         * kept mass of each layer, group after group; then
                         * ckv_record_set[set_count], then word_count words: for each set its runs, then its position runs */
                } compressed;
                struct { uint64_t target_request_id; uint32_t phase, code, cache, zero; } outcome;
        } u;
};

struct ckv_record_budget { uint32_t slot, zero; uint64_t used, limit; };

struct ckv_record_code_path {           /* CodePath of chunkkv.proto */
        uint32_t path;                  /* proto/code_path.def */
        uint32_t key_dtype, query_dtype, head_dim_first, head_dim_last, queries_first, queries_last, zero;
};

struct ckv_record_group_result {
        uint32_t group, physical_before, physical_len, kept_all, table_used, budget, budget_raised;
        uint32_t policy_count;          /* of this group, in order */
        uint32_t sets_sent;             /* ckv_record_set entries of this group that follow */
        uint32_t set_count;             /* GroupResult.set_count */
        uint32_t mass_count, zero;      /* of this group: one for each layer, or none */
        uint64_t kept_digest, bytes_moved;
};

struct ckv_record_set { uint32_t layer_first, kv_head, run_count, position_run_count; };

struct ckv_record_limits {              /* LIMITS: what the gate enforces by itself */
        uint32_t request_bytes, reply_bytes, message_parts, connections_per_uid, spans, groups, planes, rows;
        uint8_t boot_id[16];
        uint32_t access_count, zero;    /* at most CKV_ACCESS_RANGES_MAX; ring: ckv_record_access[access_count] */
};

enum ckv_access_kind { CKV_ACCESS_UID = 1, CKV_ACCESS_GID = 2 };

/* Who may connect: a user of one of the uid ranges, or of one of the gid ranges (proto/access.h). No range: everybody. */
struct ckv_record_access {
        uint32_t kind;                  /* enum ckv_access_kind */
        uint32_t first, last;           /* inclusive */
        uint32_t zero;
};

/* Why a gate closed a connection at accept. */
enum ckv_refused {
        CKV_REFUSED_ACCESS,             /* its user may not connect here */
        CKV_REFUSED_COUNT,              /* its user has as many as it may */
        CKV_REFUSED_RATE,               /* its user connects too often */
        CKV_REFUSED_DESCRIPTORS,        /* the gate has no descriptor left */
        CKV_REFUSED_N,
};

struct ckv_record_stats {               /* STATS: after a change, at most once a second, or when a user comes; counts since its start */
        uint32_t open, uid_count;       /* connections now, and of how many users */
        uint32_t uids[16];              /* [uid_count] of them */
        uint64_t refused[CKV_REFUSED_N];
        uint64_t dropped_messages, dropped_replies, dropped_peers;      /* no sender named; no reader; shut down for not reading */
};

struct ckv_record {
        struct ckv_record_head head;
        union {
                uint8_t bytes[CKV_RECORD_BODY_BYTES];
                struct ckv_record_hello hello;
                struct ckv_record_target target;
                struct ckv_record_id id;
                struct ckv_record_region region;
                struct ckv_record_cache cache;
                struct ckv_record_compress compress;
                struct ckv_record_welcome welcome;
                struct ckv_record_result result;
                struct ckv_record_limits limits;
                struct ckv_record_stats stats;
        } body;
};

static_assert(sizeof(struct ckv_record_head) == 144, "head");
static_assert(sizeof(struct ckv_record) == CKV_RECORD_BYTES, "record");
static_assert(sizeof(struct ckv_record_region) == 128, "region");
static_assert(sizeof(struct ckv_record_cache_group) == 32, "cache group");
static_assert(sizeof(struct ckv_record_plane) == 96, "plane");
static_assert(sizeof(struct ckv_record_compress) == 176, "compress");
static_assert(sizeof(struct ckv_record_group) == 160, "group");
static_assert(sizeof(struct ckv_record_timeline) == 64, "timeline");
static_assert(sizeof(struct ckv_record_policy) == 128, "policy");
static_assert(sizeof(struct ckv_record_status) == 48, "status");
static_assert(sizeof(struct ckv_record_access) == 16, "access");
static_assert(sizeof(struct ckv_record_budget) == 24 && sizeof(struct ckv_record_code_path) == 32, "status");
static_assert(sizeof(struct ckv_record_group_result) == 64, "group result");
static_assert(sizeof(struct ckv_record_stats) == 128, "stats");
static_assert(sizeof(struct ckv_record_welcome) <= CKV_RECORD_BODY_BYTES, "welcome");
static_assert(sizeof(struct ckv_record_result) <= CKV_RECORD_BODY_BYTES, "result");

#endif
