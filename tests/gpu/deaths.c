/*
 * Row deaths: one of two processes that share memory is killed.
 *
 * The exporter, while this one writes into its memory: is that an error here,
 * and is the memory given back after the close?  The opener, as a daemon that
 * dies while rows move: how long after its pidfd is readable does another write
 * of it land, and when is what it had taken free again?  A repair after such a
 * death must come after the last write: it is held against REPAIR_WAITS_MSEC.
 */
#include "tests/gpu/gpu.h"

#include "base/clock.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

enum { MIB = 1 << 20, SHARED = 4 * MIB, OWN = 1 << 30, WRITES = 64, WATCH_MSEC = 500, REPAIR_WAITS_MSEC = 2000 };

static double msec_since(uint64_t start) {
        return 1e-6 * (double)(ckv_now_nsec() - start);
}

static void exporter_killed(struct gpu *gpu) {
        const size_t bytes = gpu->stand_in ? SHARED : (size_t)256 * MIB;
        size_t before, during, after, total;
        struct gpu_peer peer;
        CUipcMemHandle handle;
        char mark[9] = "";
        CUdeviceptr base;
        CUresult code;
        uint64_t start;

        GPU(gpu, cuMemGetInfo_v2, &before, &total);
        peer = gpu_peer_start(gpu, "peer-export", gpu->stand_in ? "4194304" : "268435456", 0, false);
        if (!gpu_peer_handle(&peer, &handle)) {
                gpu_judge(gpu, false, "exporter to be killed");
                return;
        }
        GPU(gpu, cuIpcOpenMemHandle_v2, &base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        for (uint32_t i = 0; i < 16 * WRITES; i++)
                GPU(gpu, cuMemsetD32Async, base + MIB, i, (bytes - MIB) / sizeof(uint32_t), gpu->stream);
        (void)gpu_peer_end(&peer, true);
        code = gpu->cuda.cuStreamQuery(gpu->stream);
        gpu_say("the exporter is killed while writes into its memory are queued here: %s",
                code == CUDA_ERROR_NOT_READY ? "they go on" : code == CUDA_SUCCESS ? "they had ended" : gpu_code(gpu, code));
        code = gpu->cuda.cuStreamSynchronize(gpu->stream);
        gpu_judge(gpu, code == CUDA_SUCCESS, "they end: %s", gpu_code(gpu, code));
        GPU(gpu, cuMemGetInfo_v2, &during, &total);
        gpu_download(gpu, mark, base, sizeof(mark));
        gpu_judge(gpu, strcmp(mark, "chunkkvd") == 0, "its memory can still be read after SIGKILL of the exporter");
        start = ckv_now_nsec();
        GPU(gpu, cuIpcCloseMemHandle, base);
        GPU(gpu, cuMemGetInfo_v2, &after, &total);
        gpu_say("free: %zu MiB before, %zu MiB while mapped after SIGKILL, %zu MiB %.2f ms after the close", before / MIB,
                during / MIB, after / MIB, msec_since(start));
}

void gpu_peer_write(struct gpu *gpu, const char *argument) {
        const struct gpu_peer self = { .in = STDIN_FILENO };
        CUipcMemHandle handle;
        CUdeviceptr base;

        if (!gpu_peer_handle(&self, &handle))
                exit(EXIT_FAILURE);
        GPU(gpu, cuIpcOpenMemHandle_v2, &base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        (void)gpu_alloc(gpu, strtoull(argument, NULL, 10));
        for (uint32_t i = 0;; i += WRITES) {
                for (uint32_t n = 0; n < WRITES; n++)
                        GPU(gpu, cuMemsetD32Async, base, i + n, SHARED / sizeof(uint32_t), gpu->stream);
                if (i == 0)
                        (void)!write(STDOUT_FILENO, "w", 1);
                GPU(gpu, cuStreamSynchronize, gpu->stream);
        }
}

/* Return: ms from @start to the last change that was seen */
static double watch(const struct gpu *gpu, CUdeviceptr at, uint64_t start) {
        char *old = malloc(SHARED), *new = malloc(SHARED);
        double last = 0;

        if (!old || !new)
                exit(EXIT_FAILURE);
        gpu_download(gpu, old, at, SHARED);
        while (msec_since(start) < WATCH_MSEC) {
                gpu_download(gpu, new, at, SHARED);
                if (memcmp(old, new, SHARED) != 0)
                        last = msec_since(start);
                memcpy(old, new, SHARED);
        }
        free(old);
        free(new);
        return last;
}

static void opener_killed(struct gpu *gpu) {
        CUdeviceptr at = gpu_alloc(gpu, SHARED);
        size_t before, now, total;
        struct gpu_peer peer;
        CUipcMemHandle handle;
        struct pollfd death = { .events = POLLIN };
        double last;
        uint64_t start;
        char word;

        GPU(gpu, cuIpcGetMemHandle, &handle, at);
        GPU(gpu, cuMemGetInfo_v2, &before, &total);
        peer = gpu_peer_start(gpu, "peer-write", gpu->stand_in ? "1048576" : "1073741824", 0, false);
        if (write(peer.out, &handle, sizeof(handle)) != (ssize_t)sizeof(handle) || read(peer.in, &word, 1) != 1) {
                gpu_judge(gpu, false, "opener to be killed");
                (void)gpu_peer_end(&peer, true);
                return;
        }
        death.fd = pidfd_open(peer.pid, 0);
        if (death.fd < 0)
                exit(EXIT_FAILURE);
        start = ckv_now_nsec();
        (void)kill(peer.pid, SIGKILL);
        (void)poll(&death, 1, 10000);
        gpu_say("a process that writes memory of this one is killed: its pidfd is readable after %.2f ms", msec_since(start));
        start = ckv_now_nsec();
        last = watch(gpu, at, start);
        gpu_judge(gpu, last < REPAIR_WAITS_MSEC && last < WATCH_MSEC - 100, "%s %.2f ms after that",
                  last > 0 ? "the last change of the memory was seen" : "no change of the memory was seen from", last);
        (void)gpu_peer_end(&peer, true);
        (void)close(death.fd);
        if (!gpu_skip(gpu, "when its memory is free again")) {
                do
                        GPU(gpu, cuMemGetInfo_v2, &now, &total);
                while (now + OWN / 2 < before && msec_since(start) < 2 * REPAIR_WAITS_MSEC);
                gpu_say("free: %zu MiB before it, %zu MiB %.2f ms after its end", before / MIB, now / MIB, msec_since(start));
        }
        GPU(gpu, cuMemFree_v2, at);
}

void gpu_row_deaths(struct gpu *gpu) {
        opener_killed(gpu);
        exporter_killed(gpu);
}
