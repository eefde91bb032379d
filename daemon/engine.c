/*
 * Between the event loop and the backend.  The backend shares its time between
 * the jobs it holds (equal turns for equal fair_key, here the user id), so
 * there is no queue in front of it: admission bounds how many jobs one user
 * can have inside.
 */
#include "daemon/engine.h"

#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/request.h"

#include <errno.h>

/* Jobs finished in one turn of the loop before it looks at anything else. */
enum { REAP_MAX = 64 };

struct ckv_engine {
        struct ckv_daemon *daemon;
        sd_event_source *source;
        uint32_t inside;        /* jobs that the backend holds */
};

static int on_finished(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        struct ckv_engine *engine = userdata;

        (void)source;
        (void)fd;
        (void)revents;
        for (int i = 0; i < REAP_MAX; i++) {
                struct ckv_job *job = engine->daemon->ops->reap(engine->daemon->backend);

                if (!job)
                        break;
                engine->inside--;
                ckv_request_stage_done(job->owner);
        }
        return 0;
}

int ckv_engine_start(struct ckv_daemon *daemon) {
        struct ckv_engine *engine = calloc(1, sizeof(*engine));
        int r;

        if (!engine)
                return -ENOMEM;
        engine->daemon = daemon;
        r = sd_event_add_io(daemon->event, &engine->source, daemon->ops->wait_fd(daemon->backend), EPOLLIN, on_finished, engine);
        if (r < 0) {
                free(engine);
                return r;
        }
        daemon->engine = engine;
        return 0;
}

void ckv_engine_submit(struct ckv_daemon *daemon, struct ckv_job *job) {
        daemon->engine->inside++;
        daemon->ops->submit(daemon->backend, job);
}

bool ckv_engine_drained(const struct ckv_daemon *daemon) {
        return !daemon->engine || daemon->engine->inside == 0;
}

void ckv_engine_stop(struct ckv_daemon *daemon) {
        if (!daemon->engine)
                return;
        sd_event_source_unref(daemon->engine->source);
        free(daemon->engine);
        daemon->engine = NULL;
}
