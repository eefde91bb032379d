/*
 * The same memory registered twice, by one session or by two of the same user,
 * is mapped once: (st_dev, st_ino, offset, size, access) say that it is the
 * same.  A client in a loop then costs a counter, not a mapping each time, and
 * an engine whose workers all register one pool pays for it once.  A stretch
 * that merely overlaps another is a mapping of its own.
 *
 * Memory belongs to the first user that registers some of it.  Another user's
 * registration would show one tenant's cache to another, by mistake or not.
 */
#include "daemon/mapped.h"

#include "base/checked.h"
#include "base/guard.h"
#include "base/macros.h"
#include "daemon/closer.h"
#include "daemon/daemon.h"
#include "daemon/imported.h"
#include "daemon/refuse.h"
#include "daemon/session.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* file_get() - the file, one use more. Return: NULL if out of memory. */
static struct ckv_file *file_get(struct ckv_session *session, const struct ckv_memfd_info *info) {
        struct ckv_daemon *daemon = session->daemon;
        struct ckv_file *file, key = { .key = { info->dev, info->ino } };

        HASH_FIND(hh, daemon->files, &key.key, sizeof(key.key), file);
        if (!file) {
                file = calloc(1, sizeof(*file));
                if (!file)
                        return NULL;
                file->key = key.key;
                file->tenant = session->tenant;
                HASH_ADD(hh, daemon->files, key, sizeof(file->key), file);
                if (!CKV_HASH_ADDED(file)) {
                        free(file);
                        return NULL;
                }
        }
        file->uses++;
        return file;
}

static void file_put(struct ckv_daemon *daemon, struct ckv_file *file) {
        if (!file || --file->uses > 0)
                return;
        HASH_DELETE(hh, daemon->files, file);
        free(file);
}

/* map_private() - memory to copy to, of which only what is touched exists. Return: 0 or -errno. */
static int map_private(struct ckv_mapped *mapped) {
        void *at = mmap(NULL, mapped->key.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (at == MAP_FAILED)
                return -errno;
        (void)madvise(at, mapped->key.size, MADV_DONTFORK);
        (void)madvise(at, mapped->key.size, MADV_DONTDUMP);
        mapped->mapping = (struct ckv_mapping){
                .base = at, .size = mapped->key.size, .writable = mapped->key.writable,
                .allocation = at, .allocation_bytes = mapped->key.size,
        };
        mapped->mirror.fd = mapped->fd;
        mapped->mirror.offset = mapped->key.offset;
        mapped->mirror.base = at;
        mapped->mirror.size = mapped->key.size;
        return 0;
}

/* map_charged() - charge, then map */
static bool map_charged(struct ckv_session *session, struct ckv_mapped *mapped, struct ckv_record_status *status) {
        /* a copy, and the pages that writing to a file with holes would make */
        uint64_t bytes = mapped->key.copied && mapped->key.writable ? 2 * mapped->key.size : mapped->key.size;
        int r;

        if (ckv_charge_init(&mapped->file_charge, session->tenant, CKV_SLOT_FILES, 1))
                return ckv_refuse_quota(status, session->tenant, CKV_SLOT_FILES, 1, CKV_F_NONE);
        if (ckv_charge_init(&mapped->bytes_charge, session->tenant, CKV_SLOT_MAPPED_BYTES, bytes))
                return ckv_refuse_quota(status, session->tenant, CKV_SLOT_MAPPED_BYTES, bytes, CKV_F_REGION_SIZE);
        r = mapped->key.copied ? map_private(mapped)
                               : session->daemon->ops->map(session->daemon->backend, mapped->fd, mapped->key.offset, mapped->key.size,
                                                           mapped->key.writable, &mapped->mapping);
        if (r == -EACCES || r == -EPERM)
                return ckv_refuse(status, CKV_CODE_PERMISSION, CKV_F_REGION_ACCESS, CKV_D_MAP_FAILED, (uint64_t)-r, 0, 0);
        if (r)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_REGION_SIZE, CKV_D_MAP_FAILED, (uint64_t)-r, 0, 0);
        return true;
}

/* mapped_free() - give everything back; fine on a half-built one that is in no table */
static void mapped_free(struct ckv_mapped *mapped) {
        if (mapped->imported) {
                ckv_imported_close(mapped->imported);
                free(mapped);
                return;
        }
        if (mapped->mapping.base)
                mapped->daemon->ops->unmap(mapped->daemon->backend, &mapped->mapping);
        file_put(mapped->daemon, mapped->file);
        ckv_charge_deinit(&mapped->bytes_charge);
        ckv_closer_close(mapped->daemon, CKV_CLOSER_MEMORY, mapped->fd, &mapped->file_charge);
        free(mapped);
}

static bool mapped_new(struct ckv_session *session, int fd, const struct ckv_memfd_info *info, const struct ckv_mapped_key *key,
                       struct ckv_record_status *status, struct ckv_mapped **ret_mapped) {
        struct ckv_mapped *mapped = calloc(1, sizeof(*mapped));

        if (!mapped) {
                ckv_closer_close_received(session->tenant, CKV_CLOSER_MEMORY, fd);
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        }
        mapped->daemon = session->daemon;
        mapped->key = *key;
        mapped->fd = fd;
        mapped->file = file_get(session, info);
        if (!mapped->file) {
                mapped_free(mapped);
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        }
        if (!map_charged(session, mapped, status)) {
                mapped_free(mapped);
                return false;
        }
        HASH_ADD(hh, session->daemon->mapped, key, sizeof(mapped->key), mapped);
        if (!CKV_HASH_ADDED(mapped)) {
                mapped_free(mapped);
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        }
        *ret_mapped = mapped;
        return true;
}

bool ckv_mapped_get(struct ckv_session *session, int fd, const struct ckv_memfd_info *info, const struct ckv_record_region *body,
                    bool writable, struct ckv_record_status *ret_status, struct ckv_mapped **ret_mapped, bool *ret_shared) {
        struct ckv_mapped_key key = {
                .dev = info->dev, .ino = info->ino, .offset = body->offset, .size = body->size, .writable = writable,
                .copied = body->source == CKV_SOURCE_POSIX_SHM,
        };
        struct ckv_file *file, wanted = { .key = { info->dev, info->ino } };
        struct ckv_mapped *mapped;

        ckv_assert_loop_thread();
        HASH_FIND(hh, session->daemon->files, &wanted.key, sizeof(wanted.key), file);
        if (file && file->tenant != session->tenant) {
                (void)ckv_close(fd);    /* not the last one: nothing is freed */
                return ckv_refuse(ret_status, CKV_CODE_PERMISSION, CKV_F_REGION_MEMFD_TOKEN, CKV_D_FOREIGN_MEMORY, 0, 0, 0);
        }
        HASH_FIND(hh, session->daemon->mapped, &key, sizeof(key), mapped);
        if (mapped && ckv_mapped_lost(mapped))
                mapped = NULL;
        *ret_shared = mapped != NULL;
        if (mapped)
                (void)ckv_close(fd);    /* as above */
        else if (!mapped_new(session, fd, info, &key, ret_status, &mapped))
                return false;
        mapped->uses++;
        *ret_mapped = mapped;
        return true;
}

struct ckv_mapped *ckv_mapped_new_imported(struct ckv_daemon *daemon, struct ckv_imported *imported) {
        struct ckv_mapped *mapped = calloc(1, sizeof(*mapped));

        if (mapped) {
                mapped->daemon = daemon;
                mapped->imported = imported;
                mapped->fd = -1;
                mapped->uses = 1;
        }
        return mapped;
}

bool ckv_mapped_lost(struct ckv_mapped *mapped) {
        struct stat st;

        ckv_assert_loop_thread();
        if (mapped->imported)
                return false;
        if (mapped->lost)
                return true;
        if (mapped->key.copied) {
                if (!atomic_load_explicit(&mapped->mirror.lost, memory_order_relaxed) && fstat(mapped->fd, &st) == 0 &&
                    ckv_fits_u64(mapped->key.offset, mapped->key.size, (uint64_t)st.st_size))
                        return false;
        } else if (!ckv_guard_bad(mapped->mapping.guard) && fstat(mapped->fd, &st) == 0 &&
                   (uint64_t)st.st_blocks * 512 >= (uint64_t)st.st_size)
                return false;
        /* the same memory, filled and registered again, is mapped anew */
        mapped->lost = true;
        HASH_DELETE(hh, mapped->daemon->mapped, mapped);
        return true;
}

struct ckv_mapped *ckv_mapped_put(struct ckv_mapped *mapped) {
        if (!mapped)
                return NULL;
        ckv_assert_loop_thread();
        assert(mapped->uses > 0);
        if (--mapped->uses > 0)
                return NULL;
        if (!mapped->lost && !mapped->imported)
                HASH_DELETE(hh, mapped->daemon->mapped, mapped);
        mapped_free(mapped);
        return NULL;
}
