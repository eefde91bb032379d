/*
 * Layouts are any nesting of block, head, token and dimension with gaps of a
 * few bytes, so elements are often misaligned; half of them have the nestings
 * that engines use, for which the backends have fast paths.
 */
#include "tests/support_random.h"

#include "base/macros.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum axis { BLOCK, HEAD, TOKEN_OUTER, TOKEN_INNER, DIM_OUTER, DIM_INNER, AXES };

uint32_t dice_roll(struct dice *dice, uint32_t n) {
        dice->state ^= dice->state >> 12;
        dice->state ^= dice->state << 25;
        dice->state ^= dice->state >> 27;
        return (uint32_t)((dice->state * UINT64_C(2685821657736338717)) >> 33) % n;
}

float dice_normal(struct dice *dice) {
        float sum = -6;

        for (int i = 0; i < 12; i++)
                sum += (float)dice_roll(dice, 1 << 20) * 0x1p-20f;
        return sum;
}

static uint32_t pick(struct dice *dice, const uint32_t *from, uint32_t n) {
        return from[dice_roll(dice, n)];
}

#define PICK(dice, ...) pick((dice), (const uint32_t[]){ __VA_ARGS__ }, CKV_ARRAY_SIZE(((const uint32_t[]){ __VA_ARGS__ })))

static void *must_alloc(size_t bytes) {
        void *p = calloc(1, bytes + 1);

        ck_assert_ptr_nonnull(p);
        return p;
}

void random_store(uint8_t *to, enum ckv_dtype dtype, float value) {
        uint32_t bits;
        int8_t byte = (int8_t)lrintf(CKV_MIN(CKV_MAX(value * 20, -127), 127));
        int exponent;
        float fraction = frexpf(fabsf(value), &exponent);
        uint8_t sign = value < 0 ? 0x80 : 0;

        memcpy(&bits, &value, sizeof(bits));
        switch (dtype) {
        case CKV_DTYPE_BF16:
                memcpy(to, (uint8_t *)&bits + 2, 2);
                return;
        case CKV_DTYPE_F16:
                bits = (bits >> 16 & 0x8000) | (fabsf(value) < 0x1p-13f ? 0 : (bits - (UINT32_C(112) << 23)) >> 13 & 0x7fff);
                memcpy(to, &bits, 2);
                return;
        case CKV_DTYPE_F8_E4M3:
                *to = sign;
                if (fabsf(value) >= 0x1p-5f)
                        *to = (uint8_t)(sign | (exponent + 6) << 3 | ((int)(fraction * 16) & 7));
                return;
        case CKV_DTYPE_I8:
                memcpy(to, &byte, 1);
                return;
        default:
                memcpy(to, &value, 4);
        }
}

uint8_t *random_element(const struct ckv_job_group *group, const struct ckv_plane *plane, uint32_t row, uint32_t head, uint32_t x) {
        return ckv_plane_row(plane, &group->table, row, head) + ckv_axis_at(&plane->dim, x);
}

static void shuffle(struct dice *dice, uint32_t *a, uint32_t n) {
        for (uint32_t i = n; i > 1; i--) {
                uint32_t at = dice_roll(dice, i), last = a[i - 1];

                a[i - 1] = a[at];
                a[at] = last;
        }
}

/* Nesting from the inside out. */
static void choose_nesting(struct dice *dice, bool contiguous, uint32_t order[AXES]) {
        static const uint32_t engines[][AXES] = {
                { DIM_INNER, DIM_OUTER, HEAD, TOKEN_INNER, TOKEN_OUTER, BLOCK },        /* [block, token, head, dim] */
                { DIM_INNER, DIM_OUTER, TOKEN_INNER, TOKEN_OUTER, HEAD, BLOCK },        /* [block, head, token, dim] */
                { DIM_INNER, DIM_OUTER, TOKEN_INNER, TOKEN_OUTER, BLOCK, HEAD },        /* [head, block, token, dim] */
                { TOKEN_INNER, TOKEN_OUTER, DIM_INNER, DIM_OUTER, HEAD, BLOCK },        /* dimensions apart */
                { DIM_INNER, TOKEN_INNER, TOKEN_OUTER, DIM_OUTER, HEAD, BLOCK },        /* dimensions in tiles */
        };
        uint32_t which = contiguous ? 0 : dice_roll(dice, 2 * CKV_ARRAY_SIZE(engines));

        if (which < CKV_ARRAY_SIZE(engines)) {
                memcpy(order, engines[which], sizeof(engines[which]));
                return;
        }
        for (uint32_t i = 0; i < AXES; i++)
                order[i] = i;
        shuffle(dice, order, AXES);
}

static void lay_out(struct dice *dice, const struct random_shape *shape, const struct ckv_job_group *group, uint32_t blocks,
                    uint32_t dims, struct ckv_plane *plane, struct random_memory *memory) {
        uint32_t tokens = group->table.tokens_per_block, order[AXES], extent[AXES];
        bool tight = shape->contiguous || dice_roll(dice, 2);
        uint32_t token_tile = tight ? 1 : 1 + dice_roll(dice, tokens), dim_tile = tight ? 1 : 1 + dice_roll(dice, dims);
        uint64_t stride[AXES], size, start = tight ? 0 : dice_roll(dice, 8);

        *plane = (struct ckv_plane){ .dims = dims };
        plane->dtype = shape->dtype ? shape->dtype
                                    : PICK(dice, CKV_DTYPE_F32, CKV_DTYPE_F16, CKV_DTYPE_BF16, CKV_DTYPE_BF16, CKV_DTYPE_I8,
                                           CKV_DTYPE_F8_E4M3);
        plane->scale = plane->dtype == CKV_DTYPE_I8 ? 0.0625f : (float)PICK(dice, 0, 4, 4, 4, 5) / 4;
        choose_nesting(dice, shape->contiguous, order);
        extent[BLOCK] = blocks;
        extent[HEAD] = group->kv_heads;
        extent[TOKEN_OUTER] = (tokens - 1) / token_tile + 1;
        extent[TOKEN_INNER] = token_tile;
        extent[DIM_OUTER] = (dims - 1) / dim_tile + 1;
        extent[DIM_INNER] = dim_tile;
        size = ckv_dtype_bytes(plane->dtype);
        for (uint32_t i = 0; i < AXES; i++) {
                stride[order[i]] = size;
                size = size * extent[order[i]] + (tight || dice_roll(dice, 3) ? 0 : dice_roll(dice, 9));
        }
        plane->block_stride = stride[BLOCK];
        plane->head_stride = stride[HEAD];
        plane->token = (struct ckv_axis){ .tile = token_tile, .outer = stride[TOKEN_OUTER], .inner = stride[TOKEN_INNER] };
        plane->dim = (struct ckv_axis){ .tile = dim_tile, .outer = stride[DIM_OUTER], .inner = stride[DIM_INNER] };
        *memory = (struct random_memory){ .bytes = must_alloc(start + size), .size = start + size };
        memset(memory->bytes, 0xff, memory->size);
        plane->base = memory->bytes + start;
}

static void fill_plane(struct dice *dice, const struct ckv_job_group *group, const struct ckv_plane *plane, bool ties) {
        for (uint32_t h = 0; h < group->kv_heads; h++)
                for (uint32_t j = 0; j < group->selection.rows; j++)
                        for (uint32_t x = 0; x < plane->dims; x++) {
                                /* with ties every row of the second quarter repeats one of the first */
                                uint32_t quarter = group->selection.rows / 4, from = j - quarter;
                                uint8_t *to = random_element(group, plane, j, h, x);

                                if (ties && j >= quarter && j < 2 * quarter)
                                        memcpy(to, random_element(group, plane, from, h, x), ckv_dtype_bytes(plane->dtype));
                                else
                                        random_store(to, plane->dtype, dice_normal(dice));
                        }
}

/* Return: blocks that must exist */
static uint32_t make_table(struct dice *dice, const struct random_shape *shape, struct ckv_job_group *group) {
        struct dice own = { .state = shape->table_seed + 1 }, *d = shape->own_tables ? &own : dice;
        uint32_t rows = group->selection.rows, tokens = shape->contiguous ? 16 : PICK(dice, 1, 3, 8, 16, 16, 64, 2000);
        bool by_token = !shape->contiguous && dice_roll(dice, 3) == 0;
        uint32_t blocks = (rows - 1) / tokens + 3, n = by_token ? blocks * tokens : blocks;
        uint32_t *entries = must_alloc(n * sizeof(*entries));

        for (uint32_t i = 0; i < n; i++)
                entries[i] = i;
        if (shape->own_tables || dice_roll(dice, 4) > 0)
                shuffle(d, entries, n);
        group->table = (struct ckv_row_table){ .entries = entries, .by_token = by_token, .tokens_per_block = tokens };
        return blocks;
}

/* by_blocks: the block ids; by_token: @rows of their slots in any order */
static struct ckv_row_table table_of(struct dice *dice, const uint32_t *blocks, uint32_t count, uint32_t tokens, uint32_t rows,
                                     bool by_token) {
        uint32_t n = by_token ? count * tokens : count, *entries = must_alloc(n * sizeof(*entries));

        for (uint32_t i = 0; i < n; i++)
                entries[i] = by_token ? blocks[i / tokens] * tokens + i % tokens : blocks[i];
        if (by_token && dice_roll(dice, 2))
                shuffle(dice, entries, n);
        ck_assert_uint_ge(count * tokens, rows);
        return (struct ckv_row_table){ .entries = entries, .by_token = by_token, .tokens_per_block = tokens };
}

/* Source and destination share no block. Return: blocks that must exist */
static uint32_t make_two_tables(struct dice *dice, struct ckv_job_group *group) {
        uint32_t rows = group->selection.rows, tokens = PICK(dice, 1, 3, 8, 16, 16, 64, 2000), each = (rows - 1) / tokens + 1;
        uint32_t blocks = 2 * each + 3, *ids = must_alloc(blocks * sizeof(*ids));

        for (uint32_t i = 0; i < blocks; i++)
                ids[i] = i;
        if (dice_roll(dice, 4) > 0)
                shuffle(dice, ids, blocks);
        group->table = table_of(dice, ids, each, tokens, rows, dice_roll(dice, 2));
        group->destination = table_of(dice, ids + each, each, tokens, rows, dice_roll(dice, 2));
        group->destination_rows = rows;
        free(ids);
        return blocks;
}

/* A kept set that the caller brings */
static void make_given(struct dice *dice, struct ckv_job_group *group) {
        uint32_t rows = group->selection.rows, longest = PICK(dice, 1, 3, 40);
        uint8_t *flags = must_alloc(rows);

        for (uint32_t j = 0; j < rows;) {
                bool keep = dice_roll(dice, 2);

                for (uint32_t n = 1 + dice_roll(dice, longest); n > 0 && j < rows; n--)
                        flags[j++] = keep;
        }
        group->kept = must_alloc(sizeof(*group->kept));
        ck_assert_int_eq(ckv_kept_from_flags(flags, rows, &group->kept[0]), 0);
        group->kept_count = 1;
        group->given = true;
        group->budget = (struct ckv_budget){ .settled = true, .budget = group->kept[0].count };
        free(flags);
}

/* Scorers that need no queries, drop, and what scorer window can do with its query rows; all of them rows of the window */
static void random_scorer(struct dice *dice, struct ckv_policy *p) {
        uint32_t kind = dice_roll(dice, 12);

        if (kind < 4)
                p->scorer = PICK(dice, CKV_SCORER_KNORM, CKV_SCORER_KEYDIFF, CKV_SCORER_LAGKV, CKV_SCORER_VK_RATIO);
        if (kind == 4 && p->window <= 16)
                p->scorer = CKV_SCORER_DROP;
        if (p->scorer > CKV_SCORER_WINDOW || kind > 8)
                return;
        if (kind == 8)
                p->pool = CKV_POOL_LEAK;
        if (kind > 5) {
                p->window_reduce = CKV_ROWS_MAX;
                p->vote_rows = dice_roll(dice, p->window + 1);
                p->norm = CKV_NORM_SUM;
        }
        if (kind == 6 || kind == 7) {
                p->given |= CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END | CKV_GIVEN_MUTE;
                p->contrast_first = dice_roll(dice, p->window);
                p->contrast_end = p->contrast_first + dice_roll(dice, p->window - p->contrast_first + 1);
                p->mute = dice_roll(dice, 9);
        }
}

static void random_policy(struct dice *dice, struct ckv_policy *ret_asked) {
        struct ckv_policy p = { .profile = PICK(dice, CKV_PROFILE_DEFAULT, CKV_PROFILE_DEFAULT, CKV_PROFILE_DEFAULT,
                                                CKV_PROFILE_RETRIEVAL, CKV_PROFILE_KVPRESS, CKV_PROFILE_PAPER) };
        bool ours = p.profile == CKV_PROFILE_DEFAULT || p.profile == CKV_PROFILE_RETRIEVAL;

        p.window = PICK(dice, 1, 2, 5, 8, 16, 31, 32, 64);
        p.chunk = PICK(dice, 1, 4, 7, 10, 10, 16, 20, 64);
        p.pool = dice_roll(dice, 4);
        p.pool_size = 1 + 2 * dice_roll(dice, 16);
        if (p.profile != CKV_PROFILE_KVPRESS && dice_roll(dice, 4) == 0)
                p.scorer = CKV_SCORER_RAW_QK;
        if (p.profile == CKV_PROFILE_PAPER)
                p.join = dice_roll(dice, 3);
        if (ours) {
                p.selector = PICK(dice, 0, 0, 0, CKV_SELECTOR_TOKEN);
                p.norm = dice_roll(dice, 4);
                p.heads = dice_roll(dice, 3);
                p.group_heads = dice_roll(dice, 4);
                p.value_weight = PICK(dice, 0, 0, 0, 1, 2);
                p.unit_reduce = dice_roll(dice, 4);
                p.layers = dice_roll(dice, 3);
                p.reuse = dice_roll(dice, 4);
                p.fill = dice_roll(dice, 4);
                p.align = PICK(dice, 0, 0, 16);
                p.softcap = PICK(dice, 0, 0, 0, 1, 20);
                p.scale = PICK(dice, 0, 0, 1) * 0.2;
                p.sliding = PICK(dice, 0, 0, 0, 1, 9, 100, 400);
                p.given = CKV_GIVEN_MIN_TOKENS | (dice_roll(dice, 2) ? CKV_GIVEN_RECENT | CKV_GIVEN_SINKS : 0);
                p.recent = dice_roll(dice, 40);
                p.sinks = dice_roll(dice, 5);
                random_scorer(dice, &p);
        }
        *ret_asked = p;
}

static void random_selection(struct dice *dice, struct ckv_job_group *group) {
        struct ckv_selection *s = &group->selection;
        bool ours = group->policy.profile != CKV_PROFILE_KVPRESS && group->policy.profile != CKV_PROFILE_PAPER;

        if (dice_roll(dice, 3) == 0) {
                uint32_t *positions = must_alloc(s->rows * sizeof(*positions)), at = dice_roll(dice, 5);

                for (uint32_t j = 0; j < s->rows; j++, at += 1 + (dice_roll(dice, 5) == 0 ? dice_roll(dice, 30) : 0))
                        positions[j] = at;
                s->positions = positions;
        }
        if (ours && dice_roll(dice, 3) == 0) {
                struct ckv_span *spans = must_alloc(3 * sizeof(*spans));

                for (uint32_t i = 0; i < 3; i++)
                        spans[i] = (struct ckv_span){ .first = dice_roll(dice, s->rows + 5), .count = 1 + dice_roll(dice, 30) };
                s->spans = spans;
                s->span_count = 3;
        }
        s->keep_ratio = 30000 + dice_roll(dice, 800000);
        if (ours && dice_roll(dice, 3) == 0)
                s->max_tokens = 1 + dice_roll(dice, s->rows);
}

/* f32 or bf16 rows in a ring, or f16; the rows before the window are poisoned, since nobody may look at them */
static void random_queries(struct dice *dice, const struct random_shape *shape, struct random_job *random) {
        struct ckv_job *job = random->job;
        struct ckv_job_queries *q = &job->queries;
        uint32_t window = 1, heads = 1, rows = job->groups[0].selection.rows;

        for (uint32_t i = 0; i < job->group_count; i++) {
                window = CKV_MAX(window, job->groups[i].policy.window);
                heads = CKV_MAX(heads, job->groups[i].q_heads);
        }
        q->dtype = PICK(dice, CKV_DTYPE_F32, CKV_DTYPE_BF16, CKV_DTYPE_F16);
        q->rows = window + dice_roll(dice, 3);
        q->ring_start = dice_roll(dice, q->rows);
        q->last_row = shape->lengths ? 0 : rows - 1;
        if (!shape->lengths && rows > q->rows + 20 && dice_roll(dice, 4) == 0)
                q->last_row -= 1 + dice_roll(dice, 10);
        q->head_stride = (uint64_t)job->groups[0].head_dim_k * ckv_dtype_bytes(q->dtype) + dice_roll(dice, 2);
        q->row_stride = q->head_stride * heads + dice_roll(dice, 3);
        for (uint32_t i = 0; i < job->group_count; i++)
                for (uint32_t l = 0; l < job->groups[i].layer_count; l++) {
                        const struct ckv_job_group *group = &job->groups[i];
                        struct random_memory *memory = &random->memory[random->memory_count++];

                        *memory = (struct random_memory){ .size = q->rows * q->row_stride };
                        memory->bytes = must_alloc(memory->size);
                        memset(memory->bytes, 0xff, memory->size);
                        group->layers[l].query = group->given ? NULL : memory->bytes;
                        for (uint32_t r = q->rows - group->policy.window; r < q->rows; r++)
                                for (uint32_t h = 0; h < group->q_heads; h++)
                                        for (uint32_t x = 0; x < group->head_dim_k; x++)
                                                random_store(memory->bytes + (q->ring_start + r) % q->rows * q->row_stride +
                                                                     h * q->head_stride + x * ckv_dtype_bytes(q->dtype),
                                                             q->dtype, 2 * dice_normal(dice));
                }
}

static void random_group(struct dice *dice, const struct random_shape *shape, struct random_job *random, uint32_t index) {
        struct ckv_job_group *group = &random->job->groups[index];
        struct ckv_policy asked;
        struct ckv_policy_fault fault;
        uint32_t blocks;

        if (shape->asked)
                asked = *shape->asked;
        else
                random_policy(dice, &asked);
        ck_assert_msg(ckv_policy_resolve(&asked, &group->policy, &fault), "%s", ckv_policy_field_name(fault.field));
        group->number = 3 * index;
        /* around the sizes of tiles, segments and stretches; mostly the same in all groups, so that one last_row serves all */
        group->selection.rows = index > 0 && !shape->lengths ? random->job->groups[0].selection.rows : shape->rows ? shape->rows
                                            : PICK(dice, 1, 30, 63, 65, 127, 128, 200, 255, 256, 257, 300, 511, 513, 600, 1025);
        group->kv_heads = shape->kv_heads ? shape->kv_heads : 1 + dice_roll(dice, 3);
        group->q_heads = group->kv_heads * (shape->per_group ? shape->per_group : 1 + dice_roll(dice, 8));
        blocks = shape->copy_out ? make_two_tables(dice, group) : make_table(dice, shape, group);
        random_selection(dice, group);
        if (shape->keep_ratio || shape->max_tokens) {
                group->selection.keep_ratio = shape->keep_ratio;
                group->selection.max_tokens = shape->max_tokens;
        }
        group->layer_count = shape->layers ? shape->layers : 1 + dice_roll(dice, 4);
        group->layers = must_alloc(group->layer_count * sizeof(*group->layers));
        for (uint32_t l = 0; l < group->layer_count; l++) {
                struct ckv_job_layer *layer = &group->layers[l];
                bool values = group->policy.value_weight != CKV_WEIGHT_NONE || group->policy.scorer == CKV_SCORER_LAGKV ||
                              group->policy.scorer == CKV_SCORER_VK_RATIO || group->policy.scorer == CKV_SCORER_DROP;
                bool latent = !values && dice_roll(dice, 8) == 0;
                bool ties = !shape->no_ties && dice_roll(dice, 4) == 0;

                layer->number = 2 * l + 5;
                lay_out(dice, shape, group, blocks, group->head_dim_k, &layer->k, &random->memory[random->memory_count++]);
                fill_plane(dice, group, &layer->k, ties);
                if (latent)
                        continue;
                lay_out(dice, shape, group, blocks, group->head_dim_v, &layer->v, &random->memory[random->memory_count++]);
                fill_plane(dice, group, &layer->v, ties);
        }
        if (shape->given && dice_roll(dice, 2))
                make_given(dice, group);
}

struct random_job *random_job_new(uint64_t seed, const struct random_shape *shape) {
        struct random_job *random = must_alloc(sizeof(*random));
        struct dice dice = { .state = seed * 0x9e3779b97f4a7c15u + 1 };
        uint32_t groups = shape->groups ? shape->groups : 1 + (dice_roll(&dice, 4) == 0), dims, dims_v;

        random->job = ckv_job_new(groups);
        ck_assert_ptr_nonnull(random->job);
        random->job->deadline_nsec = UINT64_MAX;
        /* K, V and queries of each layer */
        random->memory = must_alloc((size_t)groups * 3 * CKV_MAX(shape->layers, 4) * sizeof(*random->memory));
        dims = shape->dims ? shape->dims : PICK(&dice, 1, 3, 8, 16, 31, 64, 64, 96);
        dims_v = shape->dims ? shape->dims : PICK(&dice, 1, 5, 16, 64);
        for (uint32_t i = 0; i < groups; i++) {
                random->job->groups[i].head_dim_k = dims;
                random->job->groups[i].head_dim_v = dims_v;
                random_group(&dice, shape, random, i);
        }
        random_queries(&dice, shape, random);
        return random;
}

struct random_job *random_job_free(struct random_job *random) {
        if (!random)
                return NULL;
        for (uint32_t i = 0; i < random->memory_count; i++)
                free(random->memory[i].bytes);
        free(random->memory);
        random->job = ckv_job_free(random->job);
        free(random);
        return NULL;
}
