/*
 * One Policy: every field by the table policy.def.  What a profile forbids,
 * and what this build has, is for ckv_policy_resolve() in the core.
 */
#include "daemon/gate/check.h"

#include "base/limits.h"

#include <math.h>

/* check_optional() - a number whose 0 means "not given" */
static bool check_optional(struct ckv_check *check, struct ckv_at at, uint64_t value, uint64_t low, uint64_t high) {
        return value == 0 || ckv_check_range(check, at, value, low, high);
}

static bool check_real(struct ckv_check *check, struct ckv_at at, double value) {
        if (isfinite(value) && value >= 0)
                return true;
        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_FINITE, 0, 0, 0);
}

bool ckv_check_policy(struct ckv_check *check, const Chunkkv__V1__Policy *policy, size_t index, size_t policy_index,
                      struct ckv_record_policy *record) {
        *record = (struct ckv_record_policy){ 0 };

#define AT(NAME) ckv_at(CKV_F_POLICY_##NAME, index, policy_index)
#define ENUM(NAME, name) \
        if (!ckv_check_enum(check, AT(NAME), &chunkkv__v1__##name##__descriptor, (int)policy->name, false)) \
                return false; \
        record->name = (uint8_t)policy->name;
#define NUMBER(NAME, name, low, high) \
        if (!check_optional(check, AT(NAME), policy->name, (low), (high))) \
                return false; \
        record->name = policy->name;
#define COUNT(NAME, name, high) \
        if (policy->name) { \
                if (!ckv_check_range(check, AT(NAME), policy->name->value, 0, (high))) \
                        return false; \
                record->given |= CKV_RECORD_GIVEN_##NAME; \
                record->name = policy->name->value; \
        }
#define REAL(NAME, name) \
        if (!check_real(check, AT(NAME), policy->name)) \
                return false; \
        record->name = policy->name;
#include "daemon/gate/policy.def"
#undef ENUM
#undef NUMBER
#undef COUNT
#undef REAL

        if (policy->pool_size != 0 && policy->pool_size % 2 == 0)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, AT(POOL_SIZE), CKV_D_ODD, policy->pool_size,
                                        0, 0);
#undef AT
        return true;
}
