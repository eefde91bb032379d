/*
 * Work runs where the memory is: on machines of 2 and 4 nodes that are not
 * there, workers take the items of their node first and help others afterwards;
 * every item is done once, whatever the slices; and neither scores nor rows nor
 * bytes of a cache show any of it.
 *
 * Who works how fast is no matter: the first item of each worker waits until
 * all of them have one, and then only the order of a worker's items counts.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "kernels/backend.h"
#include "kernels/cpu_score.h"
#include "kernels/reference.h"
#include "tests/support_machine.h"
#include "tests/support_paths.h"
#include "tests/support_random.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS = 5000, THREADS = 8 };

#define STRETCH(i) ((const void *)((uintptr_t)(i) << MACHINE_STRETCH_LOG2))

static const struct machine_node two[] = { { 0, "0-3" }, { 1, "4-7" } };
static const struct machine_node four[] = { { 0, "0-1" }, { 2, "2-3" }, { 3, "4-5" }, { 9, "6-7" } };
static const int pages_of_two[] = { 0, 1, 1, 0, 0 }, pages_of_four[] = { 9, 0, 2, 3, 3, 2, 5, -1 };

static void make_machine(uint32_t nodes, const char *affinity) {
        if (nodes == 2) {
                machine_make("0-1", two, 2, affinity);
                machine_pages(pages_of_two, CKV_ARRAY_SIZE(pages_of_two));
        } else {
                machine_make("0,2-3,9", four, 4, affinity);
                machine_pages(pages_of_four, CKV_ARRAY_SIZE(pages_of_four));
        }
}

static struct ckv_cpu_pool *make_pool(uint32_t threads, enum ckv_cpu_pin pin, struct ckv_cpu_nodes **ret_nodes) {
        struct ckv_cpu_pool *pool = NULL;

        ck_assert_int_eq(ckv__cpu_nodes_new(&machine, ret_nodes), 0);
        ck_assert_int_eq(ckv__cpu_pool_new_on(threads, *ret_nodes, pin, &pool), 0);
        return pool;
}

/* Whose items a worker had, in their order: its own node's, anybody's, others' */
enum whose { OWN, ANYBODYS, OTHERS };

struct trace {
        struct ckv_cpu_nodes *nodes;
        uint32_t threads;               /* that are to work in this round */
        _Atomic uint32_t came, late;
        _Atomic uint8_t counts[ITEMS];
        _Atomic uint32_t next;          /* place in firsts */
        struct { uint32_t node; enum whose first; bool ascending; } workers[THREADS];
};

static _Thread_local struct { const struct trace *trace; uint32_t index, round; enum whose last; } me;
static uint32_t round_number;

static uint32_t node_of_item(uint32_t item) {
        /* stretches of 7 items, as they lie in memory */
        return item / 7 + 1;
}

static const void *where(const void *context, uint32_t item) {
        (void)context;
        return item % 97 == 5 ? NULL : STRETCH(node_of_item(item));
}

static enum whose whose_is(struct trace *trace, uint32_t item, uint32_t node) {
        uint32_t of = where(NULL, item) ? ckv__cpu_nodes_of(trace->nodes, where(NULL, item)) : CKV_CPU_ANYWHERE;

        return of == CKV_CPU_ANYWHERE ? ANYBODYS : of == node ? OWN : OTHERS;
}

static void trace_item(void *context, uint32_t item, float *scratch) {
        static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
        struct trace *trace = context;
        uint32_t node = ckv__cpu_nodes_here(trace->nodes);
        enum whose whose;

        scratch[0] = 1;
        atomic_fetch_add(&trace->counts[item], 1);
        (void)pthread_mutex_lock(&mutex);
        whose = whose_is(trace, item, node);
        if (me.trace != trace || me.round != round_number) {
                me.trace = trace;
                me.round = round_number;
                me.index = trace->next++;
                trace->workers[me.index].node = node;
                trace->workers[me.index].first = whose;
                trace->workers[me.index].ascending = true;
                me.last = whose;
        }
        trace->workers[me.index].ascending &= whose >= me.last;
        me.last = whose;
        (void)pthread_mutex_unlock(&mutex);
        if (atomic_load(&trace->came) < trace->threads && atomic_fetch_add(&trace->came, 1) + 1 < trace->threads) {
                uint64_t end = ckv_now_nsec() + 60 * CKV_NSEC_PER_SEC;

                while (atomic_load(&trace->came) < trace->threads && ckv_now_nsec() < end)
                        (void)poll(NULL, 0, 1);
                atomic_fetch_add(&trace->late, ckv_now_nsec() >= end);
        }
}

/* Held to their nodes or not: a worker begins with items of its node, and goes on to others when those are given out. */
START_TEST(own_items_first) {
        static const struct { uint32_t nodes; enum ckv_cpu_pin pin; uint32_t items; } cases[] = {
                { 2, CKV_CPU_PIN_AUTO, 300 }, { 2, CKV_CPU_PIN_CORE, ITEMS }, { 4, CKV_CPU_PIN_NODE, 600 },
                { 4, CKV_CPU_PIN_CORE, CKV_CPU_NEAR_MOST + 1 },
        };

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(cases); i++) {
                struct trace trace = { .threads = THREADS };
                struct ckv_cpu_near near = { .count = 0 };
                struct ckv_cpu_pool *pool;
                uint32_t at = 0, of_node[4] = { 0 };

                make_machine(cases[i].nodes, "0-7");
                pool = make_pool(THREADS, cases[i].pin, &trace.nodes);
                round_number++;
                at = ckv__cpu_pool_run_near(pool, trace_item, where, &trace, &near, at, cases[i].items, UINT64_MAX);
                ck_assert_uint_eq(at, CKV_MIN(cases[i].items, CKV_CPU_NEAR_MOST));
                ck_assert_uint_eq(trace.late, 0);
                ck_assert_uint_eq(trace.next, THREADS);
                for (uint32_t w = 0; w < THREADS; w++) {
                        ck_assert_uint_lt(trace.workers[w].node, cases[i].nodes);
                        of_node[trace.workers[w].node]++;
                        ck_assert_msg(trace.workers[w].first == OWN && trace.workers[w].ascending,
                                      "case %u: worker %u of node %u", i, w, trace.workers[w].node);
                }
                for (uint32_t n = 0; n < cases[i].nodes; n++)
                        ck_assert_uint_eq(of_node[n], THREADS / cases[i].nodes);
                for (uint32_t item = 0; item < ITEMS; item++)
                        ck_assert_uint_eq(trace.counts[item], item < at);
                (void)ckv__cpu_pool_free(pool);
                (void)ckv__cpu_nodes_free(trace.nodes);
                machine_remove();
        }
}
END_TEST

/* All memory on one node, or on none that has workers: nobody waits. */
START_TEST(others_help) {
        static const int far[] = { 9 }, nobody[] = { 5 };
        const int *const numbers[] = { far, nobody };

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(numbers); i++) {
                struct trace trace = { .threads = THREADS };
                struct ckv_cpu_near near = { .count = 0 };
                struct ckv_cpu_pool *pool;

                make_machine(4, "0-7");
                machine_pages(numbers[i], 1);
                pool = make_pool(THREADS, CKV_CPU_PIN_AUTO, &trace.nodes);
                round_number++;
                ck_assert_uint_eq(ckv__cpu_pool_run_near(pool, trace_item, where, &trace, &near, 0, 500, UINT64_MAX), 500);
                ck_assert_uint_eq(trace.late, 0);
                ck_assert_uint_eq(trace.next, THREADS);
                (void)ckv__cpu_pool_free(pool);
                (void)ckv__cpu_nodes_free(trace.nodes);
                machine_remove();
        }
}
END_TEST

static void count_item(void *context, uint32_t item, float *scratch) {
        struct trace *trace = context;

        scratch[0] = 1;
        atomic_fetch_add(&trace->counts[item], 1);
}

/* Slices that end anywhere; several lists one after the other, plain ones in between */
START_TEST(each_item_once) {
        static const char *const affinities[] = { "0-7", "0-2", "1,2,5,7", "3" };

        for (uint32_t i = 0; i < 16; i++) {
                struct trace trace = { .threads = 0 };
                struct ckv_cpu_near near = { .count = 0 };
                struct ckv_cpu_pool *pool;
                uint32_t items = i % 8 == 3 ? ITEMS : 20 * i + 1, at = 0, before = 0;

                make_machine(i % 2 ? 2 : 4, affinities[i % CKV_ARRAY_SIZE(affinities)]);
                pool = make_pool(1 + i % 5, (enum ckv_cpu_pin)(i / 4 % 4), &trace.nodes);
                for (uint32_t slice = 0; at < items; slice++) {
                        uint32_t done = 0;

                        at = ckv__cpu_pool_run_near(pool, count_item, where, &trace, &near, at, items,
                                                    slice < 20 ? 0 : ckv_now_nsec() + 200000);
                        for (uint32_t item = 0; item < items; item++) {
                                ck_assert_uint_le(trace.counts[item], 1);
                                ck_assert(item >= at || trace.counts[item] == 1);
                                done += trace.counts[item];
                        }
                        ck_assert_uint_gt(done, before);
                        before = done;
                }
                ck_assert_uint_eq(before, items);
                ck_assert_uint_eq(near.count, 0);
                ck_assert_uint_eq(ckv__cpu_pool_run(pool, count_item, &trace, 3, 30, UINT64_MAX), 30);
                ck_assert_uint_eq(ckv__cpu_pool_run(pool, count_item, &trace, 3, 30, 0), 4);
                (void)ckv__cpu_pool_free(pool);
                (void)ckv__cpu_nodes_free(trace.nodes);
                machine_remove();
        }
}
END_TEST

/* One node, one thread: nothing is asked and nothing sorted. */
START_TEST(no_cost_where_it_is_no_use) {
        static const struct machine_node one[] = { { 0, "0-7" } };
        static const int pages[] = { 0 };

        for (uint32_t i = 0; i < 2; i++) {
                struct trace trace = { .threads = 0 };
                struct ckv_cpu_near near = { .count = 0 };
                struct ckv_cpu_pool *pool;

                machine_make(i ? "0-1" : "0", i ? two : one, i ? 2 : 1, "0-7");
                machine_pages(pages, 1);
                pool = make_pool(i ? 1 : 3, CKV_CPU_PIN_AUTO, &trace.nodes);
                for (uint32_t at = 0; at < 60;) {
                        at = ckv__cpu_pool_run_near(pool, count_item, where, &trace, &near, at, 60, 0);
                        /* a tail is left, as ever */
                        for (uint32_t item = 0; item < 60; item++)
                                ck_assert_uint_eq(trace.counts[item], item < at);
                }
                ck_assert_uint_eq(machine_asked(), 0);
                (void)ckv__cpu_pool_free(pool);
                (void)ckv__cpu_nodes_free(trace.nodes);
                machine_remove();
        }
}
END_TEST

/* ---- scores, rows, bytes */

static double *score_rows(const struct random_job *random, struct ckv_cpu_pool *pool, uint64_t step_usec) {
        const struct ckv_job_group *group = &random->job->groups[0];
        size_t count = (size_t)ckv_score_heads(group) * group->selection.rows;
        double *rows = calloc(count, sizeof(*rows));
        struct ckv_cpu_choice *choice;
        struct ckv_cpu_score *score;

        ck_assert_ptr_nonnull(rows);
        ck_assert_int_eq(ckv__cpu_choice_new(paths_widest()->name, &choice), 0);
        ck_assert_int_eq(ckv__cpu_score_new(random->job, group, &score), 0);
        for (uint32_t layer = 0; layer < group->layer_count; layer++) {
                ckv__cpu_score_begin(score, &group->layers[layer]);
                while (!ckv__cpu_score_step(score, pool, choice, ckv_now_nsec() + step_usec * CKV_NSEC_PER_USEC))
                        ;
        }
        memcpy(rows, ckv__cpu_score_rows(score), count * sizeof(*rows));
        (void)ckv__cpu_score_free(score);
        (void)ckv__cpu_choice_free(choice);
        return rows;
}

/* R30: every method that has a place for its items; planes of 8 MiB, so that they have several nodes */
START_TEST(bits_same_on_any_machine) {
        static const struct ckv_policy asked[] = {
                { .scorer = CKV_SCORER_WINDOW, .window = 8 }, { .scorer = CKV_SCORER_RAW_QK, .window = 8 },
                { .scorer = CKV_SCORER_KEYDIFF }, { .scorer = CKV_SCORER_VK_RATIO }, { .scorer = CKV_SCORER_DROP, .window = 1 },
        };
        struct random_shape shape = { .groups = 1, .layers = 1, .rows = 16000, .kv_heads = 2, .per_group = 1, .dims = 64,
                                      .dtype = CKV_DTYPE_F32, .contiguous = true, .asked = &asked[_i] };
        struct random_job *random = random_job_new(5, &shape);
        struct ckv_cpu_pool *plain, *pool;
        struct ckv_cpu_nodes *nodes;
        double *expected, *found;

        ck_assert_int_eq(ckv__cpu_pool_new(1, &plain), 0);
        expected = score_rows(random, plain, 60000000);
        for (uint32_t count = 2; count <= 4; count += 2) {
                make_machine(count, "0-7");
                pool = make_pool(1 + count, CKV_CPU_PIN_AUTO, &nodes);
                found = score_rows(random, pool, count == 2 ? 60000000 : 300);
                ck_assert_mem_eq(expected, found, (size_t)shape.rows * sizeof(*found));
                /* it was asked, so that it shows something */
                ck_assert_uint_ge(machine_asked(), 3);
                free(found);
                (void)ckv__cpu_pool_free(pool);
                (void)ckv__cpu_nodes_free(nodes);
                machine_remove();
        }
        free(expected);
        (void)ckv__cpu_pool_free(plain);
        (void)random_job_free(random);
}
END_TEST

static void run_stage(struct ckv_backend *backend, struct ckv_job *job, enum ckv_stage stage) {
        struct pollfd done = { .fd = ckv_backend_cpu.wait_fd(backend), .events = POLLIN };

        job->stage = stage;
        ckv_backend_cpu.submit(backend, job);
        ck_assert_int_eq(poll(&done, 1, 60000), 1);
        ck_assert_ptr_eq(ckv_backend_cpu.reap(backend), job);
        ck_assert_int_eq(job->outcome, CKV_JOB_OK);
}

/* A whole job on the device: the rows it keeps, and every byte of the planes when they have moved */
START_TEST(device_on_nodes) {
        struct ckv_policy asked = { .window = 8, .chunk = 10 };
        struct random_shape shape = { .groups = 1, .layers = 2, .rows = 9000, .kv_heads = 4, .per_group = 2, .dims = 64,
                                      .dtype = CKV_DTYPE_F32, .contiguous = true, .asked = &asked, .keep_ratio = 500000 };
        struct random_job *plain = random_job_new(3, &shape), *near = random_job_new(3, &shape);
        struct ckv_backend_options options = { .threads = 1, .path = paths_widest()->name };
        struct ckv_backend *backend;
        uint32_t asked_before;

        ck_assert_int_eq(ckv_backend_cpu.open(&options, &backend), 0);
        run_stage(backend, plain->job, CKV_STAGE_PLAN);
        run_stage(backend, plain->job, CKV_STAGE_MOVE);
        (void)ckv_backend_cpu.close(backend);

        make_machine(_i, "0-7");
        options = (struct ckv_backend_options){ .slice_usec = 200, .path = paths_widest()->name, .sight = &machine, .pin = "core" };
        ck_assert_int_eq(ckv_backend_cpu.open(&options, &backend), 0);
        run_stage(backend, near->job, CKV_STAGE_PLAN);
        asked_before = machine_asked();
        ck_assert_uint_gt(asked_before, 3);
        run_stage(backend, near->job, CKV_STAGE_MOVE);
        ck_assert_uint_gt(machine_asked(), asked_before);
        (void)ckv_backend_cpu.close(backend);
        machine_remove();

        ck_assert_uint_eq(plain->job->groups[0].kept[0].run_count, near->job->groups[0].kept[0].run_count);
        ck_assert_mem_eq(plain->job->groups[0].kept[0].runs, near->job->groups[0].kept[0].runs,
                         plain->job->groups[0].kept[0].run_count * sizeof(*near->job->groups[0].kept[0].runs));
        for (uint32_t i = 0; i < plain->memory_count; i++)
                ck_assert(memcmp(plain->memory[i].bytes, near->memory[i].bytes, plain->memory[i].size) == 0);
        (void)random_job_free(plain);
        (void)random_job_free(near);
}
END_TEST

START_TEST(device_refuses_other_pins) {
        struct ckv_backend_options options = { .threads = 1, .path = "scalar", .pin = "cores" };
        struct ckv_backend *backend = NULL;

        ck_assert_int_eq(ckv_backend_cpu.open(&options, &backend), -EINVAL);
        ck_assert_ptr_null(backend);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_near");
        TCase *tcase = tcase_create("cpu_near");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 300);
        tcase_add_test(tcase, own_items_first);
        tcase_add_test(tcase, others_help);
        tcase_add_test(tcase, each_item_once);
        tcase_add_test(tcase, no_cost_where_it_is_no_use);
        tcase_add_loop_test(tcase, bits_same_on_any_machine, 0, 5);
        tcase_add_test(tcase, device_refuses_other_pins);
        tcase_add_loop_test(tcase, device_on_nodes, 2, 3);
        tcase_add_loop_test(tcase, device_on_nodes, 4, 5);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
