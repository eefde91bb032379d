/*
 * RegisterCache: numbers at their limits, planes that end exactly where their
 * region ends, elements that would share bytes, and layers that miss a plane.
 * A refusal leaves nothing behind, not even a charge.
 */
#include "daemon/cache.h"

#include "base/macros.h"
#include "tests/support_core.h"

#include <check.h>
#include <string.h>

enum {
        LAYERS = 2,
        HEADS = 2,
        DIMS = 8,
        TOKENS = 16,
        BLOCKS = 5,
        ROW = HEADS * DIMS * 4,
        BLOCK = TOKENS * ROW,
        LAYER = BLOCKS * BLOCK
};

static struct core core;
static struct {
        struct ckv_record record;
        struct ckv_record_cache_group groups[20];
        struct ckv_record_plane planes[4];
        uint32_t layers[70000];
} ask;
static uint64_t queued;
static uint32_t uses;

static void setup(void) {
        core_init(&core, &(struct core_shape){ .groups = 1,
                                               .layers = 1,
                                               .kv_heads = 1,
                                               .q_heads = 1,
                                               .dims = 4,
                                               .tokens_per_block = 16,
                                               .num_blocks = 1 });
        queued = core.session.tenant->used[CKV_SLOT_QUEUED_BYTES];
        uses = core.regions[0].cache_uses;
}

static void teardown(void) {
        core_deinit(&core);
}

static struct ckv_record_plane plane_of(uint16_t kind, uint64_t offset) {
        return (struct ckv_record_plane){
                .kind = kind,
                .dtype = CKV_DTYPE_F32,
                .layer_first = 7,
                .layer_count = LAYERS,
                .region_id = CORE_WRITABLE,
                .offset = offset,
                .layer_stride = LAYER,
                .block_stride = BLOCK,
                .head_stride = DIMS * 4,
                .token_outer = ROW,
                .dim_outer = 4,
        };
}

/* One group, layers 7 and 8; V ends exactly where the region ends. */
static void ask_for_legal(void) {
        memset(&ask.record, 0, sizeof(ask.record));
        ask.record.body.cache =
                (struct ckv_record_cache){ .group_count = 1, .plane_count = 2, .layer_word_count = LAYERS };
        ask.groups[0] = (struct ckv_record_cache_group){
                .layer_count = LAYERS,
                .kv_heads = HEADS,
                .q_heads = 3 * HEADS,
                .head_dim_k = DIMS,
                .head_dim_v = DIMS,
                .tokens_per_block = TOKENS,
                .num_blocks = BLOCKS,
        };
        ask.planes[0] = plane_of(1, core.spare_at);
        ask.planes[1] = plane_of(2, core.bytes - LAYERS * LAYER);
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(ask.layers); i++)
                ask.layers[i] = 7 + i;
}

static bool submit(struct ckv_record_status *status, struct ckv_cache **ret_cache) {
        static uint8_t attachment[sizeof(ask)];
        const struct ckv_record_cache *body = &ask.record.body.cache;
        uint8_t *at = attachment;

        at = mempcpy(at, ask.groups, body->group_count * sizeof(ask.groups[0]));
        at = mempcpy(at, ask.planes, body->plane_count * sizeof(ask.planes[0]));
        at = mempcpy(at, ask.layers, body->layer_word_count * sizeof(ask.layers[0]));
        return ckv_cache_register(&core.session, &ask.record, attachment, (uint32_t)(at - attachment), status,
                                  ret_cache);
}

static void admitted(bool fast_path) {
        struct ckv_record_status status;
        struct ckv_cache *cache;

        if (!submit(&status, &cache))
                ck_abort_msg("refused: code %u, field %u, detail %u", status.code, status.field, status.detail);
        ck_assert_uint_eq(cache->fast_path, fast_path);
        ck_assert_uint_gt(core.session.tenant->used[CKV_SLOT_QUEUED_BYTES], queued);
        ck_assert(ckv_cache_unregister(&core.session, cache->id, &status));
        ck_assert_uint_eq(core.session.tenant->used[CKV_SLOT_QUEUED_BYTES], queued);
        ck_assert_uint_eq(core.regions[0].cache_uses, uses);
}

static void refused(enum ckv_code code, enum ckv_field field, enum ckv_detail detail) {
        struct ckv_record_status status;
        struct ckv_cache *cache;

        ck_assert_msg(!submit(&status, &cache), "admitted, not refused with code %u, field %u, detail %u", code, field,
                      detail);
        ck_assert_msg(status.code == code && status.field == field && status.detail == detail,
                      "code %u, field %u, detail %u instead of %u, %u, %u", status.code, status.field, status.detail,
                      code, field, detail);
        ck_assert_uint_eq(core.session.tenant->used[CKV_SLOT_QUEUED_BYTES], queued);
        ck_assert_uint_eq(core.regions[0].cache_uses, uses);
        ck_assert_uint_eq(core.session.cache_count, 1);
}

#define REFUSED(code, field, detail, ...) \
        do { \
                ask_for_legal(); \
                __VA_ARGS__; \
                refused(CKV_CODE_##code, CKV_F_##field, CKV_D_##detail); \
        } while (0)
#define ADMITTED(...) \
        do { \
                ask_for_legal(); \
                __VA_ARGS__; \
                admitted(true); \
        } while (0)

START_TEST(addresses_of_layers) {
        struct ckv_record_status status;
        struct ckv_cache *cache;
        uint32_t id;

        ask_for_legal();
        ask.planes[1].scale = 0.5f;
        ck_assert(submit(&status, &cache));
        for (uint32_t l = 0; l < LAYERS; l++) {
                const struct ckv_cache_layer *layer = &cache->groups[0].layers[l];

                ck_assert_uint_eq(layer->number, 7 + l);
                ck_assert_ptr_eq(layer->k.base, core.memory + core.spare_at + l * LAYER);
                ck_assert_ptr_eq(layer->v.base, core.memory + core.bytes - LAYERS * LAYER + l * LAYER);
                ck_assert(layer->k.scale == 1 && layer->v.scale == 0.5f && layer->k.token.tile == 1 &&
                          layer->k.dims == DIMS);
        }
        ck_assert_uint_eq(core.regions[0].cache_uses, uses + 2 * LAYERS);
        ck_assert(!ckv_cache_unregister(&core.session, cache->id + 1, &status));
        ck_assert_int_eq(status.code, CKV_CODE_NOT_FOUND);
        id = cache->id;
        ck_assert(ckv_cache_unregister(&core.session, id, &status));
        ck_assert(!ckv_cache_unregister(&core.session, id, &status));
        ck_assert_int_eq(status.code, CKV_CODE_NOT_FOUND);
}
END_TEST

START_TEST(shapes_at_their_limits) {
        struct ckv_record_cache_group *g = &ask.groups[0];

        ADMITTED(g->num_blocks = 1; g->tokens_per_block = 1; g->kv_heads = 1; g->q_heads = UINT32_MAX);
        REFUSED(OUT_OF_RANGE, CACHE_GROUP_KV_HEADS, RANGE, g->kv_heads = 0);
        REFUSED(OUT_OF_RANGE, CACHE_GROUP_KV_HEADS, RANGE, g->kv_heads = (uint32_t)CKV_LIMIT_HEADS + 1);
        REFUSED(INVALID_ARGUMENT, CACHE_GROUP_Q_HEADS, MULTIPLE, g->q_heads = 3);
        REFUSED(OUT_OF_RANGE, CACHE_GROUP_Q_HEADS, RANGE, g->q_heads = 0);
        REFUSED(OUT_OF_RANGE, CACHE_GROUP_HEAD_DIM_K, RANGE, g->head_dim_k = 0);
        REFUSED(OUT_OF_RANGE, CACHE_GROUP_HEAD_DIM_K, RANGE, g->head_dim_k = (uint32_t)CKV_LIMIT_HEAD_DIM + 1);
        REFUSED(OUT_OF_RANGE, CACHE_GROUP_HEAD_DIM_V, RANGE, g->head_dim_v = (uint32_t)CKV_LIMIT_HEAD_DIM + 1);
        REFUSED(OUT_OF_RANGE, CACHE_GROUP_TOKENS_PER_BLOCK, RANGE, g->tokens_per_block = 0);
        REFUSED(OUT_OF_RANGE, CACHE_GROUP_TOKENS_PER_BLOCK, RANGE,
                g->tokens_per_block = (uint32_t)CKV_LIMIT_TOKENS_PER_BLOCK + 1);
        REFUSED(OUT_OF_RANGE, CACHE_GROUP_NUM_BLOCKS, RANGE, g->num_blocks = 0);
        REFUSED(OUT_OF_RANGE, CACHE_GROUPS, COUNT, ask.record.body.cache.group_count = 0);
        REFUSED(OUT_OF_RANGE, CACHE_GROUPS, COUNT, ask.record.body.cache.group_count = (uint32_t)CKV_LIMIT_GROUPS + 1);
        REFUSED(OUT_OF_RANGE, CACHE_PLANES, COUNT, ask.record.body.cache.plane_count = 0);
        REFUSED(INTERNAL, NONE, INTERNAL, ask.record.body.cache.layer_word_count = LAYERS + 1);
        REFUSED(INTERNAL, NONE, INTERNAL, g->layer_count = LAYERS + 1);
        /* widest heads and blocks in the spare memory */
        ADMITTED(g->head_dim_k = (uint32_t)CKV_LIMIT_HEAD_DIM; g->num_blocks = 1; g->tokens_per_block = 1;
                 ask.planes[0].head_stride = 4 * CKV_LIMIT_HEAD_DIM;
                 ask.planes[0].layer_stride = 8 * CKV_LIMIT_HEAD_DIM);
}
END_TEST

START_TEST(layers_and_planes) {
        ADMITTED(ask.layers[0] = 65534; ask.layers[1] = 65535;
                 ask.planes[0].layer_first = ask.planes[1].layer_first = 65534);
        REFUSED(OUT_OF_RANGE, CACHE_GROUP_LAYERS, AT_MOST, ask.layers[1] = 65536);
        REFUSED(INVALID_ARGUMENT, CACHE_GROUP_LAYERS, ORDER, ask.layers[1] = 7);
        REFUSED(INVALID_ARGUMENT, CACHE_GROUP_LAYERS, LAYER_TWICE, ask.record.body.cache.group_count = 2;
                ask.groups[1] = ask.groups[0]; ask.groups[0].layer_count = ask.groups[1].layer_count = 1;
                ask.layers[1] = 7);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE, LAYER_UNKNOWN, ask.planes[0].layer_first = 6);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE, LAYER_UNKNOWN, ask.planes[0].layer_count = 3);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE_LAYER_COUNT, RANGE, ask.planes[0].layer_count = 0);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE_LAYER_COUNT, RANGE,
                ask.planes[0].layer_count = (uint32_t)CKV_LIMIT_PLANE_LAYERS + 1);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE, PLANE_TWICE, ask.planes[1].kind = 1);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANES, PLANE_MISSING, ask.planes[1].layer_count = 1);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANES, PLANE_MISSING, ask.record.body.cache.plane_count = 1);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_KIND, ENUM, ask.planes[1].kind = 0);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_KIND, ENUM, ask.planes[1].kind = 5);
        REFUSED(UNSUPPORTED, CACHE_PLANE_KIND, NOT_BUILT, ask.planes[1].kind = 4);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_DTYPE, ENUM, ask.planes[1].dtype = 0);
        REFUSED(NOT_FOUND, CACHE_PLANE_REGION_ID, UNKNOWN_ID, ask.planes[1].region_id = 3);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_SCALE, FINITE, ask.planes[1].scale = __builtin_inff());
        /* a latent plane stands alone, and for one head */
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_KIND, LATENT_SHAPE, ask.planes[0].kind = 3);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_KIND, LATENT_SHAPE, ask.groups[0].head_dim_v = 0);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_KIND, LATENT_SHAPE, ask.groups[0].head_dim_v = 0; ask.planes[0].kind = 3);
        ADMITTED(ask.groups[0].head_dim_v = 0; ask.groups[0].kv_heads = 1; ask.planes[0].kind = 3;
                 ask.record.body.cache.plane_count = 1);
}
END_TEST

#define TILED(plane) \
        do { \
                (plane)->token_tile = 5; \
                (plane)->token_inner = ROW; \
                (plane)->token_outer = 5 * ROW; \
                (plane)->block_stride = 20 * ROW; \
                (plane)->layer_stride = BLOCKS * 20 * ROW; \
        } while (0)

START_TEST(planes_end_in_their_region) {
        const uint64_t tiled = (LAYERS * BLOCKS - 1) * 20 * ROW + TOKENS * ROW;
        struct ckv_record_plane *k = &ask.planes[0], *v = &ask.planes[1];

        ADMITTED();
        REFUSED(OUT_OF_RANGE, CACHE_PLANE, OUTSIDE_REGION, v->offset += 4);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE, OUTSIDE_REGION, v->layer_stride += 4);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE, OUTSIDE_REGION, v->token_outer += 4);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE, OUTSIDE_REGION, ask.groups[0].num_blocks++; k->layer_stride += BLOCK);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE, OUTSIDE_REGION, ask.groups[0].tokens_per_block++; k->block_stride += ROW;
                k->layer_stride += BLOCKS * ROW);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE, OUTSIDE_REGION, v->offset = core.bytes);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE, OVERFLOW, v->offset = UINT64_MAX - 3);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE, OVERFLOW, v->block_stride = UINT64_C(1) << 62);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE, OVERFLOW, v->token_outer = UINT64_C(1) << 62);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE, OVERFLOW, v->dim_outer = UINT64_MAX - 3);
        /* a last tile that is not full: 16 tokens in tiles of 5 end with the first token of the fourth, where the
         * region may end */
        ADMITTED(TILED(v); v->offset = core.bytes - tiled);
        REFUSED(OUT_OF_RANGE, CACHE_PLANE, OUTSIDE_REGION, TILED(v); v->offset = core.bytes - tiled + 4);
}
END_TEST

START_TEST(elements_have_bytes_of_their_own) {
        struct ckv_record_plane *k = &ask.planes[0];

        REFUSED(INVALID_ARGUMENT, CACHE_PLANE, OVERLAP, k->head_stride -= 4);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE, OVERLAP, k->token_outer -= 4);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE, OVERLAP, k->block_stride -= 4);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE, OVERLAP, k->layer_stride -= 4);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE, OVERLAP, k->dim_outer = 0);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE, OVERLAP, k->layer_stride = 0);
        ADMITTED(k->layer_stride += 4);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_LAYER_STRIDE, UNALIGNED, k->layer_stride += 2);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_BLOCK_STRIDE, UNALIGNED, k->block_stride += 2);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_HEAD_STRIDE, UNALIGNED, k->head_stride += 2);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_TOKEN, UNALIGNED, k->token_outer += 2);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_DIM, UNALIGNED, k->dim_outer += 2);
        REFUSED(INVALID_ARGUMENT, CACHE_PLANE_OFFSET, UNALIGNED, k->offset += 2);
        /* dimensions apart: right, and slow */
        ask_for_legal();
        k->dim_outer = 4 * TOKENS;
        k->token_outer = 4;
        k->head_stride = 4 * TOKENS * DIMS;
        admitted(false);
}
END_TEST

START_TEST(caches_of_a_session) {
        struct ckv_record_status status;
        struct ckv_cache *cache;
        uint32_t ids[256], n = 0;

        ck_assert_uint_eq(CKV_ARRAY_SIZE(ids), CKV_LIMIT_CACHES);
        ask_for_legal();
        while (submit(&status, &cache)) {
                ck_assert_uint_lt(n, CKV_ARRAY_SIZE(ids));
                ids[n++] = cache->id;
        }
        ck_assert_int_eq(status.code, CKV_CODE_QUOTA);
        ck_assert_uint_eq(n, CKV_ARRAY_SIZE(ids) - 1); /* one is the fixture's */
        for (uint32_t i = 0; i < n; i++)
                ck_assert(ckv_cache_unregister(&core.session, ids[i], &status));
        core.session.tenant->limit[CKV_SLOT_QUEUED_BYTES] = queued + 1;
        refused(CKV_CODE_QUOTA, CKV_F_CACHE_GROUPS, CKV_D_QUOTA);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cache");
        TCase *tcase = tcase_create("caches");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, addresses_of_layers);
        tcase_add_test(tcase, shapes_at_their_limits);
        tcase_add_test(tcase, layers_and_planes);
        tcase_add_test(tcase, planes_end_in_their_region);
        tcase_add_test(tcase, elements_have_bytes_of_their_own);
        tcase_add_test(tcase, caches_of_a_session);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
