/*
 * A new daemon in place of one that died.  Nothing happens in the background:
 * the next call that needs a daemon finds the old one dead, ends what still
 * waits for it, and goes on as soon as another serves the endpoint.
 *
 * Whoever comes meanwhile waits in ckv__lock() for the same daemon.
 */
#include "clients/c/src/control.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>

#define RETRY_NSEC (20 * CKV_NSEC_PER_MSEC)
/* For one try: a daemon that is starting accepts a connection before it answers. */
#define TRY_NSEC CKV_NSEC_PER_SEC

bool ckv__core_is_dead(struct chunkkv_client *client) {
        struct pollfd item = { .fd = client->core_pidfd, .events = POLLIN };

        if (!client->dead && client->core_pidfd >= 0 && poll(&item, 1, 0) > 0)
                client->dead = true;
        return client->dead;
}

/* Requests to the dead daemon get no answer any more; and nobody may sleep on its descriptors. */
static void end_waits(struct chunkkv_client *client) {
        for (struct ckv__request *request = client->requests; request; request = request->next)
                request->orphan = true;
        (void)pthread_cond_broadcast(&client->news);
        while (client->polling) {
                (void)eventfd_write(client->wake_fd, 1);
                (void)pthread_cond_wait(&client->news, &client->mutex);
        }
}

/* Jobs that nobody waits for, as after a timeout: see how they ended, or end them. */
static void settle(struct chunkkv_client *client) {
        struct ckv__writing *next;
        uint32_t cache;

        for (struct ckv__writing *writing = client->writings; writing; writing = next) {
                next = writing->next;
                if (writing->waited_for || writing->selected || writing->ticket.number == 0)
                        continue;
                (void)ckv__writing_recover(client, writing, !client->no_roll_forward, NULL, &cache, NULL);
                writing->torn = cache == CHUNKKV_CACHE_TORN_REPAIRABLE;
                if (!writing->torn)
                        (void)ckv__writing_free(client, writing);
        }
}

static int again(struct chunkkv_client *client, uint64_t deadline_nsec, struct chunkkv_error *ret_error) {
        const struct timespec pause = { .tv_nsec = (long)RETRY_NSEC };
        uint64_t now;
        int r;

        for (;;) {
                client->dead = false;
                r = ckv__session_begin(client, CKV_MIN(deadline_nsec, ckv_now_nsec() + TRY_NSEC), ret_error);
                if (r == 0)
                        return 0;
                ckv__session_drop(client);
                client->dead = true;
                now = ckv_now_nsec();
                if (now >= deadline_nsec || deadline_nsec - now < RETRY_NSEC)
                        return ckv__core_died(ret_error, ", and no other has come in time");
                (void)nanosleep(&pause, NULL);
        }
}

/* What cannot be registered again has no number with the new daemon, which says so when it is used. */
static void register_all(struct chunkkv_client *client, uint64_t deadline_nsec) {
        for (struct ckv__region *region = client->regions; region; region = region->next) {
                region->id = 0;
                (void)ckv__region_send(client, region, deadline_nsec, &region->id, NULL);
        }
        for (struct ckv__cache *cache = client->caches; cache; cache = cache->next) {
                Chunkkv__V1__RegisterCache *body = chunkkv__v1__register_cache__unpack(NULL, cache->size, cache->bytes);

                cache->id = 0;
                if (!body)
                        continue;
                (void)ckv__cache_send(client, body, deadline_nsec, &cache->id, NULL, NULL);
                chunkkv__v1__register_cache__free_unpacked(body, NULL);
        }
}

int ckv__revive(struct chunkkv_client *client, uint64_t deadline_nsec, struct chunkkv_error *ret_error) {
        int r;

        if (!ckv__core_is_dead(client))
                return 0;
        client->reviving = true;        /* from here on this thread lets go of the mutex now and then */
        end_waits(client);
        settle(client);
        ckv__session_drop(client);
        r = again(client, deadline_nsec, ret_error);
        if (r == 0)
                register_all(client, deadline_nsec);
        client->reviving = false;
        (void)pthread_cond_broadcast(&client->news);
        return r;
}
