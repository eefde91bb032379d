/*
 * Device memory behind a region: from RegisterRegion until the driver has let
 * go of it.  Opening and closing take the driver milliseconds, so both happen
 * on the device thread and are answered when they come back.
 */
#ifndef CKV_DAEMON_IMPORTED_H
#define CKV_DAEMON_IMPORTED_H

#include "base/hash.h"
#include "daemon/session.h"
#include "daemon/tenant.h"
#include "kernels/backend.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_region;
struct ckv_window_entry;

/* An allocation that is open by its handle: whose it is, and what it costs, however many regions lie in it. */
struct ckv_handle {
        uint8_t key[CKV_IMPORT_HANDLE_BYTES];
        uint32_t uses;                          /* of struct ckv_imported */
        struct ckv_charge charge;               /* DEVICE_BYTES of its user */
        UT_hash_handle hh;                      /* daemon->handles, by key */
};

struct ckv_imported {
        struct ckv_import import;               /* the backend's while it is inside */
        struct ckv_daemon *daemon;
        struct ckv_session *session;            /* counts in session->import_count while it is inside */
        struct ckv_region *region;              /* being registered: in no table yet */
        struct ckv_handle *handle;              /* IPC: counts one use */
        int *fds;                               /* VMM, while they are needed: [fd_count] of the import */
        uint64_t *fd_bytes;                     /* [fd_count] */
        struct ckv_charge bytes_charge, files_charge;   /* VMM: DEVICE_BYTES; FILES of fds */
        bool shared;                            /* the allocation was open already */
        uint64_t deadline_nsec;                 /* of the registration */
        struct ckv_window_entry *entry;         /* to be answered; NULL: nobody waits. entry->imported points back */
        struct ckv_route route;
};

/**
 * ckv_imported_begin() - REGISTER_REGION with device memory: check, charge, hand it to the device
 * @attachment: tokens of VMM memory
 * @entry: new in the session's window
 *
 * Return: true: it is answered later, and forgotten if the session ends before that; or false with @ret_status.
 */
bool ckv_imported_begin(struct ckv_session *session, const struct ckv_route *route, const struct ckv_record *record,
                        const uint8_t *attachment, uint32_t bytes, struct ckv_window_entry *entry,
                        struct ckv_record_status *ret_status);

/* ckv_imported_reaped() - the device is through with it: opened, refused or closed */
void ckv_imported_reaped(struct ckv_import *import);

/* ckv_imported_hung() - the device hangs with it: whoever waits is answered so, and nothing is given back */
void ckv_imported_hung(struct ckv_imported *imported, const struct ckv_record_status *status);

/* ckv_imported_close() - no region has it any more: the driver lets go of it, a moment later. NULL is fine. */
void ckv_imported_close(struct ckv_imported *imported);

/* ckv_imported_answer() - it is being closed: answer OK when that is done */
void ckv_imported_answer(struct ckv_imported *imported, const struct ckv_route *route, struct ckv_window_entry *entry);

#endif
