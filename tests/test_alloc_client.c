/*
 * The n-th allocation of the C client fails, for every n, in each of its calls
 * against a real daemon: -ENOMEM or success, the cache is as the error says,
 * and the same client goes on as ever.  What libzmq and libprotobuf-c allocate
 * is their own.
 */
#include "base/macros.h"
#include "tests/support_alloc.h"
#include "tests/support_client.h"

#include <errno.h>
#include <string.h>

enum { MOST = 500 };

struct call {
        const char *name;
        enum chunkkv_mode mode;
        bool hold;
        uint8_t slots;
};

static struct model model;
static uint8_t before[2 * MODEL_PLANE_FLOATS * sizeof(float)], after[sizeof(before)];

/* compress() - with Commit where it is held. Between alloc_fail() and alloc_failed(): no checks, as those allocate. */
static int compress(const struct call *call, struct chunkkv_result **ret_result, struct chunkkv_error *ret_error) {
        struct chunkkv_result *held;
        struct chunkkv_outcome outcome;
        struct chunkkv_error ignored;
        int r = chunkkv_compress(model.client, &model.job, 0, ret_result, ret_error);

        if (r || !call->hold)
                return r;
        held = *ret_result;
        *ret_result = NULL;
        r = chunkkv_commit(model.client, held->request_id, 0, ret_result, ret_error);
        if (r)
                (void)chunkkv_cancel(model.client, held->request_id, 0, &outcome, &ignored);
        (void)chunkkv_result_free(held);
        return r;
}

static uint64_t digest_of(const struct call *call) {
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;
        uint64_t digest;
        int r;

        memcpy(model.memory.address, before, sizeof(before));
        r = compress(call, &result, &error);
        ck_assert_msg(r == 0, "%s: %d, %s: %s", call->name, r, error.field, error.detail);
        digest = result->groups[0].kept_digest;
        (void)chunkkv_result_free(result);
        return digest;
}

/* told_truly() - what the error says of the cache holds */
static void told_truly(const struct call *call, int r, const struct chunkkv_error *error, uint64_t n) {
        bool is_old = memcmp(model.memory.address, before, sizeof(before)) == 0;
        bool is_new = memcmp(model.memory.address, after, sizeof(after)) == 0;

        ck_assert_msg(r == -ENOMEM, "%s, allocation %lu: %d, %s: %s", call->name, (unsigned long)n, r, error->field, error->detail);
        switch (error->cache) {
        case CHUNKKV_CACHE_CLEAN:
                ck_assert_msg(is_old, "%s, allocation %lu: written, and said to be clean", call->name, (unsigned long)n);
                return;
        case CHUNKKV_CACHE_COMMITTED:
                ck_assert_msg(is_new, "%s, allocation %lu: said to be committed", call->name, (unsigned long)n);
                return;
        default:
                ck_abort_msg("%s, allocation %lu: cache %u", call->name, (unsigned long)n, error->cache);
        }
}

static void every_allocation(const struct call *call) {
        uint64_t digest, n;
        bool met = true;

        model_open_with(&model, call->mode, (struct chunkkv_options){ .name = "test/1", .control_slots = call->slots });
        model.job.hold = call->hold;
        memcpy(before, model.memory.address, sizeof(before));
        digest = digest_of(call);
        memcpy(after, model.memory.address, sizeof(after));
        for (n = 1; met && n < MOST; n++) {
                struct chunkkv_result *result = NULL;
                struct chunkkv_error error = { 0 };
                int r;

                memcpy(model.memory.address, before, sizeof(before));
                alloc_fail(n);
                r = compress(call, &result, &error);
                met = alloc_failed();
                if (r)
                        told_truly(call, r, &error, n);
                (void)chunkkv_result_free(result);
                ck_assert_uint_eq(digest_of(call), digest);
                ck_assert_mem_eq(model.memory.address, after, sizeof(after));
        }
        ck_assert_msg(n > 3 && n < MOST, "%s: %lu allocations", call->name, (unsigned long)n);
        model_close(&model);
}

START_TEST(plan) {
        every_allocation(&(struct call){ "plan", CHUNKKV_MODE_PLAN, false, 0 });
}
END_TEST

START_TEST(in_place) {
        every_allocation(&(struct call){ "in place", CHUNKKV_MODE_IN_PLACE, false, 0 });
}
END_TEST

START_TEST(in_place_without_slots) {
        every_allocation(&(struct call){ "in place without slots", CHUNKKV_MODE_IN_PLACE, false, CHUNKKV_NO_SLOTS });
}
END_TEST

START_TEST(hold_and_commit) {
        every_allocation(&(struct call){ "hold", CHUNKKV_MODE_IN_PLACE, true, 0 });
}
END_TEST

START_TEST(connect_and_close) {
        const struct chunkkv_options options = { .endpoint = support_daemon.endpoint, .name = "test/1" };
        bool met = true;
        uint64_t n;

        for (n = 1; met && n < MOST; n++) {
                struct chunkkv_client *client = NULL;
                struct chunkkv_error error = { 0 };
                int r;

                alloc_fail(n);
                r = chunkkv_connect(&options, &client, &error);
                met = alloc_failed();
                ck_assert_msg(r == 0 || (met && r == -ENOMEM), "allocation %lu: %d, %s: %s", (unsigned long)n, r, error.field,
                              error.detail);
                if (r == 0)
                        (void)chunkkv_close(client);
                else
                        ck_assert_ptr_null(client);
        }
        ck_assert(n > 3 && n < MOST);
}
END_TEST

START_TEST(register_region) {
        bool met = true;
        uint64_t n;

        model_open(&model, CHUNKKV_MODE_PLAN);
        for (n = 1; met && n < MOST; n++) {
                const struct chunkkv_region region = { .fd = model.memory.fd, .access = CHUNKKV_ACCESS_READ_WRITE };
                struct chunkkv_error error = { 0 };
                uint32_t id = 0;
                int r, r2 = 0;

                alloc_fail(n);
                r = chunkkv_region_register(model.client, &region, 0, &id, &error);
                if (r == 0)
                        r2 = chunkkv_region_unregister(model.client, id, 0, &error);
                met = alloc_failed();
                ck_assert_msg(r == 0 || r == -ENOMEM, "allocation %lu: %d, %s", (unsigned long)n, r, error.detail);
                ck_assert_msg(r2 == 0 || r2 == -ENOMEM, "allocation %lu: %d, %s", (unsigned long)n, r2, error.detail);
        }
        ck_assert(n > 3 && n < MOST);
        model_close(&model);
}
END_TEST

int main(void) {
        const TTest *const tests[] = { plan, in_place, in_place_without_slots, hold_and_commit, connect_and_close, register_region };

        return support_client_run("alloc_client", tests, CKV_ARRAY_SIZE(tests));
}
