/*
 * One rule in one place, because two processes apply it: the gate, so that a
 * stranger costs an accept and nothing else, and the core, because a gate that
 * was taken over applies nothing.
 *
 * User and group are alternatives, not conditions: "uid=1000:gid=inference" is
 * user 1000 and all of the group.  Supplementary groups do not count, since
 * SO_PEERCRED does not tell them; a service runs under its group, or is named
 * by its user.
 */
#include "proto/access.h"

bool ckv_access_allows(const struct ckv_record_access *ranges, uint32_t count, uint32_t uid, uint32_t gid) {
        for (uint32_t i = 0; i < count; i++) {
                uint32_t id = ranges[i].kind == CKV_ACCESS_UID ? uid : gid;

                if (id >= ranges[i].first && id <= ranges[i].last)
                        return true;
        }
        return count == 0;
}

bool ckv_access_valid(const struct ckv_record_access *ranges, uint32_t count) {
        for (uint32_t i = 0; i < count; i++)
                if ((ranges[i].kind != CKV_ACCESS_UID && ranges[i].kind != CKV_ACCESS_GID) || ranges[i].first > ranges[i].last ||
                    ranges[i].zero)
                        return false;
        return count <= CKV_ACCESS_RANGES_MAX;
}
