/*
 * Row order: is a word that a stream writes behind a kernel seen by the CPU
 * after all that the kernel stored?  The progress word of a move and the
 * timeline words rest on it (reliability.md 14, j and k).  Row busy: how long a
 * request waits while another process keeps the device busy (l).
 */
#include "tests/gpu/gpu.h"

#include "base/clock.h"
#include "tests/gpu/probes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = 512, ROUNDS = 100000, ROUNDS_STAND_IN = 500, BLOCK = 128, REQUESTS = 50, REQUESTS_STAND_IN = 3 };

/* A page of a memfd as the daemon maps it: shared, registered, known to the device. */
static volatile uint32_t *control_page(const struct gpu *gpu, CUdeviceptr *ret_at) {
        int fd = memfd_create("gpu-check", MFD_CLOEXEC);
        void *page;

        if (fd < 0 || ftruncate(fd, PAGE) < 0)
                exit(EXIT_FAILURE);
        page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        (void)close(fd);
        if (page == MAP_FAILED)
                exit(EXIT_FAILURE);
        GPU(gpu, cuMemHostRegister_v2, page, PAGE, CU_MEMHOSTREGISTER_DEVICEMAP);
        GPU(gpu, cuMemHostGetDevicePointer_v2, ret_at, page, 0);
        return page;
}

/* A kernel, or where there is none a fill, stores @stamp to all words but the first. */
static void stamp(const struct gpu *gpu, CUfunction function, CUdeviceptr page, uint32_t value) {
        struct probe_stamp p = { .data = page + sizeof(uint32_t), .count = WORDS - 1, .stamp = value };

        if (function)
                gpu_launch(gpu, function, (WORDS + BLOCK - 1) / BLOCK, BLOCK, &p);
        else
                GPU(gpu, cuMemsetD32Async, p.data, value, p.count, gpu->stream);
}

void gpu_row_order(struct gpu *gpu) {
        CUfunction function = gpu_function(gpu, "probe_stamp");
        uint32_t rounds = gpu->stand_in ? ROUNDS_STAND_IN : ROUNDS, late = 0;
        CUdeviceptr at;
        volatile uint32_t *page = control_page(gpu, &at);
        uint64_t start = ckv_now_nsec();

        for (uint32_t i = 1; i <= rounds; i++) {
                stamp(gpu, function, at, i);
                GPU(gpu, cuStreamWriteValue32_v2, gpu->stream, at, i, CU_STREAM_WRITE_VALUE_DEFAULT);
                /* the next kernel is there already: its stores must not overtake the word either */
                stamp(gpu, function, at, i);
                while (__atomic_load_n((const uint32_t *)(uintptr_t)page, __ATOMIC_ACQUIRE) != i)
                        ;
                for (uint32_t w = 1; w < WORDS; w++)
                        late += page[w] < i;
        }
        GPU(gpu, cuStreamSynchronize, gpu->stream);
        gpu_judge(gpu, late == 0, "a word written behind a kernel on a registered memfd page, %u rounds: %u stores seen after it",
                  rounds, late);
        gpu_say("a step (kernel, word, seen by the CPU): %.1f us%s", 1e-3 * (double)(ckv_now_nsec() - start) / rounds,
                gpu->stand_in ? " (stand-in: means nothing)" : "");
        start = ckv_now_nsec();
        for (uint32_t i = 1; i <= rounds; i++)
                GPU(gpu, cuStreamWriteValue32_v2, gpu->stream, at, i, CU_STREAM_WRITE_VALUE_DEFAULT);
        GPU(gpu, cuStreamSynchronize, gpu->stream);
        gpu_say("a word alone, queued behind others: %.2f us", 1e-3 * (double)(ckv_now_nsec() - start) / rounds);
}

static struct ckv_job *small_job(CUdeviceptr planes, uint32_t rows) {
        struct ckv_job *job = ckv_job_new(1);
        const struct ckv_policy asked = { .scorer = CKV_SCORER_KNORM };
        struct ckv_policy_fault fault;
        uint32_t *entries = calloc(1, sizeof(*entries));
        struct ckv_job_group *group = job ? job->groups : NULL;

        if (!group || !entries || !ckv_policy_resolve(&asked, &group->policy, &fault))
                exit(EXIT_FAILURE);
        group->layers = calloc(1, sizeof(*group->layers));
        if (!group->layers)
                exit(EXIT_FAILURE);
        group->kv_heads = group->q_heads = 8;
        group->head_dim_k = group->head_dim_v = 128;
        group->layer_count = 1;
        group->table = (struct ckv_row_table){ .entries = entries, .tokens_per_block = rows };
        group->layers[0].k = (struct ckv_plane){
                .base = (uint8_t *)(uintptr_t)planes, .dtype = CKV_DTYPE_BF16, .dims = 128, .dim = { .tile = 1, .outer = 2 },
                .head_stride = 256, .token = { .tile = 1, .outer = 2048 },
        };
        group->layers[0].v = group->layers[0].k;
        group->layers[0].v.base += (size_t)rows * 2048;
        group->selection.rows = rows;
        group->selection.keep_ratio = 200000;
        job->deadline_nsec = UINT64_MAX;
        return job;
}

static int compare(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static void latencies(struct gpu *gpu, struct ckv_backend *backend, CUdeviceptr planes, uint32_t rows, const char *what) {
        uint32_t count = gpu->stand_in ? REQUESTS_STAND_IN : REQUESTS;
        double usec[REQUESTS];

        for (uint32_t i = 0; i < count; i++) {
                struct ckv_job *job = small_job(planes, rows);
                uint64_t start = ckv_now_nsec();

                gpu_run(backend, job, CKV_STAGE_PLAN);
                usec[i] = 1e-3 * (double)(ckv_now_nsec() - start);
                if (job->outcome != CKV_JOB_OK)
                        gpu_judge(gpu, false, "a plan beside other work: outcome %d", (int)job->outcome);
                job = ckv_job_free(job);
        }
        qsort(usec, count, sizeof(*usec), compare);
        gpu_say("a plan of one layer, %u rows, %s: median %.0f us, longest %.0f us%s", rows, what, usec[count / 2], usec[count - 1],
                gpu->stand_in ? " (stand-in: means nothing)" : "");
}

void gpu_row_busy(struct gpu *gpu) {
        uint32_t rows = gpu->stand_in ? 200 : 8192;
        struct ckv_backend *backend = gpu_backend(gpu);
        CUdeviceptr planes = gpu_alloc(gpu, (size_t)rows * 4096);
        struct gpu_peer peer;
        char word;

        gpu_fill(gpu, planes, (size_t)rows * 4096);
        latencies(gpu, backend, planes, rows, "the device idle");
        if (!gpu_skip(gpu, "the same beside a busy process")) {
                peer = gpu_peer_start(gpu, "burn", "", 0, false);
                if (read(peer.in, &word, 1) == 1)
                        latencies(gpu, backend, planes, rows, "another process keeps it busy");
                else
                        gpu_say("the same beside a busy process: skipped: no image of the probes");
                (void)gpu_peer_end(&peer, true);
        }
        backend = ckv_backend_cuda.close(backend);
}
