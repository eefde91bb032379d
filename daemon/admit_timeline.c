/*
 * Where the timeline words of a request lie.  They are read and written by the
 * loop at any time while the request lives, so only mappings will do: memory
 * that is copied in and out has no moment at which a word changes.
 */
#include "daemon/admit.h"

#include "daemon/mapped.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

/* place() - address of one word, in a region that is then in use. Return: false with @status. */
static bool place(struct ckv_request *request, const struct ckv_record_slice *slice, enum ckv_field field, bool writes,
                  void **ret_word, struct ckv_record_status *status) {
        struct ckv_region *region;
        uint8_t *address;

        if (slice->region_id == 0)
                return true;
        if (!ckv_region_slice(request->session, slice, sizeof(uint64_t), field, status, &region, &address))
                return false;
        if (region->mapped->key.copied || region->mapping.on_device)
                return ckv_refuse(status, CKV_CODE_UNSUPPORTED, field, CKV_D_WORD_PLACE, region->id, 0, 0);
        if ((uintptr_t)address % sizeof(uint64_t))
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, field, CKV_D_UNALIGNED, sizeof(uint64_t), slice->offset, 0);
        if (writes && !region->writable)
                return ckv_refuse(status, CKV_CODE_PERMISSION, field, CKV_D_READ_ONLY, region->id, 0, 0);
        if (ckv_request_use_region(request, region))
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        *ret_word = address;
        return true;
}

bool ckv_admit_timeline(struct ckv_request *request, const struct ckv_compress_parts *parts, struct ckv_record_status *ret_status) {
        const struct ckv_record_timeline *timeline = parts->timeline;
        void *wait = NULL, *signal = NULL;

        if (!timeline || request->repairs)
                return true;
        if (!place(request, &timeline->wait, CKV_F_COMPRESS_WAIT, false, &wait, ret_status) ||
            !place(request, &timeline->signal, CKV_F_COMPRESS_SIGNAL, true, &signal, ret_status))
                return false;
        request->timeline = (struct ckv_timeline){
                .wait = wait, .signal = signal, .wait_value = timeline->wait_value, .signal_value = timeline->signal_value,
        };
        return true;
}
