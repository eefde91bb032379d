/*
 * The map of scheme B by itself, held to the definition: what a row gives to a
 * unit is its share of each row of the pool around it that belongs to the unit.
 * Units have holes, as protected spans make them, and segments end anywhere, so
 * a unit goes on behind a hole, in the next segment, and both at once.
 */
#include "base/macros.h"
#include "kernels/cpu_parts.h"
#include "tests/support_random.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 400, HEADS_MAX = 3, QUERIES_MAX = 40, STRIDE = 48 };

struct problem {
        struct ckv_job_group group;
        struct ckv_units units;
        uint32_t unit_of_row[ROWS_MAX], size[ROWS_MAX], seen[ROWS_MAX + 1];
        uint32_t domain, segment_rows;
        bool by_seen;
};

/* Units of 1 to 20 rows; behind some rows there is a hole, within a unit or between two. */
static void cut_units(struct problem *p, struct dice *dice) {
        uint32_t rows = p->group.selection.rows, left = 0, unit = UINT32_MAX, hole = 0;

        for (uint32_t i = 0; i < rows; i++) {
                p->unit_of_row[i] = UINT32_MAX;
                if (hole > 0) {
                        hole--;
                        continue;
                }
                if (left == 0) {
                        left = 1 + dice_roll(dice, 20);
                        unit++;
                }
                p->unit_of_row[i] = unit;
                p->size[unit]++;
                left--;
                hole = dice_roll(dice, 8) ? 0 : 1 + dice_roll(dice, 6);
        }
        p->units = (struct ckv_units){ .count = unit + 1, .unit_of_row = p->unit_of_row, .size = p->size };
}

static void problem_init(struct problem *p, struct dice *dice) {
        struct ckv_policy *policy = &p->group.policy;
        uint32_t rows = 1 + dice_roll(dice, ROWS_MAX);

        *p = (struct problem){ .group.selection.rows = rows, .domain = rows - dice_roll(dice, rows),
                               .segment_rows = 1 + dice_roll(dice, 150) };
        *policy = (struct ckv_policy){
                .pool = dice_roll(dice, 4) ? CKV_POOL_AVG : CKV_POOL_NONE, .pool_size = 1 + 2 * dice_roll(dice, 16),
                .norm = CKV_NORM_SUM + dice_roll(dice, 3), .heads = dice_roll(dice, 2) ? CKV_HEADS_SUM : CKV_HEADS_EACH,
                .group_heads = dice_roll(dice, 2) ? CKV_GROUP_SUM : CKV_GROUP_MEAN,
                .unit_reduce = dice_roll(dice, 2) ? CKV_UNIT_MEAN : CKV_UNIT_SUM,
        };
        p->by_seen = policy->norm == CKV_NORM_SEEN;
        p->group.kv_heads = 1 + dice_roll(dice, HEADS_MAX);
        p->group.q_heads = p->group.kv_heads * (1 + dice_roll(dice, 4));
        for (uint32_t i = 0; i < rows; i++)
                p->seen[i] = dice_roll(dice, 9);
        cut_units(p, dice);
}

/* What row @i gives to unit @unit, by the definition */
static double share(const struct problem *p, uint32_t i, uint32_t unit) {
        const struct ckv_policy *policy = &p->group.policy;
        double norm = p->by_seen && p->seen[i] > 1 ? 1.0 / p->seen[i] : 1;
        uint32_t half = (policy->pool_size - 1) / 2, hits = 0;

        if (policy->pool == CKV_POOL_NONE || i >= p->domain)
                return p->unit_of_row[i] == unit ? norm : 0;
        for (uint32_t j = i > half ? i - half : 0; j <= i + half && j < p->domain; j++)
                hits += p->unit_of_row[j] == unit;
        return norm * hits / policy->pool_size;
}

static struct ckv_cpu_parts *parts_of(const struct problem *p) {
        struct ckv_cpu_parts *parts = NULL;

        ck_assert_int_eq(ckv__cpu_parts_new(&p->group, &p->units, p->domain, p->by_seen ? p->seen : NULL, p->segment_rows, STRIDE,
                                            HEADS_MAX, NULL, 1 << 26, &parts), 0);
        ck_assert_ptr_nonnull(parts);
        return parts;
}

/* Return: entries of the map that are not a row of one unit as a whole */
static uint32_t check_map(const struct problem *p, const struct ckv_cpu_parts *parts, uint64_t seed) {
        uint32_t rows = p->group.selection.rows, mixed = 0;

        for (uint32_t i = 0; i < rows; i++) {
                uint32_t s = i / p->segment_rows, r = i % p->segment_rows;
                struct ckv_cpu_window_map map = ckv__cpu_parts_map(parts, s);
                double given[ROWS_MAX] = { 0 };

                for (uint32_t e = map.first[r]; e < map.first[r + 1]; e++) {
                        ck_assert_uint_lt(map.parts[e].column, map.columns);
                        ck_assert_msg(e == map.first[r] || map.parts[e].column > map.parts[e - 1].column,
                                      "problem %u, row %u: a column comes twice", (unsigned)seed, i);
                        given[parts->first_unit[s] + map.parts[e].column] += (double)map.parts[e].part;
                        mixed += map.parts[e].part != 1;
                }
                for (uint32_t u = 0; u < p->units.count; u++)
                        ck_assert_msg(fabs(given[u] - share(p, i, u)) < 1e-6, "problem %u, row %u, unit %u: %g instead of %g",
                                      (unsigned)seed, i, u, given[u], share(p, i, u));
        }
        return mixed;
}

START_TEST(shares_by_definition) {
        uint32_t mixed = 0;

        for (uint64_t seed = 0; seed < (CKV_SANITIZED ? 40 : 150); seed++) {
                struct dice dice = { seed * 31 + 7 };
                struct problem p;
                struct ckv_cpu_parts *parts;

                problem_init(&p, &dice);
                parts = parts_of(&p);
                mixed += check_map(&p, parts, seed);
                (void)ckv__cpu_parts_free(parts);
        }
        ck_assert_uint_gt(mixed, 1000);
}
END_TEST

/* Weights go through map, reduction over queries and forming of scores; the same by the definition, row by row */
START_TEST(scores_by_definition) {
        for (uint64_t seed = 0; seed < (CKV_SANITIZED ? 20 : 60); seed++) {
                struct dice dice = { seed * 97 + 3 };
                struct problem p;
                struct ckv_cpu_parts *parts;
                uint32_t queries = 1 + dice_roll(&dice, QUERIES_MAX), votes = 1 + dice_roll(&dice, 8), heads, per_group;
                float inverse[QUERIES_MAX];
                double *rows;

                problem_init(&p, &dice);
                parts = parts_of(&p);
                heads = p.group.kv_heads;
                per_group = p.group.q_heads / heads;
                rows = calloc((size_t)heads * ROWS_MAX, sizeof(*rows));
                ck_assert_ptr_nonnull(rows);
                memset(parts->sums, 0, (size_t)heads * parts->columns * STRIDE * sizeof(*parts->sums));
                for (uint32_t n = 0; n < queries; n++)
                        inverse[n] = 0.5f + 0.01f * (float)dice_roll(&dice, 100);
                for (uint32_t h = 0; h < heads; h++) {
                        for (uint32_t i = 0; i < p.group.selection.rows; i++) {
                                uint32_t s = i / p.segment_rows, r = i % p.segment_rows;
                                struct ckv_cpu_window_map map = ckv__cpu_parts_map(parts, s);
                                float *sums = parts->sums + ((size_t)h * parts->columns + parts->first_column[s]) * STRIDE;

                                for (uint32_t n = 0; n < queries; n++) {
                                        float weight = 0.01f * (float)(1 + dice_roll(&dice, 100));

                                        rows[(size_t)h * ROWS_MAX + i] += (double)weight * (double)inverse[n];
                                        for (uint32_t e = map.first[r]; e < map.first[r + 1]; e++)
                                                sums[(size_t)map.parts[e].column * STRIDE + n] += weight * map.parts[e].part;
                                }
                        }
                        for (uint32_t half = 0; half < 2; half++)
                                ckv__cpu_parts_reduce(parts, h, queries, inverse, half ? parts->columns / 2 : 0,
                                                      half ? parts->columns : parts->columns / 2,
                                                      parts->heads + (size_t)h * parts->columns);
                }
                ckv__cpu_parts_form(parts, &p.group, &p.units, votes);
                for (uint32_t g = 0; g < ckv_score_heads(&p.group); g++)
                        for (uint32_t u = 0; u < p.units.count; u++) {
                                double want = 0, got = (double)parts->scores[(size_t)g * p.units.count + u];

                                for (uint32_t i = 0; i < p.group.selection.rows; i++)
                                        for (uint32_t h = 0; h < heads; h++)
                                                if (h == g || ckv_score_heads(&p.group) == 1)
                                                        want += share(&p, i, u) * rows[(size_t)h * ROWS_MAX + i];
                                want /= p.group.policy.norm == CKV_NORM_MEAN ? votes : 1;
                                want /= p.group.policy.group_heads == CKV_GROUP_MEAN ? per_group : 1;
                                want /= p.group.policy.unit_reduce == CKV_UNIT_MEAN ? p.size[u] : 1;
                                ck_assert_msg(fabs(got - want) <= 1e-5 * want + 1e-9,
                                              "problem %u, head %u, unit %u: %g instead of %g", (unsigned)seed, g, u, got, want);
                        }
                free(rows);
                (void)ckv__cpu_parts_free(parts);
        }
}
END_TEST

/* One unit, a protected span in it, a border of segments in that: one entry for each row, and a column in each segment */
START_TEST(on_behind_a_span) {
        struct problem p = { .group = { .kv_heads = 1, .q_heads = 1, .selection.rows = 12 }, .domain = 12, .segment_rows = 6 };
        struct ckv_cpu_parts *parts;

        p.group.policy = (struct ckv_policy){ .pool = CKV_POOL_AVG, .pool_size = 5, .norm = CKV_NORM_SUM, .heads = CKV_HEADS_SUM };
        p.unit_of_row[5] = p.unit_of_row[6] = UINT32_MAX;
        p.size[0] = 10;
        p.units = (struct ckv_units){ .count = 1, .unit_of_row = p.unit_of_row, .size = p.size };
        parts = parts_of(&p);
        ck_assert_uint_eq(parts->columns, 2);
        for (uint32_t s = 0; s < 2; s++) {
                /* of five rows around each; the ends of the sequence and the hole take some away */
                static const double fifths[2][6] = { { 3, 4, 5, 4, 3, 3 }, { 3, 3, 4, 5, 4, 3 } };
                struct ckv_cpu_window_map map = ckv__cpu_parts_map(parts, s);

                for (uint32_t r = 0; r < 6; r++) {
                        ck_assert_uint_eq(map.first[r + 1] - map.first[r], 1);
                        ck_assert_double_eq_tol((double)map.parts[map.first[r]].part, fifths[s][r] / 5, 1e-6);
                }
        }
        (void)ckv__cpu_parts_free(parts);
}
END_TEST

/* How many KV heads are worked on together with so many bytes; 0: none */
static uint32_t band_of(const struct problem *p, uint64_t bytes) {
        struct ckv_cpu_parts *parts = NULL;
        uint32_t band;

        ck_assert_int_eq(ckv__cpu_parts_new(&p->group, &p->units, p->domain, p->by_seen ? p->seen : NULL, p->segment_rows, STRIDE,
                                            HEADS_MAX, NULL, bytes, &parts), 0);
        band = parts ? parts->band : 0;
        (void)ckv__cpu_parts_free(parts);
        return band;
}

/* Map and sums of one KV head that would take more than is allowed are not made, and that is no error. */
START_TEST(too_large) {
        struct problem p;
        struct dice dice = { 5 };
        struct ckv_cpu_parts *parts;
        uint64_t head, less, enough = 1 << 26;

        problem_init(&p, &dice);
        parts = parts_of(&p);
        head = ((uint64_t)parts->columns + 1) * STRIDE * sizeof(float);
        (void)ckv__cpu_parts_free(parts);
        less = head;    /* the map takes some, too */
        ck_assert_uint_eq(band_of(&p, less), 0);
        while (enough - less > 1) {
                uint64_t middle = (less + enough) / 2;

                *(band_of(&p, middle) ? &enough : &less) = middle;
        }
        for (uint32_t band = 1; band <= HEADS_MAX; band++) {
                ck_assert_uint_eq(band_of(&p, enough + band * head - 1), band);
                ck_assert_uint_eq(band_of(&p, enough + (band - 1) * head), band);
        }
        ck_assert_uint_eq(band_of(&p, enough + HEADS_MAX * head), HEADS_MAX);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_parts");
        TCase *tcase = tcase_create("map");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 300);
        tcase_add_test(tcase, shares_by_definition);
        tcase_add_test(tcase, scores_by_definition);
        tcase_add_test(tcase, on_behind_a_span);
        tcase_add_test(tcase, too_large);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
