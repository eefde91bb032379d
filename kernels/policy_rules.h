/*
 * The second half of resolving a policy: parameters that are legal alone and
 * not together.
 */
#ifndef CKV_KERNELS_POLICY_RULES_H
#define CKV_KERNELS_POLICY_RULES_H

#include "kernels/policy.h"

/**
 * ckv__policy_judge_together() - the first rule that a policy breaks
 * @asked:  what was set by hand: a default never collides, it gives way
 * @policy: every value filled in
 *
 * Return: a fault of kind CKV_FAULT_NONE if there is none.
 */
struct ckv_policy_fault ckv__policy_judge_together(const struct ckv_policy *asked, const struct ckv_policy *policy);

#endif
