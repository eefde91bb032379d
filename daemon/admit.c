/*
 * Admission of a compress request.  Everything that a client said is checked
 * here against what it registered, before the first slice runs: the job that
 * leaves this file holds addresses and numbers that need no further check.
 *
 * The steps are in the order in which a refusal is most useful: what this
 * build does not do, then the request as a whole, then each group, then the
 * queries that all groups share, then the size of the answer.
 */
#include "daemon/admit.h"

#include "base/checked.h"
#include "base/limits.h"
#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/outputs.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

#include <string.h>

/* cut() - the attachment by the counts of the body; a gate that miscounts is broken, not the client */
static bool cut(const struct ckv_record *record, const uint8_t *attachment, uint32_t bytes, struct ckv_compress_parts *ret_parts,
                struct ckv_record_status *status) {
        const struct ckv_record_compress *body = &record->body.compress;
        uint64_t groups = (uint64_t)body->group_count * sizeof(struct ckv_record_group);
        uint64_t policies = (uint64_t)body->policy_count * sizeof(struct ckv_record_policy);
        uint64_t words = body->query_layer_count, policy_sum = 0;

        if (body->group_count < 1 || body->group_count > CKV_LIMIT_GROUPS)
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_COMPRESS_GROUPS, CKV_D_COUNT, 1, CKV_LIMIT_GROUPS,
                                  body->group_count);
        if (groups + policies + (uint64_t)body->word_count * sizeof(uint32_t) != bytes)
                return ckv_refuse(status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_INTERNAL, 0, 0, 0);
        *ret_parts = (struct ckv_compress_parts){
                .body = body,
                .groups = (const void *)attachment,
                .policies = (const void *)(attachment + groups),
                .query_layers = (const void *)(attachment + groups + policies),
                .words = (const uint32_t *)(const void *)(attachment + groups + policies) + body->query_layer_count,
        };
        for (uint32_t i = 0; i < body->group_count; i++) {
                const struct ckv_record_group *g = &ret_parts->groups[i];

                words += (uint64_t)g->table_count + g->destination_count + 2 * (uint64_t)g->span_count + g->position_run_count +
                         g->chunk_length_count + g->given_run_count;
                policy_sum += g->policy_count;
        }
        if (words != body->word_count || policy_sum != body->policy_count)
                return ckv_refuse(status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_INTERNAL, 0, 0, 0);
        return true;
}

/* check_built() - fields that are part of the protocol and not of this build: named, never ignored */
static bool check_built(const struct ckv_compress_parts *parts, struct ckv_record_status *status) {
        const struct ckv_record_compress *body = parts->body;
        const struct {
                enum ckv_field field;
                bool set;
        } unbuilt[] = {
                { CKV_F_COMPRESS_HOLD, body->hold },
                { CKV_F_COMPRESS_CONTROL_SLOT, body->control_slot },
                { CKV_F_COMPRESS_CONTROL_USE, body->control_use },
                { CKV_F_COMPRESS_REPLY_FORM, body->reply_form == CKV_REPLY_IN_SLOT },
                { CKV_F_QUERIES_LSE, body->lse.region_id || body->lse.size || body->lse.offset },
                { CKV_F_QUERIES_SINK_LOGITS, body->sink_logits.region_id || body->sink_logits.size || body->sink_logits.offset },
        };

        for (size_t k = 0; k < CKV_ARRAY_SIZE(unbuilt); k++)
                if (unbuilt[k].set)
                        return ckv_refuse(status, CKV_CODE_UNSUPPORTED, unbuilt[k].field, CKV_D_NOT_BUILT, 0, 0, 0);
        for (uint32_t i = 0; i < body->group_count; i++) {
                const struct ckv_record_group *g = &parts->groups[i];
                const struct {
                        enum ckv_field field;
                        bool set;
                } of_group[] = {
                        { CKV_F_GROUP_POLICIES, g->policy_count > 1 },
                };

                for (size_t k = 0; k < CKV_ARRAY_SIZE(of_group); k++)
                        if (of_group[k].set)
                                return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, of_group[k].field, i, 0, CKV_D_NOT_BUILT, 0, 0, 0);
        }
        return true;
}

/* check_group() - lengths, and that no group comes twice */
static bool check_group(const struct ckv_request *request, const struct ckv_compress_parts *parts, uint32_t i,
                        struct ckv_record_status *status) {
        const struct ckv_record_group *g = &parts->groups[i];
        uint64_t rows_limit = request->session->daemon->options->rows;

        if (g->group >= request->cache->group_count)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_GROUP, i, 0, CKV_D_AT_MOST,
                                     request->cache->group_count - 1, g->group, 0);
        for (uint32_t k = 0; k < i; k++)
                if (parts->groups[k].group == g->group)
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_GROUP, i, 0, CKV_D_GROUP_TWICE, g->group,
                                             0, 0);
        if (g->physical_len > rows_limit)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_PHYSICAL_LEN, i, 0, CKV_D_ROWS_OVER_LIMIT, rows_limit,
                                     g->physical_len, 0);
        if (parts->body->logical_len < g->physical_len)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_LOGICAL_LEN, CKV_D_LOGICAL_LEN, g->physical_len,
                                  parts->body->logical_len, 0);
        return true;
}

/* take_layers() - addresses of the group's layers, and a use of each region */
static bool take_layers(struct ckv_request *request, const struct ckv_cache_group *from, uint32_t index,
                        struct ckv_record_status *status) {
        struct ckv_job_group *group = &request->job->groups[index];

        group->layers = calloc(from->layer_count, sizeof(*group->layers));
        if (!group->layers)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        group->layer_count = from->layer_count;
        group->kv_heads = from->kv_heads;
        group->q_heads = from->q_heads;
        group->head_dim_k = from->head_dim_k;
        group->head_dim_v = from->head_dim_v;
        for (uint32_t k = 0; k < from->layer_count; k++) {
                const struct ckv_cache_layer *layer = &from->layers[k];
                struct ckv_region *regions[] = { layer->k_region, layer->v_region };

                group->layers[k] = (struct ckv_job_layer){ .number = layer->number, .k = layer->k, .v = layer->v };
                for (size_t r = 0; r < CKV_ARRAY_SIZE(regions); r++) {
                        if (!regions[r])
                                continue;       /* latent: no V */
                        if (request->mode != CKV_MODE_PLAN && !regions[r]->writable)
                                return ckv_refuse(status, CKV_CODE_PERMISSION, CKV_F_COMPRESS_MODE, CKV_D_READ_ONLY, regions[r]->id,
                                                  0, 0);
                        if (ckv_request_use_region(request, regions[r]))
                                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                }
        }
        return true;
}

/*
 * kept_runs_bound() - the most kept runs that one set of this group can have
 *
 * A unit is a stretch of rows, but for the protected rows that lie in it, and is kept or dropped whole, but for the one at
 * which the budget ends: fill = best keeps any rows of it.  Protected rows form at most one stretch for each span, one at
 * the start and one at the end.  A kept run holds such a stretch or whole kept units; a dropped run holds whole dropped
 * units, or touches a stretch, which has two sides.
 */
static uint64_t kept_runs_bound(const struct ckv_job_group *group) {
        const struct ckv_selection *s = &group->selection;
        bool even_units = group->policy.selector == CKV_SELECTOR_CHUNK && !s->positions;
        uint64_t unit = even_units ? group->policy.chunk : 1, stretches = s->span_count + 2;
        uint64_t cut = even_units && group->policy.fill == CKV_FILL_BEST ? unit / 2 + 1 : 1;
        uint64_t least = s->rows, most, by_kept, by_dropped;

        if (group->given)
                return group->kept[0].run_count;
        if (s->keep_ratio)
                least = (uint64_t)s->rows * s->keep_ratio / 1000000;
        if (s->max_tokens)
                least = CKV_MIN(least, s->max_tokens);
        least = CKV_MIN(least, s->rows);
        most = CKV_MIN(least + group->policy.align, s->rows);
        by_kept = most / unit + stretches + cut + 2;
        by_dropped = (s->rows - least) / unit + 2 * stretches + cut + 2;
        return CKV_MIN(CKV_MIN(by_kept, by_dropped), (uint64_t)s->rows / 2 + 1);
}

/* varints_bound() - bytes of @count run lengths whose sum is at most @sum: one each, and one more for each 7 bits beyond */
static uint64_t varints_bound(uint64_t count, uint64_t sum) {
        uint64_t bytes = count;

        for (unsigned shift = 7; shift < 32; shift += 7)
                bytes += CKV_MIN(count, sum >> shift);
        return bytes;
}

/* check_reply_size() - refuse now what could not be answered later */
static bool check_reply_size(const struct ckv_request *request, const struct ckv_record_group *groups,
                             struct ckv_record_status *status) {
        uint64_t limit = request->session->daemon->options->reply_bytes, message = 512, ring = 0, region = 0;

        for (uint32_t i = 0; i < request->job->group_count; i++) {
                const struct ckv_job_group *group = &request->job->groups[i];
                uint64_t sets = group->given || group->policy.layers == CKV_LAYERS_ONE ? 1 : group->layer_count;
                uint64_t rows = group->selection.rows, runs = kept_runs_bound(group), position_runs = 0;

                message += 400;
                ring += sizeof(struct ckv_record_group_result) + sizeof(struct ckv_record_policy);
                if (request->reply_form == CKV_REPLY_NO_SETS)
                        continue;
                if (request->reply_form == CKV_REPLY_IN_REGION) {
                        region += sets * (24 + 8 * runs);
                        continue;
                }
                /* a run of rows breaks where their positions do */
                if (group->selection.positions)
                        position_runs = CKV_MIN(runs + groups[i].position_run_count / 2, rows);
                message += sets * (24 + varints_bound(2 * runs, rows) + varints_bound(2 * position_runs, request->logical_len));
                if (request->reply_form == CKV_REPLY_ROWS)
                        message += sets * 4 * rows;
                ring += sets * (sizeof(struct ckv_record_set) + 8 * (runs + position_runs));
        }
        if (region > request->reply_bytes)
                return ckv_refuse(status, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_REPLY_TO, CKV_D_REPLY_TOO_LARGE, region,
                                  request->reply_bytes, 0);
        if (message > limit)
                return ckv_refuse(status, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_REPLY_FORM, CKV_D_REPLY_TOO_LARGE, message, limit, 0);
        if (ring > CKV_ATTACHMENT_MAX_BYTES)
                return ckv_refuse(status, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_REPLY_FORM, CKV_D_REPLY_TOO_LARGE, ring,
                                  CKV_ATTACHMENT_MAX_BYTES, 0);
        return true;
}

/* take_reply_slice() - where REPLY_IN_REGION writes the sets */
static bool take_reply_slice(struct ckv_request *request, const struct ckv_record_compress *body, struct ckv_record_status *status) {
        struct ckv_region *region;

        if (request->reply_form != CKV_REPLY_IN_REGION)
                return body->reply_to.region_id == 0 ||
                       ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_REPLY_TO, CKV_D_NOT_USED, 0, 0, 0);
        if (!ckv_region_slice(request->session, &body->reply_to, 0, CKV_F_COMPRESS_REPLY_TO, status, &region, &request->reply_address))
                return false;
        if ((uintptr_t)request->reply_address % sizeof(uint32_t))
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_REPLY_TO, CKV_D_UNALIGNED, sizeof(uint32_t),
                                  body->reply_to.offset, 0);
        if (!region->writable)
                return ckv_refuse(status, CKV_CODE_PERMISSION, CKV_F_COMPRESS_REPLY_TO, CKV_D_READ_ONLY, region->id, 0, 0);
        if (ckv_request_use_region(request, region))
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        request->reply_bytes = body->reply_to.size;
        return true;
}

static bool admit_group(struct ckv_request *request, const struct ckv_compress_parts *parts, uint32_t i,
                        const struct ckv_record_policy *policy, const uint32_t **words, struct ckv_record_status *status) {
        const struct ckv_record_group *g = &parts->groups[i];
        const struct ckv_cache_group *cache_group;
        struct ckv_group_words w;

        w.table = *words;
        w.destination = w.table + g->table_count;
        w.spans = w.destination + g->destination_count;
        w.position_runs = w.spans + 2 * (size_t)g->span_count;
        w.chunk_lengths = w.position_runs + g->position_run_count;
        w.given_runs = w.chunk_lengths + g->chunk_length_count;
        *words = w.given_runs + g->given_run_count;

        if (!check_group(request, parts, i, status))
                return false;
        cache_group = &request->cache->groups[g->group];
        if (cache_group->aliased && request->mode != CKV_MODE_PLAN)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_MODE, CKV_D_ALIASED, g->group, 0, 0);
        request->job->groups[i].number = g->group;
        request->job->groups[i].selection.rows = g->physical_len;
        request->table_forms[i] = g->table_form;
        return take_layers(request, cache_group, i, status) &&
               ckv_admit_policy(request, g, policy, &w, i, status) &&
               ckv_admit_given(request, g, &w, i, status) &&
               ckv_admit_tables(request, g, &w, i, cache_group->num_blocks, status);
}

bool ckv_admit(struct ckv_request *request, const struct ckv_record *record, const uint8_t *attachment, uint32_t bytes,
               struct ckv_record_status *ret_status) {
        const struct ckv_record_compress *body = &record->body.compress;
        static const struct ckv_record_policy of_default_profile;
        struct ckv_compress_parts parts;
        const struct ckv_record_policy *policy;
        const uint32_t *words;

        if (!cut(record, attachment, bytes, &parts, ret_status) || !check_built(&parts, ret_status))
                return false;
        if (body->mode < CKV_MODE_PLAN || body->mode > CKV_MODE_COPY_OUT)
                return ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_MODE, CKV_D_ENUM, body->mode, 0, 0);
        if (body->reply_form > CKV_REPLY_NO_SETS)
                return ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_REPLY_FORM, CKV_D_ENUM, body->reply_form, 0, 0);
        request->mode = (enum ckv_mode)body->mode;
        request->reply_form = (enum ckv_reply_form)body->reply_form;
        request->logical_len = body->logical_len;
        request->cache = ckv_cache_find(request->session, body->cache_id);
        if (!request->cache)
                return ckv_refuse(ret_status, CKV_CODE_NOT_FOUND, CKV_F_COMPRESS_CACHE_ID, CKV_D_UNKNOWN_ID, body->cache_id, 0, 0);
        request->cache->request_uses++;
        request->job = ckv_job_new(body->group_count);
        request->table_forms = calloc(body->group_count, sizeof(*request->table_forms));
        if (!request->job || !request->table_forms)
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);

        policy = parts.policies;
        words = parts.words;
        for (uint32_t i = 0; i < body->group_count; i++) {
                bool given = parts.groups[i].policy_count > 0;

                if (!admit_group(request, &parts, i, given ? policy : &of_default_profile, &words, ret_status))
                        return false;
                policy += parts.groups[i].policy_count;
        }
        /* intact: scores of a region with holes would be scores of zeros */
        if (!ckv_admit_queries(request, &parts, ret_status) || !take_reply_slice(request, body, ret_status) ||
            !ckv_outputs_check(request, body, parts.groups, ret_status) || !ckv_request_intact(request, ret_status) ||
            !check_reply_size(request, parts.groups, ret_status))
                return false;
        request->job->owner = request;
        request->job->fair_key = request->session->peer.uid;
        request->job->deadline_nsec = record->head.deadline_ns;
        return true;
}
