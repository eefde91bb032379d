/*
 * RegisterRegion of device memory.  The loop checks and charges, the device
 * thread opens, and what came of it is answered when it is reaped.  Everything
 * that can fail for lack of memory is made before, so that an opened region
 * always finds its place.  Meanwhile the session goes on; should it end, or
 * the deadline pass, what was opened is closed again and no id given out.
 *
 * Closing is a message of its own, since OK of UnregisterRegion and EndSession
 * says that the engine may free the memory.  The charges go back with it.
 *
 * A handle belongs to the first user who registers it for as long as it is
 * open: it is a secret of its bearer, and another user who has it has seen what
 * it must not.  Handles are never logged and never sent back.
 *
 * What is not done here: whether the extent lies in the allocation, which only
 * the driver can tell (kernels/cuda_memory.c).
 */
#include "daemon/imported.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "daemon/answer.h"
#include "daemon/closer.h"
#include "daemon/daemon.h"
#include "daemon/engine.h"
#include "daemon/imported_status.h"
#include "daemon/mapped.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

#include <string.h>

enum { ACCESS_READ = 1, ACCESS_READ_WRITE = 2, TOKEN_BYTES = 16 };      /* Access of chunkkv.proto */

/* handle_get() - the handle, one use more; charged if it is not open yet. Return: NULL with @status. */
static struct ckv_handle *handle_get(struct ckv_session *session, const struct ckv_record_region *body, bool *ret_shared,
                                     struct ckv_record_status *status) {
        struct ckv_daemon *daemon = session->daemon;
        struct ckv_handle *handle;

        HASH_FIND(hh, daemon->handles, body->handle.cuda_handle, sizeof(handle->key), handle);
        *ret_shared = handle != NULL;
        if (handle && handle->charge.tenant != session->tenant) {
                ckv_refuse(status, CKV_CODE_PERMISSION, CKV_F_REGION_CUDA_HANDLE, CKV_D_FOREIGN_MEMORY, 0, 0, 0);
                return NULL;
        }
        if (!handle) {
                handle = calloc(1, sizeof(*handle));
                if (!handle) {
                        ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                        return NULL;
                }
                if (ckv_charge_init(&handle->charge, session->tenant, CKV_SLOT_DEVICE_BYTES, body->alloc_size)) {
                        free(handle);
                        ckv_refuse_quota(status, session->tenant, CKV_SLOT_DEVICE_BYTES, body->alloc_size, CKV_F_REGION_ALLOC_SIZE);
                        return NULL;
                }
                memcpy(handle->key, body->handle.cuda_handle, sizeof(handle->key));
                HASH_ADD(hh, daemon->handles, key, sizeof(handle->key), handle);
                if (!CKV_HASH_ADDED(handle)) {
                        ckv_charge_deinit(&handle->charge);
                        free(handle);
                        ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                        return NULL;
                }
        }
        handle->uses++;
        return handle;
}

static void handle_put(struct ckv_daemon *daemon, struct ckv_handle *handle) {
        if (!handle || --handle->uses > 0)
                return;
        HASH_DELETE(hh, daemon->handles, handle);
        ckv_charge_deinit(&handle->charge);
        free(handle);
}

/* close_pieces() - the descriptors; of an unknown kind, so away from the loop, each charged until that is done */
static void close_pieces(struct ckv_imported *imported) {
        struct ckv_tenant *tenant = imported->session->tenant;

        ckv_charge_deinit(&imported->files_charge);
        for (uint32_t i = 0; i < imported->import.fd_count; i++) {
                struct ckv_charge charge = { 0 };

                ckv_charge_force(&charge, tenant, CKV_SLOT_FILES, 1);
                ckv_closer_close(imported->daemon, CKV_CLOSER_UNKNOWN, imported->fds[i], &charge);
        }
        imported->import.fd_count = 0;
        free(imported->fds);
        free(imported->fd_bytes);
        imported->fds = NULL;
        imported->fd_bytes = NULL;
        imported->import.fds = NULL;
        imported->import.fd_bytes = NULL;
}

/* imported_free() - nothing is open any more, or was ever; the charges go back */
static void imported_free(struct ckv_imported *imported) {
        close_pieces(imported);
        handle_put(imported->daemon, imported->handle);
        ckv_charge_deinit(&imported->bytes_charge);
        free(imported);
}

/* hand_over() - to the device thread; ckv_imported_reaped() gets it back */
static void hand_over(struct ckv_imported *imported) {
        imported->session->import_count++;
        ckv_engine_import(imported->daemon, &imported->import);
}

void ckv_imported_close(struct ckv_imported *imported) {
        if (!imported)
                return;
        ckv_assert_loop_thread();
        imported->region = NULL;
        if (!imported->import.mapping.allocation) {
                imported_free(imported);
                return;
        }
        imported->import.kind = CKV_IMPORT_CLOSE;
        hand_over(imported);
}

/* ---- what is asked for */

/* check_body() - what does not depend on the source */
static bool check_body(const struct ckv_session *session, const struct ckv_record_region *body, struct ckv_record_status *status) {
        const struct ckv_backend_info *info = &session->daemon->backend_info;

        if (!body->has_device_uuid)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_REGION_DEVICE_UUID, CKV_D_MISSING, 0, 0, 0);
        if (memcmp(body->device_uuid, info->uuid, sizeof(info->uuid)) != 0)
                return ckv_refuse(status, CKV_CODE_DEVICE_MISMATCH, CKV_F_REGION_DEVICE_UUID, CKV_D_OTHER_DEVICE,
                                  ckv_half_uuid(body->device_uuid), ckv_half_uuid(info->uuid), 0);
        if (body->access != ACCESS_READ && body->access != ACCESS_READ_WRITE)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_REGION_ACCESS, CKV_D_ENUM, body->access, 0, 0);
        if (body->size == 0)
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_REGION_SIZE, CKV_D_AT_LEAST, 1, 0, 0);
        return true;
}

static bool take_handle(struct ckv_imported *imported, const struct ckv_record_region *body, struct ckv_record_status *status) {
        if (body->alloc_size == 0)
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_REGION_ALLOC_SIZE, CKV_D_AT_LEAST, 1, 0, 0);
        imported->handle = handle_get(imported->session, body, &imported->shared, status);
        imported->import.kind = CKV_IMPORT_IPC;
        imported->import.alloc_bytes = body->alloc_size;
        imported->import.buffer_id = body->buffer_id;
        memcpy(imported->import.handle, body->handle.cuda_handle, sizeof(imported->import.handle));
        return imported->handle != NULL;
}

/* take_piece() - the next descriptor that was offered */
static bool take_piece(struct ckv_imported *imported, const uint8_t token[static TOKEN_BYTES], uint64_t *sum,
                       struct ckv_record_status *status) {
        struct ckv_session *session = imported->session;
        uint32_t kind, i = imported->import.fd_count;
        int fd;

        if (!ckv_side_take(session->side, token, &fd, &kind, &imported->fd_bytes[i]))
                return ckv_refuse(status, CKV_CODE_NOT_FOUND, CKV_F_REGION_VMM_TOKENS, CKV_D_UNKNOWN_TOKEN, 0, 0, 0);
        imported->fds[i] = fd;
        imported->import.fd_count++;
        if (kind != CKV_SIDE_KIND_CUDA_VMM)
                return ckv_refuse(status, CKV_CODE_HANDLE_INVALID, CKV_F_REGION_VMM_TOKENS, CKV_D_CUDA_NO_HANDLE, 0, 0, 0);
        if (!ckv_add_u64(*sum, imported->fd_bytes[i], sum))
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_REGION_VMM_TOKENS, CKV_D_OVERFLOW, 0, 0, 0);
        return true;
}

static bool take_pieces(struct ckv_imported *imported, const struct ckv_record_region *body, const uint8_t *tokens, uint32_t bytes,
                        struct ckv_record_status *status) {
        struct ckv_tenant *tenant = imported->session->tenant;
        uint64_t sum = 0;

        if (body->token_count < 1 || body->token_count > CKV_LIMIT_VMM_TOKENS || (uint64_t)body->token_count * TOKEN_BYTES != bytes)
                return ckv_refuse(status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_INTERNAL, 0, 0, 0);
        if (!imported->session->side)
                return ckv_refuse(status, CKV_CODE_NOT_FOUND, CKV_F_REGION_VMM_TOKENS, CKV_D_NO_SIDE_CONNECTION, 0, 0, 0);
        imported->fds = calloc(body->token_count, sizeof(*imported->fds));
        imported->fd_bytes = calloc(body->token_count, sizeof(*imported->fd_bytes));
        if (!imported->fds || !imported->fd_bytes)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        for (uint32_t i = 0; i < body->token_count; i++)
                if (!take_piece(imported, tokens + (size_t)i * TOKEN_BYTES, &sum, status))
                        return false;
        /* the offers were charged for them until now */
        ckv_charge_force(&imported->files_charge, tenant, CKV_SLOT_FILES, body->token_count);
        if (ckv_charge_init(&imported->bytes_charge, tenant, CKV_SLOT_DEVICE_BYTES, sum))
                return ckv_refuse_quota(status, tenant, CKV_SLOT_DEVICE_BYTES, sum, CKV_F_REGION_VMM_TOKENS);
        imported->import.kind = CKV_IMPORT_VMM;
        imported->import.fds = imported->fds;
        imported->import.fd_bytes = imported->fd_bytes;
        return true;
}

bool ckv_imported_begin(struct ckv_session *session, const struct ckv_route *route, const struct ckv_record *record,
                        const uint8_t *attachment, uint32_t bytes, struct ckv_window_entry *entry,
                        struct ckv_record_status *ret_status) {
        const struct ckv_record_region *body = &record->body.region;
        struct ckv_imported *imported;

        ckv_assert_loop_thread();
        if (!check_body(session, body, ret_status))
                return false;
        imported = calloc(1, sizeof(*imported));
        if (!imported)
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        imported->daemon = session->daemon;
        imported->session = session;
        imported->import.owner = imported;
        imported->import.session = (uintptr_t)session;
        imported->import.offset = body->offset;
        imported->import.size = body->size;
        imported->import.writable = body->access == ACCESS_READ_WRITE;
        imported->deadline_nsec = record->head.deadline_ns;
        if (body->source == CKV_SOURCE_CUDA_IPC ? !take_handle(imported, body, ret_status)
                                                : !take_pieces(imported, body, attachment, bytes, ret_status)) {
                imported_free(imported);
                return false;
        }
        imported->region = ckv_region_new_imported(imported, ret_status);
        if (!imported->region) {
                imported_free(imported);
                return false;
        }
        imported->entry = entry;
        imported->route = *route;
        entry->imported = imported;
        hand_over(imported);
        return true;
}

/* ---- what came of it */

/* answer() - whoever waits, once */
static void answer(struct ckv_imported *imported, struct ckv_answer *text) {
        struct ckv_window_entry *entry = ckv_steal(&imported->entry);

        if (!entry)
                return;
        entry->imported = NULL;
        if (!imported->session->ending)
                ckv_answer_settle(imported->session, &imported->route, entry, text);
        ckv_answer_deinit(text);
}

static void answer_status(struct ckv_imported *imported, const struct ckv_record_status *status) {
        struct ckv_answer text;

        ckv_answer_init(&text, status);
        answer(imported, &text);
}

static void answer_region(struct ckv_imported *imported) {
        struct ckv_answer text;

        ckv_answer_init_ok(&text, CKV_ANSWER_REGION);
        text.record.body.result.u.region.region_id = imported->region->id;
        text.record.body.result.u.region.shared = imported->shared;
        answer(imported, &text);
}

/* opened() - the region goes into its session's table, or back */
static void opened(struct ckv_imported *imported) {
        uint64_t now = ckv_now_nsec();
        struct ckv_record_status status;
        bool good = imported->import.outcome == CKV_IMPORT_OK;

        ckv_refuse_cancelled(&status);  /* of a session that has ended meanwhile: nobody hears it */
        close_pieces(imported);
        if (!good)
                ckv_imported_status(&imported->import, &status);
        else if (now >= imported->deadline_nsec)
                good = ckv_refuse(&status, CKV_CODE_EXPIRED, CKV_F_DEADLINE, CKV_D_DEADLINE_PASSED,
                                  (now - imported->deadline_nsec) / CKV_NSEC_PER_USEC, 0, 0);
        if (good && !imported->session->ending && ckv_region_add_imported(imported->region, &status)) {
                answer_region(imported);
                imported->region = NULL;
                return;
        }
        answer_status(imported, &status);
        ckv_region_free(imported->region);
}

/* closed() - the engine may free the memory now */
static void closed(struct ckv_imported *imported) {
        struct ckv_answer text;

        if (imported->import.outcome == CKV_IMPORT_REFUSED)
                ckv_log(CKV_LOG_ERROR, DEVICE_CLOSE_FAILED, "uid=%u driver_code=%d", imported->session->peer.uid,
                        imported->import.driver_code);
        ckv_answer_init_ok(&text, CKV_ANSWER_NONE);
        answer(imported, &text);
        imported_free(imported);
}

void ckv_imported_reaped(struct ckv_import *import) {
        struct ckv_imported *imported = import->owner;
        struct ckv_session *session = imported->session;

        ckv_assert_loop_thread();
        session->import_count--;
        if (import->kind == CKV_IMPORT_CLOSE)
                closed(imported);
        else
                opened(imported);
        ckv_session_settle(session);
}

void ckv_imported_hung(struct ckv_imported *imported, const struct ckv_record_status *status) {
        answer_status(imported, status);
}

void ckv_imported_answer(struct ckv_imported *imported, const struct ckv_route *route, struct ckv_window_entry *entry) {
        imported->route = *route;
        imported->entry = entry;
        entry->imported = imported;
}
