/*
 * The stand-in for the CUDA driver through the table that the daemon uses: two
 * processes share memory, faults come when they are asked for, and what is said
 * of a driver that cannot be used.  A process that shares forks before it has
 * threads, and each side loads the driver for itself.
 */
#include "kernels/cuda_api.h"

#include "base/macros.h"
#include "kernels/cuda/params.h"
#include "tests/support_fake.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { COUNT = 1000, INSIDE = 4096, BYTES = 1 << 20, PIECE = 64 << 10 };

struct add {
        CUdeviceptr data;
        uint32_t count, by;
};

struct device {
        struct ckv_cuda cuda;
        CUcontext context;
        CUstream stream;
        CUfunction add, units;
};

static void device_open(struct device *device) {
        struct ckv_cuda_fault fault;
        CUmodule module;

        *device = (struct device){ 0 };
        ck_assert_int_eq(ckv_cuda_load(support_fake_path(), 13000, &device->cuda, &fault), 0);
        ck_assert_int_eq(device->cuda.cuDevicePrimaryCtxRetain(&device->context, 0), 0);
        ck_assert_int_eq(device->cuda.cuCtxSetCurrent(device->context), 0);
        ck_assert_int_eq(device->cuda.cuStreamCreateWithPriority(&device->stream, CU_STREAM_NON_BLOCKING, 0), 0);
        ck_assert_int_eq(device->cuda.cuModuleLoadDataEx(&module, "image", 0, NULL, NULL), CUDA_ERROR_INVALID_IMAGE);
        ck_assert_int_eq(device->cuda.cuModuleLoadDataEx(&module, "\x50\xed\x55\xba", 0, NULL, NULL), 0);
        ck_assert_int_eq(device->cuda.cuModuleGetFunction(&device->units, module, "ckv_k_units"), 0);
        ck_assert_int_eq(device->cuda.cuModuleGetFunction(&device->add, module, "fake_add"), 0);
        ck_assert_int_eq(device->cuda.cuModuleGetFunction(&device->add, module, "other"), CUDA_ERROR_NOT_FOUND);
}

static CUresult launch(const struct device *device, CUdeviceptr data, uint32_t block) {
        struct add add = { .data = data, .count = COUNT, .by = 1 };

        return device->cuda.cuLaunchKernel(device->add, 8, 1, 1, block, 1, 1, 0, device->stream, &(void *){ &add }, NULL);
}

static void device_close(struct device *device) {
        ck_assert_int_eq(device->cuda.cuStreamDestroy_v2(device->stream), 0);
        ckv_cuda_unload(&device->cuda);
}

/* A kernel of the project, with everything that it reads in device memory: three rows to a unit. */
START_TEST(kernels_run_in_the_emulator) {
        struct sums {
                float rows[12];
                uint32_t unit_of_row[12], first_row[4], size[4];
                float out[4];
        } sums;
        struct ckv_k_units p = { .sets = 1, .rows = 12, .units = 4, .unit_reduce = 2 };
        struct ckv_k_launch at = ckv_k_plan_units(&p);
        struct device device;
        CUdeviceptr base;

        for (uint32_t i = 0; i < 12; i++) {
                sums.rows[i] = (float)i;
                sums.unit_of_row[i] = i / 3;
                sums.first_row[i / 3] = i / 3 * 3;
                sums.size[i / 3] = 3;
        }
        device_open(&device);
        ck_assert_int_eq(device.cuda.cuMemAlloc_v2(&base, sizeof(sums)), 0);
        p.rows_in = base + offsetof(struct sums, rows);
        p.unit_of_row = base + offsetof(struct sums, unit_of_row);
        p.first_row = base + offsetof(struct sums, first_row);
        p.size = base + offsetof(struct sums, size);
        p.out = base + offsetof(struct sums, out);
        ck_assert_int_eq(device.cuda.cuMemcpyHtoDAsync_v2(base, &sums, sizeof(sums), device.stream), 0);
        ck_assert_int_eq(device.cuda.cuLaunchKernel(device.units, at.grid_x, at.grid_y, at.grid_z, at.block, 1, 1, at.shared_bytes,
                                                    device.stream, &(void *){ &p }, NULL), 0);
        p.units = 0;            /* the launch has its own copy */
        ck_assert_int_eq(device.cuda.cuMemcpyDtoHAsync_v2(&sums, base, sizeof(sums), device.stream), 0);
        ck_assert_int_eq(device.cuda.cuStreamSynchronize(device.stream), 0);
        for (uint32_t u = 0; u < 4; u++)
                ck_assert_float_eq(sums.out[u], (float)(9 * u + 3));
        device_close(&device);
}
END_TEST

static void send_bytes(int fd, const void *bytes, size_t size) {
        ck_assert_int_eq(write(fd, bytes, size), (ssize_t)size);
}

static void receive(int fd, void *ret_bytes, size_t size) {
        ck_assert_int_eq(read(fd, ret_bytes, size), (ssize_t)size);
}

/* A second process, with its own pipes and its own driver. */
struct peer {
        pid_t pid;
        int in, out;            /* of whoever looks at it */
};

static struct peer peer_start(void (*run)(int in, int out)) {
        int there[2], back[2];
        struct peer peer;

        ck_assert_int_eq(pipe(there), 0);
        ck_assert_int_eq(pipe(back), 0);
        peer.pid = fork();
        ck_assert_int_ge(peer.pid, 0);
        if (peer.pid == 0) {
                (void)close(there[1]);
                (void)close(back[0]);
                run(there[0], back[1]);
                _exit(0);
        }
        (void)close(there[0]);
        (void)close(back[1]);
        peer.in = back[0];
        peer.out = there[1];
        return peer;
}

static void peer_end(struct peer *peer) {
        int status;

        (void)close(peer->out);
        ck_assert_int_eq(waitpid(peer->pid, &status, 0), peer->pid);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        (void)close(peer->in);
}

struct offer {
        CUipcMemHandle handle;
        uint64_t offset, word_offset;
};

/* The importer: queues wait, kernel and signal before the data is there. */
static void import(int in, int out) {
        CUipcMemHandle garbage = { "no handle" };
        CUdeviceptr base, again, range_base;
        struct device device;
        struct offer offer;
        size_t bytes;
        char word;

        device_open(&device);
        receive(in, &offer, sizeof(offer));
        ck_assert_int_eq(device.cuda.cuIpcOpenMemHandle_v2(&base, offer.handle, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(device.cuda.cuIpcOpenMemHandle_v2(&base, garbage, 1), CUDA_ERROR_INVALID_HANDLE);
        ck_assert_int_eq(device.cuda.cuIpcOpenMemHandle_v2(&base, offer.handle, 1), 0);
        ck_assert_int_eq(device.cuda.cuIpcOpenMemHandle_v2(&again, offer.handle, 1), 0);
        ck_assert(again == base);
        ck_assert_int_eq(device.cuda.cuMemGetAddressRange_v2(&range_base, &bytes, base + INSIDE), 0);
        ck_assert(range_base == base && bytes == BYTES);
        ck_assert_int_eq(device.cuda.cuIpcCloseMemHandle(base), 0);
        ck_assert_int_eq(device.cuda.cuStreamWaitValue64_v2(device.stream, base + offer.word_offset, 1, 0), 0);
        ck_assert_int_eq(launch(&device, base + offer.offset, 128), 0);
        ck_assert_int_eq(device.cuda.cuStreamWriteValue64_v2(device.stream, base + offer.word_offset + 8, 1, 0), 0);
        ck_assert_int_eq(device.cuda.cuStreamQuery(device.stream), CUDA_ERROR_NOT_READY);
        send_bytes(out, "q", 1);
        ck_assert_int_eq(device.cuda.cuStreamSynchronize(device.stream), 0);
        receive(in, &word, 1);                  /* freed: the importer still has it */
        ck_assert_int_eq(launch(&device, base + offer.offset, 128), 0);
        ck_assert_int_eq(device.cuda.cuStreamSynchronize(device.stream), 0);
        ck_assert_int_eq(device.cuda.cuIpcCloseMemHandle(base), 0);
        ck_assert_int_eq(device.cuda.cuIpcCloseMemHandle(base), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(device.cuda.cuIpcOpenMemHandle_v2(&base, offer.handle, 1), CUDA_ERROR_MAP_FAILED);
        device_close(&device);
}

START_TEST(memory_is_shared_by_two_processes) {
        struct peer peer = peer_start(import);
        struct offer offer = { .offset = INSIDE, .word_offset = 0 };
        uint32_t data[COUNT];
        struct device device;
        CUdeviceptr base, other;
        char word;

        device_open(&device);
        ck_assert_int_eq(device.cuda.cuMemAlloc_v2(&base, BYTES), 0);
        ck_assert_int_eq(device.cuda.cuIpcGetMemHandle(&offer.handle, base + INSIDE), 0);
        ck_assert_int_eq(device.cuda.cuIpcOpenMemHandle_v2(&other, offer.handle, 1), CUDA_ERROR_INVALID_CONTEXT);
        send_bytes(peer.out, &offer, sizeof(offer));
        receive(peer.in, &word, 1);
        for (uint32_t i = 0; i < COUNT; i++)
                data[i] = i;
        ck_assert_int_eq(device.cuda.cuMemcpyHtoDAsync_v2(base + INSIDE, data, sizeof(data), device.stream), 0);
        ck_assert_int_eq(device.cuda.cuStreamWriteValue64_v2(device.stream, base, 1, 0), 0);
        ck_assert_int_eq(device.cuda.cuStreamWaitValue64_v2(device.stream, base + 8, 1, 0), 0);
        ck_assert_int_eq(device.cuda.cuMemcpyDtoHAsync_v2(data, base + INSIDE, sizeof(data), device.stream), 0);
        ck_assert_int_eq(device.cuda.cuStreamSynchronize(device.stream), 0);
        for (uint32_t i = 0; i < COUNT; i++)
                ck_assert_uint_eq(data[i], i + 1);
        ck_assert_int_eq(device.cuda.cuMemFree_v2(base), 0);
        ck_assert_int_eq(device.cuda.cuMemFree_v2(base), CUDA_ERROR_INVALID_VALUE);
        send_bytes(peer.out, "f", 1);
        peer_end(&peer);
        device_close(&device);
}
END_TEST

/* Two allocations side by side, mapped again through descriptors: the same bytes at two addresses. */
START_TEST(vmm_memory_is_shared_by_descriptors) {
        CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                     .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR };
        CUmemAccessDesc access = { .location.type = CU_MEM_LOCATION_TYPE_DEVICE, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        CUdeviceptr at[2];
        CUmemGenericAllocationHandle handle;
        struct device device;
        int legacy, fd;

        device_open(&device);
        ck_assert_int_eq(device.cuda.cuMemAddressReserve(&at[0], 2 * PIECE, 0, 0, 0), 0);
        ck_assert_int_eq(device.cuda.cuMemAddressReserve(&at[1], 2 * PIECE, 0, 0, 0), 0);
        for (uint32_t i = 0; i < 2; i++) {
                ck_assert_int_eq(device.cuda.cuMemCreate(&handle, PIECE, &prop, 0), 0);
                ck_assert_int_eq(device.cuda.cuMemMap(at[0] + i * PIECE, PIECE, 0, handle, 0), 0);
                ck_assert_int_eq(device.cuda.cuMemRelease(handle), 0);
                ck_assert_int_eq(device.cuda.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(at[0] + i * PIECE)), 0);
                ck_assert_int_eq(device.cuda.cuMemExportToShareableHandle(&fd, handle, 1, 0), 0);
                ck_assert_int_eq(device.cuda.cuMemRelease(handle), 0);
                ck_assert_int_eq(device.cuda.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, 1), 0);
                ck_assert_int_eq(device.cuda.cuMemMap(at[1] + i * PIECE, PIECE, 0, handle, 0), 0);
                ck_assert_int_eq(device.cuda.cuMemRelease(handle), 0);
                (void)close(fd);
        }
        for (uint32_t i = 0; i < 2; i++)
                ck_assert_int_eq(device.cuda.cuMemSetAccess(at[i], 2 * PIECE, &access, 1), 0);
        ck_assert_int_eq(device.cuda.cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at[0]), 0);
        ck_assert_int_eq(legacy, 0);
        ck_assert_int_eq(device.cuda.cuMemsetD32Async(at[0], 7, 2 * PIECE / 4, device.stream), 0);
        ck_assert_int_eq(device.cuda.cuStreamSynchronize(device.stream), 0);
        ck_assert_uint_eq(((const uint32_t *)(uintptr_t)at[1])[2 * PIECE / 4 - 1], 7);
        for (uint32_t i = 0; i < 2; i++) {
                ck_assert_int_eq(device.cuda.cuMemUnmap(at[i], 2 * PIECE), 0);
                ck_assert_int_eq(device.cuda.cuMemAddressFree(at[i], 2 * PIECE), 0);
        }
        ck_assert_int_eq(device.cuda.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
        device_close(&device);
}
END_TEST

/* A word of host memory: only after it is registered may a stream write it. */
START_TEST(host_words_and_bad_launches) {
        static _Alignas(4096) uint32_t page[1024];
        struct device device;
        CUdeviceptr at;

        device_open(&device);
        ck_assert_int_eq(device.cuda.cuStreamWriteValue32_v2(device.stream, (uintptr_t)page, 5, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(device.cuda.cuMemHostRegister_v2(page, sizeof(page), CU_MEMHOSTREGISTER_DEVICEMAP), 0);
        ck_assert_int_eq(device.cuda.cuMemHostRegister_v2(page, sizeof(page), 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        ck_assert_int_eq(device.cuda.cuMemHostGetDevicePointer_v2(&at, page, 0), 0);
        ck_assert_int_eq(device.cuda.cuStreamWriteValue32_v2(device.stream, at + 8, 5, 0), 0);
        ck_assert_int_eq(launch(&device, at, 0), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(launch(&device, at, 1025), CUDA_ERROR_INVALID_VALUE);
        ck_assert_int_eq(device.cuda.cuStreamSynchronize(device.stream), 0);
        ck_assert_uint_eq(page[2], 5);
        ck_assert_int_eq(device.cuda.cuMemHostUnregister(page), 0);
        ck_assert_int_eq(device.cuda.cuMemHostUnregister(page), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
        ck_assert_int_eq(device.cuda.cuFuncSetAttribute(device.add, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 20),
                         CUDA_ERROR_INVALID_VALUE);
        device_close(&device);
}
END_TEST

static const int sticky_codes[] = {
        214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999,
};

/* A kernel that fails takes the whole driver with it. */
START_TEST(a_fault_stays) {
        char fault[32];
        struct device device;
        CUdeviceptr base;

        (void)snprintf(fault, sizeof(fault), "2:%d", sticky_codes[_i]);
        ck_assert_int_eq(setenv("FAKECUDA_FAULT", fault, 1), 0);
        device_open(&device);
        ck_assert_int_eq(device.cuda.cuMemAlloc_v2(&base, BYTES), 0);
        ck_assert_int_eq(launch(&device, base, 128), 0);
        ck_assert_int_eq(device.cuda.cuStreamSynchronize(device.stream), 0);
        ck_assert_int_eq(launch(&device, base, 128), 0);
        ck_assert_int_eq(device.cuda.cuStreamSynchronize(device.stream), sticky_codes[_i]);
        ck_assert_int_eq(device.cuda.cuMemFree_v2(base), sticky_codes[_i]);
        ck_assert(ckv_cuda_fatal(sticky_codes[_i]));
}
END_TEST

/* A code that is an answer and nothing else: the next call goes well. */
START_TEST(a_failure_passes) {
        static const int codes[] = { 1, 2, 46, 201, 205, 208, 217, 400, 600, 711, 801 };
        char fail[64], text[80], number[16];
        struct device device;
        CUdeviceptr base;

        (void)snprintf(fail, sizeof(fail), "cuMemFree_v2:1:99,cuMemAlloc_v2:2:%d", codes[_i]);
        ck_assert_int_eq(setenv("FAKECUDA_FAIL", fail, 1), 0);
        device_open(&device);
        ck_assert_int_eq(device.cuda.cuMemAlloc_v2(&base, BYTES), 0);
        ck_assert_int_eq(device.cuda.cuMemAlloc_v2(&base, BYTES), codes[_i]);
        ck_assert_int_eq(device.cuda.cuMemAlloc_v2(&base, BYTES), 0);
        ck_assert(!ckv_cuda_fatal(codes[_i]));
        ckv_cuda_name(&device.cuda, codes[_i], text, sizeof(text));
        (void)snprintf(number, sizeof(number), "(%d)", codes[_i]);
        ck_assert_ptr_nonnull(strstr(text, number));
        device_close(&device);
}
END_TEST

static void *open_nothing(void *p) {
        struct device *device = p;
        CUdeviceptr at;

        return (void *)(intptr_t)device->cuda.cuMemAlloc_v2(&at, BYTES);
}

START_TEST(a_thread_needs_a_context) {
        struct device device;
        pthread_t thread;
        void *r;

        device_open(&device);
        ck_assert_int_eq(pthread_create(&thread, NULL, open_nothing, &device), 0);
        ck_assert_int_eq(pthread_join(thread, &r), 0);
        ck_assert_int_eq((intptr_t)r, CUDA_ERROR_INVALID_CONTEXT);
        device_close(&device);
}
END_TEST

static void hang(int in, int out) {
        struct device device;
        CUdeviceptr base;

        (void)in;
        device_open(&device);
        send_bytes(out, "a", 1);
        (void)device.cuda.cuMemAlloc_v2(&base, BYTES);
        send_bytes(out, "b", 1);
}

START_TEST(a_call_hangs_on_demand) {
        struct peer peer;
        char word;
        int status;

        ck_assert_int_eq(setenv("FAKECUDA_HANG", "cuMemAlloc_v2:1", 1), 0);
        peer = peer_start(hang);
        receive(peer.in, &word, 1);
        (void)usleep(100000);
        ck_assert_int_eq(waitpid(peer.pid, &status, WNOHANG), 0);
        ck_assert_int_eq(kill(peer.pid, SIGKILL), 0);
        ck_assert_int_eq(waitpid(peer.pid, &status, 0), peer.pid);
        ck_assert_int_eq(read(peer.in, &word, 1), 0);
}
END_TEST

/* Calls and what streams do stand in the log in their order. */
START_TEST(the_log_has_the_order) {
        char path[] = "/tmp/ckv-fake-log-XXXXXX", text[4096] = "";
        int fd = mkstemp(path);
        const char *write_at, *kernel_at;
        struct device device;
        CUdeviceptr base;

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(setenv("FAKECUDA_LOG", path, 1), 0);
        device_open(&device);
        ck_assert_int_eq(device.cuda.cuMemAlloc_v2(&base, BYTES), 0);
        ck_assert_int_eq(launch(&device, base, 128), 0);
        ck_assert_int_eq(device.cuda.cuStreamWriteValue32_v2(device.stream, base, 1, 0), 0);
        device_close(&device);
        ck_assert_int_gt(read(fd, text, sizeof(text) - 1), 0);
        kernel_at = strstr(text, "run kernel");
        write_at = strstr(text, "run write32");
        ck_assert(kernel_at && write_at && kernel_at < write_at);
        ck_assert(strstr(text, "call cuMemAlloc_v2") < kernel_at);
        (void)close(fd);
        (void)unlink(path);
}
END_TEST

static void expect_refusal(const char *path, int needed, int r, const char *words) {
        struct ckv_cuda_fault fault;
        struct ckv_cuda cuda;

        ck_assert_int_eq(ckv_cuda_load(path, needed, &cuda, &fault), r);
        ck_assert_msg(strstr(fault.text, words) != NULL, "%s", fault.text);
}

/* Other images are advised where this driver would load them. */
START_TEST(old_drivers_and_other_images) {
        static const struct {
                const char *version;
                int needed;
                bool helps;
        } cases[] = { { "12080", 13000, true }, { "12000", 13000, true }, { "11080", 13000, false }, { "11080", 12000, false } };
        struct ckv_cuda_fault fault;
        struct ckv_cuda cuda;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(cases); i++) {
                ck_assert_int_eq(setenv("FAKECUDA_VERSION", cases[i].version, 1), 0);
                ck_assert_int_eq(ckv_cuda_load(support_fake_path(), cases[i].needed, &cuda, &fault), -EOPNOTSUPP);
                ck_assert_msg((strstr(fault.text, "CUDA_COMPILER=nvrtc") != NULL) == cases[i].helps, "%s", fault.text);
        }
}
END_TEST

START_TEST(drivers_that_cannot_be_used) {
        struct ckv_cuda cuda;
        struct ckv_cuda_fault fault;

        expect_refusal("libcuda-that-is-not-there.so.1", 0, -ENOENT, "there is no NVIDIA driver");
        expect_refusal("libm.so.6", 0, -ENOENT, "has no cuInit");
        ck_assert_int_eq(setenv("FAKECUDA_VERSION", "12080", 1), 0);
        expect_refusal(support_fake_path(), 13000, -EOPNOTSUPP, "CUDA 12.8 and the kernels here need one for CUDA 13.0");
        ck_assert_int_eq(ckv_cuda_load(support_fake_path(), 12080, &cuda, &fault), 0);
        ck_assert_int_eq(cuda.driver_version, 12080);
        ckv_cuda_unload(&cuda);
        ck_assert_int_eq(setenv("FAKECUDA_VERSION", "11060", 1), 0);
        expect_refusal(support_fake_path(), 0, -EOPNOTSUPP, "CUDA 11.6");
        ck_assert_int_eq(setenv("FAKECUDA_FAIL", "cuInit:0:100", 1), 0);
        expect_refusal(support_fake_path(), 0, -EIO, "no GPU is visible");
        ck_assert_int_eq(setenv("FAKECUDA_FAIL", "cuInit:0:304", 1), 0);
        expect_refusal(support_fake_path(), 0, -EIO, "a sandbox hides");
        ckv_cuda_unload(&(struct ckv_cuda){ 0 });
}
END_TEST

START_TEST(attributes_can_be_set) {
        struct device device;
        int value;

        device_open(&device);
        ck_assert_int_eq(device.cuda.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0), 0);
        ck_assert_int_eq(value, 1);
        ck_assert_int_eq(setenv("FAKECUDA_ATTR", "97:101376,122:0", 1), 0);
        ck_assert_int_eq(device.cuda.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0), 0);
        ck_assert_int_eq(value, 0);
        ck_assert_int_eq(device.cuda.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0), 0);
        ck_assert_int_eq(value, 101376);
        device_close(&device);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("fake_cuda");
        TCase *tcase = tcase_create("all");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, kernels_run_in_the_emulator);
        tcase_add_test(tcase, memory_is_shared_by_two_processes);
        tcase_add_test(tcase, vmm_memory_is_shared_by_descriptors);
        tcase_add_test(tcase, host_words_and_bad_launches);
        tcase_add_loop_test(tcase, a_fault_stays, 0, (int)CKV_ARRAY_SIZE(sticky_codes));
        tcase_add_loop_test(tcase, a_failure_passes, 0, 11);
        tcase_add_test(tcase, a_thread_needs_a_context);
        tcase_add_test(tcase, a_call_hangs_on_demand);
        tcase_add_test(tcase, the_log_has_the_order);
        tcase_add_test(tcase, drivers_that_cannot_be_used);
        tcase_add_test(tcase, old_drivers_and_other_images);
        tcase_add_test(tcase, attributes_can_be_set);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
