/*
 * Decisions that the caller brings along: a kept set (given_runs) or scores to
 * select by (scores_in); and where it wants the scores of this job (scores_out).
 * Tensor-parallel ranks use them to agree on one set.
 *
 * Scores that come in are copied at once: they lie in memory that the client
 * can still write to.
 */
#include "daemon/admit.h"

#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/mapped.h"
#include "daemon/refuse.h"
#include "daemon/region.h"
#include "proto/runs.h"

#include <string.h>

/* keeps_prefix() - protect_prefix: nothing in front of its end may be dropped, or what follows would move into it */
static bool keeps_prefix(const uint32_t *words, uint32_t count, uint32_t prefix) {
        return prefix == 0 || (count > 1 && words[0] == 0 && words[1] >= prefix);
}

/* take_given() - the kept set of all layers of a group, from runs */
static bool take_given(struct ckv_job_group *group, const uint32_t *words, uint32_t count, uint32_t prefix, uint32_t index,
                       struct ckv_record_status *status) {
        uint32_t rows = group->selection.rows, row = 0, first, length, dst = 0;
        uint64_t kept, end;
        size_t at = 0;
        int r = ckv_runs_check(words, count, rows, &kept, &end);

        if (r == CKV_RUNS_E_ODD)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_GIVEN_RUNS, index, 0, CKV_D_EVEN_COUNT, count, 0, 0);
        if (r == CKV_RUNS_E_ZERO)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_GIVEN_RUNS, index, 0, CKV_D_AT_LEAST, 1, 0, 0);
        if (r)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_GIVEN_RUNS, index, 0, CKV_D_RUNS_PAST_END, rows, 0, 0);
        if (!keeps_prefix(words, count, prefix))
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_GIVEN_RUNS, index, 0, CKV_D_PREFIX_DROPPED,
                                     prefix, 0, 0);
        group->given = true;
        group->kept = calloc(1, sizeof(*group->kept));
        if (!group->kept)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        group->kept_count = 1;
        group->kept[0].runs = calloc((size_t)count / 2 + 1, sizeof(*group->kept[0].runs));
        if (!group->kept[0].runs)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        while (ckv_runs_next(words, count, &at, &row, &first, &length)) {
                group->kept[0].runs[group->kept[0].run_count++] = (struct ckv_run){ first, length, dst };
                dst += length;
        }
        group->kept[0].count = dst;
        group->budget = (struct ckv_budget){ .settled = true, .budget = dst };
        return true;
}

/* given_to_all() - the kept set of the first part is that of every part */
static bool given_to_all(const struct ckv_request *request, uint32_t index, struct ckv_record_status *status) {
        const struct ckv_job_group *first = ckv_request_part(request, index, 0);

        for (uint32_t k = 1; k < request->groups[index].part_count; k++) {
                struct ckv_job_group *part = ckv_request_part(request, index, k);

                part->given = true;
                part->budget = first->budget;
                part->kept = calloc(1, sizeof(*part->kept));
                if (!part->kept || ckv_kept_copy(first->kept, part->kept))
                        return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                part->kept_count = 1;
        }
        return true;
}

/* most_scores() - bytes that scores of one part can have: a number for each row, layer, and KV head with a set of its own */
static uint64_t most_scores(const struct ckv_job_group *part) {
        uint64_t heads = part->policy.heads == CKV_HEADS_EACH ? part->kv_heads : 1;

        return heads * part->layer_count * part->selection.rows * sizeof(float);
}

/* take_scores_in() - a private copy for each part */
static bool take_scores_in(struct ckv_request *request, const struct ckv_record_slice *slice, uint32_t index,
                           struct ckv_record_status *status) {
        const struct ckv_tenant *tenant = request->session->tenant;
        uint32_t parts = request->groups[index].part_count;
        uint64_t most = 0, left = slice->size;
        struct ckv_region *region;
        uint8_t *address;

        if (!ckv_region_slice(request->session, slice, 0, CKV_F_GROUP_SCORES_IN, status, &region, &address)) {
                status->index[0] = (uint16_t)index;
                return false;
        }
        if (!ckv_region_on_host(region, CKV_F_GROUP_SCORES_IN, index, status))
                return false;
        for (uint32_t k = 0; k < parts; k++)
                most += most_scores(ckv_request_part(request, index, k));
        if (slice->size % sizeof(float) || slice->size > most || (parts > 1 && slice->size != most))
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_SCORES_IN, index, 0, CKV_D_SCORES_SIZE, most,
                                     slice->size, 0);
        /* charged with the rest of the request at its end; what could never be paid for is not copied in the first place */
        if (slice->size > tenant->limit[CKV_SLOT_QUEUED_BYTES])
                return ckv_refuse_quota(status, tenant, CKV_SLOT_QUEUED_BYTES, slice->size, CKV_F_GROUP_SCORES_IN);
        for (uint32_t k = 0; k < parts; k++) {
                struct ckv_job_group *part = ckv_request_part(request, index, k);
                uint64_t bytes = CKV_MIN(left, most_scores(part));

                part->scores.in = malloc(bytes + sizeof(float));
                if (!part->scores.in)
                        return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                if (!ckv_region_read(region, address + (slice->size - left), bytes, part->scores.in, status))
                        return false;
                part->scores.in_count = bytes / sizeof(float);
                left -= bytes;
        }
        return true;
}

/* take_scores_out() - an address in memory that the client lets us write to; parts one behind the other */
static bool take_scores_out(struct ckv_request *request, const struct ckv_record_slice *slice, uint32_t index,
                            struct ckv_record_status *status) {
        uint64_t left = slice->size;
        struct ckv_region *region;
        uint8_t *address;

        if (!ckv_region_slice(request->session, slice, 0, CKV_F_GROUP_SCORES_OUT, status, &region, &address)) {
                status->index[0] = (uint16_t)index;
                return false;
        }
        if (!ckv_region_on_host(region, CKV_F_GROUP_SCORES_OUT, index, status))
                return false;
        if (region->mapped->key.copied)
                return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, CKV_F_GROUP_SCORES_OUT, index, 0, CKV_D_SHM_OUTPUT, region->id, 0, 0);
        if (!region->writable)
                return ckv_refuse_at(status, CKV_CODE_PERMISSION, CKV_F_GROUP_SCORES_OUT, index, 0, CKV_D_READ_ONLY, region->id, 0, 0);
        if (ckv_request_use_region(request, region))
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        for (uint32_t k = 0; k < request->groups[index].part_count; k++) {
                struct ckv_job_group *part = ckv_request_part(request, index, k);

                part->scores.out = address + (slice->size - left);
                part->scores.out_bytes = left;
                left -= CKV_MIN(left, most_scores(part));
        }
        return true;
}

/* check_kind() - can scores of this kind stand for what the policies select by? */
static bool check_kind(const struct ckv_request *request, const struct ckv_record_group *group, uint32_t index,
                       struct ckv_record_status *status) {
        uint32_t parts = request->groups[index].part_count;
        bool by_row = group->score_kind == 1;

        if (group->score_kind > 1)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_SCORE_KIND, index, 0, CKV_D_ENUM, group->score_kind,
                                     0, 0);
        for (uint32_t k = 0; k < parts; k++) {
                struct ckv_job_group *part = ckv_request_part(request, index, k);

                /* how many units a policy has is not known before its budget is: only rows tell where the next part begins */
                if (parts > 1 && (group->scores_in.region_id || group->scores_out.region_id) &&
                    (!by_row || part->policy.layers == CKV_LAYERS_ONE))
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_SCORE_KIND, index, 0,
                                             CKV_D_SCORES_OF_PARTS, 0, 0, 0);
                if (group->scores_in.region_id && !by_row && ckv_policy_selects_rows(&part->policy))
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_SCORE_KIND, index, 0, CKV_D_ROWS_NEEDED, 0,
                                             0, 0);
                part->scores.by_row = by_row;
        }
        return true;
}

bool ckv_admit_given(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_group_words *words,
                     uint32_t index, struct ckv_record_status *ret_status) {
        bool in = group->scores_in.region_id, out = group->scores_out.region_id;

        if (group->given_run_count) {
                if (in || out)
                        return ckv_refuse_at(ret_status, CKV_CODE_INVALID_ARGUMENT, in ? CKV_F_GROUP_SCORES_IN : CKV_F_GROUP_SCORES_OUT,
                                             index, 0, CKV_D_NOT_USED, 0, 0, 0);
                return take_given(ckv_request_part(request, index, 0), words->given_runs, group->given_run_count,
                                  ckv_prefix_rows(request, group), index, ret_status) &&
                       given_to_all(request, index, ret_status);
        }
        return check_kind(request, group, index, ret_status) &&
               (!in || take_scores_in(request, &group->scores_in, index, ret_status)) &&
               (!out || take_scores_out(request, &group->scores_out, index, ret_status));
}
