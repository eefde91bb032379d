/*
 * Rows conform and golden: the backend on this device beside the reference.
 * Random jobs and the golden cases are made in host memory; their planes are
 * copied to the device, and every allocation is copied back and compared byte
 * for byte after a move.  Queries lie on the device for every second job, in
 * host memory for the others.  What the device does not compute is passed over,
 * and counted.
 *
 * The supports of the tests assert, which goes inside a suite alone: each row is
 * one test of one, in this process.
 */
#include "tests/gpu/gpu.h"

#include "kernels/reference.h"
#include "kernels/steps.h"
#include "tests/support_gap.h"
#include "tests/support_golden.h"
#include "tests/support_random.h"

#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { JOBS = 600, JOBS_STAND_IN = 40, LONG_JOBS = 20, LONG_ROWS = 9000, MEMORY_MOST = 256, GOLDEN_STEP_STAND_IN = 221 };

struct tally {
        uint32_t planned, moved, left_out, within, wrong;
};

/* Copies of a job's allocations on the device. */
struct copies {
        const struct random_job *of;
        CUdeviceptr at[MEMORY_MOST];
};

static uint8_t *moved_to(const struct copies *copies, const uint8_t *host) {
        for (uint32_t i = 0; host && i < copies->of->memory_count; i++) {
                const struct random_memory *memory = &copies->of->memory[i];

                if (host >= memory->bytes && host < memory->bytes + memory->size)
                        return (uint8_t *)(uintptr_t)(copies->at[i] + (uint64_t)(host - memory->bytes));
        }
        return NULL;
}

static void copies_open(const struct gpu *gpu, const struct random_job *random, bool queries, struct copies *ret_copies) {
        *ret_copies = (struct copies){ .of = random };
        for (uint32_t i = 0; i < random->memory_count && i < MEMORY_MOST; i++) {
                ret_copies->at[i] = gpu_alloc(gpu, random->memory[i].size);
                gpu_upload(gpu, ret_copies->at[i], random->memory[i].bytes, random->memory[i].size);
        }
        for (uint32_t g = 0; g < random->job->group_count; g++)
                for (uint32_t l = 0; l < random->job->groups[g].layer_count; l++) {
                        struct ckv_job_layer *layer = &random->job->groups[g].layers[l];

                        layer->k.base = moved_to(ret_copies, layer->k.base);
                        layer->v.base = moved_to(ret_copies, layer->v.base);
                        if (queries && layer->query)
                                layer->query = moved_to(ret_copies, layer->query);
                }
}

/* Compares, too: are all bytes those of @reference? */
static bool copies_close(const struct gpu *gpu, struct copies *copies, const struct random_job *reference) {
        bool same = true;

        for (uint32_t i = 0; i < copies->of->memory_count; i++) {
                const struct random_memory *memory = &copies->of->memory[i];

                gpu_download(gpu, memory->bytes, copies->at[i], memory->size);
                same = same && memcmp(memory->bytes, reference->memory[i].bytes, memory->size) == 0;
                GPU(gpu, cuMemFree_v2, copies->at[i]);
        }
        return same;
}

/* Is a plan the reference's? */
static bool plans_agree(const struct ckv_job *reference, const struct ckv_job *fast, struct tally *tally) {
        if (reference->outcome != fast->outcome)
                return false;
        if (reference->outcome != CKV_JOB_OK)
                return reference->fail_group == fast->fail_group && reference->fail_layer == fast->fail_layer &&
                       reference->fail_unit == fast->fail_unit;
        for (uint32_t g = 0; g < reference->group_count; g++) {
                if (reference->groups[g].kept_count != fast->groups[g].kept_count)
                        return false;
                for (uint32_t k = 0; k < reference->groups[g].kept_count; k++) {
                        enum gap gap = gap_judge(reference, g, k, &fast->groups[g].kept[k]);

                        if (gap == GAP_OUTSIDE)
                                return false;
                        tally->within += gap == GAP_WITHIN;
                }
        }
        return true;
}

/* Both move the reference's rows, every second job in steps. */
static bool move_both(struct ckv_backend *backend, uint64_t seed, struct random_job *reference, struct random_job *fast) {
        const uint32_t batch_rows = (uint32_t)(seed % 4) * 20;
        _Atomic uint32_t done = 0;
        bool good;

        for (uint32_t g = 0; g < reference->job->group_count; g++)
                for (uint32_t k = 0; k < reference->job->groups[g].kept_count; k++) {
                        ckv_kept_deinit(&fast->job->groups[g].kept[k]);
                        if (ckv_kept_copy(&reference->job->groups[g].kept[k], &fast->job->groups[g].kept[k]) < 0)
                                exit(EXIT_FAILURE);
                }
        ckv_ref_run_move(reference->job);
        if (seed % 2)
                fast->job->steps = (struct ckv_job_steps){
                        .batch_rows = batch_rows, .count = ckv_steps_count(fast->job, batch_rows, UINT32_MAX), .done = &done };
        gpu_run(backend, fast->job, CKV_STAGE_MOVE);
        good = fast->job->outcome == CKV_JOB_OK && done == fast->job->steps.count;
        fast->job->steps = (struct ckv_job_steps){ 0 };
        return good;
}

static void run_random(struct gpu *gpu, struct ckv_backend *backend, uint64_t seed, const struct random_shape *shape,
                       struct tally *tally) {
        struct random_job *reference = random_job_new(seed, shape), *fast = random_job_new(seed, shape);
        enum ckv_policy_field field;
        struct copies copies;
        bool good, moves = false;
        uint32_t group;

        if (ckv_backend_cuda.takes(fast->job, &group, &field)) {
                copies_open(gpu, fast, seed % 2, &copies);
                good = ckv_ref_run_plan(reference->job) == 0;
                gpu_run(backend, fast->job, CKV_STAGE_PLAN);
                good = good && plans_agree(reference->job, fast->job, tally);
                moves = good && reference->job->outcome == CKV_JOB_OK;
                good = good && (!moves || move_both(backend, seed, reference, fast));
                /* without a move both are as they were */
                good = copies_close(gpu, &copies, reference) && good;
                tally->planned++;
                tally->moved += moves;
                tally->wrong += !good;
                if (!good)
                        gpu_say("job %" PRIu64 " differs from the reference (outcome %d, driver's code %d): WRONG", seed,
                                (int)fast->job->outcome, fast->job->fail_code);
        } else
                tally->left_out++;
        (void)random_job_free(reference);
        (void)random_job_free(fast);
}

static void conform(struct gpu *gpu) {
        struct ckv_backend *backend = gpu_backend(gpu);
        const char *few = getenv("GPU_CHECK_JOBS");     /* under compute-sanitizer */
        uint32_t jobs = few ? (uint32_t)atoi(few) : gpu->stand_in ? JOBS_STAND_IN : JOBS;
        struct tally tally = { 0 };

        for (uint32_t seed = 1; seed <= jobs; seed++) {
                struct random_shape shape = {
                        .rows = gpu->stand_in ? 60 + seed : 0, .layers = gpu->stand_in ? 1 : 0, .groups = gpu->stand_in ? 1 : 0,
                        .copy_out = seed % 7 == 0, .dtype = 1 + seed % 3,
                };

                run_random(gpu, backend, seed, &shape, &tally);
        }
        for (uint32_t seed = 1; !gpu->stand_in && !few && seed <= LONG_JOBS; seed++) {
                const struct ckv_policy asked = { .window = 16 * (1 + seed % 4), .chunk = 10 };
                const struct random_shape shape = {
                        .rows = LONG_ROWS + 111 * seed, .groups = 1, .layers = 3, .kv_heads = 2, .per_group = 4, .dims = 128,
                        .dtype = 2 + seed % 2, .contiguous = seed % 3 > 0, .asked = &asked, .keep_ratio = 200000,
                };

                run_random(gpu, backend, 10000 + seed, &shape, &tally);
        }
        backend = ckv_backend_cuda.close(backend);
        gpu_judge(gpu, tally.wrong == 0 && tally.moved > 0,
                  "random jobs: %u planned, %u moved, %u not for this device, %u kept sets inside the band, %u wrong",
                  tally.planned, tally.moved, tally.left_out, tally.within, tally.wrong);
}

/* A case's rows are dense: its planes go to the device whole. Return: what to free. */
static CUdeviceptr upload_plane(const struct gpu *gpu, struct ckv_plane *plane, uint32_t rows) {
        size_t bytes = rows * plane->token.outer;
        CUdeviceptr at = gpu_alloc(gpu, bytes);

        gpu_upload(gpu, at, plane->base, bytes);
        plane->base = (uint8_t *)(uintptr_t)at;
        return at;
}

static bool run_case(const struct gpu *gpu, struct ckv_backend *backend, const struct golden *golden, const struct golden_case *c,
                     uint32_t *left_out) {
        CUdeviceptr planes[16];
        struct ckv_policy_fault fault;
        enum ckv_policy_field field;
        uint32_t count = 0, group;
        struct ckv_job *job;
        bool good = true;

        if (golden_job(golden, c, &job, &fault) < 0)
                return false;
        if (ckv_backend_cuda.takes(job, &group, &field)) {
                for (uint32_t l = 0; l < job->groups[0].layer_count; l++) {
                        planes[count++] = upload_plane(gpu, &job->groups[0].layers[l].k, job->groups[0].selection.rows);
                        if (job->groups[0].layers[l].v.base)
                                planes[count++] = upload_plane(gpu, &job->groups[0].layers[l].v, job->groups[0].selection.rows);
                }
                job->deadline_nsec = UINT64_MAX;
                gpu_run(backend, job, CKV_STAGE_PLAN);
                good = job->outcome == CKV_JOB_OK && golden_equal(c, &job->groups[0].kept[0]);
                while (count > 0)
                        GPU(gpu, cuMemFree_v2, planes[--count]);
        } else
                (*left_out)++;
        job = ckv_job_free(job);
        return good;
}

static void golden_cases(struct gpu *gpu) {
        static const char *const files[] = { "golden.json", "golden_vote.json" };
        struct ckv_backend *backend = gpu_backend(gpu);
        uint32_t step = gpu->stand_in ? GOLDEN_STEP_STAND_IN : 1;

        for (size_t f = 0; f < CKV_ARRAY_SIZE(files); f++) {
                uint32_t ran = 0, wrong = 0, left_out = 0;
                struct golden golden;

                if (golden_open(files[f], &golden) < 0) {
                        gpu_judge(gpu, false, "%s cannot be read", files[f]);
                        continue;
                }
                /* eight layers at once take the emulator ten seconds */
                for (uint32_t i = 0; i < golden.count && (!gpu->stand_in || golden.cases[i].layer_count == 1); i += step, ran++)
                        if (!run_case(gpu, backend, &golden, &golden.cases[i], &left_out)) {
                                gpu_say("%s, line %u: other rows kept: WRONG", files[f], golden.cases[i].line);
                                wrong++;
                        }
                if (ran > 0 || !gpu_skip(gpu, files[f]))
                        gpu_judge(gpu, wrong == 0, "%s: %u cases, %u not for this device, %u wrong", files[f], ran, left_out,
                                  wrong);
                golden_close(&golden);
        }
        backend = ckv_backend_cuda.close(backend);
}

static struct gpu *subject;
static void (*row)(struct gpu *gpu);

START_TEST(run_row) {
        row(subject);
}
END_TEST

static void in_suite(struct gpu *gpu, void (*of)(struct gpu *gpu)) {
        Suite *suite = suite_create("gpu-check");
        TCase *tcase = tcase_create("row");
        SRunner *runner = srunner_create(suite);

        subject = gpu;
        row = of;
        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, run_row);
        srunner_set_fork_status(runner, CK_NOFORK);
        srunner_run_all(runner, CK_SILENT);
        for (int i = 0; i < srunner_ntests_failed(runner); i++)
                gpu_judge(gpu, false, "%s", tr_msg(srunner_failures(runner)[i]));
        srunner_free(runner);
}

void gpu_row_conform(struct gpu *gpu) {
        in_suite(gpu, conform);
}

void gpu_row_golden(struct gpu *gpu) {
        in_suite(gpu, golden_cases);
}
