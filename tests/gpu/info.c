/*
 * Row info: which driver and which GPU, what it can do, and whether the images
 * load there without spills.
 */
#include "tests/gpu/gpu.h"

#include "kernels/cuda_image.h"

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

void gpu_row_info(struct gpu *gpu) {
        static const char *const kernels[] = {
#define KERNEL(name, parameters) "ckv_k_" #name,
#include "kernels/cuda/kernels.def"
#undef KERNEL
        };
        char text[CKV_CUDA_IMAGE_TEXT];
        CUfunction function;
        int registers, local;

        ckv_cuda_image_met(gpu->cuda.driver_version, text, sizeof(text));
        gpu_say("%s", text);
        gpu_say("GPU: %s, compute capability %d.%d, %d multiprocessors, %zu bytes", gpu->name, gpu->major, gpu->minor,
                gpu->processors, gpu->memory_bytes);
        say_attributes(gpu);
        for (size_t i = 0; gpu->kernels && i < CKV_ARRAY_SIZE(kernels); i++) {
                gpu_must(gpu, kernels[i], gpu->cuda.cuModuleGetFunction(&function, gpu->kernels, kernels[i]));
                GPU(gpu, cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
                GPU(gpu, cuFuncGetAttribute, &local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
                gpu_judge(gpu, local == 0, "%s: %d registers, %d bytes of local memory", kernels[i], registers, local);
        }
        gpu_judge(gpu, gpu->kernels != NULL, "an image of the kernels loads");
}
