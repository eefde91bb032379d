/*
 * Random moves and their results, element by element.  Nothing here calls the
 * code under test but for what makes a job: runs of kept rows from flags.
 */
#include "tests/support_moves.h"

#include "base/macros.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum axis { BLOCK, HEAD, TOKEN_OUTER, TOKEN_INNER, DIM_OUTER, DIM_INNER, AXES };

struct box {
        uint32_t blocks, heads, tokens, dims;           /* tokens: of a block */
};

uint32_t move_dice(uint32_t n) {
        return (uint32_t)rand() % n;
}

static void *zeroed(size_t n, size_t size) {
        void *p = calloc(n + 1, size);

        ck_assert_ptr_nonnull(p);
        return p;
}

/* A random injective layout. Return: bytes from base to the end of the last element. */
static uint64_t random_plane(struct ckv_plane *plane, const struct box *box) {
        static const enum ckv_dtype dtypes[] = { CKV_DTYPE_F32,     CKV_DTYPE_F16, CKV_DTYPE_BF16,
                                                 CKV_DTYPE_F8_E4M3, CKV_DTYPE_I8,  CKV_DTYPE_BYTE };
        uint32_t token_tile = 1 + move_dice(box->tokens), dim_tile = 1 + move_dice(box->dims), order[AXES], extent[AXES];
        bool plain = move_dice(3) == 0;                 /* blocks of tokens of heads of dimensions, as most engines have it */
        uint64_t stride[AXES], size, end = 0;

        *plane = (struct ckv_plane){ .dtype = dtypes[move_dice(CKV_ARRAY_SIZE(dtypes))], .dims = box->dims, .scale = 1 };
        if (plain)
                token_tile = dim_tile = 1;
        extent[BLOCK] = box->blocks;
        extent[HEAD] = box->heads;
        extent[TOKEN_OUTER] = (box->tokens + token_tile - 1) / token_tile;
        extent[TOKEN_INNER] = token_tile;
        extent[DIM_OUTER] = (box->dims + dim_tile - 1) / dim_tile;
        extent[DIM_INNER] = dim_tile;
        for (uint32_t i = 0; i < AXES; i++) {
                uint32_t at = move_dice(i + 1);

                order[i] = order[at];
                order[at] = i;
        }
        if (plain)
                memcpy(order, (const uint32_t[]){ DIM_INNER, DIM_OUTER, HEAD, TOKEN_INNER, TOKEN_OUTER, BLOCK }, sizeof(order));
        size = ckv_dtype_bytes(plane->dtype);
        for (uint32_t i = 0; i < AXES; i++) {
                stride[order[i]] = size;
                size = size * extent[order[i]] + (!plain && move_dice(3) == 0 ? move_dice(9) : 0);
                end = size;
        }
        plane->block_stride = stride[BLOCK];
        plane->head_stride = stride[HEAD];
        plane->token = (struct ckv_axis){ .tile = token_tile, .outer = stride[TOKEN_OUTER], .inner = stride[TOKEN_INNER] };
        plane->dim = (struct ckv_axis){ .tile = dim_tile, .outer = stride[DIM_OUTER], .inner = stride[DIM_INNER] };
        return end;
}

/* Offset of an element, written out once more. */
static uint64_t offset_of(const struct ckv_plane *p, const struct ckv_row_table *table, uint32_t row, uint32_t head, uint32_t x) {
        uint64_t slot = table->by_token ? table->entries[row]
                                        : (uint64_t)table->entries[row / table->tokens_per_block] * table->tokens_per_block +
                                                  row % table->tokens_per_block;
        uint64_t block = slot / table->tokens_per_block, token = slot % table->tokens_per_block;

        return block * p->block_stride + head * p->head_stride + token / p->token.tile * p->token.outer +
               token % p->token.tile * p->token.inner + x / p->dim.tile * p->dim.outer + x % p->dim.tile * p->dim.inner;
}

static uint32_t *scrambled(uint32_t n) {
        uint32_t *entries = zeroed(n, sizeof(*entries));

        for (uint32_t i = 0; i < n; i++) {
                uint32_t at = move_dice(i + 1);

                entries[i] = entries[at];
                entries[at] = i;
        }
        return entries;
}

/* Half of the blocks, as such or as slots in any order. */
static struct ckv_row_table half_table(const struct box *box, const uint32_t *blocks) {
        uint32_t n = box->blocks / 2;
        struct ckv_row_table table = { .by_token = move_dice(2), .tokens_per_block = box->tokens };
        uint32_t *entries;

        if (!table.by_token) {
                entries = zeroed(n, sizeof(*entries));
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
        group->table.by_token = move_dice(2);
        group->table.tokens_per_block = box->tokens;
        group->table.entries = group->table.by_token ? scrambled(box->blocks * box->tokens) : scrambled(box->blocks);
        return box->blocks * box->tokens;
}

/* Kept rows in clumps or one by one, sometimes after a front that stays */
static void random_set(uint32_t rows, struct move_set *ret_set, struct ckv_kept *ret_kept) {
        uint8_t *flags = zeroed(rows, 1);
        uint32_t keep = 1 + move_dice(10), clump = 1 + move_dice(4) * move_dice(4), front = move_dice(3) == 0 ? move_dice(rows) : 0;

        ret_set->k = zeroed(rows, sizeof(*ret_set->k));
        for (uint32_t j = 0; j < rows; j++) {
                flags[j] = j < front || (j % clump > 0 ? flags[j - 1] : move_dice(10) < keep);
                if (flags[j])
                        ret_set->k[ret_set->count++] = j;
        }
        ck_assert_int_eq(ckv_kept_from_flags(flags, rows, ret_kept), 0);
        free(flags);
}

/* Anonymous and shared with children; calloc() is not */
static void *zeroed_shared(size_t n) {
        void *p = mmap(NULL, n + 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        ck_assert_ptr_ne(p, MAP_FAILED);
        return p;
}

static void add_plane(struct move_case *moves, struct ckv_job_group *group, uint32_t layer, struct ckv_plane *plane,
                      const struct box *box) {
        struct move_plane *p = &moves->planes[moves->plane_count++];

        *p = (struct move_plane){ .group = group, .group_index = (uint32_t)(group - moves->job->groups), .layer = layer,
                                  .plane = plane, .bytes = random_plane(plane, box) };
        p->now = moves->shared ? zeroed_shared(p->bytes) : zeroed(p->bytes, 1);
        p->before = zeroed(p->bytes, 1);
        p->expected = zeroed(p->bytes, 1);
        for (uint64_t i = 0; i < p->bytes; i++)
                p->before[i] = (uint8_t)rand();
        memcpy(p->now, p->before, p->bytes);
        memcpy(p->expected, p->before, p->bytes);
        plane->base = p->now;
        for (uint32_t h = 0; h < box->heads; h++) {
                const struct move_set *set = move_case_set(moves, p, h);

                for (uint32_t i = 0; i < set->count; i++) {
                        for (uint32_t x = 0; x < box->dims; x++)
                                move_element(moves, p, p->expected, i, h, x);
                        if (group->destination.entries || set->k[i] != i)
                                moves->bytes_moved += 2 * (uint64_t)box->dims * ckv_dtype_bytes(plane->dtype);
                }
        }
}

static void random_group(struct move_case *moves, const struct move_shape *shape, uint32_t index) {
        struct box box = { shape->blocks ? shape->blocks : 6, 1 + move_dice(3), shape->tokens ? shape->tokens : 9,
                           shape->dims ? shape->dims : 12 };
        struct ckv_job_group *group = &moves->job->groups[index];
        bool one_set = move_dice(2), each_head = move_dice(2), latent = move_dice(4) == 0;
        uint32_t rows;

        if (!shape->large) {
                box.blocks = shape->copy ? 2 + 2 * move_dice(box.blocks / 2) : 1 + move_dice(box.blocks);
                box.tokens = 1 + move_dice(box.tokens);
                box.dims = 1 + move_dice(box.dims);
        }
        rows = random_tables(&box, shape->copy, group);
        group->selection.rows = shape->large ? rows : 1 + move_dice(rows);
        group->kv_heads = box.heads;
        group->layer_count = shape->layers ? shape->layers : 2;
        group->layers = zeroed(group->layer_count, sizeof(*group->layers));
        group->kept_heads = each_head ? box.heads : 1;
        group->kept_count = (one_set ? 1 : group->layer_count) * group->kept_heads;
        group->kept = zeroed(group->kept_count, sizeof(*group->kept));
        moves->sets[index] = zeroed(group->kept_count, sizeof(**moves->sets));
        for (uint32_t k = 0; k < group->kept_count; k++)
                random_set(group->selection.rows, &moves->sets[index][k], &group->kept[k]);
        for (uint32_t l = 0; l < group->layer_count; l++) {
                add_plane(moves, group, l, &group->layers[l].k, &box);
                if (!latent)
                        add_plane(moves, group, l, &group->layers[l].v, &box);
        }
}

struct move_case *move_case_new(const struct move_shape *shape) {
        uint32_t groups = shape->groups ? shape->groups : 1;
        struct move_case *moves = zeroed(1, sizeof(*moves));

        moves->shared = shape->shared;
        moves->job = ckv_job_new(groups);
        ck_assert_ptr_nonnull(moves->job);
        moves->sets = zeroed(groups, sizeof(*moves->sets));
        moves->planes = zeroed((size_t)groups * 2 * (shape->layers ? shape->layers : 2), sizeof(*moves->planes));
        for (uint32_t i = 0; i < groups; i++)
                random_group(moves, shape, i);
        return moves;
}

struct move_case *move_case_free(struct move_case *moves) {
        for (uint32_t i = 0; i < moves->job->group_count; i++) {
                for (uint32_t k = 0; k < moves->job->groups[i].kept_count; k++)
                        free(moves->sets[i][k].k);
                free(moves->sets[i]);
        }
        for (uint32_t i = 0; i < moves->plane_count; i++) {
                if (moves->shared)
                        (void)munmap(moves->planes[i].now, moves->planes[i].bytes + 1);
                else
                        free(moves->planes[i].now);
                free(moves->planes[i].before);
                free(moves->planes[i].expected);
        }
        free(moves->sets);
        free(moves->planes);
        (void)ckv_job_free(moves->job);
        free(moves);
        return NULL;
}

const struct move_set *move_case_set(const struct move_case *moves, const struct move_plane *plane, uint32_t head) {
        const struct ckv_job_group *group = plane->group;
        bool one = group->kept_count == group->kept_heads;

        return &moves->sets[plane->group_index][(one ? 0 : plane->layer * group->kept_heads) + (group->kept_heads > 1 ? head : 0)];
}

void move_batch(const struct move_set *set, uint32_t batch_rows, uint32_t step, uint32_t *ret_begin, uint32_t *ret_end) {
        uint32_t begin = 0, end;

        while (begin < set->count && set->k[begin] == begin)
                begin++;
        end = begin;
        for (uint32_t p = 0; p <= step; p++) {
                begin = end;
                while (end < set->count && end < set->k[begin] && (batch_rows == 0 || end - begin < batch_rows))
                        end++;
        }
        *ret_begin = begin;
        *ret_end = end;
}

uint32_t move_case_steps(const struct move_case *moves, uint32_t batch_rows) {
        uint32_t steps = 0, begin, end;

        for (uint32_t i = 0; i < moves->job->group_count; i++)
                for (uint32_t k = 0; k < moves->job->groups[i].kept_count; k++)
                        for (;; steps++) {
                                move_batch(&moves->sets[i][k], batch_rows, steps, &begin, &end);
                                if (begin == end)
                                        break;
                        }
        return steps;
}

void move_element(const struct move_case *moves, const struct move_plane *plane, uint8_t *bytes, uint32_t row, uint32_t head,
                  uint32_t x) {
        const struct ckv_job_group *group = plane->group;
        const struct ckv_row_table *to = group->destination.entries ? &group->destination : &group->table;
        uint32_t from = move_case_set(moves, plane, head)->k[row];

        memcpy(bytes + offset_of(plane->plane, to, row, head, x),
               plane->before + offset_of(plane->plane, &group->table, from, head, x),
               ckv_dtype_bytes(plane->plane->dtype));
}

void move_image(const struct move_case *moves, const struct move_plane *plane, uint32_t batch_rows, uint32_t steps,
                uint8_t *ret_bytes) {
        memcpy(ret_bytes, plane->before, plane->bytes);
        for (uint32_t h = 0; h < plane->group->kv_heads && steps > 0; h++) {
                const struct move_set *set = move_case_set(moves, plane, h);
                uint32_t begin, end;

                move_batch(set, batch_rows, steps - 1, &begin, &end);
                for (uint32_t row = 0; row < end; row++)
                        for (uint32_t x = 0; x < plane->plane->dims && set->k[row] != row; x++)
                                move_element(moves, plane, ret_bytes, row, h, x);
        }
}

void move_case_reset(struct move_case *moves, uint32_t batch_rows, uint32_t steps) {
        for (uint32_t i = 0; i < moves->plane_count; i++)
                move_image(moves, &moves->planes[i], batch_rows, steps, moves->planes[i].now);
}

bool move_case_equals(const struct move_case *moves) {
        for (uint32_t i = 0; i < moves->plane_count; i++)
                if (memcmp(moves->planes[i].now, moves->planes[i].expected, moves->planes[i].bytes) != 0)
                        return false;
        return true;
}

uint64_t move_case_bytes(const struct move_case *moves) {
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < moves->job->group_count; i++)
                bytes += moves->job->groups[i].bytes_moved;
        return bytes;
}
