/*
 * Faults of the stand-in driver, and its log.  Everything comes from the
 * environment, so a test needs no code inside the process that it troubles.
 */
#include "tests/fake/fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_bool started;
static _Atomic int sticky;
static _Thread_local CUcontext current;

const char *ckv_fake_entry(const char *variable, const char *name) {
        const char *at = getenv(variable);
        size_t length = strlen(name);

        while (at) {
                if (strncmp(at, name, length) == 0 && at[length] == ':')
                        return at + length + 1;
                at = strchr(at, ',');
                at = at ? at + 1 : NULL;
        }
        return NULL;
}

void ckv_fake_log(const char *what, const char *name) {
        const char *path = getenv("FAKECUDA_LOG");
        char line[128];
        int fd, size;

        if (!path)
                return;
        fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        size = snprintf(line, sizeof(line), "%d %s %s\n", (int)getpid(), what, name);
        if (fd >= 0 && write(fd, line, (size_t)size) != size)
                abort();
        (void)ckv_close(fd);
}

static void maybe_sleep(const char *name) {
        const char *entry = ckv_fake_entry("FAKECUDA_DELAY", name);
        long usec = entry ? strtol(entry, NULL, 10) : 0;
        struct timespec time = { .tv_sec = usec / 1000000, .tv_nsec = usec % 1000000 * 1000 };

        if (usec > 0)
                (void)nanosleep(&time, NULL);
}

static void maybe_hang(const char *name, uint32_t call) {
        const char *entry = ckv_fake_entry("FAKECUDA_HANG", name);

        if (entry && strtoul(entry, NULL, 10) == call)
                for (;;)
                        (void)pause();
}

/* Entries of FAKECUDA_FAIL: the first that is for this call. */
static CUresult told_to_fail(const char *name, uint32_t call) {
        const char *at = getenv("FAKECUDA_FAIL");
        size_t length = strlen(name);

        while (at) {
                unsigned int nth;
                int code;

                if (strncmp(at, name, length) == 0 && sscanf(at + length, ":%u:%d", &nth, &code) == 2 && (nth == 0 || nth == call))
                        return code;
                at = strchr(at, ',');
                at = at ? at + 1 : NULL;
        }
        return CUDA_SUCCESS;
}

CUresult ckv_fake_begin(const char *name, bool needs_context, _Atomic uint32_t *calls) {
        uint32_t call = atomic_fetch_add(calls, 1) + 1;
        CUresult told;

        ckv_fake_log("call", name);
        maybe_sleep(name);
        maybe_hang(name, call);
        told = told_to_fail(name, call);
        if (told != CUDA_SUCCESS)
                return told;
        if (atomic_load(&sticky))
                return atomic_load(&sticky);
        if (!atomic_load(&started))
                return CUDA_ERROR_NOT_INITIALIZED;
        return needs_context && !current ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

bool ckv_fake_kernel_fault(void) {
        static _Atomic uint32_t kernels;
        uint32_t kernel = atomic_fetch_add(&kernels, 1) + 1;
        const char *fault = getenv("FAKECUDA_FAULT");
        unsigned int nth;
        int code;

        maybe_sleep("kernel");
        maybe_hang("kernel", kernel);
        if (fault && sscanf(fault, "%u:%d", &nth, &code) == 2 && nth == kernel)
                atomic_store(&sticky, code);
        return !atomic_load(&sticky);
}

CUresult ckv_fake_sticky(void) {
        return atomic_load(&sticky);
}

void ckv_fake_set_started(void) {
        atomic_store(&started, true);
}

void ckv_fake_set_context(CUcontext context) {
        current = context;
}

CUcontext ckv_fake_context(void) {
        return current;
}
