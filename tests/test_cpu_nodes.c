/*
 * What the CPU device sees of the machine, and what it makes of it: how many
 * threads (affinity, cpu.max), which nodes, which worker is held to which CPUs,
 * where pages are.  Machines here are made up, but for the one that the test
 * runs on.  test_cpu_near.c looks at who does which work.
 */
#include "base/macros.h"
#include "kernels/cpu_nodes.h"
#include "tests/support_machine.h"

#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define STRETCH(i) ((void *)((uintptr_t)(i) << MACHINE_STRETCH_LOG2))

static struct ckv_cpu_nodes *look(void) {
        struct ckv_cpu_nodes *nodes = NULL;

        ck_assert_int_eq(ckv__cpu_nodes_new(&machine, &nodes), 0);
        return nodes;
}

static void check_set(const struct ckv_cpu_set *cpus, const char *expected) {
        struct ckv_cpu_set wanted = ckv__cpu_set_parse(expected);

        ck_assert_msg(memcmp(cpus, &wanted, sizeof(wanted)) == 0, "not the CPUs %s", expected);
}

START_TEST(lists_of_numbers) {
        static const struct { const char *text; uint32_t count, one, other; } cases[] = {
                { "", 0, 0, 0 }, { "\n", 0, 0, 0 }, { "0\n", 1, 0, 0 }, { "0-3,8,10-11\n", 7, 8, 11 }, { "63-64", 2, 63, 64 },
                { "8191", 1, 8191, 8191 }, { "8191-8192", 1, 8191, 8191 }, { "8192", 0, 0, 0 }, { "3-1", 0, 0, 0 },
                { "5,x", 1, 5, 5 }, { "0-99999999999", 8192, 0, 8191 }, { " 1", 0, 0, 0 },
        };

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(cases); i++) {
                struct ckv_cpu_set cpus = ckv__cpu_set_parse(cases[i].text);

                ck_assert_msg(ckv__cpu_set_count(&cpus) == cases[i].count, "\"%s\": %u", cases[i].text, ckv__cpu_set_count(&cpus));
                if (cases[i].count > 0)
                        ck_assert(ckv__cpu_set_has(&cpus, cases[i].one) && ckv__cpu_set_has(&cpus, cases[i].other));
        }
}
END_TEST

START_TEST(threads_by_affinity_and_quota) {
        static const struct { const char *own, *path, *limit, *affinity; uint32_t threads; } cases[] = {
                { "0::/a\n", "/a", "max 100000\n", "0-15", 16 },
                { "0::/a\n", "/a", "200000 100000\n", "0-15", 2 },
                { "0::/a\n", "/a", "200001 100000\n", "0-15", 3 },              /* rounded up: part of a CPU is a thread */
                { "0::/a\n", "/a", "100000 100000\n", "0-15", 1 },
                { "0::/a\n", "/a", "1000 100000\n", "0-15", 1 },
                { "0::/a\n", "/a", "200000 100000\n", "3,5-7", 2 },
                { "0::/a\n", "/a", "800000 100000\n", "3,5-7", 4 },             /* the mask is narrower */
                { "0::/a\n", "/a", "800000 100000\n", "5", 1 },
                { "0::/a/b\n", "/a", "200000 100000\n", "0-15", 2 },            /* a group above ours pays */
                { "0::/a\n", "", "300000 100000\n", "0-15", 3 },
                { "0::/\n", "", "300000 100000\n", "0-15", 3 },
                { "4:cpu:/a\n0::/a\n", "/a", "200000 100000\n", "0-15", 2 },
                { "4:cpu:/a\n", "/a", "200000 100000\n", "0-15", 16 },          /* not of version 2: nothing is known */
                { "0::/other\n", "/a", "200000 100000\n", "0-15", 16 },
                { "0::/a\n", "/a", "0 100000\n", "0-15", 16 },
                { "0::/a\n", "/a", "nonsense\n", "0-15", 16 },
                { "", "/a", "200000 100000\n", "0-15", 16 },
        };

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(cases); i++) {
                machine_make("0", NULL, 0, cases[i].affinity);
                machine_cgroup(cases[i].own, cases[i].path, cases[i].limit);
                ck_assert_msg(ckv__cpu_threads(&machine) == cases[i].threads, "case %u: %u threads", i, ckv__cpu_threads(&machine));
                machine_remove();
        }
}
END_TEST

START_TEST(the_lesser_of_two_quotas) {
        machine_make("0", NULL, 0, "0-15");
        machine_cgroup("0::/a\n", "", "200000 100000\n");
        machine_cgroup("0::/a\n", "/a", "500000 100000\n");
        ck_assert_uint_eq(ckv__cpu_threads(&machine), 2);
        machine_cgroup("0::/a\n", "/a", "100000 100000\n");
        ck_assert_uint_eq(ckv__cpu_threads(&machine), 1);
        machine_remove();
}
END_TEST

START_TEST(threads_by_quota_of_version_1) {
        static const struct { const char *own, *path, *quota, *period; uint32_t threads; } cases[] = {
                { "1:cpu:/a\n", "/cpu/a", "200000\n", "100000\n", 2 },
                { "1:cpu:/a\n", "/cpu/a", "200001\n", "100000\n", 3 },
                { "1:cpu:/a\n", "/cpu/a", "1000\n", "100000\n", 1 },
                { "1:cpu:/a\n", "/cpu/a", "-1\n", "100000\n", 16 },            /* no limit */
                { "1:cpu:/a\n", "/cpu/a", "200000\n", "0\n", 16 },
                { "1:cpu:/a\n", "/cpu/a", "200000\n", "nonsense\n", 16 },
                { "1:cpu:/a/b\n", "/cpu/a", "300000\n", "100000\n", 3 },        /* a group above ours pays */
                { "1:cpu:/host/a\n", "/cpu", "300000\n", "100000\n", 3 },       /* a container's own is the root */
                { "5:memory:/m\n3:cpu,cpuacct:/a\n0::/\n", "/cpu,cpuacct/a", "400000\n", "100000\n", 4 },
                { "5:memory:/m\n3:cpuacct,cpu:/a\n0::/\n", "/cpu/a", "400000\n", "100000\n", 4 },
                { "3:cpuset:/a\n2:cpuacct:/a\n", "/cpu/a", "400000\n", "100000\n", 16 },
                { "3:cpuacct:/a\n", "/cpuacct/a", "400000\n", "100000\n", 16 },
                { "3:cpu\n", "/cpu", "400000\n", "100000\n", 16 },
        };

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(cases); i++) {
                machine_make("0", NULL, 0, "0-15");
                machine_cgroup_v1(cases[i].own, cases[i].path, cases[i].quota, cases[i].period);
                ck_assert_msg(ckv__cpu_threads(&machine) == cases[i].threads, "case %u: %u threads", i, ckv__cpu_threads(&machine));
                machine_remove();
        }
}
END_TEST

/* Version 2 beside version 1: whoever has the CPU controller sets the limit. */
START_TEST(threads_by_quota_of_both_versions) {
        static const char own[] = "4:memory:/m\n1:cpu,cpuacct:/a\n0::/s\n";

        machine_make("0", NULL, 0, "0-15");
        machine_cgroup_v1(own, "/cpu,cpuacct/a", "500000\n", "100000\n");
        ck_assert_uint_eq(ckv__cpu_threads(&machine), 5);
        machine_cgroup(own, "/unified/s", "300000 100000\n");
        ck_assert_uint_eq(ckv__cpu_threads(&machine), 3);
        machine_cgroup("4:memory:/m\n0::/s\n", "/unified/s", "max 100000\n");
        ck_assert_uint_eq(ckv__cpu_threads(&machine), 16);
        machine_cgroup("4:memory:/m\n0::/s\n", "/unified", "700000 100000\n");
        ck_assert_uint_eq(ckv__cpu_threads(&machine), 7);
        machine_remove();
}
END_TEST

/* The machine that the test runs on, by a child that gives up all CPUs but one. */
START_TEST(this_machine_by_its_mask) {
        struct ckv_cpu_set cpus;
        pid_t pid;
        int status;

        ck_assert(ckv__cpu_this_machine.affinity(&cpus));
        ck_assert_uint_ge(ckv__cpu_set_count(&cpus), 1);
        ck_assert_uint_le(ckv__cpu_threads(&ckv__cpu_this_machine), ckv__cpu_set_count(&cpus));
        pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
                struct ckv_cpu_set one = { 0 }, now;
                int cpu = ckv__cpu_this_machine.cpu();

                ckv__cpu_set_add(&one, (uint32_t)cpu);
                if (cpu < 0 || !ckv__cpu_this_machine.bind(&one) || !ckv__cpu_this_machine.affinity(&now))
                        _exit(1);
                _exit(memcmp(&one, &now, sizeof(one)) == 0 && ckv__cpu_threads(&ckv__cpu_this_machine) == 1 &&
                      ckv__cpu_this_machine.cpu() == cpu ? 0 : 2);
        }
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_int_eq(status, 0);
}
END_TEST

/* A page of a memfd that this process never touched is on a node with memory; what is not mapped is nowhere. */
START_TEST(this_machine_by_its_pages) {
        struct ckv_cpu_nodes *nodes = NULL;
        const size_t bytes = 1 << 16;
        int fd = memfd_create("pages", MFD_CLOEXEC), number;
        void *at;

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
        at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        ck_assert(at != MAP_FAILED);
        number = ckv__cpu_this_machine.node_of(at);
        printf("a page is on node %d\n", number);
        ck_assert_int_eq(ckv__cpu_nodes_new(&ckv__cpu_this_machine, &nodes), 0);
        ck_assert_uint_ge(ckv__cpu_nodes_count(nodes), 1);
        ckv__cpu_nodes_refresh(nodes);
        /* a container may forbid the question */
        if (number >= 0 && ckv__cpu_nodes_count(nodes) == 1)
                ck_assert(ckv__cpu_nodes_of(nodes, at) == 0 || ckv__cpu_nodes_of(nodes, at) == CKV_CPU_ANYWHERE);
        ck_assert_int_eq(munmap(at, bytes), 0);
        ck_assert_int_lt(ckv__cpu_this_machine.node_of(at), 0);
        (void)ckv__cpu_nodes_free(nodes);
        (void)close(fd);
}
END_TEST

/* Numbers with holes, a node that is offline, one without CPUs, one that the mask leaves out */
START_TEST(nodes_that_count) {
        static const struct machine_node four[] = { { 0, "0-3" }, { 2, "4-7" }, { 5, "" }, { 7, "8-11" }, { 8, "12-15" } };
        static const int numbers[] = { 0, 2, 5, 7, 8, 1, 900, 1024, -1 };
        static const uint32_t in_all[] = { 0, 1, CKV_CPU_ANYWHERE, 2, CKV_CPU_ANYWHERE, CKV_CPU_ANYWHERE, CKV_CPU_ANYWHERE,
                                           CKV_CPU_ANYWHERE, CKV_CPU_ANYWHERE };
        static const uint32_t without[] = { 0, CKV_CPU_ANYWHERE, CKV_CPU_ANYWHERE, 1, CKV_CPU_ANYWHERE, CKV_CPU_ANYWHERE,
                                            CKV_CPU_ANYWHERE, CKV_CPU_ANYWHERE, CKV_CPU_ANYWHERE };

        for (uint32_t masked = 0; masked < 2; masked++) {
                struct ckv_cpu_nodes *nodes;

                machine_make("0,2,5,7\n", four, CKV_ARRAY_SIZE(four), masked ? "1-3,8" : "0-15");
                machine_pages(numbers, CKV_ARRAY_SIZE(numbers));
                nodes = look();
                ck_assert_uint_eq(ckv__cpu_nodes_count(nodes), masked ? 2 : 3);
                ckv__cpu_nodes_refresh(nodes);
                for (uint32_t i = 0; i < CKV_ARRAY_SIZE(numbers); i++)
                        ck_assert_uint_eq(ckv__cpu_nodes_of(nodes, STRETCH(i + CKV_ARRAY_SIZE(numbers))),
                                          (masked ? without : in_all)[i]);
                machine_be_on(5);
                ck_assert_uint_eq(ckv__cpu_nodes_here(nodes), masked ? CKV_CPU_ANYWHERE : 1);
                machine_be_on(8);
                ck_assert_uint_eq(ckv__cpu_nodes_here(nodes), masked ? 1 : 2);
                machine_be_on(13);
                ck_assert_uint_eq(ckv__cpu_nodes_here(nodes), CKV_CPU_ANYWHERE);
                (void)ckv__cpu_nodes_free(nodes);
                machine_remove();
        }
}
END_TEST

/* One node, none that can be read, and more than anybody has */
START_TEST(nodes_that_do_not) {
        static const struct machine_node one[] = { { 0, "0-3\n" } };
        struct machine_node many[CKV_CPU_NODES_MOST + 1];
        char cpus[CKV_CPU_NODES_MOST + 1][16];
        struct ckv_cpu_nodes *nodes;
        struct ckv_cpu_set held;

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(many); i++) {
                (void)snprintf(cpus[i], sizeof(cpus[i]), "%u", i);
                many[i] = (struct machine_node){ i, cpus[i] };
        }
        for (uint32_t count = CKV_CPU_NODES_MOST; count <= CKV_CPU_NODES_MOST + 1; count++) {
                machine_make("0-100", many, count, "0-1000");
                nodes = look();
                ck_assert_uint_eq(ckv__cpu_nodes_count(nodes), count > CKV_CPU_NODES_MOST ? 1 : count);
                (void)ckv__cpu_nodes_free(nodes);
                machine_remove();
        }
        for (uint32_t i = 0; i < 2; i++) {
                machine_make(i ? "0\n" : "", one, 1, "0-3");
                nodes = look();
                ck_assert_uint_eq(ckv__cpu_nodes_count(nodes), 1);
                /* nothing is gained by holding anybody */
                ck_assert_uint_eq(ckv__cpu_nodes_pin(nodes, CKV_CPU_PIN_AUTO, 0), CKV_CPU_ANYWHERE);
                ck_assert_uint_eq(ckv__cpu_nodes_pin(nodes, CKV_CPU_PIN_NODE, 1), 0);
                held = machine_held();
                check_set(&held, "0-3");
                (void)ckv__cpu_nodes_free(nodes);
                machine_remove();
        }
}
END_TEST

/* Workers go where CPUs are, in proportion, and never out of the mask. */
START_TEST(workers_are_dealt_out) {
        static const struct machine_node two[] = { { 0, "0-7" }, { 3, "8-15" } };
        static const char *const cores[] = { "0", "8", "1", "2", "10", "3", "0", "8" };
        static const uint32_t of[] = { 0, 1, 0, 0, 1, 0, 0, 1 };
        struct ckv_cpu_nodes *nodes;
        struct ckv_cpu_set held;

        machine_make("0,3", two, 2, "0-3,8,10");
        nodes = look();
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(cores); i++) {
                ck_assert_uint_eq(ckv__cpu_nodes_pin(nodes, CKV_CPU_PIN_CORE, i), of[i]);
                held = machine_held();
                check_set(&held, cores[i]);
                ck_assert_uint_eq(ckv__cpu_nodes_pin(nodes, i % 2 ? CKV_CPU_PIN_NODE : CKV_CPU_PIN_AUTO, i), of[i]);
                held = machine_held();
                check_set(&held, of[i] ? "8,10" : "0-3");
                ck_assert_uint_eq(ckv__cpu_nodes_here(nodes), of[i]);
        }
        ck_assert_uint_eq(ckv__cpu_nodes_pin(nodes, CKV_CPU_PIN_OFF, 0), CKV_CPU_ANYWHERE);
        check_set(&held, "8,10");
        machine_refuse_binds();
        ck_assert_uint_eq(ckv__cpu_nodes_pin(nodes, CKV_CPU_PIN_NODE, 0), CKV_CPU_ANYWHERE);
        (void)ckv__cpu_nodes_free(nodes);
        machine_remove();
}
END_TEST

START_TEST(names_of_pins) {
        static const char *const names[] = { "auto", "off", "node", "core" };
        enum ckv_cpu_pin pin = CKV_CPU_PIN_OFF;

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(names); i++) {
                ck_assert(ckv__cpu_pin_parse(names[i], &pin));
                ck_assert_uint_eq(pin, i);
        }
        ck_assert(!ckv__cpu_pin_parse("", &pin) && !ckv__cpu_pin_parse("on", &pin) && !ckv__cpu_pin_parse("cores", &pin));
        ck_assert_uint_eq(pin, CKV_CPU_PIN_CORE);
}
END_TEST

/* One question for a stretch, until something was unmapped */
START_TEST(answers_are_kept) {
        static const struct machine_node two[] = { { 0, "0" }, { 1, "1" } };
        static const int first[] = { 0, 1 }, then[] = { 1, 0 };
        struct ckv_cpu_nodes *nodes;

        machine_make("0-1", two, 2, "0-1");
        machine_pages(first, 2);
        nodes = look();
        for (uint32_t round = 0; round < 3; round++) {
                ckv__cpu_nodes_refresh(nodes);
                for (uint32_t i = 0; i < 100; i++) {
                        const uint8_t *at = STRETCH(10 + i % 4);

                        ck_assert_uint_eq(ckv__cpu_nodes_of(nodes, at + i * 20000), i % 2);
                }
                ck_assert_uint_eq(machine_asked(), 4);
        }
        machine_pages(then, 2);
        ckv__cpu_nodes_refresh(nodes);
        ck_assert_uint_eq(ckv__cpu_nodes_of(nodes, STRETCH(10)), 0);
        ckv__cpu_nodes_forget(nodes);
        ckv__cpu_nodes_refresh(nodes);
        ck_assert_uint_eq(ckv__cpu_nodes_of(nodes, STRETCH(10)), 1);
        ck_assert_uint_eq(machine_asked(), 1);
        /* stretches that meet in the table push each other out, and no more */
        for (uint32_t i = 0; i < 5000; i++)
                ck_assert_uint_eq(ckv__cpu_nodes_of(nodes, STRETCH(i + 1)), i % 2);
        (void)ckv__cpu_nodes_free(nodes);
        machine_remove();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_nodes");
        TCase *tcase = tcase_create("cpu_nodes");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, lists_of_numbers);
        tcase_add_test(tcase, threads_by_affinity_and_quota);
        tcase_add_test(tcase, the_lesser_of_two_quotas);
        tcase_add_test(tcase, threads_by_quota_of_version_1);
        tcase_add_test(tcase, threads_by_quota_of_both_versions);
        tcase_add_test(tcase, this_machine_by_its_mask);
        tcase_add_test(tcase, this_machine_by_its_pages);
        tcase_add_test(tcase, nodes_that_count);
        tcase_add_test(tcase, nodes_that_do_not);
        tcase_add_test(tcase, workers_are_dealt_out);
        tcase_add_test(tcase, names_of_pins);
        tcase_add_test(tcase, answers_are_kept);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
