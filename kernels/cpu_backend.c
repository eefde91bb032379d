/*
 * The CPU as a device behind kernels/backend.h: one device thread, which works on
 * jobs as kernels/job_queue.c has it, and the pool it shares every slice with.
 *
 * Mappings are shared, are not inherited by children, and stay out of core
 * dumps: their bytes are the tenant's.  Each is guarded: if its pages go away,
 * jobs that use it end on zeros, and the loop sees the mark.
 */
#include "kernels/backend.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/guard.h"
#include "base/macros.h"
#include "kernels/cpu_choice.h"
#include "kernels/cpu_machine.h"
#include "kernels/cpu_move.h"
#include "kernels/cpu_plan.h"
#include "kernels/cpu_pool.h"
#include "kernels/job_queue.h"
#include "kernels/reference.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct cpu {
        struct ckv_backend backend;             /* first: the two are converted into each other */
        struct ckv_cpu_choice *choice;
        struct ckv_cpu_nodes *nodes;
        struct ckv_cpu_pool *pool;
        struct ckv_cpu_scratch *scratch;        /* of the device thread */
};

static struct cpu *cpu_of(struct ckv_backend *backend) {
        return (struct cpu *)backend;
}

static bool begin(struct ckv_backend *backend, struct ckv_job *job) {
        if (job->stage == CKV_STAGE_PLAN) {
                job->backend_state = ckv__cpu_plan_new(job, cpu_of(backend)->scratch);
                if (!job->backend_state)
                        job->outcome = CKV_JOB_NO_MEMORY;
                return true;
        }
        job->backend_state = ckv__cpu_move_new(job);
        if (!job->backend_state) {
                /* the decision to move has been made: do it in one go rather than not at all */
                ckv_ref_run_move(job);
                (void)ckv_mirrors_step(job, UINT64_MAX);
        }
        job->outcome = CKV_JOB_OK;
        return true;
}

static bool step(struct ckv_backend *backend, struct ckv_job *job, uint64_t until) {
        struct cpu *cpu = cpu_of(backend);

        if (job->stage == CKV_STAGE_PLAN)
                return ckv__cpu_plan_step(job->backend_state, cpu->pool, cpu->choice, until);
        return ckv__cpu_move_step(job->backend_state, cpu->pool, until);
}

static void end(struct ckv_job *job) {
        if (job->stage == CKV_STAGE_PLAN)
                job->backend_state = ckv__cpu_plan_free(job->backend_state);
        else
                job->backend_state = ckv__cpu_move_free(job->backend_state);
}

static void age_scratch(struct ckv_backend *backend) {
        ckv__cpu_scratch_age(cpu_of(backend)->scratch, ckv_now_nsec());
}

static const struct ckv_queue_hooks hooks = { .begin = begin, .step = step, .end = end, .rest = age_scratch };

static void *device_main(void *p) {
        (void)pthread_setname_np(pthread_self(), "ckv-cpu");
        ckv__queue_run(p);
        return NULL;
}

static struct cpu *cpu_free(struct cpu *cpu) {
        if (!cpu)
                return NULL;
        ckv__queue_stop(&cpu->backend);
        (void)ckv__cpu_pool_free(cpu->pool);
        (void)ckv__cpu_nodes_free(cpu->nodes);
        (void)ckv__cpu_scratch_free(cpu->scratch);
        (void)ckv__cpu_choice_free(cpu->choice);
        ckv__queue_deinit(&cpu->backend);
        free(cpu);
        return NULL;
}

static void cpu_freep(struct cpu **cpu) {
        (void)cpu_free(*cpu);
}

static struct ckv_backend *cpu_close(struct ckv_backend *backend) {
        (void)cpu_free(cpu_of(backend));
        return NULL;
}

/* Before there are threads: the system is asked for tile registers. */
static int choose_path(struct cpu *cpu, const char *path) {
        struct ckv_backend_info *info = &cpu->backend.info;
        uint64_t start = ckv_now_nsec();
        int r = ckv__cpu_choice_new(path, &cpu->choice);

        if (r < 0)
                return ckv_error_trace(r);
        info->tried_usec = path ? 0 : (uint32_t)((ckv_now_nsec() - start) / CKV_NSEC_PER_USEC);
        info->path = ckv__cpu_choice_path(cpu->choice, CKV_DTYPE_BF16, CKV_DTYPE_BF16, 128, 128)->name;
        info->picked_count = (uint32_t)ckv__cpu_choice_picks(cpu->choice, info->picked);
        ckv__cpu_choice_text(cpu->choice, info->picks, sizeof(info->picks));
        ckv__cpu_choice_wrong(cpu->choice, info->wrong, sizeof(info->wrong));
        return 0;
}

static int start_pool(struct cpu *cpu, const struct ckv_backend_options *options) {
        const struct ckv_cpu_sight *sight = options->sight ? options->sight : &ckv__cpu_this_machine;
        enum ckv_cpu_pin pin = CKV_CPU_PIN_AUTO;
        int r;

        if (options->pin && !ckv__cpu_pin_parse(options->pin, &pin))
                return ckv_error_origin(-EINVAL);
        r = ckv__cpu_nodes_new(sight, &cpu->nodes);
        if (r < 0)
                return ckv_error_trace(r);
        r = ckv__cpu_pool_new_on(options->threads ? options->threads : ckv__cpu_threads(sight), cpu->nodes, pin, &cpu->pool);
        return ckv_error_trace(r);
}

static void set_info(struct cpu *cpu) {
        struct ckv_backend_info *info = &cpu->backend.info;
        char model[32], paths[40], rest[60];     /* of all paths: 33, and 16 beside them */

        ckv__cpu_model(model, sizeof(model));
        ckv__cpu_choice_names(cpu->choice, paths, sizeof(paths));
        info->threads = ckv__cpu_pool_threads(cpu->pool);
        (void)snprintf(rest, sizeof(rest), ", %s, %u thread%s", paths, info->threads, info->threads == 1 ? "" : "s");
        /* the end of the CPU's name is what can be spared */
        (void)snprintf(info->name, sizeof(info->name) - strlen(rest), "%s", model);
        (void)strcat(info->name, rest);
}

static int cpu_open(const struct ckv_backend_options *options, struct ckv_backend **ret_backend) {
        _cleanup_(cpu_freep) struct cpu *cpu = calloc(1, sizeof(*cpu));
        int r;

        if (!cpu)
                return ckv_error_origin(-ENOMEM);
        r = ckv__queue_init(&cpu->backend, &hooks, options->slice_usec);
        if (r == 0)
                r = choose_path(cpu, options->path);
        if (r < 0)
                return ckv_error_trace(r);
        cpu->scratch = ckv__cpu_scratch_new(options->scratch_bytes);
        if (!cpu->scratch)
                return ckv_error_origin(-ENOMEM);
        r = start_pool(cpu, options);
        if (r < 0)
                return ckv_error_trace(r);
        set_info(cpu);
        r = ckv__queue_start(&cpu->backend, device_main);
        if (r < 0)
                return ckv_error_trace(r);
        *ret_backend = &ckv_steal(&cpu)->backend;
        return 0;
}

static int cpu_map(struct ckv_backend *backend, int fd, uint64_t offset, uint64_t size, bool writable,
                   struct ckv_mapping *ret_mapping) {
        uint64_t page, before, bytes;
        struct ckv_guard *guard;
        struct stat st;
        void *at;

        (void)backend;
        if (size == 0 || size > SIZE_MAX / 4 || offset > INT64_MAX)
                return ckv_error_origin(-EINVAL);
        if (fstat(fd, &st) < 0)
                return ckv_error_origin(-errno);
        /* files of huge pages are mapped and unmapped by whole ones */
        page = CKV_MAX((uint64_t)st.st_blksize, (uint64_t)sysconf(_SC_PAGESIZE));
        before = offset % page;
        bytes = (before + size + page - 1) / page * page;
        at = mmap(NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, (off_t)(offset - before));
        if (at == MAP_FAILED)
                return ckv_error_origin(-errno);
        guard = ckv_guard_add(at, bytes, writable);
        if (!guard) {
                (void)munmap(at, bytes);
                return ckv_error_origin(-ENOMEM);
        }
        (void)madvise(at, bytes, MADV_DONTFORK);
        (void)madvise(at, bytes, MADV_DONTDUMP);
        *ret_mapping = (struct ckv_mapping){
                .base = (uint8_t *)at + before, .size = size, .writable = writable,
                .allocation = at, .allocation_bytes = bytes, .guard = guard,
        };
        return 0;
}

static void cpu_unmap(struct ckv_backend *backend, struct ckv_mapping *mapping) {
        mapping->guard = ckv_guard_remove(mapping->guard);
        if (mapping->allocation)
                (void)munmap(mapping->allocation, mapping->allocation_bytes);
        /* the CUDA backend maps memory of the host by this, too, and has no nodes */
        if (backend)
                ckv__cpu_nodes_forget(cpu_of(backend)->nodes);
        *mapping = (struct ckv_mapping){ 0 };
}

const struct ckv_backend_ops ckv_backend_cpu = {
        .version = CKV_BACKEND_VERSION,
        .name = "cpu",
        .open = cpu_open,
        .close = cpu_close,
        .describe = ckv__queue_describe,
        .map = cpu_map,
        .unmap = cpu_unmap,
        .submit = ckv__queue_submit,
        .cancel = ckv__queue_cancel,
        .wait_fd = ckv__queue_wait_fd,
        .reap = ckv__queue_reap,
        .health = ckv__queue_health,
};
