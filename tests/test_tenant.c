/*
 * Charges and shares: what one user may hold of what all users draw from.
 * Properties that must hold whatever users do: the total is never exceeded, a
 * user's own maximum neither, and a newcomer always gets something.
 */
#include "base/macros.h"
#include "daemon/access.h"
#include "daemon/breach.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define QUEUED CKV_SLOT_QUEUED_BYTES

static struct ckv_options options;
static struct ckv_daemon daemon_;

static void setup(void) {
        ckv_log_open("test", CKV_LOG_ERROR);
        ckv_options_init(&options);
        options.queued_bytes = 1000;
        daemon_ = (struct ckv_daemon){ .options = &options, .mapped_bytes = 1000000 };
}

static struct ckv_tenant *tenant_of(uint32_t uid) {
        struct ckv_tenant *tenant = NULL;

        ck_assert_int_eq(ckv_tenant_ref(&daemon_, uid, &tenant), 0);
        return tenant;
}

START_TEST(charge_counts_and_returns) {
        struct ckv_tenant *tenant = tenant_of(1);
        struct ckv_charge a = { 0 }, b = { 0 }, c = { 0 };

        ck_assert_int_eq(ckv_charge_init(&a, tenant, QUEUED, 600), 0);
        ck_assert_int_eq(ckv_charge_init(&b, tenant, QUEUED, 401), CKV_TENANT_E_QUOTA);
        ck_assert_ptr_null(b.tenant);
        ck_assert_int_eq(ckv_charge_init(&b, tenant, QUEUED, 400), 0);
        ck_assert_uint_eq(tenant->used[QUEUED], 1000);
        ck_assert_int_eq(ckv_charge_init(&c, tenant, QUEUED, UINT64_MAX), CKV_TENANT_E_QUOTA);
        ck_assert_int_eq(ckv_charge_resize(&a, 601), CKV_TENANT_E_QUOTA);
        ck_assert_uint_eq(a.amount, 600);
        ck_assert_int_eq(ckv_charge_resize(&b, 100), 0);
        ck_assert_int_eq(ckv_charge_resize(&a, 900), 0);
        ck_assert_uint_eq(tenant->used[QUEUED], 1000);
        ckv_charge_move(&a, &c);
        ckv_charge_deinit(&a);
        ck_assert_uint_eq(tenant->used[QUEUED], 1000);
        ckv_tenant_unref(tenant);
        /* charges alone keep a tenant */
        ck_assert_ptr_eq(daemon_.tenants, tenant);
        ckv_charge_deinit(&b);
        ckv_charge_deinit(&c);
        ck_assert_ptr_null(daemon_.tenants);
}
END_TEST

#ifndef NDEBUG
/* One reference too many given back: the user would be freed under an open charge. */
START_TEST(freed_with_open_charge_stops) {
        struct ckv_tenant *tenant = tenant_of(1);
        struct ckv_charge charge = { 0 };

        ck_assert_int_eq(ckv_charge_init(&charge, tenant, QUEUED, 1), 0);
        ckv_tenant_unref(tenant);
        ckv_tenant_unref(tenant);
}
END_TEST
#endif

/* dbus-broker's rule, spelled out for a few numbers */
START_TEST(share_rule) {
        struct ckv_share share = { .total = 1200, .reserve = 1200 };

        /* alone: half */
        ck_assert(ckv_share_allows(&share, 0, 600) && !ckv_share_allows(&share, 0, 601));
        ck_assert_uint_eq(ckv_share_most(&share, 0), 600);
        ckv_share_take(&share, 0, 600);
        ck_assert_uint_eq(share.holders, 1);
        /* the holder gets no more; a second user a third of what is left: 3 x <= 600 */
        ck_assert(!ckv_share_allows(&share, 600, 1) && ckv_share_allows(&share, 0, 200) && !ckv_share_allows(&share, 0, 201));
        ckv_share_take(&share, 0, 200);
        ck_assert_uint_eq(ckv_share_most(&share, 0), 100);
        ckv_share_give(&share, 600, 600);
        ck_assert_uint_eq(share.holders, 1);
        /* 2 (200 + x) - 200 <= 1000 */
        ck_assert_uint_eq(ckv_share_most(&share, 200), 600);
        ck_assert(ckv_share_allows(&share, 200, 400) && !ckv_share_allows(&share, 200, 401));
        /* what cannot be computed is not granted */
        share = (struct ckv_share){ .total = UINT64_MAX, .reserve = UINT64_MAX, .holders = 1 };
        ck_assert(!ckv_share_allows(&share, 1, UINT64_MAX - 1) && !ckv_share_allows(&share, UINT64_MAX, 1));
        ck_assert(ckv_share_allows(&(struct ckv_share){ 0 }, 5, UINT64_MAX));
        /* a total that fell below what is in use */
        share = (struct ckv_share){ .total = 10, .reserve = 5, .used = 20, .holders = 1 };
        ck_assert(!ckv_share_allows(&share, 0, 1) && ckv_share_allows(&share, 0, 0));
        ck_assert_uint_eq(ckv_share_most(&share, 20), 20);
}
END_TEST

/* With a reserve, a lone user may take everything but it, and a newcomer lives from the reserve. */
START_TEST(reserve_is_for_newcomers) {
        struct ckv_tenant *greedy = tenant_of(1), *victim = tenant_of(2);
        struct ckv_charge most = { 0 }, more = { 0 }, little = { 0 };
        struct ckv_record_status status;

        daemon_.shares[CKV_SLOT_MAPPED_BYTES] = (struct ckv_share){ .total = 1000000, .reserve = 125000 };
        ck_assert_uint_eq(ckv_tenant_most(greedy, CKV_SLOT_MAPPED_BYTES), 875000);
        ck_assert_int_eq(ckv_charge_init(&most, greedy, CKV_SLOT_MAPPED_BYTES, 875001), CKV_TENANT_E_QUOTA);
        ckv_refuse_quota(&status, greedy, CKV_SLOT_MAPPED_BYTES, 875001, CKV_F_NONE);
        ck_assert_uint_eq(status.detail, CKV_D_QUOTA_ALONE);
        ck_assert_uint_eq(status.arg[1], 875000);
        ck_assert_int_eq(ckv_charge_init(&most, greedy, CKV_SLOT_MAPPED_BYTES, 875000), 0);
        ck_assert_int_eq(ckv_charge_init(&more, greedy, CKV_SLOT_MAPPED_BYTES, 1), CKV_TENANT_E_QUOTA);
        ck_assert_uint_eq(ckv_tenant_most(victim, CKV_SLOT_MAPPED_BYTES), 125000 / 3);
        ck_assert_int_eq(ckv_charge_init(&little, victim, CKV_SLOT_MAPPED_BYTES, 125000 / 3), 0);
        ckv_refuse_quota(&status, victim, CKV_SLOT_MAPPED_BYTES, 125000, CKV_F_NONE);
        ck_assert_uint_eq(status.detail, CKV_D_QUOTA_SHARE);
        /* beyond the own maximum the sentence says that, share or no share */
        ckv_refuse_quota(&status, victim, CKV_SLOT_MAPPED_BYTES, 1000000, CKV_F_NONE);
        ck_assert_uint_eq(status.detail, CKV_D_QUOTA);
        ck_assert_uint_eq(status.arg[1], 1000000);
        ck_assert_uint_eq(status.slot, CKV_SLOT_MAPPED_BYTES);
        ckv_charge_deinit(&most);
        ck_assert_int_eq(ckv_charge_init(&more, greedy, CKV_SLOT_MAPPED_BYTES, 800000), 0);
        ckv_charge_deinit(&more);
        ckv_charge_deinit(&little);
        ckv_tenant_unref(greedy);
        ckv_tenant_unref(victim);
        ck_assert_uint_eq(daemon_.shares[CKV_SLOT_MAPPED_BYTES].used, 0);
        ck_assert_uint_eq(daemon_.shares[CKV_SLOT_MAPPED_BYTES].holders, 0);
}
END_TEST

enum { USERS = 40, CHARGES = 12 };

/* Users that charge, grow, shrink and give back at random; every amount from 1 byte to more than there is. */
START_TEST(random_users) {
        struct ckv_charge charges[USERS][CHARGES];
        struct ckv_tenant *tenants[USERS];
        struct ckv_share *share = &daemon_.shares[QUEUED];
        uint64_t granted = 0, refused = 0;

        memset(charges, 0, sizeof(charges));
        srand((unsigned)_i + 1);
        options.queued_bytes = 1000 + (uint64_t)(rand() % 1000000);
        *share = (struct ckv_share){ .total = options.queued_bytes / 2 * (uint64_t)(1 + rand() % 12) };
        share->reserve = _i % 2 ? share->total : share->total / 8;
        for (uint32_t u = 0; u < USERS; u++)
                tenants[u] = tenant_of(u);
        for (int step = 0; step < 20000; step++) {
                uint32_t u = (uint32_t)(rand() % USERS), holders = 0;
                struct ckv_charge *charge = &charges[u][rand() % CHARGES];
                uint64_t amount = ((uint64_t)rand() % (2 * options.queued_bytes)) >> rand() % 20, sum = 0, most = ckv_tenant_most(tenants[u], QUEUED);
                uint64_t before = tenants[u]->used[QUEUED];
                int r = 0;

                if (!charge->tenant)
                        r = ckv_charge_init(charge, tenants[u], QUEUED, amount);
                else if (rand() % 2)
                        r = ckv_charge_resize(charge, amount);
                else
                        ckv_charge_deinit(charge);
                granted += r == 0;
                refused += r != 0;
                /* what is granted lies within what could be had, as it was told */
                if (tenants[u]->used[QUEUED] > before)
                        ck_assert_uint_le(tenants[u]->used[QUEUED], most);
                for (uint32_t i = 0; i < USERS; i++) {
                        ck_assert_uint_le(tenants[i]->used[QUEUED], options.queued_bytes);
                        sum += tenants[i]->used[QUEUED];
                        holders += tenants[i]->used[QUEUED] > 0;
                }
                ck_assert_uint_eq(sum, share->used);
                ck_assert_uint_eq(holders, share->holders);
                ck_assert_uint_le(share->used, share->total);
                /* a newcomer: nobody yet, and yet there is something for it */
                ck_assert(ckv_share_allows(share, 0, 1));
        }
        ck_assert_uint_gt(granted, 1000);
        ck_assert_uint_gt(refused, 1000);
        for (uint32_t u = 0; u < USERS; u++) {
                for (uint32_t i = 0; i < CHARGES; i++)
                        ckv_charge_deinit(&charges[u][i]);
                ckv_tenant_unref(tenants[u]);
        }
        ck_assert_ptr_null(daemon_.tenants);
        ck_assert_uint_eq(share->used + share->holders, 0);
}
END_TEST

/* Greedy users that each take all they can get, byte by byte if need be, one after the other. */
START_TEST(greedy_users_leave_something) {
        struct ckv_tenant *tenants[64];
        struct ckv_charge charges[64] = { 0 };
        struct ckv_share *share = &daemon_.shares[QUEUED];

        options.queued_bytes = UINT64_MAX;
        *share = (struct ckv_share){ .total = (uint64_t)1 << 40, .reserve = (uint64_t)1 << (_i ? 40 : 37) };
        for (uint32_t n = 0; n < 64; n++) {
                uint64_t remaining = share->total - share->used, gets;

                tenants[n] = tenant_of(n);
                gets = ckv_tenant_most(tenants[n], QUEUED);
                /* 1/n^2 of what is left at least, n = n + 1 users; and what is told can be had, and no byte more */
                ck_assert_uint_ge(gets, remaining / ((uint64_t)(n + 2) * (n + 2)));
                ck_assert_int_eq(ckv_charge_init(&charges[n], tenants[n], QUEUED, gets + 1), CKV_TENANT_E_QUOTA);
                ck_assert_int_eq(ckv_charge_init(&charges[n], tenants[n], QUEUED, gets), 0);
                if (share->total - share->used == 0)
                        ck_abort_msg("user %u took the last byte", n);
        }
        for (uint32_t n = 0; n < 64; n++) {
                ckv_charge_deinit(&charges[n]);
                ckv_tenant_unref(tenants[n]);
        }
}
END_TEST

struct stored {
        struct ckv_evictable evictable;
        int evicted;
};

static void on_evict(struct ckv_evictable *evictable) {
        struct stored *stored = (struct stored *)evictable; /* the first member */

        stored->evicted++;
        ckv_evictable_deinit(evictable);
}

START_TEST(conveniences_make_way) {
        struct ckv_tenant *tenant = tenant_of(1), *other = tenant_of(2);
        struct stored stored[4] = { 0 }, foreign = { 0 };
        struct ckv_charge charge = { 0 };

        ck_assert_int_eq(ckv_evictable_init(&foreign.evictable, other, 900, on_evict), 0);
        for (int i = 0; i < 4; i++)
                ck_assert_int_eq(ckv_evictable_init(&stored[i].evictable, tenant, 300, on_evict), 0);
        /* 1200 of 1000: the oldest has made way for the newest */
        ck_assert(stored[0].evicted == 1 && !stored[1].evicted && tenant->evictable_bytes == 900);
        /* what could not fit even alone moves nothing */
        ck_assert_int_eq(ckv_charge_init(&charge, tenant, QUEUED, 1001), CKV_TENANT_E_QUOTA);
        ck_assert_uint_eq(tenant->evictable_bytes, 900);
        ck_assert_int_eq(ckv_charge_init(&charge, tenant, QUEUED, 500), 0);
        ck_assert(stored[1].evicted == 1 && stored[2].evicted == 1 && !stored[3].evicted);
        ck_assert_int_eq(ckv_charge_resize(&charge, 701), 0);
        ck_assert(stored[3].evicted == 1 && tenant->evictable_bytes == 0);
        /* a real charge does not make way for a convenience */
        ck_assert_int_eq(ckv_evictable_init(&stored[0].evictable, tenant, 300, on_evict), CKV_TENANT_E_QUOTA);
        ck_assert_int_eq(ckv_evictable_init(&stored[0].evictable, tenant, 299, on_evict), 0);
        /* nor does another user's */
        ck_assert_int_eq(foreign.evicted, 0);
        ckv_evictable_deinit(&foreign.evictable);
        ckv_evictable_deinit(&stored[0].evictable);
        ckv_evictable_deinit(&stored[0].evictable);
        ckv_charge_deinit(&charge);
        ckv_tenant_unref(tenant);
        ckv_tenant_unref(other);
        ck_assert_ptr_null(daemon_.tenants);
}
END_TEST

START_TEST(breach_is_said_once) {
        struct ckv_tenant *tenant = tenant_of(1);
        struct ckv_breach *breach = &tenant->breaches[QUEUED];
        struct ckv_charge a = { 0 }, b = { 0 };

        ck_assert_int_eq(ckv_charge_init(&a, tenant, QUEUED, 1000), 0);
        for (int i = 0; i < 10; i++)
                ck_assert_int_eq(ckv_charge_init(&b, tenant, QUEUED, 1), CKV_TENANT_E_QUOTA);
        ck_assert(breach->logged && breach->suppressed == 9 && breach->used == 1000);
        ck_assert(!tenant->breaches[CKV_SLOT_MAPPED_BYTES].logged);
        ck_assert_int_eq(ckv_charge_resize(&a, 500), 0);
        ck_assert(breach->logged);
        ck_assert_int_eq(ckv_charge_resize(&a, 499), 0);
        ck_assert(!breach->logged);
        /* again, but within the same minute: counted */
        ck_assert_int_eq(ckv_charge_init(&b, tenant, QUEUED, 1000), CKV_TENANT_E_QUOTA);
        ck_assert(!breach->logged && breach->suppressed == 10);
        breach->last_nsec = 1;
        ck_assert_int_eq(ckv_charge_init(&b, tenant, QUEUED, 1000), CKV_TENANT_E_QUOTA);
        ck_assert(breach->logged && breach->suppressed == 0 && breach->used == 499);
        ckv_charge_deinit(&a);
        ckv_tenant_unref(tenant);
}
END_TEST

START_TEST(seen_users) {
        struct ckv_seen seen = { 0 };

        for (uint32_t i = 0; i < 16; i++)
                ck_assert(ckv_seen_add(&seen, i) && !ckv_seen_add(&seen, i) && !ckv_seen_add(&seen, 0));
        ck_assert(ckv_seen_add(&seen, 99));
        ck_assert(!ckv_seen_add(&seen, 1) && ckv_seen_add(&seen, 0));
        ck_assert_str_eq(ckv_slot_to_string(CKV_SLOT_MAPPED_BYTES), "MAPPED_BYTES");
}
END_TEST

/* Lists of users and groups behind the name of an endpoint. */
START_TEST(access_lists) {
        static const char *const bad[] = {
                ":", ":uid=", ":uid=1,", ":uid=,1", ":uid=1-", ":uid=2-1", ":uid=-1", ":uid=1x", ":uid=4294967295", ":uid=1:uid=2",
                ":gid=1:gid=2", ":pid=1", "uid=1", ":uid=1:", ":uid=no such user", ":gid=no-such-group-1", ":uid=1 ", ":uid= 1",
                ":uid=99999999999999999999",
        };
        struct ckv_access access = { .count = 7 };
        char why[CKV_ACCESS_WHY_BYTES] = "", many[1024] = ":uid=0";

        ck_assert_int_eq(ckv_access_parse("", &access, why), 0);
        ck_assert_uint_eq(access.count, 0);
        ck_assert(ckv_access_allows(access.ranges, access.count, 5, 6));
        ck_assert_int_eq(ckv_access_parse(":uid=1000,2000-2999,root:gid=5", &access, why), 0);
        ck_assert_uint_eq(access.count, 4);
        ck_assert(ckv_access_valid(access.ranges, access.count));
        ck_assert(ckv_access_allows(access.ranges, 4, 1000, 0) && ckv_access_allows(access.ranges, 4, 2000, 0));
        ck_assert(ckv_access_allows(access.ranges, 4, 2999, 0) && ckv_access_allows(access.ranges, 4, 0, 99));
        ck_assert(ckv_access_allows(access.ranges, 4, 7, 5));
        ck_assert(!ckv_access_allows(access.ranges, 4, 999, 0) && !ckv_access_allows(access.ranges, 4, 1001, 1000));
        ck_assert(!ckv_access_allows(access.ranges, 4, 3000, 4) && !ckv_access_allows(access.ranges, 4, 5, 6));
        ck_assert_int_eq(ckv_access_parse(":gid=root", &access, why), 0);
        ck_assert(access.count == 1 && !ckv_access_allows(access.ranges, 1, 0, 1) && ckv_access_allows(access.ranges, 1, 1, 0));
        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++) {
                why[0] = '\0';
                ck_assert_msg(ckv_access_parse(bad[i], &access, why) < 0 && why[0], "%s", bad[i]);
                ck_assert_uint_eq(access.count, 1);
        }
        for (int i = 1; i < CKV_ACCESS_RANGES_MAX; i++)
                strcat(many, ",0");
        ck_assert_int_eq(ckv_access_parse(many, &access, why), 0);
        ck_assert_uint_eq(access.count, CKV_ACCESS_RANGES_MAX);
        ck_assert_int_lt(ckv_access_parse(strcat(many, ",0"), &access, why), 0);
}
END_TEST

/* 100 ms of a second: fills with use, runs out with time, begins below a second's worth. */
START_TEST(device_time_runs_out) {
        struct ckv_device_time bucket = { 0 };
        const uint64_t ms = 1000000, t = UINT64_C(1000000000000);

        ck_assert_uint_eq(ckv_device_time_ready(&bucket, 100, t), t);
        ckv_device_time_spend(&bucket, 100, t, 99 * ms);
        ck_assert_uint_eq(ckv_device_time_ready(&bucket, 100, t), t);
        ckv_device_time_spend(&bucket, 100, t, 51 * ms);
        ck_assert_uint_eq(ckv_device_time_level(&bucket, 100, t), 150 * ms);
        /* 50 ms too many: half a second */
        ck_assert_uint_ge(ckv_device_time_ready(&bucket, 100, t), t + 500 * ms);
        ck_assert_uint_le(ckv_device_time_ready(&bucket, 100, t), t + 501 * ms);
        ck_assert_uint_eq(ckv_device_time_ready(&bucket, 100, t + 501 * ms), t + 501 * ms);
        ck_assert_uint_eq(ckv_device_time_level(&bucket, 100, t + 500 * ms), 100 * ms);
        ck_assert_uint_eq(ckv_device_time_level(&bucket, 100, t + 1500 * ms), 0);
        ck_assert_uint_eq(ckv_device_time_level(&bucket, 100, UINT64_MAX), 0);
        /* a clock that seems to go back gives nothing away */
        ck_assert_uint_eq(ckv_device_time_level(&bucket, 100, t - 1), 150 * ms);
        /* long debts last long, and end */
        ckv_device_time_spend(&bucket, 1, t, 600 * 1000 * ms);
        ck_assert_uint_gt(ckv_device_time_ready(&bucket, 1, t), t + 500000 * 1000 * ms);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("tenant");
        TCase *tcase = tcase_create("tenant");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_set_timeout(tcase, 120);
        tcase_add_test(tcase, charge_counts_and_returns);
#ifndef NDEBUG
        tcase_add_test_raise_signal(tcase, freed_with_open_charge_stops, SIGABRT);
#endif
        tcase_add_test(tcase, share_rule);
        tcase_add_test(tcase, reserve_is_for_newcomers);
        tcase_add_loop_test(tcase, random_users, 0, 6);
        tcase_add_loop_test(tcase, greedy_users_leave_something, 0, 2);
        tcase_add_test(tcase, conveniences_make_way);
        tcase_add_test(tcase, breach_is_said_once);
        tcase_add_test(tcase, seen_users);
        tcase_add_test(tcase, access_lists);
        tcase_add_test(tcase, device_time_runs_out);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
