/*
 * Reading the command line.  Names, defaults, bounds and help come from
 * daemon/options.def; this file only knows the few types of values.  A wrong
 * value ends the start with one sentence that names the option and what it
 * may be: a daemon that guesses what its operator meant is worse than none.
 * So is one that takes the later of two values and says nothing: command lines
 * of daemons are put together from files, and one of the two was forgotten.
 *
 * There is no configuration file in this version, and no option changes while
 * the daemon runs.
 */
#include "daemon/options.h"

#include "base/macros.h"
#include "daemon/access.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <string.h>

enum type { TYPE_COUNT, TYPE_SIZE, TYPE_OCTAL, TYPE_LEVEL, TYPE_SWITCH, TYPE_TEXT, TYPE_NAMES };

struct spec {
        const char *name;       /* as in C: underscores */
        enum type type;
        size_t offset;          /* in struct ckv_options */
        uint64_t min, max;
        const char *unit, *help;
};

#define OPT(name, TYPE, value, min, max, unit, help) OPTION_##name,
enum {
#include "daemon/options.def"
        OPTIONS_N,
};
#undef OPT

enum { CODE_HELP = 'h', CODE_VERSION = 'V', CODE_FIRST = 256 };

static const struct {
        const char *text;
        enum ckv_log_level level;
} levels[] = {
        { "error", CKV_LOG_ERROR }, { "warning", CKV_LOG_WARNING }, { "notice", CKV_LOG_NOTICE }, { "info", CKV_LOG_INFO },
        { "debug", CKV_LOG_DEBUG },
};

/* specs_get() - the table; filled at run time because limits are objects, not constant expressions, in C11 */
static void specs_get(struct spec ret_specs[static OPTIONS_N]) {
#define OPT(name, TYPE, value, min, max, unit, help) \
        ret_specs[OPTION_##name] = (struct spec){ #name, TYPE_##TYPE, offsetof(struct ckv_options, name), min, max, unit, help };
#include "daemon/options.def"
#undef OPT
}

static void set_COUNT(uint64_t *member, uint64_t value) {
        *member = value;
}
#define set_SIZE set_COUNT
#define set_OCTAL set_COUNT
#define set_LEVEL set_COUNT
#define set_SWITCH set_COUNT

static void set_TEXT(const char **member, const char *value) {
        *member = value;
}

static void set_NAMES(struct ckv_option_names *member, const char *value) {
        *member = (struct ckv_option_names){ .items = { value }, .count = 1 };
}

void ckv_options_init(struct ckv_options *options) {
#define OPT(name, TYPE, value, min, max, unit, help) set_##TYPE(&options->name, value);
#include "daemon/options.def"
#undef OPT
}

/* flag_format() - "--socket-mode" */
static const char *flag_format(const char *name, char ret_flag[static 64]) {
        (void)snprintf(ret_flag, 64, "--%s", name);
        for (char *p = ret_flag; *p; p++)
                if (*p == '_')
                        *p = '-';
        return ret_flag;
}

/* value_format() - a number as its type is written on the command line */
static const char *value_format(enum type type, uint64_t value, char ret_text[static 32]) {
        static const char suffixes[] = " KMGT";
        unsigned i = 0;

        if (type == TYPE_OCTAL) {
                (void)snprintf(ret_text, 32, "0%03" PRIo64, value);
                return ret_text;
        }
        for (size_t l = 0; type == TYPE_LEVEL && l < CKV_ARRAY_SIZE(levels); l++)
                if (levels[l].level == value)
                        return levels[l].text;
        if (type == TYPE_SWITCH)
                return value ? "on" : "off";
        while (type == TYPE_SIZE && value && value % 1024 == 0 && i + 2 < sizeof(suffixes)) {
                value /= 1024;
                i++;
        }
        (void)snprintf(ret_text, 32, i ? "%" PRIu64 "%c" : "%" PRIu64, value, suffixes[i]);
        return ret_text;
}

/* number_parse() - digits of @base and nothing before them; *@ret_end points behind. Return: false on overflow or none. */
static bool number_parse(const char *text, int base, uint64_t *ret_value, const char **ret_end) {
        unsigned long long value;
        char *end;

        /* strtoull would take blanks, signs and 0x */
        if (!isdigit((unsigned char)text[0]))
                return false;
        errno = 0;
        value = strtoull(text, &end, base);
        if (errno || end == text)
                return false;
        *ret_value = value;
        *ret_end = end;
        return true;
}

/* size_parse() - a number, K, M, G or T behind it for powers of 1024 */
static bool size_parse(const char *text, uint64_t *ret_value) {
        static const char suffixes[] = "KMGT";
        const char *end, *suffix;
        uint64_t value;
        unsigned shift;

        if (!number_parse(text, 10, &value, &end))
                return false;
        if (*end == '\0') {
                *ret_value = value;
                return true;
        }
        suffix = strchr(suffixes, toupper((unsigned char)*end));
        if (!suffix || end[1] != '\0')
                return false;
        shift = 10 * (unsigned)(suffix - suffixes + 1);
        if (value > UINT64_MAX >> shift)
                return false;
        *ret_value = value << shift;
        return true;
}

static bool level_parse(const char *text, uint64_t *ret_value) {
        for (size_t i = 0; i < CKV_ARRAY_SIZE(levels); i++)
                if (strcmp(levels[i].text, text) == 0) {
                        *ret_value = levels[i].level;
                        return true;
                }
        return false;
}

static bool switch_parse(const char *text, uint64_t *ret_value) {
        bool on = strcmp(text, "on") == 0;

        *ret_value = on;
        return on || strcmp(text, "off") == 0;
}

static bool value_parse(const struct spec *spec, const char *text, uint64_t *ret_value) {
        const char *end;

        switch (spec->type) {
        case TYPE_SIZE:
                return size_parse(text, ret_value);
        case TYPE_LEVEL:
                return level_parse(text, ret_value);
        case TYPE_SWITCH:
                return switch_parse(text, ret_value);
        case TYPE_OCTAL:
        case TYPE_COUNT:
        default:
                return number_parse(text, spec->type == TYPE_OCTAL ? 8 : 10, ret_value, &end) && *end == '\0';
        }
}

static int number_set(struct ckv_options *options, const struct spec *spec, const char *text, FILE *err) {
        char flag[64], min[32], max[32];
        uint64_t value;

        if (value_parse(spec, text, &value) && value >= spec->min && value <= spec->max) {
                memcpy((char *)options + spec->offset, &value, sizeof(value));
                return 0;
        }
        if (spec->type == TYPE_LEVEL)
                fprintf(err, "%s: must be error, warning, notice, info or debug, is \"%s\"\n", flag_format(spec->name, flag), text);
        else if (spec->type == TYPE_SWITCH)
                fprintf(err, "%s: must be on or off, is \"%s\"\n", flag_format(spec->name, flag), text);
        else
                fprintf(err, "%s: must be %s to %s%s%s, is \"%s\"\n", flag_format(spec->name, flag),
                        value_format(spec->type, spec->min, min), value_format(spec->type, spec->max, max), *spec->unit ? " " : "",
                        spec->unit, text);
        return CKV_OPTIONS_E_INVALID;
}

static int text_set(struct ckv_options *options, const struct spec *spec, const char *text, FILE *err) {
        size_t length = strlen(text);
        char flag[64];

        if (length < spec->min || length > spec->max) {
                fprintf(err, "%s: must have %" PRIu64 " to %" PRIu64 " characters, has %zu\n", flag_format(spec->name, flag),
                        spec->min, spec->max, length);
                return CKV_OPTIONS_E_INVALID;
        }
        memcpy((char *)options + spec->offset, &text, sizeof(text));
        return 0;
}

bool ckv_option_name_equal(const char *item, const char *name, size_t length) {
        return strcspn(item, ":") == length && memcmp(item, name, length) == 0;
}

static int name_add(struct ckv_option_names *names, const struct spec *spec, const char *text, FILE *err) {
        char flag[64], why[CKV_ACCESS_WHY_BYTES];
        size_t length = strcspn(text, ":");
        struct ckv_access access;

        (void)flag_format(spec->name, flag);
        if (length < spec->min || length > spec->max || strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") != length) {
                fprintf(err, "%s: must be %" PRIu64 " to %" PRIu64 " of a-z, 0-9 and -, is \"%.*s\"\n", flag, spec->min, spec->max,
                        (int)length, text);
                return CKV_OPTIONS_E_INVALID;
        }
        if (ckv_access_parse(text + length, &access, why)) {
                fprintf(err, "%s: \"%s\" %s\n", flag, text, why);
                return CKV_OPTIONS_E_INVALID;
        }
        for (uint32_t i = 0; i < names->count; i++)
                if (ckv_option_name_equal(names->items[i], text, length)) {
                        fprintf(err, "%s: \"%.*s\" is given twice\n", flag, (int)length, text);
                        return CKV_OPTIONS_E_INVALID;
                }
        if (names->count == CKV_OPTIONS_NAMES_MAX) {
                fprintf(err, "%s: may be given at most %d times\n", flag, CKV_OPTIONS_NAMES_MAX);
                return CKV_OPTIONS_E_INVALID;
        }
        names->items[names->count++] = text;
        return 0;
}

/* default_format() - the default of an option as text; @options holds the defaults */
static const char *default_format(const struct spec *spec, const struct ckv_options *options, char ret_text[static 32]) {
        const char *member = (const char *)options + spec->offset;
        const char *text;
        uint64_t number;

        if (spec->type == TYPE_TEXT || spec->type == TYPE_NAMES) {
                /* the first member of struct ckv_option_names is its first item */
                memcpy(&text, member, sizeof(text));
                return text;
        }
        memcpy(&number, member, sizeof(number));
        return value_format(spec->type, number, ret_text);
}

static void help_print(const struct spec specs[static OPTIONS_N], FILE *out) {
        struct ckv_options options;
        char flag[64], text[32];

        ckv_options_init(&options);
        fprintf(out, "chunkkvd: compresses KV caches of inference engines in shared memory\n\n"
                     "usage: chunkkvd [--OPTION VALUE]...\n\n"
                     "Each option at most once, but for --endpoint.\n\n");
        for (int i = 0; i < OPTIONS_N; i++) {
                const char *value = default_format(&specs[i], &options, text);

                fprintf(out, "  %-16s %s", flag_format(specs[i].name, flag), specs[i].help);
                if (*value)
                        fprintf(out, " [%s%s%s]", value, *specs[i].unit ? " " : "", specs[i].unit);
                fputc('\n', out);
        }
        fprintf(out, "  %-16s %s\n  %-16s %s\n", "--help", "show this text and leave", "--version", "show the version and leave");
}

static int option_set(struct ckv_options *options, const struct spec *spec, bool first, const char *text, FILE *err) {
        struct ckv_option_names *names;
        char flag[64];

        if (!first && spec->type != TYPE_NAMES) {
                fprintf(err, "%s: is given twice, the second time as \"%s\"; it has one value\n", flag_format(spec->name, flag), text);
                return CKV_OPTIONS_E_INVALID;
        }
        switch (spec->type) {
        case TYPE_TEXT:
                return text_set(options, spec, text, err);
        case TYPE_NAMES:
                names = (struct ckv_option_names *)(void *)((char *)options + spec->offset);
                /* the first one given replaces the default */
                if (first)
                        names->count = 0;
                return name_add(names, spec, text, err);
        default:
                return number_set(options, spec, text, err);
        }
}

static int complain(FILE *err, const char *what, const char *argument) {
        fprintf(err, "%s: \"%s\"; --help lists the options\n", what, argument);
        return CKV_OPTIONS_E_INVALID;
}

/* backend_check() - what options say of the device goes together; @seen: which were given */
static int backend_check(const struct ckv_options *options, const bool seen[static OPTIONS_N], const struct spec specs[static OPTIONS_N],
                         FILE *err) {
        static const struct {
                int option;
                bool cuda;
        } of_one_backend[] = {
                { OPTION_device, true }, { OPTION_device_scratch, true }, { OPTION_device_timeout, true },
                { OPTION_threads, false }, { OPTION_pin, false }, { OPTION_cpu_path, false }, { OPTION_scratch, false },
        };
        bool cuda = ckv_options_cuda(options);
        char flag[64];

        if (strcmp(options->backend, "cpu") != 0 && !cuda) {
                fprintf(err, "--backend: must be cpu or cuda, is \"%s\"\n", options->backend);
                return CKV_OPTIONS_E_INVALID;
        }
        for (size_t i = 0; i < CKV_ARRAY_SIZE(of_one_backend); i++)
                if (seen[of_one_backend[i].option] && of_one_backend[i].cuda != cuda) {
                        fprintf(err, "%s: needs --backend %s\n", flag_format(specs[of_one_backend[i].option].name, flag),
                                cuda ? "cpu" : "cuda");
                        return CKV_OPTIONS_E_INVALID;
                }
        return 0;
}

int ckv_options_parse(struct ckv_options *options, int argc, char *argv[], FILE *out, FILE *err) {
        struct option table[OPTIONS_N + 3] = { { 0 } };
        char flags[OPTIONS_N][64];
        bool seen[OPTIONS_N] = { false };
        struct spec specs[OPTIONS_N];
        int code, r;

        ckv_options_init(options);
        specs_get(specs);
        for (int i = 0; i < OPTIONS_N; i++)
                table[i] = (struct option){ flag_format(specs[i].name, flags[i]) + 2, required_argument, NULL, CODE_FIRST + i };
        table[OPTIONS_N] = (struct option){ "help", no_argument, NULL, CODE_HELP };
        table[OPTIONS_N + 1] = (struct option){ "version", no_argument, NULL, CODE_VERSION };

        /* 0: start over, also in a process that parsed before; the sentences are ours */
        optind = 0;
        opterr = 0;
        while ((code = getopt_long(argc, argv, ":hV", table, NULL)) != -1) {
                if (code == CODE_HELP) {
                        help_print(specs, out);
                        return CKV_OPTIONS_E_DONE;
                }
                if (code == CODE_VERSION)
                        return CKV_OPTIONS_E_VERSION;
                if (code == ':')
                        return complain(err, "this option needs a value", argv[optind - 1]);
                if (code < CODE_FIRST)
                        return complain(err, "this is not an option, or not an unambiguous one", argv[optind - 1]);
                r = option_set(options, &specs[code - CODE_FIRST], !seen[code - CODE_FIRST], optarg, err);
                if (r)
                        return r;
                seen[code - CODE_FIRST] = true;
        }
        if (optind < argc)
                return complain(err, "chunkkvd takes options only", argv[optind]);
        return backend_check(options, seen, specs, err);
}
