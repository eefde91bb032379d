/*
 * Planes, tables and columns in the form that kernels/cuda/params.h gives them,
 * and the one place that says what is not computed here.
 *
 * A row moves as vectors of 16 bytes where its address, its strides and its
 * length allow, else of 8, 4, 2 or 1; the widest that fits is found here once,
 * not by each thread.  Where dimensions are not adjacent a vector is an element.
 */
#include "kernels/cuda_shape.h"

#include "base/macros.h"
#include "kernels/reference.h"

#include <stdlib.h>

/* numbers that the kernels have of their own */
static_assert((int)CKV_DTYPE_F32 == 1 && (int)CKV_DTYPE_F16 == 2 && (int)CKV_DTYPE_BF16 == 3, "of values.cuh");
static_assert((int)CKV_POOL_NONE == 1 && (int)CKV_POOL_AVG == 2 && (int)CKV_POOL_MAX == 3, "of units.cuh");
static_assert((int)CKV_GROUP_SUM == 1 && (int)CKV_GROUP_MAX == 2 && (int)CKV_GROUP_MEAN == 3, "of units.cuh");
static_assert((int)CKV_HEADS_SUM == 1 && (int)CKV_HEADS_MAX == 2 && (int)CKV_HEADS_EACH == 3, "of units.cuh");
static_assert((int)CKV_UNIT_MEAN == 1 && (int)CKV_UNIT_SUM == 2 && (int)CKV_UNIT_MAX == 3, "of units.cuh");
static_assert((int)CKV_FILL_LEAD == 1 && (int)CKV_FILL_BEST == 2 && (int)CKV_FILL_NONE == 3, "of units.cuh");

static uint64_t address(const void *at) {
        return (uint64_t)(uintptr_t)at;
}

/* all addresses of rows, as one number whose low bits say what they are multiples of */
static uint64_t row_bits(const struct ckv_plane *plane) {
        return address(plane->base) | plane->block_stride | plane->head_stride | plane->token.outer | plane->token.inner;
}

static bool can_read(const struct ckv_plane *plane) {
        uint64_t bytes = ckv_dtype_bytes(plane->dtype), bits = row_bits(plane) | plane->dim.outer | plane->dim.inner;

        return plane->dtype >= CKV_DTYPE_F32 && plane->dtype <= CKV_DTYPE_BF16 && bits % bytes == 0;
}

static bool reads_values(const struct ckv_policy *policy) {
        return policy->scorer == CKV_SCORER_VK_RATIO || policy->value_weight != CKV_WEIGHT_NONE;
}

/* What of a group that has to be scored the kernels do not do. Return: does it stand in their way? */
static bool cannot_score(const struct ckv_job_group *group, enum ckv_policy_field *ret_field) {
        const struct ckv_policy *policy = &group->policy;

        *ret_field = policy->scorer == CKV_SCORER_DROP || policy->scorer == CKV_SCORER_LAGKV ? CKV_FIELD_SCORER : CKV_FIELD_NONE;
        if (*ret_field != CKV_FIELD_NONE)
                return true;
        for (uint32_t l = 0; l < group->layer_count; l++)
                if (!can_read(&group->layers[l].k) || (reads_values(policy) && !can_read(&group->layers[l].v)))
                        return true;
        return policy->scorer == CKV_SCORER_KEYDIFF && group->head_dim_k > CKV_K_DIMS_MOST;
}

/* Is there nothing to score, for this budget? What is refused or fails is no matter of the kernels. */
static bool needs_no_scores(const struct ckv_job_group *group) {
        struct ckv_budget budget;

        if (group->given || group->scores.in || group->policy.selector == CKV_SELECTOR_STREAMING)
                return true;
        return ckv_select_budget(&group->selection, NULL, &budget) != 0 || budget.settled || budget.refused;
}

static bool can_move(const struct ckv_job_group *group) {
        struct ckv_k_column column;

        for (uint32_t l = 0; l < group->layer_count; l++) {
                const struct ckv_job_layer *layer = &group->layers[l];

                if (!ckv__cuda_column(&layer->k, 0, 0, &column) || !ckv__cuda_column(&layer->v, 0, 0, &column))
                        return false;
        }
        return true;
}

bool ckv__cuda_can_move(const struct ckv_job *job, uint32_t *ret_group) {
        for (uint32_t i = 0; i < job->group_count; i++)
                if (!can_move(&job->groups[i])) {
                        *ret_group = i;
                        return false;
                }
        return true;
}

bool ckv_cuda_takes(const struct ckv_job *job, uint32_t *ret_group, enum ckv_policy_field *ret_field) {
        for (uint32_t i = 0; i < job->group_count; i++) {
                enum ckv_policy_field field = CKV_FIELD_NONE;

                if (can_move(&job->groups[i]) && (!cannot_score(&job->groups[i], &field) || needs_no_scores(&job->groups[i])))
                        continue;
                *ret_group = i;
                *ret_field = field;
                return false;
        }
        return true;
}

struct ckv_k_plane ckv__cuda_plane(const struct ckv_plane *plane) {
        if (!plane->base)
                return (struct ckv_k_plane){ .token_tile = 1, .dim_tile = 1 };
        return (struct ckv_k_plane){
                .base = address(plane->base), .block_stride = plane->block_stride, .head_stride = plane->head_stride,
                .token_outer = plane->token.outer, .token_inner = plane->token.inner, .dim_outer = plane->dim.outer,
                .dim_inner = plane->dim.inner, .token_tile = plane->token.tile, .dim_tile = plane->dim.tile, .dtype = plane->dtype,
                .dims = plane->dims, .scale = plane->scale,
        };
}

struct ckv_k_table ckv__cuda_table(const struct ckv_row_table *table, CUdeviceptr entries) {
        return (struct ckv_k_table){ .entries = entries, .by_token = table->by_token, .tokens_per_block = table->tokens_per_block };
}

uint32_t ckv__cuda_table_entries(const struct ckv_row_table *table, uint32_t rows) {
        return table->by_token ? rows : ckv_k_pieces(rows, table->tokens_per_block);
}

/* The largest power of two up to 16 that divides all of @bits. */
static uint32_t width_of(uint64_t bits) {
        uint32_t width = 16;

        while (bits % width != 0)
                width /= 2;
        return width;
}

bool ckv__cuda_column(const struct ckv_plane *plane, uint32_t head, uint32_t set, struct ckv_k_column *ret_column) {
        uint64_t row, inner = plane->dim.inner, outer = plane->dim.outer;
        uint32_t bytes, adjacent, width, tile;
        bool all;

        if (!plane->base) {
                *ret_column = (struct ckv_k_column){ .token_tile = 1, .tile = 1, .width = 1, .set = set };
                return true;
        }
        bytes = ckv_dtype_bytes(plane->dtype);
        adjacent = ckv_plane_adjacent_dims(plane);
        row = (uint64_t)plane->dims * bytes;
        all = adjacent == plane->dims;
        if (adjacent > 1 || all) {
                width = width_of(row_bits(plane) | row | (uint64_t)adjacent * bytes | (all ? 0 : outer));
                tile = adjacent * bytes / width;
                inner = width;
        } else {
                width = bytes;
                tile = plane->dim.tile;
                if ((row_bits(plane) | inner | outer) % width != 0)
                        return false;
        }
        *ret_column = (struct ckv_k_column){
                .base = address(plane->base) + head * plane->head_stride, .block_stride = plane->block_stride,
                .token_outer = plane->token.outer, .token_inner = plane->token.inner, .outer = outer, .inner = inner,
                .token_tile = plane->token.tile, .tile = tile, .vectors = (uint32_t)(row / width), .width = width, .set = set,
        };
        return true;
}
