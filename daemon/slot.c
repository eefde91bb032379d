/*
 * What a request writes to its control slot (proto/control.h), in the order in
 * which it becomes known: who and what before SCORING, the kept sets and the
 * number of steps before SELECTED.  The page is only written here and in
 * daemon/control.c; everything that a decision rests on stays in the request.
 *
 * Kept sets are written where somebody may need them: where the move can be
 * repaired, and where the answer says that they are there.
 */
#include "daemon/request.h"

#include "base/crc32c.h"
#include "base/fnv.h"
#include "base/limits.h"
#include "base/macros.h"
#include "daemon/answer_sets.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"
#include "kernels/steps.h"

#include <errno.h>
#include <string.h>

static struct ckv_control *control_of(const struct ckv_session *session) {
        return session->side ? ckv_side_control(session->side) : NULL;
}

bool ckv_slot_take(struct ckv_request *request, uint32_t number, enum ckv_field field, struct ckv_record_status *ret_status) {
        struct ckv_control *control = control_of(request->session);

        if (!control)
                return ckv_refuse(ret_status, CKV_CODE_NOT_FOUND, field, CKV_D_NO_CONTROL_PAGE, 0, 0, 0);
        switch (ckv_claim_take(&request->claim, control, number, request)) {
        case CKV_CONTROL_E_NO_SLOT:
                return ckv_refuse(ret_status, CKV_CODE_OUT_OF_RANGE, field, CKV_D_UNKNOWN_ID, number, 0, 0);
        case CKV_CONTROL_E_BUSY:
                return ckv_refuse(ret_status, CKV_CODE_CONFLICT, field, CKV_D_SLOT_BUSY, number, 0, 0);
        default:
                request->table_hash = CKV_FNV64_INIT;
                return true;
        }
}

bool ckv_request_claim(struct ckv_request *request, const struct ckv_record_compress *body, struct ckv_record_status *ret_status) {
        uint64_t word;

        if (body->control_slot == 0)
                return body->reply_form != CKV_REPLY_IN_SLOT ||
                       ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_CONTROL_SLOT, CKV_D_MISSING, 0, 0, 0);
        if (!ckv_slot_take(request, body->control_slot, CKV_F_COMPRESS_CONTROL_SLOT, ret_status))
                return false;
        request->claim.use = body->control_use;
        request->claim.phase = CKV_PHASE_SUBMITTED;
        word = ckv_claim_word(&request->claim);
        if (word == ckv_control_word(body->control_use, CKV_PHASE_CANCELLED))
                return ckv_refuse_cancelled(ret_status);
        if (word != ckv_control_word(body->control_use, CKV_PHASE_SUBMITTED))
                return ckv_refuse(ret_status, CKV_CODE_CONFLICT, CKV_F_COMPRESS_CONTROL_USE, CKV_D_CONTROL_WORD, body->control_slot,
                                  word >> 32, (uint32_t)word);
        return true;
}

/* has_steps() - can the move be finished by somebody else? */
static bool has_steps(const struct ckv_request *request) {
        /* rows that are pushed after the move are not where they belong when their step is counted */
        return request->claim.control && request->mode == CKV_MODE_IN_PLACE && !request->single_pass && request->job->mirror_count == 0;
}

bool ckv_request_stores_sets(const struct ckv_request *request) {
        /* those of a Repair are there */
        return !request->repairs && (has_steps(request) || (request->claim.control && request->reply_form == CKV_REPLY_IN_SLOT));
}

void ckv_slot_hash_table(struct ckv_request *request, const uint32_t *words, uint64_t count) {
        if (request->claim.control)
                request->table_hash = ckv_fnv64_words(request->table_hash, words, count);
}

bool ckv_slot_open(struct ckv_request *request) {
        struct ckv_control_slot *page = request->claim.page;
        const struct ckv_control_slot blank = { 0 };

        if (request->claim.control) {
                /* all but the word */
                memcpy(&page->request_id, &blank.request_id, sizeof(*page) - offsetof(struct ckv_control_slot, request_id));
                page->request_id = request->entry->id;
                page->generation = request->route.generation;
                page->table_hash = request->table_hash;
                page->deadline_ns = request->job->deadline_nsec;
                memcpy(page->boot_id, request->session->daemon->boot_id, sizeof(page->boot_id));
                page->cache_id = request->cache->id;
                page->mode = request->mode;
        }
        return ckv_slot_enter(request, CKV_PHASE_SCORING);
}

/* write_sets() - into the kept area; admission saw to room. Return: 0 or -ENOMEM. */
static int write_sets(struct ckv_request *request) {
        struct ckv_control_slot *page = request->claim.page;
        _cleanup_free_ struct ckv_set *sets = calloc((size_t)ckv_sets_most(request) + 1, sizeof(*sets));
        uint32_t *words = (void *)request->claim.kept, count, all = 0;
        size_t bytes;

        if (!sets)
                return -ENOMEM;
        for (uint32_t i = 0; i < request->group_count; i++) {
                count = ckv_sets_list(request, i, sets);
                for (uint32_t k = 0; k < count; k++)
                        words = ckv_set_write(&sets[k], words);
                all += count;
        }
        bytes = (size_t)((uint8_t *)words - request->claim.kept);
        assert(bytes <= request->claim.kept_bytes);
        page->set_count = all;
        page->kept_used = (uint32_t)bytes;
        page->kept_crc = ckv_crc32c(request->claim.kept, bytes);
        return 0;
}

bool ckv_slot_select(struct ckv_request *request, struct ckv_record_status *ret_status) {
        uint32_t steps;

        if (has_steps(request)) {
                steps = ckv_steps_count(request->job, 0, (uint32_t)CKV_LIMIT_STEPS);
                if (steps > CKV_LIMIT_STEPS)
                        return ckv_refuse(ret_status, CKV_CODE_TOO_MANY_STEPS, CKV_F_COMPRESS_SINGLE_PASS, CKV_D_TOO_MANY_STEPS,
                                          CKV_LIMIT_STEPS, 0, 0);
                request->claim.page->steps = steps;
                request->job->steps.count = steps;
                request->job->steps.done = (_Atomic uint32_t *)&request->claim.page->steps_done;
        }
        if (ckv_request_stores_sets(request) && write_sets(request))
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        return true;
}

void ckv_slot_code(const struct ckv_request *request, uint32_t code) {
        if (request->claim.control)
                request->claim.page->code = code;
}

bool ckv_slot_enter(struct ckv_request *request, enum ckv_phase phase) {
        if (request->claim.control && !ckv_claim_swap(&request->claim, phase))
                return false;
        request->phase = phase;
        return true;
}

void ckv_slot_refuse(struct ckv_session *session, const struct ckv_record_compress *body, uint32_t code) {
        struct ckv_control *control = control_of(session);

        if (control && body->control_slot)
                ckv_control_refuse(control, body->control_slot, body->control_use, code);
}
