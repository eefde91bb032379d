/*
 * Stages S5 to S8 of algorithm.md: protection, budget, selection, ranges.
 * Integers and binary32 scores in, kept rows out; no tensor is touched.  These
 * functions are the specification and the product at once: every backend calls
 * them or must equal them bit for bit.
 */
#ifndef CKV_KERNELS_SELECT_H
#define CKV_KERNELS_SELECT_H

#include "kernels/policy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A protected stretch of positions (not rows), clipped to the sequence; count >= 1. */
struct ckv_span {
        uint32_t first, count;
};

/* A maximal stretch of consecutive kept rows: rows src .. src+len-1 move to dst .. dst+len-1 (S8). */
struct ckv_run {
        uint32_t src, len, dst;
};

/* Why nothing was dropped; numbers of KeptAll in proto/chunkkv.proto. */
enum ckv_kept_all { CKV_DROPPED, CKV_KEPT_EMPTY, CKV_KEPT_SHORT, CKV_KEPT_FITS, CKV_KEPT_PROTECTED };

/* The kept rows of one layer (or of all layers of a group, with layers = one), or of one of its KV heads (heads = each). */
struct ckv_kept {
        struct ckv_run *runs;    /* ascending; heap, owned; ckv_kept_deinit() */
        size_t run_count;
        uint32_t count;          /* kept rows: sum of len */
};

/* What the selection of one layer reads. L rows; all arrays are borrowed. */
struct ckv_selection {
        const struct ckv_policy *policy;   /* resolved */
        uint32_t rows;                     /* L */
        const uint32_t *positions;         /* [L] strictly ascending, or NULL: row j sits at position j */
        const struct ckv_span *spans;      /* [span_count] in any order, may overlap */
        size_t span_count;
        const uint32_t *chunk_lengths;     /* [chunk_length_count], if ckv_policy_takes_lengths(): add up to L; else NULL */
        size_t chunk_length_count;
        uint32_t keep_ratio;               /* millionths, 1 .. 1000000; 0 = not given */
        uint32_t max_tokens;               /* rows; 0 = not given */
};

/* Outcome of the planning stage (S5, S6, R20). */
struct ckv_budget {
        enum ckv_kept_all kept_all;        /* anything but CKV_DROPPED: keep all rows, nothing to score */
        bool settled;                      /* kept set is known without scores (P, all, or streaming): ckv_select_settled() */
        bool raised;                       /* p > B and tight = raise */
        bool refused;                      /* p > B and tight = refuse: BUDGET_BELOW_PROTECTED */
        uint32_t budget;                   /* B; paper: L_max; kvpress with chunks: floor(L * keep), which they may miss */
        uint32_t protected_rows;           /* p; paper: w; kvpress: 0, or what its press protects (R54), at most B */
        uint32_t chunks;                   /* ckv_policy_counts_chunks(): k, the chunks to take; else 0 */
};

/* Units of S4, ascending by rows. A chunk without unprotected rows is no unit and has no entry. */
struct ckv_units {
        uint32_t count;                    /* N */
        uint32_t *unit_of_row;             /* [L]: unit index, or UINT32_MAX for protected rows (and rows in no unit) */
        uint32_t *size;                    /* [N]: n_u */
        uint32_t *first_row;               /* [N]: lowest row of the unit */
        uint32_t *index;                   /* [N]: index on the grid (token, h2o: row), which is how replies name a unit */
};

/* Outcomes of the functions below. */
enum {
        _CKV_SELECT_E_SUCCESS,
        CKV_SELECT_E_NONFINITE,            /* R23: a score is NaN or infinite */
        CKV_SELECT_E_UNSUPPORTED,          /* profile kvpress: L <= w or L < c; paper likewise (section 6) */
        CKV_SELECT_E_WINDOW_OVER_BUDGET,   /* profile paper: L_max < w */
};

/* ckv_selection_rows_below() - how many rows have a position below @position; also the first row at or past it */
uint32_t ckv_selection_rows_below(const struct ckv_selection *selection, uint64_t position);

/**
 * ckv_select_budget() - S5 and S6: what is protected, how much may be kept, is there anything to decide (R20)
 * @ret_protected: [L] 1 for protected rows, else 0; may be NULL if the caller needs the numbers only; its
 *                 contents mean nothing unless 0 is returned
 * @ret_budget:    written only when 0 is returned; look at refused, then at settled
 *
 * Return: 0, -ENOMEM, CKV_SELECT_E_UNSUPPORTED or CKV_SELECT_E_WINDOW_OVER_BUDGET.
 */
int ckv_select_budget(const struct ckv_selection *selection, uint8_t *ret_protected, struct ckv_budget *ret_budget);

/**
 * ckv_select_layer_budgets() - PyramidKV: B of each layer (section 4.2, arXiv 2406.02069)
 * @budget:      of the selection, not settled for want of a choice: p <= B
 * @layers:      n, layers of the whole layer group, at least 1
 * @first:       layers of the group before the first one asked for
 * @ret_budgets: [count] B_l; the lower layers get more, the total over all n is n * B
 *
 * Return: false, and nothing written, where B holds for every layer: no beta, one layer, or less to share than beta.
 */
bool ckv_select_layer_budgets(const struct ckv_selection *selection, const struct ckv_budget *budget, uint32_t layers,
                              uint32_t first, uint32_t count, uint32_t *ret_budgets);

/**
 * ckv_units_init() - cut the unprotected rows into units (S4)
 * @units:          filled in; ckv_units_deinit() frees its arrays. Untouched on failure.
 * @protected_rows: [L] from ckv_select_budget(); profiles kvpress and paper cut all rows and do not look at it
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_units_init(struct ckv_units *units, const struct ckv_selection *selection, const uint8_t *protected_rows);

/* ckv_units_deinit() - free the arrays; a zeroed struct is fine */
void ckv_units_deinit(struct ckv_units *units);

/* ckv_scores_first_nonfinite() - index of the first NaN or infinite score, @count if there is none (R23) */
uint32_t ckv_scores_first_nonfinite(const float *scores, uint32_t count);

/**
 * ckv_select() - S7 and S8: rank, walk, and write the kept rows as runs
 * @units:       of this selection
 * @budget:      of this selection, not settled
 * @unit_scores: [units->count] C[u]
 * @row_scores:  [L] T32[j], read if ckv_policy_selects_rows(); else NULL
 * @ret_kept:    written only on success
 * @ret_unit:    with CKV_SELECT_E_NONFINITE: index of the first such unit on the grid (units->index); may be NULL
 *
 * Return: 0, CKV_SELECT_E_NONFINITE, or -ENOMEM.
 */
int ckv_select(const struct ckv_selection *selection, const struct ckv_units *units, const struct ckv_budget *budget,
               const uint8_t *protected_rows, const float *unit_scores, const float *row_scores,
               struct ckv_kept *ret_kept, uint32_t *ret_unit);

/* ckv_select_settled() - the kept rows where the budget settled the answer; streaming: P and the newest others.
 * Return: 0 or -ENOMEM. */
int ckv_select_settled(const struct ckv_selection *selection, const struct ckv_budget *budget,
                       const uint8_t *protected_rows, struct ckv_kept *ret_kept);

/* ckv_kept_from_flags() - runs of the rows whose flag is not 0 (S8). Return: 0 or -ENOMEM. */
int ckv_kept_from_flags(const uint8_t *flags, uint32_t rows, struct ckv_kept *ret_kept);

/* ckv_kept_copy() - the same rows again, for a layer that follows another (section 5). Return: 0 or -ENOMEM. */
int ckv_kept_copy(const struct ckv_kept *kept, struct ckv_kept *ret_kept);

/**
 * ckv_kept_mass() - the part of a layer's scores that its kept rows hold
 * @kept:  [heads], over @rows rows
 * @t:     [heads][rows] T[j]
 *
 * Sums in binary64, ascending, heads outside; one division, then R13.
 *
 * Return: 0 .. 1; NaN where that means nothing: a score below 0 or not finite, or all of them 0.
 */
float ckv_kept_mass(const struct ckv_kept *kept, uint32_t heads, uint32_t rows, const double *t);

/* ckv_kept_deinit() - free the runs; a zeroed struct is fine */
void ckv_kept_deinit(struct ckv_kept *kept);

#endif
