/*
 * Regions: memory that an engine handed over and the backend mapped.  Region
 * ids are valid in their session.  A region is used by the caches whose planes
 * lie in it and by the requests that read tables or queries from it; it can be
 * unregistered only when neither is left.
 */
#ifndef CKV_DAEMON_REGION_H
#define CKV_DAEMON_REGION_H

#include "base/hash.h"
#include "daemon/overlap.h"
#include "daemon/tenant.h"
#include "kernels/backend.h"
#include "proto/records.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ckv_imported;
struct ckv_mapped;
struct ckv_session;

struct ckv_region {
        struct ckv_session *session;
        uint32_t id;
        int fd;                         /* the memfd; mapped's; -1: device memory */
        struct ckv_place place;         /* of the region in its file; device memory: address, in no file */
        bool writable;
        bool told;                      /* the client was sent CKV_SIDE_NOTICE_REGION_LOST */
        uint32_t cache_uses;            /* planes of registered caches */
        uint32_t request_uses;          /* requests in flight */
        struct ckv_mapping mapping;     /* mapped's */
        struct ckv_mapped *mapped;      /* counts one use */
        struct ckv_charge charge;       /* REGIONS */
        UT_hash_handle hh;              /* session->regions, by id */
};

/**
 * ckv_region_register() - REGISTER_REGION
 * @ret_shared: the same memory was registered by this user before, and is mapped once for all
 *
 * Return: true; or false with @ret_status and nothing changed.
 */
bool ckv_region_register(struct ckv_session *session, const struct ckv_record *record, struct ckv_record_status *ret_status,
                         struct ckv_region **ret_region, bool *ret_shared);

/* ckv_region_new_imported() - for device memory that is about to be opened; charged, in no table. Return: NULL with @ret_status. */
struct ckv_region *ckv_region_new_imported(struct ckv_imported *imported, struct ckv_record_status *ret_status);

/* ckv_region_add_imported() - it was opened: into its session's table, with an id. Return: true; or false with @ret_status NO_MEMORY. */
bool ckv_region_add_imported(struct ckv_region *region, struct ckv_record_status *ret_status);

/**
 * ckv_region_unregister() - UNREGISTER_REGION
 *
 * Unmapped when it returns true, if no other region is the same memory; device memory is let go of a moment later.
 */
bool ckv_region_unregister(struct ckv_session *session, uint32_t id, struct ckv_record_status *ret_status);

/* ckv_region_free() - let go of the mapping and give the charge back; no use may be left. Return: NULL. */
struct ckv_region *ckv_region_free(struct ckv_region *region);

/* ckv_region_find() - borrowed, or NULL */
struct ckv_region *ckv_region_find(struct ckv_session *session, uint32_t id);

/* ckv_region_intact() - is all of it still there? If not, it is lost for good, and the client has been sent a notice. */
bool ckv_region_intact(struct ckv_region *region);

/**
 * ckv_region_read() - copy bytes out of a region at admission
 * @address: of ckv_region_slice()
 *
 * Return: true; or false with @ret_status REGION_LOST: what was copied, if anything, is not what the client wrote.
 */
bool ckv_region_read(struct ckv_region *region, const uint8_t *address, uint64_t bytes, void *ret_bytes,
                     struct ckv_record_status *ret_status);

/* ckv_region_on_host() - can the daemon read and write it? If not, false with @ret_status UNSUPPORTED that names @field. */
bool ckv_region_on_host(const struct ckv_region *region, enum ckv_field field, uint32_t index, struct ckv_record_status *ret_status);

/* ckv_region_place() - where in its file a stretch of the region lies; @address inside the mapping */
struct ckv_place ckv_region_place(const struct ckv_region *region, const uint8_t *address, uint64_t bytes);

/**
 * ckv_region_slice() - address of a slice of a region
 * @needed: bytes that will be read from slice->offset on
 * @field:  named in the status on failure
 *
 * Return: true; or false with @ret_status NOT_FOUND or OUT_OF_RANGE.
 */
bool ckv_region_slice(struct ckv_session *session, const struct ckv_record_slice *slice, uint64_t needed, uint16_t field,
                      struct ckv_record_status *ret_status, struct ckv_region **ret_region, uint8_t **ret_address);

#endif
