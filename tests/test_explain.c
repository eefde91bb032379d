/*
 * The page of `chunkkvctl explain`: text of others inside HTML, which rows a
 * score stands for, sums over them, and what of all that is on the page.
 */
#include "base/macros.h"
#include "tools/explain.h"
#include "tools/grid.h"
#include "tools/html.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <string.h>

/* ---- text in HTML */

#define BAD "\xef\xbf\xbd"            /* U+FFFD */

START_TEST(text_is_text) {
        static const struct { const char *text, *html; } cases[] = {
                { "a<b>&\"'", "a&lt;b&gt;&amp;&quot;&#39;" }, { "</script>", "&lt;/script&gt;" },
                { "\n", "\xe2\x86\xb5\n" },
                { "\t\r\x1b\x01", "&#x2409;&#x240d;&#x241b;&#x2401;" }, { "\x7f", "&#x2421;" },
                { "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" },
                /* half a character, one written too long, a surrogate, one past the last */
                { "\xc3", BAD }, { "\xe2\x82", BAD BAD }, { "\xc0\xbc", BAD BAD }, { "\xe0\x80\xbc", BAD BAD BAD },
                { "\xed\xa0\x80", BAD BAD BAD }, { "\xf4\x90\x80\x80", BAD BAD BAD BAD },
                { "\xe2\x80\xae", "[U+202E]" }, { "\xc2\x85", "[U+0085]" }, { "\xef\xbb\xbf", "[U+FEFF]" },
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(cases); i++) {
                char *html = NULL;
                size_t size;
                FILE *to = open_memstream(&html, &size);

                ck_assert_ptr_nonnull(to);
                ckv_html_text(to, cases[i].text);
                (void)fclose(to);
                ck_assert_str_eq(html, cases[i].html);
                free(html);
        }
}
END_TEST

/* ---- the grid, and sums over it */

/* The default profile's policy as an answer gives it, small. */
static struct chunkkv_policy small_policy(void) {
        return (struct chunkkv_policy){
                .selector = CHUNKKV_SELECTOR_CHUNK, .chunk = 4, .sinks = { true, 5 }, .recent = { true, 3 },
                .unit_reduce = CHUNKKV_UNIT_MEAN, .layers = CHUNKKV_LAYERS_EACH,
        };
}

static void unit_is(const struct ckv_grid *grid, size_t index, uint32_t chunk, uint32_t first, uint32_t end,
                    uint32_t rows) {
        ck_assert_uint_lt(index, grid->unit_count);
        ck_assert_uint_eq(grid->units[index].chunk, chunk);
        ck_assert_uint_eq(grid->units[index].first, first);
        ck_assert_uint_eq(grid->units[index].end, end);
        ck_assert_uint_eq(grid->units[index].rows, rows);
}

START_TEST(units_are_dense) {
        struct chunkkv_span spans[] = { { 9, 1 }, { 12, 4 }, { 1000, 5 } };
        struct ckv_settings settings = { .protect = spans, .protect_count = CKV_ARRAY_SIZE(spans) };
        struct chunkkv_policy policy = small_policy();
        struct ckv_grid grid;

        /* rows 0-4 sinks, 9 and 12-15 spans, 19-21 recent: chunks 0 and 3 are gone, 5 is short */
        ck_assert_int_eq(ckv_grid_init(&settings, &policy, 22, &grid), 0);
        ck_assert_uint_eq(grid.unit_count, 3);
        unit_is(&grid, 0, 1, 5, 8, 3);
        unit_is(&grid, 1, 2, 8, 12, 3);
        unit_is(&grid, 2, 4, 16, 19, 3);
        ck_assert_uint_eq(grid.unit_of_row[4], UINT32_MAX);
        ck_assert_uint_eq(grid.unit_of_row[5], 0);
        ck_assert_uint_eq(grid.unit_of_row[9], UINT32_MAX);
        ck_assert_uint_eq(grid.unit_of_row[10], 1);
        ck_assert(grid.guards[0] == CKV_GUARD_SINK && grid.guards[21] == CKV_GUARD_RECENT);
        ck_assert(grid.guards[9] == CKV_GUARD_SPAN && grid.guards[10] == CKV_GUARD_NONE);
        ckv_grid_deinit(&grid);

        /* a prefix of 17 rows covers two blocks */
        settings.protect_prefix = 17;
        ck_assert_int_eq(ckv_grid_init(&settings, &policy, 40, &grid), 0);
        ck_assert_uint_eq(grid.unit_count, 2);
        unit_is(&grid, 0, 8, 32, 36, 4);
        unit_is(&grid, 1, 9, 36, 37, 1);
        ck_assert_int_eq(grid.guards[31], CKV_GUARD_PREFIX);
        ckv_grid_deinit(&grid);
}
END_TEST

START_TEST(units_of_other_selectors) {
        uint32_t lengths[] = { 6, 1, 15 };
        struct ckv_settings settings = { .chunk_lengths = lengths, .chunk_length_count = 3 };
        struct chunkkv_policy policy = small_policy();
        struct ckv_grid grid;

        policy.selector = CHUNKKV_SELECTOR_CHUNK_AT;
        ck_assert_int_eq(ckv_grid_init(&settings, &policy, 22, &grid), 0);
        ck_assert_uint_eq(grid.unit_count, 3);
        unit_is(&grid, 0, 0, 5, 6, 1);
        unit_is(&grid, 1, 1, 6, 7, 1);
        unit_is(&grid, 2, 2, 7, 19, 12);
        ckv_grid_deinit(&grid);
        policy.selector = CHUNKKV_SELECTOR_TOKEN;
        ck_assert_int_eq(ckv_grid_init(&settings, &policy, 22, &grid), 0);
        ck_assert_uint_eq(grid.unit_count, 14);
        unit_is(&grid, 13, 18, 18, 19, 1);
        ckv_grid_deinit(&grid);
        /* profile paper scores all rows, the protected ones too */
        policy = small_policy();
        policy.profile = CHUNKKV_PROFILE_PAPER;
        ck_assert_int_eq(ckv_grid_init(&settings, &policy, 22, &grid), 0);
        ck_assert_uint_eq(grid.unit_count, 6);
        unit_is(&grid, 5, 5, 20, 22, 2);
        ck_assert(grid.guards_scored);
        ckv_grid_deinit(&grid);
}
END_TEST

START_TEST(mass_by_rows_taken) {
        const struct ckv_settings settings = { 0 };
        const struct chunkkv_policy policy = small_policy();
        const uint32_t kept[] = { 0, 5, 7, 10, 19, 22 };
        float scores[] = { 1, 2, 4, 8 };        /* rows 5-7, 8-11, 12-15, 16-18 */
        struct ckv_grid grid;

        ck_assert_int_eq(ckv_grid_init(&settings, &policy, 22, &grid), 0);
        ck_assert_uint_eq(grid.unit_count, 4);
        ck_assert(ckv_grid_mass(&grid, scores, kept, 3, false) == (1 + 2 * 2) / (double)(3 + 8 + 16 + 24));
        ck_assert(fabs(ckv_grid_mass(&grid, scores, kept, 3, true) - (1.0 / 3 + 2 * 0.5) / 15) < 1e-12);
        ck_assert(ckv_grid_mass(&grid, scores, kept, 0, false) == 0);
        ck_assert(ckv_grid_mass(&grid, scores, (const uint32_t[]){ 0, 22 }, 1, false) == 1);
        scores[2] = -1;
        ck_assert(isnan(ckv_grid_mass(&grid, scores, kept, 3, false)));
        memset(scores, 0, sizeof(scores));
        ck_assert(isnan(ckv_grid_mass(&grid, scores, kept, 3, false)));
        ckv_grid_deinit(&grid);
}
END_TEST

/* ---- the page, without a daemon */

START_TEST(hostile_pieces_stay_text) {
        static const char *pieces[] = { "</script><script>alert(1)</script>", "@@data@@", "\xff", "" };
        const struct ckv_tokens tokens = { .pieces = pieces, .count = 4 };
        uint32_t ranges[] = { 0, 2 };
        float scores[] = { 1, 0.5f };
        struct ckv_plan_layer layer = {
                .number = 7, .physical_before = 4, .logical_len = 4, .kept_count = 2,
                .ranges = ranges, .range_count = 1,
                .scores = scores, .score_count = 2,
        };
        struct ckv_plan plan = { .layers = &layer, .layer_count = 1, .policy = small_policy() };
        const struct ckv_settings settings = { .command = CKV_COMMAND_EXPLAIN, .path = "it's <here>" };
        struct ckv_output output = { 0 };
        char *page = NULL, why[CKV_FILES_WHY], *end;
        size_t size, scripts = 0;

        plan.policy.sinks.value = plan.policy.recent.value = 0;
        plan.policy.chunk = 2;
        output.stream = open_memstream(&page, &size);
        ck_assert_ptr_nonnull(output.stream);
        ck_assert_int_eq(ckv_explain_write(&settings, "dir/a&b", &plan, &tokens, &output, why), 0);
        (void)fclose(output.stream);
        for (end = page; (end = strstr(end, "</script>")); end++)
                scripts++;
        ck_assert_uint_eq(scripts, 2);
        ck_assert_ptr_nonnull(strstr(page, "<span>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;</span>"
                                           "<span>@@data@@</span><span>" BAD "</span><span>&#x2205;</span>"));
        ck_assert_ptr_nonnull(strstr(page, "keeps of a&amp;b</h1>"));
        ck_assert_ptr_nonnull(strstr(page, "chunkkvctl explain &#39;it&#39;\\&#39;&#39;s &lt;here&gt;&#39;"));
        ck_assert_ptr_nonnull(strstr(page, "66.7 % of the scored mass"));
        ck_assert_ptr_nonnull(strstr(page, "\"units\":[[0,0,2,2],[1,2,4,2]]"));
        ck_assert_ptr_nonnull(strstr(page, "{\"n\":7,\"mass\":0.666667,\"kept\":[0,2],\"scores\":[1,0.5]}"));
        free(page);

        /* a score too few: the daemon and this program do not mean the same chunks */
        layer.score_count = 1;
        page = NULL;
        output.stream = open_memstream(&page, &size);
        ck_assert_int_eq(ckv_explain_write(&settings, "a", &plan, &tokens, &output, why), -EPROTO);
        ck_assert_ptr_nonnull(strstr(why, "1 scores for the 2 chunks of layer 7"));
        (void)fclose(output.stream);
        free(page);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("explain");
        TCase *tests = tcase_create("without a daemon");
        SRunner *runner;
        int failed;

        tcase_add_test(tests, text_is_text);
        tcase_add_test(tests, units_are_dense);
        tcase_add_test(tests, units_of_other_selectors);
        tcase_add_test(tests, mass_by_rows_taken);
        tcase_add_test(tests, hostile_pieces_stay_text);
        suite_add_tcase(suite, tests);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
