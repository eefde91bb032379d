/*
 * Export of device memory by the C client, against the stand-in for the CUDA
 * driver: the test loads that first, and the client finds it by its soname.
 */
#include "base/macros.h"
#include "clients/c/include/chunkkv.h"
#include "kernels/cuda_api.h"
#include "tests/support_fake.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { TOTAL = 1 << 20, PIECE = 64 << 10 };

static struct ckv_cuda cuda;
static CUcontext context;

static void setup(void) {
        struct ckv_cuda_fault fault;

        ck_assert_int_eq(ckv_cuda_load(support_fake_path(), 0, &cuda, &fault), 0);
        ck_assert_int_eq(cuda.cuDevicePrimaryCtxRetain(&context, 0), 0);
        ck_assert_int_eq(cuda.cuCtxSetCurrent(context), 0);
}

static void teardown(void) {
        ckv_cuda_unload(&cuda);
}

START_TEST(memory_with_a_handle) {
        struct chunkkv_device_memory memory;
        struct chunkkv_error error;
        CUipcMemHandle handle;
        CUdeviceptr base;

        ck_assert_int_eq(cuda.cuMemAlloc_v2(&base, TOTAL), 0);
        ck_assert_int_eq(cuda.cuIpcGetMemHandle(&handle, base), 0);
        ck_assert_int_eq(chunkkv_device_export(base + 300, 100, &memory, &error), 0);
        ck_assert_uint_eq(memory.offset, 300);
        ck_assert_uint_eq(memory.alloc_size, TOTAL);
        ck_assert_int_eq(memcmp(memory.handle, &handle, sizeof(handle)), 0);
        ck_assert_int_eq(memcmp(memory.device_uuid, "chunkkvd-standin", 16), 0);
        ck_assert_uint_eq(memory.piece_count, 0);
        chunkkv_device_release(&memory);
        ck_assert_int_eq(chunkkv_device_export(base + 300, TOTAL, &memory, &error), -EINVAL);
        ck_assert_str_eq(error.field, "size");
        ck_assert_int_eq(chunkkv_device_export(4096, 100, &memory, &error), -EINVAL);
        ck_assert_str_eq(error.field, "address");
}
END_TEST

static void *export_from_thread(void *p) {
        struct chunkkv_device_memory memory;
        struct chunkkv_error error;
        CUdeviceptr *base = p, other;
        int r = chunkkv_device_export(*base, TOTAL, &memory, &error);

        if (r == 0)
                chunkkv_device_release(&memory);
        *base = (CUdeviceptr)cuda.cuMemAlloc_v2(&other, 8);     /* there was no context, and there is none again */
        return (void *)(intptr_t)r;
}

START_TEST(any_thread_exports) {
        CUdeviceptr base;
        pthread_t thread;
        void *r;

        ck_assert_int_eq(cuda.cuMemAlloc_v2(&base, TOTAL), 0);
        ck_assert_int_eq(pthread_create(&thread, NULL, export_from_thread, &base), 0);
        ck_assert_int_eq(pthread_join(thread, &r), 0);
        ck_assert_int_eq((intptr_t)r, 0);
        ck_assert_uint_eq(base, CUDA_ERROR_INVALID_CONTEXT);
}
END_TEST

START_TEST(memory_with_descriptors) {
        CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                     .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR };
        CUmemAccessDesc access = { .location.type = CU_MEM_LOCATION_TYPE_DEVICE, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        struct chunkkv_device_memory memory;
        CUmemGenericAllocationHandle handle;
        struct chunkkv_error error;
        CUdeviceptr at;
        uint8_t byte = 0;

        ck_assert_int_eq(cuda.cuMemAddressReserve(&at, 3 * PIECE, 0, 0, 0), 0);
        for (uint32_t i = 0; i < 3; i++) {
                ck_assert_int_eq(cuda.cuMemCreate(&handle, PIECE, &prop, 0), 0);
                ck_assert_int_eq(cuda.cuMemMap(at + i * PIECE, PIECE, 0, handle, 0), 0);
                ck_assert_int_eq(cuda.cuMemRelease(handle), 0);
        }
        ck_assert_int_eq(cuda.cuMemSetAccess(at, 3 * PIECE, &access, 1), 0);
        ((uint8_t *)(uintptr_t)at)[2 * PIECE] = 9;
        ck_assert_int_eq(chunkkv_device_export(at + PIECE + 10, PIECE, &memory, &error), 0);
        ck_assert_uint_eq(memory.piece_count, 2);
        ck_assert_uint_eq(memory.offset, 10);
        ck_assert_uint_eq(memory.alloc_size, 2 * PIECE);
        ck_assert_int_eq(pread(memory.piece_fds[1], &byte, 1, 0), 1);
        ck_assert_uint_eq(byte, 9);
        chunkkv_device_release(&memory);
}
END_TEST

START_TEST(memory_that_cannot_be_shared) {
        struct chunkkv_device_memory memory;
        struct chunkkv_error error;
        CUdeviceptr pool, managed;

        ck_assert_int_eq(cuda.cuMemAllocAsync(&pool, TOTAL, NULL), 0);
        ck_assert_int_eq(chunkkv_device_export(pool, 100, &memory, &error), -EOPNOTSUPP);
        ck_assert_ptr_nonnull(strstr(error.detail, "stream-ordered pool"));
        ck_assert_int_eq(cuda.cuMemAllocManaged(&managed, TOTAL, CU_MEM_ATTACH_GLOBAL), 0);
        ck_assert_int_eq(chunkkv_device_export(managed, 100, &memory, &error), -EOPNOTSUPP);
        ck_assert_ptr_nonnull(strstr(error.detail, "managed or host memory"));
}
END_TEST

/* Errors of the driver come with name and number, and the next call goes well. */
START_TEST(errors_have_a_number) {
        struct chunkkv_device_memory memory;
        struct chunkkv_error error;
        CUdeviceptr base;

        ck_assert_int_eq(setenv("FAKECUDA_FAIL", "cuIpcGetMemHandle:1:400", 1), 0);
        ck_assert_int_eq(cuda.cuMemAlloc_v2(&base, TOTAL), 0);
        ck_assert_int_eq(chunkkv_device_export(base, TOTAL, &memory, &error), -EIO);
        ck_assert_ptr_nonnull(strstr(error.detail, "CUDA_ERROR_INVALID_HANDLE (400)"));
        ck_assert_int_eq(chunkkv_device_export(base, TOTAL, &memory, &error), 0);
        chunkkv_device_release(&memory);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_export");
        TCase *tcase = tcase_create("client_export");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, memory_with_a_handle);
        tcase_add_test(tcase, any_thread_exports);
        tcase_add_test(tcase, memory_with_descriptors);
        tcase_add_test(tcase, memory_that_cannot_be_shared);
        tcase_add_test(tcase, errors_have_a_number);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
