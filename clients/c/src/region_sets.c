/*
 * Kept sets as words in shared memory (protocol.md 3, IN_REGION): for each set
 * six words and then its runs.  The daemon writes them, so they are copied and
 * checked before anybody believes them.  What the words do not hold is formed
 * here: single rows, and positions.
 */
#include "clients/c/src/client.h"
#include "proto/runs.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum { HEAD_WORDS = 6 };

bool chunkkv_region_set_next(const void *reply, uint64_t size, uint64_t *at, struct chunkkv_region_set *ret_set) {
        uint32_t head[HEAD_WORDS];
        uint64_t runs_at, kept;
        const uint8_t *bytes = reply;
        const uint32_t *runs;

        if (*at % sizeof(uint32_t) != 0 || *at > size || size - *at < sizeof(head))
                return false;
        memcpy(head, bytes + *at, sizeof(head));
        runs_at = *at + sizeof(head);
        if (head[5] > (size - runs_at) / sizeof(uint32_t))
                return false;
        runs = (const uint32_t *)(const void *)(bytes + runs_at);
        if (ckv_runs_check(runs, head[5], head[3], &kept, NULL) || kept != head[4])
                return false;
        *ret_set = (struct chunkkv_region_set){
                .group = head[0], .layer_first = head[1], .kv_head = head[2], .physical_before = head[3],
                .physical_len = head[4], .runs = runs, .run_count = head[5],
        };
        *at = runs_at + head[5] * sizeof(uint32_t);
        return true;
}

/* The positions of kept rows as runs, in the arena; the rows' own positions are those that @positions keeps. */
static uint32_t *positions_of(struct ckv__arena *arena, const uint32_t *runs, size_t run_count,
                              const uint32_t *positions, size_t position_count, size_t *ret_count) {
        /* each piece ends a kept range or a range of positions */
        uint32_t *ranges = ckv__arena_take(arena, run_count + position_count, sizeof(*ranges));
        uint32_t *encoded = ckv__arena_take(arena, run_count + position_count, sizeof(*encoded));
        uint32_t row = 0, first, count, place = 0, p_first = 0, p_count = 0, p_row = 0;
        size_t at = 0, p_at = 0, n = 0;

        if (!ranges || !encoded)
                return NULL;
        while (ckv_runs_next(runs, run_count, &at, &row, &first, &count)) {
                while (count > 0) {
                        uint32_t piece;

                        while (p_row + p_count <= first) {
                                p_row += p_count;
                                if (!ckv_runs_next(positions, position_count, &p_at, &place, &p_first, &p_count))
                                        return NULL;
                        }
                        piece = CKV_MIN(count, p_row + p_count - first);
                        ranges[2 * n] = p_first + (first - p_row);
                        ranges[2 * n + 1] = piece;
                        n++;
                        first += piece;
                        count -= piece;
                }
        }
        *ret_count = ckv_runs_encode(ranges, n, encoded);
        return encoded;
}

int ckv__set_fill(struct ckv__arena *arena, uint32_t reply_form, const Chunkkv__V1__GroupJob *job,
                  const struct chunkkv_region_set *from, struct chunkkv_set *set) {
        uint32_t *rows;

        *set = (struct chunkkv_set){ .layer_first = from->layer_first, .kv_head = from->kv_head };
        if (reply_form == CHUNKKV_REPLY_ROWS) {
                rows = ckv__arena_take(arena, from->physical_len, sizeof(*rows));
                if (!rows)
                        return -ENOMEM;
                set->row_count = chunkkv_runs_to_rows(from->runs, from->run_count, rows, from->physical_len);
                set->rows = rows;
        } else {
                set->runs = ckv__arena_words(arena, from->runs, from->run_count);
                set->run_count = from->run_count;
        }
        if (job->n_position_runs > 0) {
                set->position_runs = positions_of(arena, from->runs, from->run_count, job->position_runs,
                                                  job->n_position_runs, &set->position_run_count);
                if (!set->position_runs)
                        return -EPROTO;
        }
        return arena->failed ? -ENOMEM : 0;
}

int ckv__region_sets(struct ckv__arena *arena, const struct ckv__request *request, const Chunkkv__V1__GroupJob *job,
                     uint64_t *at, struct chunkkv_group_result *group, struct chunkkv_error *ret_error) {
        const struct chunkkv_memory *memory = &request->sets->memory;
        struct chunkkv_set *sets = ckv__arena_take(arena, group->set_count, sizeof(*sets));
        struct chunkkv_region_set set;
        int r;

        if (!sets)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for %zu sets", group->set_count);
        for (size_t i = 0; i < group->set_count; i++) {
                if (!chunkkv_region_set_next(memory->address, memory->size, at, &set) || set.group != group->group ||
                    set.physical_before != group->physical_before)
                        return ckv__fault(ret_error, -EPROTO, "runs", "set %zu of group %" PRIu32
                                          " in shared memory is malformed", i, group->group);
                r = ckv__set_fill(arena, request->reply_form, job, &set, &sets[i]);
                if (r)
                        return ckv__fault(ret_error, r, "", "set %zu of group %" PRIu32 ": %s", i, group->group,
                                          strerror(-r));
        }
        group->sets = sets;
        return 0;
}
