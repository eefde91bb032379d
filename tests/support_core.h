/*
 * The core of the daemon without a process: one session with a cache, and
 * compress requests that go through admission, the scalar reference instead of
 * a backend, and the answer.  Sockets, gates and the event loop are fakes of a
 * few lines; every file of daemon/ in between is the real one.
 */
#ifndef CKV_TESTS_SUPPORT_CORE_H
#define CKV_TESTS_SUPPORT_CORE_H

#include "daemon/daemon.h"
#include "daemon/mapped.h"
#include "daemon/region.h"
#include "daemon/request.h"
#include "proto/records.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
        CORE_GROUPS = 2,
        CORE_POLICIES = 8,
        CORE_SPARE_BYTES = 4 << 20,     /* of the region, behind planes and queries: for tables, scores, replies */
        CORE_WRITABLE = 1,              /* region ids: the same memory twice */
        CORE_READ_ONLY = 2,
};

/* One layer group, twice if groups = 2; f32, [layer][block, token, head, dim]. */
struct core_shape {
        uint32_t groups, layers, kv_heads, q_heads, dims, tokens_per_block, num_blocks;
        bool latent;
};

struct core {
        struct core_shape shape;
        struct ckv_options options;
        struct ckv_daemon daemon;
        struct ckv_endpoint endpoint;
        struct ckv_session session;
        struct ckv_region regions[2];
        struct ckv_mapped mapped[2];
        struct ckv_cache *cache;
        uint8_t *memory;
        uint64_t bytes, queries_at, spare_at;   /* offsets in the memory */
        uint64_t last_id;
        struct ckv_request *request;            /* in flight */
        struct ckv_answer answer;               /* the last one that was sent */
};

/* A Compress as the gate hands it on; lists belong to the test. Legal as core_ask() makes it. */
struct core_words {
        const uint32_t *table, *destination, *spans, *position_runs, *chunk_lengths, *given_runs;
};
struct core_ask {
        struct ckv_record_compress body;
        struct ckv_record_group groups[CORE_GROUPS];
        struct ckv_record_policy policies[CORE_POLICIES];       /* those of group 0 first */
        struct core_words words[CORE_GROUPS];
        const uint32_t *query_layers;
        uint32_t ids[8192];                     /* 0, 1, 2, ...: table of every group */
        uint64_t repair_target;                 /* 0: Compress; else Repair of this request */
};

/* What the side connection of a session says, where it has one (session.side is not NULL). */
extern struct ckv_control *core_control;
extern bool core_engine_died;
/* True while code of the daemon runs, not that of its fakes here: for tests whose allocations fail. */
extern bool core_inside;

/* core_init() - a core with a registered cache of random values; aborts the test when out of memory */
void core_init(struct core *core, const struct core_shape *shape);

/* core_deinit() - asserts that every charge and every use is given back */
void core_deinit(struct core *core);

/* core_register() - the cache once more. Return: as ckv_cache_register(). */
bool core_register(struct core *core, struct ckv_record_status *ret_status, struct ckv_cache **ret_cache);

/* core_ask() - PLAN of @rows rows of each group, half of them kept, tables in blocks, answered in runs */
void core_ask(const struct core *core, struct core_ask *ret_ask, uint32_t rows);

/* core_start() - ckv_request_start(). Return: true, and core->request is in flight; or false, and nothing is left behind. */
bool core_start(struct core *core, const struct core_ask *ask, struct ckv_record_status *ret_status);

/* core_step() - one stage of the request in flight. Return: false if there is none. */
bool core_step(struct core *core);

/* core_finish() - plan, move where it must, until core->answer is there */
void core_finish(struct core *core);

/* core_run() - both; asserts that the request was admitted. Return: the answer's status. */
const struct ckv_record_status *core_run(struct core *core, const struct core_ask *ask);

/* core_refused() - asserts that a request is refused so */
void core_refused(struct core *core, const struct core_ask *ask, enum ckv_code code, enum ckv_field field, enum ckv_detail detail);

#endif
