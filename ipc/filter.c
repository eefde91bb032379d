/*
 * seccomp filters by libseccomp, which knows the numbers and the peculiarities
 * of architectures and makes one program of many rules.  Calls of another
 * architecture's table (int 0x80, x32) end the process in any case: nothing
 * here makes them, and a filter by numbers would misread them.
 *
 * All threads get the filter at once, so it may be installed when threads of a
 * library run already; it is all or nothing.
 *
 * It does not look behind pointers: a path or a sockaddr is not for a filter
 * (ipc/landlock.c is for paths).
 */
#include "ipc/filter.h"

#include "base/error.h"

#include <errno.h>
#include <seccomp.h>
#include <sys/prctl.h>

static int rule_add(scmp_filter_ctx filter, const struct ckv_filter_call *call) {
        const uint32_t action = call->error ? SCMP_ACT_ERRNO(call->error) : SCMP_ACT_ALLOW;

        if (call->mask == 0)
                return seccomp_rule_add(filter, action, call->number, 0);
        return seccomp_rule_add(filter, action, call->number, 1,
                                SCMP_CMP64(call->argument, SCMP_CMP_MASKED_EQ, call->mask, call->value));
}

int ckv_filter_install(const struct ckv_filter_call *calls, size_t count, uint16_t otherwise) {
        scmp_filter_ctx filter;
        int r;

        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return ckv_error_origin(-errno);
        filter = seccomp_init(otherwise ? SCMP_ACT_ERRNO(otherwise) : SCMP_ACT_KILL_PROCESS);
        if (!filter)
                return ckv_error_origin(-ENOMEM);
        r = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
        r = r ? r : seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
        /* errors of the kernel as they are, not as ECANCELED */
        r = r ? r : seccomp_attr_set(filter, SCMP_FLTATR_API_SYSRAWRC, 1);
        for (size_t i = 0; !r && i < count; i++)
                r = rule_add(filter, &calls[i]);
        r = r ? r : seccomp_load(filter);
        seccomp_release(filter);
        return r < 0 ? ckv_error_origin(r) : 0;
}
