/*
 * Virtual memory management of the stand-in driver: an allocation is an
 * anonymous file, and what is shared is its descriptor.  Addresses are reserved
 * without access; cuMemMap() alone gives none, as with the driver.
 */
#include "tests/fake/fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { ALLOCATIONS_MAX = 1024, GRANULARITY = 64 << 10 };

static struct allocation {
        int fd;
        size_t bytes;
        uint32_t references;            /* handles and mappings; 0: free */
} allocations[ALLOCATIONS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Takes the descriptor. Handles are indices from 1 on. */
static CUresult new_allocation(int fd, size_t bytes, CUmemGenericAllocationHandle *ret_handle) {
        size_t i = 0;

        (void)pthread_mutex_lock(&lock);
        while (i < ALLOCATIONS_MAX && allocations[i].references > 0)
                i++;
        if (i < ALLOCATIONS_MAX)
                allocations[i] = (struct allocation){ .fd = fd, .bytes = bytes, .references = 1 };
        (void)pthread_mutex_unlock(&lock);
        if (i == ALLOCATIONS_MAX) {
                (void)ckv_close(fd);
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *ret_handle = i + 1;
        return CUDA_SUCCESS;
}

/* One reference more, or one less. Return: false if there is no such allocation. */
static bool refer(CUmemGenericAllocationHandle handle, bool more, struct allocation *ret_allocation) {
        struct allocation *allocation;
        bool found;

        (void)pthread_mutex_lock(&lock);
        allocation = handle >= 1 && handle <= ALLOCATIONS_MAX ? &allocations[handle - 1] : NULL;
        found = allocation && allocation->references > 0;
        if (found) {
                allocation->references += more ? 1 : -1;
                *ret_allocation = *allocation;
                if (allocation->references == 0)
                        (void)ckv_close(allocation->fd);
        }
        (void)pthread_mutex_unlock(&lock);
        return found;
}

CUresult cuMemGetAllocationGranularity(size_t *ret_bytes, const CUmemAllocationProp *prop, int option) {
        (void)prop;
        (void)option;
        BEGIN();
        *ret_bytes = GRANULARITY;
        return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *ret_handle, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
        int fd;

        BEGIN();
        if (bytes == 0 || bytes % GRANULARITY || flags || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
            prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
                return CUDA_ERROR_INVALID_VALUE;
        fd = memfd_create("fakecuda-vmm", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0) {
                (void)ckv_close(fd);
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        return new_allocation(fd, bytes, ret_handle);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
        struct allocation allocation;

        BEGIN();
        return refer(handle, false, &allocation) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *ret_handle, void *at) {
        struct ckv_fake_range range;
        struct allocation allocation;

        BEGIN();
        if (!ckv_fake_find((CUdeviceptr)(uintptr_t)at, &range) || range.kind != CKV_FAKE_PIECE ||
            !refer(range.allocation, true, &allocation))
                return CUDA_ERROR_INVALID_VALUE;
        *ret_handle = range.allocation;
        return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *ret_descriptor, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags) {
        struct allocation allocation;
        int fd;

        BEGIN();
        if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags || !refer(handle, true, &allocation))
                return CUDA_ERROR_INVALID_VALUE;
        fd = fcntl(allocation.fd, F_DUPFD_CLOEXEC, 0);
        (void)refer(handle, false, &allocation);
        if (fd < 0)
                return CUDA_ERROR_OUT_OF_MEMORY;
        *(int *)ret_descriptor = fd;
        return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret_handle, void *descriptor, int type) {
        int fd = (int)(intptr_t)descriptor;
        struct stat st;

        BEGIN();
        if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(fd, &st) < 0 || st.st_size == 0 ||
            st.st_size % GRANULARITY)
                return CUDA_ERROR_INVALID_VALUE;
        fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        return fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : new_allocation(fd, (size_t)st.st_size, ret_handle);
}

CUresult cuMemAddressReserve(CUdeviceptr *ret_at, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags) {
        void *at;

        BEGIN();
        if (bytes == 0 || bytes % GRANULARITY || alignment > GRANULARITY || wish || flags)
                return CUDA_ERROR_INVALID_VALUE;
        at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
                return CUDA_ERROR_OUT_OF_MEMORY;
        *ret_at = (CUdeviceptr)(uintptr_t)at;
        return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
        struct ckv_fake_range range = {
                .kind = CKV_FAKE_PIECE, .base = (char *)(uintptr_t)at, .bytes = bytes, .fd = -1, .allocation = handle,
        };
        struct allocation allocation;

        BEGIN();
        if (offset || flags || !refer(handle, true, &allocation))
                return CUDA_ERROR_INVALID_VALUE;
        range.buffer_id = ckv_fake_new_id();
        if (bytes != allocation.bytes ||
            mmap(range.base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation.fd, 0) == MAP_FAILED || !ckv_fake_add(&range)) {
                (void)refer(handle, false, &allocation);
                return CUDA_ERROR_INVALID_VALUE;
        }
        return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count) {
        BEGIN();
        if (count != 1 || !ckv_fake_known(at, bytes))
                return CUDA_ERROR_INVALID_VALUE;
        return mprotect((void *)(uintptr_t)at, bytes,
                        access->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : PROT_READ | PROT_WRITE) < 0 ?
                       CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* As many pieces as lie in the extent. */
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
        struct ckv_fake_range range;
        struct allocation allocation;

        BEGIN();
        while (bytes > 0) {
                if (!ckv_fake_take(at, CKV_FAKE_PIECE, &range))
                        return CUDA_ERROR_INVALID_VALUE;
                (void)mmap(range.base, range.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
                (void)refer(range.allocation, false, &allocation);
                at += range.bytes;
                bytes -= CKV_MIN(bytes, range.bytes);
        }
        return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
        BEGIN();
        return munmap((void *)(uintptr_t)at, bytes) < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
