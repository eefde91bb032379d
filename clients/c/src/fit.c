/*
 * What to do when a message would be too long (protocol.md 3).
 *
 * A request: tables of single numbers become runs where that is shorter, and
 * if this is not enough, tables go into shared memory.  Only then; a request
 * that fits is sent as the caller wrote it.
 *
 * An answer: the daemon knows before it starts how long the answer can become
 * and refuses with REPLY_TOO_LARGE, having touched nothing.  The same job is
 * then asked again with shared memory for its sets, and with more if that was
 * still too little: the bound is the daemon's business, not copied here.
 */
#include "clients/c/src/control.h"

#include <errno.h>
#include <string.h>

#define SETS_FIRST_BYTES (UINT64_C(4) << 20)
#define SETS_MOST_BYTES (UINT64_C(4) << 30)
#define CAPABILITY(client, name) (((client)->info.capabilities >> CHUNKKV__V1__CAPABILITY__##name) & 1)

/* Where the run of consecutive numbers ends that begins at @i. */
static size_t run_end(const uint32_t *numbers, size_t count, size_t i) {
        for (i++; i < count && numbers[i] == numbers[i - 1] + 1 && numbers[i] != 0; i++)
                ;
        return i;
}

static void table_to_runs(struct ckv__arena *arena, Chunkkv__V1__Table *table) {
        size_t words = 0, n = 0;
        uint32_t *runs;

        if (!table || (table->form != CHUNKKV__V1__TABLE_FORM__TABLE_BLOCKS &&
                       table->form != CHUNKKV__V1__TABLE_FORM__TABLE_TOKENS))
                return;
        for (size_t i = 0; i < table->n_numbers; i = run_end(table->numbers, table->n_numbers, i))
                words += 2;
        if (words >= table->n_numbers)
                return;
        runs = ckv__arena_take(arena, words, sizeof(*runs));
        if (!runs)
                return;
        for (size_t i = 0, end; i < table->n_numbers; i = end) {
                end = run_end(table->numbers, table->n_numbers, i);
                runs[n++] = table->numbers[i];
                runs[n++] = (uint32_t)(end - i);
        }
        table->numbers = runs;
        table->n_numbers = words;
        table->form = table->form == CHUNKKV__V1__TABLE_FORM__TABLE_BLOCKS ?
                CHUNKKV__V1__TABLE_FORM__TABLE_BLOCK_RUNS : CHUNKKV__V1__TABLE_FORM__TABLE_TOKEN_RUNS;
}

static uint64_t table_bytes(const Chunkkv__V1__Table *table) {
        return table ? table->n_numbers * sizeof(uint32_t) : 0;
}

/* Moves the numbers of a table to @at in scratch. */
static void table_to_region(struct ckv__arena *arena, Chunkkv__V1__Table *table, const struct ckv__scratch *scratch,
                            uint64_t *at) {
        uint64_t bytes = table_bytes(table);
        Chunkkv__V1__Slice *slice;

        if (bytes == 0)
                return;
        slice = ckv__arena_take(arena, 1, sizeof(*slice));
        if (!slice)
                return;
        chunkkv__v1__slice__init(slice);
        slice->region_id = scratch->region_id;
        slice->offset = *at;
        slice->size = bytes;
        memcpy((uint8_t *)scratch->memory.address + *at, table->numbers, bytes);
        *at += bytes;
        table->from = slice;
        table->numbers = NULL;
        table->n_numbers = 0;
}

int ckv__fit_tables(struct chunkkv_client *client, struct ckv__arena *arena, Chunkkv__V1__Request *message, size_t most,
                    uint64_t deadline_nsec, struct ckv__scratch **ret_tables, struct chunkkv_error *ret_error) {
        Chunkkv__V1__Compress *job = message->compress;
        struct ckv__scratch *scratch;
        uint64_t bytes = 0, at = 0;
        int r;

        *ret_tables = NULL;
        if (chunkkv__v1__request__get_packed_size(message) <= most)
                return 0;
        for (size_t i = 0; i < job->n_groups; i++) {
                table_to_runs(arena, job->groups[i]->table);
                table_to_runs(arena, job->groups[i]->destination);
                bytes += table_bytes(job->groups[i]->table) + table_bytes(job->groups[i]->destination);
        }
        if (bytes > 0 && chunkkv__v1__request__get_packed_size(message) > most &&
            CAPABILITY(client, CAP_TABLE_IN_REGION)) {
                r = ckv__scratch_take(client, bytes, deadline_nsec, &scratch, ret_error);
                if (r)
                        return r;
                for (size_t i = 0; i < job->n_groups; i++) {
                        table_to_region(arena, job->groups[i]->table, scratch, &at);
                        table_to_region(arena, job->groups[i]->destination, scratch, &at);
                }
                *ret_tables = scratch;
        }
        if (!arena->failed)
                return 0;
        *ret_tables = ckv__scratch_release(*ret_tables);
        return ckv__fault(ret_error, -ENOMEM, "", "no memory for a job");
}

/* A use of a slot is for one request: another number needs another use, or does without. */
static void renew_slot(struct chunkkv_client *client, struct ckv__writing *writing, Chunkkv__V1__Compress *job, bool keep) {
        if (!writing || writing->ticket.number == 0)
                return;
        if (keep) {
                ckv__ticket_renew(client->page, &writing->ticket);
        } else {
                (void)ckv__ticket_cancel(client->page, &writing->ticket);
                ckv__ticket_release(client->page, &writing->ticket);
        }
        job->control_slot = writing->ticket.number;
        job->control_use = writing->ticket.use;
}

/* Packs the request anew, with @scratch for its sets or, if that is NULL, without a slot. Return: false without memory. */
static bool ask_again(struct chunkkv_client *client, struct ckv__request *request, struct ckv__scratch *scratch) {
        Chunkkv__V1__Request *message = chunkkv__v1__request__unpack(NULL, request->size, request->bytes);
        Chunkkv__V1__Slice slice = CHUNKKV__V1__SLICE__INIT, *before;
        int r;

        if (!message)
                return false;
        before = message->compress->reply_to;
        if (scratch) {
                /* all else is in the daemon's numbers already */
                slice.region_id = ckv__region_find(client, scratch->region_id)->id;
                slice.size = scratch->memory.size;
                message->compress->reply_to = &slice;
                message->compress->reply_form = CHUNKKV__V1__REPLY_FORM__REPLY_IN_REGION;
        }
        renew_slot(client, request->writing, message->compress, scratch != NULL);
        r = ckv__request_again(client, request, message);
        message->compress->reply_to = before; /* to be freed with the message */
        if (r == 0 && request->writing)
                request->writing->id = request->id;
        chunkkv__v1__request__free_unpacked(message, NULL);
        return r == 0;
}

bool ckv__fit_answer(struct chunkkv_client *client, struct ckv__request *request) {
        const Chunkkv__V1__Status *status = request->reply->status;
        uint64_t size = SETS_FIRST_BYTES;
        struct ckv__scratch *scratch;

        if (!status || status->code != CHUNKKV__V1__CODE__CODE_REPLY_TOO_LARGE)
                return false;
        /* its kept sets might not fit the slot's area: a move that cannot be repaired is better than none */
        if (strcmp(status->field, "compress.control_slot") == 0)
                return request->writing && request->writing->ticket.number && ask_again(client, request, NULL);
        if (!CAPABILITY(client, CAP_REPLY_IN_REGION) ||
            (request->reply_form != CHUNKKV_REPLY_RUNS && request->reply_form != CHUNKKV_REPLY_ROWS))
                return false;
        if (request->sets)
                size = request->sets->memory.size * 4;
        request->sets = ckv__scratch_release(request->sets);
        if (size > SETS_MOST_BYTES || ckv__scratch_take(client, size, request->deadline_nsec, &scratch, NULL))
                return false;
        request->sets = scratch;
        return ask_again(client, request, scratch);
}
