/* The text that a cache was made of, as the pieces of its tokens: a JSON file. */
#ifndef CKV_TOOLS_TOKENS_H
#define CKV_TOOLS_TOKENS_H

#include "tools/files.h"

struct ckv_tokens {
        const char **pieces;            /* [count] UTF-8 as it came, perhaps not well-formed */
        size_t count;
        void *json;                     /* owns the pieces */
};

/**
 * ckv_tokens_load() - read ["Once", " upon", ...], or the same as "pieces" or "tokens" of an object
 * @ret_tokens: ends with ckv_tokens_deinit()
 * @ret_why:    on failure one sentence, without the path
 *
 * Return: 0 or -errno; -EBADMSG if the file holds something else.
 */
int ckv_tokens_load(const char *path, struct ckv_tokens *ret_tokens, char ret_why[static CKV_FILES_WHY]);

/**
 * ckv_tokens_parse() - the same over text in memory
 * @text: [size]
 *
 * Return: 0, -EBADMSG or -ENOMEM.
 */
int ckv_tokens_parse(const char *text, size_t size, struct ckv_tokens *ret_tokens, char ret_why[static CKV_FILES_WHY]);

/* ckv_tokens_deinit() - free them */
void ckv_tokens_deinit(struct ckv_tokens *tokens);

#endif
