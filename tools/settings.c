/*
 * The command line, by the table of options.
 *
 * Ranges are the daemon's to judge, and its refusal is shown with the option
 * in front.  Refused here is only what would silently mean something else: a
 * 0 that on the wire stands for "not given", a number that does not fit, a
 * word that is none, a second value of what has one: of two that a script put
 * together nobody knows which was meant.
 */
#include "tools/settings.h"

#include "base/macros.h"
#include "tools/numbers.h"
#include "tools/options.h"

#include <getopt.h>
#include <string.h>

/* Appends @size bytes to a list. Return: false without memory. */
static bool list_append(void *list, size_t *count, size_t size, const void *item) {
        void *old, *grown;

        memcpy(&old, list, sizeof(old));
        grown = reallocarray(old, *count + 1, size);
        if (!grown)
                return false;
        memcpy(list, &grown, sizeof(grown));
        memcpy((char *)grown + *count * size, item, size);
        (*count)++;
        return true;
}

static const char no_memory[] = "fit into memory";
static const char one_of_words[] = "be one of";
static const char zero_or_more[] = "be a whole number from 0 to 4294967295";

static const char *layer_add(struct ckv_settings *settings, const char *text) {
        uint32_t layer;

        if (!ckv_u32_parse(text, &layer))
                return "be a layer number, at most 4294967295";
        for (size_t i = 0; i < settings->layer_count; i++) {
                if (settings->layers[i] == layer)
                        return "not be given twice";
        }
        return list_append(&settings->layers, &settings->layer_count, sizeof(layer), &layer) ? NULL : no_memory;
}

static const char *span_add(struct ckv_settings *settings, const char *text) {
        struct chunkkv_span span;
        const char *why;
        uint32_t end;

        why = ckv_span_parse(text, &span.first, &end);
        if (why)
                return why;
        span.count = end - span.first;
        return list_append(&settings->protect, &settings->protect_count, sizeof(span), &span) ? NULL : no_memory;
}

/* Reads a file of lengths as one line of them. Return: NULL, or what is wrong. */
static const char *lengths_read(const char *path, char **ret_text) {
        _cleanup_free_ char *text = NULL;
        FILE *stream = fopen(path, "re");
        size_t size = 0, n;
        ssize_t length;

        if (!stream)
                return "be numbers from 1 to 4294967295 with commas between them, or a file of them";
        length = getdelim(&text, &size, '\0', stream);
        (void)fclose(stream);
        if (length <= 0)
                return "be a file that has numbers in it";
        n = strcspn(text, "0123456789");
        memmove(text, text + n, strlen(text + n) + 1);
        for (char *p = text; *p; p++)
                *p = strchr(" \t\r\n", *p) ? ',' : *p;
        *ret_text = ckv_steal(&text);
        return NULL;
}

static const char *lengths_add(struct ckv_settings *settings, const char *text) {
        _cleanup_free_ char *copy = NULL;
        bool list = strspn(text, "0123456789,") == strlen(text);
        const char *why = NULL;
        char *rest, *piece;
        uint32_t length;

        if (list)
                copy = strdup(text);
        else
                why = lengths_read(text, &copy);
        if (why || !copy)
                return why ? why : no_memory;
        rest = copy;
        while ((piece = strsep(&rest, ","))) {
                if (!list && *piece == '\0')
                        continue;       /* several blanks */
                if (!ckv_u32_parse(piece, &length) || length == 0)
                        return "be numbers from 1 to 4294967295 with commas between them, or a file of them";
                if (!list_append(&settings->chunk_lengths, &settings->chunk_length_count, sizeof(length), &length))
                        return no_memory;
        }
        return NULL;
}

static const char *word_read(const struct ckv_option *row, const char *text, uint32_t *value) {
        for (size_t i = 0; i < row->word_count; i++) {
                if (row->words[i] && strcmp(row->words[i], text) == 0) {
                        *value = (uint32_t)i;
                        return NULL;
                }
        }
        return one_of_words;
}

/* Completes a sentence with the words that an option takes. */
static void words_append(const struct ckv_option *row, char *why) {
        const char *separator = " ";

        for (size_t i = 0; i < row->word_count; i++) {
                size_t n = strlen(why);

                if (!row->words[i])
                        continue;
                (void)snprintf(why + n, CKV_SETTINGS_WHY - n, "%s%s", separator, row->words[i]);
                separator = ", ";
        }
}

static const char *seconds_read(const char *text, uint32_t *value) {
        double seconds;

        if (!ckv_real_parse(text, &seconds) || seconds < 0.001 || seconds > 600)
                return "be 0.001 to 600 seconds";
        *value = (uint32_t)(seconds * 1000);
        return NULL;
}

/* Return: NULL, or what is wrong, to complete "must ...". */
static const char *value_read(struct ckv_settings *settings, const struct ckv_option *row, const char *text) {
        char *place = (char *)settings + row->offset;
        struct chunkkv_count count = { .given = true };
        const char *why = NULL;
        uint32_t word = 0;
        double real;

        switch (row->kind) {
        case CKV_OPTION_FLAG:
                *(bool *)place = true;
                return NULL;
        case CKV_OPTION_TEXT:
                memcpy(place, &text, sizeof(text));
                return NULL;
        case CKV_OPTION_LAYER:
                return layer_add(settings, text);
        case CKV_OPTION_SPAN:
                return span_add(settings, text);
        case CKV_OPTION_LENGTHS:
                return lengths_add(settings, text);
        case CKV_OPTION_COUNT:
                if (!ckv_u32_parse(text, &count.value))
                        return zero_or_more;
                memcpy(place, &count, sizeof(count));
                return NULL;
        case CKV_OPTION_REAL:
                if (!ckv_real_parse(text, &real) || !(real > 0))
                        return "be a number above 0";
                memcpy(place, &real, sizeof(real));
                return NULL;
        case CKV_OPTION_SECONDS:
                why = seconds_read(text, &word);
                break;
        case CKV_OPTION_WORD:
                why = word_read(row, text, &word);
                break;
        case CKV_OPTION_PART:
                why = ckv_millionths_parse(text, &word);
                break;
        case CKV_OPTION_NUMBER:
        case CKV_OPTION_ZERO:
                if (!ckv_u32_parse(text, &word) || (word == 0 && row->kind == CKV_OPTION_NUMBER))
                        why = row->kind == CKV_OPTION_NUMBER ? "be a whole number from 1 to 4294967295" : zero_or_more;
                break;
        }
        if (!why)
                memcpy(place, &word, sizeof(word));
        return why;
}

/* Has the option a value, and one alone? */
static bool is_single(const struct ckv_option *row) {
        return row->kind != CKV_OPTION_FLAG && row->kind != CKV_OPTION_LAYER && row->kind != CKV_OPTION_SPAN;
}

/* Takes the value of the @index-th option. Return: false, with a sentence of what is wrong. */
static bool option_take(struct ckv_settings *settings, int index, const char *text, char *why) {
        const struct ckv_option *row = &ckv_options[index];
        const char *wrong;

        if (settings->typed[index] && is_single(row)) {
                (void)snprintf(why, CKV_SETTINGS_WHY, "--%s: is given twice, the second time as \"%.200s\"; it has one value",
                               row->name, text);
                return false;
        }
        wrong = value_read(settings, row, text);
        if (wrong) {
                (void)snprintf(why, CKV_SETTINGS_WHY, "--%s %.200s: must %s", row->name, text, wrong);
                if (wrong == one_of_words)
                        words_append(row, why);
                return false;
        }
        settings->typed[index] = text;
        return true;
}

static int ascending(const void *a, const void *b) {
        uint32_t x, y;

        memcpy(&x, a, sizeof(x));
        memcpy(&y, b, sizeof(y));
        return (x > y) - (x < y);
}

static const struct ckv_command_row *command_find(const char *name) {
        for (size_t i = 0; i < ckv_command_count; i++) {
                if (strcmp(ckv_commands[i].name, name) == 0)
                        return &ckv_commands[i];
        }
        return NULL;
}

/* Says that @word is one too many, and how many files there may be. Return: false. */
static bool word_refuse(const struct ckv_settings *settings, const char *name, const char *word, char *why) {
        static const char *const counts[] = { "no file", "one file", "two files" };
        bool tensors = settings->command & CKV_COMMAND_TENSORS;
        int files = (tensors && !settings->key) + (settings->command == CKV_COMMAND_COMPRESS);

        (void)snprintf(why, CKV_SETTINGS_WHY, "%.200s is one word too many: %s%s takes %s", word, name,
                       tensors && settings->key ? " with --key" : "", counts[files]);
        return false;
}

/* What is left on the line: the command and its files. */
static bool words_read(struct ckv_settings *settings, char **words, char *why) {
        const struct ckv_command_row *row;

        if (!words[0]) {
                (void)snprintf(why, CKV_SETTINGS_WHY, "which command? Try --help");
                return false;
        }
        row = command_find(*words++);
        if (!row) {
                (void)snprintf(why, CKV_SETTINGS_WHY, "no command %s, try --help", words[-1]);
                return false;
        }
        settings->command = row->command;
        if (settings->help || settings->version)
                return true;
        if ((settings->command & CKV_COMMAND_TENSORS) && !settings->key) {
                settings->path = *words;
                if (!*words++) {
                        (void)snprintf(why, CKV_SETTINGS_WHY, "%s needs a file, or --key", row->name);
                        return false;
                }
        }
        if (settings->command == CKV_COMMAND_COMPRESS) {
                settings->out = *words;
                if (!*words++) {
                        (void)snprintf(why, CKV_SETTINGS_WHY, "compress needs a file to write to");
                        return false;
                }
        }
        return !*words || word_refuse(settings, row->name, *words, why);
}

/* Options that need or exclude one another. Return: NULL, or what is wrong. */
static const char *pairs_check(const struct ckv_settings *settings) {
        if (!(settings->command & CKV_COMMAND_TENSORS))
                return NULL;
        if (!settings->key && (settings->query || settings->value))
                return "--query and --value need --key";
        if (!settings->key && settings->npy_dtype)
                return "--dtype is for .npy files, so it needs --key";
        if (settings->key && settings->names)
                return "--names is for safetensors files, not for --key";
        if (settings->command == CKV_COMMAND_COMPRESS && settings->key && !settings->value)
                return "compress needs --value with --key";
        if (settings->command == CKV_COMMAND_EXPLAIN && !settings->tokens)
                return "explain needs --tokens, a JSON file with the text";
        if (settings->command == CKV_COMMAND_EXPLAIN && !settings->out)
                return "explain needs --out, the page to write";
        if (!settings->keep_ratio && !settings->max_tokens && settings->policy.selector != CHUNKKV_SELECTOR_H2O)
                return "--keep-ratio or --max-tokens must be given";
        return NULL;
}

static bool together_check(const struct ckv_settings *settings, char *why) {
        const char *wrong;

        for (size_t i = 0; i < ckv_option_count; i++) {
                if (settings->typed[i] && !(ckv_options[i].commands & (unsigned)settings->command)) {
                        (void)snprintf(why, CKV_SETTINGS_WHY, "--%s is no option of this command", ckv_options[i].name);
                        return false;
                }
        }
        wrong = pairs_check(settings);
        if (wrong)
                (void)snprintf(why, CKV_SETTINGS_WHY, "%s", wrong);
        return !wrong;
}

bool ckv_settings_parse(int argc, char **argv, struct ckv_settings *ret_settings,
                        char ret_why[static CKV_SETTINGS_WHY]) {
        struct option options[CKV_OPTIONS_MAX + 1] = { { 0 } };
        int at, index;

        *ret_settings = (struct ckv_settings){ .timeout_ms = 30000 };
        for (size_t i = 0; i < ckv_option_count; i++)
                options[i] = (struct option){ ckv_options[i].name,
                        ckv_options[i].kind == CKV_OPTION_FLAG ? no_argument : required_argument, NULL, 'o' };
        opterr = 0;
        optind = 0;     /* begin anew: glibc keeps its place between calls */
        while ((at = getopt_long(argc, argv, ":h", options, &index)) != -1) {
                if (at == 'h') {
                        ret_settings->help = true;
                        continue;
                }
                if (at != 'o') {
                        (void)snprintf(ret_why, CKV_SETTINGS_WHY, "%s %s", argv[optind - 1],
                                       at == ':' ? "needs a value" : "is no option, or not a clear one; try --help");
                        return false;
                }
                if (!option_take(ret_settings, index, optarg ? optarg : "", ret_why))
                        return false;
        }
        if (ret_settings->version || (ret_settings->help && !argv[optind]))
                return true;
        if (!words_read(ret_settings, argv + optind, ret_why))
                return false;
        if (ret_settings->layer_count > 0)
                qsort(ret_settings->layers, ret_settings->layer_count, sizeof(*ret_settings->layers), ascending);
        return ret_settings->help || together_check(ret_settings, ret_why);
}

void ckv_settings_deinit(struct ckv_settings *settings) {
        free(settings->layers);
        free(settings->protect);
        free(settings->chunk_lengths);
        *settings = (struct ckv_settings){ 0 };
}
