/*
 * Row vmm: memory of cuMemCreate that another process imports by its descriptor
 * and maps read-only.  Regions that are registered for reading could be mapped
 * so, if the driver does it and the device then refuses a write.
 */
#include "tests/gpu/gpu.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char mark[] = "chunkkvd";

static CUdeviceptr map(const struct gpu *gpu, CUmemGenericAllocationHandle handle, size_t bytes) {
        CUdeviceptr at;

        GPU(gpu, cuMemAddressReserve, &at, bytes, 0, 0, 0);
        GPU(gpu, cuMemMap, at, bytes, 0, handle, 0);
        return at;
}

static CUresult set_access(const struct gpu *gpu, CUdeviceptr at, size_t bytes, int flags) {
        const CUmemAccessDesc access = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->device }, .flags = flags };

        return gpu->cuda.cuMemSetAccess(at, bytes, &access, 1);
}

void gpu_peer_readonly(struct gpu *gpu, const char *argument) {
        char *end, seen[sizeof(mark)] = "";
        long fd = strtol(argument, &end, 10);
        size_t bytes = strtoull(end + 1, NULL, 10);
        CUmemGenericAllocationHandle handle;
        CUdeviceptr at;
        CUresult code;

        GPU(gpu, cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        at = map(gpu, handle, bytes);
        code = set_access(gpu, at, bytes, CU_MEM_ACCESS_FLAGS_PROT_READ);
        gpu_say("imported memory with PROT_READ: %s", gpu_code(gpu, code));
        if (code != CUDA_SUCCESS)
                return;
        gpu_download(gpu, seen, at, sizeof(seen));
        gpu_judge(gpu, strcmp(seen, mark) == 0, "    it can be read");
        if (gpu_skip(gpu, "    a write there"))
                return;
        code = gpu->cuda.cuMemsetD32Async(at, 0, 16, gpu->stream);
        code = code == CUDA_SUCCESS ? gpu->cuda.cuStreamSynchronize(gpu->stream) : code;
        gpu_say("    a write there: %s", gpu_code(gpu, code));
}

void gpu_row_vmm(struct gpu *gpu) {
        const CUmemAllocationProp prop = {
                .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->device },
        };
        CUmemGenericAllocationHandle handle;
        char argument[64], seen[sizeof(mark)];
        struct gpu_peer peer;
        CUdeviceptr at;
        size_t bytes;
        int fd, status;

        GPU(gpu, cuMemGetAllocationGranularity, &bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        GPU(gpu, cuMemCreate, &handle, bytes, &prop, 0);
        at = map(gpu, handle, bytes);
        gpu_must(gpu, "cuMemSetAccess", set_access(gpu, at, bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
        gpu_upload(gpu, at, mark, sizeof(mark));
        GPU(gpu, cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        (void)fcntl(fd, F_SETFD, 0);            /* the peer inherits it */
        (void)snprintf(argument, sizeof(argument), "%d:%zu", fd, bytes);
        peer = gpu_peer_start(gpu, "peer-readonly", argument, 0, false);
        gpu_peer_say(&peer);
        status = gpu_peer_end(&peer, false);
        (void)close(fd);
        gpu_judge(gpu, status == 0, "the importer ends by itself, with status %d", status);
        gpu_download(gpu, seen, at, sizeof(seen));
        gpu_judge(gpu, strcmp(seen, mark) == 0, "the memory is as it was");
}
