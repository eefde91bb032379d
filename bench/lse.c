/*
 * One pass of the general kernel over each KV head, which finds the largest
 * logit of a query and its sum of weights; the daemon checks what it is given
 * against K, so numbers that merely look like these will not do.
 */
#include "bench/lse.h"

#include "kernels/cpu_choice.h"
#include "kernels/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double log2e = 0x1.71547652b82fep+0, ln2 = 0x1.62e42fefa39efp-1;

static const struct ckv_cpu_kernel *widest_kernel(void) {
        size_t count;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&count);
        const struct ckv_cpu_kernel *kernel = paths[0].kernel;

        for (size_t i = 0; i < count; i++)
                if (paths[i].usable())
                        kernel = paths[i].kernel;
        return kernel;
}

static void *room(size_t floats) {
        void *p = aligned_alloc(CKV_CPU_ALIGN, (floats * sizeof(float) + CKV_CPU_ALIGN) / CKV_CPU_ALIGN * CKV_CPU_ALIGN);

        if (!p) {
                (void)fprintf(stderr, "no memory for a log-sum-exp\n");
                exit(EXIT_FAILURE);
        }
        return p;
}

/* [blocks][dims][CKV_CPU_BLOCK], as the kernel wants them; what fills up the last block is anything */
static void lay_out(const struct ckv_job *job, const struct ckv_job_layer *layer, uint32_t kv_head, float *values, float *ret_queries) {
        const struct ckv_job_group *group = &job->groups[0];
        uint32_t per_group = group->q_heads / group->kv_heads, d = group->head_dim_k, rows = job->queries.rows;
        double factor = ckv_ref_scale(group) * log2e;

        for (uint32_t n = 0; n < per_group * rows; n++) {
                float *to = ret_queries + (size_t)(n / CKV_CPU_BLOCK) * d * CKV_CPU_BLOCK + n % CKV_CPU_BLOCK;

                ckv_ref_load_query(job, group, layer, n % rows, kv_head * per_group + n / rows, values);
                for (uint32_t x = 0; x < d; x++)
                        to[(size_t)x * CKV_CPU_BLOCK] = (float)((double)values[x] * factor);
        }
}

void bench_lse(const struct ckv_job *job, float *ret_lse) {
        const struct ckv_job_group *group = &job->groups[0];
        const struct ckv_cpu_kernel *kernel = widest_kernel();
        uint32_t rows = job->queries.rows, count = group->q_heads / group->kv_heads * rows, d = group->head_dim_k;
        float *values = room(d), *queries = room((size_t)(count + CKV_CPU_BLOCK) * d), *max = room(count), *sum = room(count);
        uint32_t *low = room(rows), *high = room(rows);
        struct ckv_cpu_segment segment = {
                .table = &group->table, .rows = group->selection.rows, .dims = d, .queries = queries, .query_count = count,
                .window = rows, .low = low, .high = high, .scratch = room(CKV_CPU_SCRATCH_FLOATS),
        };

        for (size_t i = 0; i < (size_t)(count + CKV_CPU_BLOCK) * d; i++)
                queries[i] = 0;
        for (uint32_t t = 0; t < rows; t++)
                ckv_ref_visible(job, group, rows - 1 - t, &low[t], &high[t]);
        for (uint32_t i = 0; i < group->layer_count; i++)
                for (uint32_t h = 0; h < group->kv_heads; h++) {
                        segment.k = &group->layers[i].k;
                        segment.head = h;
                        lay_out(job, &group->layers[i], h, values, queries);
                        kernel->sums(&segment, max, sum);
                        for (uint32_t n = 0; n < count; n++)
                                *ret_lse++ = (float)((double)max[n] * ln2 + log((double)sum[n]));
                }
        free(values);
        free(queries);
        free(max);
        free(sum);
        free(low);
        free(high);
        free(segment.scratch);
}
