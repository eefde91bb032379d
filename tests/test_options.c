/*
 * The command line of chunkkvd: defaults, bounds at limit - 1, limit and
 * limit + 1, and sentences that name option and limit.
 */
#include "daemon/options.h"

#include "base/macros.h"

#include <check.h>
#include <stdarg.h>
#include <string.h>

static char out_text[8192], err_text[1024];
static struct ckv_options options;

/* parse() - run a command line of at most 9 words, NULL-terminated; what it printed is in out_text and err_text */
static int parse(const char *first, ...) {
        static char words[10][256]; /* the options point into them */
        char *argv[11] = { NULL };
        FILE *out = fmemopen(out_text, sizeof(out_text), "w"), *err = fmemopen(err_text, sizeof(err_text), "w");
        va_list args;
        int argc = 0, r;

        memset(out_text, 0, sizeof(out_text));
        memset(err_text, 0, sizeof(err_text));
        strcpy(words[argc++], "chunkkvd");
        va_start(args, first);
        for (const char *word = first; word; word = va_arg(args, const char *))
                strcpy(words[argc++], word);
        va_end(args);
        for (int i = 0; i < argc; i++)
                argv[i] = words[i];
        r = ckv_options_parse(&options, argc, argv, out, err);
        (void)fclose(out);
        (void)fclose(err);
        return r;
}

#define PARSE(...) parse(__VA_ARGS__, (const char *)NULL)

START_TEST(defaults) {
        ck_assert_int_eq(PARSE(NULL), 0);
        ck_assert_str_eq(options.runtime_dir, "/run/chunkkv/cpu");
        ck_assert_uint_eq(options.endpoint.count, 1);
        ck_assert_str_eq(options.endpoint.items[0], "main");
        ck_assert_str_eq(options.gate, "");
        ck_assert_uint_eq(options.threads, 0);
        ck_assert_uint_eq(options.slice_usec, 2000);
        ck_assert_uint_eq(options.request_bytes, CKV_LIMIT_REQUEST_BYTES);
        ck_assert_uint_eq(options.reply_bytes, CKV_LIMIT_REPLY_BYTES);
        ck_assert_uint_eq(options.rows, CKV_LIMIT_ROWS);
        ck_assert_uint_eq(options.connections, CKV_LIMIT_CONNECTIONS);
        ck_assert_uint_eq(options.sessions, CKV_LIMIT_SESSIONS);
        ck_assert_uint_eq(options.regions, CKV_LIMIT_REGIONS);
        ck_assert_uint_eq(options.in_flight, CKV_LIMIT_IN_FLIGHT);
        ck_assert_uint_eq(options.mapped_bytes, 0);
        ck_assert_uint_eq(options.memory_limit, 0);
        ck_assert_uint_eq(options.queued_bytes_of_all, 0);
        ck_assert_uint_eq(options.device_time, 0);
        ck_assert_uint_eq(options.queued_bytes, CKV_LIMIT_QUEUED_BYTES);
        ck_assert_uint_eq(options.fds, CKV_LIMIT_FDS);
        ck_assert_uint_eq(options.socket_mode, 0660);
        ck_assert_uint_eq(options.log_level, CKV_LOG_INFO);
        ck_assert_uint_eq(options.stop_timeout, 30);
}
END_TEST

START_TEST(number_bounds) {
        ck_assert_int_eq(PARSE("--threads", "1023"), 0);
        ck_assert_int_eq(PARSE("--threads", "1024"), 0);
        ck_assert_uint_eq(options.threads, 1024);
        ck_assert_int_eq(PARSE("--threads", "1025"), CKV_OPTIONS_E_INVALID);
        ck_assert_str_eq(err_text, "--threads: must be 0 to 1024 threads, is \"1025\"\n");
        ck_assert_int_eq(PARSE("--slice-usec=99"), CKV_OPTIONS_E_INVALID);
        ck_assert_str_eq(err_text, "--slice-usec: must be 100 to 100000 us, is \"99\"\n");
        ck_assert_int_eq(PARSE("--slice-usec=100"), 0);
        ck_assert_int_eq(PARSE("--slice-usec=101"), 0);
        ck_assert_uint_eq(options.slice_usec, 101);
}
END_TEST

START_TEST(numbers_that_are_none) {
        static const char *const bad[] = { "", " 1", "-1", "+1", "0x10", "1 ", "1.5", "one", "18446744073709551616", "1K" };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++)
                ck_assert_int_eq(PARSE("--sessions", bad[i]), CKV_OPTIONS_E_INVALID);
        ck_assert_int_eq(PARSE("--sessions", "010"), 0);
        ck_assert_uint_eq(options.sessions, 10);
}
END_TEST

START_TEST(sizes_with_suffixes) {
        static const char *const bad[] = { "K", "1KB", "1.5G", "1 G", "17179869184T", "18446744073709551615K", "1P" };

        ck_assert_int_eq(PARSE("--mapped-bytes", "3T"), 0);
        ck_assert_uint_eq(options.mapped_bytes, UINT64_C(3) << 40);
        ck_assert_int_eq(PARSE("--queued-bytes", "1m"), 0);
        ck_assert_uint_eq(options.queued_bytes, 1 << 20);
        ck_assert_int_eq(PARSE("--queued-bytes", "1048575"), CKV_OPTIONS_E_INVALID);
        ck_assert_str_eq(err_text, "--queued-bytes: must be 1M to 16G bytes, is \"1048575\"\n");
        ck_assert_int_eq(PARSE("--request-bytes", "256K"), 0);
        ck_assert_int_eq(PARSE("--request-bytes", "262145"), CKV_OPTIONS_E_INVALID);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++)
                ck_assert_int_eq(PARSE("--mapped-bytes", bad[i]), CKV_OPTIONS_E_INVALID);
}
END_TEST

START_TEST(modes_and_levels) {
        ck_assert_int_eq(PARSE("--socket-mode", "777"), 0);
        ck_assert_uint_eq(options.socket_mode, 0777);
        ck_assert_int_eq(PARSE("--socket-mode", "0600"), 0);
        ck_assert_uint_eq(options.socket_mode, 0600);
        ck_assert_int_eq(PARSE("--socket-mode", "1000"), CKV_OPTIONS_E_INVALID);
        ck_assert_str_eq(err_text, "--socket-mode: must be 0000 to 0777, is \"1000\"\n");
        ck_assert_int_eq(PARSE("--socket-mode", "680"), CKV_OPTIONS_E_INVALID);
        ck_assert_int_eq(PARSE("--log-level", "debug"), 0);
        ck_assert_uint_eq(options.log_level, CKV_LOG_DEBUG);
        ck_assert_int_eq(PARSE("--log-level", "3"), CKV_OPTIONS_E_INVALID);
        ck_assert_str_eq(err_text, "--log-level: must be error, warning, notice, info or debug, is \"3\"\n");
}
END_TEST

START_TEST(endpoint_names) {
        static const char *const bad[] = { "", "Main", "a_b", "a/b", "..", "abcdefghijklmnopqrstuvwxy" };

        ck_assert_int_eq(PARSE("--endpoint", "a", "--endpoint=b-2", "--endpoint", "abcdefghijklmnopqrstuvwx"), 0);
        ck_assert_uint_eq(options.endpoint.count, 3);
        ck_assert_str_eq(options.endpoint.items[0], "a");
        ck_assert_str_eq(options.endpoint.items[2], "abcdefghijklmnopqrstuvwx");
        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++)
                ck_assert_int_eq(PARSE("--endpoint", bad[i]), CKV_OPTIONS_E_INVALID);
        ck_assert_int_eq(PARSE("--endpoint", "a", "--endpoint", "a"), CKV_OPTIONS_E_INVALID);
        ck_assert_str_eq(err_text, "--endpoint: \"a\" is given twice\n");
        ck_assert_int_eq(PARSE("--endpoint", "a:uid=1,5-9:gid=0", "--endpoint", "aa"), 0);
        ck_assert_str_eq(options.endpoint.items[0], "a:uid=1,5-9:gid=0");
        ck_assert(ckv_option_name_equal(options.endpoint.items[0], "a.zmq", 1));
        ck_assert(!ckv_option_name_equal(options.endpoint.items[1], "a.zmq", 1));
        ck_assert_int_eq(PARSE("--endpoint", "a:uid=1", "--endpoint", "a"), CKV_OPTIONS_E_INVALID);
        ck_assert_str_eq(err_text, "--endpoint: \"a\" is given twice\n");
        ck_assert_int_eq(PARSE("--endpoint", "a:uid=9-5"), CKV_OPTIONS_E_INVALID);
        ck_assert_str_eq(err_text, "--endpoint: \"a:uid=9-5\" has \"9-5\" in uid=, which is no number, range of numbers or name of a user\n");
        ck_assert_int_eq(PARSE("--endpoint", "A:uid=1"), CKV_OPTIONS_E_INVALID);
}
END_TEST

START_TEST(endpoints_at_most) {
        char words[CKV_OPTIONS_NAMES_MAX + 1][32], program[] = "chunkkvd", *argv[CKV_OPTIONS_NAMES_MAX + 3] = { program };
        FILE *null = fopen("/dev/null", "w");

        for (int i = 0; i <= CKV_OPTIONS_NAMES_MAX; i++) {
                (void)snprintf(words[i], sizeof(words[i]), "--endpoint=e%d", i);
                argv[i + 1] = words[i];
        }
        ck_assert_int_eq(ckv_options_parse(&options, CKV_OPTIONS_NAMES_MAX + 2, argv, null, null), CKV_OPTIONS_E_INVALID);
        argv[CKV_OPTIONS_NAMES_MAX + 1] = NULL;
        ck_assert_int_eq(ckv_options_parse(&options, CKV_OPTIONS_NAMES_MAX + 1, argv, null, null), 0);
        ck_assert_uint_eq(options.endpoint.count, CKV_OPTIONS_NAMES_MAX);
        (void)fclose(null);
}
END_TEST

START_TEST(text_lengths) {
        char path[80];

        memset(path, 'p', sizeof(path));
        path[78] = '\0';
        ck_assert_int_eq(PARSE("--runtime-dir", path), 0);
        ck_assert_str_eq(options.runtime_dir, path);
        path[78] = 'p';
        path[79] = '\0';
        ck_assert_int_eq(PARSE("--runtime-dir", path), CKV_OPTIONS_E_INVALID);
        ck_assert_str_eq(err_text, "--runtime-dir: must have 1 to 78 characters, has 79\n");
        ck_assert_int_eq(PARSE("--runtime-dir", ""), CKV_OPTIONS_E_INVALID);
        ck_assert_int_eq(PARSE("--gate", ""), 0);
}
END_TEST

START_TEST(what_is_no_option) {
        ck_assert_int_eq(PARSE("--frobnicate"), CKV_OPTIONS_E_INVALID);
        ck_assert_ptr_nonnull(strstr(err_text, "\"--frobnicate\""));
        ck_assert_int_eq(PARSE("-x"), CKV_OPTIONS_E_INVALID);
        ck_assert_int_eq(PARSE("--threads"), CKV_OPTIONS_E_INVALID);
        ck_assert_ptr_nonnull(strstr(err_text, "\"--threads\""));
        ck_assert_int_eq(PARSE("start"), CKV_OPTIONS_E_INVALID);
        ck_assert_ptr_nonnull(strstr(err_text, "\"start\""));
        /* ambiguous: --request-bytes, --reply-bytes, --regions, --rows, --runtime-dir */
        ck_assert_int_eq(PARSE("--r", "1"), CKV_OPTIONS_E_INVALID);
        ck_assert_str_eq(out_text, "");
}
END_TEST

/* The later value is never taken silently, whatever the type of the option, and not even if it is the same. */
START_TEST(given_twice) {
        static const char *const once[][3] = {
                { "--cpu-path", "scalar", "avx2" }, { "--cpu-path", "scalar", "scalar" }, { "--threads", "2", "3" },
                { "--scratch", "1M", "2M" }, { "--socket-mode", "600", "660" }, { "--log-level", "debug", "info" },
                { "--sandbox", "off", "on" },
        };
        char want[128];

        for (size_t i = 0; i < CKV_ARRAY_SIZE(once); i++) {
                ck_assert_int_eq(PARSE(once[i][0], once[i][1]), 0);
                ck_assert_int_eq(PARSE(once[i][0], once[i][1], "--rows", "7", once[i][0], once[i][2]), CKV_OPTIONS_E_INVALID);
                (void)snprintf(want, sizeof(want), "%s: is given twice, the second time as \"%s\"; it has one value\n", once[i][0], once[i][2]);
                ck_assert_str_eq(err_text, want);
        }
        /* an abbreviation is the same option */
        ck_assert_int_eq(PARSE("--cpu-path=avx2", "--cpu=avx2"), CKV_OPTIONS_E_INVALID);
        ck_assert_int_eq(PARSE("--cpu-path", ""), 0);
        ck_assert_int_eq(PARSE("--help", "--threads", "1", "--threads", "1"), CKV_OPTIONS_E_DONE);
}
END_TEST

/* What one backend alone has is no option of the other, whatever its value and wherever it stands. */
START_TEST(options_of_one_backend) {
        static const char *const cpu[][2] = { { "--threads", "2" }, { "--pin", "off" }, { "--cpu-path", "avx2" }, { "--scratch", "1M" } };
        static const char *const cuda[][2] = { { "--device", "0" }, { "--device-scratch", "256M" }, { "--device-timeout", "1" } };
        char want[64];

        for (size_t i = 0; i < CKV_ARRAY_SIZE(cpu); i++) {
                ck_assert_int_eq(PARSE(cpu[i][0], cpu[i][1], "--backend", "cpu"), 0);
                ck_assert_int_eq(PARSE(cpu[i][0], cpu[i][1], "--backend", "cuda"), CKV_OPTIONS_E_INVALID);
                (void)snprintf(want, sizeof(want), "%s: needs --backend cpu\n", cpu[i][0]);
                ck_assert_str_eq(err_text, want);
        }
        for (size_t i = 0; i < CKV_ARRAY_SIZE(cuda); i++) {
                ck_assert_int_eq(PARSE("--backend", "cuda", cuda[i][0], cuda[i][1]), 0);
                ck_assert_int_eq(PARSE(cuda[i][0], cuda[i][1]), CKV_OPTIONS_E_INVALID);
                (void)snprintf(want, sizeof(want), "%s: needs --backend cuda\n", cuda[i][0]);
                ck_assert_str_eq(err_text, want);
        }
        ck_assert_int_eq(PARSE("--backend", "cuda", "--slice-usec", "100"), 0);
        ck_assert_int_eq(PARSE("--backend", "gpu"), CKV_OPTIONS_E_INVALID);
        ck_assert_str_eq(err_text, "--backend: must be cpu or cuda, is \"gpu\"\n");
}
END_TEST

START_TEST(help_and_version) {
        ck_assert_int_eq(PARSE("--version"), CKV_OPTIONS_E_VERSION);
        ck_assert_int_eq(PARSE("--help"), CKV_OPTIONS_E_DONE);
#define OPT(name, TYPE, value, min, max, unit, help) ck_assert_ptr_nonnull(strstr(out_text, help));
#include "daemon/options.def"
#undef OPT
        ck_assert_ptr_nonnull(strstr(out_text, "  --socket-mode    "));
        ck_assert_ptr_nonnull(strstr(out_text, "[0660]"));
        ck_assert_ptr_nonnull(strstr(out_text, "[256M bytes]"));
        ck_assert_str_eq(err_text, "");
}
END_TEST

int main(void) {
        Suite *suite = suite_create("options");
        TCase *tcase = tcase_create("options");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(tcase, defaults);
        tcase_add_test(tcase, number_bounds);
        tcase_add_test(tcase, numbers_that_are_none);
        tcase_add_test(tcase, sizes_with_suffixes);
        tcase_add_test(tcase, modes_and_levels);
        tcase_add_test(tcase, endpoint_names);
        tcase_add_test(tcase, endpoints_at_most);
        tcase_add_test(tcase, text_lengths);
        tcase_add_test(tcase, what_is_no_option);
        tcase_add_test(tcase, given_twice);
        tcase_add_test(tcase, options_of_one_backend);
        tcase_add_test(tcase, help_and_version);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
