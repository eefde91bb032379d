/*
 * How CKV_STAGE_PLAN ended, told to the client: each outcome of a job becomes
 * a code, the field that it is about, and a sentence with the numbers of the
 * group at fault.
 */
#include "daemon/request.h"

#include "base/clock.h"
#include "base/macros.h"
#include "daemon/refuse.h"

bool ckv_plan_failed(const struct ckv_request *request, struct ckv_record_status *ret_status) {
        const struct ckv_job *job = request->job;
        const struct ckv_job_group *group = &job->groups[job->fail_group];
        uint32_t index = ckv_request_group_of(request, job->fail_group);
        uint64_t now = ckv_now_nsec();

        if (request->cancelled)
                return !ckv_refuse_cancelled(ret_status);
        switch (job->outcome) {
        case CKV_JOB_OK:
                return false;
        case CKV_JOB_CANCELLED:
                return !ckv_refuse_cancelled(ret_status);
        case CKV_JOB_EXPIRED:
                if (!ckv_timeline_came(&request->timeline))
                        return !ckv_refuse(ret_status, CKV_CODE_EXPIRED, CKV_F_COMPRESS_WAIT, CKV_D_NEVER_CAME,
                                           request->timeline.wait_value, atomic_load(request->timeline.wait), 0);
                return !ckv_refuse(ret_status, CKV_CODE_EXPIRED, CKV_F_DEADLINE, CKV_D_DEADLINE_PASSED,
                                   (now - CKV_MIN(now, job->deadline_nsec)) / CKV_NSEC_PER_USEC, 0, 0);
        case CKV_JOB_NONFINITE:
                return !ckv_refuse_at(ret_status, CKV_CODE_NONFINITE_SCORE, group->scores.in ? CKV_F_GROUP_SCORES_IN : CKV_F_NONE, index, 0,
                                      CKV_D_NONFINITE, job->fail_layer, job->fail_unit, 0);
        case CKV_JOB_BUDGET:
                return !ckv_refuse_at(ret_status, CKV_CODE_BUDGET_BELOW_PROTECTED,
                                      group->selection.max_tokens ? CKV_F_GROUP_MAX_TOKENS : CKV_F_GROUP_KEEP_RATIO, index, 0,
                                      CKV_D_BUDGET_UNDER_PROTECTED, group->budget.budget, group->budget.protected_rows, 0);
        case CKV_JOB_UNSUPPORTED:
                return !ckv_refuse_at(ret_status, CKV_CODE_UNSUPPORTED, CKV_F_GROUP_PHYSICAL_LEN, index, 0, CKV_D_TOO_SHORT,
                                      group->selection.rows, group->policy.window, group->policy.chunk);
        case CKV_JOB_WINDOW_OVER_BUDGET:
                return !ckv_refuse_at(ret_status, CKV_CODE_INVALID_ARGUMENT,
                                      group->selection.keep_ratio ? CKV_F_GROUP_KEEP_RATIO : CKV_F_GROUP_MAX_TOKENS, index, 0,
                                      CKV_D_BUDGET_UNDER_WINDOW, group->budget.budget, group->policy.window, 0);
        case CKV_JOB_SCORES_SIZE:
                return !ckv_refuse_at(ret_status, CKV_CODE_INVALID_ARGUMENT,
                                      group->scores.in ? CKV_F_GROUP_SCORES_IN : CKV_F_GROUP_SCORES_OUT, index, 0, CKV_D_SCORES_SIZE,
                                      job->fail_need, group->scores.in ? group->scores.in_count * sizeof(float) : group->scores.out_bytes,
                                      0);
        case CKV_JOB_BAD_LSE:
                return !ckv_refuse(ret_status, CKV_CODE_BAD_LSE, CKV_F_QUERIES_LSE, CKV_D_BAD_LSE, job->fail_layer, job->fail_unit, 0);
        case CKV_JOB_NOT_ON_DEVICE:
                return !ckv_refuse_at(ret_status, CKV_CODE_UNSUPPORTED, CKV_F_NONE, index, 0,
                                      job->fail_need > 0 ? CKV_D_DEVICE_SCRATCH : CKV_D_NOT_ON_DEVICE, job->fail_need, 0, 0);
        case CKV_JOB_DEVICE_FAILED:
                ckv_refuse(ret_status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_DEVICE_FAILED, (uint32_t)job->fail_code, 0, 0);
                ret_status->driver_code = job->fail_code;
                return true;
        case CKV_JOB_DEVICE_LOST:
                ckv_refuse(ret_status, CKV_CODE_DEVICE_ERROR, CKV_F_NONE, CKV_D_DEVICE_LOST, 0, 0, 0);
                ret_status->driver_code = job->fail_code;
                return true;
        case CKV_JOB_NO_MEMORY:
                break;
        }
        ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        ret_status->retry_after_ms = CKV_RETRY_MS;
        return true;
}
