/*
 * Device memory of another process, opened and closed through the stand-in
 * driver: what is shared, what is checked, what is said of each error, and that
 * whatever was opened is closed once.  The log of the stand-in counts the calls.
 */
#include "kernels/cuda_memory.h"

#include "base/macros.h"
#include "tests/support_fake.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20, PIECE = 64 << 10, PIECES = 3 };

static char log_path[] = "/tmp/chunkkv-cuda-memory-XXXXXX";
static struct ckv_cuda cuda;

static void driver_open(void) {
        struct ckv_cuda_fault fault;
        CUcontext context;

        ck_assert_int_eq(ckv_cuda_load(support_fake_path(), 13000, &cuda, &fault), 0);
        ck_assert_int_eq(cuda.cuDevicePrimaryCtxRetain(&context, 0), 0);
        ck_assert_int_eq(cuda.cuCtxSetCurrent(context), 0);
}

static void setup(void) {
        int fd = mkstemp(log_path);

        ck_assert_int_ge(fd, 0);
        (void)close(fd);
        ck_assert_int_eq(setenv("FAKECUDA_LOG", log_path, 1), 0);
}

static void teardown(void) {
        (void)unlink(log_path);
        (void)strcpy(log_path + strlen(log_path) - 6, "XXXXXX");
}

/* How often this process called an entry point. */
static int calls(const char *name) {
        FILE *file = fopen(log_path, "re");
        char line[160], wanted[128];
        int count = 0;

        ck_assert_ptr_nonnull(file);
        (void)snprintf(wanted, sizeof(wanted), "%d call %s\n", (int)getpid(), name);
        while (fgets(line, sizeof(line), file))
                count += strcmp(line, wanted) == 0;
        (void)fclose(file);
        return count;
}

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

        driver_open();
        if (cuda.cuMemAlloc_v2(&at, BYTES) || cuda.cuIpcGetMemHandle(&handle, at))
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

static void serve(struct ckv_cuda_memory *memory, struct ckv_import *import, enum ckv_import_outcome outcome) {
        CUresult lost = ckv__cuda_memory_serve(memory, import);

        ck_assert_int_eq(import->outcome, outcome);
        ck_assert_int_eq(lost != CUDA_SUCCESS, outcome == CKV_IMPORT_DEVICE_LOST);
        ck_assert_int_eq(import->mapping.base != NULL, outcome == CKV_IMPORT_OK && import->kind != CKV_IMPORT_CLOSE);
}

static void give_back(struct ckv_cuda_memory *memory, struct ckv_import *import) {
        import->kind = CKV_IMPORT_CLOSE;
        serve(memory, import, CKV_IMPORT_OK);
        ck_assert_ptr_null(import->mapping.allocation);
}

static struct ckv_cuda_memory *memory_new(uint32_t most) {
        struct ckv_cuda_memory *memory;

        driver_open();
        memory = ckv__cuda_memory_new(&cuda, 0, most);
        ck_assert_ptr_nonnull(memory);
        return memory;
}

static void memory_end(struct ckv_cuda_memory *memory) {
        ck_assert_ptr_null(ckv__cuda_memory_free(memory));
        ck_assert_int_eq(calls("cuIpcCloseMemHandle"), calls("cuIpcOpenMemHandle_v2"));
        ckv_cuda_unload(&cuda);
}

/* Several regions of an allocation, and several sessions: one open, one close. */
START_TEST(an_allocation_is_opened_once) {
        struct ckv_import one, two, three;
        struct ckv_cuda_memory *memory;
        struct exporter exporter;

        exporter_start(&exporter);
        memory = memory_new(8);
        one = of_handle(&exporter, 1000, 500);
        two = of_handle(&exporter, BYTES - 10, 10);
        three = of_handle(&exporter, 0, BYTES);
        one.buffer_id = two.buffer_id = 7;
        three.buffer_id = 8;
        three.session = 2;
        serve(memory, &one, CKV_IMPORT_OK);
        serve(memory, &two, CKV_IMPORT_OK);
        serve(memory, &three, CKV_IMPORT_OK);
        ck_assert(one.mapping.on_device && one.mapping.writable);
        ck_assert_uint_eq(one.mapping.size, 500);
        ck_assert_int_eq(one.mapping.base[0], 1000 % 251);
        ck_assert(one.mapping.base == three.mapping.base + 1000);
        give_back(memory, &one);
        give_back(memory, &three);
        ck_assert_int_eq(calls("cuIpcCloseMemHandle"), 0);
        ck_assert_int_eq(two.mapping.base[9], (BYTES - 1) % 251);
        give_back(memory, &two);
        ck_assert_int_eq(calls("cuIpcCloseMemHandle"), 1);
        ck_assert_int_eq(calls("cuIpcOpenMemHandle_v2"), 1);
        one = of_handle(&exporter, 0, 1);
        serve(memory, &one, CKV_IMPORT_OK);
        ck_assert_int_eq(ckv__cuda_memory_close(memory, &one.mapping), 0);
        ck_assert_int_eq(calls("cuIpcOpenMemHandle_v2"), 2);
        memory_end(memory);
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
        memory = memory_new(8);
        one = of_handle(&exporters[0], 0, BYTES);
        two = of_handle(&exporters[1], 0, BYTES);
        serve(memory, &one, CKV_IMPORT_OK);
        serve(memory, &two, CKV_IMPORT_OK);
        memory_end(memory);
        ck_assert_int_eq(calls("cuIpcCloseMemHandle"), 2);
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
        memory = memory_new(8);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(tries); i++) {
                struct ckv_import import = of_handle(&exporter, tries[i].offset, tries[i].size);

                import.alloc_bytes = tries[i].alloc_bytes;
                serve(memory, &import, tries[i].outcome);
                if (tries[i].outcome == CKV_IMPORT_OK)
                        give_back(memory, &import);
                else
                        ck_assert_uint_eq(import.found_bytes, BYTES);
                ck_assert_int_eq(calls("cuIpcCloseMemHandle"), (int)i + 1);
        }
        memory_end(memory);
        exporter_end(&exporter);
}
END_TEST

/* The exporter freed it and allocated anew: what is open is not what is meant, until it is given back. */
START_TEST(another_buffer_id_is_stale) {
        struct ckv_import one, two;
        struct ckv_cuda_memory *memory;
        struct exporter exporter;

        exporter_start(&exporter);
        memory = memory_new(8);
        one = of_handle(&exporter, 0, 10);
        one.buffer_id = 5;
        serve(memory, &one, CKV_IMPORT_OK);
        two = of_handle(&exporter, 0, 10);
        two.buffer_id = 6;
        serve(memory, &two, CKV_IMPORT_STALE);
        two.buffer_id = 0;
        serve(memory, &two, CKV_IMPORT_OK);
        give_back(memory, &two);
        give_back(memory, &one);
        two = of_handle(&exporter, 0, 10);
        two.buffer_id = 6;
        serve(memory, &two, CKV_IMPORT_OK);
        give_back(memory, &two);
        ck_assert_int_eq(calls("cuIpcOpenMemHandle_v2"), 2);
        memory_end(memory);
        exporter_end(&exporter);
}
END_TEST

START_TEST(no_more_than_so_many) {
        struct ckv_import one, two, three;
        struct ckv_cuda_memory *memory;
        struct exporter exporters[2];

        exporter_start(&exporters[0]);
        exporter_start(&exporters[1]);
        memory = memory_new(1);
        one = of_handle(&exporters[0], 0, 10);
        two = of_handle(&exporters[0], 10, 10);
        three = of_handle(&exporters[1], 0, 10);
        serve(memory, &one, CKV_IMPORT_OK);
        serve(memory, &two, CKV_IMPORT_OK);
        serve(memory, &three, CKV_IMPORT_NO_MEMORY);
        give_back(memory, &one);
        give_back(memory, &two);
        serve(memory, &three, CKV_IMPORT_OK);
        memory_end(memory);
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
                memory = memory_new(8);
                (void)snprintf(fail, sizeof(fail), "%s:0:%d", names[k], errors[_i].code);
                ck_assert_int_eq(setenv("FAKECUDA_FAIL", fail, 1), 0);
                import = of_handle(&exporter, 0, BYTES);
                serve(memory, &import, lost ? CKV_IMPORT_DEVICE_LOST : CKV_IMPORT_REFUSED);
                ck_assert_int_eq(import.driver_code, errors[_i].code);
                ck_assert_int_eq(unsetenv("FAKECUDA_FAIL"), 0);
                import = of_handle(&exporter, 0, BYTES);
                serve(memory, &import, lost ? CKV_IMPORT_DEVICE_LOST : CKV_IMPORT_OK);
                ck_assert_int_eq(import.driver_code, lost ? errors[_i].code : 0);
                ck_assert_ptr_null(ckv__cuda_memory_free(memory));
        }
        /* a lost device is asked nothing any more; else: two refusals, of which one was open, and one that went well, each time */
        ck_assert_int_eq(calls("cuIpcOpenMemHandle_v2"), lost ? 2 : 4);
        ck_assert_int_eq(calls("cuIpcCloseMemHandle"), lost ? 0 : 3);
        ckv_cuda_unload(&cuda);
        exporter_end(&exporter);
}
END_TEST

START_TEST(a_failing_close_is_told_and_not_repeated) {
        struct ckv_cuda_memory *memory;
        struct exporter exporter;
        struct ckv_import import;

        exporter_start(&exporter);
        memory = memory_new(8);
        import = of_handle(&exporter, 0, 10);
        serve(memory, &import, CKV_IMPORT_OK);
        ck_assert_int_eq(setenv("FAKECUDA_FAIL", "cuIpcCloseMemHandle:1:1,cuIpcOpenMemHandle_v2:3:700", 1), 0);
        import.kind = CKV_IMPORT_CLOSE;
        serve(memory, &import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(import.driver_code, 1);
        ck_assert_ptr_null(import.mapping.allocation);
        import = of_handle(&exporter, 0, 10);
        serve(memory, &import, CKV_IMPORT_OK);
        ckv__cuda_memory_lost(memory, CUDA_ERROR_LAUNCH_FAILED);
        ck_assert_int_eq(ckv__cuda_memory_close(memory, &import.mapping), CUDA_ERROR_LAUNCH_FAILED);
        ck_assert_int_eq(calls("cuIpcCloseMemHandle"), 1);
        (void)ckv__cuda_memory_free(memory);
        ckv_cuda_unload(&cuda);
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
        memory = memory_new(8);
        ck_assert_int_eq(cuda.cuMemAlloc_v2(&at, BYTES), 0);
        import = of_handle(&own, 0, 1);
        serve(memory, &import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(import.driver_code, CUDA_ERROR_INVALID_HANDLE);
        ck_assert_int_eq(cuda.cuIpcGetMemHandle(&own.handle, at), 0);
        import = of_handle(&own, 0, 1);
        serve(memory, &import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(import.driver_code, CUDA_ERROR_INVALID_CONTEXT);
        import = of_handle(&gone, 0, 1);
        serve(memory, &import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(import.driver_code, CUDA_ERROR_MAP_FAILED);
        (void)ckv__cuda_memory_free(memory);
        ckv_cuda_unload(&cuda);
}
END_TEST

/* ---- pieces */

struct pieces {
        int fds[PIECES];
        uint64_t bytes[PIECES];
        struct ckv_import import;
};

/* Allocations of 1, 2 and 3 granules; the first byte of each is its number. */
static void pieces_init(struct pieces *pieces, uint64_t offset, uint64_t size) {
        const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                           .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR };

        for (int i = 0; i < PIECES; i++) {
                CUmemGenericAllocationHandle handle;
                uint8_t number = (uint8_t)(i + 1);

                pieces->bytes[i] = (uint64_t)(i + 1) * PIECE;
                ck_assert_int_eq(cuda.cuMemCreate(&handle, pieces->bytes[i], &prop, 0), 0);
                ck_assert_int_eq(cuda.cuMemExportToShareableHandle(&pieces->fds[i], handle, 1, 0), 0);
                ck_assert_int_eq(cuda.cuMemRelease(handle), 0);
                ck_assert_int_eq(pwrite(pieces->fds[i], &number, 1, 0), 1);
        }
        pieces->import = (struct ckv_import){
                .kind = CKV_IMPORT_VMM, .fds = pieces->fds, .fd_bytes = pieces->bytes, .fd_count = PIECES, .offset = offset,
                .size = size, .writable = true,
        };
}

static void pieces_deinit(struct pieces *pieces) {
        for (int i = 0; i < PIECES; i++)
                (void)ckv_close(pieces->fds[i]);
}

/* Mappings of stand-in memory in this process. */
static int mappings(void) {
        FILE *file = fopen("/proc/self/maps", "re");
        char line[512];
        int count = 0;

        ck_assert_ptr_nonnull(file);
        while (fgets(line, sizeof(line), file))
                count += strstr(line, "fakecuda-vmm") != NULL;
        (void)fclose(file);
        return count;
}

START_TEST(pieces_lie_side_by_side) {
        struct ckv_cuda_memory *memory = memory_new(8);
        struct pieces pieces;

        pieces_init(&pieces, 10, 6 * PIECE - 10);
        serve(memory, &pieces.import, CKV_IMPORT_OK);
        pieces_deinit(&pieces);
        ck_assert_int_eq(pieces.import.mapping.base[PIECE - 10], 2);
        ck_assert_int_eq(pieces.import.mapping.base[3 * PIECE - 10], 3);
        ck_assert_int_eq(pieces.import.mapping.base[-10], 1);
        pieces.import.mapping.base[0] = 1;
        ck_assert_int_eq(calls("cuMemRelease"), 2 * PIECES);
        give_back(memory, &pieces.import);
        ck_assert_int_eq(mappings(), 0);
        ck_assert_int_eq(calls("cuMemAddressFree"), 1);
        memory_end(memory);
}
END_TEST

/* A region for reading is mapped for reading, or for both where the driver cannot tell them apart. */
START_TEST(pieces_are_mapped_for_reading) {
        struct ckv_cuda_memory *memory = memory_new(8);
        struct pieces pieces;

        pieces_init(&pieces, 0, 6 * PIECE);
        pieces.import.writable = false;
        serve(memory, &pieces.import, CKV_IMPORT_OK);
        ck_assert(!pieces.import.mapping.writable);
        ck_assert_int_eq(calls("cuMemSetAccess"), 1);
        give_back(memory, &pieces.import);
        ck_assert_int_eq(setenv("FAKECUDA_FAIL", "cuMemSetAccess:2:801", 1), 0);
        pieces.import.kind = CKV_IMPORT_VMM;
        serve(memory, &pieces.import, CKV_IMPORT_OK);
        ck_assert_int_eq(calls("cuMemSetAccess"), 3);
        give_back(memory, &pieces.import);
        pieces_deinit(&pieces);
        memory_end(memory);
}
END_TEST

START_TEST(pieces_are_whole) {
        struct ckv_cuda_memory *memory = memory_new(8);
        struct pieces pieces;

        pieces_init(&pieces, 0, 6 * PIECE + 1);
        serve(memory, &pieces.import, CKV_IMPORT_RANGE);
        ck_assert_uint_eq(pieces.import.found_bytes, 6 * PIECE);
        ck_assert_int_eq(mappings(), 0);
        pieces.import.size = 1;
        pieces.bytes[1]--;
        serve(memory, &pieces.import, CKV_IMPORT_SIZE);
        ck_assert_uint_eq(pieces.import.found_bytes, PIECE);
        pieces.bytes[1] = 0;
        serve(memory, &pieces.import, CKV_IMPORT_SIZE);
        pieces.bytes[1] = PIECE;        /* it has two */
        serve(memory, &pieces.import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(mappings(), 0);
        ck_assert_int_eq(calls("cuMemAddressFree"), calls("cuMemAddressReserve"));
        pieces_deinit(&pieces);
        memory_end(memory);
}
END_TEST

/* Each call on the way fails: the code is told, and what was done before is undone. */
static const char *const piece_calls[] = {
        "cuMemGetAllocationGranularity:1", "cuMemAddressReserve:1", "cuMemImportFromShareableHandle:1",
        "cuMemImportFromShareableHandle:3", "cuMemMap:1", "cuMemMap:2", "cuMemMap:3", "cuMemRelease:4", "cuMemRelease:6",
        "cuMemSetAccess:1",
};

START_TEST(a_failure_undoes_what_was_done) {
        struct ckv_cuda_memory *memory = memory_new(8);
        struct pieces pieces;
        char fail[64];

        pieces_init(&pieces, 0, 6 * PIECE);
        (void)snprintf(fail, sizeof(fail), "%s:205", piece_calls[_i]);
        ck_assert_int_eq(setenv("FAKECUDA_FAIL", fail, 1), 0);
        serve(memory, &pieces.import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(pieces.import.driver_code, 205);
        ck_assert_int_eq(mappings(), 0);
        if (strcmp(piece_calls[_i], "cuMemAddressReserve:1") != 0)
                ck_assert_int_eq(calls("cuMemAddressFree"), calls("cuMemAddressReserve"));
        serve(memory, &pieces.import, CKV_IMPORT_OK);
        give_back(memory, &pieces.import);
        ck_assert_int_eq(mappings(), 0);
        pieces_deinit(&pieces);
        memory_end(memory);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cuda_memory");
        TCase *handles = tcase_create("handles"), *pieces = tcase_create("pieces");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(handles, setup, teardown);
        tcase_add_test(handles, an_allocation_is_opened_once);
        tcase_add_test(handles, the_end_closes_what_is_open);
        tcase_add_test(handles, an_extent_lies_in_its_allocation);
        tcase_add_test(handles, another_buffer_id_is_stale);
        tcase_add_test(handles, no_more_than_so_many);
        tcase_add_loop_test(handles, each_error_is_told, 0, (int)CKV_ARRAY_SIZE(errors));
        tcase_add_test(handles, a_failing_close_is_told_and_not_repeated);
        tcase_add_test(handles, handles_of_no_use);
        tcase_add_checked_fixture(pieces, setup, teardown);
        tcase_add_test(pieces, pieces_lie_side_by_side);
        tcase_add_test(pieces, pieces_are_mapped_for_reading);
        tcase_add_test(pieces, pieces_are_whole);
        tcase_add_loop_test(pieces, a_failure_undoes_what_was_done, 0, (int)CKV_ARRAY_SIZE(piece_calls));
        suite_add_tcase(suite, handles);
        suite_add_tcase(suite, pieces);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
