/*
 * Supervising the gate of one endpoint.
 *
 * At most 64 records of a gate are taken in one turn of the loop, so that one
 * endpoint cannot starve another: the descriptor stays readable and the loop
 * comes back.  The first breach of the record protocol ends the process.
 *
 * What cannot be sent now waits in the channel's queue.  It holds answers to
 * requests that were admitted, and so is bounded by what the tenants of the
 * endpoint may have in flight; a gate that lets more than 64 MiB pile up reads
 * nothing and is killed.  A full ring has no event of its own: the gate says
 * in each record how far it has read, and a ping makes it send one.
 *
 * Restarts are never given up, because making us give up would be an
 * attacker's goal; five deaths within 10 s slow them down to one a second.
 */
#include "daemon/gate_link.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/gate_channel.h"
#include "daemon/gate_spawn.h"
#include "daemon/gate_stats.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/wait.h>

#define RECORDS_PER_TURN 64
#define QUEUE_MAX_BYTES (UINT64_C(64) << 20)
#define TICK_USEC UINT64_C(1000000)                     /* one ping each */
#define PONG_WAIT_NSEC (3 * CKV_NSEC_PER_SEC)
#define DEATHS_N 5
#define DEATHS_WINDOW_NSEC (10 * CKV_NSEC_PER_SEC)
#define RESTART_SLOW_USEC UINT64_C(1000000)
#define LEAVE_WAIT_MSEC 1000

struct ckv_gate_link {
        struct ckv_daemon *daemon;
        struct ckv_endpoint *endpoint;
        struct ckv_gate_process process;
        struct ckv_gate_channel channel;
        uint64_t incarnation;                   /* counts gates that were started; 1 is the first */
        sd_event_source *pair_source, *exit_source, *tick_source, *restart_source;
        uint64_t waiting_since_nsec;            /* oldest ping without a pong; 0 = none */
        uint64_t ticked_nsec;                   /* when on_tick() ran last */
        bool ready;
        struct ckv_gate_stats stats;
        uint64_t deaths, died_nsec[DEATHS_N];   /* died_nsec[n % DEATHS_N]: of death n, from 0 */
        uint8_t *attachment;                    /* [CKV_ATTACHMENT_MAX_BYTES] of the record at hand; of malloc, so aligned */
};

static bool connected(const struct ckv_gate_link *link) {
        return link->process.pair_fd >= 0;
}

/* hang_up() - the gate is done for: nothing more is sent or heard; its process is still to be reaped */
static void hang_up(struct ckv_gate_link *link) {
        link->pair_source = sd_event_source_disable_unref(link->pair_source);
        ckv_gate_channel_deinit(&link->channel);
        ckv_gate_process_hang_up(&link->process);
        link->waiting_since_nsec = 0;
}

void ckv_gate_link_kill(struct ckv_gate_link *link, const char *why) {
        if (!connected(link))
                return;
        ckv_log(CKV_LOG_ERROR, GATE_KILLED, "endpoint=%s pid=%d why=\"%s\"", link->endpoint->name, (int)link->process.pid, why);
        ckv_gate_process_kill(&link->process);
        hang_up(link);
}

bool ckv_gate_link_ready(const struct ckv_gate_link *link) {
        return link->ready;
}

uint64_t ckv_gate_link_deaths(const struct ckv_gate_link *link) {
        return link->deaths;
}

/* ping() - ask for a sign of life; where there is no room for it, a gate that does not read cannot answer either */
static void ping(struct ckv_gate_link *link) {
        const struct ckv_record record = { .head.type = CKV_RECORD_GATE_PING };

        (void)ckv_gate_channel_pass(&link->channel, &record);
        if (link->waiting_since_nsec == 0)
                link->waiting_since_nsec = ckv_now_nsec();
}

/* flush() - send what waits, and arrange to be called when more can go */
static void flush(struct ckv_gate_link *link) {
        int r = ckv_gate_channel_flush(&link->channel);

        if (r < 0 || r == CKV_GATE_CHANNEL_E_CLOSED) {
                /* dying; on_exit_event() says so. A gate that closed its pair and lives on is of no use. */
                ckv_gate_process_kill(&link->process);
                hang_up(link);
                return;
        }
        if (r == CKV_GATE_CHANNEL_E_RING_FULL && link->waiting_since_nsec == 0)
                ping(link);
        (void)sd_event_source_set_io_events(link->pair_source, EPOLLIN | (r == CKV_GATE_CHANNEL_E_SOCKET_FULL ? EPOLLOUT : 0u));
}

int ckv_gate_link_send(struct ckv_gate_link *link, uint64_t incarnation, const struct ckv_record *record, const void *attachment,
                       size_t bytes) {
        int r;

        ckv_assert_loop_thread();
        if (incarnation != link->incarnation || !connected(link))
                return 0;
        r = ckv_gate_channel_queue(&link->channel, record, attachment, bytes);
        if (r)
                return ckv_error_trace(r);
        flush(link);
        if (connected(link) && link->channel.queued_bytes > QUEUE_MAX_BYTES)
                ckv_gate_link_kill(link, "does not take its answers");
        return 0;
}

/* record_take() - one record of the gate. Return: false when there is no next one to try. */
static bool record_take(struct ckv_gate_link *link) {
        struct ckv_record record;
        const char *breach;
        int r;

        r = ckv_gate_channel_recv(&link->channel, &record, link->attachment, &breach);
        if (r == CKV_GATE_CHANNEL_E_EMPTY)
                return false;
        if (r == CKV_GATE_CHANNEL_E_BREACH) {
                ckv_gate_link_kill(link, breach);
                return false;
        }
        if (r) {
                ckv_gate_process_kill(&link->process);
                hang_up(link);
                return false;
        }
        if (record.head.type == CKV_RECORD_PONG) {
                link->waiting_since_nsec = 0;
                link->ready = true;
        } else if (record.head.type == CKV_RECORD_STATS) {
                if (!ckv_gate_stats_take(&link->stats, link->endpoint->name, &record.body.stats))
                        ckv_gate_link_kill(link, "impossible counts");
        } else {
                /* GONE names nobody */
                if (record.head.type != CKV_RECORD_GONE)
                        ckv_gate_stats_note(&link->stats, record.head.uid);
                ckv_dispatch_record(link->endpoint, link->incarnation, &record, link->attachment, record.head.ring_bytes);
        }
        return connected(link);
}

static int on_pair(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        struct ckv_gate_link *link = userdata;

        (void)source;
        (void)fd;
        (void)revents;
        for (int i = 0; i < RECORDS_PER_TURN && record_take(link); i++)
                ;
        if (!connected(link))
                return 0;
        /* there may be room now: in the socket, or in the ring, as the records just taken said */
        flush(link);
        /* no answer has told the gate for a while that its own ring is free again */
        if (connected(link) && ckv_gate_channel_unreported(&link->channel) >= CKV_RING_BYTES / 4)
                ping(link);
        return 0;
}

static int on_tick(sd_event_source *source, uint64_t usec, void *userdata) {
        struct ckv_gate_link *link = userdata;
        uint64_t now = ckv_now_nsec();

        (void)usec;
        /* if it was this process that slept, the answer may lie in the socket */
        if (link->waiting_since_nsec && now - link->ticked_nsec > 2 * CKV_NSEC_PER_SEC)
                link->waiting_since_nsec = now;
        link->ticked_nsec = now;

        if (connected(link)) {
                if (link->waiting_since_nsec && now - link->waiting_since_nsec >= PONG_WAIT_NSEC)
                        ckv_gate_link_kill(link, "no answer to GATE_PING for 3 s");
                else
                        ping(link);
        }
        (void)sd_event_source_set_time_relative(source, TICK_USEC);
        return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

/* note_death() - count it, and arm the timer for the next gate */
static void note_death(struct ckv_gate_link *link) {
        uint64_t now = ckv_now_nsec();
        bool slow;

        link->died_nsec[link->deaths % DEATHS_N] = now;
        link->deaths++;
        /* the slot to be written next holds the oldest of the last DEATHS_N */
        slow = link->deaths >= DEATHS_N && now - link->died_nsec[link->deaths % DEATHS_N] < DEATHS_WINDOW_NSEC;
        (void)sd_event_source_set_time_relative(link->restart_source, slow ? RESTART_SLOW_USEC : 0);
        (void)sd_event_source_set_enabled(link->restart_source, SD_EVENT_ONESHOT);
}

static int on_exit_event(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        struct ckv_gate_link *link = userdata;
        char uids[CKV_GATE_UIDS_TEXT];
        pid_t pid = link->process.pid;
        int status;

        (void)source;
        (void)fd;
        (void)revents;
        /* what the gate sent before it died is not heard: its connections are gone, and clients repeat */
        hang_up(link);
        link->exit_source = sd_event_source_disable_unref(link->exit_source);
        if (!ckv_gate_process_reap(&link->process, 0, &status))
                return 0;
        note_death(link);
        ckv_log(CKV_LOG_WARNING, GATE_DIED, "endpoint=%s pid=%d %s=%d deaths=%" PRIu64 " uids=%s", link->endpoint->name, (int)pid,
                WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), link->deaths,
                ckv_gate_stats_uids(&link->stats, uids));
        return 0;
}

/* queue_limits() - the first record to each gate */
static int queue_limits(struct ckv_gate_link *link) {
        const struct ckv_options *options = link->daemon->options;
        const struct ckv_access *access = &link->endpoint->access;
        struct ckv_record record = { .head.type = CKV_RECORD_LIMITS };

        record.body.limits = (struct ckv_record_limits){
                .request_bytes = (uint32_t)options->request_bytes,
                .reply_bytes = (uint32_t)options->reply_bytes,
                .message_parts = (uint32_t)CKV_LIMIT_MESSAGE_PARTS,
                .connections_per_uid = (uint32_t)options->connections,
                .spans = (uint32_t)CKV_LIMIT_SPANS,
                .groups = (uint32_t)CKV_LIMIT_GROUPS,
                .planes = (uint32_t)CKV_LIMIT_PLANES,
                .rows = (uint32_t)options->rows,
        };
        memcpy(record.body.limits.boot_id, link->daemon->boot_id, sizeof(link->daemon->boot_id));
        record.body.limits.access_count = access->count;
        return ckv_error_trace(ckv_gate_channel_queue(&link->channel, &record, access->ranges,
                                                      access->count * sizeof(access->ranges[0])));
}

/* gate_start() - a new process, a new channel, a new incarnation */
static int gate_start(struct ckv_gate_link *link) {
        struct ckv_gate_process *process = &link->process;
        int r, status;

        r = ckv_gate_process_spawn(link->daemon->options->gate, link->endpoint->name, link->daemon->options->sandbox,
                                   link->endpoint->stream_fd, process);
        if (r)
                return ckv_error_trace(r);
        link->incarnation++;
        ckv_gate_stats_reset(&link->stats);
        ckv_gate_channel_init(&link->channel, process->pair_fd, &process->to_core, &process->to_gate);
        r = sd_event_add_io(link->daemon->event, &link->pair_source, process->pair_fd, EPOLLIN, on_pair, link);
        if (r >= 0)
                r = sd_event_add_io(link->daemon->event, &link->exit_source, process->pidfd, EPOLLIN, on_exit_event, link);
        if (r >= 0)
                r = queue_limits(link);
        if (r < 0) {
                ckv_gate_process_kill(process);
                hang_up(link);
                link->exit_source = sd_event_source_disable_unref(link->exit_source);
                (void)ckv_gate_process_reap(process, -1, &status);
                return ckv_error_origin(r);
        }
        ckv_log(CKV_LOG_INFO, GATE_STARTED, "endpoint=%s pid=%d incarnation=%" PRIu64, link->endpoint->name, (int)process->pid,
                link->incarnation);
        flush(link);
        if (connected(link))
                ping(link);
        return 0;
}

static int on_restart(sd_event_source *source, uint64_t usec, void *userdata) {
        struct ckv_gate_link *link = userdata;
        int r;

        (void)source;
        (void)usec;
        r = gate_start(link);
        if (r) {
                note_death(link);
                ckv_log(CKV_LOG_ERROR, GATE_FAILED, "endpoint=%s path=\"%s\" errno=%d why=\"%s\" deaths=%" PRIu64,
                        link->endpoint->name, link->daemon->options->gate, -r, strerror(-r), link->deaths);
        }
        return 0;
}

/* timers_add() - one for pings, always on; one for restarts, armed by a death */
static int timers_add(struct ckv_gate_link *link) {
        sd_event *event = link->daemon->event;
        int r;

        r = sd_event_add_time_relative(event, &link->tick_source, CLOCK_MONOTONIC, TICK_USEC, 1000, on_tick, link);
        if (r >= 0)
                r = sd_event_add_time_relative(event, &link->restart_source, CLOCK_MONOTONIC, 0, 1000, on_restart, link);
        if (r >= 0)
                r = sd_event_source_set_enabled(link->restart_source, SD_EVENT_OFF);
        link->ticked_nsec = ckv_now_nsec();
        return r < 0 ? ckv_error_origin(r) : 0;
}

int ckv_gate_link_new(struct ckv_daemon *daemon, struct ckv_endpoint *endpoint, struct ckv_gate_link **ret_link) {
        struct ckv_gate_link *link;
        int r = -ENOMEM;

        ckv_assert_loop_thread();
        link = calloc(1, sizeof(*link));
        if (!link)
                return ckv_error_origin(-ENOMEM);
        link->daemon = daemon;
        link->endpoint = endpoint;
        link->process = CKV_GATE_PROCESS_NONE;
        link->attachment = malloc(CKV_ATTACHMENT_MAX_BYTES);
        if (link->attachment)
                r = timers_add(link);
        if (!r)
                r = gate_start(link);
        if (r) {
                ckv_gate_link_free(link);
                return ckv_error_trace(r);
        }
        *ret_link = link;
        return 0;
}

struct ckv_gate_link *ckv_gate_link_free(struct ckv_gate_link *link) {
        int status;

        if (!link)
                return NULL;
        ckv_assert_loop_thread();
        /* a gate that sees the end of its pair sends what it has and leaves */
        hang_up(link);
        sd_event_source_disable_unref(link->exit_source);
        if (!ckv_gate_process_reap(&link->process, LEAVE_WAIT_MSEC, &status)) {
                ckv_gate_process_kill(&link->process);
                (void)ckv_gate_process_reap(&link->process, -1, &status);
        }
        sd_event_source_disable_unref(link->tick_source);
        sd_event_source_disable_unref(link->restart_source);
        free(link->attachment);
        free(link);
        return NULL;
}
