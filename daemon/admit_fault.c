/*
 * What kernels/policy.h finds wrong, as the path of a field and a sentence that
 * says what to do instead.  kernels/ names parameters by number and knows no
 * wire; here the two meet.
 */
#include "daemon/admit.h"

#include "base/macros.h"
#include "daemon/refuse.h"

static_assert((int)CKV_F_POLICY_LAYER_REDUCE - (int)CKV_F_POLICY_PROFILE == (int)CKV_FIELD_LAYER_REDUCE - (int)CKV_FIELD_PROFILE,
              "proto/fields.def lists the fields of a policy in the order of enum ckv_policy_field");
static_assert((int)CKV_F_POLICY_GROUP_HEADS - (int)CKV_F_POLICY_PROFILE == (int)CKV_FIELD_GROUP_HEADS - (int)CKV_FIELD_PROFILE,
              "the same, half way");

/* Parameters that are legal alone. A row holds for the field at fault and the one that it collides with. */
static const struct {
        enum ckv_policy_field field, other;
        uint64_t other_value;           /* 0: any */
        enum ckv_detail detail;
} collisions[] = {
        { CKV_FIELD_UNIT_REDUCE, CKV_FIELD_SELECTOR, CKV_SELECTOR_CHUNK_AT, CKV_D_CHUNK_AT_SUM },
        { CKV_FIELD_SCORER, CKV_FIELD_SELECTOR, CKV_SELECTOR_H2O, CKV_D_H2O_SCORER },
        { CKV_FIELD_WINDOW_REDUCE, CKV_FIELD_SELECTOR, CKV_SELECTOR_H2O, CKV_D_H2O_REDUCE },
        { CKV_FIELD_RECENT, CKV_FIELD_SELECTOR, CKV_SELECTOR_H2O, CKV_D_H2O_RECENT },
        { CKV_FIELD_KEEP_RATIO, CKV_FIELD_SELECTOR, CKV_SELECTOR_H2O, CKV_D_H2O_BUDGET },
        { CKV_FIELD_MAX_TOKENS, CKV_FIELD_SELECTOR, CKV_SELECTOR_H2O, CKV_D_H2O_BUDGET },
        { CKV_FIELD_HEAVY, CKV_FIELD_SELECTOR, 0, CKV_D_H2O_ONLY },
        { CKV_FIELD_RECENT_PART, CKV_FIELD_SELECTOR, 0, CKV_D_H2O_ONLY },
        { CKV_FIELD_LAYERS, CKV_FIELD_SELECTOR, CKV_SELECTOR_PAGE, CKV_D_PAGE_LAYERS },
        { CKV_FIELD_FILL, CKV_FIELD_SELECTOR, CKV_SELECTOR_PAGE, CKV_D_PAGE_FILL },
        { CKV_FIELD_PAGE, CKV_FIELD_SELECTOR, 0, CKV_D_PAGE_ONLY },
        { CKV_FIELD_LAYER_REDUCE, CKV_FIELD_LAYERS, 0, CKV_D_TOP4_LAYERS },
        { CKV_FIELD_BETA, CKV_FIELD_LAYERS, 0, CKV_D_BETA_LAYERS },
        { CKV_FIELD_HEADS, CKV_FIELD_LAYERS, 0, CKV_D_EACH_LAYERS },
        { CKV_FIELD_HEADS, CKV_FIELD_SELECTOR, CKV_SELECTOR_STREAMING, CKV_D_EACH_STREAMING },
        { CKV_FIELD_FILL, CKV_FIELD_HEADS, 0, CKV_D_EACH_FILL },
        { CKV_FIELD_SCORER, CKV_FIELD_WINDOW_REDUCE, 0, CKV_D_MAX_ROWS_SCORER },
        { CKV_FIELD_NORM, CKV_FIELD_WINDOW_REDUCE, 0, CKV_D_MAX_ROWS_NORM },
        { CKV_FIELD_VOTE_ROWS, CKV_FIELD_WINDOW_REDUCE, 0, CKV_D_MAX_ROWS_ONLY },
        { CKV_FIELD_SCORER, CKV_FIELD_CONTRAST_END, 0, CKV_D_CONTRAST_SCORER },
        { CKV_FIELD_SCORER, CKV_FIELD_MUTE, 0, CKV_D_MUTE_SCORER },
        { CKV_FIELD_SCORER, CKV_FIELD_POOL, 0, CKV_D_LEAK_SCORER },
        { CKV_FIELD_CONTRAST_FIRST, CKV_FIELD_CONTRAST_END, 0, CKV_D_CONTRAST_BOTH },
        { CKV_FIELD_CONTRAST_END, CKV_FIELD_CONTRAST_FIRST, 0, CKV_D_CONTRAST_BOTH },
};

static enum ckv_detail detail_of(const struct ckv_policy_fault *fault) {
        for (size_t i = 0; i < CKV_ARRAY_SIZE(collisions); i++)
                if (collisions[i].field == fault->field && collisions[i].other == fault->other &&
                    (collisions[i].other_value == 0 || collisions[i].other_value == fault->other_value))
                        return collisions[i].detail;
        return fault->kind == CKV_FAULT_MISSING ? CKV_D_MISSING : CKV_D_NOT_TOGETHER;
}

static enum ckv_field field_of(enum ckv_policy_field field) {
        switch (field) {
        case CKV_FIELD_KEEP_RATIO:
                return CKV_F_GROUP_KEEP_RATIO;
        case CKV_FIELD_MAX_TOKENS:
                return CKV_F_GROUP_MAX_TOKENS;
        case CKV_FIELD_PROTECT:
                return CKV_F_GROUP_PROTECT;
        case CKV_FIELD_NONE:
                return CKV_F_GROUP_POLICIES;
        default:
                return (enum ckv_field)((int)CKV_F_POLICY_PROFILE + (int)field - (int)CKV_FIELD_PROFILE);
        }
}

/* refuse_use() - a legal policy that this request cannot have */
static bool refuse_use(struct ckv_record_status *status, const struct ckv_policy_fault *fault, struct ckv_part part) {
        const struct {
                enum ckv_policy_fault_kind kind;
                enum ckv_detail detail;
        } of_policy[] = {
                { CKV_FAULT_NO_VALUES, CKV_D_NEEDS_VALUES }, { CKV_FAULT_PLAN_ONLY, CKV_D_PAGE_MODE },
                { CKV_FAULT_NO_PLAN, CKV_D_EACH_PLAN }, { CKV_FAULT_NO_SLOTS, CKV_D_EACH_SLOTS },
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(of_policy); i++)
                if (of_policy[i].kind == fault->kind)
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field_of(fault->field), part.group, part.policy,
                                             of_policy[i].detail, 0, 0, 0);
        switch (fault->kind) {
        case CKV_FAULT_NO_QUERIES:
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES, CKV_D_NEEDS_QUERIES, 0, 0, 0);
        case CKV_FAULT_FEW_QUERIES:
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_ROWS,
                                  fault->field == CKV_FIELD_SELECTOR ? CKV_D_ALL_ROWS : CKV_D_QUERY_ROWS, fault->low, fault->value, 0);
        case CKV_FAULT_NO_SCORES:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_SCORES_IN, part.group, 0, CKV_D_NEEDS_SCORES, 0, 0,
                                     0);
        case CKV_FAULT_TOO_LONG:
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, field_of(fault->field), part.group, part.policy,
                                     CKV_D_H2O_TOO_LONG, fault->high, fault->value, 0);
        default:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field_of(fault->field), part.group, part.policy,
                                     CKV_D_NOT_TOGETHER, 0, 0, 0);
        }
}

bool ckv_policy_refuse(struct ckv_record_status *status, const struct ckv_policy_fault *fault, enum ckv_profile profile,
                       struct ckv_part part) {
        enum ckv_field field = field_of(fault->field);

        switch (fault->kind) {
        case CKV_FAULT_RANGE:
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, field, part.group, part.policy, CKV_D_RANGE, fault->low,
                                     fault->high, fault->value);
        case CKV_FAULT_EVEN:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, part.group, part.policy, CKV_D_ODD, fault->value, 0, 0);
        case CKV_FAULT_ENUM:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, part.group, part.policy, CKV_D_ENUM, fault->value, 0, 0);
        case CKV_FAULT_PROFILE:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, part.group, part.policy, CKV_D_PROFILE_FIXES,
                                     (uint64_t)profile, 0, 0);
        case CKV_FAULT_TOGETHER:
        case CKV_FAULT_MISSING:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, part.group, part.policy, detail_of(fault), 0, 0, 0);
        case CKV_FAULT_NONFINITE:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, part.group, part.policy, CKV_D_FINITE, 0, 0, 0);
        case CKV_FAULT_UNSUPPORTED:
                return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, field, part.group, part.policy, CKV_D_NO_PRESS, 0, 0, 0);
        default:
                return refuse_use(status, fault, part);
        }
}

bool ckv_policy_refuse_on_device(const struct ckv_request *request, uint32_t part, enum ckv_policy_field field,
                                 struct ckv_record_status *status) {
        uint32_t group = ckv_request_group_of(request, part);

        if (field == CKV_FIELD_NONE)
                return ckv_refuse(status, CKV_CODE_UNSUPPORTED, CKV_F_COMPRESS_CACHE_ID, CKV_D_NOT_ON_DEVICE, 0, 0, 0);
        return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, field_of(field), group, part - request->groups[group].first_part,
                             CKV_D_NOT_ON_DEVICE, 0, 0, 0);
}
