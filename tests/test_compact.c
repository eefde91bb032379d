/*
 * S9 on random layouts, in place and to a destination, one kept set for all, for
 * each layer, for each head, or for each layer and head: the reference moves, and
 * every byte is compared with what support_moves.c says.  test_steps.c has moves
 * in steps, and the fast path.
 */
#include "kernels/reference.h"

#include "tests/support_moves.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void move_at_random(bool copy) {
        struct move_case *moves = move_case_new(&(struct move_shape){ .copy = copy });

        ckv_ref_run_move(moves->job);
        ck_assert(move_case_equals(moves));
        ck_assert_uint_eq(move_case_bytes(moves), moves->bytes_moved);
        (void)move_case_free(moves);
}

START_TEST(random_layouts) {
        srand(7);
        for (int round = 0; round < 3000; round++)
                move_at_random(false);
}
END_TEST

/* All kept rows are copied, those that keep their number too, and the source stays as it was. */
START_TEST(random_copies) {
        srand(8);
        for (int round = 0; round < 3000; round++)
                move_at_random(true);
}
END_TEST

/* Why nothing was dropped does not matter: such a group is left alone, in place and with a destination. */
START_TEST(groups_that_keep_all_stay) {
        for (uint32_t kept_all = CKV_KEPT_EMPTY; kept_all <= CKV_KEPT_PROTECTED; kept_all++) {
                struct move_case *moves;

                srand(kept_all);
                moves = move_case_new(&(struct move_shape){ .copy = kept_all % 2 });
                moves->job->groups[0].budget.kept_all = kept_all;
                moves->job->groups[0].bytes_moved = 77;
                ckv_ref_run_move(moves->job);
                ck_assert_uint_eq(move_case_bytes(moves), 0);
                for (uint32_t i = 0; i < moves->plane_count; i++)
                        ck_assert_mem_eq(moves->planes[i].now, moves->planes[i].before, moves->planes[i].bytes);
                (void)move_case_free(moves);
        }
}
END_TEST

/* A leading kept run is never written, not even with its own bytes: it may be a prefix shared with others. */
START_TEST(rows_that_stay_are_not_written) {
        const uint8_t flags[4] = { 1, 1, 1, 0 };
        struct ckv_job *job = ckv_job_new(1);
        struct ckv_job_group *group = &job->groups[0];
        void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        ck_assert_ptr_ne(page, MAP_FAILED);
        group->kv_heads = 1;
        group->layers = calloc(1, sizeof(*group->layers));
        group->layer_count = 1;
        group->layers[0].k = (struct ckv_plane){
                .base = page, .token = { .tile = 1, .outer = 2 }, .dim = { .tile = 1, .outer = 1 }, .dtype = CKV_DTYPE_BYTE, .dims = 2
        };
        group->table = (struct ckv_row_table){ .entries = calloc(1, sizeof(uint32_t)), .tokens_per_block = 4 };
        group->kept = calloc(1, sizeof(*group->kept));
        group->kept_count = 1;
        ck_assert_int_eq(ckv_kept_from_flags(flags, 4, &group->kept[0]), 0);
        ckv_ref_run_move(job);
        ck_assert_uint_eq(group->bytes_moved, 0);
        (void)ckv_job_free(job);
        (void)munmap(page, 4096);
}
END_TEST

START_TEST(a_job_frees_what_hangs_from_it) {
        struct ckv_job *job = ckv_job_new(2);

        ck_assert_ptr_nonnull(job);
        ck_assert_ptr_eq(job->groups[1].selection.policy, &job->groups[1].policy);
        job->groups[0].selection.spans = calloc(2, sizeof(struct ckv_span));
        job->groups[0].selection.positions = calloc(2, sizeof(uint32_t));
        job->groups[1].selection.chunk_lengths = calloc(2, sizeof(uint32_t));
        ck_assert_ptr_null(ckv_job_free(job));
        ck_assert_ptr_null(ckv_job_free(NULL));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("compact");
        TCase *tcase = tcase_create("compact");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, random_layouts);
        tcase_add_test(tcase, random_copies);
        tcase_add_test(tcase, groups_that_keep_all_stay);
        tcase_add_test(tcase, rows_that_stay_are_not_written);
        tcase_add_test(tcase, a_job_frees_what_hangs_from_it);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
