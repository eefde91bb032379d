/*
 * Shared memory and its registration.
 *
 * The daemon maps what another process made, so it insists that the file can
 * neither shrink under it (SIGBUS) nor turn out to have holes that it would
 * have to pay for.  chunkkv_memory_create() makes such a file.  For reading it
 * adds F_SEAL_FUTURE_WRITE after its own mapping exists: from then on nobody
 * can map the file for writing any more.
 *
 * Registration takes two steps: the descriptor goes over the side socket and
 * comes back as a token, and the token goes into RegisterRegion.
 */
#include "clients/c/src/control.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

int chunkkv_memory_create(const char *name, uint64_t size, enum chunkkv_access access,
                          struct chunkkv_memory *ret_memory, struct chunkkv_error *ret_error) {
        _cleanup_close_ int fd = -1;
        int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, r;
        void *address;

        if (size == 0 || size > UINT64_C(1) << 46)
                return ckv__fault(ret_error, -EINVAL, "size", "must be 1 to 2^46, is %" PRIu64, size);
        if (access != CHUNKKV_ACCESS_READ && access != CHUNKKV_ACCESS_READ_WRITE)
                return ckv__fault(ret_error, -EINVAL, "access", "must be READ or READ_WRITE, is %d", (int)access);
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0)
                return ckv__fault(ret_error, -errno, "", "memfd_create: %s", strerror(errno));
        do
                r = fallocate(fd, 0, 0, (off_t)size);
        while (r < 0 && errno == EINTR);
        if (r < 0)
                return ckv__fault(ret_error, -errno, "size", "allocating %" PRIu64 " bytes: %s", size, strerror(errno));
        address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (address == MAP_FAILED)
                return ckv__fault(ret_error, -errno, "size", "mapping %" PRIu64 " bytes: %s", size, strerror(errno));
        if (access == CHUNKKV_ACCESS_READ)
                seals |= F_SEAL_FUTURE_WRITE;
        if (fcntl(fd, F_ADD_SEALS, seals) < 0) {
                r = -errno;
                (void)munmap(address, size);
                return ckv__fault(ret_error, r, "", "sealing: %s", strerror(-r));
        }
        *ret_memory = (struct chunkkv_memory){ .fd = fd, .address = address, .size = size };
        fd = -1; /* the caller's */
        return 0;
}

void chunkkv_memory_release(struct chunkkv_memory *memory) {
        if (memory->address)
                (void)munmap(memory->address, memory->size);
        /* a struct that was only zeroed holds no descriptor, though 0 is a legal one */
        if (memory->size)
                (void)ckv_close(memory->fd);
        *memory = (struct chunkkv_memory){ .fd = -1 };
}

/* How much of the file a region takes. Return: 0 or -EINVAL, -errno. */
static int region_size(const struct chunkkv_region *region, uint64_t *ret_file_size, uint64_t *ret_size,
                       struct chunkkv_error *ret_error) {
        uint64_t file_size;
        struct stat info;

        if (fstat(region->fd, &info) < 0)
                return ckv__fault(ret_error, -errno, "fd", "%s", strerror(errno));
        file_size = (uint64_t)info.st_size;
        if (region->offset >= file_size || region->size > file_size - region->offset)
                return ckv__fault(ret_error, -EINVAL, "offset",
                                  "bytes %" PRIu64 " and the %" PRIu64 " after it are not all inside a file of %"
                                  PRIu64, region->offset, region->size, file_size);
        *ret_file_size = file_size;
        *ret_size = region->size ? region->size : file_size - region->offset;
        return 0;
}

int ckv__region_send(struct chunkkv_client *client, const struct chunkkv_region *region, uint64_t deadline_nsec,
                     uint32_t *ret_id, struct chunkkv_error *ret_error) {
        Chunkkv__V1__RegisterRegion body = CHUNKKV__V1__REGISTER_REGION__INIT;
        Chunkkv__V1__Request message;
        _cleanup_reply_ Chunkkv__V1__Response *reply = NULL;
        uint64_t file_size = 0, size = 0;
        uint8_t token[16];
        int r;

        r = region_size(region, &file_size, &size, ret_error);
        if (r)
                return r;
        r = ckv__side_offer(client, region->fd, file_size, deadline_nsec, token, ret_error);
        if (r)
                return r;
        body.source_case = CHUNKKV__V1__REGISTER_REGION__SOURCE_MEMFD_TOKEN;
        body.memfd_token = (ProtobufCBinaryData){ .len = sizeof(token), .data = token };
        body.offset = region->offset;
        body.size = size;
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

int ckv__region_register(struct chunkkv_client *client, const struct chunkkv_region *region, uint64_t deadline_nsec,
                         uint32_t *ret_region_id, struct chunkkv_error *ret_error) {
        uint64_t file_size = 0, size = 0;
        uint32_t id;
        int r;

        r = region_size(region, &file_size, &size, ret_error);
        if (r == 0)
                r = ckv__revive(client, deadline_nsec, ret_error);
        if (r == 0)
                r = ckv__region_send(client, region, deadline_nsec, &id, ret_error);
        if (r)
                return r;
        *ret_region_id = ckv__region_remember(client, region, size, id);
        /* then it stays with the daemon until the session ends, and nobody can use it */
        return *ret_region_id ? 0 : ckv__fault(ret_error, -ENOMEM, "", "no memory or descriptor to remember a region");
}

int chunkkv_region_register(struct chunkkv_client *client, const struct chunkkv_region *region, uint32_t timeout_ms,
                            uint32_t *ret_region_id, struct chunkkv_error *ret_error) {
        uint64_t asked_nsec = ckv_now_nsec();
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        uint64_t deadline_nsec;
        int r = ckv__deadline(asked_nsec, timeout_ms, &deadline_nsec, ret_error);

        return r ? r : ckv__region_register(client, region, deadline_nsec, ret_region_id, ret_error);
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
