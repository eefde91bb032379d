/*
 * Between the event loop and the backend.  The backend shares its time between
 * the jobs it holds (by fair_key, here the user id), and admission bounds how
 * many jobs one user can have inside.  So there is no queue in front of it, but
 * for jobs whose timeline word has not come, and for users who have had more
 * than --device-time lets them have: these wait here, and nothing of theirs is
 * ever ended for it.
 *
 * What a user has had is forgotten with the user, and a user is gone with its
 * last connection.  So that coming back is no way out, a tenant with time on
 * its account is held until that has run out, if there is a limit at all.
 */
#include "daemon/engine.h"

#include "base/clock.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/imported.h"
#include "daemon/request.h"

#include <errno.h>
#include <poll.h>
#include <utlist.h>

/* Jobs finished in one turn of the loop before it looks at anything else. */
enum { REAP_MAX = 64 };
/* How often accounts of users are looked at that have nothing waiting. */
#define LOOK_NSEC CKV_NSEC_PER_SEC
/* How long the device may take to let go of all memory at the end. */
#define FINISH_NSEC (5 * CKV_NSEC_PER_SEC)

struct ckv_engine {
        struct ckv_daemon *daemon;
        sd_event_source *source, *timer;
        uint32_t inside;                /* jobs that the backend holds, and those that wait here */
        struct ckv_job *waiting;        /* list, in the order in which they came */
        struct ckv_tenant *accounts;    /* list by account_next, one reference each: tenants with time to run out */
};

/* rate() - ms of device time in a second; without a limit the whole device, which only shows in reports */
static uint64_t rate(const struct ckv_daemon *daemon) {
        return daemon->options->device_time ? daemon->options->device_time : 1000;
}

static const struct ckv_request *request_of(const struct ckv_job *job) {
        return job->owner;
}

static struct ckv_tenant *tenant_of(const struct ckv_job *job) {
        return request_of(job)->session->tenant;
}

/*
 * may_begin() - when a waiting job may go to the backend, or is to be looked at again: its word has come and its user may go
 * on, or its deadline, at which the backend ends it
 */
static uint64_t may_begin(const struct ckv_daemon *daemon, const struct ckv_job *job, uint64_t now) {
        const struct ckv_request *request = request_of(job);
        uint64_t ready = now;

        if (!ckv_timeline_came(&request->timeline))
                ready = ckv_timeline_look_nsec(request->arrived_nsec, now);
        else if (daemon->options->device_time > 0)
                ready = ckv_device_time_ready(&tenant_of(job)->device_time, rate(daemon), now);
        return CKV_MIN(ready, job->deadline_nsec);
}

/* rearm() - the timer to when the next job may begin, or the accounts are to be looked at */
static void rearm(struct ckv_engine *engine, uint64_t now) {
        uint64_t next = engine->accounts ? now + LOOK_NSEC : UINT64_MAX;

        for (const struct ckv_job *job = engine->waiting; job; job = job->next)
                next = CKV_MIN(next, may_begin(engine->daemon, job, now));
        if (next == UINT64_MAX) {
                (void)sd_event_source_set_enabled(engine->timer, SD_EVENT_OFF);
                return;
        }
        (void)sd_event_source_set_time(engine->timer, next / CKV_NSEC_PER_USEC + 1);
        (void)sd_event_source_set_enabled(engine->timer, SD_EVENT_ONESHOT);
}

/* settle_accounts() - let go of tenants that have nothing to run out any more; @all: of all */
static void settle_accounts(struct ckv_engine *engine, uint64_t now, bool all) {
        struct ckv_tenant **link = &engine->accounts, *tenant;

        while ((tenant = *link)) {
                if (!all && ckv_device_time_level(&tenant->device_time, rate(engine->daemon), now) > 0) {
                        link = &tenant->account_next;
                        continue;
                }
                *link = tenant->account_next;
                tenant->account_next = NULL;
                tenant->has_account = false;
                ckv_tenant_unref(tenant);
        }
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        struct ckv_engine *engine = userdata;
        struct ckv_job *job = engine->waiting, *next;
        uint64_t now = ckv_now_nsec();

        (void)source;
        (void)usec;
        for (; job; job = next) {
                next = job->next;
                if (may_begin(engine->daemon, job, now) > now)
                        continue;
                LL_DELETE(engine->waiting, job);
                engine->daemon->ops->submit(engine->daemon->backend, job);
        }
        settle_accounts(engine, now, false);
        rearm(engine, now);
        return 0;
}

/* account() - what a job took since it was submitted, to its user */
static void account(struct ckv_engine *engine, struct ckv_job *job) {
        struct ckv_tenant *tenant = tenant_of(job);
        uint64_t now = ckv_now_nsec();

        ckv_device_time_spend(&tenant->device_time, rate(engine->daemon), now, job->device_nsec - job->charged_nsec);
        job->charged_nsec = job->device_nsec;
        if (engine->daemon->options->device_time == 0)
                return;
        if (!tenant->has_account) {
                tenant->has_account = true;
                tenant->account_next = engine->accounts;
                engine->accounts = tenant;
                tenant->refs++;
        }
        rearm(engine, now);
}

static void reap(struct ckv_engine *engine) {
        const struct ckv_backend_ops *ops = engine->daemon->ops;

        for (int i = 0; i < REAP_MAX; i++) {
                struct ckv_job *job = ops->reap(engine->daemon->backend);

                if (!job)
                        break;
                engine->inside--;
                account(engine, job);
                ckv_request_stage_done(job->owner);
        }
        for (int i = 0; ops->import && i < REAP_MAX; i++) {
                struct ckv_import *import = ops->reap_import(engine->daemon->backend);

                if (!import)
                        break;
                engine->daemon->import_count--;
                ckv_imported_reaped(import);
        }
}

static int on_finished(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        struct ckv_engine *engine = userdata;

        (void)source;
        (void)fd;
        (void)revents;
        reap(engine);
        ckv_device_look(engine->daemon);
        return 0;
}

int ckv_engine_start(struct ckv_daemon *daemon) {
        struct ckv_engine *engine = calloc(1, sizeof(*engine));
        int r;

        if (!engine)
                return -ENOMEM;
        engine->daemon = daemon;
        r = sd_event_add_io(daemon->event, &engine->source, daemon->ops->wait_fd(daemon->backend), EPOLLIN, on_finished, engine);
        if (r >= 0)
                r = sd_event_add_time(daemon->event, &engine->timer, CLOCK_MONOTONIC, 0, 1, on_timer, engine);
        if (r >= 0)
                r = sd_event_source_set_enabled(engine->timer, SD_EVENT_OFF);
        if (r < 0) {
                sd_event_source_unref(engine->timer);
                sd_event_source_unref(engine->source);
                free(engine);
                return r;
        }
        daemon->engine = engine;
        return 0;
}

void ckv_engine_submit(struct ckv_daemon *daemon, struct ckv_job *job) {
        struct ckv_engine *engine = daemon->engine;
        uint64_t now = ckv_now_nsec();

        engine->inside++;
        if (job->stage == CKV_STAGE_PLAN && may_begin(daemon, job, now) > now) {
                LL_APPEND(engine->waiting, job);
                rearm(engine, now);
                return;
        }
        daemon->ops->submit(daemon->backend, job);
}

void ckv_engine_cancel(struct ckv_daemon *daemon, struct ckv_job *job) {
        struct ckv_engine *engine = daemon->engine;

        daemon->ops->cancel(daemon->backend, job);
        for (struct ckv_job *waiting = engine->waiting; waiting; waiting = waiting->next)
                if (waiting == job) {
                        /* the backend ends it before its first slice */
                        LL_DELETE(engine->waiting, job);
                        daemon->ops->submit(daemon->backend, job);
                        return;
                }
}

void ckv_engine_device_time(const struct ckv_tenant *tenant, uint64_t *ret_used, uint64_t *ret_limit) {
        uint64_t ms = rate(tenant->daemon);

        *ret_used = (ckv_device_time_level(&tenant->device_time, ms, ckv_now_nsec()) + CKV_NSEC_PER_MSEC - 1) / CKV_NSEC_PER_MSEC;
        *ret_limit = ms;
}

void ckv_engine_import(struct ckv_daemon *daemon, struct ckv_import *import) {
        daemon->import_count++;
        daemon->ops->import(daemon->backend, import);
}

void ckv_engine_give_up(struct ckv_daemon *daemon) {
        struct ckv_engine *engine = daemon->engine;

        while (engine->waiting) {
                struct ckv_job *job = engine->waiting;

                LL_DELETE(engine->waiting, job);
                daemon->ops->submit(daemon->backend, job);
        }
}

void ckv_engine_halt(struct ckv_daemon *daemon) {
        (void)sd_event_source_set_enabled(daemon->engine->source, SD_EVENT_OFF);
        (void)sd_event_source_set_enabled(daemon->engine->timer, SD_EVENT_OFF);
}

bool ckv_engine_drained(const struct ckv_daemon *daemon) {
        return !daemon->engine || daemon->engine->inside + daemon->import_count == 0;
}

bool ckv_engine_finish(struct ckv_daemon *daemon) {
        uint64_t give_up = ckv_now_nsec() + FINISH_NSEC;
        struct pollfd ready = { .events = POLLIN };

        while (daemon->engine && daemon->import_count > 0) {
                if (ckv_now_nsec() > give_up)
                        return false;
                ready.fd = daemon->ops->wait_fd(daemon->backend);
                (void)poll(&ready, 1, 100);
                reap(daemon->engine);
        }
        return true;
}

void ckv_engine_stop(struct ckv_daemon *daemon) {
        if (!daemon->engine)
                return;
        settle_accounts(daemon->engine, 0, true);
        sd_event_source_disable_unref(daemon->engine->timer);
        sd_event_source_unref(daemon->engine->source);
        free(daemon->engine);
        daemon->engine = NULL;
}
