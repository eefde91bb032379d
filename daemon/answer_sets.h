/*
 * Kept sets as an answer names them: neighbouring layers that kept the same
 * rows share one, and with heads = each every KV head has its own.
 */
#ifndef CKV_DAEMON_ANSWER_SETS_H
#define CKV_DAEMON_ANSWER_SETS_H

#include "daemon/request.h"

#include <stdint.h>

/* One set of a group of the request: it holds from its layer up to the layer of the next set. */
struct ckv_set {
        const struct ckv_job_group *group;
        uint32_t layer_first, kv_head;
        const struct ckv_kept *kept;
};

/* What stands before the runs of a set in REPLY_IN_REGION and REPLY_IN_SLOT form. */
struct ckv_set_head {
        uint32_t group, layer_first, kv_head, physical_before, physical_len, run_words;
};

/* ckv_sets_most() - at most so many sets can ckv_sets_list() find, in all groups of a planned request */
uint32_t ckv_sets_most(const struct ckv_request *request);

/* ckv_sets_list() - the sets of the request's group @index, ascending by layer, then KV head. Return: how many. */
uint32_t ckv_sets_list(const struct ckv_request *request, uint32_t index, struct ckv_set *ret_sets);

/* ckv_set_words() - words of a set in REPLY_IN_REGION and REPLY_IN_SLOT form, head and runs */
uint64_t ckv_set_words(const struct ckv_set *set);

/* ckv_set_write() - head and runs, ckv_set_words() of them. Return: the place behind them. */
uint32_t *ckv_set_write(const struct ckv_set *set, uint32_t *words);

/* ckv_set_digest() - FNV-1a 64, continued over the words of ckv_set_write(): what ranks compare before they commit */
uint64_t ckv_set_digest(uint64_t digest, const struct ckv_set *set);

/* ckv_set_write_runs() - KeptSet.runs of the rows; at most 2 * run_count words. Return: how many. */
uint32_t ckv_set_write_runs(const struct ckv_kept *kept, uint32_t *words);

/* ckv_set_write_position_runs() - the same in positions, which may have gaps inside a run of rows. NULL words: only count. */
uint32_t ckv_set_write_position_runs(const struct ckv_kept *kept, const uint32_t *positions, uint32_t *words);

#endif
