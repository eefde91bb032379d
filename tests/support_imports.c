/*
 * What both tests of imported memory need: the driver, a memory of imports, and
 * the log of the stand-in, which counts calls.
 */
#include "tests/support_imports.h"

#include "base/macros.h"
#include "tests/support_fake.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char log_path[] = "/tmp/chunkkv-cuda-memory-XXXXXX";
struct ckv_cuda imports_cuda;

void imports_driver(void) {
        struct ckv_cuda_fault fault;
        CUcontext context;

        ck_assert_int_eq(ckv_cuda_load(support_fake_path(), 13000, &imports_cuda, &fault), 0);
        ck_assert_int_eq(imports_cuda.cuDevicePrimaryCtxRetain(&context, 0), 0);
        ck_assert_int_eq(imports_cuda.cuCtxSetCurrent(context), 0);
}

void imports_setup(void) {
        int fd = mkstemp(log_path);

        ck_assert_int_ge(fd, 0);
        (void)close(fd);
        ck_assert_int_eq(setenv("FAKECUDA_LOG", log_path, 1), 0);
}

void imports_teardown(void) {
        (void)unlink(log_path);
        (void)strcpy(log_path + strlen(log_path) - 6, "XXXXXX");
}

int imports_calls(const char *name) {
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

void imports_serve(struct ckv_cuda_memory *memory, struct ckv_import *import, enum ckv_import_outcome outcome) {
        CUresult lost = ckv__cuda_memory_serve(memory, import);

        ck_assert_int_eq(import->outcome, outcome);
        ck_assert_int_eq(lost != CUDA_SUCCESS, outcome == CKV_IMPORT_DEVICE_LOST);
        ck_assert_int_eq(import->mapping.base != NULL, outcome == CKV_IMPORT_OK && import->kind != CKV_IMPORT_CLOSE);
}

void imports_give_back(struct ckv_cuda_memory *memory, struct ckv_import *import) {
        import->kind = CKV_IMPORT_CLOSE;
        imports_serve(memory, import, CKV_IMPORT_OK);
        ck_assert_ptr_null(import->mapping.allocation);
}

struct ckv_cuda_memory *imports_memory_new(uint32_t most) {
        struct ckv_cuda_memory *memory;

        imports_driver();
        memory = ckv__cuda_memory_new(&imports_cuda, 0, most);
        ck_assert_ptr_nonnull(memory);
        return memory;
}

void imports_memory_end(struct ckv_cuda_memory *memory) {
        ck_assert_ptr_null(ckv__cuda_memory_free(memory));
        ck_assert_int_eq(imports_calls("cuIpcCloseMemHandle"), imports_calls("cuIpcOpenMemHandle_v2"));
        ckv_cuda_unload(&imports_cuda);
}
