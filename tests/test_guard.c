/*
 * Memory that goes away under readers: truncated, punched out, short of huge
 * pages.  Each must end as a mark on the right guard, and a SIGBUS that is
 * nobody's fault but ours must still kill.
 */
#include "base/guard.h"

#include "base/macros.h"
#include "tests/support_files.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { PAGE = 4096, BYTES = 4 << 20, THREADS = 4, ROUNDS = CKV_SANITIZED ? 50 : 200 };
#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* One file, mapped as the core maps it. */
struct memory {
        int fd;
        uint8_t *at;
        size_t bytes;
        struct ckv_guard *guard;
};

static void setup(void) {
        ck_assert_int_eq(ckv_guard_install(), 0);
}

static struct memory memory_new(size_t bytes, int seals, bool writable) {
        struct memory memory = { .fd = support_memfd(bytes, bytes, seals), .bytes = bytes };

        memory.at = mmap(NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, memory.fd, 0);
        ck_assert_ptr_ne(memory.at, MAP_FAILED);
        memory.guard = ckv_guard_add(memory.at, bytes, writable);
        ck_assert_ptr_nonnull(memory.guard);
        return memory;
}

static void memory_end(struct memory *memory) {
        memory->guard = ckv_guard_remove(memory->guard);
        ck_assert_int_eq(munmap(memory->at, memory->bytes), 0);
        (void)close(memory->fd);
}

static void punch(const struct memory *memory, size_t offset, size_t bytes) {
        ck_assert_int_eq(fallocate(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes), 0);
}

static uint8_t look(const struct memory *memory, size_t offset) {
        return ((const volatile uint8_t *)memory->at)[offset];
}

/* Threads that read, or write, all of it over and over. */
struct worker {
        pthread_t thread;
        const struct memory *memory;
        size_t first;                   /* each has bytes of its own */
        bool writes;
        atomic_bool *stop;
        atomic_uint *begun;
};

static void *work(void *argument) {
        const struct worker *worker = argument;
        volatile uint8_t *at = worker->memory->at;

        (void)atomic_fetch_add(worker->begun, 1);
        do
                for (size_t i = worker->first; i < worker->memory->bytes; i += 64 * THREADS)
                        if (worker->writes)
                                at[i] = 1;
                        else
                                (void)at[i];
        while (!atomic_load(worker->stop));
        return NULL;
}

/* One round: the threads are at work, the memory goes, they end. */
static bool lose_under_workers(bool truncate, bool writes) {
        struct memory memory = memory_new(BYTES, 0, writes);
        struct worker workers[THREADS];
        atomic_uint begun = 0;
        atomic_bool stop = false;
        sigset_t before;
        bool bad;

        ckv_guard_block_signals(&before);
        for (int i = 0; i < THREADS; i++) {
                workers[i] = (struct worker){ .memory = &memory, .first = 64 * (size_t)i, .writes = writes, .stop = &stop, .begun = &begun };
                ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        ck_assert_int_eq(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
        while (atomic_load(&begun) < THREADS)
                (void)usleep(10);
        if (truncate)
                ck_assert_int_eq(ftruncate(memory.fd, PAGE), 0);
        else
                punch(&memory, PAGE, BYTES - PAGE);
        atomic_store(&stop, true);
        for (int i = 0; i < THREADS; i++)
                ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
        /* those that were through with their last round look once more */
        (void)look(&memory, BYTES - 1);
        bad = ckv_guard_bad(memory.guard);
        memory_end(&memory);
        return bad;
}

static bool holes_are_noticed(void) {
        struct memory memory = memory_new(PAGE, 0, false);
        bool watches = ckv_guard_watches(memory.guard);

        memory_end(&memory);
        return watches;
}

START_TEST(truncation_under_readers_and_writers) {
        for (int round = 0; round < ROUNDS; round++)
                ck_assert(lose_under_workers(true, round % 2 == 1));
}
END_TEST

START_TEST(holes_under_readers_and_writers) {
        if (holes_are_noticed())
                for (int round = 0; round < ROUNDS; round++)
                        ck_assert(lose_under_workers(false, round % 2 == 1));
}
END_TEST

START_TEST(only_the_mapping_that_was_hit_is_bad) {
        struct memory memories[600];

        for (size_t i = 0; i < CKV_ARRAY_SIZE(memories); i++)
                memories[i] = memory_new(2 * PAGE, 0, i % 2);
        /* used again: entries of the first half stand for other mappings now */
        for (size_t i = 0; i < CKV_ARRAY_SIZE(memories) / 2; i++) {
                memory_end(&memories[i]);
                memories[i] = memory_new(3 * PAGE, 0, true);
        }
        for (size_t i = 0; i < CKV_ARRAY_SIZE(memories); i += 7) {
                ck_assert_int_eq(ftruncate(memories[i].fd, PAGE), 0);
                ck_assert_uint_eq(look(&memories[i], 2 * PAGE - 1), 0);
        }
        for (size_t i = 0; i < CKV_ARRAY_SIZE(memories); i++) {
                ck_assert_int_eq(ckv_guard_bad(memories[i].guard), i % 7 == 0);
                memory_end(&memories[i]);
        }
}
END_TEST

START_TEST(a_used_guard_begins_well) {
        struct memory memory = memory_new(PAGE, 0, true);
        const struct ckv_guard *guard = memory.guard;

        ck_assert_int_eq(ftruncate(memory.fd, 0), 0);
        (void)look(&memory, 0);
        ck_assert(ckv_guard_bad(memory.guard));
        memory_end(&memory);
        memory = memory_new(PAGE, 0, true);
        ck_assert_ptr_eq(memory.guard, guard);
        ck_assert(!ckv_guard_bad(memory.guard));
        memory_end(&memory);
}
END_TEST

START_TEST(zeros_take_the_place_of_the_whole_mapping) {
        struct memory memory = memory_new(4 * PAGE, 0, true);

        memory.at[0] = 7;
        ck_assert_int_eq(ftruncate(memory.fd, 3 * PAGE), 0);
        memory.at[4 * PAGE - 1] = 5;
        ck_assert(ckv_guard_bad(memory.guard));
        ck_assert_uint_eq(look(&memory, 0), 0);
        ck_assert_uint_eq(look(&memory, 4 * PAGE - 1), 5);
        memory_end(&memory);
}
END_TEST

START_TEST(a_hole_costs_nothing_to_read) {
        struct memory memory = memory_new(BYTES, ALL_SEALS, false);
        struct stat st;

        if (ckv_guard_watches(memory.guard)) {
                punch(&memory, 0, BYTES);
                for (size_t i = 0; i < BYTES; i += PAGE)
                        ck_assert_uint_eq(look(&memory, i), 0);
                ck_assert(ckv_guard_bad(memory.guard));
                ck_assert_int_eq(fstat(memory.fd, &st), 0);
                ck_assert_int_eq(st.st_blocks, 0);
        }
        memory_end(&memory);
}
END_TEST

START_TEST(memory_sealed_for_good_needs_no_watch) {
        struct memory memory = memory_new(2 * PAGE, ALL_SEALS | F_SEAL_FUTURE_WRITE, false);

        ck_assert(!ckv_guard_watches(memory.guard));
        ck_assert_int_lt(fallocate(memory.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), 0);
        (void)look(&memory, PAGE);
        ck_assert(!ckv_guard_bad(memory.guard));
        memory_end(&memory);
}
END_TEST

/* killed_by() - the signal that ends a child which does this, 0 if none does */
static int killed_by(void (*act)(void)) {
        int status;
        pid_t child = fork();

        if (child == 0) {
                act();
                _exit(0);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void fault_without_a_guard(void) {
        struct memory guarded = memory_new(PAGE, 0, false);
        int fd = support_memfd(2 * PAGE, 2 * PAGE, 0);
        const volatile uint8_t *at = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, 0);

        (void)ckv_guard_bad(guarded.guard);
        if (ftruncate(fd, 0) == 0)
                (void)at[PAGE];
}

static void fault_after_remove(void) {
        struct memory memory = memory_new(PAGE, 0, false);

        memory.guard = ckv_guard_remove(memory.guard);
        if (ftruncate(memory.fd, 0) == 0)
                (void)look(&memory, 0);
}

static void be_sent_one(void) {
        (void)raise(SIGBUS);
}

static void fault_beside_a_guard(void) {
        int fd = support_memfd(3 * PAGE, 3 * PAGE, 0);
        uint8_t *at = mmap(NULL, 3 * PAGE, PROT_READ, MAP_SHARED, fd, 0);

        if (!ckv_guard_add(at + PAGE, PAGE, false) || ftruncate(fd, 0) < 0)
                _exit(0);
        (void)((const volatile uint8_t *)at)[2 * PAGE];
}

START_TEST(other_bus_errors_kill) {
        void (*const acts[])(void) = { fault_without_a_guard, fault_after_remove, be_sent_one, fault_beside_a_guard };

        /* a sanitizer's own handler was there before, and ends the process by other means */
        for (size_t i = 0; !CKV_SANITIZED && i < CKV_ARRAY_SIZE(acts); i++)
                ck_assert_int_eq(killed_by(acts[i]), SIGBUS);
}
END_TEST

START_TEST(no_huge_page_is_left) {
        const size_t huge = 2 << 20;
        struct memory memory = { .fd = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB), .bytes = huge };

        int pool = open("/proc/sys/vm/nr_hugepages", O_RDONLY | O_CLOEXEC);
        char pages[2] = { 0 };

        /* only an empty pool is short of pages for certain */
        if (memory.fd < 0 || ftruncate(memory.fd, (off_t)huge) < 0 || read(pool, pages, 2) != 2 || memcmp(pages, "0\n", 2) != 0)
                return;
        (void)close(pool);
        /* nothing is reserved, so the page is looked for at the first access */
        memory.at = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.fd, 0);
        ck_assert_ptr_ne(memory.at, MAP_FAILED);
        memory.guard = ckv_guard_add(memory.at, huge, true);
        ck_assert_uint_eq(look(&memory, 5), 0);
        ck_assert(ckv_guard_bad(memory.guard));
        memory_end(&memory);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("guard");
        TCase *tcase = tcase_create("guard");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_set_timeout(tcase, 120);
        tcase_add_test(tcase, truncation_under_readers_and_writers);
        tcase_add_test(tcase, holes_under_readers_and_writers);
        tcase_add_test(tcase, only_the_mapping_that_was_hit_is_bad);
        tcase_add_test(tcase, a_used_guard_begins_well);
        tcase_add_test(tcase, zeros_take_the_place_of_the_whole_mapping);
        tcase_add_test(tcase, a_hole_costs_nothing_to_read);
        tcase_add_test(tcase, memory_sealed_for_good_needs_no_watch);
        tcase_add_test(tcase, other_bus_errors_kill);
        tcase_add_test(tcase, no_huge_page_is_left);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed > 0;
}
