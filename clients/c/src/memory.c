/*
 * Shared memory.
 *
 * The daemon maps what another process made, so it insists that the file can
 * neither shrink under it (SIGBUS) nor turn out to have holes that it would
 * have to pay for.  chunkkv_memory_create() makes such a file.  For reading it
 * adds F_SEAL_FUTURE_WRITE after its own mapping exists: from then on nobody
 * can map the file for writing any more.
 */
#include "clients/c/src/client.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

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
