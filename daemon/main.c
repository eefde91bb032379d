/*
 * chunkkvd: compresses KV caches of inference engines, in place.
 *
 * This file makes a well-behaved process (descriptors, signals, core dumps,
 * limits), then builds the daemon from the inside out: lock, sockets, sandbox,
 * device, gates.  It runs the event loop until daemon/lifecycle.c ends it, and takes
 * everything down in reverse.
 *
 * Exit status: 0 after SIGTERM or SIGINT; 1 where it could not start, with a
 * sentence in the log; 2 for a wrong command line; 75 when the device hangs.
 */
#include "base/error.h"
#include "base/guard.h"
#include "base/log.h"
#include "base/macros.h"
#include "base/random.h"
#include "daemon/closer.h"
#include "daemon/daemon.h"
#include "daemon/device.h"
#include "daemon/endpoints.h"
#include "daemon/gate_spawn.h"
#include "daemon/lifecycle.h"
#include "daemon/reload.h"
#include "daemon/runtime_dir.h"
#include "daemon/sandbox.h"
#include "kernels/cuda_image.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/close_range.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* Core dumps and ptrace would show tenants' data; builds for developers allow both, and leak checkers need the latter. */
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HIDE_MEMORY 1
#else
#define HIDE_MEMORY 0
#endif

/* failed() - one line why the start fails. Return: @error. */
static int failed(const char *what, int error) {
        ckv_log(CKV_LOG_ERROR, START_FAILED, "why=\"%s: %s\"", what, strerror(-error));
        return error;
}

/* signals_block() - before any thread exists, so that all inherit it; the loop takes them up one by one */
static int signals_block(void) {
        sigset_t set;

        (void)sigemptyset(&set);
        (void)sigaddset(&set, SIGTERM);
        (void)sigaddset(&set, SIGINT);
        (void)sigaddset(&set, SIGHUP);
        if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
                return ckv_error_origin(-errno);
        /* a log whose reader went away must not end the daemon */
        return signal(SIGPIPE, SIG_IGN) == SIG_ERR ? ckv_error_origin(-errno) : 0;
}

/* process_prepare() - what must hold before anything is opened */
static int process_prepare(void) {
        struct rlimit limit;
        int r;

        /* whatever the parent left open is not for the gates; marked, not closed: sockets of systemd are among it */
        if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
                return failed("close_range", -errno);
        (void)umask(0077);
        if (HIDE_MEMORY) {
                limit = (struct rlimit){ 0, 0 };
                if (setrlimit(RLIMIT_CORE, &limit) < 0 || prctl(PR_SET_DUMPABLE, 0) < 0)
                        return failed("forbidding core dumps", -errno);
        }
        if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
                limit.rlim_cur = limit.rlim_max;
                (void)setrlimit(RLIMIT_NOFILE, &limit);
        }
        r = ckv_guard_install();
        if (r)
                return failed("taking over SIGBUS", r);
        return signals_block();
}

/* defaults_resolve() - options whose default is found out at run time; *gate_path keeps the memory of options->gate */
static int defaults_resolve(struct ckv_options *options, char **gate_path) {
        int r = ckv_gate_path_find(options->gate, gate_path);
        if (r)
                return failed("finding chunkkv-gate", r);
        options->gate = *gate_path;
        return 0;
}

static int lock_directory(const char *path, int *ret_lock_fd) {
        int r = ckv_runtime_dir_lock(path, ret_lock_fd);

        if (r == CKV_RUNTIME_DIR_E_BUSY) {
                ckv_log(CKV_LOG_ERROR, RUNTIME_DIR_BUSY, "path=\"%s\" why=\"another chunkkvd runs on this directory\"", path);
                return -EBUSY;
        }
        if (r)
                ckv_log(CKV_LOG_ERROR, START_FAILED, "why=\"directory %s: %s\"", path, strerror(-r));
        return r;
}

/* log_paths() - what the CPU device will use, and why */
static void log_paths(const struct ckv_backend_info *info, const char *option) {
        if (info->wrong[0])
                ckv_log(CKV_LOG_WARNING, CPU_PATH_WRONG, "paths=\"%s\"", info->wrong);
        if (option[0])
                ckv_log(CKV_LOG_INFO, CPU_PATHS, "paths=\"%s\" option=\"--cpu-path %s\"", info->picks, option);
        else
                ckv_log(CKV_LOG_INFO, CPU_PATHS, "paths=\"%s\" tried_us=%" PRIu32, info->picks, info->tried_usec);
}

static int open_backend(struct ckv_daemon *daemon) {
        const char *path = daemon->options->cpu_path;
        const struct ckv_backend_options options = {
                .threads = (uint32_t)daemon->options->threads, .slice_usec = (uint32_t)daemon->options->slice_usec,
                .path = path[0] ? path : NULL, .pin = daemon->options->pin, .scratch_bytes = daemon->options->scratch,
        };
        int r;

        if (ckv_options_cuda(daemon->options))
                return ckv_device_open(daemon);
        daemon->ops = &ckv_backend_cpu;
        r = daemon->ops->open(&options, &daemon->backend);
        if (path[0] && (r == -EOPNOTSUPP || r == -EIO)) {
                char names[64];

                ckv_cpu_path_names(names, sizeof(names));
                ckv_log(CKV_LOG_ERROR, BACKEND_FAILED, "backend=%s why=\"--cpu-path is %s%s; this machine can take: %s\"",
                        daemon->ops->name, path, r == -EIO ? ", which gives wrong results here" : "", names);
                return r;
        }
        if (r == -EINVAL) {
                ckv_log(CKV_LOG_ERROR, BACKEND_FAILED, "backend=%s why=\"--pin is %s; it may be auto, off, node or core\"",
                        daemon->ops->name, daemon->options->pin);
                return r;
        }
        if (r) {
                ckv_log(CKV_LOG_ERROR, BACKEND_FAILED, "backend=%s errno=%d why=\"%s\"", daemon->ops->name, -r, strerror(-r));
                return r;
        }
        daemon->ops->describe(daemon->backend, &daemon->backend_info);
        log_paths(&daemon->backend_info, path);
        return 0;
}

/* daemon_open() - everything that lies below gates and connections */
static int daemon_open(struct ckv_daemon *daemon) {
        int r;

        r = sd_event_default(&daemon->event);
        if (r < 0)
                return failed("event loop", r);
        r = ckv_endpoints_open(daemon);
        if (r)
                return r < 0 ? failed("sockets", r) : -EADDRINUSE;
        /* the names of users are looked up and the sockets bound: no file is made any more; the first thread is the backend's */
        r = ckv_sandbox_enter(daemon->options);
        if (r)
                return r;
        r = open_backend(daemon);
        if (r)
                return r;
        r = ckv_closer_start(daemon);
        r = r ? r : ckv_engine_start(daemon);
        r = r ? r : ckv_device_watch(daemon);
        return r ? failed("engine", r) : 0;
}

static void daemon_close(struct ckv_daemon *daemon) {
        ckv_engine_stop(daemon);
        ckv_closer_stop(daemon);
        ckv_endpoints_close(daemon);
        if (daemon->backend)
                ckv_device_close(daemon);
        daemon->event = sd_event_unref(daemon->event);
        /* what a tenant had was given back to the last byte, or something leaked */
        assert(!daemon->sessions);
        assert(!daemon->tenants);
}

static int serve(const struct ckv_options *options) {
        struct ckv_daemon daemon = { .options = options };
        struct ckv_lifecycle lifecycle = { 0 };
        _cleanup_close_ int lock = -1;
        int r;

        ckv_assert_loop_thread();
        ckv_reload(&daemon);
        r = ckv_hash_seed();
        r = r ? r : ckv_random(daemon.boot_id, sizeof(daemon.boot_id));
        if (r)
                return failed("random bytes", r);
        r = lock_directory(options->runtime_dir, &lock);
        if (r)
                return r;
        r = daemon_open(&daemon);
        if (!r) {
                ckv_log(CKV_LOG_INFO, STARTING, "version=%s runtime_dir=\"%s\" device=\"%s\"", CKV_VERSION, options->runtime_dir,
                        daemon.backend_info.name);
                r = ckv_lifecycle_start(&lifecycle, &daemon);
                if (!r)
                        r = sd_event_loop(daemon.event);
                ckv_lifecycle_stop(&lifecycle);
        }
        daemon_close(&daemon);
        if (r == 0)
                ckv_log(CKV_LOG_NOTICE, STOPPED, "runtime_dir=\"%s\"", options->runtime_dir);
        return r;
}

static void version_print(void) {
        char images[CKV_CUDA_IMAGE_TEXT];

        ckv_cuda_image_list(images, sizeof(images));
        printf("chunkkvd %s\nimages for GPUs: %s\n", CKV_VERSION, images);
}

int main(int argc, char *argv[]) {
        _cleanup_free_ char *gate_path = NULL;
        struct ckv_options options;
        int r;

        r = ckv_options_parse(&options, argc, argv, stdout, stderr);
        if (r == CKV_OPTIONS_E_VERSION)
                version_print();
        if (r)
                return r == CKV_OPTIONS_E_INVALID ? 2 : EXIT_SUCCESS;
        ckv_log_open("chunkkvd", (enum ckv_log_level)options.log_level);
        r = process_prepare();
        r = r ? r : defaults_resolve(&options, &gate_path);
        r = r ? r : serve(&options);
        return r ? EXIT_FAILURE : EXIT_SUCCESS;
}
