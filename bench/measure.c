/*
 * Time on a machine that others use as well.  A thread that was off its CPU
 * shows as wall time without CPU time, a clock or a bandwidth that dropped as a
 * difference between the same work before and after.  Ratios taken in one
 * repetition survive both; times do not, and are printed for orientation.
 */
#include "bench/measure.h"

#include "base/macros.h"

#include <dirent.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const double DIFFERENCE_MAX = 0.1, STOLEN_MAX = 0.03;

static double seconds(clockid_t clock) {
        struct timespec ts;

        (void)clock_gettime(clock, &ts);
        return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

bool bench_by_cpu_time(void) {
        const char *asked = getenv("BENCH_CPU");

        return asked && strcmp(asked, "1") == 0;
}

/* The @index-th CPU of the mask that the process started with: threads that are pinned have masks of their own. */
static int cpu_at(uint32_t index) {
        static cpu_set_t allowed;
        static bool known;

        if (!known) {
                CPU_ZERO(&allowed);
                if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
                        CPU_SET(0, &allowed);
                known = true;
        }
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
                if (CPU_ISSET(cpu, &allowed) && index-- == 0)
                        return cpu;
        return -1;
}

uint32_t bench_cpus(void) {
        uint32_t count = 0;

        while (count < BENCH_THREADS_MAX && cpu_at(count) >= 0)
                count++;
        return CKV_MAX(count, 1);
}

static void pin(pid_t thread, uint32_t index) {
        cpu_set_t one;

        CPU_ZERO(&one);
        CPU_SET(cpu_at(index % bench_cpus()), &one);
        (void)sched_setaffinity(thread, sizeof(one), &one);
}

struct member {
        pthread_t thread;
        pthread_barrier_t *barrier;
        bench_work work;
        void *context;
        uint32_t id, threads;
        double start, end, cpu;
};

static void *member_main(void *p) {
        struct member *m = p;
        double cpu;

        pin(0, m->id);
        (void)pthread_barrier_wait(m->barrier);
        cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
        m->start = seconds(CLOCK_MONOTONIC);
        m->work(m->context, m->id, m->threads);
        m->end = seconds(CLOCK_MONOTONIC);
        m->cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
        return NULL;
}

struct bench_span bench_run(uint32_t threads, bench_work work, void *context) {
        struct member members[BENCH_THREADS_MAX];
        struct bench_span span = { 0 };
        pthread_barrier_t barrier;
        double first, last, cpu = 0;

        (void)cpu_at(0);        /* the mask is read before anybody is pinned */
        (void)pthread_barrier_init(&barrier, NULL, threads);
        for (uint32_t i = 0; i < threads; i++) {
                members[i] = (struct member){ .barrier = &barrier, .work = work, .context = context, .id = i, .threads = threads };
                if (pthread_create(&members[i].thread, NULL, member_main, &members[i]) != 0) {
                        (void)fprintf(stderr, "no thread to measure with\n");
                        exit(EXIT_FAILURE);
                }
        }
        for (uint32_t i = 0; i < threads; i++)
                (void)pthread_join(members[i].thread, NULL);
        (void)pthread_barrier_destroy(&barrier);
        first = members[0].start;
        last = members[0].end;
        for (uint32_t i = 0; i < threads; i++) {
                const struct member *m = &members[i];

                first = CKV_MIN(first, m->start);
                last = CKV_MAX(last, m->end);
                cpu += m->cpu / threads;
                span.stolen = CKV_MAX(span.stolen, 1 - m->cpu / (m->end - m->start));
        }
        span.seconds = last - first;
        if (bench_by_cpu_time())
                span = (struct bench_span){ .seconds = cpu };
        return span;
}

void bench_pin_others(uint32_t threads) {
        DIR *tasks = opendir("/proc/self/task");
        struct dirent *entry;
        uint32_t next = 0;

        while (tasks && (entry = readdir(tasks))) {
                pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);

                if (thread > 0 && thread != (pid_t)syscall(SYS_gettid))
                        pin(thread, next++ % threads);
        }
        if (tasks)
                (void)closedir(tasks);
}

/* Seconds that the threads of this process were ready to run and did not, all together; 0 if the kernel does not count them. */
static double delay(void) {
        DIR *tasks = opendir("/proc/self/task");
        struct dirent *entry;
        double sum = 0;

        while (tasks && (entry = readdir(tasks))) {
                char path[sizeof("/proc/self/task//schedstat") + sizeof(entry->d_name)];
                uint64_t run, wait;
                FILE *stat;

                (void)snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", entry->d_name);
                stat = fopen(path, "re");
                if (stat && fscanf(stat, "%" SCNu64 " %" SCNu64, &run, &wait) == 2)
                        sum += 1e-9 * (double)wait;
                if (stat)
                        (void)fclose(stat);
        }
        if (tasks)
                (void)closedir(tasks);
        return sum;
}

struct bench_mark bench_begin(void) {
        struct bench_mark mark = { .delay = delay() };

        mark.cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
        mark.wall = seconds(CLOCK_MONOTONIC);
        return mark;
}

struct bench_span bench_end(const struct bench_mark *mark, uint32_t threads) {
        double wall = seconds(CLOCK_MONOTONIC) - mark->wall, cpu = (seconds(CLOCK_PROCESS_CPUTIME_ID) - mark->cpu) / threads;

        if (bench_by_cpu_time())
                return (struct bench_span){ .seconds = cpu };
        return (struct bench_span){ .seconds = wall, .stolen = (delay() - mark->delay) / threads / wall };
}

void bench_add(struct bench_series *series, double value) {
        if (series->count < BENCH_REPEATS_MAX)
                series->value[series->count++] = value;
}

static int compare(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

bool bench_enough(const struct bench_series *series, uint32_t repeats) {
        return series->count >= CKV_MIN(repeats, BENCH_REPEATS_MIN);
}

double bench_quantile(const struct bench_series *series, double part) {
        struct bench_series sorted = *series;

        if (sorted.count == 0)
                return 0;
        qsort(sorted.value, sorted.count, sizeof(sorted.value[0]), compare);
        return sorted.value[(uint32_t)(part * (sorted.count - 1) + 0.5)];
}

double bench_median(const struct bench_series *series) {
        return bench_quantile(series, 0.5);
}

double bench_spread(const struct bench_series *series) {
        double median = bench_median(series);

        return median > 0 ? (bench_quantile(series, 0.75) - bench_quantile(series, 0.25)) / median : 0;
}

void bench_print_counts(const struct bench_series *series, bool counts, uint32_t kept, uint32_t dropped) {
        if (counts)
                (void)printf(", \"spread\": %.4f", bench_spread(series));
        else
                (void)printf(", \"spread\": null");
        (void)printf(", \"kept\": %u, \"dropped\": %u}\n", kept, dropped);
        (void)fflush(stdout);
}

bool bench_disturbed(double before, double after, double stolen) {
        if (bench_by_cpu_time())
                return false;
        return CKV_MAX(before, after) - CKV_MIN(before, after) > DIFFERENCE_MAX * CKV_MAX(before, after) || stolen > STOLEN_MAX;
}

bool bench_add_between(struct bench_series *series, const struct bench_span spans[static 3]) {
        double stolen = CKV_MAX(spans[1].stolen, CKV_MAX(spans[0].stolen, spans[2].stolen));

        if (bench_disturbed(spans[0].seconds, spans[2].seconds, stolen))
                return false;
        bench_add(series, spans[1].seconds);
        return true;
}

void *bench_alloc(size_t bytes) {
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (p == MAP_FAILED) {
                perror("mmap");
                exit(EXIT_FAILURE);
        }
        (void)madvise(p, bytes, MADV_HUGEPAGE);
        return p;
}
