/*
 * Block tables: from what the client sent, inline or in a region, as ids or as
 * runs of ids, to one entry for each block (or each row) that the job reads
 * from.  A table in shared memory is copied out once and only then looked at:
 * the client may be writing to it meanwhile.
 */
#include "daemon/admit.h"

#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

#include <errno.h>
#include <string.h>

enum table_form { TABLE_BLOCKS = 1, TABLE_BLOCK_RUNS = 2, TABLE_TOKENS = 3, TABLE_TOKEN_RUNS = 4 };    /* TableForm */

/* One table on its way from the request to the job. */
struct table {
        const struct ckv_record_group *group;
        uint32_t index;         /* of the group in the request */
        bool runs, by_token;
        uint64_t needed;        /* entries */
        uint64_t ids;           /* ids are 0 .. ids-1 */
};

static bool refuse_table(struct ckv_record_status *status, const struct table *t, enum ckv_code code, enum ckv_field field,
                         enum ckv_detail detail, uint64_t a, uint64_t b, uint64_t c) {
        return ckv_refuse_at(status, code, field, t->index, 0, detail, a, b, c);
}

/* fetch() - the words of the table in memory of our own, at most as many as can matter; *ret_words is malloc'd */
static bool fetch(struct ckv_request *request, const struct table *t, const uint32_t *inline_words, uint32_t **ret_words,
                  uint64_t *ret_count, struct ckv_record_status *status) {
        const struct ckv_record_slice *from = &t->group->table_from;
        uint64_t most = t->runs ? 2 * t->needed : t->needed, count;
        const void *source = inline_words;
        uint32_t *words;

        if (from->region_id) {
                struct ckv_region *region;
                uint8_t *address;

                if (t->group->table_count)
                        return refuse_table(status, t, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_TABLE_FROM, CKV_D_NOT_USED, 0, 0, 0);
                if (!ckv_region_slice(request->session, from, 0, CKV_F_GROUP_TABLE_FROM, status, &region, &address)) {
                        status->index[0] = (uint16_t)t->index;
                        return false;
                }
                if (from->size % sizeof(uint32_t))
                        return refuse_table(status, t, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_TABLE_FROM, CKV_D_MULTIPLE,
                                            sizeof(uint32_t), from->size, 0);
                count = from->size / sizeof(uint32_t);
                source = address;
        } else {
                count = t->group->table_count;
        }
        count = CKV_MIN(count, most);
        words = malloc(CKV_MAX(count, 1u) * sizeof(uint32_t));
        if (!words)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        memcpy(words, source, count * sizeof(uint32_t));
        *ret_words = words;
        *ret_count = count;
        return true;
}

/* expand() - runs (first, count) to ids, until as many as needed are there; *ret_count < needed: the table is short */
static bool expand(const struct table *t, const uint32_t *words, uint64_t count, uint32_t *entries, uint64_t *ret_count,
                   struct ckv_record_status *status) {
        uint64_t n = 0;

        if (count % 2)
                return refuse_table(status, t, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_TABLE, CKV_D_MULTIPLE, 2, count, 0);
        for (uint64_t i = 0; i < count && n < t->needed; i += 2) {
                uint64_t first = words[i], run = words[i + 1];

                if (run == 0)
                        return refuse_table(status, t, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_TABLE, CKV_D_AT_LEAST, 1, 0, 0);
                if (first + run > t->ids)
                        return refuse_table(status, t, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_TABLE, CKV_D_BLOCK_RANGE, i / 2,
                                            first + run - 1, t->ids);
                for (uint64_t k = 0; k < run && n < t->needed; k++)
                        entries[n++] = (uint32_t)(first + k);
        }
        *ret_count = n;
        return true;
}

/* check_ids() - each below t->ids, none twice */
static bool check_ids(const struct table *t, const uint32_t *entries, struct ckv_record_status *status) {
        _cleanup_free_ uint64_t *seen = NULL;
        uint32_t highest = 0;

        for (uint64_t i = 0; i < t->needed; i++) {
                if (entries[i] >= t->ids)
                        return refuse_table(status, t, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_TABLE, CKV_D_BLOCK_RANGE, i, entries[i],
                                            t->ids);
                highest = CKV_MAX(highest, entries[i]);
        }
        /* one bit for each id up to the highest; calloc touches only the pages that are used */
        seen = calloc((size_t)highest / 64 + 1, sizeof(*seen));
        if (!seen)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        for (uint64_t i = 0; i < t->needed; i++) {
                uint64_t bit = UINT64_C(1) << entries[i] % 64;

                if (seen[entries[i] / 64] & bit)
                        return refuse_table(status, t, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_TABLE, CKV_D_DUPLICATE, i, entries[i],
                                            0);
                seen[entries[i] / 64] |= bit;
        }
        return true;
}

bool ckv_admit_table(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_group_words *words,
                     uint32_t index, uint32_t num_blocks, struct ckv_record_status *ret_status) {
        const struct ckv_cache_group *cache_group = &request->cache->groups[group->group];
        uint32_t rows = group->physical_len, per_block = cache_group->tokens_per_block;
        struct table t = {
                .group = group, .index = index,
                .runs = group->table_form == TABLE_BLOCK_RUNS || group->table_form == TABLE_TOKEN_RUNS,
                .by_token = group->table_form == TABLE_TOKENS || group->table_form == TABLE_TOKEN_RUNS,
        };
        _cleanup_free_ uint32_t *fetched = NULL, *entries = NULL;
        uint64_t count;

        if (group->table_form < TABLE_BLOCKS || group->table_form > TABLE_TOKEN_RUNS)
                return refuse_table(ret_status, &t, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_TABLE_FORM, CKV_D_ENUM, group->table_form,
                                    0, 0);
        t.needed = t.by_token ? rows : ((uint64_t)rows + per_block - 1) / per_block;
        t.ids = t.by_token ? (uint64_t)num_blocks * per_block : num_blocks;
        if (!fetch(request, &t, words->table, &fetched, &count, ret_status))
                return false;
        if (t.runs) {
                entries = malloc(CKV_MAX(t.needed, 1u) * sizeof(uint32_t));
                if (!entries)
                        return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                if (!expand(&t, fetched, count, entries, &count, ret_status))
                        return false;
        } else {
                entries = ckv_steal(&fetched);
        }
        if (count < t.needed)
                return refuse_table(ret_status, &t, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_TABLE, CKV_D_TABLE_SHORT, count, t.needed,
                                    rows);
        if (!check_ids(&t, entries, ret_status))
                return false;
        request->job->groups[index].table = (struct ckv_row_table){
                .entries = ckv_steal(&entries), .by_token = t.by_token, .tokens_per_block = per_block,
        };
        return true;
}
