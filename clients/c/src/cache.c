/*
 * RegisterCache: groups and planes as the caller describes them, one to one.
 * Whether a description fits its regions is the daemon's to judge; the library
 * adds no opinion of its own.
 */
#include "clients/c/src/control.h"

#include <errno.h>

static Chunkkv__V1__Axis *axis_encode(struct ckv__arena *arena, const struct chunkkv_axis *axis) {
        Chunkkv__V1__Axis *message = ckv__arena_take(arena, 1, sizeof(*message));

        if (!message)
                return NULL;
        chunkkv__v1__axis__init(message);
        message->tile = axis->tile;
        message->outer = axis->outer;
        message->inner = axis->inner;
        return message;
}

static Chunkkv__V1__LayerGroup *group_encode(struct ckv__arena *arena, const struct chunkkv_group *group) {
        Chunkkv__V1__LayerGroup *message = ckv__arena_take(arena, 1, sizeof(*message));

        if (!message)
                return NULL;
        chunkkv__v1__layer_group__init(message);
        message->layers = ckv__arena_words(arena, group->layers, group->layer_count);
        message->n_layers = group->layer_count;
        message->kv_heads = group->kv_heads;
        message->q_heads = group->q_heads;
        message->head_dim_k = group->head_dim_k;
        message->head_dim_v = group->head_dim_v;
        message->tokens_per_block = group->tokens_per_block;
        message->num_blocks = group->num_blocks;
        return message;
}

static Chunkkv__V1__Plane *plane_encode(struct ckv__arena *arena, const struct chunkkv_plane *plane) {
        Chunkkv__V1__Plane *message = ckv__arena_take(arena, 1, sizeof(*message));

        if (!message)
                return NULL;
        chunkkv__v1__plane__init(message);
        message->kind = (Chunkkv__V1__PlaneKind)plane->kind;
        message->dtype = (Chunkkv__V1__DType)plane->dtype;
        message->layer_first = plane->layer_first;
        message->layer_count = plane->layer_count;
        message->region_id = plane->region_id;
        message->offset = plane->offset;
        message->layer_stride = plane->layer_stride;
        message->block_stride = plane->block_stride;
        message->head_stride = plane->head_stride;
        message->token = axis_encode(arena, &plane->token);
        message->dim = axis_encode(arena, &plane->dim);
        message->scale = plane->scale;
        return message;
}

static int lists_check(const struct chunkkv_group *groups, size_t group_count, const struct chunkkv_plane *planes,
                       size_t plane_count, struct chunkkv_error *ret_error) {
        int r;

        r = ckv__list_check(groups, group_count, ret_error, "groups");
        for (size_t i = 0; r == 0 && i < group_count; i++)
                r = ckv__list_check(groups[i].layers, groups[i].layer_count, ret_error, "groups[%zu].layers", i);
        return r ? r : ckv__list_check(planes, plane_count, ret_error, "planes");
}

/* Fills in the lists of @body. Return: false without memory. */
static bool body_encode(struct ckv__arena *arena, const struct chunkkv_group *groups, size_t group_count,
                        const struct chunkkv_plane *planes, size_t plane_count, Chunkkv__V1__RegisterCache *body) {
        body->groups = ckv__arena_take(arena, group_count, sizeof(*body->groups));
        body->planes = ckv__arena_take(arena, plane_count, sizeof(*body->planes));
        if (!body->groups || !body->planes)
                return false;
        body->n_groups = group_count;
        body->n_planes = plane_count;
        for (size_t i = 0; i < group_count; i++)
                body->groups[i] = group_encode(arena, &groups[i]);
        for (size_t i = 0; i < plane_count; i++)
                body->planes[i] = plane_encode(arena, &planes[i]);
        return !arena->failed;
}

int ckv__cache_send(struct chunkkv_client *client, Chunkkv__V1__RegisterCache *body, uint64_t deadline_nsec,
                    uint32_t *ret_id, bool *ret_fast_path, struct chunkkv_error *ret_error) {
        _cleanup_reply_ Chunkkv__V1__Response *reply = NULL;
        Chunkkv__V1__Request message;
        int r;

        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_REGISTER_CACHE;
        message.register_cache = body;
        r = ckv__call(client, &message, deadline_nsec, CHUNKKV__V1__RESPONSE__BODY_CACHE_REGISTERED, &reply, ret_error);
        if (r)
                return r;
        *ret_id = reply->cache_registered->cache_id;
        if (ret_fast_path)
                *ret_fast_path = reply->cache_registered->fast_path;
        return 0;
}

int chunkkv_cache_register(struct chunkkv_client *client, const struct chunkkv_group *groups, size_t group_count,
                           const struct chunkkv_plane *planes, size_t plane_count, uint32_t timeout_ms,
                           uint32_t *ret_cache_id,
                           bool *ret_fast_path, struct chunkkv_error *ret_error) {
        _cleanup_(ckv__arena_deinit) struct ckv__arena arena = { 0 };
        Chunkkv__V1__RegisterCache body = CHUNKKV__V1__REGISTER_CACHE__INIT;
        uint64_t asked_nsec = ckv_now_nsec();
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        _cleanup_free_ uint8_t *bytes = NULL;
        uint64_t deadline_nsec;
        uint32_t id, handle;
        bool fast_path;
        size_t size;
        int r;

        r = ckv__deadline(asked_nsec, timeout_ms, &deadline_nsec, ret_error);
        if (r == 0)
                r = lists_check(groups, group_count, planes, plane_count, ret_error);
        if (r)
                return r;
        if (!body_encode(&arena, groups, group_count, planes, plane_count, &body))
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for %zu groups and %zu planes", group_count,
                                  plane_count);
        size = chunkkv__v1__register_cache__get_packed_size(&body);
        bytes = malloc(size ? size : 1);
        if (!bytes)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for the description of a cache");
        (void)chunkkv__v1__register_cache__pack(&body, bytes);
        r = ckv__revive(client, deadline_nsec, ret_error);
        if (r == 0)
                r = ckv__cache_send(client, &body, deadline_nsec, &id, &fast_path, ret_error);
        if (r)
                return r;
        handle = ckv__cache_remember(client, ckv_steal(&bytes), size, id);
        if (handle == 0)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory to remember a cache");
        *ret_cache_id = handle;
        if (ret_fast_path)
                *ret_fast_path = fast_path;
        return 0;
}

int chunkkv_cache_unregister(struct chunkkv_client *client, uint32_t cache_id, uint32_t timeout_ms,
                             struct chunkkv_error *ret_error) {
        Chunkkv__V1__UnregisterCache body = CHUNKKV__V1__UNREGISTER_CACHE__INIT;
        Chunkkv__V1__Request message;
        uint64_t asked_nsec = ckv_now_nsec();
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        uint64_t deadline_nsec;
        int r;

        r = ckv__deadline(asked_nsec, timeout_ms, &deadline_nsec, ret_error);
        if (r)
                return r;
        body.cache_id = cache_id;
        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_UNREGISTER_CACHE;
        message.unregister_cache = &body;
        if (!ckv__core_is_dead(client))
                r = ckv__call(client, &message, deadline_nsec, 0, NULL, ret_error);
        if (r == 0)
                ckv__cache_forget(client, cache_id);
        return r;
}
