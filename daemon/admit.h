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
        const struct ckv_record_timeline *timeline;     /* NULL: none */
        const uint32_t *query_layers;                   /* [body->query_layer_count] */
        const uint32_t *words;                          /* of the groups, in order */
};

/* Forms of a table that matter beside where it is read: TableForm. */
enum ckv_table_form { CKV_TABLE_NONE, CKV_TABLE_BLOCKS, CKV_TABLE_BLOCK_RUNS, CKV_TABLE_TOKENS, CKV_TABLE_TOKEN_RUNS };

/* The words of one group, inside the attachment. */
struct ckv_group_words {
        const uint32_t *table, *destination, *spans, *position_runs, *chunk_lengths, *given_runs;
};

/* One policy of the request: which group it stands in, and its place there; the brackets of its fields. */
struct ckv_part {
        uint32_t group, policy;
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

/*
 * admit_parts.c: the layers of each policy of a group, as groups of the job; number and rows of their selections are set.
 * @policies: of this group
 */
bool ckv_admit_parts(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_record_policy *policies,
                     uint32_t index, struct ckv_record_status *ret_status);

/* ckv_parts_share() - admit_parts.c: the lists of a group's first part become those of all its parts */
void ckv_parts_share(struct ckv_request *request, uint32_t index);

/* admit_table.c: expand and check the block table, and the destination of COPY_OUT, into the first part of the group */
bool ckv_admit_tables(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_group_words *words,
                      uint32_t index, uint32_t num_blocks, struct ckv_record_status *ret_status);

/* admit_policy.c: resolve the policy of one part, and hold it against budget, cache and what the request brings */
bool ckv_admit_policy(struct ckv_request *request, const struct ckv_record_compress *body, const struct ckv_record_group *group,
                      const struct ckv_record_policy *policy, struct ckv_part part, struct ckv_record_status *ret_status);

/**
 * ckv_policy_refuse_on_device() - admit_fault.c: the device has no kernel for a part of the job
 * @field: of ops->takes(); CKV_FIELD_NONE: it is the planes of the cache
 *
 * Return: false, with @status UNSUPPORTED.
 */
bool ckv_policy_refuse_on_device(const struct ckv_request *request, uint32_t part, enum ckv_policy_field field,
                                 struct ckv_record_status *status);

/* ckv_policy_refuse() - admit_fault.c: a fault of kernels/policy.h as a status; @profile: that was asked for. Return: false. */
bool ckv_policy_refuse(struct ckv_record_status *status, const struct ckv_policy_fault *fault, enum ckv_profile profile,
                       struct ckv_part part);

/* admit_lists.c: spans, positions and chunk lengths, into the first part of the group; every part has its policy */
bool ckv_admit_lists(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_group_words *words,
                     uint32_t index, struct ckv_record_status *ret_status);

/* admit_given.c: a kept set or scores that the caller brings, and where scores are to go, into all parts */
bool ckv_admit_given(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_group_words *words,
                     uint32_t index, struct ckv_record_status *ret_status);

/* admit_queries.c: where the window queries of all groups lie */
bool ckv_admit_queries(struct ckv_request *request, const struct ckv_compress_parts *parts, struct ckv_record_status *ret_status);

/* Where a layer stands among those whose queries are present. */
struct ckv_query_place {
        uint32_t q_heads;               /* of the layer; 0: the cache has no such layer */
        bool present;
        uint32_t index;                 /* among the layers present */
        uint64_t heads_before;          /* query heads of the layers present before it, all together */
};

/*
 * admit_floats.c: where log-sum-exp and sink logits of each layer lie
 * @places: by layer number, for every layer of the cache
 * @layers: layers present, with those that the cache does not have
 * @heads:  query heads of all layers present
 */
bool ckv_admit_floats(struct ckv_request *request, const struct ckv_compress_parts *parts, const struct ckv_query_place *places,
                      uint32_t layers, uint64_t heads, struct ckv_record_status *ret_status);

/* admit_reply.c: where REPLY_IN_REGION writes the sets; and is there room for the answer, whatever is kept? */
bool ckv_admit_reply_slice(struct ckv_request *request, const struct ckv_record_compress *body, struct ckv_record_status *ret_status);
bool ckv_admit_reply_size(const struct ckv_request *request, const struct ckv_record_group *groups,
                          struct ckv_record_status *ret_status);

/* admit_timeline.c: the words that the request waits for and signals; a Repair does neither */
bool ckv_admit_timeline(struct ckv_request *request, const struct ckv_compress_parts *parts, struct ckv_record_status *ret_status);

/* ckv_kept_bytes_bound() - admit_reply.c: memory that the kept sets of an admitted group of the job can take */
uint64_t ckv_kept_bytes_bound(const struct ckv_job_group *group);

/* ckv_request_part() - job group @k of the request's group @index */
static inline struct ckv_job_group *ckv_request_part(const struct ckv_request *request, uint32_t index, uint32_t k) {
        return &request->job->groups[request->groups[index].first_part + k];
}

/* ckv_prefix_rows() - admit_lists.c: protect_prefix in whole blocks of the group's cache, at most all its rows */
uint32_t ckv_prefix_rows(const struct ckv_request *request, const struct ckv_record_group *group);

/* ckv_policy_to_record() - admit_policy.c: a resolved policy as the answer shows it */
void ckv_policy_to_record(const struct ckv_policy *policy, struct ckv_record_policy *ret_record);

#endif
