/*
 * The C client and device memory, as far as it goes without a driver: what is
 * refused and by whom, and that a refusal costs neither session nor descriptor.
 */
#include "base/macros.h"
#include "tests/support_client.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

START_TEST(nothing_is_no_memory) {
        struct chunkkv_device_memory memory;
        struct chunkkv_error error;

        ck_assert_int_eq(chunkkv_device_export(4096, 0, &memory, &error), -EINVAL);
        ck_assert_str_eq(error.field, "size");
        ck_assert_int_eq(chunkkv_device_export(4096, (UINT64_C(1) << 46) + 1, &memory, &error), -EINVAL);
        ck_assert_str_eq(error.field, "size");
}
END_TEST

START_TEST(released_memory_is_not_registered) {
        struct chunkkv_device_memory memory = { 0 };
        struct chunkkv_error error;
        struct model model;
        uint32_t id = 7;

        chunkkv_device_release(&memory);
        model_open(&model, CHUNKKV_MODE_PLAN);
        ck_assert_int_eq(chunkkv_region_register_device(model.client, &memory, CHUNKKV_ACCESS_READ, 0, &id, &error), -EINVAL);
        ck_assert_uint_eq(id, 7);
        model_close(&model);
}
END_TEST

/* A daemon of the CPU takes neither kind, and says which field it was. */
START_TEST(cpu_daemon_refuses) {
        struct chunkkv_device_memory memory = { .address = 1 << 20, .size = 100, .alloc_size = 4096, .device_uuid = { 1 } };
        uint64_t sizes[1] = { 4096 };
        struct chunkkv_error error;
        struct model model;
        struct chunkkv_pong pong;
        uint32_t id = 7;
        int fds[1];

        model_open(&model, CHUNKKV_MODE_PLAN);
        ck_assert_int_eq(chunkkv_region_register_device(model.client, &memory, CHUNKKV_ACCESS_READ, 0, &id, &error), -EREMOTEIO);
        ck_assert_int_eq(error.code, CHUNKKV_CODE_UNSUPPORTED);
        ck_assert_str_eq(error.field, "register_region.cuda_ipc");
        fds[0] = memfd_create("piece", MFD_CLOEXEC);
        ck_assert_int_ge(fds[0], 0);
        memory.piece_count = 1;
        memory.piece_fds = fds;
        memory.piece_sizes = sizes;
        ck_assert_int_eq(chunkkv_region_register_device(model.client, &memory, CHUNKKV_ACCESS_READ, 0, &id, &error), -EREMOTEIO);
        ck_assert_int_eq(error.code, CHUNKKV_CODE_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(error.detail, "offer: this daemon serves the CPU and maps no memory of a GPU: ask one with --backend cuda"));
        ck_assert_uint_eq(id, 7);
        ck_assert_int_eq(close(fds[0]), 0);     /* it stayed ours */
        ck_assert_int_eq(chunkkv_ping(model.client, 0, &pong, &error), 0);
        model_close(&model);
}
END_TEST

int main(void) {
        const TTest *const tests[] = { nothing_is_no_memory, released_memory_is_not_registered, cpu_daemon_refuses };

        return support_client_run("client_device", tests, CKV_ARRAY_SIZE(tests));
}
