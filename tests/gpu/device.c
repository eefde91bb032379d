/*
 * The device of gpu-check, and what its rows share.  Everything that goes wrong
 * with the driver itself ends the process: the script then goes on with the
 * next row.
 */
#include "tests/gpu/gpu.h"

#include "base/clock.h"
#include "kernels/cuda_image.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { FILL_BYTES = 64 << 20, FILL_SMALL = 1 << 20, TIMES = 5 };

void gpu_say(const char *format, ...) {
        va_list arguments;

        va_start(arguments, format);
        (void)vprintf(format, arguments);
        va_end(arguments);
        (void)printf("\n");
        (void)fflush(stdout);
}

void gpu_judge(struct gpu *gpu, bool good, const char *format, ...) {
        char text[512];
        va_list arguments;

        va_start(arguments, format);
        (void)vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        gpu->failures += !good;
        gpu_say("%s: %s", text, good ? "ok" : "WRONG");
}

bool gpu_skip(const struct gpu *gpu, const char *what) {
        if (gpu->stand_in)
                gpu_say("%s: skipped: stand-in", what);
        return gpu->stand_in;
}

const char *gpu_code(const struct gpu *gpu, CUresult code) {
        static char text[64];

        ckv_cuda_name(&gpu->cuda, code, text, sizeof(text));
        return text;
}

void gpu_must(const struct gpu *gpu, const char *what, CUresult code) {
        if (code == CUDA_SUCCESS)
                return;
        gpu_say("%s: %s: WRONG", what, gpu_code(gpu, code));
        exit(EXIT_FAILURE);
}

static CUmodule load_probes(const struct gpu *gpu, const char *path) {
        struct stat info;
        CUmodule module;
        void *image;
        int fd = path && !gpu->stand_in ? open(path, O_RDONLY | O_CLOEXEC) : -1;

        if (fd < 0 || fstat(fd, &info) < 0)
                return NULL;
        image = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        (void)close(fd);
        if (image == MAP_FAILED)
                return NULL;
        GPU(gpu, cuModuleLoadDataEx, &module, image, 0, NULL, NULL);
        return module;
}

void gpu_open(const char *library, const char *probes_path, struct gpu *ret_gpu) {
        struct gpu *gpu = ret_gpu;
        struct ckv_cuda_fault fault;
        const void *image;
        CUuuid uuid;

        *gpu = (struct gpu){ .library = library, .probes_path = probes_path };
        if (ckv_cuda_load(library, 0, &gpu->cuda, &fault) < 0) {
                gpu_say("driver: %s: WRONG", fault.text);
                exit(GPU_NONE);
        }
        GPU(gpu, cuDeviceGet, &gpu->device, 0);
        GPU(gpu, cuDeviceGetUuid_v2, &uuid, gpu->device);
        GPU(gpu, cuDeviceGetName, gpu->name, sizeof(gpu->name), gpu->device);
        GPU(gpu, cuDeviceGetAttribute, &gpu->major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu->device);
        GPU(gpu, cuDeviceGetAttribute, &gpu->minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu->device);
        GPU(gpu, cuDeviceGetAttribute, &gpu->processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->device);
        GPU(gpu, cuDeviceTotalMem_v2, &gpu->memory_bytes, gpu->device);
        gpu->stand_in = memcmp(uuid.bytes, "chunkkvd-standin", sizeof(uuid.bytes)) == 0;
        GPU(gpu, cuDevicePrimaryCtxRetain, &gpu->context, gpu->device);
        GPU(gpu, cuCtxSetCurrent, gpu->context);
        GPU(gpu, cuStreamCreateWithPriority, &gpu->stream, CU_STREAM_NON_BLOCKING, 0);
        if (ckv__cuda_image_find(gpu->major, gpu->minor, &image, &fault) < 0)
                gpu_say("image: %s: WRONG", fault.text);
        else
                GPU(gpu, cuModuleLoadDataEx, &gpu->kernels, image, 0, NULL, NULL);
        gpu->probes = load_probes(gpu, probes_path);
}

CUdeviceptr gpu_alloc(const struct gpu *gpu, size_t bytes) {
        CUdeviceptr at;

        GPU(gpu, cuMemAlloc_v2, &at, bytes);
        return at;
}

void gpu_upload(const struct gpu *gpu, CUdeviceptr to, const void *from, size_t bytes) {
        GPU(gpu, cuMemcpyHtoDAsync_v2, to, from, bytes, gpu->stream);
        GPU(gpu, cuStreamSynchronize, gpu->stream);
}

void gpu_download(const struct gpu *gpu, void *to, CUdeviceptr from, size_t bytes) {
        GPU(gpu, cuMemcpyDtoHAsync_v2, to, from, bytes, gpu->stream);
        GPU(gpu, cuStreamSynchronize, gpu->stream);
}

static uint16_t normal_bits(uint64_t *state) {
        float sum = -6;
        uint32_t bits;

        for (int i = 0; i < 12; i++) {
                *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                sum += (float)(*state >> 40 & 0xffff) * 0x1p-16f;
        }
        memcpy(&bits, &sum, sizeof(bits));
        return (uint16_t)(bits >> 16);
}

void gpu_fill(const struct gpu *gpu, CUdeviceptr to, size_t bytes) {
        const size_t most = gpu->stand_in ? FILL_SMALL : FILL_BYTES;
        static uint16_t *normals;
        uint64_t state = 1;

        if (!normals) {
                normals = malloc(most);
                if (!normals)
                        exit(EXIT_FAILURE);
                for (size_t i = 0; i < most / sizeof(*normals); i++)
                        normals[i] = normal_bits(&state);
        }
        for (size_t at = 0; at < bytes; at += most)
                gpu_upload(gpu, to + at, normals, CKV_MIN(most, bytes - at));
}

CUfunction gpu_function(const struct gpu *gpu, const char *name) {
        CUfunction function;

        if (!gpu->probes)
                return NULL;
        gpu_must(gpu, name, gpu->cuda.cuModuleGetFunction(&function, gpu->probes, name));
        return function;
}

void gpu_launch(const struct gpu *gpu, CUfunction function, uint32_t grid, uint32_t block, void *parameters) {
        GPU(gpu, cuLaunchKernel, function, grid, 1, 1, block, 1, 1, 0, gpu->stream, &parameters, NULL);
}

double gpu_seconds(const struct gpu *gpu, CUfunction function, uint32_t grid, uint32_t block, void *parameters, uint32_t repeats) {
        CUevent start, end;
        double best = 1e9;
        float msec;

        GPU(gpu, cuEventCreate, &start, 0);
        GPU(gpu, cuEventCreate, &end, 0);
        gpu_launch(gpu, function, grid, block, parameters);
        for (uint32_t i = 0; i < TIMES; i++) {
                GPU(gpu, cuEventRecord, start, gpu->stream);
                for (uint32_t n = 0; n < repeats; n++)
                        gpu_launch(gpu, function, grid, block, parameters);
                GPU(gpu, cuEventRecord, end, gpu->stream);
                GPU(gpu, cuStreamSynchronize, gpu->stream);
                GPU(gpu, cuEventElapsedTime, &msec, start, end);
                best = CKV_MIN(best, 1e-3 * (double)msec / repeats);
        }
        GPU(gpu, cuEventDestroy_v2, start);
        GPU(gpu, cuEventDestroy_v2, end);
        return best;
}

struct ckv_backend *gpu_backend(const struct gpu *gpu) {
        char why[256] = "";
        const struct ckv_backend_options options = {
                .slice_usec = 2000, .library = gpu->library, .ret_why = why, .why_bytes = sizeof(why),
        };
        struct ckv_backend *backend;
        int r = ckv_backend_cuda.open(&options, &backend);

        if (r == 0)
                return backend;
        gpu_say("the backend does not open: %s %s: WRONG", strerror(-r), why);
        exit(EXIT_FAILURE);
}

void gpu_run(struct ckv_backend *backend, struct ckv_job *job, enum ckv_stage stage) {
        struct pollfd done = { .fd = ckv_backend_cuda.wait_fd(backend), .events = POLLIN };

        job->stage = stage;
        ckv_backend_cuda.submit(backend, job);
        while (ckv_backend_cuda.reap(backend) != job)
                (void)poll(&done, 1, 1000);
}
