/*
 * accept4() of our own.  libzmq calls it through the dynamic linker, and a
 * definition in the executable comes first; so every connection is judged
 * before libzmq has allocated a byte for it, and running out of descriptors
 * (EMFILE, which aborts libzmq 4.3.4) never gets there: one descriptor is kept
 * spare, given up to take the connection off the queue, and taken again.
 *
 * A refused connection is closed at once.  libzmq hears ECONNABORTED, which it
 * takes for a peer that changed its mind.  Up to 64 of them are closed in one
 * call, so that a flood does not pay for libzmq's way back here each time.
 *
 * A connection counts until it is closed.  Nobody tells when libzmq closes
 * one, and nothing needs to: the kernel's cookie of a socket is never used
 * twice, so a descriptor whose cookie changed is free again.  That is looked
 * up for the connections of the one user who asks.
 *
 * The lock is held over each accept and each shutdown: while the main thread
 * compares a cookie and shuts down, no new connection can take the number.
 */
#include "daemon/gate/accept.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/macros.h"
#include "proto/access.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum {
        REFUSED_IN_ONE_CALL = 64,
        BUCKETS = 64,                   /* users whose rate is remembered; one that is full again is forgotten first */
};
#define INTERVAL_NSEC (CKV_NSEC_PER_SEC / CKV_ACCEPT_PER_SECOND)

struct entry {
        uint64_t cookie;                /* 0 = free */
        struct ckv_address address;
};

/* A token bucket as one time: when it will be full again. */
struct bucket {
        uint32_t uid;
        uint64_t full_nsec;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
        struct entry entries[CKV_ACCEPT_FDS];   /* by descriptor */
        struct bucket buckets[BUCKETS];
        struct ckv_record_access ranges[CKV_ACCESS_RANGES_MAX];
        uint32_t range_count, per_uid;       /* per_uid 0: not configured yet */
        uint64_t refused[CKV_REFUSED_N];
        int spare_fd, event_fd;
} state = { .spare_fd = -1, .event_fd = -1 };

static bool cookie_get(int fd, uint64_t *ret_cookie) {
        socklen_t size = sizeof(*ret_cookie);

        return getsockopt(fd, SOL_SOCKET, SO_COOKIE, ret_cookie, &size) == 0;
}

/* is_open() - is the connection of this entry still there? Forgets it if not. */
static bool is_open(int fd) {
        struct entry *entry = &state.entries[fd];
        uint64_t cookie;

        if (entry->cookie && (!cookie_get(fd, &cookie) || cookie != entry->cookie))
                entry->cookie = 0;
        return entry->cookie;
}

static uint32_t count_open(uint32_t uid) {
        uint32_t n = 0;

        for (int fd = 0; fd < CKV_ACCEPT_FDS; fd++)
                n += state.entries[fd].cookie && state.entries[fd].address.uid == uid && is_open(fd);
        return n;
}

/* bucket_find() - of this user; else the one that has been full for longest, which then stands for this user */
static struct bucket *bucket_find(uint32_t uid) {
        struct bucket *oldest = &state.buckets[0];

        for (int i = 0; i < BUCKETS; i++) {
                if (state.buckets[i].uid == uid && state.buckets[i].full_nsec)
                        return &state.buckets[i];
                if (state.buckets[i].full_nsec < oldest->full_nsec)
                        oldest = &state.buckets[i];
        }
        *oldest = (struct bucket){ .uid = uid };
        return oldest;
}

/* rate_take() - one token, if there is one */
static bool rate_take(uint32_t uid) {
        struct bucket *bucket = bucket_find(uid);
        uint64_t now = ckv_now_nsec(), full = CKV_MAX(bucket->full_nsec, now);

        if (full + INTERVAL_NSEC > now + CKV_ACCEPT_BURST * INTERVAL_NSEC)
                return false;
        bucket->full_nsec = full + INTERVAL_NSEC;
        return true;
}

/* judge() - may this connection stay? Return: CKV_REFUSED_N if so; then it is entered and *ret_first says whether its
 * user had no other. */
static enum ckv_refused judge(int fd, bool *ret_first) {
        struct ucred peer;
        socklen_t size = sizeof(peer);
        uint64_t cookie;
        uint32_t open, most = state.per_uid ? state.per_uid : (uint32_t)CKV_LIMIT_CONNECTIONS;

        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
                return CKV_REFUSED_ACCESS;
        if (!ckv_access_allows(state.ranges, state.range_count, peer.uid, peer.gid))
                return CKV_REFUSED_ACCESS;
        /* before the counting, which takes a system call for each connection of the user, so that a flood costs little */
        if (!rate_take(peer.uid))
                return CKV_REFUSED_RATE;
        if (fd >= CKV_ACCEPT_FDS || !cookie_get(fd, &cookie))
                return CKV_REFUSED_DESCRIPTORS;
        open = count_open(peer.uid);
        if (open >= most)
                return CKV_REFUSED_COUNT;
        state.entries[fd] = (struct entry){ cookie, { peer.uid, peer.gid, (uint32_t)peer.pid } };
        *ret_first = open == 0;
        return CKV_REFUSED_N;
}

/* spare_take() - any descriptor will do */
static void spare_take(void) {
        if (state.spare_fd < 0)
                state.spare_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

/* accept_out_of_descriptors() - take one connection off the queue and close it */
static int accept_out_of_descriptors(int listener) {
        int fd;

        if (state.spare_fd < 0) {
                /* somebody else took it: only waiting helps */
                errno = EAGAIN;
                return -1;
        }
        state.spare_fd = ckv_close(state.spare_fd);
        fd = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
                (void)close(fd);
                state.refused[CKV_REFUSED_DESCRIPTORS]++;
        }
        spare_take();
        return fd < 0 ? -1 : 0;
}

/* accept_one() - Return: a descriptor, -1 with errno of accept4(2), or -1 with ECONNABORTED for one that was refused */
static int accept_one(int listener, struct sockaddr *address, socklen_t *length, int flags) {
        enum ckv_refused refused;
        bool first = false;
        int fd;

        spare_take();
        fd = (int)syscall(SYS_accept4, listener, address, length, flags);
        if (fd < 0) {
                if ((errno == EMFILE || errno == ENFILE) && accept_out_of_descriptors(listener) == 0)
                        errno = ECONNABORTED;
                return -1;
        }
        refused = judge(fd, &first);
        if (refused == CKV_REFUSED_N) {
                if (first && state.event_fd >= 0)
                        (void)eventfd_write(state.event_fd, 1);
                return fd;
        }
        state.refused[refused]++;
        (void)close(fd);
        errno = ECONNABORTED;
        return -1;
}

/* __SOCKADDR_ARG: the parameter has to have the type of glibc's declaration */
_public_ int accept4(int listener, __SOCKADDR_ARG address, socklen_t *restrict length, int flags) {
        socklen_t room = length ? *length : 0;
        int fd = -1;

        (void)pthread_mutex_lock(&lock);
        for (int i = 0; i < REFUSED_IN_ONE_CALL; i++) {
                if (length)
                        *length = room;
                fd = accept_one(listener, address.__sockaddr__, length, flags);
                if (fd >= 0 || errno != ECONNABORTED)
                        break;
        }
        (void)pthread_mutex_unlock(&lock);
        return fd;
}

void ckv_accept_configure(const struct ckv_record_access *ranges, uint32_t count, uint32_t per_uid) {
        (void)pthread_mutex_lock(&lock);
        if (count > 0)
                memcpy(state.ranges, ranges, count * sizeof(*ranges));
        state.range_count = count;
        state.per_uid = per_uid;
        if (state.event_fd < 0)
                state.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        for (int fd = 0; fd < CKV_ACCEPT_FDS; fd++) {
                const struct ckv_address *peer = &state.entries[fd].address;

                if (is_open(fd) && !ckv_access_allows(state.ranges, count, peer->uid, peer->gid))
                        (void)shutdown(fd, SHUT_RDWR);
        }
        (void)pthread_mutex_unlock(&lock);
}

bool ckv_accept_allows(const struct ckv_address *address) {
        bool allowed;

        (void)pthread_mutex_lock(&lock);
        allowed = ckv_access_allows(state.ranges, state.range_count, address->uid, address->gid);
        (void)pthread_mutex_unlock(&lock);
        return allowed;
}

struct ckv_accept_key ckv_accept_find(int fd, const struct ckv_address *address) {
        struct ckv_accept_key key = { .fd = fd };

        if (fd < 0 || fd >= CKV_ACCEPT_FDS)
                return key;
        (void)pthread_mutex_lock(&lock);
        if (ckv_address_equal(&state.entries[fd].address, address))
                key.cookie = state.entries[fd].cookie;
        (void)pthread_mutex_unlock(&lock);
        return key;
}

bool ckv_accept_drop(struct ckv_accept_key key) {
        bool dropped;

        if (!key.cookie)
                return false;
        (void)pthread_mutex_lock(&lock);
        dropped = is_open(key.fd) && state.entries[key.fd].cookie == key.cookie && shutdown(key.fd, SHUT_RDWR) == 0;
        (void)pthread_mutex_unlock(&lock);
        return dropped;
}

int ckv_accept_event_fd(void) {
        return state.event_fd;
}

/* uid_add() - to the users of the record, once each, as far as there is room */
static void uid_add(struct ckv_record_stats *stats, uint32_t uid) {
        for (uint32_t i = 0; i < stats->uid_count; i++)
                if (stats->uids[i] == uid)
                        return;
        if (stats->uid_count < CKV_ARRAY_SIZE(stats->uids))
                stats->uids[stats->uid_count++] = uid;
}

void ckv_accept_look(struct ckv_record_stats *ret_stats) {
        eventfd_t ignored;

        (void)pthread_mutex_lock(&lock);
        if (state.event_fd >= 0)
                (void)eventfd_read(state.event_fd, &ignored);
        ret_stats->open = ret_stats->uid_count = 0;
        memset(ret_stats->uids, 0, sizeof(ret_stats->uids));
        for (int fd = 0; fd < CKV_ACCEPT_FDS; fd++)
                if (is_open(fd)) {
                        ret_stats->open++;
                        uid_add(ret_stats, state.entries[fd].address.uid);
                }
        for (int i = 0; i < CKV_REFUSED_N; i++)
                ret_stats->refused[i] = state.refused[i];
        (void)pthread_mutex_unlock(&lock);
}
