/*
 * The command line of chunkkvd, from daemon/options.def.  Parsed once at
 * start; everybody else sees it as const.
 */
#ifndef CKV_DAEMON_OPTIONS_H
#define CKV_DAEMON_OPTIONS_H

#include "base/limits.h"
#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { CKV_OPTIONS_NAMES_MAX = 64 };

/* Values of one option that may be given several times: NAME, and who may use it (daemon/access.h); borrowed from argv. */
struct ckv_option_names {
        const char *items[CKV_OPTIONS_NAMES_MAX];
        uint32_t count;
};

#define CKV_OPTION_COUNT uint64_t
#define CKV_OPTION_SIZE uint64_t
#define CKV_OPTION_OCTAL uint64_t
#define CKV_OPTION_LEVEL uint64_t
#define CKV_OPTION_SWITCH uint64_t
#define CKV_OPTION_TEXT const char *
#define CKV_OPTION_NAMES struct ckv_option_names

#define OPT(name, TYPE, value, min, max, unit, help) CKV_OPTION_##TYPE name;
struct ckv_options {
#include "daemon/options.def"
};
#undef OPT

enum {
        _CKV_OPTIONS_E_SUCCESS,
        CKV_OPTIONS_E_DONE,     /* --help: printed, leave with 0 */
        CKV_OPTIONS_E_VERSION,  /* --version: to be printed, leave with 0 */
        CKV_OPTIONS_E_INVALID,  /* one sentence was printed, leave with 2 */
};

/* ckv_options_cuda() - is a GPU to be served? */
static inline bool ckv_options_cuda(const struct ckv_options *options) {
        return strcmp(options->backend, "cuda") == 0;
}

/* ckv_option_name_equal() - is @name, [length] characters, the NAME of an item? */
bool ckv_option_name_equal(const char *item, const char *name, size_t length);

/* ckv_options_init() - the defaults of options.def */
void ckv_options_init(struct ckv_options *options);

/**
 * ckv_options_parse() - read a command line over the defaults
 * @options: initialised here; strings point into @argv
 * @argv:    order may change, as getopt_long does it
 * @out:     for --help
 * @err:     for the sentence that says which option is wrong and what it may be
 *
 * Return: 0 or CKV_OPTIONS_E_*.
 */
int ckv_options_parse(struct ckv_options *options, int argc, char *argv[], FILE *out, FILE *err);

#endif
