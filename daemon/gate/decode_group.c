/*
 * One GroupJob of a Compress: tables, policies, budget, lists.  The words are
 * appended in the order that proto/records.h gives: table, destination, spans,
 * position runs, chunk lengths, given runs.
 *
 * Whether a block comes twice or does not exist is left to the core: it knows
 * the number of blocks, and needs one pass over the same words for it.
 */
#include "daemon/gate/check.h"

#include "base/limits.h"

/* The paths of a Table, and of its parts. */
struct table_fields {
        enum ckv_field table, form, numbers, from;
};

static const struct table_fields source_fields = { CKV_F_GROUP_TABLE, CKV_F_GROUP_TABLE_FORM, CKV_F_GROUP_TABLE_NUMBERS,
                                                   CKV_F_GROUP_TABLE_FROM };
static const struct table_fields destination_fields = { CKV_F_GROUP_DESTINATION, CKV_F_GROUP_DESTINATION_FORM,
                                                        CKV_F_GROUP_DESTINATION_NUMBERS, CKV_F_GROUP_DESTINATION_FROM };

/* check_table() - exactly one of numbers and from; pairs where the form says so, none of them empty */
static bool check_table(struct ckv_check *check, const Chunkkv__V1__Table *table, const struct table_fields *fields,
                        size_t index, uint32_t *ret_form, uint32_t *ret_count, struct ckv_record_slice *ret_from) {
        bool pairs;

        if (!ckv_check_enum(check, ckv_at(fields->form, index, 0), &chunkkv__v1__table_form__descriptor,
                            (int)table->form, true))
                return false;
        pairs = table->form == CHUNKKV__V1__TABLE_FORM__TABLE_BLOCK_RUNS ||
                table->form == CHUNKKV__V1__TABLE_FORM__TABLE_TOKEN_RUNS;
        if (table->from && table->n_numbers > 0)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, ckv_at(fields->from, index, 0),
                                        CKV_D_BOTH_SET, 0, 0, 0);
        if (!table->from && table->n_numbers == 0)
                return ckv_check_missing(check, ckv_at(fields->table, index, 0));
        if (pairs && table->n_numbers % 2)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, ckv_at(fields->table, index, 0),
                                        CKV_D_EVEN_COUNT, table->n_numbers, 0, 0);
        for (size_t i = 1; pairs && i < table->n_numbers; i += 2)
                if (table->numbers[i] == 0)
                        return ckv_check_range(check, ckv_at(fields->numbers, index, i), 0, 1, UINT32_MAX);
        if (!ckv_check_slice(check, ckv_at(fields->from, index, 0), table->from, pairs ? 8 : 4, ret_from))
                return false;
        *ret_form = (uint32_t)table->form;
        *ret_count = (uint32_t)table->n_numbers;
        return ckv_check_append_words(check, table->numbers, table->n_numbers);
}

static bool check_tables(struct ckv_check *check, const Chunkkv__V1__Compress *compress, size_t index,
                         struct ckv_record_group *group) {
        const Chunkkv__V1__GroupJob *job = compress->groups[index];
        struct ckv_at destination = ckv_at(CKV_F_GROUP_DESTINATION, index, 0);

        /* a sequence without rows has no table, and that is a legal request with a legal answer */
        if (!job->table && job->physical_len > 0)
                return ckv_check_missing(check, ckv_at(CKV_F_GROUP_TABLE, index, 0));
        if (job->table && !check_table(check, job->table, &source_fields, index, &group->table_form,
                                       &group->table_count, &group->table_from))
                return false;

        if (compress->mode != CHUNKKV__V1__MODE__MODE_COPY_OUT) {
                if (job->destination)
                        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, destination, CKV_D_NOT_USED, 0, 0, 0);
                return true;
        }
        if (!job->destination)
                return job->physical_len == 0 || ckv_check_missing(check, destination);
        return check_table(check, job->destination, &destination_fields, index, &group->destination_form,
                           &group->destination_count, &group->destination_from);
}

static bool check_policies(struct ckv_check *check, const Chunkkv__V1__GroupJob *job, size_t index,
                           struct ckv_record_policy *policies) {
        /* none at all is one of the default profile */
        if (!ckv_check_count(check, ckv_at(CKV_F_GROUP_POLICIES, index, 0), job->n_policies, 0, CKV_LIMIT_POLICIES))
                return false;
        for (size_t i = 0; i < job->n_policies; i++) {
                if (!ckv_check_policy(check, job->policies[i], index, i, &policies[i]))
                        return false;
                if (i > 0 && policies[i].layer_first <= policies[i - 1].layer_first)
                        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT,
                                                ckv_at(CKV_F_POLICY_LAYER_FIRST, index, i), CKV_D_ORDER, i, 0, 0);
        }
        return true;
}

static bool has_selector(const Chunkkv__V1__GroupJob *job, Chunkkv__V1__Selector selector) {
        for (size_t i = 0; i < job->n_policies; i++)
                if (job->policies[i]->selector == selector)
                        return true;
        return false;
}

/* check_budget() - how much is to be kept; H2O brings its own measure (heavy, recent_part), given_runs needs none */
static bool check_budget(struct ckv_check *check, const Chunkkv__V1__GroupJob *job, size_t index) {
        struct ckv_at keep_ratio = ckv_at(CKV_F_GROUP_KEEP_RATIO, index, 0);

        if (job->n_given_runs > 0) {
                if (job->keep_ratio > 0)
                        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, keep_ratio, CKV_D_NOT_USED, 0, 0, 0);
                if (job->max_tokens > 0)
                        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT,
                                                ckv_at(CKV_F_GROUP_MAX_TOKENS, index, 0), CKV_D_NOT_USED, 0, 0, 0);
                return true;
        }
        if (job->keep_ratio > 0 && !ckv_check_range(check, keep_ratio, job->keep_ratio, 1, 1000000))
                return false;
        if (job->keep_ratio == 0 && job->max_tokens == 0 && !has_selector(job, CHUNKKV__V1__SELECTOR__SELECTOR_H2O))
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, keep_ratio, CKV_D_NO_BUDGET, 0, 0, 0);
        return true;
}

/* check_spans() - first and count, as pairs of words */
static bool check_spans(struct ckv_check *check, const Chunkkv__V1__GroupJob *job, size_t index) {
        if (!ckv_check_count(check, ckv_at(CKV_F_GROUP_PROTECT, index, check->limits->spans), job->n_protect, 0,
                             check->limits->spans))
                return false;
        for (size_t i = 0; i < job->n_protect; i++) {
                const uint32_t words[] = { job->protect[i]->first, job->protect[i]->count };

                if (!ckv_check_range(check, ckv_at(CKV_F_GROUP_PROTECT, index, i), words[1], 1, UINT32_MAX) ||
                    !ckv_check_append_words(check, words, 2))
                        return false;
        }
        return true;
}

static bool check_position_runs(struct ckv_check *check, const Chunkkv__V1__Compress *compress, size_t index) {
        const Chunkkv__V1__GroupJob *job = compress->groups[index];
        struct ckv_at at = ckv_at(CKV_F_GROUP_POSITION_RUNS, index, 0);
        uint64_t kept;

        if (job->n_position_runs == 0)
                return true;
        if (!ckv_check_runs(check, at, job->position_runs, job->n_position_runs, compress->logical_len, &kept))
                return false;
        if (kept != job->physical_len)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_RUNS_KEPT, job->physical_len, kept,
                                        0);
        return ckv_check_append_words(check, job->position_runs, job->n_position_runs);
}

/* has_leak() - does a policy let scores leak up to boundaries of the caller's? It can do without them. */
static bool has_leak(const Chunkkv__V1__GroupJob *job) {
        for (size_t i = 0; i < job->n_policies; i++)
                if (job->policies[i]->pool == CHUNKKV__V1__POOL__POOL_LEAK)
                        return true;
        return false;
}

static bool check_chunk_lengths(struct ckv_check *check, const Chunkkv__V1__GroupJob *job, size_t index) {
        struct ckv_at at = ckv_at(CKV_F_GROUP_CHUNK_LENGTHS, index, 0);
        bool needed = has_selector(job, CHUNKKV__V1__SELECTOR__SELECTOR_CHUNK_AT);
        bool used = (needed || has_leak(job)) && job->n_given_runs == 0;
        uint64_t sum = 0;

        if (job->n_chunk_lengths == 0)
                return !used || !needed || job->physical_len == 0 ||
                       ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_CHUNKS_NEEDED, 0, 0, 0);
        if (!used)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_CHUNKS_UNUSED, 0, 0, 0);
        for (size_t i = 0; i < job->n_chunk_lengths; i++) {
                if (job->chunk_lengths[i] == 0)
                        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_ENTRY_ZERO, i, 0, 0);
                sum += job->chunk_lengths[i];
        }
        if (sum != job->physical_len)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_SUM, job->physical_len, sum, 0);
        return ckv_check_append_words(check, job->chunk_lengths, job->n_chunk_lengths);
}

static bool check_given_runs(struct ckv_check *check, const Chunkkv__V1__GroupJob *job, size_t index) {
        uint64_t kept;

        return ckv_check_runs(check, ckv_at(CKV_F_GROUP_GIVEN_RUNS, index, 0), job->given_runs, job->n_given_runs,
                              job->physical_len, &kept) &&
               ckv_check_append_words(check, job->given_runs, job->n_given_runs);
}

static bool check_scores(struct ckv_check *check, const Chunkkv__V1__GroupJob *job, size_t index,
                         struct ckv_record_group *group) {
        struct ckv_at out = ckv_at(CKV_F_GROUP_SCORES_OUT, index, 0), in = ckv_at(CKV_F_GROUP_SCORES_IN, index, 0);

        if (!ckv_check_enum(check, ckv_at(CKV_F_GROUP_SCORE_KIND, index, 0), &chunkkv__v1__score_kind__descriptor,
                            (int)job->score_kind, false))
                return false;
        if (job->n_given_runs > 0 && (job->scores_out || job->scores_in))
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, job->scores_out ? out : in, CKV_D_NOT_USED, 0,
                                        0, 0);
        if (!job->scores_in)
                for (size_t i = 0; i < job->n_policies; i++)
                        if (job->policies[i]->scorer == CHUNKKV__V1__SCORER__SCORER_GIVEN)
                                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, in, CKV_D_NEEDS_SCORES, 0, 0, 0);
        group->score_kind = (uint32_t)job->score_kind;
        return ckv_check_slice(check, out, job->scores_out, 4, &group->scores_out) &&
               ckv_check_slice(check, in, job->scores_in, 4, &group->scores_in);
}

static bool check_group_numbers(struct ckv_check *check, const Chunkkv__V1__Compress *compress, size_t index) {
        const Chunkkv__V1__GroupJob *job = compress->groups[index];
        struct ckv_at group = ckv_at(CKV_F_GROUP_GROUP, index, 0);

        if (!ckv_check_range(check, group, job->group, 0, check->limits->groups - 1))
                return false;
        for (size_t i = 0; i < index; i++)
                if (compress->groups[i]->group == job->group)
                        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, group, CKV_D_GROUP_TWICE, job->group,
                                                0, 0);
        if (job->physical_len > check->limits->rows)
                return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, ckv_at(CKV_F_GROUP_PHYSICAL_LEN, index, 0),
                                        CKV_D_ROWS_OVER_LIMIT, check->limits->rows, job->physical_len, 0);
        if (job->physical_len > compress->logical_len)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, ckv_at(CKV_F_COMPRESS_LOGICAL_LEN, 0, 0),
                                        CKV_D_LOGICAL_LEN, job->physical_len, compress->logical_len, 0);
        return ckv_check_range(check, ckv_at(CKV_F_GROUP_PROTECT_PREFIX, index, 0), job->protect_prefix, 0,
                               check->limits->rows);
}

bool ckv_check_group(struct ckv_check *check, const Chunkkv__V1__Compress *compress, size_t index,
                     struct ckv_record_group *group, struct ckv_record_policy *policies) {
        const Chunkkv__V1__GroupJob *job = compress->groups[index];

        *group = (struct ckv_record_group){
                .group = job->group,
                .physical_len = job->physical_len,
                .policy_count = (uint32_t)job->n_policies,
                .keep_ratio = job->keep_ratio,
                .max_tokens = job->max_tokens,
                .protect_prefix = job->protect_prefix,
                .span_count = (uint32_t)job->n_protect,
                .position_run_count = (uint32_t)job->n_position_runs,
                .chunk_length_count = (uint32_t)job->n_chunk_lengths,
                .given_run_count = (uint32_t)job->n_given_runs,
        };
        return check_group_numbers(check, compress, index) && check_tables(check, compress, index, group) &&
               check_policies(check, job, index, policies) && check_budget(check, job, index) &&
               check_spans(check, job, index) && check_position_runs(check, compress, index) &&
               check_chunk_lengths(check, job, index) && check_given_runs(check, job, index) &&
               check_scores(check, job, index, group);
}
