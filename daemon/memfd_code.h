/* What ipc/memfd.h finds wrong with a descriptor, as a code of the protocol. */
#ifndef CKV_DAEMON_MEMFD_CODE_H
#define CKV_DAEMON_MEMFD_CODE_H

#include "ipc/memfd.h"
#include "proto/status.h"

/* ckv_memfd_code() - of what ckv_memfd_check() returned */
static inline enum ckv_code ckv_memfd_code(int outcome) {
        switch (outcome) {
        case 0:
                return CKV_CODE_OK;
        case CKV_MEMFD_E_NOT_SEALED:
                return CKV_CODE_NOT_SEALED;
        case CKV_MEMFD_E_SIZE:
                return CKV_CODE_OUT_OF_RANGE;
        case CKV_MEMFD_E_SPARSE:
                return CKV_CODE_SPARSE;
        default:
                return CKV_CODE_HANDLE_INVALID;
        }
}

#endif
