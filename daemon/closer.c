/*
 * close(2) can take as long as it likes.  A descriptor of a file system that
 * the tenant itself implements (FUSE) waits for that tenant's answer to FLUSH;
 * the last descriptor of an engine's memory frees all of its pages.  The loop
 * serves everybody, so it closes nothing that came from a client.
 *
 * What waits is bounded by charges: an unknown descriptor counts against its
 * user's FDS until close() has returned, and a user with too many gets none
 * accepted any more.  Descriptors of memory count as FILES, as those of regions
 * do.
 *
 * A closing thread touches the queue's own nodes and nothing else; charges are
 * given back by the loop, which an eventfd wakes.
 */
#include "daemon/closer.h"

#include "base/error.h"
#include "base/macros.h"
#include "daemon/daemon.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <utlist.h>

/* So many wait for a moment now and then; a user that merely offers too much is told so, and not cut off. */
enum { STUCK_MIN = 16 };

struct node {
        struct node *prev, *next;
        int fd;
        struct ckv_charge charge;       /* of the loop thread */
        struct ckv_tenant *unknown_of;  /* in CKV_CLOSER_UNKNOWN; held by the charge */
};

struct lane {
        pthread_mutex_t mutex;
        pthread_cond_t wake;
        struct node *queued, *closed;   /* lists, under mutex */
        struct node *closing;           /* in the hands of the thread, under mutex */
        bool stop;                      /* under mutex */
        int done_fd;
        pthread_t thread;
        bool started;
        sd_event_source *source;
};

struct ckv_closer {
        struct lane lanes[_CKV_CLOSER_N];
};

static void *lane_main(void *p) {
        struct lane *lane = p;

        (void)pthread_setname_np(pthread_self(), "ckv-close");
        (void)pthread_mutex_lock(&lane->mutex);
        for (;;) {
                struct node *node = lane->queued;

                if (!node) {
                        if (lane->stop)
                                break;
                        (void)pthread_cond_wait(&lane->wake, &lane->mutex);
                        continue;
                }
                DL_DELETE(lane->queued, node);
                lane->closing = node;
                (void)pthread_mutex_unlock(&lane->mutex);
                (void)ckv_close(node->fd);
                (void)pthread_mutex_lock(&lane->mutex);
                lane->closing = NULL;
                DL_APPEND(lane->closed, node);
                (void)eventfd_write(lane->done_fd, 1);
        }
        (void)pthread_mutex_unlock(&lane->mutex);
        return NULL;
}

/* node_free() - the charge goes back */
static void node_free(struct node *node) {
        if (node->unknown_of)
                node->unknown_of->closing--;
        ckv_charge_deinit(&node->charge);
        free(node);
}

/* reap() - what was closed is given back */
static void reap(struct lane *lane) {
        struct node *closed;
        eventfd_t ignored;

        (void)eventfd_read(lane->done_fd, &ignored);
        (void)pthread_mutex_lock(&lane->mutex);
        closed = ckv_steal(&lane->closed);
        (void)pthread_mutex_unlock(&lane->mutex);
        while (closed) {
                struct node *node = closed;

                DL_DELETE(closed, node);
                node_free(node);
        }
}

static int on_closed(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        (void)source;
        (void)fd;
        (void)revents;
        reap(userdata);
        return 0;
}

static int lane_start(struct ckv_daemon *daemon, struct lane *lane) {
        sigset_t all, before;
        int r;

        lane->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (lane->done_fd < 0)
                return ckv_error_origin(-errno);
        r = sd_event_add_io(daemon->event, &lane->source, lane->done_fd, EPOLLIN, on_closed, lane);
        if (r < 0)
                return ckv_error_origin(r);
        /* signals are the loop's */
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&lane->thread, NULL, lane_main, lane);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        lane->started = r == 0;
        return r ? ckv_error_origin(-r) : 0;
}

/* lane_stop() - what is queued is closed first. Return: false if the thread is stuck and keeps the lane. */
static bool lane_stop(struct lane *lane) {
        struct timespec until;
        struct node *node;
        bool ended = true;

        if (lane->started) {
                (void)pthread_mutex_lock(&lane->mutex);
                lane->stop = true;
                (void)pthread_cond_signal(&lane->wake);
                (void)pthread_mutex_unlock(&lane->mutex);
                (void)clock_gettime(CLOCK_REALTIME, &until);
                until.tv_sec++;
                ended = pthread_timedjoin_np(lane->thread, NULL, &until) == 0;
        }
        if (lane->done_fd >= 0)
                reap(lane);
        lane->source = sd_event_source_disable_unref(lane->source);
        if (!ended) {
                /* the process ends now, and its descriptors with it; only the accounts must be right */
                (void)pthread_mutex_lock(&lane->mutex);
                for (node = lane->queued; node; node = node->next)
                        ckv_charge_deinit(&node->charge);
                if (lane->closing)
                        ckv_charge_deinit(&lane->closing->charge);
                (void)pthread_mutex_unlock(&lane->mutex);
                (void)pthread_detach(lane->thread);
                return false;
        }
        (void)ckv_close(lane->done_fd);
        (void)pthread_cond_destroy(&lane->wake);
        (void)pthread_mutex_destroy(&lane->mutex);
        return true;
}

int ckv_closer_start(struct ckv_daemon *daemon) {
        struct ckv_closer *closer = calloc(1, sizeof(*closer));
        int r = 0;

        if (!closer)
                return ckv_error_origin(-ENOMEM);
        for (int i = 0; i < _CKV_CLOSER_N; i++) {
                closer->lanes[i].done_fd = -1;
                (void)pthread_mutex_init(&closer->lanes[i].mutex, NULL);
                (void)pthread_cond_init(&closer->lanes[i].wake, NULL);
        }
        daemon->closer = closer;
        for (int i = 0; i < _CKV_CLOSER_N && !r; i++)
                r = lane_start(daemon, &closer->lanes[i]);
        if (r)
                ckv_closer_stop(daemon);
        return r ? ckv_error_trace(r) : 0;
}

void ckv_closer_stop(struct ckv_daemon *daemon) {
        struct ckv_closer *closer = ckv_steal(&daemon->closer);
        bool ended = true;

        if (!closer)
                return;
        for (int i = 0; i < _CKV_CLOSER_N; i++)
                ended = lane_stop(&closer->lanes[i]) && ended;
        if (ended)
                free(closer);
}

void ckv_closer_close(struct ckv_daemon *daemon, enum ckv_closer_lane lane, int fd, struct ckv_charge *charge) {
        struct lane *to = daemon->closer ? &daemon->closer->lanes[lane] : NULL;
        struct node *node = to && fd >= 0 ? calloc(1, sizeof(*node)) : NULL;

        ckv_assert_loop_thread();
        if (!node) {
                (void)ckv_close(fd);
                if (charge)
                        ckv_charge_deinit(charge);
                return;
        }
        node->fd = fd;
        if (charge)
                ckv_charge_move(charge, &node->charge);
        if (lane == CKV_CLOSER_UNKNOWN && node->charge.tenant) {
                node->unknown_of = node->charge.tenant;
                node->unknown_of->closing++;
        }
        (void)pthread_mutex_lock(&to->mutex);
        DL_APPEND(to->queued, node);
        (void)pthread_cond_signal(&to->wake);
        (void)pthread_mutex_unlock(&to->mutex);
}

void ckv_closer_close_received(struct ckv_tenant *tenant, enum ckv_closer_lane lane, int fd) {
        struct ckv_charge charge = { 0 };

        if (fd < 0)
                return;
        ckv_charge_force(&charge, tenant, lane == CKV_CLOSER_MEMORY ? CKV_SLOT_FILES : CKV_SLOT_FDS, 1);
        ckv_closer_close(tenant->daemon, lane, fd, &charge);
}

bool ckv_closer_stuck(const struct ckv_tenant *tenant) {
        return tenant->closing >= STUCK_MIN && tenant->used[CKV_SLOT_FDS] >= tenant->limit[CKV_SLOT_FDS];
}
