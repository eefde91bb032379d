/*
 * Peer-Address of libzmq.  For ipc:// libzmq 4.3.4 fills it from SO_PEERCRED
 * as "localhost:uid:gid:pid", and a peer cannot overwrite it; but no manual
 * promises that form.  So it is parsed strictly, and whatever looks different
 * is treated as a message without a sender.  A test runs against the installed
 * library.
 */
#include "daemon/gate/address.h"

#include <string.h>

/* take_number() - ":" and a decimal number; *text moves past it */
static bool take_number(const char **text, uint32_t *ret_number) {
        const char *p = *text;
        uint64_t number = 0;

        if (*p++ != ':' || *p < '0' || *p > '9')
                return false;
        if (p[0] == '0' && p[1] >= '0' && p[1] <= '9')
                return false;
        for (; *p >= '0' && *p <= '9'; p++) {
                number = number * 10 + (uint64_t)(*p - '0');
                if (number > UINT32_MAX)
                        return false;
        }
        *text = p;
        *ret_number = (uint32_t)number;
        return true;
}

bool ckv_address_parse(const char *text, struct ckv_address *ret_address) {
        static const char host[] = "localhost";
        struct ckv_address address;

        if (!text || strncmp(text, host, sizeof(host) - 1) != 0)
                return false;
        text += sizeof(host) - 1;
        if (!take_number(&text, &address.uid) || !take_number(&text, &address.gid) ||
            !take_number(&text, &address.pid) || *text)
                return false;
        *ret_address = address;
        return true;
}
