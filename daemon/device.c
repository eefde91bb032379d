/*
 * The start and the end of a GPU.
 *
 * At the start the log names the GPU, the driver that was met and the kernels
 * that it is given; a driver that cannot be used is refused in one sentence,
 * which says what would mend it.
 *
 * The end is an error that stays: each later call of the process returns it, so
 * only a new process can go on.  The backend sends every job back; those that
 * had not moved a row are answered as clean, the others by their progress word
 * (daemon/commit.c).  Requests that are held have written nothing.  Memory is
 * not unmapped, no context is taken down: the process leaves, and the service
 * manager starts another, to which clients come with their registrations.
 *
 * A kernel or a call that never returns ends the same way, but the jobs stay
 * where they are: the thread that has them may go on at any time, so nothing of
 * theirs is freed, and what it might still say is not heard.  Time without
 * progress is counted in turns of the loop, since a process that was stopped, or
 * a machine that slept, has not been hanging.  At the very end, when the device
 * is closed, no loop turns any more: a thread closes it, and is waited for.
 */
#include "daemon/device.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/engine.h"
#include "daemon/imported.h"
#include "daemon/refuse.h"
#include "daemon/request.h"
#include "daemon/side.h"
#include "kernels/cuda_image.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

/* How often it is looked whether all is answered; how long answers have to leave; and how long all of it may take. */
#define LOOK_USEC UINT64_C(10000)
#define LEAVE_NSEC (100 * CKV_NSEC_PER_MSEC)
#define GIVE_UP_NSEC CKV_NSEC_PER_SEC

/* Looks in a row, a part of --device-timeout from one to the next, that must see no progress. */
enum { STILL_MOST = 10 };
#define USEC_PER_SEC (CKV_NSEC_PER_SEC / CKV_NSEC_PER_USEC)

/* The last part of the device's memory is kept for those who come later, as with memory of the host (daemon/reload.c). */
enum { RESERVE_PARTS = 8 };

struct ckv_device_end {
        uint64_t since_nsec, drained_nsec;      /* drained_nsec 0: not yet */
};

static void log_device(const struct ckv_daemon *daemon) {
        const struct ckv_backend_info *info = &daemon->backend_info;
        char met[CKV_CUDA_IMAGE_TEXT], uuid[40];
        const uint8_t *u = info->uuid;

        ckv_cuda_image_met(info->driver_version, met, sizeof(met));
        (void)snprintf(uuid, sizeof(uuid), "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2],
                       u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
        ckv_log(CKV_LOG_NOTICE, CUDA_DRIVER, "device=\"%s\" uuid=%s memory_bytes=%" PRIu64 " driver=\"%s\"", info->name, uuid,
                info->memory_bytes, met);
}

int ckv_device_open(struct ckv_daemon *daemon) {
        char why[256] = "";
        const struct ckv_backend_options options = {
                .slice_usec = (uint32_t)daemon->options->slice_usec, .scratch_bytes = daemon->options->device_scratch,
                .device = daemon->options->device[0] ? daemon->options->device : NULL, .ret_why = why, .why_bytes = sizeof(why),
        };
        struct ckv_share *share = &daemon->shares[CKV_SLOT_DEVICE_BYTES];
        int r;

        daemon->ops = &ckv_backend_cuda;
        r = daemon->ops->open(&options, &daemon->backend);
        if (r) {
                ckv_log(CKV_LOG_ERROR, BACKEND_FAILED, "backend=%s errno=%d why=\"%s\"", daemon->ops->name, -r,
                        why[0] ? why : strerror(-r));
                return r;
        }
        daemon->ops->describe(daemon->backend, &daemon->backend_info);
        share->total = daemon->backend_info.memory_bytes ? daemon->backend_info.memory_bytes : CKV_LIMIT_REGION_BYTES;
        share->reserve = share->total / RESERVE_PARTS;
        log_device(daemon);
        return 0;
}

/* end_held() - requests that wait for their Commit: nothing of them was written */
static void end_held(struct ckv_daemon *daemon, const struct ckv_record_status *status) {
        for (struct ckv_session *session = daemon->sessions; session; session = session->hh.next)
                for (struct ckv_request *request = session->requests, *next; request; request = next) {
                        next = request->next;
                        if (request->hold_timer)
                                ckv_hold_end(request, status);
                }
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        struct ckv_daemon *daemon = userdata;
        struct ckv_device_end *end = daemon->device_end;
        uint64_t now = ckv_now_nsec();

        (void)usec;
        if (end->drained_nsec == 0 && ckv_engine_drained(daemon))
                end->drained_nsec = now;
        if ((end->drained_nsec > 0 && now - end->drained_nsec >= LEAVE_NSEC) || now - end->since_nsec >= GIVE_UP_NSEC)
                _exit(CKV_EXIT_HUNG);
        (void)sd_event_source_set_time_relative(source, LOOK_USEC);
        return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

/* leave() - everything that was inside has been answered, or will be; @drained_nsec: when, or 0 */
static void leave(struct ckv_daemon *daemon, uint64_t drained_nsec) {
        struct ckv_device_end *end = calloc(1, sizeof(*end));

        for (uint32_t i = 0; i < daemon->endpoint_count; i++)
                ckv_side_notice_all(&daemon->endpoints[i], CKV_SIDE_NOTICE_DRAINING);
        if (!end || sd_event_add_time_relative(daemon->event, NULL, CLOCK_MONOTONIC, LOOK_USEC, 1000, on_timer, daemon) < 0)
                _exit(CKV_EXIT_HUNG);
        end->since_nsec = ckv_now_nsec();
        end->drained_nsec = drained_nsec;
        daemon->device_end = end;
}

void ckv_device_look(struct ckv_daemon *daemon) {
        struct ckv_backend_health health;
        struct ckv_record_status status;

        if (daemon->device_end)
                return;
        daemon->ops->health(daemon->backend, &health);
        if (!health.lost)
                return;
        daemon->draining = true;
        ckv_log(CKV_LOG_ERROR, DEVICE_LOST, "driver_code=%d queued=%" PRIu32 " running=%" PRIu32 " status=%d", health.lost_code,
                health.queued, health.running, (int)CKV_EXIT_HUNG);
        (void)sd_notify(0, "STOPPING=1\nSTATUS=the GPU's context is gone, starting anew");
        ckv_engine_give_up(daemon);
        ckv_refuse(&status, CKV_CODE_DEVICE_ERROR, CKV_F_NONE, CKV_D_DEVICE_LOST, 0, 0, 0);
        status.driver_code = health.lost_code;
        end_held(daemon, &status);
        leave(daemon, 0);
}

/* answer_hung() - whoever waits for the device; held requests are none of them any more */
static void answer_hung(struct ckv_daemon *daemon, const struct ckv_record_status *status) {
        for (struct ckv_session *session = daemon->sessions; session; session = session->hh.next) {
                for (struct ckv_request *request = session->requests; request; request = request->next)
                        ckv_request_hung(request, daemon->options->device_timeout);
                for (uint32_t i = 0; session->window.entries && i < CKV_LIMIT_STORED_OUTCOMES; i++)
                        if (session->window.entries[i].imported)
                                ckv_imported_hung(session->window.entries[i].imported, status);
        }
}

/* give_up_hung() - the device has made no progress for --device-timeout */
static void give_up_hung(struct ckv_daemon *daemon, const struct ckv_backend_health *health) {
        struct ckv_record_status status;

        daemon->draining = true;
        ckv_log(CKV_LOG_ERROR, DEVICE_HUNG, "seconds=%" PRIu64 " queued=%" PRIu32 " running=%" PRIu32 " imports=%" PRIu32 " status=%d",
                daemon->options->device_timeout, health->queued, health->running, daemon->import_count, (int)CKV_EXIT_HUNG);
        (void)sd_notify(0, "STOPPING=1\nSTATUS=the GPU hangs, starting anew");
        ckv_engine_halt(daemon);
        ckv_refuse(&status, CKV_CODE_DEVICE_HUNG, CKV_F_NONE, CKV_D_DEVICE_HUNG, daemon->options->device_timeout, 0, 0);
        end_held(daemon, &status);
        answer_hung(daemon, &status);
        leave(daemon, ckv_now_nsec());
}

static int on_look(sd_event_source *source, uint64_t usec, void *userdata) {
        struct ckv_daemon *daemon = userdata;
        struct ckv_backend_health health;
        bool same;

        (void)usec;
        if (daemon->device_end)
                return 0;
        daemon->ops->health(daemon->backend, &health);
        same = health.last_progress_nsec == daemon->device_seen_nsec && health.queued + health.running + daemon->import_count > 0;
        daemon->device_still = same ? daemon->device_still + 1 : 0;
        daemon->device_seen_nsec = health.last_progress_nsec;
        if (daemon->device_still >= STILL_MOST) {
                give_up_hung(daemon, &health);
                return 0;
        }
        (void)sd_event_source_set_time_relative(source, daemon->options->device_timeout * USEC_PER_SEC / STILL_MOST);
        return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

int ckv_device_watch(struct ckv_daemon *daemon) {
        int r;

        if (!ckv_options_cuda(daemon->options) || daemon->options->device_timeout == 0)
                return 0;
        r = sd_event_add_time_relative(daemon->event, NULL, CLOCK_MONOTONIC, 0, 1000, on_look, daemon);
        return r < 0 ? ckv_error_origin(r) : 0;
}

static void *close_backend(void *p) {
        struct ckv_daemon *daemon = p;

        daemon->backend = daemon->ops->close(daemon->backend);
        return NULL;
}

void ckv_device_close(struct ckv_daemon *daemon) {
        const uint64_t seconds = ckv_options_cuda(daemon->options) ? daemon->options->device_timeout : 0;
        struct timespec until;
        pthread_t thread;

        if (seconds == 0 || pthread_create(&thread, NULL, close_backend, daemon) != 0) {
                (void)close_backend(daemon);
                return;
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += (time_t)seconds;
        if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until) == 0)
                return;
        /* nobody waits for an answer any more; what the driver holds goes with the process */
        ckv_log(CKV_LOG_ERROR, DEVICE_HUNG, "seconds=%" PRIu64 " why=\"it cannot be closed\" status=%d", seconds, (int)CKV_EXIT_HUNG);
        _exit(CKV_EXIT_HUNG);
}
