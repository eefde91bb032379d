/*
 * Opening device memory that other processes exported.
 *
 * A handle opens a whole allocation, so several regions of it share one open.
 * The driver counts opens of a handle by itself, but closing one of two was
 * seen to unmap both (reliability.md 3); here a handle is opened once and
 * closed once, whoever brings it, and the count is ours.  Which users may bring
 * the same handle is the daemon's business.
 *
 * A buffer id says whether a handle that is known still means the same memory:
 * the exporter sends the id of its allocation, and a session that comes with
 * another one for a handle that it still holds has freed what is open here.
 *
 * Memory of cuMemCreate comes as a descriptor for each piece.  The pieces are
 * mapped side by side; the driver's own handles are released as soon as they
 * are mapped, and the descriptors are the daemon's.
 *
 * What is not done here: retrying, and choosing sentences for errors.  An error
 * that leaves the context broken is remembered, since each further call would
 * return it, too.
 */
#include "kernels/cuda_memory.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/macros.h"

#include <string.h>
#include <utlist.h>

/* What was opened: by a handle, or pieces in a reserved extent. */
struct allocation {
        CUdeviceptr base;
        uint64_t bytes;
        uint64_t mapped;                        /* pieces: bytes from base that are mapped, one piece after the other */
        bool by_handle;
        uint8_t handle[CKV_IMPORT_HANDLE_BYTES];
        struct view *views;                     /* list; the last one closes it */
        struct allocation *prev, *next;         /* memory->open */
        UT_hash_handle hh;                      /* memory->handles, by handle */
};

/* One import of it; struct ckv_mapping.allocation points here. */
struct view {
        struct view *prev, *next;
        struct allocation *allocation;
        uint64_t session, buffer_id;
};

struct ckv_cuda_memory {
        const struct ckv_cuda *cuda;
        CUdevice device;
        uint32_t most, count;
        struct allocation *open;                /* list */
        struct allocation *handles;             /* hash of those that were opened by handle */
        CUresult lost;                          /* the error that stays; CUDA_SUCCESS: none */
};

struct ckv_cuda_memory *ckv__cuda_memory_new(const struct ckv_cuda *cuda, CUdevice device, uint32_t most) {
        struct ckv_cuda_memory *memory = calloc(1, sizeof(*memory));

        if (memory) {
                memory->cuda = cuda;
                memory->device = device;
                memory->most = most;
        }
        return memory;
}

void ckv__cuda_memory_lost(struct ckv_cuda_memory *memory, CUresult code) {
        if (memory->lost == CUDA_SUCCESS)
                memory->lost = code;
}

/* note() - remember an error that stays. Return: @code. */
static CUresult note(struct ckv_cuda_memory *memory, CUresult code) {
        if (ckv_cuda_fatal(code))
                ckv__cuda_memory_lost(memory, code);
        return code;
}

/* refused() - @code of the driver as an outcome. Return: false. */
static bool refused(struct ckv_cuda_memory *memory, struct ckv_import *import, CUresult code) {
        import->outcome = ckv_cuda_fatal(note(memory, code)) ? CKV_IMPORT_DEVICE_LOST : CKV_IMPORT_REFUSED;
        import->driver_code = code;
        return false;
}

static bool failed(struct ckv_import *import, enum ckv_import_outcome outcome, uint64_t found_bytes) {
        import->outcome = outcome;
        import->found_bytes = found_bytes;
        return false;
}

static struct allocation *allocation_new(struct ckv_cuda_memory *memory, struct ckv_import *import) {
        struct allocation *allocation = memory->count < memory->most ? calloc(1, sizeof(*allocation)) : NULL;

        if (!allocation) {
                (void)failed(import, CKV_IMPORT_NO_MEMORY, 0);
                return NULL;
        }
        memory->count++;
        DL_APPEND(memory->open, allocation);
        return allocation;
}

/* close_pieces() - what is mapped, then the extent. Return: the first error. */
static CUresult close_pieces(struct ckv_cuda_memory *memory, struct allocation *allocation) {
        CUresult unmapped = CUDA_SUCCESS, freed;

        if (allocation->mapped > 0)
                unmapped = memory->cuda->cuMemUnmap(allocation->base, allocation->mapped);
        if (ckv_cuda_fatal(unmapped))
                return unmapped;
        freed = memory->cuda->cuMemAddressFree(allocation->base, allocation->bytes);
        return unmapped != CUDA_SUCCESS ? unmapped : freed;
}

/* allocation_free() - closed, if it was opened and the device is there; fine on a half-built one. Return: of the driver. */
static CUresult allocation_free(struct ckv_cuda_memory *memory, struct allocation *allocation) {
        CUresult code = CUDA_SUCCESS;

        if (allocation->hh.tbl)
                HASH_DELETE(hh, memory->handles, allocation);
        DL_DELETE(memory->open, allocation);
        memory->count--;
        if (allocation->base && memory->lost == CUDA_SUCCESS)
                code = note(memory, allocation->by_handle ? memory->cuda->cuIpcCloseMemHandle(allocation->base)
                                                          : close_pieces(memory, allocation));
        free(allocation);
        return code;
}

/* open_handle() - Return: NULL with the import's outcome. */
static struct allocation *open_handle(struct ckv_cuda_memory *memory, struct ckv_import *import) {
        struct allocation *allocation = allocation_new(memory, import);
        CUipcMemHandle handle;
        CUdeviceptr base = 0;
        size_t bytes = 0;
        CUresult code;

        if (!allocation)
                return NULL;
        static_assert(sizeof(handle) == sizeof(allocation->handle), "64 bytes");
        memcpy(&handle, import->handle, sizeof(handle));
        memcpy(allocation->handle, import->handle, sizeof(allocation->handle));
        allocation->by_handle = true;
        HASH_ADD(hh, memory->handles, handle, sizeof(allocation->handle), allocation);
        if (!CKV_HASH_ADDED(allocation)) {
                (void)failed(import, CKV_IMPORT_NO_MEMORY, 0);
                (void)allocation_free(memory, allocation);
                return NULL;
        }
        code = memory->cuda->cuIpcOpenMemHandle_v2(&allocation->base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        if (code != CUDA_SUCCESS)
                allocation->base = 0;
        else
                code = memory->cuda->cuMemGetAddressRange_v2(&base, &bytes, allocation->base);
        /* an address inside an allocation would make every offset wrong */
        if (code == CUDA_SUCCESS && base != allocation->base)
                code = CUDA_ERROR_INVALID_HANDLE;
        if (code != CUDA_SUCCESS) {
                (void)refused(memory, import, code);
                (void)allocation_free(memory, allocation);
                return NULL;
        }
        allocation->bytes = bytes;
        return allocation;
}

/* map_piece() - the next one behind what is mapped. Return: of the driver. */
static CUresult map_piece(const struct ckv_cuda *cuda, struct allocation *allocation, int fd, uint64_t bytes) {
        CUmemGenericAllocationHandle handle;
        CUresult code, released;

        code = cuda->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        if (code != CUDA_SUCCESS)
                return code;
        code = cuda->cuMemMap(allocation->base + allocation->mapped, bytes, 0, handle, 0);
        if (code == CUDA_SUCCESS)
                allocation->mapped += bytes;
        /* the mapping holds the memory; the handle is needed no more in either case */
        released = cuda->cuMemRelease(handle);
        return code != CUDA_SUCCESS ? code : released;
}

/* set_access() - reading alone where that is all there is to do, and the driver knows it */
static CUresult set_access(const struct ckv_cuda_memory *memory, const struct allocation *allocation, bool writable) {
        CUmemAccessDesc access = { .location = { CU_MEM_LOCATION_TYPE_DEVICE, memory->device },
                                   .flags = CU_MEM_ACCESS_FLAGS_PROT_READ };
        CUresult code = CUDA_ERROR_NOT_SUPPORTED;

        if (!writable)
                code = memory->cuda->cuMemSetAccess(allocation->base, allocation->bytes, &access, 1);
        if (code == CUDA_SUCCESS || ckv_cuda_fatal(code))
                return code;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return memory->cuda->cuMemSetAccess(allocation->base, allocation->bytes, &access, 1);
}

/* add_up() - bytes of all pieces, each a whole number of granules. Return: false with the import's outcome. */
static bool add_up(struct ckv_cuda_memory *memory, struct ckv_import *import, uint64_t *ret_bytes) {
        const CUmemAllocationProp prop = {
                .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                .location = { CU_MEM_LOCATION_TYPE_DEVICE, memory->device },
        };
        uint64_t bytes = 0;
        size_t granule = 0;
        CUresult code;

        code = memory->cuda->cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        if (code != CUDA_SUCCESS)
                return refused(memory, import, code);
        for (uint32_t i = 0; i < import->fd_count; i++) {
                if (granule == 0 || import->fd_bytes[i] == 0 || import->fd_bytes[i] % granule)
                        return failed(import, CKV_IMPORT_SIZE, granule);
                if (!ckv_add_u64(bytes, import->fd_bytes[i], &bytes))
                        return failed(import, CKV_IMPORT_RANGE, 0);
        }
        *ret_bytes = bytes;
        return true;
}

/* open_pieces() - Return: NULL with the import's outcome. */
static struct allocation *open_pieces(struct ckv_cuda_memory *memory, struct ckv_import *import) {
        struct allocation *allocation;
        uint64_t bytes = 0;
        CUresult code;

        if (!add_up(memory, import, &bytes))
                return NULL;
        allocation = allocation_new(memory, import);
        if (!allocation)
                return NULL;
        code = memory->cuda->cuMemAddressReserve(&allocation->base, bytes, 0, 0, 0);
        if (code != CUDA_SUCCESS)
                allocation->base = 0;
        else
                allocation->bytes = bytes;
        for (uint32_t i = 0; code == CUDA_SUCCESS && i < import->fd_count; i++)
                code = map_piece(memory->cuda, allocation, import->fds[i], import->fd_bytes[i]);
        if (code == CUDA_SUCCESS)
                code = set_access(memory, allocation, import->writable);
        if (code == CUDA_SUCCESS)
                return allocation;
        (void)refused(memory, import, code);
        (void)allocation_free(memory, allocation);
        return NULL;
}

/* is_stale() - does the session hold this allocation under another id? */
static bool is_stale(const struct allocation *allocation, const struct ckv_import *import) {
        const struct view *view;

        DL_FOREACH(allocation->views, view)
                if (view->session == import->session && view->buffer_id && import->buffer_id &&
                    view->buffer_id != import->buffer_id)
                        return true;
        return false;
}

/* check() - is the import what the allocation is? Return: false with its outcome. */
static bool check(const struct allocation *allocation, struct ckv_import *import) {
        if (allocation->by_handle && is_stale(allocation, import))
                return failed(import, CKV_IMPORT_STALE, 0);
        if (allocation->by_handle && import->alloc_bytes && import->alloc_bytes != allocation->bytes)
                return failed(import, CKV_IMPORT_SIZE, allocation->bytes);
        if (import->size == 0 || !ckv_fits_u64(import->offset, import->size, allocation->bytes))
                return failed(import, CKV_IMPORT_RANGE, allocation->bytes);
        return true;
}

static void open_import(struct ckv_cuda_memory *memory, struct ckv_import *import) {
        struct allocation *allocation = NULL;
        struct view *view;

        if (import->kind == CKV_IMPORT_IPC)
                HASH_FIND(hh, memory->handles, import->handle, sizeof(import->handle), allocation);
        if (!allocation)
                allocation = import->kind == CKV_IMPORT_IPC ? open_handle(memory, import) : open_pieces(memory, import);
        if (!allocation)
                return;
        view = check(allocation, import) ? calloc(1, sizeof(*view)) : NULL;
        if (!view) {
                if (import->outcome == CKV_IMPORT_OK)
                        (void)failed(import, CKV_IMPORT_NO_MEMORY, 0);
                if (!allocation->views)
                        (void)allocation_free(memory, allocation);
                return;
        }
        view->allocation = allocation;
        view->session = import->session;
        view->buffer_id = import->buffer_id;
        DL_APPEND(allocation->views, view);
        import->mapping = (struct ckv_mapping){
                .base = (uint8_t *)(uintptr_t)(allocation->base + import->offset), .size = import->size,
                .writable = import->writable, .allocation = view, .allocation_bytes = allocation->bytes, .on_device = true,
        };
}

/* close_view() - Return: of the driver. */
static CUresult close_view(struct ckv_cuda_memory *memory, struct ckv_mapping *mapping) {
        struct view *view = mapping->allocation;
        struct allocation *allocation = view->allocation;

        *mapping = (struct ckv_mapping){ 0 };
        DL_DELETE(allocation->views, view);
        free(view);
        return allocation->views ? CUDA_SUCCESS : allocation_free(memory, allocation);
}

CUresult ckv__cuda_memory_close(struct ckv_cuda_memory *memory, struct ckv_mapping *mapping) {
        (void)close_view(memory, mapping);
        return memory->lost;
}

CUresult ckv__cuda_memory_serve(struct ckv_cuda_memory *memory, struct ckv_import *import) {
        CUresult code;

        import->outcome = CKV_IMPORT_OK;
        import->driver_code = CUDA_SUCCESS;
        import->found_bytes = 0;
        if (import->kind == CKV_IMPORT_CLOSE) {
                code = close_view(memory, &import->mapping);
                if (code != CUDA_SUCCESS)
                        (void)refused(memory, import, code);
        } else if (memory->lost != CUDA_SUCCESS) {
                (void)refused(memory, import, memory->lost);
        } else {
                open_import(memory, import);
        }
        return memory->lost;
}

struct ckv_cuda_memory *ckv__cuda_memory_free(struct ckv_cuda_memory *memory) {
        if (!memory)
                return NULL;
        while (memory->open) {
                struct allocation *allocation = memory->open;

                while (allocation->views) {
                        struct view *view = allocation->views;

                        DL_DELETE(allocation->views, view);
                        free(view);
                }
                (void)allocation_free(memory, allocation);
        }
        free(memory);
        return NULL;
}
