/*
 * A struct chunkkv_job as message Compress.  Only what the message cannot
 * express is refused here (a job without a group, a mode that is none, a list
 * that is NULL); ranges are the daemon's business.
 */
#include "clients/c/src/client.h"

#include <errno.h>
#include <inttypes.h>

static Chunkkv__V1__Slice *slice_encode(struct ckv__arena *arena, const struct chunkkv_slice *slice) {
        Chunkkv__V1__Slice *message;

        if (slice->region_id == 0)
                return NULL;
        message = ckv__arena_take(arena, 1, sizeof(*message));
        if (!message)
                return NULL;
        chunkkv__v1__slice__init(message);
        message->region_id = slice->region_id;
        message->offset = slice->offset;
        message->size = slice->size;
        return message;
}

static Chunkkv__V1__Table *table_encode(struct ckv__arena *arena, const struct chunkkv_table *table) {
        Chunkkv__V1__Table *message;

        if (table->form == CHUNKKV_TABLE_NONE)
                return NULL;
        message = ckv__arena_take(arena, 1, sizeof(*message));
        if (!message)
                return NULL;
        chunkkv__v1__table__init(message);
        message->form = (Chunkkv__V1__TableForm)table->form;
        message->numbers = ckv__arena_words(arena, table->numbers, table->count);
        message->n_numbers = table->count;
        message->from = slice_encode(arena, &table->from);
        return message;
}

static void spans_encode(struct ckv__arena *arena, const struct chunkkv_group_job *job,
                         Chunkkv__V1__GroupJob *message) {
        Chunkkv__V1__Span *spans = ckv__arena_take(arena, job->protect_count, sizeof(*spans));

        message->protect = ckv__arena_take(arena, job->protect_count, sizeof(*message->protect));
        if (!spans || !message->protect)
                return;
        for (size_t i = 0; i < job->protect_count; i++) {
                chunkkv__v1__span__init(&spans[i]);
                spans[i].first = job->protect[i].first;
                spans[i].count = job->protect[i].count;
                message->protect[i] = &spans[i];
        }
        message->n_protect = job->protect_count;
}

static Chunkkv__V1__GroupJob *group_encode(struct ckv__arena *arena, const struct chunkkv_group_job *job) {
        Chunkkv__V1__GroupJob *message = ckv__arena_take(arena, 1, sizeof(*message));

        if (!message)
                return NULL;
        chunkkv__v1__group_job__init(message);
        message->group = job->group;
        message->physical_len = job->physical_len;
        message->table = table_encode(arena, &job->table);
        message->destination = table_encode(arena, &job->destination);
        message->keep_ratio = job->keep_ratio;
        message->max_tokens = job->max_tokens;
        message->protect_prefix = job->protect_prefix;
        spans_encode(arena, job, message);
        message->position_runs = ckv__arena_words(arena, job->position_runs, job->position_run_count);
        message->n_position_runs = job->position_run_count;
        message->chunk_lengths = ckv__arena_words(arena, job->chunk_lengths, job->chunk_length_count);
        message->n_chunk_lengths = job->chunk_length_count;
        message->given_runs = ckv__arena_words(arena, job->given_runs, job->given_run_count);
        message->n_given_runs = job->given_run_count;
        message->score_kind = (Chunkkv__V1__ScoreKind)job->score_kind;
        message->scores_out = slice_encode(arena, &job->scores_out);
        message->scores_in = slice_encode(arena, &job->scores_in);
        message->policies = ckv__arena_take(arena, job->policy_count, sizeof(*message->policies));
        if (!message->policies)
                return NULL;
        for (size_t i = 0; i < job->policy_count; i++)
                message->policies[i] = ckv__policy_encode(arena, &job->policies[i]);
        message->n_policies = job->policy_count;
        return message;
}

static Chunkkv__V1__Queries *queries_encode(struct ckv__arena *arena, const struct chunkkv_queries *queries) {
        Chunkkv__V1__Queries *message = ckv__arena_take(arena, 1, sizeof(*message));

        if (!message)
                return NULL;
        chunkkv__v1__queries__init(message);
        message->data = slice_encode(arena, &queries->data);
        message->dtype = (Chunkkv__V1__DType)queries->dtype;
        message->rows = queries->rows;
        message->ring_start = queries->ring_start;
        message->layer_stride = queries->layer_stride;
        message->head_stride = queries->head_stride;
        message->row_stride = queries->row_stride;
        message->layers = ckv__arena_words(arena, queries->layers, queries->layer_count);
        message->n_layers = queries->layer_count;
        message->last_row = queries->last_row;
        message->lse = slice_encode(arena, &queries->lse);
        message->sink_logits = slice_encode(arena, &queries->sink_logits);
        return message;
}

static int group_lists_check(const struct chunkkv_group_job *group, size_t index, struct chunkkv_error *ret_error) {
        const struct chunkkv_table none = { 0 };
        const struct chunkkv_table *table = group->table.form ? &group->table : &none;
        const struct chunkkv_table *destination = group->destination.form ? &group->destination : &none;
        const struct { const char *name; const void *list; size_t count; } lists[] = {
                { "table.numbers", table->numbers, table->count },
                { "destination.numbers", destination->numbers, destination->count },
                { "policies", group->policies, group->policy_count },
                { "protect", group->protect, group->protect_count },
                { "position_runs", group->position_runs, group->position_run_count },
                { "chunk_lengths", group->chunk_lengths, group->chunk_length_count },
                { "given_runs", group->given_runs, group->given_run_count },
        };
        int r = 0;

        for (size_t i = 0; r == 0 && i < CKV_ARRAY_SIZE(lists); i++)
                r = ckv__list_check(lists[i].list, lists[i].count, ret_error, "groups[%zu].%s", index, lists[i].name);
        return r;
}

static int lists_check(const struct chunkkv_job *job, struct chunkkv_error *ret_error) {
        int r;

        r = ckv__list_check(job->groups, job->group_count, ret_error, "groups");
        for (size_t i = 0; r == 0 && i < job->group_count; i++)
                r = group_lists_check(&job->groups[i], i, ret_error);
        if (r == 0 && job->queries)
                r = ckv__list_check(job->queries->layers, job->queries->layer_count, ret_error, "queries.layers");
        return r;
}

static int job_check(const struct chunkkv_job *job, struct chunkkv_error *ret_error) {
        if (job->mode < CHUNKKV_MODE_PLAN || job->mode > CHUNKKV_MODE_COPY_OUT)
                return ckv__fault(ret_error, -EINVAL, "mode", "must be PLAN, IN_PLACE or COPY_OUT, is %" PRIu32,
                                  job->mode);
        if (job->group_count == 0)
                return ckv__fault(ret_error, -EINVAL, "groups", "must have at least one entry");
        if (job->reply_form == CHUNKKV_REPLY_IN_SLOT)
                return ckv__fault(ret_error, -EINVAL, "reply_form",
                                  "must not be IN_SLOT: slots of the control page are the library's own");
        return lists_check(job, ret_error);
}

static Chunkkv__V1__TimelineWord *timeline_encode(struct ckv__arena *arena, const struct chunkkv_timeline *timeline) {
        struct chunkkv_slice slice;
        Chunkkv__V1__TimelineWord *message;

        if (!timeline || timeline->region_id == 0)
                return NULL;
        message = ckv__arena_take(arena, 1, sizeof(*message));
        if (!message)
                return NULL;
        slice = (struct chunkkv_slice){ .region_id = timeline->region_id, .offset = timeline->offset, .size = sizeof(uint64_t) };
        chunkkv__v1__timeline_word__init(message);
        message->word = slice_encode(arena, &slice);
        message->value = timeline->value;
        return message;
}

int ckv__job_encode(struct ckv__arena *arena, const struct chunkkv_job *job, const struct chunkkv_timeline *wait,
                    const struct chunkkv_timeline *signal, Chunkkv__V1__Compress **ret_message, struct chunkkv_error *ret_error) {
        Chunkkv__V1__Compress *message;
        int r;

        r = job_check(job, ret_error);
        if (r)
                return r;
        message = ckv__arena_take(arena, 1, sizeof(*message));
        if (!message)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for a job");
        chunkkv__v1__compress__init(message);
        message->cache_id = job->cache_id;
        message->mode = (Chunkkv__V1__Mode)job->mode;
        message->logical_len = job->logical_len;
        message->reply_form = (Chunkkv__V1__ReplyForm)job->reply_form;
        message->reply_to = slice_encode(arena, &job->reply_to);
        message->single_pass = job->single_pass;
        message->hold = job->hold;
        message->want_kept_mass = job->want_kept_mass;
        message->wait = timeline_encode(arena, wait);
        message->signal = timeline_encode(arena, signal);
        message->queries = job->queries ? queries_encode(arena, job->queries) : NULL;
        message->groups = ckv__arena_take(arena, job->group_count, sizeof(*message->groups));
        for (size_t i = 0; message->groups && i < job->group_count; i++) {
                message->groups[i] = group_encode(arena, &job->groups[i]);
                if (job->logical_len == 0)
                        message->logical_len = CKV_MAX(message->logical_len, job->groups[i].physical_len);
        }
        message->n_groups = job->group_count;
        if (arena->failed)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for a job");
        *ret_message = message;
        return 0;
}
