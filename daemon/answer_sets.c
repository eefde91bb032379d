/*
 * Kept sets, from the plan of a job to words.  A group of the request may be
 * several groups of the job (a part for each policy), so sets are listed over
 * all layers of all its parts; a set is named again only where it changes.
 * Where the words go (message, region, control page) is not this file's matter.
 */
#include "daemon/answer_sets.h"

#include "base/fnv.h"
#include "base/macros.h"
#include "daemon/admit.h"

#include <string.h>

uint32_t ckv_sets_most(const struct ckv_request *request) {
        uint32_t most = 0;

        for (uint32_t i = 0; i < request->job->group_count; i++)
                most += request->job->groups[i].kept_count;
        return most;
}

static bool same_kept(const struct ckv_kept *a, const struct ckv_kept *b) {
        return a == b || (a->run_count == b->run_count &&
                          (a->run_count == 0 || memcmp(a->runs, b->runs, a->run_count * sizeof(*a->runs)) == 0));
}

/* same_sets() - does a layer keep, in every head, what @last sets in front of it name? */
static bool same_sets(const struct ckv_job_group *part, uint32_t layer, const struct ckv_set *sets, uint32_t last) {
        if (last != part->kept_heads)
                return false;
        for (uint32_t head = 0; head < last; head++)
                if (!same_kept(sets[head].kept, ckv_job_kept(part, layer, head)))
                        return false;
        return true;
}

uint32_t ckv_sets_list(const struct ckv_request *request, uint32_t index, struct ckv_set *ret_sets) {
        uint32_t n = 0, last = 0;       /* last: sets of the newest layer that is listed */

        for (uint32_t k = 0; k < request->groups[index].part_count; k++) {
                const struct ckv_job_group *part = ckv_request_part(request, index, k);

                for (uint32_t layer = 0; layer < part->layer_count; layer++) {
                        if (same_sets(part, layer, ret_sets + n - last, last))
                                continue;
                        for (uint32_t head = 0; head < part->kept_heads; head++)
                                ret_sets[n++] = (struct ckv_set){
                                        .group = part, .layer_first = part->layers[layer].number, .kv_head = head,
                                        .kept = ckv_job_kept(part, layer, head),
                                };
                        last = part->kept_heads;
                }
        }
        return n;
}

static struct ckv_set_head head_of(const struct ckv_set *set) {
        return (struct ckv_set_head){
                .group = set->group->number, .layer_first = set->layer_first, .kv_head = set->kv_head,
                .physical_before = set->group->selection.rows, .physical_len = set->kept->count,
                .run_words = (uint32_t)(2 * set->kept->run_count),
        };
}

uint64_t ckv_set_words(const struct ckv_set *set) {
        return sizeof(struct ckv_set_head) / sizeof(uint32_t) + 2 * set->kept->run_count;
}

uint32_t *ckv_set_write(const struct ckv_set *set, uint32_t *words) {
        struct ckv_set_head head = head_of(set);

        memcpy(words, &head, sizeof(head));
        words += sizeof(head) / sizeof(*words);
        return words + ckv_set_write_runs(set->kept, words);
}

uint64_t ckv_set_digest(uint64_t digest, const struct ckv_set *set) {
        struct ckv_set_head head = head_of(set);
        uint32_t end = 0;

        digest = ckv_fnv64(digest, &head, sizeof(head));
        for (size_t i = 0; i < set->kept->run_count; i++) {
                uint32_t pair[2] = { set->kept->runs[i].src - end, set->kept->runs[i].len };

                digest = ckv_fnv64_words(digest, pair, CKV_ARRAY_SIZE(pair));
                end = set->kept->runs[i].src + set->kept->runs[i].len;
        }
        return digest;
}

uint32_t ckv_set_write_runs(const struct ckv_kept *kept, uint32_t *words) {
        uint32_t end = 0, n = 0;

        for (size_t i = 0; i < kept->run_count; i++) {
                words[n++] = kept->runs[i].src - end;
                words[n++] = kept->runs[i].len;
                end = kept->runs[i].src + kept->runs[i].len;
        }
        return n;
}

uint32_t ckv_set_write_position_runs(const struct ckv_kept *kept, const uint32_t *positions, uint32_t *words) {
        uint32_t end = 0, n = 0;
        bool open = false;

        for (size_t i = 0; i < kept->run_count; i++)
                for (uint32_t k = 0; k < kept->runs[i].len; k++) {
                        uint32_t position = positions[kept->runs[i].src + k];

                        if (open && position == end) {
                                if (words)
                                        words[n - 1]++;
                        } else {
                                if (words) {
                                        words[n] = position - end;
                                        words[n + 1] = 1;
                                }
                                n += 2;
                                open = true;
                        }
                        end = position + 1;
                }
        return n;
}
