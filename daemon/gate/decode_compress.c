/*
 * Compress and Repair: what concerns the whole job, and the queries.  The
 * attachment is laid out first (groups, then policies, then words), because
 * its parts are filled in group by group.
 */
#include "daemon/gate/check.h"

#include "base/limits.h"

/* check_answer() - how the sets come back */
static bool check_answer(struct ckv_check *check, const Chunkkv__V1__Compress *compress,
                         struct ckv_record_compress *record) {
        struct ckv_at reply_to = ckv_at(CKV_F_COMPRESS_REPLY_TO, 0, 0);
        bool in_region = compress->reply_form == CHUNKKV__V1__REPLY_FORM__REPLY_IN_REGION;

        if (!ckv_check_enum(check, ckv_at(CKV_F_COMPRESS_REPLY_FORM, 0, 0), &chunkkv__v1__reply_form__descriptor,
                            (int)compress->reply_form, false))
                return false;
        if (in_region && !compress->reply_to)
                return ckv_check_missing(check, reply_to);
        if (!in_region && compress->reply_to)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, reply_to, CKV_D_NOT_USED, 0, 0, 0);
        if (compress->reply_form == CHUNKKV__V1__REPLY_FORM__REPLY_IN_SLOT && record->control_slot == 0)
                return ckv_check_missing(check, ckv_at(CKV_F_COMPRESS_CONTROL_SLOT, 0, 0));
        record->reply_form = (uint8_t)compress->reply_form;
        return ckv_check_slice(check, reply_to, compress->reply_to, 4, &record->reply_to);
}

/* check_job() - the numbers of the whole job; record->control_slot is set */
static bool check_job(struct ckv_check *check, const Chunkkv__V1__Compress *compress,
                      struct ckv_record_compress *record) {
        if (compress->cache_id == 0)
                return ckv_check_missing(check, ckv_at(CKV_F_COMPRESS_CACHE_ID, 0, 0));
        if (!ckv_check_enum(check, ckv_at(CKV_F_COMPRESS_MODE, 0, 0), &chunkkv__v1__mode__descriptor,
                            (int)compress->mode, true))
                return false;
        /* with PLAN there is nothing that a Commit could let happen */
        if (compress->hold && compress->mode == CHUNKKV__V1__MODE__MODE_PLAN)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, ckv_at(CKV_F_COMPRESS_HOLD, 0, 0),
                                        CKV_D_NOT_USED, 0, 0, 0);
        if (!ckv_check_range(check, ckv_at(CKV_F_COMPRESS_CONTROL_SLOT, 0, 0), compress->control_slot, 0,
                             CKV_LIMIT_CONTROL_SLOTS))
                return false;
        if (record->control_slot == 0 && compress->control_use != 0)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, ckv_at(CKV_F_COMPRESS_CONTROL_USE, 0, 0),
                                        CKV_D_NOT_USED, 0, 0, 0);
        if (!ckv_check_count(check, ckv_at(CKV_F_COMPRESS_GROUPS, 0, 0), compress->n_groups, 1, check->limits->groups))
                return false;
        record->cache_id = compress->cache_id;
        record->mode = (uint8_t)compress->mode;
        record->hold = compress->hold ? 1 : 0;
        record->single_pass = compress->single_pass ? 1 : 0;
        record->want_kept_mass = compress->want_kept_mass ? 1 : 0;
        record->control_use = compress->control_use;
        record->logical_len = compress->logical_len;
        return true;
}

/* reads_queries() - does a policy of this group score by queries? @ret_all_rows: set where one reads all rows (H2O) */
static bool reads_queries(const Chunkkv__V1__GroupJob *job, bool *ret_all_rows) {
        bool reads = job->n_policies == 0;      /* the default profile does */

        if (job->n_given_runs > 0 || job->scores_in)
                return false;
        for (size_t i = 0; i < job->n_policies; i++) {
                const Chunkkv__V1__Policy *policy = job->policies[i];

                if (policy->selector == CHUNKKV__V1__SELECTOR__SELECTOR_STREAMING)
                        continue;
                if (policy->selector == CHUNKKV__V1__SELECTOR__SELECTOR_H2O)
                        *ret_all_rows = true;
                switch (policy->scorer) {
                case CHUNKKV__V1__SCORER__SCORER_OF_PROFILE:
                case CHUNKKV__V1__SCORER__SCORER_WINDOW:
                case CHUNKKV__V1__SCORER__SCORER_RAW_QK:
                case CHUNKKV__V1__SCORER__SCORER_DROP:
                        reads = true;
                        break;
                default:
                        break;
                }
        }
        return reads;
}

/* check_query_layers() - ascending numbers; appended in front of the words of all groups */
static bool check_query_layers(struct ckv_check *check, const Chunkkv__V1__Queries *queries) {
        for (size_t i = 0; i < queries->n_layers; i++) {
                struct ckv_at at = ckv_at(CKV_F_QUERIES_LAYERS, i, 0);

                if (!ckv_check_range(check, at, queries->layers[i], 0, CKV_LIMIT_LAYER_NUMBER))
                        return false;
                if (i > 0 && queries->layers[i] <= queries->layers[i - 1])
                        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_ORDER, i, 0, 0);
        }
        return ckv_check_append_words(check, queries->layers, queries->n_layers);
}

static bool check_queries(struct ckv_check *check, const Chunkkv__V1__Compress *compress, bool all_rows,
                          struct ckv_record_compress *record) {
        const Chunkkv__V1__Queries *queries = compress->queries;
        uint64_t most_rows = all_rows ? check->limits->rows : CKV_LIMIT_QUERY_ROWS;

        if (!queries->data)
                return ckv_check_missing(check, ckv_at(CKV_F_QUERIES_DATA, 0, 0));
        if (!ckv_check_slice(check, ckv_at(CKV_F_QUERIES_DATA, 0, 0), queries->data, 1, &record->queries) ||
            !ckv_check_enum(check, ckv_at(CKV_F_QUERIES_DTYPE, 0, 0), &chunkkv__v1__dtype__descriptor,
                            (int)queries->dtype, true) ||
            !ckv_check_range(check, ckv_at(CKV_F_QUERIES_DTYPE, 0, 0), (uint64_t)queries->dtype,
                             CHUNKKV__V1__DTYPE__DTYPE_F32, CHUNKKV__V1__DTYPE__DTYPE_BF16) ||
            !ckv_check_range(check, ckv_at(CKV_F_QUERIES_ROWS, 0, 0), queries->rows, 1, most_rows) ||
            !ckv_check_range(check, ckv_at(CKV_F_QUERIES_RING_START, 0, 0), queries->ring_start, 0, queries->rows - 1))
                return false;
        for (size_t i = 0; queries->last_row > 0 && i < compress->n_groups; i++)
                if (compress->groups[i]->physical_len > 0 && queries->last_row >= compress->groups[i]->physical_len)
                        return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, ckv_at(CKV_F_QUERIES_LAST_ROW, 0, 0),
                                                CKV_D_QUERY_PAST_END, queries->last_row,
                                                compress->groups[i]->physical_len - 1, 0);
        record->has_queries = 1;
        record->query_dtype = (uint32_t)queries->dtype;
        record->query_rows = queries->rows;
        record->query_ring_start = queries->ring_start;
        record->query_last_row = queries->last_row;
        record->query_layer_count = (uint32_t)queries->n_layers;
        record->query_layer_stride = queries->layer_stride;
        record->query_head_stride = queries->head_stride;
        record->query_row_stride = queries->row_stride;
        return ckv_check_slice(check, ckv_at(CKV_F_QUERIES_LSE, 0, 0), queries->lse, 4, &record->lse) &&
               ckv_check_slice(check, ckv_at(CKV_F_QUERIES_SINK_LOGITS, 0, 0), queries->sink_logits, 4,
                               &record->sink_logits);
}

static bool check_word(struct ckv_check *check, enum ckv_field field, const Chunkkv__V1__TimelineWord *word,
                       struct ckv_record_slice *ret_slice, uint64_t *ret_value) {
        struct ckv_at at = ckv_at(field, 0, 0);

        if (!word)
                return true;
        if (!word->word)
                return ckv_check_missing(check, at);
        if (!ckv_check_slice(check, at, word->word, 1, ret_slice))
                return false;
        if (word->word->size != sizeof(uint64_t))
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_WORD_SIZE, word->word->size, 0, 0);
        *ret_value = word->value;
        return true;
}

/* check_timeline() - behind the policies, where there is one */
static bool check_timeline(struct ckv_check *check, const Chunkkv__V1__Compress *compress, struct ckv_record_compress *record) {
        struct ckv_record_timeline *timeline;

        if (!compress->wait && !compress->signal)
                return true;
        timeline = ckv_check_append(check, sizeof(*timeline));
        if (!timeline)
                return false;
        *timeline = (struct ckv_record_timeline){ 0 };
        record->has_timeline = 1;
        return check_word(check, CKV_F_COMPRESS_WAIT, compress->wait, &timeline->wait, &timeline->wait_value) &&
               check_word(check, CKV_F_COMPRESS_SIGNAL, compress->signal, &timeline->signal, &timeline->signal_value);
}

/* check_groups() - the attachment: groups, policies, timeline, words */
static bool check_groups(struct ckv_check *check, const Chunkkv__V1__Compress *compress,
                         struct ckv_record_compress *record) {
        struct ckv_record_group *groups;
        struct ckv_record_policy *policies = NULL;
        uint32_t words_at;
        size_t policy_count = 0;

        for (size_t i = 0; i < compress->n_groups; i++)
                policy_count += compress->groups[i]->n_policies;
        groups = ckv_check_append(check, compress->n_groups * sizeof(*groups));
        if (!groups)
                return false;
        policies = ckv_check_append(check, policy_count * sizeof(*policies));
        if (!policies)
                return false;

        if (!check_timeline(check, compress, record))
                return false;
        words_at = check->out->attachment_bytes;
        if (compress->queries && !check_query_layers(check, compress->queries))
                return false;
        for (size_t i = 0; i < compress->n_groups; i++) {
                if (!ckv_check_group(check, compress, i, &groups[i], policies))
                        return false;
                policies += compress->groups[i]->n_policies;
        }
        record->group_count = (uint32_t)compress->n_groups;
        record->policy_count = (uint32_t)policy_count;
        record->word_count = (check->out->attachment_bytes - words_at) / (uint32_t)sizeof(uint32_t);
        return true;
}

/* check_page() - PAGE copies nothing: it is an answer in rows, nothing that could be executed */
static bool check_page(struct ckv_check *check, const Chunkkv__V1__Compress *compress) {
        if (compress->mode == CHUNKKV__V1__MODE__MODE_PLAN)
                return true;
        for (size_t i = 0; i < compress->n_groups; i++)
                for (size_t k = 0; k < compress->groups[i]->n_policies; k++)
                        if (compress->groups[i]->policies[k]->selector == CHUNKKV__V1__SELECTOR__SELECTOR_PAGE)
                                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT,
                                                        ckv_at(CKV_F_POLICY_SELECTOR, i, k), CKV_D_PAGE_MODE, 0, 0, 0);
        return true;
}

/* check_whole() - Compress, or the job of a Repair; record->control_slot is set */
static bool check_whole(struct ckv_check *check, const Chunkkv__V1__Compress *compress) {
        struct ckv_record_compress *record = &check->out->record.body.compress;
        bool needed = false, all_rows = false;

        if (!check_job(check, compress, record) || !check_groups(check, compress, record))
                return false;
        for (size_t i = 0; i < compress->n_groups; i++)
                needed = reads_queries(compress->groups[i], &all_rows) || needed;
        if (needed && !compress->queries)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, ckv_at(CKV_F_QUERIES, 0, 0), CKV_D_NEEDS_QUERIES, 0,
                                        0, 0);
        if (compress->queries && !check_queries(check, compress, all_rows, record))
                return false;
        return check_answer(check, compress, record) && check_page(check, compress);
}

bool ckv_check_compress(struct ckv_check *check, const Chunkkv__V1__Compress *compress) {
        check->out->record.body.compress.control_slot = compress->control_slot;
        return check_whole(check, compress);
}

bool ckv_check_repair(struct ckv_check *check, const Chunkkv__V1__Repair *repair) {
        struct ckv_record_repair *record;

        if (!ckv_check_range(check, ckv_at(CKV_F_REPAIR_TARGET, 0, 0), repair->target_request_id, 1, INT64_MAX) ||
            !ckv_check_range(check, ckv_at(CKV_F_REPAIR_CONTROL_SLOT, 0, 0), repair->control_slot, 1,
                             CKV_LIMIT_CONTROL_SLOTS))
                return false;
        if (!repair->job)
                return ckv_check_missing(check, ckv_at(CKV_F_REPAIR_JOB, 0, 0));
        record = ckv_check_append(check, sizeof(*record));
        if (!record)
                return false;
        *record = (struct ckv_record_repair){ .target_request_id = repair->target_request_id };
        /* the slot of the page as it is now; the job repeats what was sent then */
        check->out->record.body.compress.control_slot = repair->control_slot;
        return check_whole(check, repair->job);
}
