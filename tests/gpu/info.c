/*
 * Row info: which driver and which GPU, what it can do, and whether the images
 * load there without spills and with the registers that the build allows.
 *
 * What the build allows stands in a table for people and tools/cuda-images,
 * which is read here once more: a driver that takes another image, or makes one
 * of PTX, would be seen by other numbers.
 */
#include "tests/gpu/gpu.h"

#include "kernels/cuda_image.h"

#include <stdio.h>
#include <string.h>

#define BOUNDS "kernels/cuda/registers.txt"

enum { ARCHITECTURES = 6 };
static const int architectures[ARCHITECTURES] = { 80, 86, 89, 90, 100, 120 }; /* the columns of BOUNDS */

static void say_attributes(const struct gpu *gpu) {
        static const struct {
                const char *name;
                int number;
        } attributes[] = {
                { "opt-in shared memory of a block, bytes", CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN },
                { "L2 cache, bytes", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE },
                { "maps host memory", CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY },
                { "64-bit stream memory operations", CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS },
                { "exports memory as descriptors", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED },
                { "compute mode (0: default, 3: exclusive)", CU_DEVICE_ATTRIBUTE_COMPUTE_MODE },
        };
        int value;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(attributes); i++) {
                GPU(gpu, cuDeviceGetAttribute, &value, attributes[i].number, gpu->device);
                gpu_say("%s: %d", attributes[i].name, value);
        }
}

/* Column of BOUNDS for the machine code that this GPU runs; ARCHITECTURES: it runs PTX. */
static int column_of(const struct gpu *gpu) {
        int found = ARCHITECTURES;

        for (int i = 0; i < ARCHITECTURES; i++)
                if (architectures[i] / 10 == gpu->major && architectures[i] % 10 <= gpu->minor)
                        found = i;
        return found;
}

/* Return: most registers of a thread of @kernel; 0: the table says nothing of it. */
static int bound_of(const struct gpu *gpu, const char *kernel) {
        char line[256], name[64], version[32], of[64], compiler[sizeof(name) + sizeof(version)];
        int most[ARCHITECTURES + 1] = { 0 }, bound = 0;
        FILE *file = fopen(BOUNDS, "re");

        while (file && fgets(line, sizeof(line), file)) {
                if (sscanf(line, "%63s %31s %63s %d %d %d %d %d %d", name, version, of, &most[0], &most[1], &most[2], &most[3],
                           &most[4], &most[5]) != 3 + ARCHITECTURES || strcmp(of, kernel) != 0)
                        continue;
                (void)snprintf(compiler, sizeof(compiler), "%s %s", name, version);
                if (ckv__cuda_images.compiler && strcmp(compiler, ckv__cuda_images.compiler) == 0)
                        bound = most[column_of(gpu)];
        }
        if (file)
                (void)fclose(file);
        return bound;
}

static void judge_kernel(struct gpu *gpu, const char *kernel) {
        int registers, local, most = bound_of(gpu, kernel);
        CUfunction function;

        gpu_must(gpu, kernel, gpu->cuda.cuModuleGetFunction(&function, gpu->kernels, kernel));
        GPU(gpu, cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
        GPU(gpu, cuFuncGetAttribute, &local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
        gpu_judge(gpu, local == 0, "%s: %d bytes of local memory", kernel, local);
        if (registers == 0 && gpu_skip(gpu, "  registers"))
                return;
        if (most)
                gpu_judge(gpu, registers > 0 && registers <= most, "  %d registers, and " BOUNDS " allows %d", registers, most);
        else
                gpu_say("  %d registers; skipped: " BOUNDS " has no bound for what made this image", registers);
}

void gpu_row_info(struct gpu *gpu) {
        static const char *const kernels[] = {
#define KERNEL(name, parameters) "ckv_k_" #name,
#include "kernels/cuda/kernels.def"
#undef KERNEL
        };
        char text[CKV_CUDA_IMAGE_TEXT];

        ckv_cuda_image_met(gpu->cuda.driver_version, text, sizeof(text));
        gpu_say("%s", text);
        gpu_say("GPU: %s, compute capability %d.%d, %d multiprocessors, %zu bytes", gpu->name, gpu->major, gpu->minor,
                gpu->processors, gpu->memory_bytes);
        say_attributes(gpu);
        for (size_t i = 0; gpu->kernels && i < CKV_ARRAY_SIZE(kernels); i++)
                judge_kernel(gpu, kernels[i]);
        gpu_judge(gpu, gpu->kernels != NULL, "an image of the kernels loads");
}
