/*
 * The table of options of chunkkvctl, and of its commands.  Read by the parser
 * (settings.c); --help, the policy in the answer and the option named in a
 * refusal come from it, too.
 */
#ifndef CKV_TOOLS_OPTIONS_H
#define CKV_TOOLS_OPTIONS_H

#include "tools/settings.h"

enum ckv_option_kind {
        CKV_OPTION_FLAG,      /* bool */
        CKV_OPTION_TEXT,      /* const char * */
        CKV_OPTION_SECONDS,   /* uint32_t, milliseconds */
        CKV_OPTION_NUMBER,    /* uint32_t, at least 1 */
        CKV_OPTION_ZERO,      /* uint32_t, 0 = not given and means the same */
        CKV_OPTION_COUNT,     /* struct chunkkv_count */
        CKV_OPTION_REAL,      /* double, above 0 */
        CKV_OPTION_WORD,      /* uint32_t, index into words */
        CKV_OPTION_PART,      /* uint32_t, millionths */
        CKV_OPTION_LAYER,     /* may be repeated */
        CKV_OPTION_SPAN,      /* may be repeated */
        CKV_OPTION_LENGTHS,   /* 7,12,4 */
};

struct ckv_option {
        const char *name;
        const char *argument;           /* in the help; NULL = CKV_OPTION_FLAG, or the words */
        enum ckv_option_kind kind;
        unsigned commands;
        size_t offset;                  /* in struct ckv_settings */
        const char *path;               /* of the field of the request; NULL = none */
        const char *member;             /* of Policy; NULL = not in it */
        const char *const *words;       /* [word_count] NULL where a number has no word */
        size_t word_count;
        const char *help;
        const char *heading;            /* stands in the help above this option and those behind it; NULL = as the one before */
};

struct ckv_command_row {
        const char *name;
        enum ckv_command command;
        const char *argument, *help;
};

extern const struct ckv_option ckv_options[];           /* [ckv_option_count] */
extern const size_t ckv_option_count;
extern const struct ckv_command_row ckv_commands[];     /* [ckv_command_count] */
extern const size_t ckv_command_count;

#endif
