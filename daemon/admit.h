/*
 * Admission: from a COMPRESS record to a job, everything checked.  What was
 * admitted cannot fail for a reason that lies in its arguments.
 */
#ifndef CKV_DAEMON_ADMIT_H
#define CKV_DAEMON_ADMIT_H

#include "daemon/request.h"

/* The attachment of COMPRESS, cut by the counts of its body. */
struct ckv_compress_parts {
        const struct ckv_record_compress *body;
        const struct ckv_record_group *groups;          /* [body->group_count] */
        const struct ckv_record_policy *policies;       /* [body->policy_count] */
        const uint32_t *query_layers;                   /* [body->query_layer_count] */
        const uint32_t *words;                          /* of the groups, in order */
};

/* The words of one group, inside the attachment. */
struct ckv_group_words {
        const uint32_t *table, *destination, *spans, *position_runs, *chunk_lengths, *given_runs;
};

/**
 * ckv_admit() - check a COMPRESS and build request->job
 * @request: session, cache (found here), route filled in; mode, reply_form, logical_len, regions, job, charges are set here
 *
 * Return: true; or false with @ret_status; what was built stays in @request for ckv_request_free().
 */
bool ckv_admit(struct ckv_request *request, const struct ckv_record *record, const uint8_t *attachment, uint32_t bytes,
               struct ckv_record_status *ret_status);

/* The steps of ckv_admit() that have files of their own; @index is the group's place in the request. */

/* admit_table.c: expand and check the block table, and the destination of COPY_OUT, into job group @index */
bool ckv_admit_tables(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_group_words *words,
                      uint32_t index, uint32_t num_blocks, struct ckv_record_status *ret_status);

/* admit_policy.c: resolve the policy, budget, spans, positions of job group @index */
bool ckv_admit_policy(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_record_policy *policy,
                      const struct ckv_group_words *words, uint32_t index, struct ckv_record_status *ret_status);

/* admit_given.c: a kept set or scores that the caller brings, and where scores are to go */
bool ckv_admit_given(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_group_words *words,
                     uint32_t index, struct ckv_record_status *ret_status);

/* admit_queries.c: where the window queries of all groups lie */
bool ckv_admit_queries(struct ckv_request *request, const struct ckv_compress_parts *parts, struct ckv_record_status *ret_status);

/* ckv_prefix_rows() - admit_policy.c: protect_prefix in whole blocks of the group's cache, at most all its rows */
uint32_t ckv_prefix_rows(const struct ckv_request *request, const struct ckv_record_group *group);

/* ckv_policy_to_record() - admit_policy.c: a resolved policy as the answer shows it */
void ckv_policy_to_record(const struct ckv_policy *policy, struct ckv_record_policy *ret_record);

#endif
