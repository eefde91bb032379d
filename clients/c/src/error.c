/*
 * Errors as the caller sees them.  Each error is born in one of three places:
 * here in the library (ckv__fault), in the daemon (ckv__refusal), or by the
 * daemon's death (ckv__core_died).  The cache state starts as CLEAN; only
 * compress.c knows better and overwrites it.
 */
#include "clients/c/src/client.h"
#include "proto/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static_assert(sizeof(((struct chunkkv_error *)NULL)->field) == CKV_STATUS_FIELD_MAX + 1, "room for any path");
static_assert(sizeof(((struct chunkkv_error *)NULL)->detail) == CKV_STATUS_DETAIL_MAX + 1, "room for any sentence");

const char *chunkkv_code_to_string(uint32_t code) {
        return ckv_code_to_string(code);
}

const char *chunkkv_cache_state_to_string(uint32_t state) {
        static const char *const names[] = {
                [CHUNKKV_CACHE_CLEAN] = "CLEAN", [CHUNKKV_CACHE_COMMITTED] = "COMMITTED", [CHUNKKV_CACHE_TORN] = "TORN",
                [CHUNKKV_CACHE_TORN_REPAIRABLE] = "TORN_REPAIRABLE", [CHUNKKV_CACHE_PENDING] = "PENDING",
        };

        return state < CKV_ARRAY_SIZE(names) ? names[state] : "?";
}

static const char *const slot_names[] = {
        [CHUNKKV_SLOT_CONNECTIONS] = "connections", [CHUNKKV_SLOT_SESSIONS] = "sessions",
        [CHUNKKV_SLOT_REGIONS] = "regions", [CHUNKKV_SLOT_MAPPED_BYTES] = "mapped_bytes",
        [CHUNKKV_SLOT_REQUESTS] = "requests", [CHUNKKV_SLOT_QUEUED_BYTES] = "queued_bytes",
        [CHUNKKV_SLOT_FDS] = "fds", [CHUNKKV_SLOT_DEVICE_TIME] = "device_time",
};

/* "QUOTA" of the daemon, "ETIMEDOUT" of the library */
static const char *error_name(const struct chunkkv_error *error) {
        const char *name = error->code ? chunkkv_code_to_string(error->code) : strerrorname_np(-error->error);

        return name ? name : "?";
}

size_t chunkkv_error_format(const struct chunkkv_error *error, char *ret_text, size_t size) {
        const char *slot = error->slot < CKV_ARRAY_SIZE(slot_names) ? slot_names[error->slot] : NULL;
        int n;

        n = snprintf(ret_text, size, "%s%s%s%s%s%s%s; the cache is %s",
                     error_name(error), slot ? " of " : "", slot ? slot : "",
                     error->field[0] ? ", " : "", error->field, error->detail[0] ? ": " : "", error->detail,
                     chunkkv_cache_state_to_string(error->cache));
        return n < 0 ? 0 : (size_t)n;
}

int ckv__fault(struct chunkkv_error *ret_error, int error, const char *field, const char *format, ...) {
        va_list args;

        if (!ret_error)
                return error;
        *ret_error = (struct chunkkv_error){ .error = error, .radius = CHUNKKV_RADIUS_REQUEST };
        (void)snprintf(ret_error->field, sizeof(ret_error->field), "%s", field);
        va_start(args, format);
        (void)vsnprintf(ret_error->detail, sizeof(ret_error->detail), format, args);
        va_end(args);
        return error;
}

int ckv__list_check(const void *list, size_t count, struct chunkkv_error *ret_error, const char *format, ...) {
        char field[sizeof(ret_error->field)];
        va_list args;

        if (list || count == 0)
                return 0;
        va_start(args, format);
        (void)vsnprintf(field, sizeof(field), format, args);
        va_end(args);
        return ckv__fault(ret_error, -EINVAL, field, "is NULL, with a count of %zu", count);
}

int ckv__refusal(struct chunkkv_error *ret_error, const Chunkkv__V1__Response *reply) {
        const Chunkkv__V1__Status *status = reply->status;

        if (!ret_error)
                return -EREMOTEIO;
        *ret_error = (struct chunkkv_error){
                .error = -EREMOTEIO,
                .code = (uint32_t)status->code,
                .radius = (uint32_t)status->radius,
                .cache = (uint32_t)status->cache,
                .slot = (uint32_t)status->slot,
                .retry_after_ms = status->retry_after_ms,
                .driver_code = status->driver_code,
                .request_id = reply->request_id,
        };
        (void)snprintf(ret_error->field, sizeof(ret_error->field), "%s", status->field);
        (void)snprintf(ret_error->detail, sizeof(ret_error->detail), "%s", status->detail);
        return -EREMOTEIO;
}

int ckv__core_died(struct chunkkv_error *ret_error, const char *tail) {
        (void)ckv__fault(ret_error, -EOWNERDEAD, "", "the daemon died%s", tail);
        if (ret_error)
                ret_error->radius = CHUNKKV_RADIUS_DAEMON;
        return -EOWNERDEAD;
}
