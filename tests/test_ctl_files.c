/*
 * What chunkkvctl reads and writes besides safetensors: .npy files good and
 * bad, lists of tokens, and files that are written whole or not at all.
 */
#include "base/macros.h"
#include "tools/files.h"
#include "tools/npy.h"
#include "tools/tokens.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* ---- .npy */

/* A file of format @major with this header and @data_size zero bytes. Return: its size. */
static size_t npy_make(uint8_t bytes[static 1024], uint8_t major, const char *header, size_t data_size) {
        size_t length = strlen(header), start = major == 1 ? 10 : 12;
        uint32_t length_32 = (uint32_t)length;

        ck_assert_uint_le(start + length + data_size, 1024);
        memset(bytes, 0, 1024);
        memcpy(bytes, "\x93NUMPY", 6);
        bytes[6] = major;
        memcpy(bytes + 8, &length_32, start - 8);
        memcpy(bytes + start, header, length);
        return start + length + data_size;
}

#define NPY(descr, order, shape) "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }"

START_TEST(npy_good) {
        static const struct { uint8_t major; const char *header; size_t data; bool bf16; const char *dtype; } good[] = {
                { 1, NPY("'<f4'", "False", "(2, 1, 3)") "      \n", 24, false, "F32" },
                { 2, NPY("'<f2'", "False", "(2, 1, 3)"), 12, false, "F16" },
                { 3, NPY("'<V2'", "False", "(2, 1, 3,)"), 12, false, "BF16" },
                { 1, NPY("'|V2'", "False", "(2,1,3)"), 12, false, "BF16" },
                { 1, NPY("'<u2'", "False", "(2, 1, 3)"), 12, true, "BF16" },
                { 1, NPY("\"<i2\"", "False", "(2, 1, 3)"), 12, true, "BF16" },
                { 1, "{'shape':(2,1,3),'fortran_order':False,'descr':'<f2'}", 12, true, "F16" },
        };
        uint8_t bytes[1024];

        for (size_t i = 0; i < CKV_ARRAY_SIZE(good); i++) {
                size_t size = npy_make(bytes, good[i].major, good[i].header, good[i].data);
                char why[CKV_SAFETENSORS_WHY] = "";
                struct ckv_tensor tensor;

                ck_assert_msg(ckv_npy_parse(bytes, size, good[i].bf16, "x", &tensor, why) == 0, "%s: %s",
                              good[i].header, why);
                ck_assert_str_eq(tensor.dtype, good[i].dtype);
                ck_assert_str_eq(tensor.name, "x");
                ck_assert_uint_eq(tensor.rank, 3);
                ck_assert(tensor.shape[0] == 2 && tensor.shape[1] == 1 && tensor.shape[2] == 3);
                ck_assert_uint_eq(tensor.size, good[i].data);
                ck_assert_ptr_eq(tensor.data, bytes + size - good[i].data);
        }
}
END_TEST

START_TEST(npy_bad) {
        static const struct { const char *header; size_t data; const char *word; } bad[] = {
                { NPY("'<f4'", "False", "(2, 1, 3)"), 23, "cut short" },
                { NPY("'<f4'", "False", "(2, 1, 3)"), 25, "goes on" },
                { NPY("'<f8'", "False", "(1,)"), 8, "<f8" }, { NPY("'>f4'", "False", "(1,)"), 4, ">f4" },
                { NPY("'<u2'", "False", "(1,)"), 2, "--dtype bf16" }, { NPY("'|u1'", "False", "(1,)"), 1, "|u1" },
                { NPY("'<f4'", "True", "(2, 1, 3)"), 24, "Fortran" },
                { NPY("'<f4'", "maybe", "(1,)"), 4, "fortran_order" },
                { NPY("[('a', '<f4')]", "False", "(1,)"), 4, "one type" }, { NPY("'<f4", "False", "(1,)"), 4, "dict" },
                { NPY("'<f4'", "False", "(-1,)"), 4, "shape" }, { NPY("'<f4'", "False", "(1.0,)"), 4, "shape" },
                { NPY("'<f4'", "False", "1"), 4, "shape" },
                { NPY("'<f4'", "False", "(1,1,1,1,1,1,1,1,1)"), 4, "shape" },
                { NPY("'<f4'", "False", "(1 1)"), 4, "shape" }, { NPY("'<f4'", "False", "(,)"), 4, "shape" },
                { NPY("'<f4'", "False", "(18446744073709551616,)"), 4, "shape" },
                { NPY("'<f4'", "False", "(4294967296, 4294967296)"), 0, "cut short" },
                { "{'descr': '<f4', 'shape': (1,), }", 4, "lacks" }, { "{}", 0, "lacks" }, { "", 0, "dict" },
                { "{'descr': '<f4', 'descr': '<f4', }", 4, "twice" }, { "{'colour': 'red'}", 4, "colour" },
                { "{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}", 4, "dict" }, { "{'descr'", 0, "dict" },
                { "{'a_key_that_is_longer_than_any_key_can_be': 1}", 0, "dict" }, { "('descr', '<f4')", 0, "dict" },
                { NPY("'<f4'", "False", "(1,)") " # x", 4, "goes on" },
        };
        uint8_t bytes[1024];

        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++) {
                size_t size = npy_make(bytes, 1, bad[i].header, bad[i].data);
                struct ckv_tensor tensor = { .rank = 77 };
                char why[CKV_SAFETENSORS_WHY] = "";

                ck_assert_msg(ckv_npy_parse(bytes, size, false, "x", &tensor, why) == -EBADMSG, "%s", bad[i].header);
                ck_assert_msg(strstr(why, bad[i].word), "%s: %s", bad[i].header, why);
                ck_assert_uint_eq(tensor.rank, 77);
        }
}
END_TEST

/* Every prefix of a good file is refused, and read within its bounds (the asan build sees to that). */
START_TEST(npy_cut) {
        uint8_t bytes[1024];
        char why[CKV_SAFETENSORS_WHY];
        struct ckv_tensor tensor;

        for (uint8_t major = 1; major <= 3; major++) {
                size_t size = npy_make(bytes, major, NPY("'<f4'", "False", "(2, 1, 3)"), 24);

                for (size_t n = 0; n < size; n++) {
                        /* of its own exact size */
                        _cleanup_free_ uint8_t *copy = malloc(CKV_MAX(n, (size_t)1));

                        ck_assert_ptr_nonnull(copy);
                        memcpy(copy, bytes, n);
                        ck_assert_int_eq(ckv_npy_parse(copy, n, false, "x", &tensor, why), -EBADMSG);
                }
                bytes[6] = 4;
                ck_assert_int_eq(ckv_npy_parse(bytes, size, false, "x", &tensor, why), -EBADMSG);
                ck_assert_ptr_nonnull(strstr(why, "format 4.0"));
        }
}
END_TEST

/* ---- tokens */

START_TEST(tokens_in_both_forms) {
        static const char *const good[] = {
                "[\"a\", \"\\n\", \"\"]", " {\"pieces\": [\"a\", \"\\n\", \"\"], \"tokens\": 3} \n",
                "{\"tokens\": [\"a\", \"\\n\", \"\"]}", "{\"tokens\": [7], \"pieces\": [\"a\", \"\\n\", \"\"]}",
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(good); i++) {
                char why[CKV_FILES_WHY] = "";
                struct ckv_tokens tokens;

                ck_assert_msg(ckv_tokens_parse(good[i], strlen(good[i]), &tokens, why) == 0, "%s: %s", good[i], why);
                ck_assert_uint_eq(tokens.count, 3);
                ck_assert_str_eq(tokens.pieces[0], "a");
                ck_assert_str_eq(tokens.pieces[1], "\n");
                ck_assert_str_eq(tokens.pieces[2], "");
                ckv_tokens_deinit(&tokens);
        }
}
END_TEST

START_TEST(tokens_refused) {
        static const struct { const char *text, *word; } bad[] = {
                { "", "no JSON" }, { "[\"a\"", "no JSON" }, { "[\"a\", 7]", "entry 1" }, { "7", "no list" },
                { "{}", "no list" },
                { "{\"tokens\": 1024}", "no list" }, { "[\"a\"] x", "goes on" }, { "[null]", "entry 0" },
                { "[\"\\ud800\"]", "\\ud800 at byte 2 is half a character" },
                { "[\"a\", \"\\uDC00\"]", "\\uDC00 at byte 7 is half" },
                { "[\"\\ud83d\\u0041\"]", "half a character" }, { "[\"\\ud83d\\ude00", "no JSON" },
                { "[\"\\ud8", "no JSON" },
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++) {
                char why[CKV_FILES_WHY] = "";
                struct ckv_tokens tokens;

                ck_assert_msg(ckv_tokens_parse(bad[i].text, strlen(bad[i].text), &tokens, why) == -EBADMSG, "%s",
                              bad[i].text);
                ck_assert_msg(strstr(why, bad[i].word), "%s: %s", bad[i].text, why);
        }
}
END_TEST

/* ---- files written */

static char directory[64];

static void directory_make(void) {
        (void)strcpy(directory, "/tmp/ckv-files-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(directory));
        ck_assert_int_eq(chdir(directory), 0);
}

static void directory_remove(void) {
        (void)unlink("out");
        (void)unlink("in");
        ck_assert_int_eq(chdir("/"), 0);
        /* fails if a temporary file is left */
        ck_assert_int_eq(rmdir(directory), 0);
}

static void text_write(const char *path, const char *text) {
        FILE *file = fopen(path, "w");

        ck_assert_ptr_nonnull(file);
        ck_assert_int_ge(fputs(text, file), 0);
        ck_assert_int_eq(fclose(file), 0);
}

static void text_is(const char *path, const char *text) {
        char bytes[64] = "";
        int fd = open(path, O_RDONLY | O_CLOEXEC);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_ge(read(fd, bytes, sizeof(bytes) - 1), 0);
        (void)close(fd);
        ck_assert_str_eq(bytes, text);
}

START_TEST(output_is_whole_or_not) {
        char why[CKV_FILES_WHY];
        struct ckv_output output;
        uint64_t size;

        /* given up: nothing under the name */
        ck_assert_int_eq(ckv_output_open("out", false, &output, why), 0);
        (void)fputs("half", output.stream);
        ckv_output_close(&output);
        ck_assert_int_eq(access("out", F_OK), -1);
        /* committed */
        ck_assert_int_eq(ckv_output_open("out", false, &output, why), 0);
        (void)fputs("whole", output.stream);
        ck_assert_int_eq(access("out", F_OK), -1);
        ck_assert_int_eq(ckv_output_commit(&output, &size, why), 0);
        ckv_output_close(&output);
        ck_assert_uint_eq(size, 5);
        text_is("out", "whole");
        /* another one came there in the meantime */
        ck_assert_int_eq(ckv_output_open("out", false, &output, why), 0);
        (void)fputs("second", output.stream);
        ck_assert_int_eq(ckv_output_commit(&output, &size, why), -EEXIST);
        ckv_output_close(&output);
        text_is("out", "whole");
        ck_assert_int_eq(ckv_output_open("out", true, &output, why), 0);
        (void)fputs("second", output.stream);
        ck_assert_int_eq(ckv_output_commit(&output, &size, why), 0);
        ckv_output_close(&output);
        text_is("out", "second");
        ck_assert_int_eq(ckv_output_open("no/such/folder", true, &output, why), -ENOENT);
        ckv_output_close(&output);
}
END_TEST

START_TEST(output_full_disk) {
        char why[CKV_FILES_WHY];
        struct ckv_output output;
        uint64_t size;

        ck_assert_int_eq(ckv_output_open("out", false, &output, why), 0);
        /* /dev/full stands for the disk */
        output.stream = freopen("/dev/full", "w", output.stream);
        ck_assert_ptr_nonnull(output.stream);
        for (int i = 0; i < 100000; i++)
                (void)fputs("more than the stream holds back", output.stream);
        ck_assert_int_eq(ckv_output_commit(&output, &size, why), -EIO);
        ckv_output_close(&output);
        ck_assert_int_eq(access("out", F_OK), -1);
}
END_TEST

START_TEST(output_places) {
        const char *const inputs[] = { NULL, "in" };
        char why[CKV_FILES_WHY];

        text_write("in", "x");
        ck_assert_int_eq(ckv_output_check("out", false, inputs, 2, why), 0);
        ck_assert_int_eq(ckv_output_check("in", true, inputs, 2, why), -EINVAL);
        ck_assert_int_eq(link("in", "out"), 0);
        ck_assert_int_eq(ckv_output_check("out", true, inputs, 2, why), -EINVAL);
        ck_assert_int_eq(unlink("out"), 0);
        text_write("out", "y");
        ck_assert_int_eq(ckv_output_check("out", false, inputs, 2, why), -EEXIST);
        ck_assert_int_eq(ckv_output_check("out", true, inputs, 2, why), 0);
        ck_assert_int_eq(ckv_output_check("/", true, inputs, 2, why), -EBADMSG);
        ck_assert_int_eq(ckv_output_check("/dev/null", true, inputs, 2, why), -EBADMSG);
        ck_assert_int_eq(ckv_output_check("", true, inputs, 2, why), -EINVAL);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ctl files");
        TCase *tests = tcase_create("read"), *files = tcase_create("written");
        SRunner *runner;
        int failed;

        tcase_add_test(tests, npy_good);
        tcase_add_test(tests, npy_bad);
        tcase_add_test(tests, npy_cut);
        tcase_add_test(tests, tokens_in_both_forms);
        tcase_add_test(tests, tokens_refused);
        tcase_add_checked_fixture(files, directory_make, directory_remove);
        tcase_add_test(files, output_is_whole_or_not);
        tcase_add_test(files, output_full_disk);
        tcase_add_test(files, output_places);
        suite_add_tcase(suite, tests);
        suite_add_tcase(suite, files);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
