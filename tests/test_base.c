/*
 * base/: hash and checksum against the published vectors, random bytes, and a
 * log whose lines cannot be forged and whose reader may be asleep.
 */
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/fnv.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/macros.h"
#include "base/random.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

START_TEST(siphash_published_vectors) {
        /* "SipHash: a fast short-input PRF", appendix A, and the authors' vectors: key 00..0f, message 00 01 02 .. */
        static const struct {
                size_t n;
                uint64_t digest;
        } vectors[] = {
                { 0, UINT64_C(0x726fdb47dd0e0e31) }, { 1, UINT64_C(0x74f839c593dc67fd) }, { 7, UINT64_C(0xab0200f58b01d137) },
                { 8, UINT64_C(0x93f5f5799a932462) }, { 15, UINT64_C(0xa129ca6149be45e5) },
        };
        const uint64_t key[2] = { UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908) };
        uint8_t message[16];

        for (uint8_t i = 0; i < sizeof(message); i++)
                message[i] = i;
        for (size_t i = 0; i < CKV_ARRAY_SIZE(vectors); i++)
                ck_assert_uint_eq(ckv_siphash24(key, message, vectors[i].n), vectors[i].digest);
}
END_TEST

START_TEST(fnv_of_words_is_that_of_their_bytes) {
        uint32_t words[64], seed = 1;

        /* the vector of draft-eastlake-fnv for "foobar" */
        ck_assert_uint_eq(ckv_fnv64(CKV_FNV64_INIT, "foobar", 6), UINT64_C(0x85944171f73967e8));
        for (int round = 0; round < 2000; round++) {
                for (size_t i = 0; i < CKV_ARRAY_SIZE(words); i++) {
                        seed = seed * 1664525 + 1013904223;
                        words[i] = seed >> seed % 32 & (seed % 3 ? UINT32_MAX : 0xff00ff00);
                }
                words[0] = 0xff;
                words[1] = 0x100;
                words[2] = 0xffff;
                words[3] = 0x10000;
                words[4] = UINT32_MAX;
                words[5] = 0;
                ck_assert_uint_eq(ckv_fnv64_words((uint64_t)round, words, CKV_ARRAY_SIZE(words)),
                                  ckv_fnv64((uint64_t)round, words, sizeof(words)));
        }
}
END_TEST

START_TEST(crc32c_published_vectors) {
        /* the check value of every catalogue of CRCs, and RFC 3720, B.4 */
        uint8_t bytes[32], unaligned[100];

        ck_assert_uint_eq(ckv_crc32c("123456789", 9), 0xe3069283);
        ck_assert_uint_eq(ckv_crc32c("", 0), 0);
        memset(bytes, 0, sizeof(bytes));
        ck_assert_uint_eq(ckv_crc32c(bytes, sizeof(bytes)), 0x8a9136aa);
        memset(bytes, 0xff, sizeof(bytes));
        ck_assert_uint_eq(ckv_crc32c(bytes, sizeof(bytes)), 0x62a8ab43);
        for (uint8_t i = 0; i < sizeof(bytes); i++)
                bytes[i] = i;
        ck_assert_uint_eq(ckv_crc32c(bytes, sizeof(bytes)), 0x46dd794e);
        ck_assert_int_eq(ckv_random(unaligned, sizeof(unaligned)), 0);
        for (size_t from = 0; from < 9; from++)
                for (size_t n = 0; n + from <= sizeof(unaligned); n++)
                        ck_assert_uint_eq(ckv_crc32c(unaligned + from, n), ckv_crc32c_portable(unaligned + from, n));
}
END_TEST

struct item {
        uint32_t id;
        UT_hash_handle hh;
};

START_TEST(hash_seeded_table_works) {
        struct item items[1000], *table = NULL, *found;
        uint32_t before = ckv_hash("x", 1), id;

        ck_assert_int_eq(ckv_hash_seed(), 0);
        /* one chance in 2^32 to be equal by accident */
        ck_assert_uint_ne(ckv_hash("x", 1), before);
        for (uint32_t i = 0; i < 1000; i++) {
                items[i].id = i * 7;
                HASH_ADD(hh, table, id, sizeof(items[i].id), &items[i]);
                ck_assert(CKV_HASH_ADDED(&items[i]));
        }
        for (uint32_t i = 0; i < 1000; i++) {
                id = i * 7;
                HASH_FIND(hh, table, &id, sizeof(id), found);
                ck_assert_ptr_eq(found, &items[i]);
        }
        id = 3;
        HASH_FIND(hh, table, &id, sizeof(id), found);
        ck_assert_ptr_null(found);
        HASH_CLEAR(hh, table);
}
END_TEST

START_TEST(random_differs) {
        uint8_t a[600] = { 0 }, b[600] = { 0 };

        ck_assert_int_eq(ckv_random(a, sizeof(a)), 0);
        ck_assert_int_eq(ckv_random(b, sizeof(b)), 0);
        ck_assert_int_ne(memcmp(a, b, sizeof(a)), 0);
        /* the second half too: more than 256 bytes may come in parts */
        ck_assert_int_ne(memcmp(a + 300, b + 300, 300), 0);
        ck_assert_int_eq(ckv_random(a, 0), 0);
}
END_TEST

/* catch_stderr() - from now on stderr is a pipe. Return: its reading end. */
static int catch_stderr(void) {
        int ends[2];

        ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
        ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
        (void)close(ends[1]);
        ck_assert_int_eq(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
        return ends[0];
}

static const char *caught(int fd) {
        static char text[8192];
        ssize_t n = read(fd, text, sizeof(text) - 1);

        text[n > 0 ? n : 0] = '\0';
        return text;
}

START_TEST(log_line_forms) {
        int fd = catch_stderr();

        ckv_log_open("unit", CKV_LOG_INFO);
        ckv_log(CKV_LOG_WARNING, GATE_DIED, "endpoint=%s deaths=%d", "main", 3);
        ck_assert_str_eq(caught(fd), "unit: warning: GATE_DIED endpoint=main deaths=3\n");
        ckv_log(CKV_LOG_DEBUG, GATE_DIED, "x=%d", 1);
        ck_assert_str_eq(caught(fd), "");
        /* bytes of others cannot forge a line */
        ckv_log(CKV_LOG_ERROR, SIDE_BREACH, "why=\"%s\"", "a\nunit: error: b\033[1m");
        ck_assert_str_eq(caught(fd), "unit: error: SIDE_BREACH why=\"a?unit: error: b?[1m\"\n");
}
END_TEST

START_TEST(log_journal_prefix) {
        char text[64];
        struct stat st;
        int fd = catch_stderr();

        ck_assert_int_eq(fstat(STDERR_FILENO, &st), 0);
        (void)snprintf(text, sizeof(text), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
        ck_assert_int_eq(setenv("JOURNAL_STREAM", text, 1), 0);
        ckv_log_open("unit", CKV_LOG_INFO);
        ckv_log(CKV_LOG_NOTICE, READY, "endpoints=%d", 1);
        ck_assert_str_eq(caught(fd), "<5>READY endpoints=1\n");
        /* inherited from somebody else: not our stderr */
        ck_assert_int_eq(setenv("JOURNAL_STREAM", "1:1", 1), 0);
        ckv_log_open("unit", CKV_LOG_INFO);
        ckv_log(CKV_LOG_NOTICE, READY, "endpoints=%d", 1);
        ck_assert_str_eq(caught(fd), "unit: notice: READY endpoints=1\n");
}
END_TEST

START_TEST(log_long_line_is_cut) {
        char field[3000];
        const char *line;
        int fd = catch_stderr();

        memset(field, 'f', sizeof(field) - 1);
        field[sizeof(field) - 1] = '\0';
        ckv_log(CKV_LOG_ERROR, START_FAILED, "why=%s", field);
        line = caught(fd);
        ck_assert_uint_eq(strlen(line), 1023);
        ck_assert_int_eq(line[1022], '\n');
}
END_TEST

START_TEST(log_sleeping_reader_does_not_block) {
        uint64_t begin, msec;
        char chunk[4096];
        int fd = catch_stderr();

        memset(chunk, 'x', sizeof(chunk));
        ck_assert_int_eq(fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK), 0);
        while (write(STDERR_FILENO, chunk, sizeof(chunk)) > 0)
                ;
        ck_assert_int_eq(fcntl(STDERR_FILENO, F_SETFL, 0), 0);

        begin = ckv_now_nsec();
        for (int i = 0; i < 200; i++)
                ckv_log(CKV_LOG_ERROR, START_FAILED, "i=%d", i);
        msec = (ckv_now_nsec() - begin) / CKV_NSEC_PER_MSEC;
        /* one wait of 50 ms, not 200 of them */
        ck_assert_uint_ge(msec, 40);
        ck_assert_uint_lt(msec, 1000);

        ck_assert_int_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
        while (*caught(fd))
                ;
        ckv_log(CKV_LOG_ERROR, START_FAILED, "awake=%d", 1);
        ck_assert_str_eq(caught(fd), "chunkkv: error: START_FAILED lines_lost_before=200 awake=1\n");
        ckv_log(CKV_LOG_ERROR, START_FAILED, "awake=%d", 2);
        ck_assert_str_eq(caught(fd), "chunkkv: error: START_FAILED awake=2\n");
}
END_TEST

START_TEST(log_once_and_rate) {
        struct ckv_log_rate rate = { 0 };
        uint64_t suppressed = 99, start = 5 * CKV_LOG_WINDOW_NSEC;
        bool logged = false;
        int fd = catch_stderr();

        for (int i = 0; i < 3; i++)
                ckv_log_once(&logged, CKV_LOG_ERROR, SIDE_REFUSED, "i=%d", i);
        ck_assert_str_eq(caught(fd), "chunkkv: error: SIDE_REFUSED i=0\n");

        for (int i = 0; i < CKV_LOG_BURST; i++) {
                ck_assert(ckv_log_allowed(&rate, start, &suppressed));
                ck_assert_uint_eq(suppressed, 0);
        }
        ck_assert(!ckv_log_allowed(&rate, start, &suppressed));
        ck_assert(!ckv_log_allowed(&rate, start + CKV_LOG_WINDOW_NSEC - 1, &suppressed));
        ck_assert(ckv_log_allowed(&rate, start + CKV_LOG_WINDOW_NSEC, &suppressed));
        ck_assert_uint_eq(suppressed, 2);
}
END_TEST

START_TEST(log_messages_are_explained) {
        for (int i = 0; i < _CKV_MSG_N; i++) {
                ck_assert_uint_gt(strlen(ckv_log_message_name((enum ckv_log_message)i)), 2);
                ck_assert_uint_gt(strlen(ckv_log_message_explanation((enum ckv_log_message)i)), 10);
        }
        ck_assert_str_eq(ckv_log_message_name(_CKV_MSG_N), "?");
}
END_TEST

int main(void) {
        Suite *suite = suite_create("base");
        TCase *tcase = tcase_create("base");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(tcase, siphash_published_vectors);
        tcase_add_test(tcase, fnv_of_words_is_that_of_their_bytes);
        tcase_add_test(tcase, crc32c_published_vectors);
        tcase_add_test(tcase, hash_seeded_table_works);
        tcase_add_test(tcase, random_differs);
        tcase_add_test(tcase, log_line_forms);
        tcase_add_test(tcase, log_journal_prefix);
        tcase_add_test(tcase, log_long_line_is_cut);
        tcase_add_test(tcase, log_sleeping_reader_does_not_block);
        tcase_add_test(tcase, log_once_and_rate);
        tcase_add_test(tcase, log_messages_are_explained);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
