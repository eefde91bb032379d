/*
 * A struct ckv_daemon that is filled in by hand.  Regions are one memfd,
 * mapped once, under two ids: one may be written, one may not.  A submitted
 * job is run by the reference when core_finish() is called.
 */
#include "tests/support_core.h"

#include "base/clock.h"
#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/engine.h"
#include "daemon/gate_link.h"
#include "daemon/side.h"
#include "kernels/reference.h"

#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

/* ---- what daemon/ calls and the tests do not have */

static struct ckv_job *submitted;
static struct ckv_answer sent;
bool core_inside;

void ckv_engine_submit(struct ckv_daemon *daemon, struct ckv_job *job) {
        bool was_inside = core_inside;

        (void)daemon;
        core_inside = false;
        ck_assert_ptr_null(submitted);
        submitted = job;
        core_inside = was_inside;
}

void ckv_engine_cancel(struct ckv_daemon *daemon, struct ckv_job *job) {
        daemon->ops->cancel(daemon->backend, job);
}

void ckv_engine_import(struct ckv_daemon *daemon, struct ckv_import *import) {
        (void)daemon;
        (void)import;
        ck_abort_msg("device memory in a test without a device");
}

void ckv_engine_device_time(const struct ckv_tenant *tenant, uint64_t *ret_used, uint64_t *ret_limit) {
        (void)tenant;
        *ret_used = 7;
        *ret_limit = 1000;
}

int ckv_gate_link_send(struct ckv_gate_link *link, uint64_t incarnation, const struct ckv_record *record,
                       const void *attachment, size_t bytes) {
        bool was_inside = core_inside;

        (void)link;
        (void)incarnation;
        core_inside = false;
        ck_assert_uint_le(bytes, CKV_ATTACHMENT_MAX_BYTES);
        ckv_answer_deinit(&sent);
        sent = (struct ckv_answer){ .record = *record, .attachment = malloc(bytes + 1), .bytes = (uint32_t)bytes };
        ck_assert_ptr_nonnull(sent.attachment);
        if (bytes > 0)
                memcpy(sent.attachment, attachment, bytes);
        core_inside = was_inside;
        return 0;
}

void ckv_session_settle(struct ckv_session *session) {
        (void)session;
}

uint64_t ckv_capabilities(const struct ckv_options *options) {
        (void)options;
        return 0;
}

bool ckv_side_take(struct ckv_side_conn *conn, const uint8_t token[static 16], int *ret_fd, uint32_t *ret_kind,
                   uint64_t *ret_size) {
        (void)conn;
        (void)token;
        (void)ret_fd;
        (void)ret_kind;
        (void)ret_size;
        return false;
}

struct ckv_control *core_control;
bool core_engine_died;

struct ckv_control *ckv_side_control(const struct ckv_side_conn *conn) {
        (void)conn;
        return core_control;
}

void ckv_side_notice(struct ckv_side_conn *conn, enum ckv_side_notice notice, uint32_t region_id) {
        (void)conn;
        (void)notice;
        (void)region_id;
}

bool ckv_side_alive(const struct ckv_side_conn *conn) {
        (void)conn;
        return !core_engine_died;
}

/* ---- the core */

static void cancel_job(struct ckv_backend *backend, struct ckv_job *job) {
        (void)backend;
        job->cancel = true;
}

static const struct ckv_backend_ops fake_ops = { .cancel = cancel_job };

static void make_regions(struct core *core) {
        int fd = memfd_create("core", MFD_CLOEXEC);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(posix_fallocate(fd, 0, (off_t)core->bytes), 0);
        core->memory = mmap(NULL, core->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(core->memory, MAP_FAILED);
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(core->regions); i++) {
                struct ckv_region *region = &core->regions[i];

                core->mapped[i] = (struct ckv_mapped){ .daemon = &core->daemon, .key.offset = i, .fd = fd };
                HASH_ADD(hh, core->daemon.mapped, key, sizeof(core->mapped[i].key), &core->mapped[i]);
                ck_assert(CKV_HASH_ADDED(&core->mapped[i]));
                *region = (struct ckv_region){
                        .session = &core->session,
                        .mapped = &core->mapped[i],
                        .id = i + 1,
                        .fd = fd,
                        .writable = i + 1 == CORE_WRITABLE,
                        .mapping = { .base = core->memory, .size = core->bytes },
                };
                HASH_ADD(hh, core->session.regions, id, sizeof(region->id), region);
                ck_assert(CKV_HASH_ADDED(region));
        }
}

/* Bytes of one plane of one layer */
static uint64_t plane_bytes(const struct core_shape *shape) {
        return (uint64_t)shape->num_blocks * shape->tokens_per_block * shape->kv_heads * shape->dims * sizeof(float);
}

bool core_register(struct core *core, struct ckv_record_status *ret_status, struct ckv_cache **ret_cache) {
        const struct core_shape *shape = &core->shape;
        struct {
                struct ckv_record_cache_group groups[CORE_GROUPS];
                struct ckv_record_plane planes[2 * CORE_GROUPS];
                uint32_t layers[CORE_GROUPS * 64];
        } parts;
        uint32_t planes_each = shape->latent ? 1 : 2, head = shape->dims * (uint32_t)sizeof(float);
        uint8_t *attachment = malloc(sizeof(parts)), *at = attachment;
        struct ckv_record record = { .body.cache = { .group_count = shape->groups,
                                                     .plane_count = shape->groups * planes_each,
                                                     .layer_word_count = shape->groups * shape->layers } };
        bool registered;

        memset(&parts, 0, sizeof(parts));
        ck_assert(attachment && shape->layers <= 64);
        for (uint32_t i = 0; i < shape->groups * shape->layers; i++)
                parts.layers[i] = i;
        for (uint32_t i = 0; i < shape->groups; i++)
                parts.groups[i] = (struct ckv_record_cache_group){
                        .layer_count = shape->layers,
                        .kv_heads = shape->kv_heads,
                        .q_heads = shape->q_heads,
                        .head_dim_k = shape->dims,
                        .head_dim_v = shape->latent ? 0 : shape->dims,
                        .tokens_per_block = shape->tokens_per_block,
                        .num_blocks = shape->num_blocks,
                };
        for (uint32_t i = 0; i < shape->groups * planes_each; i++)
                parts.planes[i] = (struct ckv_record_plane){
                        .kind = (uint16_t)(shape->latent ? 3 : 1 + i % 2),
                        .dtype = CKV_DTYPE_F32,
                        .layer_first = i / planes_each * shape->layers,
                        .layer_count = shape->layers,
                        .region_id = CORE_WRITABLE,
                        .offset = i * shape->layers * plane_bytes(shape),
                        .layer_stride = plane_bytes(shape),
                        .block_stride = plane_bytes(shape) / shape->num_blocks,
                        .head_stride = head,
                        .token_outer = head * shape->kv_heads,
                        .dim_outer = sizeof(float),
                };
        at = mempcpy(at, parts.groups, shape->groups * sizeof(parts.groups[0]));
        at = mempcpy(at, parts.planes, shape->groups * planes_each * sizeof(parts.planes[0]));
        at = mempcpy(at, parts.layers, shape->groups * shape->layers * sizeof(parts.layers[0]));
        core_inside = true;
        registered = ckv_cache_register(&core->session, &record, attachment, (uint32_t)(at - attachment), ret_status, ret_cache);
        core_inside = false;
        free(attachment);
        return registered;
}

void core_init(struct core *core, const struct core_shape *shape) {
        uint64_t planes = (uint64_t)shape->groups * shape->layers * (shape->latent ? 1 : 2) * plane_bytes(shape);
        struct ckv_record_status status;
        uint64_t queries = (uint64_t)shape->groups * shape->layers * shape->q_heads * 32 * shape->dims * sizeof(float);

        *core = (struct core){ .shape = *shape,
                               .queries_at = planes,
                               .spare_at = planes + queries,
                               .bytes = planes + queries + CORE_SPARE_BYTES };
        ckv_options_init(&core->options);
        core->daemon.options = &core->options;
        core->daemon.ops = &fake_ops;
        core->endpoint.daemon = &core->daemon;
        core->endpoint.link = (struct ckv_gate_link *)&core->endpoint; /* never looked into */
        core->session.daemon = &core->daemon;
        core->session.endpoint = &core->endpoint;
        ck_assert_int_eq(ckv_tenant_ref(&core->daemon, 1000, &core->session.tenant), 0);
        core->session.window.tenant = core->session.tenant;
        make_regions(core);
        for (uint64_t i = 0; i < (planes + queries) / sizeof(float); i++)
                ((float *)(void *)core->memory)[i] = (float)(rand() % 2001 - 1000) / 500;
        if (!core_register(core, &status, &core->cache))
                ck_abort_msg("cache refused: code %u, field %u, detail %u", status.code, status.field, status.detail);
}

void core_deinit(struct core *core) {
        struct ckv_record_status status;
        struct ckv_tenant *tenant = core->session.tenant;

        ck_assert_ptr_null(core->session.requests);
        ck_assert_uint_eq(core->session.request_count, 0);
        ck_assert(ckv_cache_unregister(&core->session, core->cache->id, &status));
        ckv_window_deinit(&core->session.window);
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(core->regions); i++) {
                ck_assert_uint_eq(core->regions[i].request_uses, 0);
                ck_assert_uint_eq(core->regions[i].cache_uses, 0);
                HASH_DEL(core->session.regions, &core->regions[i]);
                if (!core->mapped[i].lost)
                        HASH_DEL(core->daemon.mapped, &core->mapped[i]);
        }
        for (uint32_t slot = 0; slot < _CKV_SLOT_N; slot++)
                ck_assert_uint_eq(tenant->used[slot], 0);
        ck_assert_uint_eq(tenant->refs, 1);
        (void)ckv_tenant_unref(tenant);
        (void)munmap(core->memory, core->bytes);
        (void)ckv_close(core->regions[0].fd);
        ckv_answer_deinit(&core->answer);
}

void core_ask(const struct core *core, struct core_ask *ret_ask, uint32_t rows) {
        const struct core_shape *shape = &core->shape;
        uint64_t row = (uint64_t)shape->dims * sizeof(float);

        memset(ret_ask, 0, sizeof(*ret_ask));
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(ret_ask->ids); i++)
                ret_ask->ids[i] = i;
        ret_ask->body = (struct ckv_record_compress){
                .cache_id = core->cache->id,
                .mode = CKV_MODE_PLAN,
                .logical_len = rows,
                .group_count = shape->groups,
                .policy_count = shape->groups,
                .query_dtype = CKV_DTYPE_F32,
                .query_rows = 32,
                .has_queries = 1,
                .query_layer_stride = shape->q_heads * 32 * row,
                .query_head_stride = 32 * row,
                .query_row_stride = row,
                .queries = { .region_id = CORE_WRITABLE,
                             .offset = core->queries_at,
                             .size = core->spare_at - core->queries_at },
        };
        for (uint32_t i = 0; i < shape->groups; i++) {
                ret_ask->groups[i] = (struct ckv_record_group){
                        .group = i,
                        .physical_len = rows,
                        .table_form = 1,
                        .policy_count = 1,
                        .keep_ratio = 500000,
                        .table_count = (rows + shape->tokens_per_block - 1) / shape->tokens_per_block,
                };
                ret_ask->words[i].table = ret_ask->ids;
        }
}

/* add() - @count words of a list behind the attachment; NULL stands for none */
static uint8_t *add(uint8_t *at, const void *from, uint64_t bytes) {
        ck_assert(from || bytes == 0);
        return bytes ? mempcpy(at, from, bytes) : at;
}

bool core_start(struct core *core, const struct core_ask *ask, struct ckv_record_status *ret_status) {
        struct ckv_record record = { .head = { .type = ask->repair_target ? CKV_RECORD_REPAIR : CKV_RECORD_COMPRESS,
                                               .deadline_ns = ckv_now_nsec() + 60 * CKV_NSEC_PER_SEC },
                                     .body.compress = ask->body };
        const struct ckv_route route = { .endpoint = &core->endpoint };
        uint8_t *attachment = malloc(CKV_ATTACHMENT_MAX_BYTES), *at = attachment, *words;
        struct ckv_window_entry *entry;
        bool started;

        ck_assert_ptr_nonnull(attachment);
        if (ask->repair_target)
                at = add(at, &(struct ckv_record_repair){ .target_request_id = ask->repair_target }, sizeof(struct ckv_record_repair));
        at = add(at, ask->groups, ask->body.group_count * sizeof(ask->groups[0]));
        at = add(at, ask->policies, ask->body.policy_count * sizeof(ask->policies[0]));
        words = at;
        at = add(at, ask->query_layers, ask->body.query_layer_count * sizeof(uint32_t));
        for (uint32_t i = 0; i < ask->body.group_count; i++) {
                const struct ckv_record_group *g = &ask->groups[i];
                const struct core_words *w = &ask->words[i];

                at = add(at, w->table, g->table_count * sizeof(uint32_t));
                at = add(at, w->destination, g->destination_count * sizeof(uint32_t));
                at = add(at, w->spans, g->span_count * 2 * sizeof(uint32_t));
                at = add(at, w->position_runs, g->position_run_count * sizeof(uint32_t));
                at = add(at, w->chunk_lengths, g->chunk_length_count * sizeof(uint32_t));
                at = add(at, w->given_runs, g->given_run_count * sizeof(uint32_t));
        }
        record.body.compress.word_count = (uint32_t)((size_t)(at - words) / sizeof(uint32_t));
        ck_assert_int_eq(ckv_window_enter(&core->session.window, ++core->last_id, 0, &entry), 0);
        ckv_status_set(ret_status, CKV_CODE_OK, CKV_F_NONE, CKV_D_NONE, 0, 0, 0);
        core_inside = true;
        started = (ask->repair_target ? ckv_repair_start : ckv_request_start)(&core->session, &route, &record, attachment,
                                                                              (uint32_t)(at - attachment), entry, ret_status);
        core_inside = false;
        free(attachment);
        if (!started) {
                ckv_window_forget(entry);
                ck_assert_ptr_null(submitted);
                ck_assert_uint_eq(core->regions[0].request_uses + core->regions[1].request_uses, 0);
                ck_assert_uint_eq(core->session.tenant->used[CKV_SLOT_REQUESTS], 0);
                return false;
        }
        core->request = core->session.requests;
        ck_assert(!core->request || core->request->job == submitted);
        return true;
}

bool core_step(struct core *core) {
        struct ckv_job *job = submitted;

        if (!job)
                return false;
        submitted = NULL;
        if (job->stage == CKV_STAGE_PLAN)
                ck_assert_int_eq(ckv_ref_run_plan(job), 0);
        else
                ckv_ref_run_move(job);
        core_inside = true;
        ckv_request_stage_done(job->owner);
        core_inside = false;
        core->request = core->session.requests;
        return true;
}

void core_finish(struct core *core) {
        while (core_step(core))
                ;
        ckv_answer_deinit(&core->answer);
        core->answer = sent;
        sent = (struct ckv_answer){ 0 };
}

const struct ckv_record_status *core_run(struct core *core, const struct core_ask *ask) {
        struct ckv_record_status status;

        if (!core_start(core, ask, &status))
                ck_abort_msg("refused: code %u, field %u, detail %u", status.code, status.field, status.detail);
        core_finish(core);
        return &core->answer.record.body.result.status;
}

void core_refused(struct core *core, const struct core_ask *ask, enum ckv_code code, enum ckv_field field,
                  enum ckv_detail detail) {
        struct ckv_record_status status;

        ck_assert_msg(!core_start(core, ask, &status), "admitted, not refused with code %u", code);
        ck_assert_msg(status.code == code && status.field == field && status.detail == detail,
                      "code %u, field %u, detail %u instead of %u, %u, %u", status.code, status.field, status.detail,
                      code, field, detail);
}
