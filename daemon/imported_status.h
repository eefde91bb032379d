/*
 * What is said of device memory that could not be opened.
 */
#ifndef CKV_DAEMON_IMPORTED_STATUS_H
#define CKV_DAEMON_IMPORTED_STATUS_H

#include "kernels/backend.h"
#include "proto/records.h"

#include <stdint.h>

/* ckv_imported_status() - the outcome of an import that failed, as a status with field, sentence and driver_code */
void ckv_imported_status(const struct ckv_import *import, struct ckv_record_status *ret_status);

/* ckv_half_uuid() - the first 8 of the 16 bytes of a UUID, as {0u} of a sentence takes them */
uint64_t ckv_half_uuid(const uint8_t uuid[static 16]);

#endif
