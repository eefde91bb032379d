/*
 * Export of device memory by its pointer, through the CUDA driver: no framework
 * is needed, and the library is not linked to it.
 *
 * The process has it already, if the pointer means anything; it is looked up by
 * the exact versioned symbols, since cuda.h hides the suffixes behind macros and
 * the plain names are older functions.
 * Whatever cannot be shared is found by its attributes before the call that
 * would fail, so that the error can name the allocator and the way out.
 */
#include "clients/c/src/client.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

/* CUpointer_attribute, CUmemorytype, CUmemAllocationHandleType */
enum {
        ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_MEMORY_TYPE = 2, ATTRIBUTE_BUFFER_ID = 7, ATTRIBUTE_IS_MANAGED = 8,
        ATTRIBUTE_DEVICE_ORDINAL = 9, ATTRIBUTE_IS_LEGACY_IPC_CAPABLE = 10, ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
        ATTRIBUTE_MEMPOOL_HANDLE = 17,
        MEMORY_DEVICE = 2,
        HANDLE_POSIX_DESCRIPTOR = 1,
        PIECES_MAX = 8192,              /* of one region */
};

#define FUNCTIONS(F) \
        F(init, "cuInit", (unsigned int flags)) \
        F(error_name, "cuGetErrorName", (int error, const char **ret_name)) \
        F(attribute, "cuPointerGetAttribute", (void *ret, int attribute, uint64_t address)) \
        F(range, "cuMemGetAddressRange_v2", (uint64_t *ret_base, size_t *ret_size, uint64_t address)) \
        F(handle, "cuIpcGetMemHandle", (uint8_t *ret_handle, uint64_t base)) \
        F(device, "cuDeviceGet", (int *ret_device, int ordinal)) \
        F(uuid, "cuDeviceGetUuid_v2", (uint8_t *ret_uuid, int device)) \
        F(push, "cuCtxPushCurrent_v2", (void *context)) \
        F(pop, "cuCtxPopCurrent_v2", (void **ret_context)) \
        F(retain, "cuMemRetainAllocationHandle", (uint64_t *ret_allocation, void *address)) \
        F(share, "cuMemExportToShareableHandle", (int *ret_fd, uint64_t allocation, int type, uint64_t flags)) \
        F(release, "cuMemRelease", (uint64_t allocation))

struct driver {
        void *library;
#define DECLARE(name, symbol, arguments) int (*name) arguments;
        FUNCTIONS(DECLARE)
#undef DECLARE
};

/* Return: NULL, or what is missing. */
static const char *driver_load(struct driver *driver) {
        const char *missing = NULL;

        driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!driver->library)
                return "libcuda.so.1";
#define LOOK_UP(name, symbol, arguments) \
        if (!missing) { \
                void *found = dlsym(driver->library, symbol); \
                memcpy(&driver->name, &found, sizeof(found)); \
                missing = found ? NULL : symbol; \
        }
        FUNCTIONS(LOOK_UP)
#undef LOOK_UP
        return missing;
}

static void driver_unload(struct driver *driver) {
        if (driver->library)
                (void)dlclose(driver->library);
}

/* Return: -EIO, with the error's name and number. */
static int fail(const struct driver *driver, int error, const char *what, struct chunkkv_error *ret_error) {
        const char *name = NULL;

        if (driver->error_name(error, &name) != 0 || !name)
                name = "error";
        return ckv__fault(ret_error, -EIO, "", "%s: %s (%d)", what, name, error);
}

/* An attribute that this driver does not know is no. */
static bool flag(const struct driver *driver, uint64_t address, int attribute) {
        uint64_t value = 0;

        return driver->attribute(&value, attribute, address) == 0 && value != 0;
}

static int check_kind(const struct driver *driver, uint64_t address, struct chunkkv_error *ret_error) {
        unsigned int type = 0;

        if (driver->attribute(&type, ATTRIBUTE_MEMORY_TYPE, address) != 0)
                return ckv__fault(ret_error, -EINVAL, "address", "%#" PRIx64 " is no address that CUDA knows", address);
        if (type != MEMORY_DEVICE || flag(driver, address, ATTRIBUTE_IS_MANAGED))
                return ckv__fault(ret_error, -EOPNOTSUPP, "address", "managed or host memory cannot be shared as device memory: "
                                  "allocate the KV cache with cuMemAlloc");
        return 0;
}

static int fill_device(const struct driver *driver, struct chunkkv_device_memory *memory, struct chunkkv_error *ret_error) {
        int ordinal = 0, device = 0, r;

        r = driver->attribute(&ordinal, ATTRIBUTE_DEVICE_ORDINAL, memory->address);
        if (r == 0)
                r = driver->device(&device, ordinal);
        if (r == 0)
                r = driver->uuid(memory->device_uuid, device);
        if (r == 0)
                r = driver->attribute(&memory->buffer_id, ATTRIBUTE_BUFFER_ID, memory->address);
        return r == 0 ? 0 : fail(driver, r, "which GPU the memory is on", ret_error);
}

static int fill_handle(const struct driver *driver, struct chunkkv_device_memory *memory, struct chunkkv_error *ret_error) {
        uint64_t base = 0;
        size_t total = 0;
        int r = driver->range(&base, &total, memory->address);

        if (r != 0)
                return fail(driver, r, "cuMemGetAddressRange", ret_error);
        memory->alloc_size = total;
        memory->offset = memory->address - base;
        if (memory->offset > total || memory->size > total - memory->offset)
                return ckv__fault(ret_error, -EINVAL, "size", "%" PRIu64 " bytes from byte %" PRIu64 " of an allocation of %zu",
                                  memory->size, memory->offset, total);
        r = driver->handle(memory->handle, base);
        return r == 0 ? 0 : fail(driver, r, "cuIpcGetMemHandle", ret_error);
}

/* The memory's own context is current meanwhile, so any thread may export. */
static int fill_legacy(const struct driver *driver, struct chunkkv_device_memory *memory, struct chunkkv_error *ret_error) {
        void *context = NULL, *popped;
        int r = driver->attribute(&context, ATTRIBUTE_CONTEXT, memory->address);

        if (r == 0)
                r = driver->push(context);
        if (r != 0)
                return fail(driver, r, "context of the memory", ret_error);
        r = fill_handle(driver, memory, ret_error);
        (void)driver->pop(&popped);
        return r;
}

/* One more allocation, mapped at @at. Return: 0, -errno. */
static int add_piece(const struct driver *driver, struct chunkkv_device_memory *memory, uint64_t at, uint64_t size,
                     struct chunkkv_error *ret_error) {
        size_t n = memory->piece_count;
        uint64_t allocation = 0;
        int *fds = realloc(memory->piece_fds, (n + 1) * sizeof(*fds)), r;
        uint64_t *sizes;

        if (!fds)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for %zu pieces", n + 1);
        memory->piece_fds = fds;
        sizes = realloc(memory->piece_sizes, (n + 1) * sizeof(*sizes));
        if (!sizes)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for %zu pieces", n + 1);
        memory->piece_sizes = sizes;
        r = driver->retain(&allocation, (void *)(uintptr_t)at);
        if (r != 0)
                return fail(driver, r, "cuMemRetainAllocationHandle", ret_error);
        r = driver->share(&fds[n], allocation, HANDLE_POSIX_DESCRIPTOR, 0);
        (void)driver->release(allocation);
        if (r != 0)
                return fail(driver, r, "cuMemExportToShareableHandle", ret_error);
        sizes[n] = size;
        memory->piece_count++;
        memory->alloc_size += size;
        return 0;
}

static int fill_pieces(const struct driver *driver, struct chunkkv_device_memory *memory, struct chunkkv_error *ret_error) {
        uint64_t base = 0, at;
        size_t size = 0;
        int r;

        if (flag(driver, memory->address, ATTRIBUTE_MEMPOOL_HANDLE) ||
            !flag(driver, memory->address, ATTRIBUTE_ALLOWED_HANDLE_TYPES))
                return ckv__fault(ret_error, -EOPNOTSUPP, "address",
                                  "memory of a stream-ordered pool (cudaMallocAsync, RMM, cudarc) or of cuMemCreate without POSIX "
                                  "descriptors cannot be shared: allocate the KV cache with cuMemAlloc, or with cuMemCreate and "
                                  "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
        r = driver->range(&base, &size, memory->address);
        if (r != 0)
                return fail(driver, r, "cuMemGetAddressRange", ret_error);
        memory->offset = memory->address - base;
        for (at = base; at - memory->address < memory->size || at < memory->address; at += size) {
                uint64_t begins = 0;

                r = driver->range(&begins, &size, at);
                if (r != 0)
                        return fail(driver, r, "cuMemGetAddressRange", ret_error);
                if (begins != at || memory->piece_count == PIECES_MAX)
                        return ckv__fault(ret_error, -EOPNOTSUPP, "size",
                                          "the memory is not made of at most %d allocations side by side", PIECES_MAX);
                r = add_piece(driver, memory, at, size, ret_error);
                if (r)
                        return r;
        }
        return 0;
}

int chunkkv_device_export(uint64_t address, uint64_t size, struct chunkkv_device_memory *ret_memory,
                          struct chunkkv_error *ret_error) {
        struct chunkkv_device_memory memory = { .address = address, .size = size };
        _cleanup_(driver_unload) struct driver loaded = { 0 };
        const struct driver *driver = &loaded;
        const char *missing;
        int r;

        if (size == 0 || size > UINT64_C(1) << 46)
                return ckv__fault(ret_error, -EINVAL, "size", "must be 1 to 2^46, is %" PRIu64, size);
        missing = driver_load(&loaded);
        if (missing)
                return ckv__fault(ret_error, -ENODEV, "", "no CUDA driver that can export memory: %s is missing", missing);
        r = driver->init(0);
        r = r == 0 ? check_kind(driver, address, ret_error) : fail(driver, r, "cuInit", ret_error);
        if (r == 0)
                r = fill_device(driver, &memory, ret_error);
        if (r == 0)
                r = flag(driver, address, ATTRIBUTE_IS_LEGACY_IPC_CAPABLE) ? fill_legacy(driver, &memory, ret_error) :
                                                                             fill_pieces(driver, &memory, ret_error);
        if (r) {
                chunkkv_device_release(&memory);
                return r;
        }
        *ret_memory = memory;
        return 0;
}

void chunkkv_device_release(struct chunkkv_device_memory *memory) {
        for (size_t i = 0; i < memory->piece_count; i++)
                (void)ckv_close(memory->piece_fds[i]);
        free(memory->piece_fds);
        free(memory->piece_sizes);
        *memory = (struct chunkkv_device_memory){ 0 };
}

struct chunkkv_device_memory *ckv__device_copy(const struct chunkkv_device_memory *memory) {
        struct chunkkv_device_memory *copy = malloc(sizeof(*copy));
        size_t n = memory->piece_count;

        if (!copy)
                return NULL;
        *copy = *memory;
        copy->piece_count = 0;
        copy->piece_fds = n > 0 ? malloc(n * sizeof(*copy->piece_fds)) : NULL;
        copy->piece_sizes = n > 0 ? malloc(n * sizeof(*copy->piece_sizes)) : NULL;
        while (copy->piece_count < n && copy->piece_fds && copy->piece_sizes) {
                int fd = fcntl(memory->piece_fds[copy->piece_count], F_DUPFD_CLOEXEC, 0);

                if (fd < 0)
                        break;
                copy->piece_sizes[copy->piece_count] = memory->piece_sizes[copy->piece_count];
                copy->piece_fds[copy->piece_count++] = fd;
        }
        if (copy->piece_count < n) {
                chunkkv_device_release(copy);
                free(copy);
                return NULL;
        }
        return copy;
}
