/*
 * The lists of a group: protected spans, positions after an earlier
 * compression, chunk lengths.  They are the same for all policies of the
 * group, so its first part owns them and the others borrow (admit_parts.c).
 * Everything is copied: the attachment is gone when the job runs.
 */
#include "daemon/admit.h"

#include "base/limits.h"
#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/refuse.h"

/* take_positions() - runs (dropped, kept, ...) of positions to one position for each row */
static bool take_positions(struct ckv_selection *selection, const uint32_t *runs, uint32_t count, uint32_t logical_len, uint32_t index,
                           struct ckv_record_status *status) {
        uint64_t position = 0, rows = 0;
        uint32_t *positions;

        if (count % 2)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_POSITION_RUNS, index, 0, CKV_D_EVEN_COUNT, count, 0, 0);
        positions = malloc(CKV_MAX(selection->rows, 1u) * sizeof(*positions));
        if (!positions)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        selection->positions = positions;
        for (uint32_t i = 0; i < count; i++) {
                if (runs[i] == 0 && i > 0)
                        return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_POSITION_RUNS, index, 0, CKV_D_AT_LEAST, 1,
                                             0, 0);
                if (position + runs[i] > logical_len)
                        return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_POSITION_RUNS, index, 0, CKV_D_AT_MOST,
                                             logical_len, position + runs[i], 0);
                for (uint32_t k = 0; i % 2 && k < runs[i]; k++) {
                        if (rows == selection->rows)
                                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_POSITION_RUNS, index, 0,
                                                     CKV_D_AT_MOST, selection->rows, rows + 1, 0);
                        positions[rows++] = (uint32_t)position + k;
                }
                position += runs[i];
        }
        if (rows < selection->rows)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_POSITION_RUNS, index, 0, CKV_D_AT_LEAST,
                                     selection->rows, rows, 0);
        return true;
}

uint32_t ckv_prefix_rows(const struct ckv_request *request, const struct ckv_record_group *group) {
        uint64_t block = request->cache->groups[group->group].tokens_per_block;
        uint64_t whole = (group->protect_prefix + block - 1) / block * block;

        return (uint32_t)CKV_MIN(whole, group->physical_len);
}

/* take_spans() - protected positions; protect_prefix becomes one more, over @prefix rows */
static bool take_spans(struct ckv_selection *selection, const struct ckv_record_group *group, const uint32_t *words, uint32_t prefix,
                       uint32_t index, struct ckv_record_status *status) {
        uint32_t count = group->span_count;
        struct ckv_span *spans;

        if (count > CKV_LIMIT_SPANS)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_PROTECT, index, 0, CKV_D_COUNT, 0, CKV_LIMIT_SPANS,
                                     count);
        if (group->protect_prefix > selection->rows)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_PROTECT_PREFIX, index, 0, CKV_D_AT_MOST,
                                     selection->rows, group->protect_prefix, 0);
        spans = calloc((size_t)count + 1, sizeof(*spans));
        if (!spans)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        selection->spans = spans;
        for (uint32_t i = 0; i < count; i++) {
                spans[i] = (struct ckv_span){ words[2 * i], words[2 * i + 1] };
                if (spans[i].count == 0)
                        return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_PROTECT, index, i, CKV_D_AT_LEAST, 1, 0, 0);
        }
        selection->span_count = count;
        if (prefix) {
                uint32_t first = selection->positions ? selection->positions[0] : 0;
                uint32_t last = selection->positions ? selection->positions[prefix - 1] : prefix - 1;

                spans[selection->span_count++] = (struct ckv_span){ first, last - first + 1 };
        }
        return true;
}

/* allows_spans() - some profiles protect nothing: a prefix that others share would be overwritten */
static bool allows_spans(const struct ckv_request *request, const struct ckv_record_group *group, uint32_t prefix, uint32_t index,
                         struct ckv_record_status *status) {
        struct ckv_policy_fault fault;

        for (uint32_t k = 0; !group->given_run_count && k < request->groups[index].part_count; k++) {
                const struct ckv_policy *policy = &ckv_request_part(request, index, k)->policy;

                if (!ckv_policy_check_spans(policy, group->span_count > 0 || prefix > 0, &fault))
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT,
                                             group->span_count > 0 ? CKV_F_GROUP_PROTECT : CKV_F_GROUP_PROTECT_PREFIX, index, 0,
                                             CKV_D_PROFILE_FIXES, (uint64_t)policy->profile, 0, 0);
        }
        return true;
}

/* uses_chunk_lengths() - does a policy of the group cut at boundaries of the caller's? @ret_needed: it must have them */
static bool uses_chunk_lengths(const struct ckv_request *request, uint32_t index, bool *ret_needed) {
        bool used = false;

        *ret_needed = false;
        for (uint32_t k = 0; k < request->groups[index].part_count; k++) {
                const struct ckv_policy *policy = &ckv_request_part(request, index, k)->policy;

                used = used || ckv_policy_takes_lengths(policy);
                *ret_needed = *ret_needed || policy->selector == CKV_SELECTOR_CHUNK_AT;
        }
        return used;
}

/* take_chunk_lengths() - caller-given boundaries: lengths of at least 1 that add up to the rows */
static bool take_chunk_lengths(struct ckv_selection *selection, const uint32_t *words, uint32_t count, uint32_t index,
                               struct ckv_record_status *status) {
        uint64_t sum = 0;
        uint32_t *lengths;

        for (uint32_t i = 0; i < count; i++) {
                if (words[i] == 0)
                        return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_CHUNK_LENGTHS, index, 0, CKV_D_AT_LEAST, 1,
                                             0, 0);
                sum += words[i];
        }
        if (sum != selection->rows)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_CHUNK_LENGTHS, index, 0, CKV_D_RANGE,
                                     selection->rows, selection->rows, sum);
        lengths = malloc(CKV_MAX(count, 1u) * sizeof(*lengths));
        if (!lengths)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        for (uint32_t i = 0; i < count; i++)
                lengths[i] = words[i];
        selection->chunk_lengths = lengths;
        selection->chunk_length_count = count;
        return true;
}

bool ckv_admit_lists(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_group_words *words,
                     uint32_t index, struct ckv_record_status *ret_status) {
        struct ckv_selection *selection = &ckv_request_part(request, index, 0)->selection;
        uint32_t prefix = ckv_prefix_rows(request, group);
        bool needed;

        if (group->position_run_count &&
            !take_positions(selection, words->position_runs, group->position_run_count, request->logical_len, index, ret_status))
                return false;
        if (!take_spans(selection, group, words->spans, prefix, index, ret_status) ||
            !allows_spans(request, group, prefix, index, ret_status))
                return false;
        if (!uses_chunk_lengths(request, index, &needed))
                return group->chunk_length_count == 0 ||
                       ckv_refuse_at(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_CHUNK_LENGTHS, index, 0, CKV_D_CHUNKS_UNUSED, 0,
                                     0, 0);
        /* pool leak without boundaries has none to cross */
        if (group->chunk_length_count == 0 && !needed)
                return true;
        return take_chunk_lengths(selection, words->chunk_lengths, group->chunk_length_count, index, ret_status);
}
