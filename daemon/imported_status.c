/*
 * Errors of the driver as outcomes of a registration: kernels/cuda_errors.def
 * spelled with the codes and sentences of proto/.  A code that leaves the
 * context broken says DEVICE_ERROR to the one who met it, and the daemon ends
 * (daemon/device.c); every other one concerns this region alone.
 */
#include "daemon/imported_status.h"

#include "base/macros.h"
#include "daemon/refuse.h"
#include "kernels/cuda_types.h"

static const struct {
        int number;
        enum ckv_code code;
        enum ckv_detail detail;
} errors[] = {
#define ERROR(name, code, radius, detail) { CUDA_ERROR_##name, CKV_CODE_##code, CKV_D_##detail },
#include "kernels/cuda_errors.def"
#undef ERROR
};

/* refused() - the driver said no */
static void refused(const struct ckv_import *import, enum ckv_field field, struct ckv_record_status *status) {
        enum ckv_detail detail = CKV_D_CUDA_UNKNOWN;
        enum ckv_code code = CKV_CODE_INTERNAL;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(errors); i++)
                if (errors[i].number == import->driver_code) {
                        code = errors[i].code;
                        detail = errors[i].detail;
                }
        ckv_status_set(status, code, field, detail, (uint64_t)import->driver_code, 0, 0);
        status->driver_code = import->driver_code;
}

void ckv_imported_status(const struct ckv_import *import, struct ckv_record_status *ret_status) {
        bool pieces = import->kind == CKV_IMPORT_VMM;
        enum ckv_field field = pieces ? CKV_F_REGION_VMM_TOKENS : CKV_F_REGION_CUDA_HANDLE;

        switch (import->outcome) {
        case CKV_IMPORT_RANGE:
                ckv_refuse(ret_status, CKV_CODE_OUT_OF_RANGE, CKV_F_REGION_SIZE, CKV_D_OUTSIDE_ALLOCATION, import->found_bytes,
                           import->offset + import->size, 0);
                return;
        case CKV_IMPORT_SIZE:
                if (pieces)
                        ckv_refuse(ret_status, CKV_CODE_OUT_OF_RANGE, field, CKV_D_CUDA_GRANULE, import->found_bytes, 0, 0);
                else
                        ckv_refuse(ret_status, CKV_CODE_OUT_OF_RANGE, CKV_F_REGION_ALLOC_SIZE, CKV_D_CUDA_ALLOCATION,
                                   import->found_bytes, import->alloc_bytes, 0);
                return;
        case CKV_IMPORT_STALE:
                ckv_refuse(ret_status, CKV_CODE_HANDLE_STALE, CKV_F_REGION_BUFFER_ID, CKV_D_CUDA_STALE, 0, 0, 0);
                return;
        case CKV_IMPORT_REFUSED:
        case CKV_IMPORT_DEVICE_LOST:
                refused(import, field, ret_status);
                return;
        case CKV_IMPORT_OK:
        case CKV_IMPORT_NO_MEMORY:
                break;
        }
        ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
}

uint64_t ckv_half_uuid(const uint8_t uuid[static 16]) {
        uint64_t half = 0;

        for (int i = 0; i < 8; i++)
                half = half << 8 | uuid[i];
        return half;
}
