/*
 * Repair: a daemon died in a move; its successor goes on from the count in the
 * control slot.  The client has attached the same page, registered its memory
 * again, and sends the job once more.
 *
 * Everything is judged before anything is written: the job like any other, the
 * slot as if a stranger had written it.  Then the move runs through the same
 * commit as every move, from step steps_done on, which may be done in part; and
 * that is what its order of steps is for (kernels/steps.h).  A slot that says
 * DONE is answered from: then only the answer was lost.
 */
#include "daemon/request.h"

#include "base/macros.h"
#include "base/points.h"
#include "daemon/admit.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"
#include "daemon/repair_slot.h"
#include "kernels/select.h"

/* recall_budgets() - what the plan found out besides the sets; the same again, since no score enters into it */
static bool recall_budgets(const struct ckv_request *request, struct ckv_record_status *status) {
        for (uint32_t i = 0; i < request->job->group_count; i++) {
                struct ckv_job_group *part = &request->job->groups[i];
                int r = part->given ? 0 : ckv_select_budget(&part->selection, NULL, &part->budget);

                if (r < 0)
                        return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                if (r > 0)
                        part->budget = (struct ckv_budget){ 0 };
        }
        return true;
}

/* is_mapped() - moves of memory that is copied have no steps, so none was counted that this job could go on from */
static bool is_mapped(const struct ckv_request *request, struct ckv_record_status *status) {
        return request->job->mirror_count == 0 ||
               ckv_refuse(status, CKV_CODE_UNSUPPORTED, CKV_F_REPAIR_JOB, CKV_D_SHM_REPAIR, 0, 0, 0);
}

/* admit() - the job and its slot. Return: false with @status; nothing is written to cache or slot. */
static bool admit(struct ckv_request *request, const struct ckv_record *record, const uint8_t *attachment, uint32_t bytes,
                  struct ckv_slot_copy *ret_copy, struct ckv_record_status *status) {
        const struct ckv_record_repair *repair = (const void *)attachment;
        const uint8_t *job = attachment + sizeof(*repair);

        if (bytes < sizeof(*repair))
                return ckv_refuse(status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_INTERNAL, 0, 0, 0);
        bytes -= (uint32_t)sizeof(*repair);
        if (record->body.compress.mode != CKV_MODE_IN_PLACE)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_REPAIR_JOB, CKV_D_SLOT_MODE, 0, 0, 0);
        return ckv_slot_take(request, record->body.compress.control_slot, CKV_F_REPAIR_CONTROL_SLOT, status) &&
               ckv_admit(request, record, job, bytes, status) && is_mapped(request, status) &&
               ckv_slot_read(request, repair->target_request_id, ret_copy, status) &&
               ckv_request_charge(request, bytes + 4 * (uint64_t)ret_copy->slot.kept_used, status) &&
               recall_budgets(request, status) && ckv_slot_adopt(request, (const void *)job, ret_copy, status);
}

bool ckv_repair_start(struct ckv_session *session, const struct ckv_route *route, const struct ckv_record *record,
                      const uint8_t *attachment, uint32_t bytes, struct ckv_window_entry *entry,
                      struct ckv_record_status *ret_status) {
        struct ckv_request *request = ckv_request_new(session, route, entry, ret_status);
        _cleanup_(ckv_slot_copy_deinit) struct ckv_slot_copy copy = { 0 };
        bool done;

        if (!request)
                return false;
        request->repairs = true;
        if (!admit(request, record, attachment, bytes, &copy, ret_status)) {
                (void)ckv_request_intact(request, ret_status);
                ckv_request_free(request);
                return false;
        }
        CKV_POINT(repair_checked);
        ckv_request_link(request);
        done = (uint32_t)copy.slot.word == CKV_PHASE_DONE;
        request->claim.use = (uint32_t)(copy.slot.word >> 32);
        request->claim.phase = (uint32_t)copy.slot.word;
        request->phase = CKV_PHASE_SUBMITTED;
        request->job->steps = (struct ckv_job_steps){
                .batch_rows = copy.slot.batch_rows, .count = copy.slot.steps, .first = done ? copy.slot.steps : copy.slot.steps_done,
                .done = (_Atomic uint32_t *)&request->claim.page->steps_done,
        };
        ckv_request_commit(request);
        return true;
}
