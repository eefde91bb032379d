/*
 * Device memory of another process, opened and closed by its handle through the
 * stand-in driver: what is shared, what is checked, what is said of each error,
 * and that whatever was opened is closed once.  The log of the stand-in counts
 * the calls.
 */
#include "base/macros.h"
#include "tests/support_imports.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20 };

/* A process that owns memory: byte i is i modulo 251. It ends when its pipe does. */
struct exporter {
        pid_t pid;
        int to;
        CUipcMemHandle handle;
};

static void export_memory(int in, int out) {
        CUipcMemHandle handle;
        CUdeviceptr at;
        char ignored;

        imports_driver();
        if (imports_cuda.cuMemAlloc_v2(&at, BYTES) || imports_cuda.cuIpcGetMemHandle(&handle, at))
                _exit(1);
        for (uint32_t i = 0; i < BYTES; i++)
                ((uint8_t *)(uintptr_t)at)[i] = (uint8_t)(i % 251);
        if (write(out, &handle, sizeof(handle)) != sizeof(handle))
                _exit(1);
        _exit(read(in, &ignored, 1) != 0);
}

static void exporter_start(struct exporter *exporter) {
        int to[2], from[2];

        ck_assert_int_eq(pipe2(to, O_CLOEXEC), 0);
        ck_assert_int_eq(pipe2(from, O_CLOEXEC), 0);
        exporter->pid = fork();
        ck_assert_int_ge(exporter->pid, 0);
        if (exporter->pid == 0) {
                (void)close(to[1]);
                export_memory(to[0], from[1]);
        }
        (void)close(to[0]);
        (void)close(from[1]);
        exporter->to = to[1];
        ck_assert_int_eq(read(from[0], &exporter->handle, sizeof(exporter->handle)), sizeof(exporter->handle));
        (void)close(from[0]);
}

/* The newest first: it has a copy of the pipes of those before it. */
static void exporter_end(struct exporter *exporter) {
        int status;

        (void)close(exporter->to);
        ck_assert_int_eq(waitpid(exporter->pid, &status, 0), exporter->pid);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static struct ckv_import of_handle(const struct exporter *exporter, uint64_t offset, uint64_t size) {
        struct ckv_import import = { .kind = CKV_IMPORT_IPC, .session = 1, .alloc_bytes = BYTES, .offset = offset, .size = size,
                                     .writable = true };

        memcpy(import.handle, &exporter->handle, sizeof(import.handle));
        return import;
}

/* Several regions of an allocation, and several sessions: one open, one close. */
START_TEST(an_allocation_is_opened_once) {
        struct ckv_import one, two, three;
        struct ckv_cuda_memory *memory;
        struct exporter exporter;

        exporter_start(&exporter);
        memory = imports_memory_new(8);
        one = of_handle(&exporter, 1000, 500);
        two = of_handle(&exporter, BYTES - 10, 10);
        three = of_handle(&exporter, 0, BYTES);
        one.buffer_id = two.buffer_id = 7;
        three.buffer_id = 8;
        three.session = 2;
        imports_serve(memory, &one, CKV_IMPORT_OK);
        imports_serve(memory, &two, CKV_IMPORT_OK);
        imports_serve(memory, &three, CKV_IMPORT_OK);
        ck_assert(one.mapping.on_device && one.mapping.writable);
        ck_assert_uint_eq(one.mapping.size, 500);
        ck_assert_int_eq(one.mapping.base[0], 1000 % 251);
        ck_assert(one.mapping.base == three.mapping.base + 1000);
        imports_give_back(memory, &one);
        imports_give_back(memory, &three);
        ck_assert_int_eq(imports_calls("cuIpcCloseMemHandle"), 0);
        ck_assert_int_eq(two.mapping.base[9], (BYTES - 1) % 251);
        imports_give_back(memory, &two);
        ck_assert_int_eq(imports_calls("cuIpcCloseMemHandle"), 1);
        ck_assert_int_eq(imports_calls("cuIpcOpenMemHandle_v2"), 1);
        one = of_handle(&exporter, 0, 1);
        imports_serve(memory, &one, CKV_IMPORT_OK);
        ck_assert_int_eq(ckv__cuda_memory_close(memory, &one.mapping), 0);
        ck_assert_int_eq(imports_calls("cuIpcOpenMemHandle_v2"), 2);
        imports_memory_end(memory);
        exporter_end(&exporter);
}
END_TEST

/* What is still open at the end is closed by the end. */
START_TEST(the_end_closes_what_is_open) {
        struct ckv_import one, two;
        struct ckv_cuda_memory *memory;
        struct exporter exporters[2];

        exporter_start(&exporters[0]);
        exporter_start(&exporters[1]);
        memory = imports_memory_new(8);
        one = of_handle(&exporters[0], 0, BYTES);
        two = of_handle(&exporters[1], 0, BYTES);
        imports_serve(memory, &one, CKV_IMPORT_OK);
        imports_serve(memory, &two, CKV_IMPORT_OK);
        imports_memory_end(memory);
        ck_assert_int_eq(imports_calls("cuIpcCloseMemHandle"), 2);
        exporter_end(&exporters[1]);
        exporter_end(&exporters[0]);
}
END_TEST

START_TEST(an_extent_lies_in_its_allocation) {
        static const struct {
                uint64_t offset, size, alloc_bytes;
                enum ckv_import_outcome outcome;
        } tries[] = {
                { 0, BYTES, BYTES, CKV_IMPORT_OK },
                { BYTES - 1, 1, 0, CKV_IMPORT_OK },
                { 0, BYTES + 1, 0, CKV_IMPORT_RANGE },
                { 1, BYTES, BYTES, CKV_IMPORT_RANGE },
                { BYTES, 1, BYTES, CKV_IMPORT_RANGE },
                { 0, 0, BYTES, CKV_IMPORT_RANGE },
                { UINT64_MAX, 2, BYTES, CKV_IMPORT_RANGE },
                { 2, UINT64_MAX, BYTES, CKV_IMPORT_RANGE },
                { 0, 1, BYTES - 1, CKV_IMPORT_SIZE },
                { 0, 1, BYTES + 1, CKV_IMPORT_SIZE },
        };
        struct ckv_cuda_memory *memory;
        struct exporter exporter;

        exporter_start(&exporter);
        memory = imports_memory_new(8);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(tries); i++) {
                struct ckv_import import = of_handle(&exporter, tries[i].offset, tries[i].size);

                import.alloc_bytes = tries[i].alloc_bytes;
                imports_serve(memory, &import, tries[i].outcome);
                if (tries[i].outcome == CKV_IMPORT_OK)
                        imports_give_back(memory, &import);
                else
                        ck_assert_uint_eq(import.found_bytes, BYTES);
                ck_assert_int_eq(imports_calls("cuIpcCloseMemHandle"), (int)i + 1);
        }
        imports_memory_end(memory);
        exporter_end(&exporter);
}
END_TEST

/* The exporter freed it and allocated anew: what is open is not what is meant, until it is given back. */
START_TEST(another_buffer_id_is_stale) {
        struct ckv_import one, two;
        struct ckv_cuda_memory *memory;
        struct exporter exporter;

        exporter_start(&exporter);
        memory = imports_memory_new(8);
        one = of_handle(&exporter, 0, 10);
        one.buffer_id = 5;
        imports_serve(memory, &one, CKV_IMPORT_OK);
        two = of_handle(&exporter, 0, 10);
        two.buffer_id = 6;
        imports_serve(memory, &two, CKV_IMPORT_STALE);
        two.buffer_id = 0;
        imports_serve(memory, &two, CKV_IMPORT_OK);
        imports_give_back(memory, &two);
        imports_give_back(memory, &one);
        two = of_handle(&exporter, 0, 10);
        two.buffer_id = 6;
        imports_serve(memory, &two, CKV_IMPORT_OK);
        imports_give_back(memory, &two);
        ck_assert_int_eq(imports_calls("cuIpcOpenMemHandle_v2"), 2);
        imports_memory_end(memory);
        exporter_end(&exporter);
}
END_TEST

START_TEST(no_more_than_so_many) {
        struct ckv_import one, two, three;
        struct ckv_cuda_memory *memory;
        struct exporter exporters[2];

        exporter_start(&exporters[0]);
        exporter_start(&exporters[1]);
        memory = imports_memory_new(1);
        one = of_handle(&exporters[0], 0, 10);
        two = of_handle(&exporters[0], 10, 10);
        three = of_handle(&exporters[1], 0, 10);
        imports_serve(memory, &one, CKV_IMPORT_OK);
        imports_serve(memory, &two, CKV_IMPORT_OK);
        imports_serve(memory, &three, CKV_IMPORT_NO_MEMORY);
        imports_give_back(memory, &one);
        imports_give_back(memory, &two);
        imports_serve(memory, &three, CKV_IMPORT_OK);
        imports_memory_end(memory);
        exporter_end(&exporters[1]);
        exporter_end(&exporters[0]);
}
END_TEST

/* Every code of the table, from the open and from the look at what was opened: nothing stays open. */
enum { REGION, DEVICE };
static const struct {
        CUresult code;
        int radius;
} errors[] = {
#define ERROR(name, code, radius, detail) { CUDA_ERROR_##name, radius },
#include "kernels/cuda_errors.def"
#undef ERROR
        { 12345, REGION },
};

START_TEST(each_error_is_told) {
        const char *names[] = { "cuIpcOpenMemHandle_v2", "cuMemGetAddressRange_v2" };
        bool lost = errors[_i].radius == DEVICE;
        struct ckv_cuda_memory *memory;
        struct exporter exporter;
        struct ckv_import import;
        char fail[64];

        exporter_start(&exporter);
        for (size_t k = 0; k < CKV_ARRAY_SIZE(names); k++) {
                memory = imports_memory_new(8);
                (void)snprintf(fail, sizeof(fail), "%s:0:%d", names[k], errors[_i].code);
                ck_assert_int_eq(setenv("FAKECUDA_FAIL", fail, 1), 0);
                import = of_handle(&exporter, 0, BYTES);
                imports_serve(memory, &import, lost ? CKV_IMPORT_DEVICE_LOST : CKV_IMPORT_REFUSED);
                ck_assert_int_eq(import.driver_code, errors[_i].code);
                ck_assert_int_eq(unsetenv("FAKECUDA_FAIL"), 0);
                import = of_handle(&exporter, 0, BYTES);
                imports_serve(memory, &import, lost ? CKV_IMPORT_DEVICE_LOST : CKV_IMPORT_OK);
                ck_assert_int_eq(import.driver_code, lost ? errors[_i].code : 0);
                ck_assert_ptr_null(ckv__cuda_memory_free(memory));
        }
        /* a lost device is asked nothing any more; else: two refusals, of which one was open, and one that went well, each time */
        ck_assert_int_eq(imports_calls("cuIpcOpenMemHandle_v2"), lost ? 2 : 4);
        ck_assert_int_eq(imports_calls("cuIpcCloseMemHandle"), lost ? 0 : 3);
        ckv_cuda_unload(&imports_cuda);
        exporter_end(&exporter);
}
END_TEST

START_TEST(a_failing_close_is_told_and_not_repeated) {
        struct ckv_cuda_memory *memory;
        struct exporter exporter;
        struct ckv_import import;

        exporter_start(&exporter);
        memory = imports_memory_new(8);
        import = of_handle(&exporter, 0, 10);
        imports_serve(memory, &import, CKV_IMPORT_OK);
        ck_assert_int_eq(setenv("FAKECUDA_FAIL", "cuIpcCloseMemHandle:1:1,cuIpcOpenMemHandle_v2:3:700", 1), 0);
        import.kind = CKV_IMPORT_CLOSE;
        imports_serve(memory, &import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(import.driver_code, 1);
        ck_assert_ptr_null(import.mapping.allocation);
        import = of_handle(&exporter, 0, 10);
        imports_serve(memory, &import, CKV_IMPORT_OK);
        ckv__cuda_memory_lost(memory, CUDA_ERROR_LAUNCH_FAILED);
        ck_assert_int_eq(ckv__cuda_memory_close(memory, &import.mapping), CUDA_ERROR_LAUNCH_FAILED);
        ck_assert_int_eq(imports_calls("cuIpcCloseMemHandle"), 1);
        (void)ckv__cuda_memory_free(memory);
        ckv_cuda_unload(&imports_cuda);
        exporter_end(&exporter);
}
END_TEST

/* Its own memory, garbage, and memory whose owner is gone. */
START_TEST(handles_of_no_use) {
        struct exporter own = { 0 }, gone;
        struct ckv_cuda_memory *memory;
        struct ckv_import import;
        CUdeviceptr at;

        exporter_start(&gone);
        exporter_end(&gone);
        memory = imports_memory_new(8);
        ck_assert_int_eq(imports_cuda.cuMemAlloc_v2(&at, BYTES), 0);
        import = of_handle(&own, 0, 1);
        imports_serve(memory, &import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(import.driver_code, CUDA_ERROR_INVALID_HANDLE);
        ck_assert_int_eq(imports_cuda.cuIpcGetMemHandle(&own.handle, at), 0);
        import = of_handle(&own, 0, 1);
        imports_serve(memory, &import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(import.driver_code, CUDA_ERROR_INVALID_CONTEXT);
        import = of_handle(&gone, 0, 1);
        imports_serve(memory, &import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(import.driver_code, CUDA_ERROR_MAP_FAILED);
        (void)ckv__cuda_memory_free(memory);
        ckv_cuda_unload(&imports_cuda);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cuda_memory");
        TCase *handles = tcase_create("handles");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(handles, imports_setup, imports_teardown);
        tcase_add_test(handles, an_allocation_is_opened_once);
        tcase_add_test(handles, the_end_closes_what_is_open);
        tcase_add_test(handles, an_extent_lies_in_its_allocation);
        tcase_add_test(handles, another_buffer_id_is_stale);
        tcase_add_test(handles, no_more_than_so_many);
        tcase_add_loop_test(handles, each_error_is_told, 0, (int)CKV_ARRAY_SIZE(errors));
        tcase_add_test(handles, a_failing_close_is_told_and_not_repeated);
        tcase_add_test(handles, handles_of_no_use);
        suite_add_tcase(suite, handles);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
