/*
 * A control slot, read as if a stranger had written it.  It may have been: the
 * page is the client's memory, and what a dead daemon left there may be half
 * written.  So it is copied once, all of it, and only the copy is judged; a
 * set that passes names rows of this job only, keeps its protected prefix, and
 * moves every row to the front, whoever wrote it.  What a wrong but well-formed
 * slot can do is what the tenant could do to its cache itself.
 *
 * Sets lie in the order of daemon/answer_sets.h: group by group, layer by
 * layer, and a layer that keeps what the one before it keeps is not named.
 */
#include "daemon/repair_slot.h"

#include "base/crc32c.h"
#include "base/limits.h"
#include "base/macros.h"
#include "daemon/admit.h"
#include "daemon/answer_sets.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"
#include "kernels/steps.h"
#include "proto/runs.h"

#include <errno.h>
#include <string.h>

enum { HEAD_WORDS = sizeof(struct ckv_set_head) / sizeof(uint32_t) };

void ckv_slot_copy_deinit(struct ckv_slot_copy *copy) {
        free(copy->words);
        *copy = (struct ckv_slot_copy){ 0 };
}

static bool refuse(struct ckv_record_status *status, enum ckv_code code, enum ckv_detail detail, uint64_t a, uint64_t b, uint64_t c) {
        return ckv_refuse(status, code, CKV_F_REPAIR_CONTROL_SLOT, detail, a, b, c);
}

/* torn() - the same where rows have moved and cannot be gone on with */
static bool torn(struct ckv_record_status *status, enum ckv_code code, enum ckv_detail detail, uint64_t a, uint64_t b, uint64_t c) {
        (void)refuse(status, code, detail, a, b, c);
        status->cache = CKV_CACHE_TORN;
        return false;
}

/* judge_state() - is it a slot that Repair is for? */
static bool judge_state(const struct ckv_request *request, const struct ckv_control_slot *slot, uint64_t target,
                        struct ckv_record_status *status) {
        const uint8_t *boot_id = request->session->daemon->boot_id;
        uint32_t phase = (uint32_t)slot->word;

        if (phase != CKV_PHASE_COMMITTING && phase != CKV_PHASE_TORN && phase != CKV_PHASE_DONE)
                return refuse(status, CKV_CODE_CONFLICT, CKV_D_SLOT_PHASE, phase, 0, 0);
        if (slot->request_id != target)
                return ckv_refuse(status, CKV_CODE_CONFLICT, CKV_F_REPAIR_TARGET, CKV_D_SLOT_REQUEST, slot->request_id, target, 0);
        if (phase != CKV_PHASE_DONE && memcmp(slot->boot_id, boot_id, sizeof(slot->boot_id)) == 0) {
                (void)refuse(status, CKV_CODE_CONFLICT, CKV_D_SLOT_BOOT, 0, 0, 0);
                status->cache = phase == CKV_PHASE_TORN ? CKV_CACHE_TORN : CKV_CACHE_PENDING;
                return false;
        }
        /* rows that were lost are not in the cache any more, or not as they were */
        if (phase == CKV_PHASE_TORN && (slot->code == CKV_CODE_REGION_LOST || slot->code == CKV_CODE_DEVICE_ERROR))
                return torn(status, (enum ckv_code)slot->code, CKV_D_SLOT_PHASE, phase, 0, 0);
        if (slot->mode != CKV_MODE_IN_PLACE || (phase != CKV_PHASE_DONE && slot->steps == 0))
                return torn(status, CKV_CODE_CONFLICT, CKV_D_SLOT_MODE, 0, 0, 0);
        if (slot->set_count == 0 || slot->kept_used > request->claim.kept_bytes || slot->kept_used % sizeof(uint32_t) ||
            slot->set_count > slot->kept_used / sizeof(struct ckv_set_head))
                return torn(status, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_AREA, slot->kept_used, slot->set_count,
                            request->claim.kept_bytes);
        return true;
}

bool ckv_slot_read(const struct ckv_request *request, uint64_t target, struct ckv_slot_copy *ret_copy,
                   struct ckv_record_status *ret_status) {
        struct ckv_control_slot slot;
        uint32_t *words;

        /* the word first: what was written before it is seen with it */
        slot.word = ckv_claim_word(&request->claim);
        memcpy(&slot.request_id, &request->claim.page->request_id, sizeof(slot) - offsetof(struct ckv_control_slot, request_id));
        if (!judge_state(request, &slot, target, ret_status))
                return false;
        words = malloc(CKV_MAX(slot.kept_used, 1u));
        if (!words)
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        memcpy(words, request->claim.kept, slot.kept_used);
        *ret_copy = (struct ckv_slot_copy){ slot, words };
        if (ckv_crc32c(words, slot.kept_used) != slot.kept_crc)
                return torn(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_CRC, 0, 0, 0);
        return true;
}

/* The sets of a slot on their way into the job. */
struct reader {
        const struct ckv_slot_copy *copy;
        const uint32_t *at, *end;
        uint32_t set;                   /* index of the set at @at */
        /* of the group that is being read */
        uint32_t rows, prefix;
        const uint32_t *block;          /* sets of the layer that was named last: one for each head; NULL: none yet */
        uint32_t block_heads;
};

/* is_next() - does the next set begin with these numbers? */
static bool is_next(const struct reader *reader, uint32_t group, uint32_t layer_first, uint32_t kv_head, struct ckv_set_head *ret_head) {
        if (reader->set >= reader->copy->slot.set_count || reader->end - reader->at < HEAD_WORDS)
                return false;
        memcpy(ret_head, reader->at, sizeof(*ret_head));
        return ret_head->group == group && ret_head->layer_first == layer_first && ret_head->kv_head == kv_head;
}

/* judge_set() - the next set: complete, in range, summing up, keeping what it must */
static bool judge_set(const struct reader *reader, const struct ckv_job_group *part, const struct ckv_set_head *head) {
        const uint32_t *runs = reader->at + HEAD_WORDS;
        uint64_t kept;

        if (head->run_words > (uint64_t)(reader->end - runs) || head->physical_before != reader->rows ||
            ckv_runs_check(runs, head->run_words, reader->rows, &kept, NULL) || kept != head->physical_len)
                return false;
        if (part->budget.kept_all != CKV_DROPPED && kept != reader->rows)
                return false;
        return reader->prefix == 0 || (head->run_words > 1 && runs[0] == 0 && runs[1] >= reader->prefix);
}

/*
 * read_layer() - the sets that are named for a layer, or else those of the layer before
 *
 * Return: true: reader->block names what the layer keeps.
 */
static bool read_layer(struct reader *reader, const struct ckv_job_group *part, uint32_t layer) {
        uint32_t most = part->policy.heads == CKV_HEADS_EACH && !part->given ? part->kv_heads : 1, heads = 0;
        const uint32_t *first = reader->at;
        struct ckv_set_head head;

        while (heads < most && is_next(reader, part->number, part->layers[layer].number, heads, &head)) {
                if (!judge_set(reader, part, &head))
                        return false;
                reader->at += HEAD_WORDS + head.run_words;
                reader->set++;
                heads++;
        }
        if (heads == 0)
                return reader->block && (reader->block_heads == 1 || reader->block_heads == most);
        reader->block = first;
        reader->block_heads = heads;
        return heads == 1 || heads == most;
}

/* to_kept() - runs of a set that set_at() found right. Return: 0 or -ENOMEM. */
static int to_kept(const uint32_t *set, struct ckv_kept *ret_kept) {
        struct ckv_set_head head;
        uint32_t row = 0, first, length, dst = 0;
        size_t at = 0, n = 0;
        struct ckv_run *runs;

        memcpy(&head, set, sizeof(head));
        runs = calloc((size_t)head.run_words / 2 + 1, sizeof(*runs));
        if (!runs)
                return -ENOMEM;
        while (ckv_runs_next(set + HEAD_WORDS, head.run_words, &at, &row, &first, &length)) {
                runs[n++] = (struct ckv_run){ first, length, dst };
                dst += length;
        }
        *ret_kept = (struct ckv_kept){ .runs = runs, .run_count = n, .count = dst };
        return 0;
}

/* block_to_kept() - the sets of one layer, @heads of them, one after the other. Return: 0 or -ENOMEM. */
static int block_to_kept(const uint32_t *block, uint32_t heads, struct ckv_kept *ret_kept) {
        struct ckv_set_head head;
        int r = 0;

        for (uint32_t k = 0; k < heads && r == 0; k++) {
                memcpy(&head, block, sizeof(head));
                r = to_kept(block, &ret_kept[k]);
                block += HEAD_WORDS + head.run_words;
        }
        return r;
}

static void drop_kept(struct ckv_job_group *part) {
        for (uint32_t k = 0; k < part->kept_count; k++)
                ckv_kept_deinit(&part->kept[k]);
        free(part->kept);
        part->kept = NULL;
        part->kept_count = 0;
}

/* adopt_part() - the sets of all layers of one part; one copy where all keep the same */
static bool adopt_part(struct reader *reader, struct ckv_job_group *part, struct ckv_record_status *status) {
        _cleanup_free_ const uint32_t **blocks = calloc(part->layer_count, sizeof(*blocks));
        bool same = true;

        if (!blocks)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        for (uint32_t layer = 0; layer < part->layer_count; layer++) {
                uint32_t heads = reader->block_heads;

                if (!read_layer(reader, part, layer) || (layer > 0 && heads != reader->block_heads))
                        return torn(status, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET, reader->set, 0, 0);
                blocks[layer] = reader->block;
                same = same && blocks[layer] == blocks[0];
        }
        drop_kept(part);
        part->kept_heads = reader->block_heads;
        part->kept_count = (same ? 1 : part->layer_count) * part->kept_heads;
        part->kept = calloc(part->kept_count, sizeof(*part->kept));
        if (!part->kept) {
                part->kept_count = 0;
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        }
        for (uint32_t k = 0; k < part->kept_count; k += part->kept_heads)
                if (block_to_kept(blocks[k / part->kept_heads], part->kept_heads, &part->kept[k]))
                        return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        return true;
}

/* judge_steps() - the batches are made again, and must be as many as the slot says */
static bool judge_steps(const struct ckv_request *request, const struct ckv_control_slot *slot, struct ckv_record_status *status) {
        uint32_t steps = ckv_steps_count(request->job, slot->batch_rows, (uint32_t)CKV_LIMIT_STEPS);

        if ((uint32_t)slot->word == CKV_PHASE_DONE)
                return true;
        if (steps != slot->steps || steps > CKV_LIMIT_STEPS || slot->steps_done > steps)
                return torn(status, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_STEPS, slot->steps, slot->steps_done, steps);
        return true;
}

bool ckv_slot_adopt(struct ckv_request *request, const struct ckv_record_group *groups, const struct ckv_slot_copy *copy,
                    struct ckv_record_status *ret_status) {
        struct reader reader = { .copy = copy, .at = copy->words, .end = copy->words + copy->slot.kept_used / sizeof(uint32_t) };

        if (copy->slot.table_hash != request->table_hash) {
                ckv_refuse(ret_status, CKV_CODE_CONFLICT, CKV_F_REPAIR_JOB, CKV_D_SLOT_TABLE, 0, 0, 0);
                ret_status->cache = CKV_CACHE_TORN_REPAIRABLE;
                return false;
        }
        for (uint32_t i = 0; i < request->group_count; i++) {
                reader.rows = groups[i].physical_len;
                reader.prefix = ckv_prefix_rows(request, &groups[i]);
                reader.block = NULL;
                reader.block_heads = 0;
                for (uint32_t k = 0; k < request->groups[i].part_count; k++)
                        if (!adopt_part(&reader, ckv_request_part(request, i, k), ret_status))
                                return false;
        }
        if (reader.set != copy->slot.set_count || reader.at != reader.end)
                return torn(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET, reader.set, 0, 0);
        return judge_steps(request, &copy->slot, ret_status);
}
