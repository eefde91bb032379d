/*
 * What chunkkvctl was asked for: the command line as a struct.  One table,
 * tools/settings.c, has a line for each option; the parser, --help, the policy
 * in the answer and the option named in a refusal all come from it.
 */
#ifndef CKV_TOOLS_SETTINGS_H
#define CKV_TOOLS_SETTINGS_H

#include "clients/c/include/chunkkv.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CKV_OPTIONS_MAX 80
#define CKV_SETTINGS_WHY 512            /* bytes of a sentence about what is wrong */

/* Exit statuses. */
enum ckv_exit { CKV_EXIT_OK = 0, CKV_EXIT_REFUSED = 1, CKV_EXIT_INPUT = 2, CKV_EXIT_NO_DAEMON = 3 };

/* Bits: which commands an option is for. */
enum ckv_command {
        CKV_COMMAND_PING = 1 << 0,
        CKV_COMMAND_STATUS = 1 << 1,
        CKV_COMMAND_PLAN = 1 << 2,
        CKV_COMMAND_COMPRESS = 1 << 3,
        CKV_COMMAND_EXPLAIN = 1 << 4,
};
#define CKV_COMMAND_TENSORS (CKV_COMMAND_PLAN | CKV_COMMAND_COMPRESS | CKV_COMMAND_EXPLAIN)
#define CKV_COMMAND_WRITES (CKV_COMMAND_COMPRESS | CKV_COMMAND_EXPLAIN)
#define CKV_COMMAND_ALL (CKV_COMMAND_PING | CKV_COMMAND_STATUS | CKV_COMMAND_TENSORS)

struct ckv_settings {
        enum ckv_command command;
        bool help, version, json;
        const char *endpoint;           /* NULL = not given */
        uint32_t timeout_ms;
        const char *path;               /* the file of tensors; NULL = the .npy files */
        const char *key, *value, *query;        /* .npy files; NULL = not given */
        uint32_t npy_dtype;             /* 1 = 16-bit integers in them are bfloat16 */
        const char *out;                /* compress, explain: the file to write */
        const char *tokens;             /* explain: JSON file with the text */
        bool force;                     /* out may be there already */
        const char *names;
        uint32_t *layers;               /* [layer_count] ascending; none = all of the file */
        size_t layer_count;
        struct chunkkv_span *protect;   /* [protect_count] */
        size_t protect_count;
        uint32_t *chunk_lengths;        /* [chunk_length_count] */
        size_t chunk_length_count;
        uint32_t keep_ratio, max_tokens, protect_prefix, logical_len;   /* 0 = not given */
        bool kept_mass;                 /* plan, compress: ask for it */
        uint32_t hybrid;                /* chunkkv_selector of the upper half of the layers; 0 = the same as below */
        uint32_t query_rows;            /* newest rows of the query tensor that are sent; 0 = all, up to 256 */
        struct chunkkv_policy policy;
        const char *typed[CKV_OPTIONS_MAX];     /* text of each option given, by its place in the table */
};

/**
 * ckv_settings_parse() - command line to settings
 * @argv:         [argc] and NULL; may be reordered, and is referred to afterwards
 * @ret_settings: overwritten whole, also on failure; ends with ckv_settings_deinit()
 * @ret_why:      on failure one sentence
 *
 * With help or version set nothing else was checked.
 *
 * Return: true if the line makes sense.
 */
bool ckv_settings_parse(int argc, char **argv, struct ckv_settings *ret_settings,
                        char ret_why[static CKV_SETTINGS_WHY]);

/* ckv_settings_deinit() - free its lists */
void ckv_settings_deinit(struct ckv_settings *settings);

/* ckv_settings_help() - usage of one command, or of all (0) */
void ckv_settings_help(FILE *to, enum ckv_command command);

/**
 * ckv_settings_option_find() - the option that stands for a field of a request
 * @field:     as Status.field names it: "compress.groups[0].policies[0].selector"
 * @ret_typed: what was typed behind it; NULL = it was not given
 *
 * Return: its name, "selector"; NULL if no option stands for the field.
 */
const char *ckv_settings_option_find(const struct ckv_settings *settings, const char *field, const char **ret_typed);

/* ckv_settings_profile() - name of the policy's profile. Return: constant text, "?" for one without a name. */
const char *ckv_settings_profile(const struct chunkkv_policy *policy);

/* One parameter of a policy, ready to be printed. */
struct ckv_parameter {
        const char *name;               /* as in the protocol: "pool_size" */
        const char *word;               /* enums: "avg"; NULL = a number */
        bool present;                   /* false: no value */
        double number;
};

/* ckv_settings_parameter() - parameter number @index of a policy. Return: false past the last one. */
bool ckv_settings_parameter(const struct chunkkv_policy *policy, size_t index, struct ckv_parameter *ret_parameter);

#endif
