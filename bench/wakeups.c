/*
 * A round trip between processes is hardly more than threads that are woken:
 * what a wake-up costs depends on where the scheduler puts them, how many there
 * are does not.  Both are read from /proc, because a figure of this process
 * alone (getrusage()) would leave out the other side.
 *
 * Reading takes longer than a trip: read before and after many of them, never
 * in between.
 */
#include "bench/wakeups.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char SLEEPS[] = "voluntary_ctxt_switches:", PREEMPTIONS[] = "nonvoluntary_ctxt_switches:";

/* Return: false if the thread is gone, or nothing is counted */
static bool add_thread(pid_t pid, const char *thread, struct bench_wakeups *wakeups) {
        char path[128], line[256];
        uint64_t run;
        bool told = false;
        FILE *file;

        (void)snprintf(path, sizeof(path), "/proc/%d/task/%.20s/status", pid, thread);
        file = fopen(path, "re");
        while (file && fgets(line, sizeof(line), file))
                if (strncmp(line, SLEEPS, strlen(SLEEPS)) == 0) {
                        wakeups->sleeps += strtoull(line + strlen(SLEEPS), NULL, 10);
                        told = true;
                } else if (strncmp(line, PREEMPTIONS, strlen(PREEMPTIONS)) == 0)
                        wakeups->preemptions += strtoull(line + strlen(PREEMPTIONS), NULL, 10);
        if (file)
                (void)fclose(file);
        (void)snprintf(path, sizeof(path), "/proc/%d/task/%.20s/schedstat", pid, thread);
        file = fopen(path, "re");
        if (!file)
                return false;
        told = fscanf(file, "%" SCNu64, &run) == 1 && told;
        (void)fclose(file);
        if (told)
                wakeups->run_nsec += run;
        return told;
}

static bool add_process(pid_t pid, struct bench_wakeups *wakeups) {
        char path[32];
        struct dirent *entry;
        DIR *tasks;
        bool told;

        (void)snprintf(path, sizeof(path), "/proc/%d/task", pid);
        tasks = opendir(path);
        told = tasks != NULL;
        while (told && (entry = readdir(tasks)))
                if (entry->d_name[0] != '.')
                        told = add_thread(pid, entry->d_name, wakeups);
        if (tasks)
                (void)closedir(tasks);
        return told;
}

bool bench_wakeups_of(const pid_t *pids, size_t count, struct bench_wakeups *ret_wakeups) {
        struct bench_wakeups wakeups = { 0 };

        for (size_t i = 0; i < count; i++)
                if (!add_process(pids[i], &wakeups))
                        return false;
        *ret_wakeups = wakeups;
        return true;
}
