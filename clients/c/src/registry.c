/*
 * What a client has registered.  The caller's numbers of regions and caches
 * are handles of the library's own, which stay as they are when the daemon
 * dies and the next one gives other numbers.  All messages are made with
 * handles and translated as they are packed.
 *
 * A region keeps a descriptor of its file, or what names its device memory, for
 * the next daemon and for a rescue; a cache keeps its description, for the same two.
 */
#include "clients/c/src/control.h"

#include <fcntl.h>

#define UNKNOWN_ID UINT32_MAX

struct ckv__region *ckv__region_find(const struct chunkkv_client *client, uint32_t handle) {
        struct ckv__region *region = client->regions;

        while (region && region->handle != handle)
                region = region->next;
        return region;
}

struct ckv__cache *ckv__cache_find(const struct chunkkv_client *client, uint32_t handle) {
        struct ckv__cache *cache = client->caches;

        while (cache && cache->handle != handle)
                cache = cache->next;
        return cache;
}

struct ckv__region *ckv__region_new(const struct chunkkv_region *region, uint64_t size) {
        struct ckv__region *entry = calloc(1, sizeof(*entry));

        if (!entry)
                return NULL;
        *entry = (struct ckv__region){
                .fd = fcntl(region->fd, F_DUPFD_CLOEXEC, 0), .offset = region->offset, .size = size, .access = region->access,
        };
        return entry->fd < 0 ? ckv__region_free(entry) : entry;
}

struct ckv__region *ckv__region_new_device(const struct chunkkv_device_memory *memory, enum chunkkv_access access) {
        struct ckv__region *entry = calloc(1, sizeof(*entry));

        if (!entry)
                return NULL;
        *entry = (struct ckv__region){ .fd = -1, .offset = memory->offset, .size = memory->size, .access = access };
        entry->device = ckv__device_copy(memory);
        return entry->device ? entry : ckv__region_free(entry);
}

struct ckv__region *ckv__region_free(struct ckv__region *region) {
        if (region->device)
                chunkkv_device_release(region->device);
        free(region->device);
        (void)ckv_close(region->fd);
        free(region);
        return NULL;
}

uint32_t ckv__region_add(struct chunkkv_client *client, struct ckv__region *region) {
        region->next = client->regions;
        region->handle = ++client->last_handle;
        client->regions = region;
        return region->handle;
}

void ckv__region_forget(struct chunkkv_client *client, uint32_t handle) {
        for (struct ckv__region **link = &client->regions; *link; link = &(*link)->next) {
                struct ckv__region *region = *link;

                if (region->handle != handle)
                        continue;
                *link = region->next;
                (void)ckv__region_free(region);
                return;
        }
}

uint32_t ckv__cache_remember(struct chunkkv_client *client, uint8_t *bytes, size_t size, uint32_t id) {
        struct ckv__cache *entry = calloc(1, sizeof(*entry));

        if (!entry) {
                free(bytes);
                return 0;
        }
        *entry = (struct ckv__cache){
                .next = client->caches, .handle = ++client->last_handle, .id = id, .bytes = bytes, .size = size,
        };
        client->caches = entry;
        return entry->handle;
}

void ckv__cache_forget(struct chunkkv_client *client, uint32_t handle) {
        for (struct ckv__cache **link = &client->caches; *link; link = &(*link)->next) {
                struct ckv__cache *cache = *link;

                if (cache->handle != handle)
                        continue;
                *link = cache->next;
                free(cache->bytes);
                free(cache);
                return;
        }
}

void ckv__registry_free(struct chunkkv_client *client) {
        while (client->caches)
                ckv__cache_forget(client, client->caches->handle);
        while (client->regions)
                ckv__region_forget(client, client->regions->handle);
}

static uint32_t region_id(const struct chunkkv_client *client, uint32_t handle) {
        const struct ckv__region *region = ckv__region_find(client, handle);

        /* 0 is "not given" to the daemon, which will say so itself */
        return handle == 0 ? 0 : region && region->id ? region->id : UNKNOWN_ID;
}

static uint32_t cache_id(const struct chunkkv_client *client, uint32_t handle) {
        const struct ckv__cache *cache = ckv__cache_find(client, handle);

        return handle == 0 ? 0 : cache && cache->id ? cache->id : UNKNOWN_ID;
}

static void translate_slice(const struct chunkkv_client *client, Chunkkv__V1__Slice *slice) {
        if (slice)
                slice->region_id = region_id(client, slice->region_id);
}

static void translate_job(const struct chunkkv_client *client, Chunkkv__V1__Compress *job) {
        job->cache_id = cache_id(client, job->cache_id);
        translate_slice(client, job->reply_to);
        translate_slice(client, job->wait ? job->wait->word : NULL);
        translate_slice(client, job->signal ? job->signal->word : NULL);
        if (job->queries) {
                translate_slice(client, job->queries->data);
                translate_slice(client, job->queries->lse);
                translate_slice(client, job->queries->sink_logits);
        }
        for (size_t i = 0; i < job->n_groups; i++) {
                Chunkkv__V1__GroupJob *group = job->groups[i];

                translate_slice(client, group->table ? group->table->from : NULL);
                translate_slice(client, group->destination ? group->destination->from : NULL);
                translate_slice(client, group->scores_out);
                translate_slice(client, group->scores_in);
        }
}

void ckv__translate(const struct chunkkv_client *client, Chunkkv__V1__Request *message) {
        switch (message->body_case) {
        case CHUNKKV__V1__REQUEST__BODY_COMPRESS:
                translate_job(client, message->compress);
                break;
        case CHUNKKV__V1__REQUEST__BODY_REPAIR:
                translate_job(client, message->repair->job);
                break;
        case CHUNKKV__V1__REQUEST__BODY_REGISTER_CACHE:
                for (size_t i = 0; i < message->register_cache->n_planes; i++)
                        message->register_cache->planes[i]->region_id =
                                region_id(client, message->register_cache->planes[i]->region_id);
                break;
        case CHUNKKV__V1__REQUEST__BODY_UNREGISTER_REGION:
                message->unregister_region->region_id = region_id(client, message->unregister_region->region_id);
                break;
        case CHUNKKV__V1__REQUEST__BODY_UNREGISTER_CACHE:
                message->unregister_cache->cache_id = cache_id(client, message->unregister_cache->cache_id);
                break;
        default:
                break;
        }
}
