/*
 * S9 on random layouts: every nesting of block, head, token and dimension,
 * tiled axes, padding, scrambled tables, all element sizes.  What the buffer
 * must look like afterwards is made by a copy that knows nothing of the code
 * under test, and the whole buffer is compared: no stray write.
 */
#include "kernels/reference.h"

#include "base/macros.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum axis { BLOCK, HEAD, TOKEN_OUTER, TOKEN_INNER, DIM_OUTER, DIM_INNER, AXES };

static uint32_t dice(uint32_t n) {
        return (uint32_t)rand() % n;
}

struct box {
        uint32_t blocks, heads, tokens, dims;           /* tokens: of a block */
};

/* A random injective layout. Return: bytes from base to the end of the last element. */
static uint64_t random_plane(struct ckv_plane *plane, const struct box *box) {
        static const enum ckv_dtype dtypes[] = { CKV_DTYPE_F32,     CKV_DTYPE_F16, CKV_DTYPE_BF16,
                                                 CKV_DTYPE_F8_E4M3, CKV_DTYPE_I8,  CKV_DTYPE_BYTE };
        uint32_t token_tile = 1 + dice(box->tokens), dim_tile = 1 + dice(box->dims), order[AXES], extent[AXES];
        uint64_t stride[AXES], size, end = 0;

        *plane = (struct ckv_plane){ .dtype = dtypes[dice(CKV_ARRAY_SIZE(dtypes))], .dims = box->dims, .scale = 1 };
        extent[BLOCK] = box->blocks;
        extent[HEAD] = box->heads;
        extent[TOKEN_OUTER] = (box->tokens + token_tile - 1) / token_tile;
        extent[TOKEN_INNER] = token_tile;
        extent[DIM_OUTER] = (box->dims + dim_tile - 1) / dim_tile;
        extent[DIM_INNER] = dim_tile;
        for (uint32_t i = 0; i < AXES; i++) {
                uint32_t at = dice(i + 1);

                order[i] = order[at];
                order[at] = i;
        }
        size = ckv_dtype_bytes(plane->dtype);
        for (uint32_t i = 0; i < AXES; i++) {
                stride[order[i]] = size;
                size = size * extent[order[i]] + (dice(3) == 0 ? dice(9) : 0);
                end = size;
        }
        plane->block_stride = stride[BLOCK];
        plane->head_stride = stride[HEAD];
        plane->token =
                (struct ckv_axis){ .tile = token_tile, .outer = stride[TOKEN_OUTER], .inner = stride[TOKEN_INNER] };
        plane->dim = (struct ckv_axis){ .tile = dim_tile, .outer = stride[DIM_OUTER], .inner = stride[DIM_INNER] };
        return end;
}

/* Offset of an element, written out once more. */
static uint64_t offset_of(const struct ckv_plane *p, const struct ckv_row_table *table, uint32_t row, uint32_t head,
                          uint32_t x) {
        uint64_t slot = table->by_token
                                ? table->entries[row]
                                : (uint64_t)table->entries[row / table->tokens_per_block] * table->tokens_per_block +
                                          row % table->tokens_per_block;
        uint64_t block = slot / table->tokens_per_block, token = slot % table->tokens_per_block;

        return block * p->block_stride + head * p->head_stride + token / p->token.tile * p->token.outer +
               token % p->token.tile * p->token.inner + x / p->dim.tile * p->dim.outer + x % p->dim.tile * p->dim.inner;
}

static uint32_t *scrambled(uint32_t n) {
        uint32_t *entries = calloc((size_t)n + 1, sizeof(*entries));

        ck_assert_ptr_nonnull(entries);
        for (uint32_t i = 0; i < n; i++) {
                uint32_t at = dice(i + 1);

                entries[i] = entries[at];
                entries[at] = i;
        }
        return entries;
}

/* before -> after: row kept[i] of @from becomes row i of @to. Return: bytes read plus written. */
static uint64_t move_simply(const struct ckv_plane *plane, const struct ckv_row_table *from, const struct ckv_row_table *to,
                            uint32_t heads, const uint8_t *flags, uint32_t rows, const uint8_t *before, uint8_t *after) {
        uint32_t bytes = ckv_dtype_bytes(plane->dtype);
        uint64_t moved = 0;

        for (uint32_t h = 0; h < heads; h++)
                for (uint32_t j = 0, at = 0; j < rows; j++) {
                        if (!flags[j])
                                continue;
                        for (uint32_t x = 0; x < plane->dims; x++)
                                memcpy(after + offset_of(plane, to, at, h, x), before + offset_of(plane, from, j, h, x), bytes);
                        moved += from != to || j != at ? 2 * (uint64_t)plane->dims * bytes : 0;
                        at++;
                }
        return moved;
}

/* Buffers of one plane. */
struct buffers {
        uint8_t *now, *before, *expected;
        uint64_t bytes;
};

static void buffers_init(struct buffers *b, struct ckv_plane *plane, const struct box *box) {
        b->bytes = random_plane(plane, box);
        b->now = malloc(b->bytes);
        b->before = malloc(b->bytes);
        b->expected = malloc(b->bytes);
        ck_assert(b->now && b->before && b->expected);
        for (uint64_t i = 0; i < b->bytes; i++)
                b->now[i] = (uint8_t)rand();
        memcpy(b->before, b->now, b->bytes);
        memcpy(b->expected, b->now, b->bytes);
        plane->base = b->now;
}

static void buffers_check(struct buffers *b) {
        ck_assert_mem_eq(b->now, b->expected, b->bytes);
        free(b->now);
        free(b->before);
        free(b->expected);
}

/* Half of the blocks, as such or as slots in any order. */
static struct ckv_row_table half_table(const struct box *box, const uint32_t *blocks) {
        uint32_t n = box->blocks / 2;
        struct ckv_row_table table = { .by_token = dice(2), .tokens_per_block = box->tokens };
        uint32_t *entries;

        if (!table.by_token) {
                entries = calloc(n, sizeof(*entries));
                ck_assert_ptr_nonnull(entries);
                memcpy(entries, blocks, n * sizeof(*entries));
        } else {
                entries = scrambled(n * box->tokens);
                for (uint32_t i = 0; i < n * box->tokens; i++)
                        entries[i] = blocks[entries[i] / box->tokens] * box->tokens + entries[i] % box->tokens;
        }
        table.entries = entries;
        return table;
}

/* Tables of a group, in place or with a destination. Return: rows that they hold. */
static uint32_t random_tables(const struct box *box, bool copy, struct ckv_job_group *group) {
        uint32_t *blocks;

        if (copy) {
                blocks = scrambled(box->blocks);
                group->table = half_table(box, blocks);
                group->destination = half_table(box, blocks + box->blocks / 2);
                free(blocks);
                return box->blocks / 2 * box->tokens;
        }
        group->table.by_token = dice(2);
        group->table.tokens_per_block = box->tokens;
        group->table.entries = scrambled(group->table.by_token ? box->blocks * box->tokens : box->blocks);
        return box->blocks * box->tokens;
}

/* One job of two layers with K and sometimes V, moved at random. */
static void move_at_random(bool one_set, bool copy) {
        const struct box box = {
                .blocks = copy ? 2 + 2 * dice(4) : 1 + dice(6), .heads = 1 + dice(3), .tokens = 1 + dice(9), .dims = 1 + dice(12)
        };
        struct ckv_job *job = ckv_job_new(1);
        struct ckv_job_group *group = &job->groups[0];
        uint32_t rows = 1 + dice(random_tables(&box, copy, group)), sets = one_set ? 1 : 2;
        const struct ckv_row_table *to = copy ? &group->destination : &group->table;
        struct buffers k[2], v[2] = { 0 };
        uint64_t moved = 0;
        uint8_t *flags[2];

        group->kv_heads = box.heads;
        group->layers = calloc(2, sizeof(*group->layers));
        group->layer_count = 2;
        group->kept = calloc(sets, sizeof(*group->kept));
        group->kept_count = sets;
        group->selection.rows = rows;
        for (uint32_t l = 0; l < 2; l++) {
                uint32_t keep = 1 + dice(10);

                flags[l] = malloc(rows);
                for (uint32_t j = 0; j < rows; j++)
                        flags[l][j] = one_set && l == 1 ? flags[0][j] : dice(10) < keep;
                if (l < sets)
                        ck_assert_int_eq(ckv_kept_from_flags(flags[l], rows, &group->kept[l]), 0);
                buffers_init(&k[l], &group->layers[l].k, &box);
                moved += move_simply(&group->layers[l].k, &group->table, to, box.heads, flags[l], rows, k[l].before, k[l].expected);
                if (dice(4) == 0)
                        continue;
                buffers_init(&v[l], &group->layers[l].v, &box);
                moved += move_simply(&group->layers[l].v, &group->table, to, box.heads, flags[l], rows, v[l].before, v[l].expected);
        }
        ckv_ref_run_move(job);
        ck_assert_uint_eq(group->bytes_moved, moved);
        for (uint32_t l = 0; l < 2; l++) {
                buffers_check(&k[l]);
                if (v[l].now)
                        buffers_check(&v[l]);
                free(flags[l]);
        }
        (void)ckv_job_free(job);
}

START_TEST(random_layouts) {
        srand(7);
        for (int round = 0; round < 3000; round++)
                move_at_random(round % 2, false);
}
END_TEST

/* All kept rows are copied, those that keep their number too, and the source stays as it was. */
START_TEST(random_copies) {
        srand(8);
        for (int round = 0; round < 3000; round++)
                move_at_random(round % 2, true);
}
END_TEST

/* Why nothing was dropped does not matter: such a group is left alone, in place and with a destination. */
START_TEST(groups_that_keep_all_stay) {
        for (uint32_t kept_all = CKV_KEPT_EMPTY; kept_all <= CKV_KEPT_PROTECTED; kept_all++) {
                struct box box = { .blocks = 4, .heads = 2, .tokens = 5, .dims = 3 };
                struct ckv_job *job = ckv_job_new(1);
                struct ckv_job_group *group = &job->groups[0];
                const uint8_t flags[6] = { 1, 0, 1, 1, 0, 1 };
                struct buffers k;

                srand(kept_all);
                (void)random_tables(&box, kept_all % 2, group);
                group->kv_heads = box.heads;
                group->layers = calloc(1, sizeof(*group->layers));
                group->layer_count = 1;
                group->kept = calloc(1, sizeof(*group->kept));
                group->kept_count = 1;
                group->budget.kept_all = kept_all;
                group->bytes_moved = 77;
                ck_assert_int_eq(ckv_kept_from_flags(flags, 6, &group->kept[0]), 0);
                buffers_init(&k, &group->layers[0].k, &box);
                ckv_ref_run_move(job);
                ck_assert_uint_eq(group->bytes_moved, 0);
                buffers_check(&k);
                (void)ckv_job_free(job);
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
