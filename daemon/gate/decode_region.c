/*
 * RegisterRegion: four kinds of source, one record.  The gate knows nothing of
 * memory; it looks at lengths and at sums.
 */
#include "daemon/gate/check.h"

#include "base/checked.h"
#include "base/limits.h"

#include <string.h>

enum { TOKEN_BYTES = 16, CUDA_HANDLE_BYTES = 64, SHM_DIGITS = 32 };

bool ckv_check_region_bytes(struct ckv_check *check, const Chunkkv__V1__RegisterRegion *region) {
        switch (region->source_case) {
        case CHUNKKV__V1__REGISTER_REGION__SOURCE_CUDA_IPC:
                if (!ckv_check_length(check, ckv_at(CKV_F_REGION_CUDA_HANDLE, 0, 0), &region->cuda_ipc->handle,
                                      CUDA_HANDLE_BYTES))
                        return false;
                break;
        case CHUNKKV__V1__REGISTER_REGION__SOURCE_MEMFD_TOKEN:
                if (!ckv_check_length(check, ckv_at(CKV_F_REGION_MEMFD_TOKEN, 0, 0), &region->memfd_token, TOKEN_BYTES))
                        return false;
                break;
        case CHUNKKV__V1__REGISTER_REGION__SOURCE_VMM_TOKENS:
                if (region->vmm_tokens.len % TOKEN_BYTES)
                        return ckv_check_refuse(check, CKV_CODE_BAD_MESSAGE, ckv_at(CKV_F_REGION_VMM_TOKENS, 0, 0),
                                                CKV_D_MULTIPLE, TOKEN_BYTES, region->vmm_tokens.len, 0);
                break;
        default:
                break;
        }
        if (region->device_uuid.len == 0)
                return true;
        return ckv_check_length(check, ckv_at(CKV_F_REGION_DEVICE_UUID, 0, 0), &region->device_uuid, 16);
}

/* parse_shm() - "/chunkkv-<uid>-<32 hexadecimal digits>" */
static bool parse_shm(const char *text, uint32_t *ret_uid, uint8_t ret_bytes[static SHM_DIGITS / 2]) {
        static const char prefix[] = "/chunkkv-";
        uint64_t uid = 0;
        const char *p;

        if (strncmp(text, prefix, sizeof(prefix) - 1) != 0)
                return false;
        p = text + sizeof(prefix) - 1;
        if (p[0] < '0' || p[0] > '9' || (p[0] == '0' && p[1] != '-'))
                return false;
        for (; *p >= '0' && *p <= '9'; p++) {
                uid = uid * 10 + (uint64_t)(*p - '0');
                if (uid > UINT32_MAX)
                        return false;
        }
        if (*p++ != '-' || strspn(p, "0123456789abcdef") != SHM_DIGITS || p[SHM_DIGITS])
                return false;
        for (size_t i = 0; i < SHM_DIGITS; i++) {
                int digit = p[i] <= '9' ? p[i] - '0' : p[i] - 'a' + 10;

                ret_bytes[i / 2] = (uint8_t)(i % 2 ? ret_bytes[i / 2] | digit : digit << 4);
        }
        *ret_uid = (uint32_t)uid;
        return true;
}

static bool check_cuda_ipc(struct ckv_check *check, const Chunkkv__V1__CudaIpc *ipc) {
        struct ckv_record_region *record = &check->out->record.body.region;

        if (!ckv_check_range(check, ckv_at(CKV_F_REGION_ALLOC_SIZE, 0, 0), ipc->alloc_size, 1, CKV_LIMIT_REGION_BYTES))
                return false;
        record->source = CKV_SOURCE_CUDA_IPC;
        record->alloc_size = ipc->alloc_size;
        memcpy(record->handle.cuda_handle, ipc->handle.data, CUDA_HANDLE_BYTES);
        return true;
}

static bool check_vmm(struct ckv_check *check, const ProtobufCBinaryData *tokens) {
        struct ckv_record_region *record = &check->out->record.body.region;
        void *to;

        if (!ckv_check_count(check, ckv_at(CKV_F_REGION_VMM_TOKENS, 0, 0), tokens->len / TOKEN_BYTES, 1,
                             CKV_LIMIT_VMM_TOKENS))
                return false;
        to = ckv_check_append(check, tokens->len);
        if (!to)
                return false;
        memcpy(to, tokens->data, tokens->len);
        record->source = CKV_SOURCE_CUDA_VMM;
        record->token_count = (uint32_t)(tokens->len / TOKEN_BYTES);
        return true;
}

static bool check_source(struct ckv_check *check, const Chunkkv__V1__RegisterRegion *region) {
        struct ckv_record_region *record = &check->out->record.body.region;

        switch (region->source_case) {
        case CHUNKKV__V1__REGISTER_REGION__SOURCE_CUDA_IPC:
                return check_cuda_ipc(check, region->cuda_ipc);
        case CHUNKKV__V1__REGISTER_REGION__SOURCE_MEMFD_TOKEN:
                record->source = CKV_SOURCE_MEMFD;
                memcpy(record->handle.memfd_token, region->memfd_token.data, TOKEN_BYTES);
                return true;
        case CHUNKKV__V1__REGISTER_REGION__SOURCE_VMM_TOKENS:
                return check_vmm(check, &region->vmm_tokens);
        case CHUNKKV__V1__REGISTER_REGION__SOURCE_POSIX_SHM:
                if (!parse_shm(region->posix_shm, &record->handle.posix_shm.uid, record->handle.posix_shm.hex))
                        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, ckv_at(CKV_F_REGION_POSIX_SHM, 0, 0),
                                                CKV_D_SHM_NAME, 0, 0, 0);
                record->source = CKV_SOURCE_POSIX_SHM;
                return true;
        default:
                return ckv_check_missing(check, ckv_at(CKV_F_REGION_SOURCE, 0, 0));
        }
}

bool ckv_check_region(struct ckv_check *check, const Chunkkv__V1__RegisterRegion *region) {
        struct ckv_record_region *record = &check->out->record.body.region;
        uint64_t end;

        if (!check_source(check, region) ||
            !ckv_check_range(check, ckv_at(CKV_F_REGION_SIZE, 0, 0), region->size, 1, CKV_LIMIT_REGION_BYTES))
                return false;
        if (!ckv_add_u64(region->offset, region->size, &end))
                return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, ckv_at(CKV_F_REGION_OFFSET, 0, 0), CKV_D_OVERFLOW,
                                        0, 0, 0);
        if (record->alloc_size > 0 && end > record->alloc_size)
                return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, ckv_at(CKV_F_REGION_SIZE, 0, 0),
                                        CKV_D_OUTSIDE_ALLOCATION, record->alloc_size, end, 0);
        if (region->device_uuid.len > 0) {
                record->has_device_uuid = 1;
                memcpy(record->device_uuid, region->device_uuid.data, sizeof(record->device_uuid));
        } else if (record->source == CKV_SOURCE_CUDA_IPC || record->source == CKV_SOURCE_CUDA_VMM) {
                return ckv_check_missing(check, ckv_at(CKV_F_REGION_DEVICE_UUID, 0, 0));
        }
        if (!ckv_check_enum(check, ckv_at(CKV_F_REGION_ACCESS, 0, 0), &chunkkv__v1__access__descriptor,
                            (int)region->access, true))
                return false;
        record->access = (uint32_t)region->access;
        record->offset = region->offset;
        record->size = region->size;
        record->buffer_id = region->buffer_id;
        return true;
}
