/*
 * The window of request ids.  Ids are expected to grow; one that is more than
 * a window behind the highest seen is refused, as IPsec's anti-replay does, so
 * that "seen" needs no more memory than the window.  Slot = id modulo length:
 * two ids of one slot are at least a window apart, hence the older one is out
 * of the window anyway.
 *
 * Kept sets are large and rarely asked for again, so only the newest few
 * answers keep them; an older answer keeps its state, counts and digest.  They
 * are charged to their user, but as what may go at any time: they are never the
 * reason for a refusal.
 */
#include "daemon/window.h"

#include "base/limits.h"
#include "base/macros.h"

#include <errno.h>
#include <string.h>

enum { AHEAD_MOST = 64 };       /* ids that a client may have given out and not sent, or that are on their way */

void ckv_answer_deinit(struct ckv_answer *answer) {
        free(answer->attachment);
        *answer = (struct ckv_answer){ 0 };
}

static void entry_clear(struct ckv_window_entry *entry) {
        ckv_evictable_deinit(&entry->sets);
        if (entry->answer) {
                ckv_answer_deinit(entry->answer);
                free(entry->answer);
        }
        *entry = (struct ckv_window_entry){ 0 };
}

uint64_t ckv_window_lowest(const struct ckv_window *window) {
        return window->highest >= CKV_LIMIT_STORED_OUTCOMES ? window->highest - CKV_LIMIT_STORED_OUTCOMES + 1 : 1;
}

int ckv_window_enter(struct ckv_window *window, uint64_t id, uint64_t body_digest, struct ckv_window_entry **ret_entry) {
        struct ckv_window_entry *entry;
        struct ckv_answer *answer;

        if (!window->entries) {
                window->entries = calloc(CKV_LIMIT_STORED_OUTCOMES, sizeof(*window->entries));
                if (!window->entries)
                        return -ENOMEM;
        }
        if (id < ckv_window_lowest(window))
                return CKV_WINDOW_E_OLD;
        entry = &window->entries[id % CKV_LIMIT_STORED_OUTCOMES];
        if (entry->id == id) {
                if (entry->body_digest != body_digest && !entry->barred)
                        return CKV_WINDOW_E_CONFLICT;
                *ret_entry = entry;
                return CKV_WINDOW_E_REPEAT;
        }
        if (entry->running || entry->imported)
                return CKV_WINDOW_E_BUSY;
        answer = calloc(1, sizeof(*answer));
        if (!answer)
                return -ENOMEM;
        entry_clear(entry);
        entry->answer = answer;
        entry->id = id;
        entry->body_digest = body_digest;
        window->highest = CKV_MAX(window->highest, id);
        *ret_entry = entry;
        return 0;
}

int ckv_window_bar(struct ckv_window *window, uint64_t id, struct ckv_window_entry **ret_entry) {
        int r;

        if (id > window->highest && id - window->highest > AHEAD_MOST)
                return CKV_WINDOW_E_OLD;
        r = ckv_window_enter(window, id, 0, ret_entry);
        if (r == 0)
                (*ret_entry)->barred = true;
        return r;
}

struct ckv_window_entry *ckv_window_find(struct ckv_window *window, uint64_t id) {
        struct ckv_window_entry *entry;

        if (!window->entries || id == 0)
                return NULL;
        entry = &window->entries[id % CKV_LIMIT_STORED_OUTCOMES];
        return entry->id == id && (entry->running || entry->answered) ? entry : NULL;
}

void ckv_window_forget(struct ckv_window_entry *entry) {
        entry_clear(entry);
}

static bool has_sets(const struct ckv_answer *answer) {
        return answer->record.body.result.answer == CKV_ANSWER_COMPRESSED && answer->record.body.result.u.compressed.set_count > 0;
}

/* drop_sets() - keep group results, policies and kept mass, which lie first, and let the sets and their words go */
static void drop_sets(struct ckv_answer *answer) {
        struct ckv_record_result *result = &answer->record.body.result;
        uint8_t *shorter;
        uint32_t bytes;

        if (!has_sets(answer))
                return;
        bytes = (uint32_t)(result->u.compressed.group_count * sizeof(struct ckv_record_group_result) +
                           result->u.compressed.policy_count * sizeof(struct ckv_record_policy) +
                           result->u.compressed.mass_count * sizeof(float));
        for (uint32_t i = 0; i < result->u.compressed.group_count; i++) {
                struct ckv_record_group_result group;
                uint8_t *at = answer->attachment + i * sizeof(group);

                memcpy(&group, at, sizeof(group));
                group.sets_sent = 0;
                memcpy(at, &group, sizeof(group));
        }
        result->u.compressed.set_count = 0;
        result->u.compressed.word_count = 0;
        shorter = realloc(answer->attachment, bytes);
        if (shorter)
                answer->attachment = shorter;
        answer->bytes = bytes;
}

/* let_go() - the sets of one answer, and what was charged for them */
static void let_go(struct ckv_window_entry *entry) {
        ckv_evictable_deinit(&entry->sets);
        drop_sets(entry->answer);
}

static void on_evict(struct ckv_evictable *sets) {
        let_go((struct ckv_window_entry *)(void *)((uint8_t *)sets - offsetof(struct ckv_window_entry, sets)));
}

void ckv_window_store(struct ckv_window *window, struct ckv_window_entry *entry, struct ckv_answer *answer) {
        struct ckv_window_entry *oldest;

        entry->running = NULL;
        ckv_evictable_deinit(&entry->sets);
        ckv_answer_deinit(entry->answer);
        *entry->answer = *answer;
        *answer = (struct ckv_answer){ 0 };
        entry->answered = true;
        if (!has_sets(entry->answer))
                return;
        static_assert(CKV_ARRAY_SIZE(window->whole) == 8, "as CKV_LIMIT_STORED_SETS says");
        oldest = ckv_window_find(window, window->whole[window->whole_next]);
        if (oldest && oldest->answered && oldest != entry)
                let_go(oldest);
        window->whole[window->whole_next] = entry->id;
        window->whole_next = (window->whole_next + 1) % CKV_ARRAY_SIZE(window->whole);
        if (window->tenant && ckv_evictable_init(&entry->sets, window->tenant, entry->answer->bytes, on_evict))
                drop_sets(entry->answer);
}

void ckv_window_deinit(struct ckv_window *window) {
        if (window->entries)
                for (uint32_t i = 0; i < CKV_LIMIT_STORED_OUTCOMES; i++)
                        entry_clear(&window->entries[i]);
        free(window->entries);
        *window = (struct ckv_window){ 0 };
}
