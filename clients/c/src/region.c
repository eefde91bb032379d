/*
 * Registration of memory: files and device memory.
 *
 * A descriptor goes over the side socket and comes back as a token, and the
 * token goes into RegisterRegion; an IPC handle goes there as it is.  What is
 * kept of a region is made before the daemon hears of it, and the same function
 * sends it again to the next daemon.
 */
#include "clients/c/src/control.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* How much of the file a region takes. Return: 0 or -EINVAL, -errno. */
static int region_size(const struct chunkkv_region *region, uint64_t *ret_size, struct chunkkv_error *ret_error) {
        uint64_t file_size;
        struct stat info;

        if (fstat(region->fd, &info) < 0)
                return ckv__fault(ret_error, -errno, "fd", "%s", strerror(errno));
        file_size = (uint64_t)info.st_size;
        if (region->offset >= file_size || region->size > file_size - region->offset)
                return ckv__fault(ret_error, -EINVAL, "offset",
                                  "bytes %" PRIu64 " and the %" PRIu64 " after it are not all inside a file of %"
                                  PRIu64, region->offset, region->size, file_size);
        *ret_size = region->size ? region->size : file_size - region->offset;
        return 0;
}

/* The memory's part of the message. @token: room for 16 bytes */
static int fill_file(struct chunkkv_client *client, const struct ckv__region *region, uint64_t deadline_nsec,
                     Chunkkv__V1__RegisterRegion *body, uint8_t *token, struct chunkkv_error *ret_error) {
        struct stat info;
        int r;

        if (fstat(region->fd, &info) < 0)
                return ckv__fault(ret_error, -errno, "fd", "%s", strerror(errno));
        r = ckv__side_offer(client, CKV_SIDE_KIND_MEMFD, region->fd, (uint64_t)info.st_size, deadline_nsec, token, ret_error);
        if (r)
                return r;
        body->source_case = CHUNKKV__V1__REGISTER_REGION__SOURCE_MEMFD_TOKEN;
        body->memfd_token = (ProtobufCBinaryData){ .len = CKV__TOKEN, .data = token };
        return 0;
}

/* @tokens: room for 16 bytes each piece; @ipc: initialised */
static int fill_device(struct chunkkv_client *client, const struct ckv__region *region, uint64_t deadline_nsec,
                       Chunkkv__V1__RegisterRegion *body, Chunkkv__V1__CudaIpc *ipc, uint8_t *tokens,
                       struct chunkkv_error *ret_error) {
        struct chunkkv_device_memory *device = region->device;

        body->device_uuid = (ProtobufCBinaryData){ .len = sizeof(device->device_uuid), .data = device->device_uuid };
        body->buffer_id = device->buffer_id;
        if (device->piece_count == 0) {
                ipc->handle = (ProtobufCBinaryData){ .len = sizeof(device->handle), .data = device->handle };
                ipc->alloc_size = device->alloc_size;
                body->source_case = CHUNKKV__V1__REGISTER_REGION__SOURCE_CUDA_IPC;
                body->cuda_ipc = ipc;
                return 0;
        }
        for (size_t i = 0; i < device->piece_count; i++) {
                int r = ckv__side_offer(client, CKV_SIDE_KIND_CUDA_VMM, device->piece_fds[i], device->piece_sizes[i],
                                        deadline_nsec, tokens + i * CKV__TOKEN, ret_error);

                if (r)
                        return r;
        }
        body->source_case = CHUNKKV__V1__REGISTER_REGION__SOURCE_VMM_TOKENS;
        body->vmm_tokens = (ProtobufCBinaryData){ .len = device->piece_count * CKV__TOKEN, .data = tokens };
        return 0;
}

int ckv__region_send(struct chunkkv_client *client, const struct ckv__region *region, uint64_t deadline_nsec,
                     uint32_t *ret_id, struct chunkkv_error *ret_error) {
        Chunkkv__V1__RegisterRegion body = CHUNKKV__V1__REGISTER_REGION__INIT;
        Chunkkv__V1__CudaIpc ipc = CHUNKKV__V1__CUDA_IPC__INIT;
        size_t tokens = region->device ? CKV_MAX(region->device->piece_count, 1) : 1;
        _cleanup_free_ uint8_t *token = malloc(tokens * CKV__TOKEN);
        Chunkkv__V1__Request message;
        _cleanup_reply_ Chunkkv__V1__Response *reply = NULL;
        int r;

        if (!token)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for %zu tokens", tokens);
        if (region->device)
                r = fill_device(client, region, deadline_nsec, &body, &ipc, token, ret_error);
        else
                r = fill_file(client, region, deadline_nsec, &body, token, ret_error);
        if (r)
                return r;
        body.offset = region->offset;
        body.size = region->size;
        body.access = (Chunkkv__V1__Access)region->access;
        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_REGISTER_REGION;
        message.register_region = &body;
        r = ckv__call(client, &message, deadline_nsec, CHUNKKV__V1__RESPONSE__BODY_REGION_REGISTERED, &reply,
                      ret_error);
        if (r)
                return r;
        *ret_id = reply->region_registered->region_id;
        return 0;
}

/* Register what was made for it. @region: consumed */
static int register_made(struct chunkkv_client *client, struct ckv__region *region, uint64_t deadline_nsec,
                         uint32_t *ret_region_id, struct chunkkv_error *ret_error) {
        int r;

        if (!region)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory or descriptor to remember a region");
        r = ckv__revive(client, deadline_nsec, ret_error);
        if (r == 0)
                r = ckv__region_send(client, region, deadline_nsec, &region->id, ret_error);
        if (r) {
                (void)ckv__region_free(region);
                return r;
        }
        *ret_region_id = ckv__region_add(client, region);
        return 0;
}

int ckv__region_register(struct chunkkv_client *client, const struct chunkkv_region *region, uint64_t deadline_nsec,
                         uint32_t *ret_region_id, struct chunkkv_error *ret_error) {
        uint64_t size = 0;
        int r = region_size(region, &size, ret_error);

        return r ? r : register_made(client, ckv__region_new(region, size), deadline_nsec, ret_region_id, ret_error);
}

int chunkkv_region_register(struct chunkkv_client *client, const struct chunkkv_region *region, uint32_t timeout_ms,
                            uint32_t *ret_region_id, struct chunkkv_error *ret_error) {
        uint64_t asked_nsec = ckv_now_nsec();
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        uint64_t deadline_nsec;
        int r = ckv__deadline(asked_nsec, timeout_ms, &deadline_nsec, ret_error);

        return r ? r : ckv__region_register(client, region, deadline_nsec, ret_region_id, ret_error);
}

int chunkkv_region_register_device(struct chunkkv_client *client, const struct chunkkv_device_memory *memory,
                                   enum chunkkv_access access, uint32_t timeout_ms, uint32_t *ret_region_id,
                                   struct chunkkv_error *ret_error) {
        uint64_t asked_nsec = ckv_now_nsec();
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        uint64_t deadline_nsec;
        int r = ckv__deadline(asked_nsec, timeout_ms, &deadline_nsec, ret_error);

        if (r)
                return r;
        if (memory->size == 0)
                return ckv__fault(ret_error, -EINVAL, "size", "there are no bytes in released memory");
        return register_made(client, ckv__region_new_device(memory, access), deadline_nsec, ret_region_id, ret_error);
}

int ckv__region_unregister(struct chunkkv_client *client, uint32_t region_id, uint64_t deadline_nsec,
                           struct chunkkv_error *ret_error) {
        Chunkkv__V1__UnregisterRegion body = CHUNKKV__V1__UNREGISTER_REGION__INIT;
        Chunkkv__V1__Request message;
        int r = 0;

        body.region_id = region_id;
        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_UNREGISTER_REGION;
        message.unregister_region = &body;
        /* a daemon that is dead has nothing mapped */
        if (!ckv__core_is_dead(client))
                r = ckv__call(client, &message, deadline_nsec, 0, NULL, ret_error);
        if (r == 0)
                ckv__region_forget(client, region_id);
        return r;
}

int chunkkv_region_unregister(struct chunkkv_client *client, uint32_t region_id, uint32_t timeout_ms,
                              struct chunkkv_error *ret_error) {
        uint64_t asked_nsec = ckv_now_nsec();
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        uint64_t deadline_nsec;
        int r = ckv__deadline(asked_nsec, timeout_ms, &deadline_nsec, ret_error);

        return r ? r : ckv__region_unregister(client, region_id, deadline_nsec, ret_error);
}
