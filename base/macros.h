/*
 * Small language helpers that every layer uses: cleanup attributes, hand-over
 * of ownership, sizes.  Nothing here allocates, logs or fails.
 */
#ifndef CKV_BASE_MACROS_H
#define CKV_BASE_MACROS_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* Everything that crosses a process border is little-endian and 64-bit. */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "chunkkvd needs a little-endian machine");
static_assert(sizeof(void *) == 8, "chunkkvd needs a 64-bit machine");

#define _cleanup_(f) __attribute__((cleanup(f)))
#define _printf_(fmt, args) __attribute__((format(printf, fmt, args)))
#define _public_ __attribute__((visibility("default")))

#define CKV_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define CKV_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CKV_MAX(a, b) ((a) > (b) ? (a) : (b))

/* CKV_SANITIZED - is this a build with a sanitizer? gcc says it with macros, clang with __has_feature(). */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CKV_SANITIZED 1
#elif defined(__has_feature)
#define CKV_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define CKV_SANITIZED 0
#endif

/* ckv_steal() - take the value of a pointer variable and leave NULL behind, so that its cleanup does nothing */
#define ckv_steal(p) (__extension__({ \
        __typeof__(*(p)) _stolen = *(p); \
        *(p) = NULL; \
        _stolen; \
}))

static inline void ckv_freep(void *p) {
        free(*(void **)p);
}

/* ckv_close() - close a descriptor if there is one; returns -1 to assign back */
static inline int ckv_close(int fd) {
        if (fd >= 0)
                (void)close(fd);
        return -1;
}

static inline void ckv_closep(int *fd) {
        *fd = ckv_close(*fd);
}

#define _cleanup_free_ _cleanup_(ckv_freep)
#define _cleanup_close_ _cleanup_(ckv_closep)

#endif
