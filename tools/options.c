/*
 * The table of options, and what is read out of it besides the command line.
 *
 * An option is the field of the same name in struct Policy, GroupJob or
 * Compress of the protocol, with hyphens, and an enum value is its word there
 * in lower case.  The only differences: `--layer-sets` is the field `layers`,
 * which next to `--layer` would be misread, and parts of a whole are typed as
 * decimals and sent as millionths.
 */
#include "tools/options.h"

#include "base/macros.h"

#include <string.h>

#define WORDS(list) .words = (list), .word_count = CKV_ARRAY_SIZE(list)
#define AT(of) .offset = offsetof(struct ckv_settings, of)
#define POLICY(of) \
        .commands = CKV_COMMAND_TENSORS, AT(policy.of), .path = "compress.groups[].policies[]." #of, .member = #of
#define JOB(of) .commands = CKV_COMMAND_TENSORS, AT(of), .path = "compress.groups[]." #of

static const char *const profile_words[] = {
        [CHUNKKV_PROFILE_DEFAULT] = "default", [CHUNKKV_PROFILE_PAPER] = "paper",
        [CHUNKKV_PROFILE_KVPRESS] = "kvpress", [CHUNKKV_PROFILE_RETRIEVAL] = "retrieval",
        [CHUNKKV_PROFILE_VOTE] = "vote",
};
static const char *const scorer_words[] = {
        [CHUNKKV_SCORER_WINDOW] = "window", [CHUNKKV_SCORER_RAW_QK] = "raw_qk", [CHUNKKV_SCORER_DROP] = "drop",
        [CHUNKKV_SCORER_KNORM] = "knorm", [CHUNKKV_SCORER_KEYDIFF] = "keydiff", [CHUNKKV_SCORER_LAGKV] = "lagkv",
        [CHUNKKV_SCORER_VK_RATIO] = "vk_ratio", [CHUNKKV_SCORER_GIVEN] = "given",
};
static const char *const selector_words[] = {
        [CHUNKKV_SELECTOR_CHUNK] = "chunk", [CHUNKKV_SELECTOR_CHUNK_AT] = "chunk_at",
        [CHUNKKV_SELECTOR_TOKEN] = "token", [CHUNKKV_SELECTOR_STREAMING] = "streaming", [CHUNKKV_SELECTOR_H2O] = "h2o",
        [CHUNKKV_SELECTOR_CHUNK_EG] = "chunk_eg", [CHUNKKV_SELECTOR_PAGE] = "page",
};
static const char *const pool_words[] = {
        [CHUNKKV_POOL_NONE] = "none", [CHUNKKV_POOL_AVG] = "avg", [CHUNKKV_POOL_MAX] = "max", [CHUNKKV_POOL_LEAK] = "leak",
};
static const char *const norm_words[] = {
        [CHUNKKV_NORM_SUM] = "sum", [CHUNKKV_NORM_MEAN] = "mean", [CHUNKKV_NORM_SEEN] = "seen",
};
static const char *const heads_words[] = {
        [CHUNKKV_HEADS_SUM] = "sum", [CHUNKKV_HEADS_MAX] = "max", [CHUNKKV_HEADS_EACH] = "each",
};
static const char *const group_heads_words[] = {
        [CHUNKKV_GROUP_SUM] = "sum", [CHUNKKV_GROUP_MAX] = "max", [CHUNKKV_GROUP_MEAN] = "mean",
};
static const char *const weight_words[] = {
        [CHUNKKV_WEIGHT_NONE] = "none", [CHUNKKV_WEIGHT_L1] = "l1", [CHUNKKV_WEIGHT_L2] = "l2",
};
static const char *const unit_words[] = {
        [CHUNKKV_UNIT_MEAN] = "mean", [CHUNKKV_UNIT_SUM] = "sum", [CHUNKKV_UNIT_MAX] = "max",
};
static const char *const layers_words[] = { [CHUNKKV_LAYERS_EACH] = "each", [CHUNKKV_LAYERS_ONE] = "one" };
static const char *const fill_words[] = {
        [CHUNKKV_FILL_LEAD] = "lead", [CHUNKKV_FILL_BEST] = "best", [CHUNKKV_FILL_NONE] = "none",
};
static const char *const tight_words[] = { [CHUNKKV_TIGHT_RAISE] = "raise", [CHUNKKV_TIGHT_REFUSE] = "refuse" };
static const char *const join_words[] = { [CHUNKKV_JOIN_CUT] = "cut", [CHUNKKV_JOIN_UNION] = "union" };
static const char *const rows_words[] = { [CHUNKKV_ROWS_SUM] = "sum", [CHUNKKV_ROWS_MAX] = "max" };
static const char *const npy_words[] = { [1] = "bf16" };
static const char *const layer_words[] = { [CHUNKKV_LAYER_SUM] = "sum", [CHUNKKV_LAYER_TOP4] = "top4" };

const struct ckv_option ckv_options[] = {
        { "endpoint", "PREFIX", CKV_OPTION_TEXT, CKV_COMMAND_ALL, AT(endpoint),
          .help = "sockets PREFIX.zmq and PREFIX.fd (else $CHUNKKV_ENDPOINT, else /run/chunkkv/cpu/main)" },
        { "timeout", "SECONDS", CKV_OPTION_SECONDS, CKV_COMMAND_ALL, AT(timeout_ms),
          .help = "for each answer, at most 600 (30)" },
        { "json", NULL, CKV_OPTION_FLAG, CKV_COMMAND_ALL, AT(json), .help = "one line of JSON" },
        { "help", NULL, CKV_OPTION_FLAG, CKV_COMMAND_ALL, AT(help), .help = "this text" },
        { "version", NULL, CKV_OPTION_FLAG, CKV_COMMAND_ALL, AT(version), .help = "version of this program" },

        { "key", "F.npy", CKV_OPTION_TEXT, CKV_COMMAND_TENSORS, AT(key),
          .heading = "Tensors",
          .help = "keys of one layer, [rows, heads, size], instead of a FILE; the layer is number 0" },
        { "query", "F.npy", CKV_OPTION_TEXT, CKV_COMMAND_TENSORS, AT(query),
          .help = "its newest queries, with --key; newest last" },
        { "value", "F.npy", CKV_OPTION_TEXT, CKV_COMMAND_TENSORS, AT(value), .help = "its values, with --key" },
        { "dtype", NULL, CKV_OPTION_WORD, CKV_COMMAND_TENSORS, AT(npy_dtype), WORDS(npy_words),
          .help = "take 16-bit integers in .npy files for bfloat16" },
        { "tokens", "F.json", CKV_OPTION_TEXT, CKV_COMMAND_EXPLAIN, AT(tokens),
          .help = "the text, a piece for each row: a list of strings, or \"pieces\" or \"tokens\" of an object" },
        { "out", "PAGE.html", CKV_OPTION_TEXT, CKV_COMMAND_EXPLAIN, AT(out), .help = "the page to write" },
        { "force", NULL, CKV_OPTION_FLAG, CKV_COMMAND_WRITES, AT(force), .help = "replace a file that is there" },

        { "layer", "N", CKV_OPTION_LAYER, CKV_COMMAND_TENSORS,
          .help = "layer to look at, may be repeated (all of the file)" },
        { "names", "LIST", CKV_OPTION_TEXT, CKV_COMMAND_TENSORS, AT(names),
          .help = "names of the tensors: query=...{layer}...,key=...,value=...,lse=...,sink_logits=... (layer{layer}.query and so on)" },
        { "query-rows", "N", CKV_OPTION_NUMBER, CKV_COMMAND_TENSORS, AT(query_rows),
          .help = "send only the newest N rows of the queries (all, up to 256)" },
        { "keep-ratio", "PART", CKV_OPTION_PART, JOB(keep_ratio), .heading = "How much is kept",
          .help = "part of the rows to keep, 0.000001 to 1" },
        { "max-tokens", "N", CKV_OPTION_NUMBER, JOB(max_tokens),
          .help = "rows to keep; with --keep-ratio the smaller holds" },
        { "protect", "A:B", CKV_OPTION_SPAN, JOB(protect), .help = "keep positions A to B-1, may be repeated" },
        { "protect-prefix", "N", CKV_OPTION_ZERO, JOB(protect_prefix),
          .help = "keep the first N rows, rounded up to whole blocks" },
        { "chunk-lengths", "N,N,...|FILE", CKV_OPTION_LENGTHS, JOB(chunk_lengths),
          .help = "rows of each chunk, for --selector chunk_at and --pool leak; a file has them apart by blanks or commas" },
        { "kept-mass", NULL, CKV_OPTION_FLAG, CKV_COMMAND_PLAN | CKV_COMMAND_COMPRESS, AT(kept_mass),
          .help = "say how much of the scores each layer keeps" },
        { "logical-len", "N", CKV_OPTION_NUMBER, CKV_COMMAND_TENSORS, AT(logical_len), .path = "compress.logical_len",
          .help = "tokens the model has seen (the rows of the file)" },

        { "profile", NULL, CKV_OPTION_WORD, POLICY(profile), WORDS(profile_words),
          .heading = "The method (docs/methods.md has them by name; what is left out, the profile says)",
          .help = "set of defaults (default)" },
        { "scorer", NULL, CKV_OPTION_WORD, POLICY(scorer), WORDS(scorer_words), .help = "what rows are judged by" },
        { "selector", NULL, CKV_OPTION_WORD, POLICY(selector), WORDS(selector_words),
          .help = "what is kept or dropped together" },
        { "hybrid", NULL, CKV_OPTION_WORD, CKV_COMMAND_PLAN | CKV_COMMAND_COMPRESS, AT(hybrid), WORDS(selector_words),
          .help = "another selector for the upper half of the layers" },
        { "layer-first", "N", CKV_OPTION_ZERO, POLICY(layer_first), .help = "first layer that the policy holds for" },
        { "window", "N", CKV_OPTION_NUMBER, POLICY(window), .heading = "Window, chunks, and rows that are always kept",
          .help = "newest query rows that vote" },
        { "chunk", "N", CKV_OPTION_NUMBER, POLICY(chunk), .help = "rows of a chunk" },
        { "sinks", "N", CKV_OPTION_COUNT, POLICY(sinks), .help = "first rows, always kept" },
        { "recent", "N", CKV_OPTION_COUNT, POLICY(recent), .help = "last rows, always kept" },
        { "min-tokens", "N", CKV_OPTION_COUNT, POLICY(min_tokens), .help = "shorter sequences are kept whole" },
        { "pool", NULL, CKV_OPTION_WORD, POLICY(pool), WORDS(pool_words), .heading = "Scores",
          .help = "smoothing along the rows" },
        { "pool-size", "N", CKV_OPTION_NUMBER, POLICY(pool_size), .help = "rows of the pool, odd" },
        { "norm", NULL, CKV_OPTION_WORD, POLICY(norm), WORDS(norm_words), .help = "over the rows of the window" },
        { "heads", NULL, CKV_OPTION_WORD, POLICY(heads), WORDS(heads_words), .help = "over the KV heads" },
        { "group-heads", NULL, CKV_OPTION_WORD, POLICY(group_heads), WORDS(group_heads_words),
          .help = "over the query heads of one KV head" },
        { "value-weight", NULL, CKV_OPTION_WORD, POLICY(value_weight), WORDS(weight_words),
          .help = "weight scores by the norm of V" },
        { "unit-reduce", NULL, CKV_OPTION_WORD, POLICY(unit_reduce), WORDS(unit_words),
          .help = "over the rows of a chunk" },
        { "layer-sets", NULL, CKV_OPTION_WORD, POLICY(layers), WORDS(layers_words),
          .heading = "Sets and budgets",
          .help = "a kept set for each layer, or one for all" },
        { "layer-reduce", NULL, CKV_OPTION_WORD, POLICY(layer_reduce), WORDS(layer_words),
          .help = "over the layers, with --layer-sets one" },
        { "reuse", "N", CKV_OPTION_NUMBER, POLICY(reuse), .help = "every N-th layer scores" },
        { "fill", NULL, CKV_OPTION_WORD, POLICY(fill), WORDS(fill_words),
          .help = "what is taken of the chunk that does not fit; none may leave no row at all" },
        { "tight", NULL, CKV_OPTION_WORD, POLICY(tight), WORDS(tight_words),
          .help = "when more is protected than may be kept" },
        { "align", "N", CKV_OPTION_NUMBER, POLICY(align), .help = "round the budget up to a multiple of N rows" },
        { "join", NULL, CKV_OPTION_WORD, POLICY(join), WORDS(join_words),
          .help = "chunks and window, in profile paper" },
        { "scale", "X", CKV_OPTION_REAL, POLICY(scale), .heading = "The model",
          .help = "the model's factor on logits (1 / sqrt(head size))" },
        { "softcap", "X", CKV_OPTION_REAL, POLICY(softcap), .help = "the model's soft cap on logits (none)" },
        { "sliding", "N", CKV_OPTION_ZERO, POLICY(sliding),
          .help = "rows of the model's sliding window (0: full attention)" },
        { "window-reduce", NULL, CKV_OPTION_WORD, POLICY(window_reduce), WORDS(rows_words),
          .heading = "Votes of query rows, with --scorer window",
          .help = "over the query rows" },
        { "vote-rows", "N", CKV_OPTION_NUMBER, POLICY(vote_rows), .help = "newest query rows of --window-reduce max" },
        { "contrast-first", "N", CKV_OPTION_COUNT, POLICY(contrast_first),
          .help = "query rows back from the newest, whose mean ..." },
        { "contrast-end", "N", CKV_OPTION_COUNT, POLICY(contrast_end), .help = "... up to this one is subtracted" },
        { "mute", "N", CKV_OPTION_COUNT, POLICY(mute), .help = "first rows whose scores count as 0" },
        { "spike-keep", "N", CKV_OPTION_NUMBER, POLICY(spike_keep),
          .heading = "For one selector or plan alone",
          .help = "rows of a spiky chunk, for --selector chunk_eg" },
        { "page", "N", CKV_OPTION_NUMBER, POLICY(page), .help = "rows of a page, for --selector page" },
        { "beta", "N", CKV_OPTION_NUMBER, POLICY(beta), .help = "slope of budgets over layers (PyramidKV)" },
        { "heavy", "PART", CKV_OPTION_PART, POLICY(heavy), .help = "part of the rows that weigh most, for --selector h2o (0.1)" },
        { "recent-part", "PART", CKV_OPTION_PART, POLICY(recent_part),
          .help = "newest part of the rows, for --selector h2o (0.1)" },
};
const size_t ckv_option_count = CKV_ARRAY_SIZE(ckv_options);
static_assert(CKV_ARRAY_SIZE(ckv_options) <= CKV_OPTIONS_MAX, "ckv_settings.typed has room for every option");

const struct ckv_command_row ckv_commands[] = {
        { "ping", CKV_COMMAND_PING, "", "is the daemon there, and does its device make progress?" },
        { "status", CKV_COMMAND_STATUS, "", "what the daemon is, and what this user holds of its budgets" },
        { "plan", CKV_COMMAND_PLAN, " FILE.safetensors", "which rows would be kept, for tensors out of a file" },
        { "compress", CKV_COMMAND_COMPRESS, " FILE.safetensors OUT.safetensors",
          "compress them in shared memory, in place, and write the rows that are left" },
        { "explain", CKV_COMMAND_EXPLAIN, " FILE.safetensors --tokens FILE.json --out PAGE.html",
          "one page to look at: the text with its kept parts, scores of chunks over layers" },
};
const size_t ckv_command_count = CKV_ARRAY_SIZE(ckv_commands);

static const char compress_help[] =
        "OUT has every tensor of FILE.  Keys and values of the layers that were asked for hold the kept rows alone, in\n"
        "order; all others, queries too, are copied as they are.  layerN.kept_rows (I64; with --heads each one line for\n"
        "each KV head) says which rows of FILE were kept.  Metadata: that of FILE, and logical_len, profile, keep_ratio, max_tokens.\n";

static void row_help(FILE *to, const struct ckv_option *row) {
        char left[160];
        size_t n = (size_t)snprintf(left, sizeof(left), "--%s%s%s", row->name, row->argument ? " " : "",
                                    row->argument ? row->argument : "");
        const char *separator = " ";

        for (size_t i = 0; i < row->word_count; i++) {
                if (!row->words[i])
                        continue;
                n += (size_t)snprintf(left + n, sizeof(left) - n, "%s%s", separator, row->words[i]);
                separator = "|";
        }
        /* long lists of words push the sentence to a line of its own */
        if (n > 28)
                (void)fprintf(to, "  %s\n  %-28s  %s\n", left, "", row->help);
        else
                (void)fprintf(to, "  %-28s  %s\n", left, row->help);
}

void ckv_settings_help(FILE *to, enum ckv_command command) {
        const char *heading = NULL;     /* of the next option that is shown */

        for (size_t i = 0; i < ckv_command_count; i++) {
                if (!command || command == ckv_commands[i].command)
                        (void)fprintf(to, "chunkkvctl %s%s [OPTION ...]\n        %s\n", ckv_commands[i].name,
                                      ckv_commands[i].argument, ckv_commands[i].help);
        }
        (void)fprintf(to, "\nOptions (what holds without them):\n");
        for (size_t i = 0; i < ckv_option_count; i++) {
                if (ckv_options[i].heading)
                        heading = ckv_options[i].heading;
                if (command ? (ckv_options[i].commands & (unsigned)command) == 0 : ckv_options[i].commands != CKV_COMMAND_ALL)
                        continue;
                if (heading)
                        (void)fprintf(to, "\n%s:\n", heading);
                heading = NULL;
                row_help(to, &ckv_options[i]);
        }
        if (!command)
                (void)fprintf(to, "\nchunkkvctl plan --help lists what a plan may ask for.\n");
        if (command & CKV_COMMAND_COMPRESS)
                (void)fprintf(to, "\n%s", compress_help);
        if (!command || (command & CKV_COMMAND_TENSORS))
                (void)fprintf(to, "\nIf no daemon is at the default endpoint, plan, compress and explain start one "
                              "and stop it again.\n");
        (void)fprintf(to,
                      "\nExit status: 0, 1 refused by the daemon, 2 bad input, 3 no daemon or no answer in time.\n");
}

/* Does @field equal @path, where any number may stand between brackets, and a last pair may be missing in the path? */
static bool path_equal(const char *path, const char *field) {
        for (;;) {
                if (*path != *field)
                        return *path == '\0' && *field == '[' && strchr(field, ']') && strchr(field, ']')[1] == '\0';
                if (*path == '\0')
                        return true;
                if (*path == '[')
                        field += strspn(field + 1, "0123456789");
                path++;
                field++;
        }
}

const char *ckv_settings_option_find(const struct ckv_settings *settings, const char *field, const char **ret_typed) {
        for (size_t i = 0; i < ckv_option_count; i++) {
                if (ckv_options[i].path && path_equal(ckv_options[i].path, field)) {
                        *ret_typed = settings->typed[i];
                        return ckv_options[i].name;
                }
        }
        return NULL;
}

static struct ckv_parameter parameter_of(const struct ckv_option *row, const char *place) {
        struct ckv_parameter parameter = { .name = row->member, .present = true };
        struct chunkkv_count count;
        uint32_t word;

        if (row->kind == CKV_OPTION_REAL) {
                memcpy(&parameter.number, place, sizeof(parameter.number));
        } else if (row->kind == CKV_OPTION_COUNT) {
                memcpy(&count, place, sizeof(count));
                parameter.present = count.given;
                parameter.number = count.value;
        } else {
                memcpy(&word, place, sizeof(word));
                parameter.number = word;
                if (row->kind == CKV_OPTION_WORD) {
                        parameter.word = word < row->word_count ? row->words[word] : NULL;
                        parameter.present = parameter.word != NULL;
                }
        }
        return parameter;
}

bool ckv_settings_parameter(const struct chunkkv_policy *policy, size_t index, struct ckv_parameter *ret_parameter) {
        for (size_t i = 0; i < ckv_option_count; i++) {
                size_t offset = ckv_options[i].offset - offsetof(struct ckv_settings, policy);

                if (!ckv_options[i].member || index-- > 0)
                        continue;
                *ret_parameter = parameter_of(&ckv_options[i], (const char *)policy + offset);
                return true;
        }
        return false;
}

const char *ckv_settings_profile(const struct chunkkv_policy *policy) {
        return policy->profile < CKV_ARRAY_SIZE(profile_words) ? profile_words[policy->profile] : "?";
}
