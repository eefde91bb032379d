/*
 * Memory of the stand-in driver, and IPC between processes.
 *
 * An allocation is an anonymous file; its handle names process, descriptor and
 * file, so another process of the same user opens it through /proc.  Nothing is
 * left behind when a process dies.  A handle opens the whole allocation at its
 * base, however far inside it was asked for; importers keep the memory when its
 * owner frees it, as they do with the driver.
 */
#include "tests/fake/fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { RANGES_MAX = 4096 };

struct ticket {                         /* inside the 64 bytes of a handle */
        char magic[8];
        int32_t pid, fd;
        uint64_t file, bytes, buffer_id;
        char zero[24];
};
static_assert(sizeof(struct ticket) == sizeof(CUipcMemHandle), "a handle is 64 bytes");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ckv_fake_range ranges[RANGES_MAX];
static _Atomic uint64_t last_id;

static char *pointer(CUdeviceptr at) {
        return (char *)(uintptr_t)at;
}

static CUdeviceptr address(const void *at) {
        return (CUdeviceptr)(uintptr_t)at;
}

/* With the lock held. */
static struct ckv_fake_range *find(CUdeviceptr at) {
        for (size_t i = 0; i < RANGES_MAX; i++)
                if (ranges[i].kind != CKV_FAKE_NONE && pointer(at) >= ranges[i].base &&
                    pointer(at) < ranges[i].base + ranges[i].bytes)
                        return &ranges[i];
        return NULL;
}

bool ckv_fake_add(const struct ckv_fake_range *range) {
        size_t i = 0;

        (void)pthread_mutex_lock(&lock);
        while (i < RANGES_MAX && ranges[i].kind != CKV_FAKE_NONE)
                i++;
        if (i < RANGES_MAX)
                ranges[i] = *range;
        (void)pthread_mutex_unlock(&lock);
        return i < RANGES_MAX;
}

bool ckv_fake_take(CUdeviceptr base, enum ckv_fake_kind kind, struct ckv_fake_range *ret_range) {
        struct ckv_fake_range *range;
        bool found;

        (void)pthread_mutex_lock(&lock);
        range = find(base);
        found = range && range->kind == kind && range->base == pointer(base);
        if (found) {
                *ret_range = *range;
                range->kind = CKV_FAKE_NONE;
        }
        (void)pthread_mutex_unlock(&lock);
        return found;
}

bool ckv_fake_find(CUdeviceptr at, struct ckv_fake_range *ret_range) {
        const struct ckv_fake_range *range;

        (void)pthread_mutex_lock(&lock);
        range = find(at);
        if (range)
                *ret_range = *range;
        (void)pthread_mutex_unlock(&lock);
        return range != NULL;
}

bool ckv_fake_known(CUdeviceptr at, size_t bytes) {
        struct ckv_fake_range range;

        while (bytes > 0 && ckv_fake_find(at, &range)) {
                size_t rest = (size_t)(range.base + range.bytes - pointer(at));

                if (bytes <= rest)
                        return true;
                at += rest;
                bytes -= rest;
        }
        return bytes == 0;
}

uint64_t ckv_fake_new_id(void) {
        return atomic_fetch_add(&last_id, 1) + 1;
}

static CUresult allocate(CUdeviceptr *ret_at, size_t bytes, enum ckv_fake_kind kind) {
        struct ckv_fake_range range = { .kind = kind, .bytes = bytes, .buffer_id = ckv_fake_new_id() };
        struct ticket ticket = { .magic = "FAKECUD", .pid = getpid(), .bytes = bytes, .buffer_id = range.buffer_id };
        struct stat st;

        if (bytes == 0)
                return CUDA_ERROR_INVALID_VALUE;
        range.fd = memfd_create("fakecuda", MFD_CLOEXEC);
        if (range.fd < 0)
                return CUDA_ERROR_OUT_OF_MEMORY;
        if (ftruncate(range.fd, (off_t)bytes) < 0 || fstat(range.fd, &st) < 0) {
                (void)ckv_close(range.fd);
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        ticket.fd = range.fd;
        ticket.file = st.st_ino;
        memcpy(&range.handle, &ticket, sizeof(ticket));
        range.base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, range.fd, 0);
        if (range.base == MAP_FAILED || !ckv_fake_add(&range)) {
                if (range.base != MAP_FAILED)
                        (void)munmap(range.base, bytes);
                (void)ckv_close(range.fd);
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *ret_at = address(range.base);
        return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr at, enum ckv_fake_kind kind) {
        struct ckv_fake_range range;

        if (!ckv_fake_take(at, kind, &range))
                return CUDA_ERROR_INVALID_VALUE;
        (void)munmap(range.base, range.bytes);
        (void)ckv_close(range.fd);
        return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ret_at, size_t bytes) {
        BEGIN();
        return allocate(ret_at, bytes, CKV_FAKE_OWN);
}

CUresult cuMemAllocManaged(CUdeviceptr *ret_at, size_t bytes, unsigned int flags) {
        BEGIN();
        return flags == CU_MEM_ATTACH_GLOBAL ? allocate(ret_at, bytes, CKV_FAKE_MANAGED) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAllocAsync(CUdeviceptr *ret_at, size_t bytes, CUstream stream) {
        (void)stream;
        BEGIN();
        return allocate(ret_at, bytes, CKV_FAKE_POOL);
}

CUresult cuMemFree_v2(CUdeviceptr at) {
        CUresult r;

        BEGIN();
        r = release(at, CKV_FAKE_OWN);
        if (r != CUDA_SUCCESS)
                r = release(at, CKV_FAKE_MANAGED);
        return r != CUDA_SUCCESS ? release(at, CKV_FAKE_POOL) : r;
}

CUresult cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total) {
        BEGIN();
        *ret_free = *ret_total = (size_t)8 << 30;
        return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *ret_base, size_t *ret_bytes, CUdeviceptr at) {
        struct ckv_fake_range range;

        BEGIN();
        if (!ckv_fake_find(at, &range))
                return CUDA_ERROR_INVALID_VALUE;
        *ret_base = address(range.base);
        *ret_bytes = range.bytes;
        return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *ret_value, int attribute, CUdeviceptr at) {
        bool host, piece;
        struct ckv_fake_range range;

        BEGIN_DEVICE();
        if (!ckv_fake_find(at, &range))
                return CUDA_ERROR_INVALID_VALUE;
        host = range.kind == CKV_FAKE_HOST || range.kind == CKV_FAKE_REGISTERED;
        piece = range.kind == CKV_FAKE_PIECE;
        switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
                return cuDevicePrimaryCtxRetain(ret_value, 0);
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
                *(unsigned int *)ret_value = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
                *(uint64_t *)ret_value = range.buffer_id;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
                *(int *)ret_value = range.kind == CKV_FAKE_MANAGED;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
                *(int *)ret_value = 0;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
                *(int *)ret_value = range.kind == CKV_FAKE_OWN;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MAPPED:
                *(int *)ret_value = 1;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
                *(int *)ret_value = piece ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
                return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
                *(void **)ret_value = range.kind == CKV_FAKE_POOL ? range.base : NULL;
                return CUDA_SUCCESS;
        default:
                return CUDA_ERROR_INVALID_VALUE;
        }
}

CUresult cuMemHostAlloc(void **ret_at, size_t bytes, unsigned int flags) {
        CUdeviceptr at;
        CUresult r;

        (void)flags;
        BEGIN();
        r = allocate(&at, bytes, CKV_FAKE_HOST);
        if (r == CUDA_SUCCESS)
                *ret_at = pointer(at);
        return r;
}

CUresult cuMemFreeHost(void *at) {
        BEGIN();
        return release(address(at), CKV_FAKE_HOST);
}

CUresult cuMemHostRegister_v2(void *at, size_t bytes, unsigned int flags) {
        struct ckv_fake_range range = { .kind = CKV_FAKE_REGISTERED, .base = at, .bytes = bytes, .fd = -1 };
        struct ckv_fake_range known;

        (void)flags;
        BEGIN();
        if (bytes == 0)
                return CUDA_ERROR_INVALID_VALUE;
        if (ckv_fake_find(address(at), &known))
                return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        range.buffer_id = ckv_fake_new_id();
        return ckv_fake_add(&range) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemHostUnregister(void *at) {
        struct ckv_fake_range range;

        BEGIN();
        return ckv_fake_take(address(at), CKV_FAKE_REGISTERED, &range) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *ret_device, void *at, unsigned int flags) {
        BEGIN();
        if (flags || !ckv_fake_known(address(at), 1))
                return CUDA_ERROR_INVALID_VALUE;
        *ret_device = address(at);
        return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *ret_handle, CUdeviceptr at) {
        struct ckv_fake_range range;

        BEGIN();
        if (!ckv_fake_find(at, &range) || range.kind != CKV_FAKE_OWN)
                return CUDA_ERROR_INVALID_VALUE;
        *ret_handle = range.handle;
        return CUDA_SUCCESS;
}

/* The memory of a ticket, mapped. Return: MAP_FAILED if it is gone. */
static void *map_ticket(const struct ticket *ticket) {
        _cleanup_close_ int fd = -1;
        char path[64];
        struct stat st;

        (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", ticket->pid, ticket->fd);
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0 || st.st_ino != ticket->file || (uint64_t)st.st_size != ticket->bytes)
                return MAP_FAILED;
        return mmap(NULL, ticket->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

/* Opened already: the same address, counted. */
static bool open_again(const CUipcMemHandle *handle, CUdeviceptr *ret_base) {
        bool found = false;

        (void)pthread_mutex_lock(&lock);
        for (size_t i = 0; i < RANGES_MAX && !found; i++)
                if (ranges[i].kind == CKV_FAKE_IMPORT && memcmp(&ranges[i].handle, handle, sizeof(*handle)) == 0) {
                        ranges[i].opens++;
                        *ret_base = address(ranges[i].base);
                        found = true;
                }
        (void)pthread_mutex_unlock(&lock);
        return found;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ret_base, CUipcMemHandle handle, unsigned int flags) {
        struct ckv_fake_range range = { .kind = CKV_FAKE_IMPORT, .handle = handle, .opens = 1, .fd = -1 };
        struct ticket ticket;

        BEGIN();
        memcpy(&ticket, &handle, sizeof(ticket));
        if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
                return CUDA_ERROR_INVALID_VALUE;
        if (memcmp(ticket.magic, "FAKECUD", sizeof(ticket.magic)) != 0)
                return CUDA_ERROR_INVALID_HANDLE;
        if (ticket.pid == getpid())
                return CUDA_ERROR_INVALID_CONTEXT;
        if (open_again(&handle, ret_base))
                return CUDA_SUCCESS;
        range.base = map_ticket(&ticket);
        if (range.base == MAP_FAILED)
                return CUDA_ERROR_MAP_FAILED;
        range.bytes = ticket.bytes;
        range.buffer_id = ckv_fake_new_id();
        if (!ckv_fake_add(&range)) {
                (void)munmap(range.base, range.bytes);
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *ret_base = address(range.base);
        return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr base) {
        struct ckv_fake_range *range;
        bool last, found;

        BEGIN();
        (void)pthread_mutex_lock(&lock);
        range = find(base);
        found = range && range->kind == CKV_FAKE_IMPORT && range->base == pointer(base);
        last = found && --range->opens == 0;
        (void)pthread_mutex_unlock(&lock);
        if (!found)
                return CUDA_ERROR_INVALID_VALUE;
        return last ? release(base, CKV_FAKE_IMPORT) : CUDA_SUCCESS;
}
