/*
 * The choice of the CPU path: among kernels made for it, of which some are slow
 * and some are wrong, and among those of this machine.
 */
#include "base/macros.h"
#include "kernels/cpu_choice.h"
#include "kernels/cpu_trial.h"
#include "kernels/reference.h"
#include "proto/code_path.h"
#include "tests/support_amx_software.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- kernels that are right, by the definition, and take bfloat16 alone */

static bool takes(enum ckv_dtype keys, enum ckv_dtype queries, uint32_t dims) {
        return keys == CKV_DTYPE_BF16 && queries == CKV_DTYPE_BF16 && dims % 8 == 0;
}

static bool takes_few(enum ckv_dtype keys, enum ckv_dtype queries, uint32_t dims) {
        return takes(keys, queries, dims) && dims < 100;
}

static size_t pack_bytes(uint32_t query_count, uint32_t dims) {
        return ((size_t)query_count * dims * sizeof(float) + 63) / 64 * 64;
}

static void pack(const float *values, uint32_t query_count, uint32_t dims, void *ret_pack) {
        memcpy(ret_pack, values, (size_t)query_count * dims * sizeof(float));
}

/* 2^(logit - reference), 0 where the query does not see the row */
static float weight(const struct ckv_cpu_window_segment *segment, uint32_t n, uint32_t i) {
        const uint8_t *key = ckv_plane_row(segment->k, segment->table, segment->first + i, segment->head);
        const float *query = (const float *)segment->queries + (size_t)n * segment->dims;
        uint32_t t = n % segment->window;
        float product = 0;

        if (segment->first + i < segment->low[t] || segment->first + i >= segment->high[t])
                return 0;
        for (uint32_t x = 0; x < segment->dims; x++) {
                uint32_t bits = (uint32_t)((const uint16_t *)(const void *)key)[x] << 16;
                float v;

                memcpy(&v, &bits, sizeof(v));
                product += v * query[x];
        }
        return exp2f(product * segment->factor - segment->reference[n]);
}

static void units_right(const struct ckv_cpu_window_segment *segment, const struct ckv_cpu_window_map *map, float *ret_columns,
                        float *ret_total) {
        uint32_t padded = (segment->query_count + CKV_CPU_WINDOW_LANES - 1) / CKV_CPU_WINDOW_LANES * CKV_CPU_WINDOW_LANES;

        memset(ret_columns, 0, (size_t)map->columns * padded * sizeof(*ret_columns));
        for (uint32_t n = 0; n < segment->query_count; n++) {
                ret_total[n] = 0;
                for (uint32_t i = 0; i < segment->rows; i++) {
                        float w = weight(segment, n, i);

                        ret_total[n] += w;
                        for (uint32_t e = map->first[i]; e < map->first[i + 1]; e++)
                                ret_columns[(size_t)map->parts[e].column * padded + n] += w * map->parts[e].part;
                }
        }
}

static void rows_right(const struct ckv_cpu_window_segment *segment, const float *inverse, float *ret_a, size_t stride,
                       float *ret_above, float *ret_total) {
        (void)ret_above;
        (void)ret_total;
        for (uint32_t n = 0; n < segment->query_count; n++)
                for (uint32_t i = 0; i < segment->rows; i++) {
                        float *to = ret_a + n / segment->window * stride + i;

                        *to = (n % segment->window ? *to : 0) + weight(segment, n, i) * inverse[n];
                }
}

static void units_slow(const struct ckv_cpu_window_segment *segment, const struct ckv_cpu_window_map *map, float *ret_columns,
                       float *ret_total) {
        for (int i = 0; i < 3; i++)
                units_right(segment, map, ret_columns, ret_total);
}

/* ---- and fast ones that are wrong somewhere */

static void units_empty(const struct ckv_cpu_window_segment *segment, const struct ckv_cpu_window_map *map, float *ret_columns,
                        float *ret_total) {
        (void)map;
        (void)ret_columns;
        for (uint32_t n = 0; n < segment->query_count; n++)
                ret_total[n] = 1;
}

/* right for few queries, as if an index ran over */
static void units_many(const struct ckv_cpu_window_segment *segment, const struct ckv_cpu_window_map *map, float *ret_columns,
                       float *ret_total) {
        if (segment->query_count > 64)
                units_empty(segment, map, ret_columns, ret_total);
        else
                units_right(segment, map, ret_columns, ret_total);
}

static void rows_last_missing(const struct ckv_cpu_window_segment *segment, const float *inverse, float *ret_a, size_t stride,
                              float *ret_above, float *ret_total) {
        rows_right(segment, inverse, ret_a, stride, ret_above, ret_total);
        ret_a[segment->rows - 1] = 0;
}

static void units_last_missing(const struct ckv_cpu_window_segment *segment, const struct ckv_cpu_window_map *map,
                               float *ret_columns, float *ret_total) {
        units_right(segment, map, ret_columns, ret_total);
        ret_columns[3] *= 1.001f;
}

static void units_not_a_number(const struct ckv_cpu_window_segment *segment, const struct ckv_cpu_window_map *map,
                               float *ret_columns, float *ret_total) {
        units_right(segment, map, ret_columns, ret_total);
        ret_total[segment->query_count - 1] = NAN;
}

#define WINDOW(text, of_units, of_rows) \
        { .name = text, .takes = takes, .pack_bytes = pack_bytes, .pack = pack, .units = of_units, .rows = of_rows }

static const struct ckv_cpu_window_kernel right = WINDOW("right", units_right, rows_right),
        slow = WINDOW("slow", units_slow, rows_right), empty = WINDOW("empty", units_empty, rows_right),
        many = WINDOW("many", units_many, rows_right), rows_wrong = WINDOW("rows", units_right, rows_last_missing),
        column_wrong = WINDOW("column", units_last_missing, rows_right),
        not_a_number = WINDOW("nan", units_not_a_number, rows_right);

static bool yes(void) {
        return true;
}

static bool no(void) {
        return false;
}

#define PATH(text, of_window, of_usable) { text, &ckv__cpu_kernel_scalar, of_window, of_usable }

static const struct ckv_cpu_path *pick(const struct ckv_cpu_choice *choice, uint32_t dims, uint32_t query_count) {
        return ckv__cpu_choice_path(choice, CKV_DTYPE_BF16, CKV_DTYPE_BF16, dims, query_count);
}

START_TEST(fastest_of_those_that_take_it) {
        const struct ckv_cpu_path paths[] = {
                PATH("scalar", NULL, yes), PATH("right", &right, yes), PATH("slow", &slow, yes), PATH("not here", &right, no),
        };
        struct ckv_cpu_choice *choice;
        char text[200];

        ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), NULL, &choice), 0);
        for (uint32_t dims = 32; dims <= 512; dims *= 2)
                for (uint32_t queries = 1; queries <= 512; queries *= 2)
                        ck_assert_str_eq(pick(choice, dims, queries)->name, "right");
        /* what no window kernel takes is for a general one */
        ck_assert(ckv__cpu_choice_path(choice, CKV_DTYPE_F16, CKV_DTYPE_BF16, 64, 8)->kernel == &ckv__cpu_kernel_scalar);
        ck_assert(ckv__cpu_choice_path(choice, CKV_DTYPE_F8_E4M3, CKV_DTYPE_F32, 64, 8)->kernel == &ckv__cpu_kernel_scalar);
        ckv__cpu_choice_wrong(choice, text, sizeof(text));
        ck_assert_str_eq(text, "");
        ckv__cpu_choice_text(choice, text, sizeof(text));
        ck_assert_ptr_nonnull(strstr(text, "right: bf16"));
        ck_assert_ptr_null(strstr(text, "not here"));
        (void)ckv__cpu_choice_free(choice);
}
END_TEST

START_TEST(wrong_is_never_picked) {
        const struct ckv_cpu_window_kernel *wrong[] = { &empty, &many, &rows_wrong, &column_wrong, &not_a_number };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(wrong); i++) {
                const struct ckv_cpu_path paths[] = {
                        PATH("scalar", NULL, yes), PATH("right", &right, yes), PATH(wrong[i]->name, wrong[i], yes),
                };
                struct ckv_cpu_choice *choice;
                char text[200];

                ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), NULL, &choice), 0);
                ckv__cpu_choice_wrong(choice, text, sizeof(text));
                ck_assert_str_eq(text, wrong[i]->name);
                /* nor for what it does right, or what it would not even be asked for */
                for (uint32_t queries = 0; queries < 300; queries += 10)
                        ck_assert_str_eq(pick(choice, 128, queries)->name, "right");
                ckv__cpu_choice_names(choice, text, sizeof(text));
                ck_assert_str_eq(text, "right");
                (void)ckv__cpu_choice_free(choice);
        }
}
END_TEST

/* The one that comes first in the table is the wrong one: those that differ from it are not. */
START_TEST(first_is_wrong) {
        const struct ckv_cpu_path paths[] = { PATH("scalar", NULL, yes), PATH("many", &many, yes), PATH("right", &right, yes) };
        struct ckv_cpu_choice *choice;
        char text[200];

        ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), NULL, &choice), 0);
        ckv__cpu_choice_wrong(choice, text, sizeof(text));
        ck_assert_str_eq(text, "many");
        ck_assert_str_eq(pick(choice, 128, 128)->name, "right");
        (void)ckv__cpu_choice_free(choice);
}
END_TEST

/* Every shape has one pick, the ranges have no gaps, and what a pick says is what is taken. */
START_TEST(picks_tell_all) {
        static const uint32_t dims[] = { 1, 64, 80, 81, 128, 160, 161, 256, 1024 }, queries[] = { 1, 24, 25, 96, 97, 512 };
        static const enum ckv_dtype types[] = { CKV_DTYPE_BF16, CKV_DTYPE_F16, CKV_DTYPE_F32 };
        struct ckv_cpu_pick picks[CKV_CPU_PICKS_MOST];
        struct ckv_cpu_choice *choice;
        size_t count;

        ck_assert_int_eq(ckv__cpu_choice_new(NULL, &choice), 0);
        count = ckv__cpu_choice_picks(choice, picks);
        ck_assert_uint_eq(count, CKV_CPU_PICKS_MOST);
        for (size_t n = 0; n < CKV_ARRAY_SIZE(dims) * CKV_ARRAY_SIZE(queries) * 9; n++) {
                uint32_t d = dims[n % CKV_ARRAY_SIZE(dims)], q = queries[n / CKV_ARRAY_SIZE(dims) % CKV_ARRAY_SIZE(queries)];
                enum ckv_dtype keys = types[n % 3], of_queries = types[n / 3 % 3];
                const struct ckv_cpu_pick *found = NULL;

                for (size_t i = 0; i < count; i++) {
                        if (picks[i].keys != keys || d < picks[i].dims_first || d > picks[i].dims_last || q < picks[i].queries_first ||
                            q > picks[i].queries_last)
                                continue;
                        /* a pick without a type of queries is for all that no other names */
                        if (picks[i].queries == of_queries || (!found && picks[i].queries == CKV_DTYPE_NONE))
                                found = &picks[i];
                }
                ck_assert_ptr_nonnull(found);
                if (d % 64 == 0)
                        ck_assert_str_eq(found->path, ckv__cpu_choice_path(choice, keys, of_queries, d, q)->name);
        }
        (void)ckv__cpu_choice_free(choice);
}
END_TEST

/* What one path has a part of is said by ranges. */
START_TEST(text_names_ranges) {
        struct ckv_cpu_window_kernel narrow = right;
        const struct ckv_cpu_path paths[] = { PATH("scalar", NULL, yes), PATH("slow", &slow, yes), PATH("narrow", &narrow, yes) };
        struct ckv_cpu_choice *choice;
        char text[512];

        narrow.takes = takes_few;
        ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), NULL, &choice), 0);
        ckv__cpu_choice_text(choice, text, sizeof(text));
        ck_assert_str_eq(text, "narrow: bf16 (head_dim 1-80), bf16 with other queries, f16, f32; "
                               "slow: bf16 (head_dim 81-160, head_dim 161+)");
        ckv__cpu_choice_names(choice, text, sizeof(text));
        ck_assert_str_eq(text, "narrow+slow");
        (void)ckv__cpu_choice_free(choice);
}
END_TEST

static void units_slow_if_many(const struct ckv_cpu_window_segment *segment, const struct ckv_cpu_window_map *map, float *ret_columns,
                               float *ret_total) {
        for (uint32_t i = 0; i < (segment->query_count > 100 ? 5 : 1); i++)
                units_right(segment, map, ret_columns, ret_total);
}

START_TEST(text_names_queries) {
        const struct ckv_cpu_window_kernel few = WINDOW("few", units_slow_if_many, rows_right);
        const struct ckv_cpu_path paths[] = { PATH("scalar", NULL, yes), PATH("slow", &slow, yes), PATH("few", &few, yes) };
        struct ckv_cpu_choice *choice;
        char text[512];

        ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), NULL, &choice), 0);
        ckv__cpu_choice_text(choice, text, sizeof(text));
        ck_assert_str_eq(text, "few: bf16 (head_dim 1-80 with 1-24 or 25-96 queries, head_dim 81-160 with 1-24 or 25-96 queries, "
                               "head_dim 161+ with 1-24 or 25-96 queries), bf16 with other queries, f16, f32; "
                               "slow: bf16 (head_dim 1-80 with 97+ queries, head_dim 81-160 with 97+ queries, "
                               "head_dim 161+ with 97+ queries)");
        (void)ckv__cpu_choice_free(choice);
}
END_TEST

/* Not even if it is asked for; and what is asked for does without the wrong ones before it. */
START_TEST(wrong_is_not_forced) {
        struct ckv_cpu_window_kernel narrow = slow;
        const struct ckv_cpu_path paths[] = {
                PATH("scalar", NULL, yes), PATH("right", &right, yes), PATH("rows", &rows_wrong, yes), PATH("narrow", &narrow, yes),
        };
        struct ckv_cpu_choice *choice;
        char text[200];

        narrow.takes = takes_few;
        ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), "rows", &choice), -EIO);
        ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), "narrow", &choice), 0);
        ck_assert_str_eq(pick(choice, 64, 32)->name, "narrow");
        ck_assert_str_eq(pick(choice, 128, 32)->name, "right");
        ckv__cpu_choice_wrong(choice, text, sizeof(text));
        ck_assert_str_eq(text, "rows");
        (void)ckv__cpu_choice_free(choice);
}
END_TEST

START_TEST(forced) {
        const struct ckv_cpu_path paths[] = {
                PATH("scalar", NULL, yes), PATH("right", &right, yes), PATH("slow", &slow, yes), PATH("not here", &right, no),
        };
        struct ckv_cpu_choice *choice;
        char text[200];

        ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), "faster", &choice), -EOPNOTSUPP);
        ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), "", &choice), -EOPNOTSUPP);
        ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), "rig", &choice), -EOPNOTSUPP);
        ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), "not here", &choice), -EOPNOTSUPP);
        for (size_t i = 0; i < 3; i++) {
                ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), paths[i].name, &choice), 0);
                for (uint32_t queries = 0; queries < 300; queries += 10)
                        ck_assert(pick(choice, 128, queries) == &paths[i]);
                ckv__cpu_choice_text(choice, text, sizeof(text));
                ck_assert_str_eq(text, paths[i].name);
                ckv__cpu_choice_names(choice, text, sizeof(text));
                ck_assert_str_eq(text, paths[i].name);
                (void)ckv__cpu_choice_free(choice);
        }
}
END_TEST

/* What the forced one refuses goes to the next before it that takes it. */
START_TEST(forced_that_refuses) {
        struct ckv_cpu_window_kernel narrow = slow;
        const struct ckv_cpu_path paths[] = { PATH("scalar", NULL, yes), PATH("right", &right, yes), PATH("narrow", &narrow, yes) };
        struct ckv_cpu_choice *choice;

        narrow.takes = takes_few;
        ck_assert_int_eq(ckv__cpu_choice_of(paths, CKV_ARRAY_SIZE(paths), "narrow", &choice), 0);
        ck_assert_str_eq(pick(choice, 64, 32)->name, "narrow");
        ck_assert_str_eq(pick(choice, 128, 32)->name, "right");
        ck_assert_str_eq(pick(choice, 129, 32)->name, "narrow");
        (void)ckv__cpu_choice_free(choice);
}
END_TEST

/* ---- this machine */

START_TEST(paths_of_this_machine) {
        size_t count;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&count), *before[4] = { NULL };
        struct ckv_cpu_choice *choice;
        char text[300], cut[12];

        ck_assert_str_eq(paths[0].name, "scalar");
        ck_assert(paths[0].usable());
        ck_assert_int_eq(ckv__cpu_choice_new(NULL, &choice), 0);
        ckv__cpu_choice_wrong(choice, text, sizeof(text));
        ck_assert_str_eq(text, "");
        for (int again = 0; again < 2; again++)
                for (uint32_t i = 0; i < 4; i++) {
                        const struct ckv_cpu_path *path = pick(choice, 64U << i % 3, 16U << i);

                        ck_assert(path->usable());
                        ck_assert(!path->window || path->window->takes(CKV_DTYPE_BF16, CKV_DTYPE_BF16, 64U << i % 3));
                        ck_assert(again == 0 || path == before[i]);
                        before[i] = path;
                }
        ckv__cpu_choice_text(choice, text, sizeof(text));
        ck_assert_ptr_nonnull(strstr(text, before[2]->name));
        ckv__cpu_choice_text(choice, cut, sizeof(cut));
        ck_assert_uint_lt(strlen(cut), sizeof(cut));
        ck_assert_int_eq(strncmp(cut, text, strlen(cut)), 0);
        (void)ckv__cpu_choice_free(choice);
        for (size_t i = 0; i < count; i++) {
                int r = ckv__cpu_choice_new(paths[i].name, &choice);

                ck_assert_int_eq(r, paths[i].usable() ? 0 : -EOPNOTSUPP);
                if (r == 0)
                        (void)ckv__cpu_choice_free(choice);
        }
}
END_TEST

/* Gate and core call a path by a number: each has one. */
START_TEST(paths_have_numbers) {
        size_t count;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&count);

        for (size_t i = 0; i < count; i++)
                ck_assert_str_eq(ckv_code_path_to_string(ckv_code_path_parse(paths[i].name)), paths[i].name);
        ck_assert_uint_eq(ckv_code_path_parse("avx"), 0);
        ck_assert_str_eq(ckv_code_path_to_string(0), "?");
}
END_TEST

/* The trials say yes to what is right: all kernels of this machine, and tiles in software. */
START_TEST(trials_of_this_machine) {
        static const enum ckv_dtype types[] = { CKV_DTYPE_BF16, CKV_DTYPE_F16, CKV_DTYPE_F32 };
        size_t count;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&count);

        for (uint32_t n = 0; n < 18; n++) {
                const struct ckv_cpu_trial_shape shape = {
                        .keys = types[n % 3], .exact_queries = n % 2, .dims = 32U << n / 3, .rows = 100, .query_count = 12 * (n / 3 + 1),
                        .window = 3 * (n / 3 + 1),
                };
                struct ckv_cpu_trial *trial = ckv__cpu_trial_new(&shape);

                ck_assert_ptr_nonnull(trial);
                for (size_t i = 0; i <= count; i++) {
                        const struct ckv_cpu_window_kernel *window = i < count ? paths[i].window : &window_amx_software;

                        bool agrees = false;

                        if (!(i < count ? paths[i].usable() : __builtin_cpu_supports("avx512dq")) || !ckv__cpu_trial_takes(trial, window))
                                continue;
                        ck_assert_int_eq(ckv__cpu_trial_right(trial, window, &agrees), 0);
                        ck_assert_msg(agrees, "%s, trial %u", window->name, n);
                }
                (void)ckv__cpu_trial_free(trial);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_choice");
        TCase *tcase = tcase_create("all");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 120);
        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, fastest_of_those_that_take_it);
        tcase_add_test(tcase, wrong_is_never_picked);
        tcase_add_test(tcase, first_is_wrong);
        tcase_add_test(tcase, picks_tell_all);
        tcase_add_test(tcase, text_names_ranges);
        tcase_add_test(tcase, text_names_queries);
        tcase_add_test(tcase, wrong_is_not_forced);
        tcase_add_test(tcase, forced);
        tcase_add_test(tcase, forced_that_refuses);
        tcase_add_test(tcase, paths_of_this_machine);
        tcase_add_test(tcase, paths_have_numbers);
        tcase_add_test(tcase, trials_of_this_machine);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
