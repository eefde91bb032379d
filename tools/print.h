/* Answers of chunkkvctl, as text for people or as one line of JSON. */
#ifndef CKV_TOOLS_PRINT_H
#define CKV_TOOLS_PRINT_H

#include "clients/c/include/chunkkv.h"
#include "tools/plan.h"

#include <stdbool.h>

/* A file that a command made; path NULL = none. */
struct ckv_written {
        const char *path;
        uint64_t bytes;
};

/* What `status` asks for */
struct ckv_state {
        struct chunkkv_budget budgets[CHUNKKV_BUDGETS_MAX];     /* [budget_count] */
        size_t budget_count;
        struct chunkkv_code_path paths[CHUNKKV_CODE_PATHS_MAX]; /* [path_count] */
        size_t path_count;
};

/* ckv_print_slot() - "mapped_bytes" for a chunkkv_slot. Return: constant text. */
const char *ckv_print_slot(uint32_t slot);

/* Each prints to stdout. Return: true if all of it was written. */
bool ckv_print_plan(const struct ckv_plan *plan, const struct ckv_written *written, bool json);
bool ckv_print_written(const struct ckv_written *written);
bool ckv_print_pong(const struct chunkkv_info *info, const struct chunkkv_pong *pong, bool json);
bool ckv_print_status(const struct chunkkv_info *info, const struct ckv_state *state, bool json);

#endif
