/*
 * Row order: is a word that a stream writes between two kernels seen by the CPU
 * after all that the first one stored, and before all that the second one does?
 * The progress word of a move rests on it.  Does a stream that waits for a word
 * of the CPU hold back what is behind it?  The timeline words rest on that.
 * Row busy: how long a request waits while another process keeps the device busy.
 */
#include "tests/gpu/gpu.h"

#include "base/clock.h"
#include "tests/gpu/probes.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = 512, ROUNDS = 100000, ROUNDS_STAND_IN = 500, BLOCK = 128, REQUESTS = 50, REQUESTS_STAND_IN = 3 };
enum { WAIT = 4, DONE = 8, LOW = 16, HIGH = 256 };      /* words of the page: 0 is the progress word */

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

/* A kernel, or where there is none a fill, stores @value to @count words from @first on. */
static void stamp(const struct gpu *gpu, CUfunction function, CUdeviceptr page, uint32_t first, uint32_t count, uint32_t value) {
        struct probe_stamp p = { .data = page + first * sizeof(uint32_t), .count = count, .stamp = value };

        if (function)
                gpu_launch(gpu, function, (count + BLOCK - 1) / BLOCK, BLOCK, &p);
        else
                GPU(gpu, cuMemsetD32Async, p.data, value, p.count, gpu->stream);
}

/* acquire: what is read after it was not read before it */
static uint32_t look(const volatile uint32_t *word) {
        return __atomic_load_n((const uint32_t *)(uintptr_t)word, __ATOMIC_ACQUIRE);
}

static uint32_t count_older(const volatile uint32_t *page, uint32_t first, uint32_t end, uint32_t than) {
        uint32_t older = 0;

        for (uint32_t w = first; w < end; w++)
                older += page[w] < than;
        return older;
}

/* Kernel, word, kernel: words [LOW, HIGH) are of the first kernel, those behind of the second, word 0 comes between. */
static void word_between_kernels(struct gpu *gpu, CUfunction function, volatile uint32_t *page, CUdeviceptr at, uint32_t rounds) {
        uint32_t late = 0, early = 0;
        uint64_t start = ckv_now_nsec();

        for (uint32_t i = 1; i <= rounds; i++) {
                stamp(gpu, function, at, LOW, HIGH - LOW, i);
                GPU(gpu, cuStreamWriteValue32_v2, gpu->stream, at, i, CU_STREAM_WRITE_VALUE_DEFAULT);
                stamp(gpu, function, at, HIGH, WORDS - HIGH, i);
                if (i % 2) {
                        while (look(page) != i)
                                ;
                        late += count_older(page, LOW, HIGH, i);
                } else {
                        /* some word of the second kernel, another in each round, is waited for instead */
                        while (look(page + HIGH + i / 2 % (WORDS - HIGH)) != i)
                                ;
                        early += look(page) != i;
                        late += count_older(page, LOW, HIGH, i);
                }
                GPU(gpu, cuStreamSynchronize, gpu->stream);
        }
        gpu_judge(gpu, late == 0, "a word written behind a kernel on a registered memfd page, %u rounds: %u stores seen after it",
                  rounds, late);
        gpu_judge(gpu, early == 0, "the kernel behind the word, %u rounds: %u of its stores seen before the word", rounds / 2,
                  early);
        gpu_say("a step (kernel, word, kernel, waited for): %.1f us%s", 1e-3 * (double)(ckv_now_nsec() - start) / rounds,
                gpu->stand_in ? " (stand-in: means nothing)" : "");
}

/* A timeline word of 64 bits that the CPU writes and a stream waits for, and one that the stream writes behind its kernel. */
static void timeline_words(struct gpu *gpu, CUfunction function, volatile uint32_t *page, CUdeviceptr at, uint32_t rounds) {
        uint64_t *wait = (uint64_t *)(uintptr_t)(page + WAIT), *done = (uint64_t *)(uintptr_t)(page + DONE);
        const uint64_t base = UINT64_C(1) << 40;        /* more than 32 bits hold */
        uint32_t early = 0, late = 0;
        int able = 0;

        GPU(gpu, cuDeviceGetAttribute, &able, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, gpu->device);
        if (!able || !gpu->cuda.cuStreamWaitValue64_v2) {
                gpu_say("timeline words: skipped: this device or driver waits for no 64-bit words");
                return;
        }
        for (uint32_t i = 1; i <= rounds; i++) {
                const uint32_t value = rounds + i;

                GPU(gpu, cuStreamWaitValue64_v2, gpu->stream, at + WAIT * sizeof(uint32_t), base + i, CU_STREAM_WAIT_VALUE_GEQ);
                stamp(gpu, function, at, LOW, WORDS - LOW, value);
                GPU(gpu, cuStreamWriteValue64_v2, gpu->stream, at + DONE * sizeof(uint32_t), base + i,
                    CU_STREAM_WRITE_VALUE_DEFAULT);
                if (i % 16 == 0)
                        (void)usleep(200);
                early += look(page + LOW) == value || look(page + WORDS - 1) == value;
                __atomic_store_n(wait, base + i, __ATOMIC_RELEASE);
                while (__atomic_load_n(done, __ATOMIC_ACQUIRE) != base + i)
                        ;
                late += count_older(page, LOW, WORDS, value);
        }
        GPU(gpu, cuStreamSynchronize, gpu->stream);
        gpu_judge(gpu, early == 0, "cuStreamWaitValue64 on a word of the CPU, %u rounds: the kernel behind it ran before %u times",
                  rounds, early);
        gpu_judge(gpu, late == 0, "cuStreamWriteValue64 behind it: %u stores seen after the word", late);
}

void gpu_row_order(struct gpu *gpu) {
        CUfunction function = gpu_function(gpu, "probe_stamp");
        uint32_t rounds = gpu->stand_in ? ROUNDS_STAND_IN : ROUNDS;
        CUdeviceptr at;
        volatile uint32_t *page = control_page(gpu, &at);
        uint64_t start;

        word_between_kernels(gpu, function, page, at, rounds);
        timeline_words(gpu, function, page, at, rounds / 4);
        start = ckv_now_nsec();
        for (uint32_t i = 1; i <= rounds; i++) {
                stamp(gpu, function, at, LOW, HIGH - LOW, i);
                GPU(gpu, cuStreamWriteValue32_v2, gpu->stream, at, i, CU_STREAM_WRITE_VALUE_DEFAULT);
        }
        GPU(gpu, cuStreamSynchronize, gpu->stream);
        gpu_say("a kernel and a word, queued behind others: %.2f us", 1e-3 * (double)(ckv_now_nsec() - start) / rounds);
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
                peer = gpu_peer_start(gpu, "peer-burn", "", 0, false);
                if (read(peer.in, &word, 1) == 1)
                        latencies(gpu, backend, planes, rows, "another process keeps it busy");
                else
                        gpu_say("the same beside a busy process: skipped: no image of the probes");
                (void)gpu_peer_end(&peer, true);
        }
        backend = ckv_backend_cuda.close(backend);
}
