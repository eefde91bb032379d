/*
 * What chunkkvctl does before it talks to a daemon: numbers as typed, the
 * table of options, files of tensors good and bad, layers out of them.
 */
#include "base/macros.h"
#include "tools/layers.h"
#include "tools/numbers.h"
#include "tools/options.h"
#include "tools/plan.h"
#include "tools/safetensors.h"
#include "tools/settings.h"

#include <check.h>
#include <errno.h>
#include <string.h>

/* ---- numbers */

START_TEST(millionths_are_exact) {
        static const struct { const char *text; uint32_t value; } good[] = {
                { "0.1", 100000 }, { "1", 1000000 }, { "1.0", 1000000 }, { "0.000001", 1 }, { ".5",
                        500000 }, { "0.666667", 666667 },
                { "0.30000000000", 300000 }, { "00.25", 250000 }, { "1.000000000", 1000000 }, { "0.999999", 999999 },
        };
        uint32_t value;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(good); i++) {
                ck_assert_msg(!ckv_millionths_parse(good[i].text, &value), "%s", good[i].text);
                ck_assert_uint_eq(value, good[i].value);
        }
}
END_TEST

START_TEST(millionths_refuse) {
        static const char *const bad[] = {
                "", ".", "0", "0.0", "0.0000001", "1.1", "1.000001", "2", "-0.1", "+0.1", " 0.1", "0.1 ", "nan", "inf",
                "1e-1", "0x1",
                "0,1", "0.1.1", "0.1234567", "18446744073709551617", "4294967297",
        };
        uint32_t value = 7;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++)
                ck_assert_msg(ckv_millionths_parse(bad[i], &value), "%s", bad[i]);
        ck_assert_uint_eq(value, 7);
}
END_TEST

START_TEST(whole_numbers) {
        static const char *const bad[] = { "", "-1", "+1", " 1", "1 ", "0x1", "4294967296", "1.0",
                "99999999999999999999" };
        uint32_t value;

        ck_assert(ckv_u32_parse("4294967295", &value) && value == UINT32_MAX);
        ck_assert(ckv_u32_parse("0", &value) && value == 0);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++)
                ck_assert_msg(!ckv_u32_parse(bad[i], &value), "%s", bad[i]);
}
END_TEST

START_TEST(reals_and_spans) {
        static const char *const bad_reals[] = { "", "nan", "inf", "-1", "1e999", "0x1p3", "1.0.0", "1e", " 1", "e5" };
        static const struct { const char *text, *why; } bad_spans[] = {
                { "", "whole numbers" }, { "5", "whole numbers" }, { "5:", "whole numbers" }, { ":5", "whole numbers" },
                { "-1:5", "whole numbers" }, { "1:2:3", "whole numbers" }, { "5:5", "A below B" },
                { "6:5", "A below B" },
                { "0:4294967296", "at most 4294967295" }, { "99999999999999999999:5", "at most 4294967295" },
        };
        uint32_t first, end;
        double real;

        ck_assert(ckv_real_parse("0.125", &real) && real == 0.125);
        ck_assert(ckv_real_parse("1e-3", &real) && real == 1e-3);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad_reals); i++)
                ck_assert_msg(!ckv_real_parse(bad_reals[i], &real), "%s", bad_reals[i]);
        ck_assert(!ckv_span_parse("100:140", &first, &end) && first == 100 && end == 140);
        ck_assert(!ckv_span_parse("0:4294967295", &first, &end) && end == UINT32_MAX);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad_spans); i++) {
                const char *why = ckv_span_parse(bad_spans[i].text, &first, &end);

                ck_assert_msg(why && strstr(why, bad_spans[i].why), "%s: %s", bad_spans[i].text, why);
        }
}
END_TEST

/* ---- options */

/* Parses "chunkkvctl" and the words of @line. */
static bool parse(const char *line, struct ckv_settings *ret_settings, char *why) {
        static char words[1024];
        char *argv[64] = { (char[]){ "chunkkvctl" } }, *rest = words, *word;
        int argc = 1;

        ck_assert_uint_lt(strlen(line), sizeof(words));
        (void)strcpy(words, line);
        while ((word = strsep(&rest, " ")))
                argv[argc++] = word;
        return ckv_settings_parse(argc, argv, ret_settings, why);
}

START_TEST(the_fixed_form) {
        char why[CKV_SETTINGS_WHY] = "";
        struct ckv_settings s;
        static const char line[] =
                "plan f.safetensors --layer 11 --layer 10 --profile default --keep-ratio 0.2 --chunk 10 --window 32 "
                "--sinks 0 --json --protect 100:140 --protect 0:1 --layer-sets one --value-weight l2 --scale 0.125";

        ck_assert_msg(parse(line, &s, why), "%s", why);
        ck_assert_int_eq(s.command, CKV_COMMAND_PLAN);
        ck_assert_str_eq(s.path, "f.safetensors");
        ck_assert(s.json);
        ck_assert_uint_eq(s.layer_count, 2);
        ck_assert_uint_eq(s.layers[0], 10);
        ck_assert_uint_eq(s.layers[1], 11);
        ck_assert_uint_eq(s.keep_ratio, 200000);
        ck_assert_uint_eq(s.policy.chunk, 10);
        ck_assert_uint_eq(s.policy.window, 32);
        ck_assert(s.policy.sinks.given && s.policy.sinks.value == 0);
        ck_assert(!s.policy.recent.given);
        ck_assert_uint_eq(s.protect_count, 2);
        ck_assert_uint_eq(s.protect[0].first, 100);
        ck_assert_uint_eq(s.protect[0].count, 40);
        ck_assert_uint_eq(s.policy.layers, CHUNKKV_LAYERS_ONE);
        ck_assert_uint_eq(s.policy.value_weight, CHUNKKV_WEIGHT_L2);
        ck_assert(s.policy.scale == 0.125);
        ck_assert(ckv_plan_needs_value(&s.policy) && ckv_plan_needs_query(&s.policy));
        ckv_settings_deinit(&s);
}
END_TEST

START_TEST(command_lines_refused) {
        static const struct { const char *line, *word; } bad[] = {
                { "", "command" }, { "nothing", "nothing" }, { "plan", "file" }, { "plan f", "--keep-ratio" },
                { "plan f --keep-ratio 0", "--keep-ratio" }, { "plan f --keep-ratio", "--keep-ratio" },
                { "plan f --max-tokens 0", "--max-tokens" }, { "plan f --max-tokens 1 --chunk 0", "--chunk" },
                { "plan f --max-tokens 1 --chunk ten", "--chunk" }, { "plan f --max-tokens 1 --selector best",
                        "--selector" },
                { "plan f --max-tokens 1 --scale 0", "--scale" }, { "plan f --max-tokens 1 --scale nan", "--scale" },
                { "plan f --max-tokens 1 --layer 1 --layer 1", "--layer" }, { "plan f --max-tokens 1 --frobnicate",
                        "--frobnicate" },
                { "plan f g --max-tokens 1", "g is one word too many: plan takes one file" },
                { "ping --chunk 3", "--chunk" }, { "ping f", "f is one word too many: ping takes no file" },
                { "plan f --max-tokens 4294967296", "from 1 to 4294967295" },
                { "plan f --max-tokens 1 --sinks 4294967296", "from 0 to 4294967295" },
                { "plan f --max-tokens 1 --protect 0:4294967296", "at most 4294967295" },
                { "compress f --max-tokens 1", "write to" }, { "compress f g", "--keep-ratio" },
                { "compress f g h --max-tokens 1", "h is one word too many: compress takes two files" },
                { "explain f --max-tokens 1 --out p", "--tokens" }, { "explain f --max-tokens 1 --tokens t", "--out" },
                { "plan f --max-tokens 1 --out p", "--out" }, { "plan f --max-tokens 1 --force", "--force" },
                { "plan f --max-tokens 1 --query q", "--key" }, { "plan f --max-tokens 1 --dtype bf16", "--key" },
                { "plan f --max-tokens 1 --key k --query q", "f is one word too many: plan with --key takes no file" },
                { "plan --max-tokens 1 --key k --names key={layer}", "--names" },
                { "compress o --max-tokens 1 --key k --query q", "--value" },
                { "plan --key k --query q", "--keep-ratio" },
                { "plan --max-tokens 1 --key k --dtype f8", "--dtype" },
                { "plan f --max-tokens 1 --protect 5:5", "--protect" }, { "ping --timeout 0", "--timeout" },
                { "ping --timeout 601", "--timeout" }, { "plan f --max-tokens 1 --chunk-lengths 3,,4",
                        "--chunk-lengths" },
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++) {
                char why[CKV_SETTINGS_WHY] = "";
                struct ckv_settings s;

                ck_assert_msg(!parse(bad[i].line, &s, why), "%s", bad[i].line);
                ck_assert_msg(strstr(why, bad[i].word), "%s: %s", bad[i].line, why);
                ckv_settings_deinit(&s);
        }
}
END_TEST

/* The later value is never taken silently; a list goes on, and a switch has no value to differ in. */
START_TEST(given_twice) {
        char line[192], want[128], why[CKV_SETTINGS_WHY];
        struct ckv_settings s;
        size_t lists = 0;

        for (size_t i = 0; i < ckv_option_count; i++) {
                const struct ckv_option *option = &ckv_options[i];
                bool span = option->kind == CKV_OPTION_SPAN, flag = option->kind == CKV_OPTION_FLAG;
                bool list = span || option->kind == CKV_OPTION_LAYER;
                const char *value = flag ? "" : option->word_count ? option->words[option->word_count - 1] : span ? "1:2" : "1";
                const char *other = option->kind == CKV_OPTION_LAYER ? "2" : value;

                (void)snprintf(line, sizeof(line), "plan --help --%s%s%s --%s%s%s", option->name, flag ? "" : " ", value,
                               option->name, flag ? "" : " ", other);
                lists += list;
                if (list || flag) {
                        ck_assert_msg(parse(line, &s, why), "%s: %s", line, why);
                } else {
                        (void)snprintf(want, sizeof(want), "--%s: is given twice, the second time as \"%s\"; it has one value",
                                       option->name, other);
                        ck_assert_msg(!parse(line, &s, why), "%s", line);
                        ck_assert_str_eq(why, want);
                }
                ckv_settings_deinit(&s);
        }
        ck_assert_uint_eq(lists, 2);
        /* an abbreviation is the same option */
        ck_assert(!parse("plan f --keep-ratio 0.2 --keep-r=0.3", &s, why));
        ck_assert_str_eq(why, "--keep-ratio: is given twice, the second time as \"0.3\"; it has one value");
        ckv_settings_deinit(&s);
}
END_TEST

START_TEST(files_on_the_line) {
        char why[CKV_SETTINGS_WHY] = "";
        struct ckv_settings s;

        ck_assert_msg(parse("compress in out --max-tokens 5 --force", &s, why), "%s", why);
        ck_assert_int_eq(s.command, CKV_COMMAND_COMPRESS);
        ck_assert_str_eq(s.path, "in");
        ck_assert_str_eq(s.out, "out");
        ck_assert(s.force);
        ckv_settings_deinit(&s);
        ck_assert_msg(parse("compress out --max-tokens 5 --key k --query q --value v --dtype bf16", &s, why), "%s",
                      why);
        ck_assert_ptr_null(s.path);
        ck_assert_str_eq(s.out, "out");
        ck_assert_str_eq(s.key, "k");
        ck_assert_str_eq(s.query, "q");
        ck_assert_str_eq(s.value, "v");
        ck_assert_uint_ne(s.npy_dtype, 0);
        ckv_settings_deinit(&s);
        ck_assert_msg(parse("explain in --max-tokens 5 --tokens t --out p", &s, why), "%s", why);
        ck_assert_int_eq(s.command, CKV_COMMAND_EXPLAIN);
        ck_assert_str_eq(s.tokens, "t");
        ck_assert_str_eq(s.out, "p");
        ckv_settings_deinit(&s);
}
END_TEST

START_TEST(every_policy_option_sets_its_field) {
        for (size_t i = 0; i < ckv_option_count; i++) {
                const struct ckv_option *option = &ckv_options[i];
                const char *value = option->word_count ? option->words[option->word_count - 1] : "1";
                struct ckv_parameter parameter = { 0 };
                char line[128], why[CKV_SETTINGS_WHY] = "";
                struct ckv_settings s;

                if (!option->member)
                        continue;
                (void)snprintf(line, sizeof(line), "plan f --max-tokens 1 --%s %s", option->name, value);
                ck_assert_msg(parse(line, &s, why), "%s: %s", line, why);
                for (size_t k = 0; ckv_settings_parameter(&s.policy, k, &parameter); k++) {
                        bool is_default = !parameter.present || parameter.number == 0 || strcmp(parameter.name,
                                                                                                option->member) == 0;

                        ck_assert_msg(is_default, "%s also sets %s", line, parameter.name);
                        if (strcmp(parameter.name, option->member) != 0)
                                continue;
                        ck_assert_msg(parameter.present && parameter.number != 0, "%s", line);
                        if (option->word_count)
                                ck_assert_str_eq(parameter.word, value);
                }
                ckv_settings_deinit(&s);
        }
}
END_TEST

START_TEST(refusals_find_their_option) {
        char why[CKV_SETTINGS_WHY] = "";
        struct ckv_settings s;
        const char *typed;

        ck_assert(parse("plan f --max-tokens 1 --selector h2o", &s, why));
        ck_assert_str_eq(ckv_settings_option_find(&s, "compress.groups[0].policies[0].selector", &typed), "selector");
        ck_assert_str_eq(typed, "h2o");
        ck_assert_str_eq(ckv_settings_option_find(&s, "compress.groups[3].policies[12].layers", &typed), "layer-sets");
        ck_assert_ptr_null(typed);
        ck_assert_str_eq(ckv_settings_option_find(&s, "compress.groups[0].protect[2]", &typed), "protect");
        ck_assert_str_eq(ckv_settings_option_find(&s, "compress.groups[0].keep_ratio", &typed), "keep-ratio");
        ck_assert_str_eq(ckv_settings_option_find(&s, "compress.logical_len", &typed), "logical-len");
        ck_assert_ptr_null(ckv_settings_option_find(&s, "register_cache.groups[0].layers", &typed));
        ck_assert_ptr_null(ckv_settings_option_find(&s, "compress.groups[0].policies", &typed));
        ck_assert_ptr_null(ckv_settings_option_find(&s, "", &typed));
        ckv_settings_deinit(&s);
}
END_TEST

/* ---- files of tensors */

/* A file of @header and @data_size zero bytes. */
static int file_parse(const char *header, size_t data_size, struct ckv_safetensors **ret_file, char *why) {
        static uint8_t bytes[8192];
        uint64_t n = strlen(header);

        ck_assert_uint_le(8 + n + data_size, sizeof(bytes));
        memset(bytes, 0, sizeof(bytes));
        memcpy(bytes, &n, 8);
        memcpy(bytes + 8, header, n);
        return ckv_safetensors_parse(bytes, 8 + n + data_size, ret_file, why);
}

#define T(name, dtype, shape, offsets) \
        "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

START_TEST(good_file) {
        char why[CKV_SAFETENSORS_WHY] = "";
        struct ckv_safetensors *file;
        const struct ckv_tensor *tensor;
        const char *key, *value;

        ck_assert_msg(file_parse("{\"__metadata__\":{\"a\":\"b\"}," T("b", "F16", "[2,1,3]", "[4,16]") ","
                                 T("a", "F32", "[1]", "[0,4]") "," T("e", "F32", "[0,7]", "[16,16]") "}   ",
                                 16, &file, why) == 0, "%s", why);
        ck_assert_uint_eq(ckv_safetensors_count(file), 3);
        ck_assert_str_eq(ckv_safetensors_at(file, 0)->name, "a");
        tensor = ckv_safetensors_find(file, "b");
        ck_assert_ptr_nonnull(tensor);
        ck_assert_uint_eq(tensor->rank, 3);
        ck_assert_uint_eq(tensor->shape[2], 3);
        ck_assert_uint_eq(tensor->size, 12);
        ck_assert_ptr_eq(tensor->data, ckv_safetensors_find(file, "a")->data + 4);
        ck_assert_ptr_null(ckv_safetensors_find(file, "c"));
        file = ckv_safetensors_close(file);
        ck_assert_int_eq(file_parse("{\"__metadata__\":{\"a\":\"b\"}}", 0, &file, why), 0);
        ck_assert(ckv_safetensors_metadata(file, 0, &key, &value));
        ck_assert_str_eq(key, "a");
        ck_assert_str_eq(value, "b");
        ck_assert(!ckv_safetensors_metadata(file, 1, &key, &value));
        file = ckv_safetensors_close(file);
        ck_assert_int_eq(file_parse("{}", 0, &file, why), 0);
        ck_assert(!ckv_safetensors_metadata(file, 0, &key, &value));
        ck_assert_uint_eq(ckv_safetensors_count(file), 0);
        file = ckv_safetensors_close(file);
}
END_TEST

START_TEST(bad_files) {
        static const struct { const char *header; size_t data; } bad[] = {
                { "not json", 4 }, { "[]", 0 }, { "", 0 }, { "{", 0 }, { "{} x", 0 }, { "{\"a\":7}", 0 },
                { "{\"__metadata__\":7}", 0 }, { "{\"__metadata__\":{\"a\":7}}", 0 },
                { "{" T("a", "F32", "[1]", "[0,4]"), 4 },                               /* not closed */
                { "{" T("a", "F32", "[1]", "[0,4]") "}", 3 },                           /* cut short */
                { "{" T("a", "F32", "[1]", "[0,4]") "}", 5 },                           /* bytes behind */
                { "{" T("a", "F32", "[2]", "[0,4]") "}", 4 },                           /* shape does not agree */
                { "{" T("a", "F32", "[4294967296,4294967296,4]", "[0,0]") "}", 0 },     /* product passes 2^64 */
                { "{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4 },
                { "{" T("a", "F32", "[\"1\"]", "[0,4]") "}", 4 }, { "{" T("a", "F32", "1", "[0,4]") "}", 4 },
                { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4 },
                { "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[2,6]") "}", 6 },        /* overlap */
                { "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[0,4]") "}", 4 }, /* the same bytes */
                { "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[5,9]") "}", 9 },        /* a gap */
                { "{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8 },        /* twice */
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++) {
                char why[CKV_SAFETENSORS_WHY] = "";
                struct ckv_safetensors *file = NULL;

                ck_assert_msg(file_parse(bad[i].header, bad[i].data, &file, why) == -EBADMSG, "%s", bad[i].header);
                ck_assert_ptr_null(file);
                ck_assert_str_ne(why, "");
        }
}
END_TEST

START_TEST(wrong_entries_are_told) {
        static const struct { const char *header; size_t data; const char *why; } bad[] = {
                { "{" T("a", "F32", "[1]", "[4,0]") "}", 4, "end at 0, before they begin at 4" },
                { "{" T("a", "F32", "[1]", "[0,4,8]") "}", 4, "has no data_offsets" },
                { "{" T("a", "F32", "[1]", "[0.5,4.5]") "}", 8, "two whole numbers from 0 to 2^53" },
                { "{" T("a", "F32", "[1]", "[-4,0]") "}", 4, "two whole numbers" },
                { "{" T("a", "F32", "[1]", "[1e300,1e301]") "}", 4, "two whole numbers" },
                { "{" T("a", "F32", "[1]", "[0,9007199254740992]") "}", 4, "ends at byte 9007199254740992" },
                { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "has no data_offsets" },
                { "{" T("a", "A_VERY_LONG_DTYPE", "[1]", "[0,4]") "}", 4, "more than 11 characters" },
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++) {
                char why[CKV_SAFETENSORS_WHY] = "";
                struct ckv_safetensors *file = NULL;

                ck_assert_int_eq(file_parse(bad[i].header, bad[i].data, &file, why), -EBADMSG);
                ck_assert_msg(strstr(why, bad[i].why), "%s: %s", bad[i].header, why);
        }
}
END_TEST

START_TEST(bad_lengths) {
        uint8_t bytes[16] = { 0 };
        char why[CKV_SAFETENSORS_WHY];
        struct ckv_safetensors *file;

        for (size_t n = 0; n < 8; n++)
                ck_assert_int_eq(ckv_safetensors_parse(bytes, n, &file, why), -EBADMSG);
        bytes[0] = 9;
        ck_assert_int_eq(ckv_safetensors_parse(bytes, sizeof(bytes), &file, why), -EBADMSG);
        memset(bytes, 0xff, 8);
        ck_assert_int_eq(ckv_safetensors_parse(bytes, sizeof(bytes), &file, why), -EBADMSG);
        ck_assert_int_eq(file_parse("{" T("a", "F32", "[1]", "[0,4]") "}", 3, &file, why), -EBADMSG);
        ck_assert_ptr_nonnull(strstr(why, "cut short"));
        ck_assert_int_eq(ckv_safetensors_open("/", &file, why), -EBADMSG);
        ck_assert_str_eq(why, "it is a directory");
        ck_assert_int_eq(ckv_safetensors_open("/dev/null", &file, why), -EBADMSG);
        ck_assert_int_eq(ckv_safetensors_open("/no/such/file", &file, why), -ENOENT);
}
END_TEST

/* ---- layers */

#define LAYER(n, q, k, v) \
        T("layer" n ".query", "F32", q, "[0,0]") "," T("layer" n ".key", "F32", k, "[0,0]") "," \
        T("layer" n ".value", "F32", v, "[0,0]")

/* Checks shapes alone: all tensors are of zero rows or zero size, so the offsets may all be 0. */
static int layers_load(const char *header, const struct ckv_layers_wanted *wanted, size_t *ret_count, char *why) {
        struct ckv_layer *layers = NULL;
        struct ckv_safetensors *file = NULL;
        int r;

        ck_assert_msg(file_parse(header, 0, &file, why) == 0, "%s", why);
        r = ckv_layers_load(file, wanted, &layers, ret_count, why);
        for (size_t i = 1; r == 0 && i < *ret_count; i++)
                ck_assert_uint_lt(layers[i - 1].number, layers[i].number);
        free(layers);
        file = ckv_safetensors_close(file);
        return r;
}

START_TEST(layers_are_found_and_checked) {
        const struct ckv_layers_wanted all = { .value = true, .query = true };
        const struct ckv_layers_wanted other = { .names = "key=model.{layer}.k,query=model.{layer}.q", .query = true };
        const struct ckv_layers_wanted four = { .query = true, .numbers = (const uint32_t[]){ 4 }, .count = 1 };
        const struct ckv_layers_wanted window = { .query = true, .window = 1 };
        char why[CKV_SAFETENSORS_WHY] = "";
        size_t count;

        ck_assert_msg(layers_load("{" LAYER("10", "[0,4,8]", "[0,2,8]", "[0,2,4]") "," LAYER("9", "[0,2,8]", "[0,2,8]",
                                                                                             "[0,2,8]")
                                  ",\"layer07.key\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}", &all,
                                  &count, why) == 0, "%s", why);
        ck_assert_uint_eq(count, 2);
        ck_assert_int_eq(layers_load("{" T("model.3.k", "F32", "[0,2,8]", "[0,0]") "," T("model.3.q", "BF16",
                                                                                         "[0,2,8]", "[0,0]") "}",
                                     &other, &count, why), 0);
        ck_assert_int_eq(layers_load("{" LAYER("10", "[0,4,8]", "[0,2,8]", "[0,2,4]") "}", &four, &count, why),
                         -EINVAL);
        ck_assert_ptr_nonnull(strstr(why, "layer4.key"));
        ck_assert_int_eq(layers_load("{" LAYER("1", "[0,3,8]", "[0,2,8]", "[0,2,8]") "}", &all, &count, why), -EINVAL);
        ck_assert_ptr_nonnull(strstr(why, "no multiple"));
        ck_assert_int_eq(layers_load("{" LAYER("1", "[0,4,9]", "[0,2,8]", "[0,2,8]") "}", &all, &count, why), -EINVAL);
        ck_assert_int_eq(layers_load("{" LAYER("1", "[0,4,8]", "[0,2,8]", "[0,1,8]") "}", &all, &count, why), -EINVAL);
        ck_assert_int_eq(layers_load("{" LAYER("1", "[0,4,8]", "[0,2]", "[0,2,8]") "}", &all, &count, why), -EINVAL);
        ck_assert_int_eq(layers_load("{" LAYER("1", "[0,4,8]", "[0,1025,8]", "[0,2,8]") "}", &all, &count, why),
                         -EINVAL);
        ck_assert_int_eq(layers_load("{" LAYER("1", "[0,4,8]", "[0,2,8]", "[0,2,8]") "}", &window, &count, why),
                         -EINVAL);
        ck_assert_ptr_nonnull(strstr(why, "--window"));
        ck_assert_int_eq(layers_load("{}", &all, &count, why), -EINVAL);
}
END_TEST

START_TEST(names_refused) {
        static const char *const bad[] = { "key", "key=x", "key={layer}{layer}", "k={layer}", "key={layer},value" };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++) {
                const struct ckv_layers_wanted wanted = { .names = bad[i] };
                char why[CKV_SAFETENSORS_WHY] = "";
                size_t count;

                ck_assert_msg(layers_load("{" T("1", "F32", "[0,1,1]", "[0,0]") "}", &wanted, &count, why) == -EINVAL,
                              "%s", bad[i]);
                ck_assert_ptr_nonnull(strstr(why, "--names"));
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ctl");
        TCase *tests = tcase_create("without a daemon");
        SRunner *runner;
        int failed;

        tcase_add_test(tests, millionths_are_exact);
        tcase_add_test(tests, millionths_refuse);
        tcase_add_test(tests, whole_numbers);
        tcase_add_test(tests, reals_and_spans);
        tcase_add_test(tests, the_fixed_form);
        tcase_add_test(tests, command_lines_refused);
        tcase_add_test(tests, given_twice);
        tcase_add_test(tests, files_on_the_line);
        tcase_add_test(tests, every_policy_option_sets_its_field);
        tcase_add_test(tests, refusals_find_their_option);
        tcase_add_test(tests, good_file);
        tcase_add_test(tests, bad_files);
        tcase_add_test(tests, wrong_entries_are_told);
        tcase_add_test(tests, bad_lengths);
        tcase_add_test(tests, layers_are_found_and_checked);
        tcase_add_test(tests, names_refused);
        suite_add_tcase(suite, tests);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
