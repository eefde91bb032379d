/*
 * Row ipc: what opening another process's memory costs, by size, and whether
 * closing it holds up a stream.  Row codes: which number the driver gives to
 * each handle that is bad.  Row users: the same between users and between pid
 * namespaces, with other and with equal pid numbers.
 */
#include "tests/gpu/gpu.h"

#include "base/clock.h"
#include "tests/gpu/probes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, NOBODY = 65534, OPENS = 5 };

static double usec_since(uint64_t start) {
        return 1e-3 * (double)(ckv_now_nsec() - start);
}

static CUresult open_and_look(const struct gpu *gpu, CUipcMemHandle handle, bool *ret_right) {
        char mark[9] = "";
        CUdeviceptr base;
        CUresult code = gpu->cuda.cuIpcOpenMemHandle_v2(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

        *ret_right = false;
        if (code != CUDA_SUCCESS)
                return code;
        gpu_download(gpu, mark, base, sizeof(mark));
        *ret_right = strcmp(mark, "chunkkvd") == 0;
        return gpu->cuda.cuIpcCloseMemHandle(base);
}

/* With a kernel of some milliseconds in this process's stream: does a close wait for it? */
static void close_beside_work(const struct gpu *gpu, CUipcMemHandle handle) {
        CUfunction copy = gpu_function(gpu, "probe_copy");
        const size_t bytes = (size_t)1 << 30;
        struct probe_copy p = { .vectors = bytes / 16 };
        CUdeviceptr base;
        double close_usec, all_usec;
        uint64_t start;

        if (!copy)
                return;
        p.from = gpu_alloc(gpu, bytes);
        p.to = gpu_alloc(gpu, bytes);
        gpu_launch(gpu, copy, 8 * (uint32_t)gpu->processors, 256, &p);
        GPU(gpu, cuIpcOpenMemHandle_v2, &base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        GPU(gpu, cuStreamSynchronize, gpu->stream);
        start = ckv_now_nsec();
        for (int i = 0; i < 20; i++)
                gpu_launch(gpu, copy, 8 * (uint32_t)gpu->processors, 256, &p);
        GPU(gpu, cuIpcCloseMemHandle, base);
        close_usec = usec_since(start);
        GPU(gpu, cuStreamSynchronize, gpu->stream);
        all_usec = usec_since(start);
        gpu_say("close beside 20 copies of 1 GiB: returned after %.0f us of the %.0f us that they took", close_usec, all_usec);
        GPU(gpu, cuMemFree_v2, p.from);
        GPU(gpu, cuMemFree_v2, p.to);
}

void gpu_row_ipc(struct gpu *gpu) {
        static const size_t sizes[] = { 2, 64, 1024, 32768 };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(sizes); i++) {
                size_t bytes = sizes[i] * MIB;
                double open_usec = 1e9, close_usec = 1e9;
                CUipcMemHandle handle;
                struct gpu_peer peer;
                char number[24];
                CUdeviceptr base;

                if (bytes > gpu->memory_bytes / 2 || (gpu->stand_in && bytes > 64 * (size_t)MIB))
                        continue;
                (void)snprintf(number, sizeof(number), "%zu", bytes);
                peer = gpu_peer_start(gpu, "peer-export", number, 0, false);
                if (!gpu_peer_handle(&peer, &handle)) {
                        gpu_judge(gpu, false, "export of %zu MiB", sizes[i]);
                        (void)gpu_peer_end(&peer, true);
                        continue;
                }
                for (int n = 0; n < OPENS; n++) {
                        uint64_t start = ckv_now_nsec();

                        GPU(gpu, cuIpcOpenMemHandle_v2, &base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
                        open_usec = CKV_MIN(open_usec, usec_since(start));
                        start = ckv_now_nsec();
                        GPU(gpu, cuIpcCloseMemHandle, base);
                        close_usec = CKV_MIN(close_usec, usec_since(start));
                }
                gpu_say("%zu MiB: open %.0f us, close %.0f us%s", sizes[i], open_usec, close_usec,
                        gpu->stand_in ? " (stand-in: not a driver's)" : "");
                if (i == 1)
                        close_beside_work(gpu, handle);
                (void)gpu_peer_end(&peer, false);
        }
}

void gpu_row_codes(struct gpu *gpu) {
        struct gpu_peer peer = gpu_peer_start(gpu, "peer-export", "2097152", 0, false);
        CUdeviceptr base, again, own = gpu_alloc(gpu, MIB), part;
        CUipcMemHandle handle, bad, mine;
        size_t bytes;
        bool right;

        if (!gpu_peer_handle(&peer, &handle)) {
                gpu_judge(gpu, false, "export");
                return;
        }
        gpu_say("opened: %s", gpu_code(gpu, open_and_look(gpu, handle, &right)));
        gpu_judge(gpu, right, "the bytes of the other process are there");
        GPU(gpu, cuIpcOpenMemHandle_v2, &base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        gpu_say("opened twice: %s%s", gpu_code(gpu, gpu->cuda.cuIpcOpenMemHandle_v2(&again, handle, 1)),
                again == base ? ", the same address" : "");
        GPU(gpu, cuMemGetAddressRange_v2, &part, &bytes, base + 4096);
        gpu_judge(gpu, part == base && bytes >= 2 * (size_t)MIB, "the range of an address inside begins at its base: %zu bytes", bytes);
        (void)gpu->cuda.cuIpcCloseMemHandle(base);
        (void)gpu->cuda.cuIpcCloseMemHandle(base);
        gpu_say("closed once more: %s", gpu_code(gpu, gpu->cuda.cuIpcCloseMemHandle(base)));
        GPU(gpu, cuIpcGetMemHandle, &mine, own);
        gpu_say("of the same process: %s", gpu_code(gpu, gpu->cuda.cuIpcOpenMemHandle_v2(&base, mine, 1)));
        bad = handle;
        bad.reserved[20] ^= 1;
        gpu_say("with a flipped bit: %s", gpu_code(gpu, gpu->cuda.cuIpcOpenMemHandle_v2(&base, bad, 1)));
        memset(&bad, 0, sizeof(bad));
        gpu_say("all zero: %s", gpu_code(gpu, gpu->cuda.cuIpcOpenMemHandle_v2(&base, bad, 1)));
        gpu_say("without the flag: %s", gpu_code(gpu, gpu->cuda.cuIpcOpenMemHandle_v2(&base, handle, 0)));
        (void)gpu_peer_end(&peer, false);
        gpu_say("after the exporter freed it and ended: %s", gpu_code(gpu, open_and_look(gpu, handle, &right)));
        GPU(gpu, cuMemFree_v2, own);
}

static void open_from(struct gpu *gpu, const char *what, uint32_t uid, bool new_pids) {
        struct gpu_peer peer;
        CUipcMemHandle handle;
        bool right;

        if (getuid() != 0) {
                gpu_say("%s: skipped: only root can try", what);
                return;
        }
        peer = gpu_peer_start(gpu, "peer-export", "2097152", uid, new_pids);
        if (!gpu_peer_handle(&peer, &handle))
                gpu_say("%s: it could not export", what);
        else {
                gpu_say("%s: %s", what, gpu_code(gpu, open_and_look(gpu, handle, &right)));
                if (right)
                        gpu_say("    and the bytes are there");
        }
        (void)gpu_peer_end(&peer, false);
}

void gpu_peer_look(struct gpu *gpu, const char *argument) {
        const struct gpu_peer self = { .in = STDIN_FILENO };
        CUipcMemHandle handle;
        CUresult code;
        bool right;

        (void)argument;
        if (!gpu_peer_handle(&self, &handle))
                exit(EXIT_FAILURE);
        code = open_and_look(gpu, handle, &right);
        gpu_say("    %s%s", gpu_code(gpu, code), right ? ", and the bytes are there" : "");
}

/* Both are process 1, each of a namespace of its own: the driver may take them for one. */
static void equal_numbers(struct gpu *gpu) {
        struct gpu_peer exporter, opener;
        CUipcMemHandle handle;

        if (getuid() != 0) {
                gpu_say("between two pid namespaces, equal numbers: skipped: only root can try");
                return;
        }
        gpu_say("between two pid namespaces, both processes have number 1:");
        exporter = gpu_peer_start(gpu, "peer-export", "2097152", 0, true);
        if (gpu_peer_handle(&exporter, &handle)) {
                opener = gpu_peer_start(gpu, "peer-look", "", 0, true);
                (void)!write(opener.out, &handle, sizeof(handle));
                gpu_peer_say(&opener);
                (void)gpu_peer_end(&opener, false);
        } else
                gpu_say("    it could not export");
        (void)gpu_peer_end(&exporter, false);
}

void gpu_row_users(struct gpu *gpu) {
        open_from(gpu, "exported by another user", NOBODY, false);
        open_from(gpu, "exported from another pid namespace", 0, true);
        equal_numbers(gpu);
}
