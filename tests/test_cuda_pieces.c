/*
 * Device memory of another process that comes as descriptors: pieces are mapped
 * side by side, for what was asked, and a failure on the way leaves nothing.
 */
#include "base/macros.h"
#include "tests/support_imports.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 64 << 10, PIECES = 3 };

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
                ck_assert_int_eq(imports_cuda.cuMemCreate(&handle, pieces->bytes[i], &prop, 0), 0);
                ck_assert_int_eq(imports_cuda.cuMemExportToShareableHandle(&pieces->fds[i], handle, 1, 0), 0);
                ck_assert_int_eq(imports_cuda.cuMemRelease(handle), 0);
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
        struct ckv_cuda_memory *memory = imports_memory_new(8);
        struct pieces pieces;

        pieces_init(&pieces, 10, 6 * PIECE - 10);
        imports_serve(memory, &pieces.import, CKV_IMPORT_OK);
        pieces_deinit(&pieces);
        ck_assert_int_eq(pieces.import.mapping.base[PIECE - 10], 2);
        ck_assert_int_eq(pieces.import.mapping.base[3 * PIECE - 10], 3);
        ck_assert_int_eq(pieces.import.mapping.base[-10], 1);
        pieces.import.mapping.base[0] = 1;
        ck_assert_int_eq(imports_calls("cuMemRelease"), 2 * PIECES);
        imports_give_back(memory, &pieces.import);
        ck_assert_int_eq(mappings(), 0);
        ck_assert_int_eq(imports_calls("cuMemAddressFree"), 1);
        imports_memory_end(memory);
}
END_TEST

/* A region for reading is mapped for reading, or for both where the driver cannot tell them apart. */
START_TEST(pieces_are_mapped_for_reading) {
        struct ckv_cuda_memory *memory = imports_memory_new(8);
        struct pieces pieces;

        pieces_init(&pieces, 0, 6 * PIECE);
        pieces.import.writable = false;
        imports_serve(memory, &pieces.import, CKV_IMPORT_OK);
        ck_assert(!pieces.import.mapping.writable);
        ck_assert_int_eq(imports_calls("cuMemSetAccess"), 1);
        imports_give_back(memory, &pieces.import);
        ck_assert_int_eq(setenv("FAKECUDA_FAIL", "cuMemSetAccess:2:801", 1), 0);
        pieces.import.kind = CKV_IMPORT_VMM;
        imports_serve(memory, &pieces.import, CKV_IMPORT_OK);
        ck_assert_int_eq(imports_calls("cuMemSetAccess"), 3);
        imports_give_back(memory, &pieces.import);
        pieces_deinit(&pieces);
        imports_memory_end(memory);
}
END_TEST

START_TEST(pieces_are_whole) {
        struct ckv_cuda_memory *memory = imports_memory_new(8);
        struct pieces pieces;

        pieces_init(&pieces, 0, 6 * PIECE + 1);
        imports_serve(memory, &pieces.import, CKV_IMPORT_RANGE);
        ck_assert_uint_eq(pieces.import.found_bytes, 6 * PIECE);
        ck_assert_int_eq(mappings(), 0);
        pieces.import.size = 1;
        pieces.bytes[1]--;
        imports_serve(memory, &pieces.import, CKV_IMPORT_SIZE);
        ck_assert_uint_eq(pieces.import.found_bytes, PIECE);
        pieces.bytes[1] = 0;
        imports_serve(memory, &pieces.import, CKV_IMPORT_SIZE);
        pieces.bytes[1] = PIECE;        /* it has two */
        imports_serve(memory, &pieces.import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(mappings(), 0);
        ck_assert_int_eq(imports_calls("cuMemAddressFree"), imports_calls("cuMemAddressReserve"));
        pieces_deinit(&pieces);
        imports_memory_end(memory);
}
END_TEST

/* Each call on the way fails: the code is told, and what was done before is undone. */
static const char *const piece_calls[] = {
        "cuMemGetAllocationGranularity:1", "cuMemAddressReserve:1", "cuMemImportFromShareableHandle:1",
        "cuMemImportFromShareableHandle:3", "cuMemMap:1", "cuMemMap:2", "cuMemMap:3", "cuMemRelease:4", "cuMemRelease:6",
        "cuMemSetAccess:1",
};

START_TEST(a_failure_undoes_what_was_done) {
        struct ckv_cuda_memory *memory = imports_memory_new(8);
        struct pieces pieces;
        char fail[64];

        pieces_init(&pieces, 0, 6 * PIECE);
        (void)snprintf(fail, sizeof(fail), "%s:205", piece_calls[_i]);
        ck_assert_int_eq(setenv("FAKECUDA_FAIL", fail, 1), 0);
        imports_serve(memory, &pieces.import, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(pieces.import.driver_code, 205);
        ck_assert_int_eq(mappings(), 0);
        if (strcmp(piece_calls[_i], "cuMemAddressReserve:1") != 0)
                ck_assert_int_eq(imports_calls("cuMemAddressFree"), imports_calls("cuMemAddressReserve"));
        imports_serve(memory, &pieces.import, CKV_IMPORT_OK);
        imports_give_back(memory, &pieces.import);
        ck_assert_int_eq(mappings(), 0);
        pieces_deinit(&pieces);
        imports_memory_end(memory);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cuda_pieces");
        TCase *pieces = tcase_create("pieces");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(pieces, imports_setup, imports_teardown);
        tcase_add_test(pieces, pieces_lie_side_by_side);
        tcase_add_test(pieces, pieces_are_mapped_for_reading);
        tcase_add_test(pieces, pieces_are_whole);
        tcase_add_loop_test(pieces, a_failure_undoes_what_was_done, 0, (int)CKV_ARRAY_SIZE(piece_calls));
        suite_add_tcase(suite, pieces);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
