/*
 * Row request: what a request of a model's size costs, stage by stage, as the
 * backend itself runs it, beside the bandwidth of a copy on this device.  Keys
 * and values are random; rows are moved for real, and each repetition works on
 * what the one before left, which is as random.
 *
 *     read         bytes of K that scoring must read / score time
 *     moved        bytes read and written / move time
 *     floor        of scheme A: K read once, or the products, whichever is longer, and the move at copy bandwidth
 */
#include "tests/gpu/gpu.h"
#include "tests/gpu/probes.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How weights are made. */
enum way {
        WAY_CHOSEN,                     /* as the backend chooses, for a policy that looks at units alone */
        WAY_BY_ROW,                     /* K is read twice: a unit's largest row is asked for */
        WAY_GIVEN,                      /* the sums over rows come with the request; queries are 0, of which they are known */
};

struct shape {
        const char *name;
        uint32_t layers, kv_heads, q_heads, dims, rows, window, page;   /* page 0: one block, heads inside rows */
        bool heads_outside;
        enum way way;
};

static const struct shape shapes[] = {
        { "Llama-3-8B, 32k, [T,H,D], w 32", 32, 8, 32, 128, 32768, 32, 0, false, WAY_CHOSEN },
        { "the same, weights by row", 32, 8, 32, 128, 32768, 32, 0, false, WAY_BY_ROW },
        { "the same, log-sum-exp given, queries 0", 32, 8, 32, 128, 32768, 32, 0, false, WAY_GIVEN },
        { "the same, [H,T,D]", 32, 8, 32, 128, 32768, 32, 0, true, WAY_CHOSEN },
        { "the same, pages of 16", 32, 8, 32, 128, 32768, 32, 16, false, WAY_CHOSEN },
        { "pages of 16, weights by row", 32, 8, 32, 128, 32768, 32, 16, false, WAY_BY_ROW },
        { "the same, 4 layers", 4, 8, 32, 128, 32768, 32, 0, false, WAY_CHOSEN },
        { "the same, 1 layer", 1, 8, 32, 128, 32768, 32, 0, false, WAY_CHOSEN },
        { "Llama-3-8B, 32k, w 8", 32, 8, 32, 128, 32768, 8, 0, false, WAY_CHOSEN },
        { "Llama-3-8B, 32k, w 64", 32, 8, 32, 128, 32768, 64, 0, false, WAY_CHOSEN },
        { "w 64, weights by row", 32, 8, 32, 128, 32768, 64, 0, false, WAY_BY_ROW },
        { "Llama-3-8B, 8k, w 32", 32, 8, 32, 128, 8192, 32, 0, false, WAY_CHOSEN },
        { "Qwen2-7B, 32k, w 32", 28, 4, 28, 128, 32768, 32, 0, false, WAY_CHOSEN },
};
static const struct shape small[] = {
        { "2 layers of 200 rows", 2, 2, 4, 64, 200, 8, 0, false, WAY_CHOSEN },
        { "the same, weights by row", 2, 2, 4, 64, 200, 8, 0, false, WAY_BY_ROW },
        { "the same, log-sum-exp given, queries 0", 2, 2, 4, 64, 200, 8, 0, false, WAY_GIVEN },
        { "the same, pages of 16", 2, 2, 4, 64, 200, 8, 16, false, WAY_CHOSEN },
};
enum { REPEATS = 5, KEPT_MOST = 3 };

struct work {
        const struct shape *shape;
        size_t plane_bytes;
        CUdeviceptr planes, queries;    /* [layers][K, V], [layers][q_heads][window][dims] */
        CUdeviceptr sums;               /* [q_heads][window], binary32: the same ones for each layer */
        double copy_rate;               /* bytes a second, read + written; 0: not known */
};

static void *must(void *p) {
        if (!p)
                exit(EXIT_FAILURE);
        return p;
}

static struct ckv_plane plane_at(const struct work *work, uint32_t index) {
        const struct shape *shape = work->shape;
        uint64_t row = (uint64_t)shape->dims * 2, all = row * shape->kv_heads;

        return (struct ckv_plane){
                .base = (uint8_t *)(uintptr_t)(work->planes + index * work->plane_bytes), .dtype = CKV_DTYPE_BF16,
                .dims = shape->dims, .dim = { .tile = 1, .outer = 2 }, .block_stride = shape->page * all,
                .head_stride = shape->heads_outside ? row * shape->rows : row,
                .token = { .tile = 1, .outer = shape->heads_outside ? row : all },
        };
}

static struct ckv_job *make_job(const struct work *work, uint32_t keep_ratio) {
        const struct shape *shape = work->shape;
        uint32_t page = shape->page ? shape->page : shape->rows, pages = (shape->rows - 1) / page + 1;
        uint64_t head = (uint64_t)shape->window * shape->dims * 2;
        struct ckv_job *job = must(ckv_job_new(1));
        struct ckv_job_group *group = job->groups;
        const struct ckv_policy asked = { .window = shape->window, .chunk = 10,
                                          .unit_reduce = shape->way == WAY_BY_ROW ? CKV_UNIT_MAX : CKV_UNIT_OF_PROFILE };
        uint32_t *entries = must(malloc(pages * sizeof(*entries)));
        struct ckv_policy_fault fault;

        if (!ckv_policy_resolve(&asked, &group->policy, &fault))
                exit(EXIT_FAILURE);
        for (uint32_t i = 0; i < pages; i++)
                entries[i] = (uint32_t)((uint64_t)i * 7919 % pages);    /* a prime: pages in no order */
        group->table = (struct ckv_row_table){ .entries = entries, .tokens_per_block = page };
        group->kv_heads = shape->kv_heads;
        group->q_heads = shape->q_heads;
        group->head_dim_k = group->head_dim_v = shape->dims;
        group->layers = must(calloc(shape->layers, sizeof(*group->layers)));
        group->layer_count = shape->layers;
        for (uint32_t l = 0; l < shape->layers; l++)
                group->layers[l] = (struct ckv_job_layer){
                        .number = l, .k = plane_at(work, 2 * l), .v = plane_at(work, 2 * l + 1),
                        .query = (const uint8_t *)(uintptr_t)(work->queries + l * shape->q_heads * head),
                        .lse = shape->way == WAY_GIVEN ? (const uint8_t *)(uintptr_t)work->sums : NULL,
                };
        group->selection.rows = shape->rows;
        group->selection.keep_ratio = keep_ratio;
        job->queries = (struct ckv_job_queries){ .dtype = CKV_DTYPE_BF16, .rows = shape->window, .head_stride = head,
                                                 .row_stride = (uint64_t)shape->dims * 2 };
        job->deadline_nsec = UINT64_MAX;
        return job;
}

static void measure(struct gpu *gpu, struct ckv_backend *backend, const struct work *work, uint32_t keep_ratio) {
        const struct shape *shape = work->shape;
        double keys = (double)shape->layers * (double)work->plane_bytes, moved = 0;
        double score = 1e9, select = 1e9, move = 1e9, all = 1e9;
        enum ckv_job_outcome outcome = CKV_JOB_OK;
        bool good = true;

        for (uint32_t i = 0; i < (gpu->stand_in ? 1 : REPEATS) && good; i++) {
                struct ckv_job *job = make_job(work, keep_ratio);
                uint64_t start = ckv_now_nsec();

                gpu_run(backend, job, CKV_STAGE_PLAN);
                good = good && job->outcome == CKV_JOB_OK;
                if (good)
                        gpu_run(backend, job, CKV_STAGE_MOVE);
                good = good && job->outcome == CKV_JOB_OK;
                all = CKV_MIN(all, 1e-9 * (double)(ckv_now_nsec() - start));
                score = CKV_MIN(score, 1e-9 * (double)job->score_nsec);
                select = CKV_MIN(select, 1e-9 * (double)job->select_nsec);
                move = CKV_MIN(move, 1e-9 * (double)job->move_nsec);
                moved = (double)job->groups[0].bytes_moved;
                outcome = job->outcome;
                job = ckv_job_free(job);
        }
        if (!good) {
                gpu_judge(gpu, false, "%s, %u %% kept: a job failed, outcome %d", shape->name, keep_ratio / 10000, (int)outcome);
                return;
        }
        gpu_say("%s, %u %% kept: score %.0f us (K read at %.0f GB/s), select %.0f us, move %.0f us (%.0f GB/s), all %.0f us",
                shape->name, keep_ratio / 10000, 1e6 * score, 1e-9 * keys / score, 1e6 * select, 1e6 * move, 1e-9 * moved / move,
                1e6 * all);
        if (work->copy_rate > 0)
                gpu_say("    of the copy's bandwidth: score %.2f, move %.2f; all / floor of reading K once and moving: %.2f",
                        keys / score / work->copy_rate, moved / move / work->copy_rate, all * work->copy_rate / (keys + moved));
}

static double copy_rate(const struct gpu *gpu) {
        CUfunction copy = gpu_function(gpu, "probe_copy");
        const size_t bytes = (size_t)1 << 30;
        struct probe_copy p = { .vectors = bytes / 16 };
        double seconds;

        if (!copy || gpu->stand_in)
                return 0;
        p.from = gpu_alloc(gpu, bytes);
        p.to = gpu_alloc(gpu, bytes);
        seconds = gpu_seconds(gpu, copy, 8 * (uint32_t)gpu->processors, 256, &p, 4);
        GPU(gpu, cuMemFree_v2, p.from);
        GPU(gpu, cuMemFree_v2, p.to);
        return 2 * (double)bytes / seconds;
}

void gpu_row_request(struct gpu *gpu) {
        static const uint32_t ratios[KEPT_MOST] = { 200000, 100000, 300000 };
        size_t count = gpu->stand_in ? CKV_ARRAY_SIZE(small) : CKV_ARRAY_SIZE(shapes), before, after, total;
        double rate = copy_rate(gpu);
        struct ckv_backend *backend;

        GPU(gpu, cuMemGetInfo_v2, &before, &total);
        backend = gpu_backend(gpu);
        GPU(gpu, cuMemGetInfo_v2, &after, &total);
        gpu_say("device memory that the backend takes for itself, its scratch of 256 MiB included: %.0f MiB",
                ((double)before - (double)after) * 0x1p-20);
        for (size_t i = 0; i < count; i++) {
                const struct shape *shape = gpu->stand_in ? &small[i] : &shapes[i];
                struct work work = { .shape = shape, .copy_rate = rate };
                uint32_t page = shape->page ? shape->page : shape->rows;
                size_t rows = (shape->rows + page - 1) / page * page;
                size_t bytes = (size_t)shape->layers * shape->q_heads * shape->window * shape->dims * 2;
                uint32_t bits;
                float sum;

                work.plane_bytes = rows * shape->kv_heads * shape->dims * 2;
                if (2 * shape->layers * work.plane_bytes > gpu->memory_bytes * 3 / 4) {
                        gpu_say("%s: skipped: larger than this device", shape->name);
                        continue;
                }
                work.planes = gpu_alloc(gpu, 2 * shape->layers * work.plane_bytes);
                work.queries = gpu_alloc(gpu, bytes);
                gpu_fill(gpu, work.planes, 2 * shape->layers * work.plane_bytes);
                gpu_fill(gpu, work.queries, bytes);
                work.sums = gpu_alloc(gpu, shape->q_heads * shape->window * sizeof(float));
                sum = logf((float)shape->rows);
                memcpy(&bits, &sum, sizeof(bits));
                GPU(gpu, cuMemsetD32Async, work.sums, bits, shape->q_heads * shape->window, gpu->stream);
                if (shape->way == WAY_GIVEN)
                        GPU(gpu, cuMemsetD32Async, work.queries, 0, bytes / sizeof(uint32_t), gpu->stream);
                GPU(gpu, cuStreamSynchronize, gpu->stream);
                for (uint32_t r = 0; r < (i == 0 ? KEPT_MOST : 1); r++)
                        measure(gpu, backend, &work, ratios[r]);
                GPU(gpu, cuMemFree_v2, work.planes);
                GPU(gpu, cuMemFree_v2, work.queries);
                GPU(gpu, cuMemFree_v2, work.sums);
        }
        backend = ckv_backend_cuda.close(backend);
        (void)gpu_skip(gpu, "times above");
}
