/*
 * Reading who may connect.  A list that is empty, a range the wrong way round
 * or a name that the system does not know ends the start: what is meant to
 * keep people out must not be guessed at.
 *
 * Names are looked up once.  A group stands for its number, not for its
 * members: the kernel tells the group a process runs under, and that is
 * compared.
 */
#include "daemon/access.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The highest id; the next one stands for "no id" in many calls. */
#define ID_MAX UINT32_C(0xfffffffe)

/* id_parse() - digits, nothing before them. *@text is moved behind them. */
static bool id_parse(const char **text, uint32_t *ret_id) {
        unsigned long long value;
        char *end;

        if (!isdigit((unsigned char)**text))
                return false;
        errno = 0;
        value = strtoull(*text, &end, 10);
        if (errno || value > ID_MAX)
                return false;
        *text = end;
        *ret_id = (uint32_t)value;
        return true;
}

/* name_find() - the number of a user or group by name */
static bool name_find(const char *name, enum ckv_access_kind kind, uint32_t *ret_id) {
        if (kind == CKV_ACCESS_UID) {
                const struct passwd *user = getpwnam(name);

                if (user)
                        *ret_id = user->pw_uid;
                return user != NULL;
        } else {
                const struct group *group = getgrnam(name);

                if (group)
                        *ret_id = group->gr_gid;
                return group != NULL;
        }
}

/* item_parse() - one number, range or name */
static bool item_parse(const char *item, enum ckv_access_kind kind, struct ckv_record_access *ret_range) {
        struct ckv_record_access range = { .kind = kind };
        const char *at = item;

        if (isdigit((unsigned char)*at)) {
                if (!id_parse(&at, &range.first))
                        return false;
                range.last = range.first;
                if (*at == '-') {
                        at++;
                        if (!id_parse(&at, &range.last))
                                return false;
                }
                if (*at != '\0' || range.last < range.first)
                        return false;
        } else {
                if (*item == '\0' || !name_find(item, kind, &range.first))
                        return false;
                range.last = range.first;
        }
        *ret_range = range;
        return true;
}

/* list_parse() - the items of one list, [length] characters, behind those that are there. Return: 0, or -EINVAL with a sentence. */
static int list_parse(const char *list, size_t length, enum ckv_access_kind kind, struct ckv_access *access,
                      char why[static CKV_ACCESS_WHY_BYTES]) {
        const char *what = kind == CKV_ACCESS_UID ? "uid" : "gid";

        for (const char *at = list, *end = list + length;; at++) {
                size_t n = strcspn(at, ",:");
                char item[64];

                if (access->count == CKV_ACCESS_RANGES_MAX) {
                        (void)snprintf(why, CKV_ACCESS_WHY_BYTES, "lists more than %d users and groups", CKV_ACCESS_RANGES_MAX);
                        return -EINVAL;
                }
                (void)snprintf(item, sizeof(item), "%.*s", (int)n, at);
                if (n >= sizeof(item) || !item_parse(item, kind, &access->ranges[access->count])) {
                        (void)snprintf(why, CKV_ACCESS_WHY_BYTES,
                                       "has \"%s\" in %s=, which is no number, range of numbers or name of a %s", item, what,
                                       kind == CKV_ACCESS_UID ? "user" : "group");
                        return -EINVAL;
                }
                access->count++;
                at += n;
                if (at == end)
                        return 0;
        }
}

int ckv_access_parse(const char *text, struct ckv_access *ret_access, char ret_why[static CKV_ACCESS_WHY_BYTES]) {
        struct ckv_access access = { .count = 0 };
        bool seen[CKV_ACCESS_GID + 1] = { false };

        while (*text) {
                enum ckv_access_kind kind = strncmp(text, ":uid=", 5) == 0 ? CKV_ACCESS_UID : CKV_ACCESS_GID;
                size_t length;
                int r;

                if ((kind == CKV_ACCESS_GID && strncmp(text, ":gid=", 5) != 0) || seen[kind]) {
                        (void)snprintf(ret_why, CKV_ACCESS_WHY_BYTES, "must be NAME[:uid=LIST][:gid=LIST], each list once");
                        return -EINVAL;
                }
                seen[kind] = true;
                text += 5;
                length = strcspn(text, ":");
                r = list_parse(text, length, kind, &access, ret_why);
                if (r)
                        return r;
                text += length;
        }
        *ret_access = access;
        return 0;
}
