/*
 * Registering, looking after and letting go of shared memory.  The memfd came
 * over the side socket, so the kernel itself told who sent it; this file
 * checks what it is (again: minutes may lie between offer and registration) and
 * charges for the region; daemon/mapped.c charges for the memory and maps it,
 * unless the user has it mapped already.
 *
 * The file is sealed against shrinking, but its pages can be punched out
 * afterwards.  ckv_region_intact() notices, and the region is lost from then on.
 */
#include "daemon/region.h"

#include "base/checked.h"
#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/closer.h"
#include "daemon/daemon.h"
#include "daemon/imported.h"
#include "daemon/mapped.h"
#include "daemon/refuse.h"
#include "daemon/request.h"
#include "daemon/session.h"
#include "daemon/shm_name.h"
#include "ipc/memfd.h"

#include <errno.h>
#include <string.h>

enum { ACCESS_READ = 1, ACCESS_READ_WRITE = 2 };        /* Access of chunkkv.proto */

/* check_memfd() - is the descriptor what it must be? Outcomes of ipc/memfd.h become statuses. */
static bool check_memfd(int fd, uint64_t declared, struct ckv_memfd_info *ret_info, struct ckv_record_status *status) {
        int r = ckv_memfd_check(fd, declared, ret_info);

        switch (r) {
        case 0:
                return true;
        case CKV_MEMFD_E_NOT_MEMFD:
                return ckv_refuse(status, CKV_CODE_HANDLE_INVALID, CKV_F_REGION_MEMFD_TOKEN, CKV_D_NOT_MEMFD, 0, 0, 0);
        case CKV_MEMFD_E_NOT_SEALED:
                return ckv_refuse(status, CKV_CODE_NOT_SEALED, CKV_F_REGION_MEMFD_TOKEN, CKV_D_NOT_SEALED, ret_info->seals, 0, 0);
        case CKV_MEMFD_E_SIZE:
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_REGION_MEMFD_TOKEN, CKV_D_FILE_SIZE, ret_info->size, declared, 0);
        case CKV_MEMFD_E_SPARSE:
                return ckv_refuse(status, CKV_CODE_SPARSE, CKV_F_REGION_MEMFD_TOKEN, CKV_D_SPARSE, ret_info->allocated, ret_info->size,
                              0);
        default:
                return ckv_refuse(status, CKV_CODE_INTERNAL, CKV_F_REGION_MEMFD_TOKEN, CKV_D_INTERNAL, 0, 0, 0);
        }
}

/* region_new() - charged and mapped, in no table yet; @fd is consumed. Return: NULL with @status. */
static struct ckv_region *region_new(struct ckv_session *session, int fd, const struct ckv_memfd_info *info,
                                     const struct ckv_record_region *body, struct ckv_record_status *status, bool *ret_shared) {
        bool writable = body->access == ACCESS_READ_WRITE;
        struct ckv_charge charge = { 0 };
        struct ckv_region *region;

        if (ckv_charge_init(&charge, session->tenant, CKV_SLOT_REGIONS, 1)) {
                ckv_closer_close_received(session->tenant, CKV_CLOSER_MEMORY, fd);
                ckv_refuse_quota(status, session->tenant, CKV_SLOT_REGIONS, 1, CKV_F_NONE);
                return NULL;
        }
        region = calloc(1, sizeof(*region));
        if (!region) {
                ckv_charge_deinit(&charge);
                ckv_closer_close_received(session->tenant, CKV_CLOSER_MEMORY, fd);
                ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                return NULL;
        }
        ckv_charge_move(&charge, &region->charge);
        if (!ckv_mapped_get(session, fd, info, body, writable, status, &region->mapped, ret_shared))
                return ckv_region_free(region);
        region->session = session;
        region->fd = region->mapped->fd;
        region->mapping = region->mapped->mapping;
        region->place = (struct ckv_place){ info->dev, info->ino, body->offset, body->size };
        region->writable = writable;
        region->id = session->last_region_id + 1;
        return region;
}

/* take_memfd() - what was offered on the side socket; *ret_fd is the caller's */
static bool take_memfd(struct ckv_session *session, const struct ckv_record_region *body, int *ret_fd,
                       struct ckv_memfd_info *ret_info, struct ckv_record_status *status) {
        uint64_t offered;
        uint32_t kind;
        int fd;

        if (!session->side)
                return ckv_refuse(status, CKV_CODE_NOT_FOUND, CKV_F_REGION_MEMFD_TOKEN, CKV_D_NO_SIDE_CONNECTION, 0, 0, 0);
        if (!ckv_side_take(session->side, body->handle.memfd_token, &fd, &kind, &offered))
                return ckv_refuse(status, CKV_CODE_NOT_FOUND, CKV_F_REGION_MEMFD_TOKEN, CKV_D_UNKNOWN_TOKEN, 0, 0, 0);
        if (!check_memfd(fd, offered, ret_info, status)) {
                ckv_closer_close_received(session->tenant, CKV_CLOSER_MEMORY, fd);
                return false;
        }
        *ret_fd = fd;
        return true;
}

bool ckv_region_register(struct ckv_session *session, const struct ckv_record *record, struct ckv_record_status *ret_status,
                         struct ckv_region **ret_region, bool *ret_shared) {
        const struct ckv_record_region *body = &record->body.region;
        struct ckv_memfd_info info;
        struct ckv_region *region;
        int fd = -1;

        ckv_assert_loop_thread();
        /* a daemon that serves a GPU has sent these to daemon/imported.c */
        if (body->source == CKV_SOURCE_CUDA_IPC)
                return ckv_refuse(ret_status, CKV_CODE_UNSUPPORTED, CKV_F_REGION_CUDA_IPC, CKV_D_NO_DEVICE_MEMORY, 0, 0, 0);
        if (body->source == CKV_SOURCE_CUDA_VMM)
                return ckv_refuse(ret_status, CKV_CODE_UNSUPPORTED, CKV_F_REGION_VMM_TOKENS, CKV_D_NO_DEVICE_MEMORY, 0, 0, 0);
        if (body->has_device_uuid)
                return ckv_refuse(ret_status, CKV_CODE_DEVICE_MISMATCH, CKV_F_REGION_DEVICE_UUID, CKV_D_NOT_USED, 0, 0, 0);
        if (body->buffer_id)
                return ckv_refuse(ret_status, CKV_CODE_UNSUPPORTED, CKV_F_REGION_BUFFER_ID, CKV_D_NOT_BUILT, 0, 0, 0);
        if (body->access != ACCESS_READ && body->access != ACCESS_READ_WRITE)
                return ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_REGION_ACCESS, CKV_D_ENUM, body->access, 0, 0);
        if (body->source == CKV_SOURCE_POSIX_SHM ? !ckv_shm_name_open(session, body, &fd, &info, ret_status)
                                                 : !take_memfd(session, body, &fd, &info, ret_status))
                return false;
        if (body->size == 0 || !ckv_fits_u64(body->offset, body->size, info.size)) {
                ckv_closer_close_received(session->tenant, CKV_CLOSER_MEMORY, fd);
                return ckv_refuse(ret_status, CKV_CODE_OUT_OF_RANGE, CKV_F_REGION_SIZE, CKV_D_FILE_SIZE, info.size, body->size, 0);
        }
        region = region_new(session, fd, &info, body, ret_status, ret_shared);
        if (!region)
                return false;
        HASH_ADD(hh, session->regions, id, sizeof(region->id), region);
        if (!CKV_HASH_ADDED(region)) {
                ckv_region_free(region);
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        }
        session->last_region_id = region->id;
        *ret_region = region;
        return true;
}

struct ckv_region *ckv_region_new_imported(struct ckv_imported *imported, struct ckv_record_status *ret_status) {
        struct ckv_session *session = imported->session;
        struct ckv_region *region = calloc(1, sizeof(*region));
        struct ckv_charge charge = { 0 };

        if (ckv_charge_init(&charge, session->tenant, CKV_SLOT_REGIONS, 1)) {
                ckv_refuse_quota(ret_status, session->tenant, CKV_SLOT_REGIONS, 1, CKV_F_NONE);
                free(region);
                return NULL;
        }
        if (region)
                region->mapped = ckv_mapped_new_imported(session->daemon, imported);
        if (!region || !region->mapped) {
                ckv_charge_deinit(&charge);
                free(region);
                ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                return NULL;
        }
        ckv_charge_move(&charge, &region->charge);
        region->session = session;
        region->fd = -1;
        region->writable = imported->import.writable;
        return region;
}

bool ckv_region_add_imported(struct ckv_region *region, struct ckv_record_status *ret_status) {
        struct ckv_session *session = region->session;

        region->mapped->mapping = region->mapped->imported->import.mapping;
        region->mapping = region->mapped->mapping;
        /* no file has device 0: addresses tell device memory apart from all else */
        region->place = (struct ckv_place){ .start = (uintptr_t)region->mapping.base, .bytes = region->mapping.size };
        region->id = session->last_region_id + 1;
        HASH_ADD(hh, session->regions, id, sizeof(region->id), region);
        if (!CKV_HASH_ADDED(region))
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        session->last_region_id = region->id;
        return true;
}

struct ckv_region *ckv_region_free(struct ckv_region *region) {
        if (!region)
                return NULL;
        ckv_assert_loop_thread();
        assert(region->cache_uses == 0 && region->request_uses == 0);
        (void)ckv_mapped_put(region->mapped);
        ckv_charge_deinit(&region->charge);
        free(region);
        return NULL;
}

static bool cache_uses(const struct ckv_cache *cache, const struct ckv_region *region) {
        for (uint32_t i = 0; i < cache->group_count; i++)
                for (uint32_t k = 0; k < cache->groups[i].layer_count; k++)
                        if (cache->groups[i].layers[k].k_region == region || cache->groups[i].layers[k].v_region == region)
                                return true;
        return false;
}

static bool request_uses(const struct ckv_request *request, const struct ckv_region *region) {
        for (uint32_t i = 0; i < request->region_count; i++)
                if (request->regions[i] == region)
                        return true;
        return false;
}

/* Caches and requests, each once, however many of their planes lie here: that is what a client can let go of. */
static uint32_t count_users(const struct ckv_region *region) {
        uint32_t count = 0;

        for (const struct ckv_cache *cache = region->session->caches; cache; cache = cache->hh.next)
                count += cache_uses(cache, region);
        for (const struct ckv_request *request = region->session->requests; request; request = request->next)
                count += request_uses(request, region);
        return count;
}

bool ckv_region_unregister(struct ckv_session *session, uint32_t id, struct ckv_record_status *ret_status) {
        struct ckv_region *region = ckv_region_find(session, id);

        if (!region)
                return ckv_refuse(ret_status, CKV_CODE_NOT_FOUND, CKV_F_UNREGISTER_REGION_ID, CKV_D_UNKNOWN_ID, id, 0, 0);
        if (region->request_uses) {
                ckv_status_set(ret_status, CKV_CODE_BUSY, CKV_F_UNREGISTER_REGION_ID, CKV_D_IN_USE, count_users(region), 0, 0);
                ret_status->retry_after_ms = CKV_RETRY_MS;
                return false;
        }
        if (region->cache_uses)
                return ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_UNREGISTER_REGION_ID, CKV_D_IN_USE, count_users(region), 0,
                                  0);
        HASH_DELETE(hh, session->regions, region);
        ckv_region_free(region);
        return true;
}

struct ckv_region *ckv_region_find(struct ckv_session *session, uint32_t id) {
        struct ckv_region *region;

        ckv_assert_loop_thread();
        HASH_FIND(hh, session->regions, &id, sizeof(id), region);
        return region;
}

bool ckv_region_intact(struct ckv_region *region) {
        if (!ckv_mapped_lost(region->mapped))
                return true;
        if (!region->told && region->session->side)
                ckv_side_notice(region->session->side, CKV_SIDE_NOTICE_REGION_LOST, region->id);
        region->told = true;
        return false;
}

bool ckv_region_read(struct ckv_region *region, const uint8_t *address, uint64_t bytes, void *ret_bytes,
                     struct ckv_record_status *ret_status) {
        /* before: a hole may read as zeros and be filled by that; after: it may have come meanwhile */
        bool intact = ckv_region_intact(region);

        assert(!region->mapping.on_device);
        if (intact && region->mapped->key.copied)
                intact = ckv_mirror_pull(&region->mapped->mirror, region->mapping.base + (address - region->mapping.base), bytes);
        if (intact)
                memcpy(ret_bytes, address, bytes);
        if (!intact || !ckv_region_intact(region))
                return ckv_refuse(ret_status, CKV_CODE_REGION_LOST, CKV_F_NONE, CKV_D_REGION_LOST, region->id, 0, 0);
        return true;
}

bool ckv_region_on_host(const struct ckv_region *region, enum ckv_field field, uint32_t index, struct ckv_record_status *ret_status) {
        return !region->mapping.on_device ||
               ckv_refuse_at(ret_status, CKV_CODE_UNSUPPORTED, field, index, 0, CKV_D_ON_DEVICE, region->id, 0, 0);
}

struct ckv_place ckv_region_place(const struct ckv_region *region, const uint8_t *address, uint64_t bytes) {
        struct ckv_place place = region->place;

        place.start += (uint64_t)(address - region->mapping.base);
        place.bytes = bytes;
        return place;
}

bool ckv_region_slice(struct ckv_session *session, const struct ckv_record_slice *slice, uint64_t needed, uint16_t field,
                      struct ckv_record_status *ret_status, struct ckv_region **ret_region, uint8_t **ret_address) {
        struct ckv_region *region = ckv_region_find(session, slice->region_id);
        uint64_t end;

        if (!region)
                return ckv_refuse(ret_status, CKV_CODE_NOT_FOUND, field, CKV_D_UNKNOWN_ID, slice->region_id, 0, 0);
        if (!ckv_add_u64(slice->offset, slice->size, &end))
                return ckv_refuse(ret_status, CKV_CODE_OUT_OF_RANGE, field, CKV_D_OVERFLOW, 0, 0, 0);
        if (end > region->mapping.size)
                return ckv_refuse(ret_status, CKV_CODE_OUT_OF_RANGE, field, CKV_D_OUTSIDE_REGION, end, region->id, region->mapping.size);
        if (needed > slice->size)
                return ckv_refuse(ret_status, CKV_CODE_OUT_OF_RANGE, field, CKV_D_AT_LEAST, needed, slice->size, 0);
        *ret_region = region;
        *ret_address = region->mapping.base + slice->offset;
        return true;
}
