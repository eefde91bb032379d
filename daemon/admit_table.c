/*
 * Block tables: from what the client sent, inline or in a region, as ids or as
 * runs of ids, to one entry for each block (or each row).  A table in shared
 * memory is copied out once and only then looked at: the client may be writing
 * to it meanwhile.
 *
 * The source table must cover all rows.  The destination of COPY_OUT may be
 * shorter, since nobody knows yet how many rows will be kept; whether it has
 * room is looked at before the copy begins.
 */
#include "daemon/admit.h"

#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

#include <errno.h>
#include <string.h>

/* One table on its way from the request to the job. */
struct table {
        uint32_t index;                 /* of the group in the request */
        enum ckv_field field, form_field, from_field;
        uint32_t form, inline_count;
        const uint32_t *inline_words;
        const struct ckv_record_slice *from;
        bool runs, by_token;
        uint32_t per_block;
        uint64_t most;                  /* entries that can matter: enough for all rows */
        uint64_t ids;                   /* ids are 0 .. ids-1 */
        uint32_t *entries;              /* heap; what comes out */
        uint64_t count;
};

static bool refuse(struct ckv_record_status *status, const struct table *t, enum ckv_code code, enum ckv_field field,
                   enum ckv_detail detail, uint64_t a, uint64_t b, uint64_t c) {
        return ckv_refuse_at(status, code, field, t->index, 0, detail, a, b, c);
}

/* fetch() - the words of the table in memory of our own, at most as many as can matter; *ret_words is malloc'd */
static bool fetch(struct ckv_request *request, const struct table *t, uint32_t **ret_words, uint64_t *ret_count,
                  struct ckv_record_status *status) {
        uint64_t most = t->runs ? 2 * t->most : t->most, count = t->inline_count;
        _cleanup_free_ uint32_t *words = NULL;
        struct ckv_region *region = NULL;
        uint8_t *address = NULL;

        if (t->from->region_id) {
                if (t->inline_count)
                        return refuse(status, t, CKV_CODE_INVALID_ARGUMENT, t->from_field, CKV_D_NOT_USED, 0, 0, 0);
                if (!ckv_region_slice(request->session, t->from, 0, t->from_field, status, &region, &address)) {
                        status->index[0] = (uint16_t)t->index;
                        return false;
                }
                if (!ckv_region_on_host(region, t->from_field, t->index, status))
                        return false;
                if (t->from->size % sizeof(uint32_t))
                        return refuse(status, t, CKV_CODE_INVALID_ARGUMENT, t->from_field, CKV_D_MULTIPLE, sizeof(uint32_t),
                                      t->from->size, 0);
                count = t->from->size / sizeof(uint32_t);
        }
        count = CKV_MIN(count, most);
        words = malloc(CKV_MAX(count, 1u) * sizeof(uint32_t));
        if (!words)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        if (!region)
                memcpy(words, t->inline_words, count * sizeof(uint32_t));
        else if (!ckv_region_read(region, address, count * sizeof(uint32_t), words, status))
                return false;
        *ret_words = ckv_steal(&words);
        *ret_count = count;
        return true;
}

/* expand() - runs (first, count) to ids, until there are as many as can matter */
static bool expand(struct table *t, const uint32_t *words, uint64_t count, struct ckv_record_status *status) {
        if (count % 2)
                return refuse(status, t, CKV_CODE_INVALID_ARGUMENT, t->field, CKV_D_EVEN_COUNT, count, 0, 0);
        t->entries = malloc(CKV_MAX(t->most, 1u) * sizeof(uint32_t));
        if (!t->entries)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        for (uint64_t i = 0; i < count && t->count < t->most; i += 2) {
                uint64_t first = words[i], run = words[i + 1];

                if (run == 0)
                        return refuse(status, t, CKV_CODE_OUT_OF_RANGE, t->field, CKV_D_AT_LEAST, 1, 0, 0);
                if (first + run > t->ids)
                        return refuse(status, t, CKV_CODE_OUT_OF_RANGE, t->field, CKV_D_BLOCK_RANGE, i / 2, first + run - 1, t->ids);
                for (uint64_t k = 0; k < run && t->count < t->most; k++)
                        t->entries[t->count++] = (uint32_t)(first + k);
        }
        return true;
}

/* read_table() - form, fetch, expand: t->entries and t->count, each id below t->ids */
static bool read_table(struct ckv_request *request, struct table *t, struct ckv_record_status *status) {
        _cleanup_free_ uint32_t *words = NULL;
        uint64_t count;

        if (t->form == CKV_TABLE_NONE && t->most == 0)
                return true;    /* no rows, no table */
        if (t->form < CKV_TABLE_BLOCKS || t->form > CKV_TABLE_TOKEN_RUNS)
                return refuse(status, t, CKV_CODE_INVALID_ARGUMENT, t->form_field, CKV_D_ENUM, t->form, 0, 0);
        if (!fetch(request, t, &words, &count, status))
                return false;
        if (t->field == CKV_F_GROUP_TABLE)
                ckv_slot_hash_table(request, words, count);
        if (t->runs) {
                if (!expand(t, words, count, status))
                        return false;
        } else {
                t->entries = ckv_steal(&words);
                t->count = count;
        }
        for (uint64_t i = 0; i < t->count; i++)
                if (t->entries[i] >= t->ids)
                        return refuse(status, t, CKV_CODE_OUT_OF_RANGE, t->field, CKV_D_BLOCK_RANGE, i, t->entries[i], t->ids);
        return true;
}

/* new_seen() - one bit for each id up to the highest; calloc touches only the pages that are used */
static uint64_t *new_seen(const uint32_t *ids, uint64_t count, uint32_t *ret_highest) {
        uint32_t highest = 0;

        for (uint64_t i = 0; i < count; i++)
                highest = CKV_MAX(highest, ids[i]);
        *ret_highest = highest;
        return calloc((size_t)highest / 64 + 1, sizeof(uint64_t));
}

/* see() - mark an id. Return: was it marked already? */
static bool see(uint64_t *seen, uint32_t id) {
        uint64_t bit = UINT64_C(1) << id % 64, before = seen[id / 64] & bit;

        seen[id / 64] |= bit;
        return before != 0;
}

static bool check_distinct(const struct table *t, struct ckv_record_status *status) {
        uint32_t highest;
        _cleanup_free_ uint64_t *seen = new_seen(t->entries, t->count, &highest);

        if (!seen)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        for (uint64_t i = 0; i < t->count; i++)
                if (see(seen, t->entries[i]))
                        return refuse(status, t, CKV_CODE_INVALID_ARGUMENT, t->field, CKV_D_DUPLICATE, i, t->entries[i], 0);
        return true;
}

/* check_disjoint() - no block of the destination is one of the source */
static bool check_disjoint(const struct table *source, const struct table *t, struct ckv_record_status *status) {
        uint32_t highest, divide = source->by_token ? source->per_block : 1;
        _cleanup_free_ uint64_t *seen = new_seen(source->entries, source->count, &highest);

        if (!seen)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        for (uint64_t i = 0; i < source->count; i++)
                (void)see(seen, source->entries[i] / divide);
        for (uint64_t i = 0; i < t->count; i++) {
                uint32_t block = t->by_token ? t->entries[i] / t->per_block : t->entries[i];

                if (block <= highest / divide && see(seen, block))
                        return refuse(status, t, CKV_CODE_INVALID_ARGUMENT, t->field, CKV_D_SOURCE_BLOCK, i, block, 0);
                /* blocks of the destination may come several times as slots: they are not of the source, so unmark them */
                if (block <= highest / divide)
                        seen[block / 64] &= ~(UINT64_C(1) << block % 64);
        }
        return true;
}

static void set_form(struct table *t, uint32_t rows, uint32_t num_blocks, uint32_t per_block) {
        t->runs = t->form == CKV_TABLE_BLOCK_RUNS || t->form == CKV_TABLE_TOKEN_RUNS;
        t->by_token = t->form == CKV_TABLE_TOKENS || t->form == CKV_TABLE_TOKEN_RUNS;
        t->per_block = per_block;
        t->most = t->by_token ? rows : ((uint64_t)rows + per_block - 1) / per_block;
        t->ids = t->by_token ? (uint64_t)num_blocks * per_block : num_blocks;
}

static void table_deinit(struct table *t) {
        free(t->entries);
}

static bool read_source(struct ckv_request *request, struct table *t, uint32_t rows, struct ckv_record_status *status) {
        if (!read_table(request, t, status))
                return false;
        if (t->count < t->most)
                return refuse(status, t, CKV_CODE_INVALID_ARGUMENT, t->field, CKV_D_TABLE_SHORT, t->count, t->most, rows);
        return check_distinct(t, status);
}

static bool read_destination(struct ckv_request *request, const struct table *source, struct table *t, struct ckv_record_status *status) {
        return read_table(request, t, status) && check_distinct(t, status) && check_disjoint(source, t, status);
}

static void hand_over(struct table *t, struct ckv_row_table *ret_table) {
        *ret_table = (struct ckv_row_table){
                .entries = ckv_steal(&t->entries), .by_token = t->by_token, .tokens_per_block = t->per_block,
        };
}

bool ckv_admit_tables(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_group_words *words,
                      uint32_t index, uint32_t num_blocks, struct ckv_record_status *ret_status) {
        struct ckv_job_group *job_group = ckv_request_part(request, index, 0);
        uint32_t rows = group->physical_len, per_block = request->cache->groups[group->group].tokens_per_block;
        _cleanup_(table_deinit) struct table source = {
                .index = index, .field = CKV_F_GROUP_TABLE, .form_field = CKV_F_GROUP_TABLE_FORM, .from_field = CKV_F_GROUP_TABLE_FROM,
                .form = group->table_form, .inline_count = group->table_count, .inline_words = words->table,
                .from = &group->table_from,
        };
        _cleanup_(table_deinit) struct table destination = {
                .index = index, .field = CKV_F_GROUP_DESTINATION, .form_field = CKV_F_GROUP_DESTINATION,
                .from_field = CKV_F_GROUP_DESTINATION, .form = group->destination_form, .inline_count = group->destination_count,
                .inline_words = words->destination, .from = &group->destination_from,
        };

        ckv_slot_hash_table(request, (const uint32_t[]){ group->group, rows, group->table_form }, 3);
        set_form(&source, rows, num_blocks, per_block);
        set_form(&destination, rows, num_blocks, per_block);
        if (!read_source(request, &source, rows, ret_status))
                return false;
        if (request->mode == CKV_MODE_COPY_OUT) {
                if (!read_destination(request, &source, &destination, ret_status))
                        return false;
                job_group->destination_rows = (uint32_t)CKV_MIN(destination.count * (destination.by_token ? 1 : per_block), rows);
                hand_over(&destination, &job_group->destination);
        } else if (group->destination_form || group->destination_count || group->destination_from.region_id) {
                return refuse(ret_status, &destination, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_DESTINATION, CKV_D_NOT_USED, 0, 0, 0);
        }
        hand_over(&source, &job_group->table);
        return true;
}
