/* The page that shows what a plan keeps, and why: text, scores, kept mass. */
#ifndef CKV_TOOLS_EXPLAIN_H
#define CKV_TOOLS_EXPLAIN_H

#include "tools/files.h"
#include "tools/layers.h"
#include "tools/plan.h"
#include "tools/tokens.h"

/**
 * ckv_explain_check() - is there a piece of text for each row?
 * @layers:  [count]
 * @ret_why: on failure one sentence, to follow the name of the file of tokens
 *
 * Return: 0 or -EINVAL.
 */
int ckv_explain_check(const struct ckv_tokens *tokens, const struct ckv_layer *layers, size_t count,
                      char ret_why[static CKV_FILES_WHY]);

/**
 * ckv_explain_write() - the page, one file that needs no other
 * @label:   name of the file of tensors
 * @plan:    with scores; its layers all have as many rows as there are tokens, at least one
 * @ret_why: on failure one sentence
 *
 * Errors of writing stay in @output.
 *
 * Return: 0; -EPROTO if the daemon's scores are not one for each chunk; or -ENOMEM.
 */
int ckv_explain_write(const struct ckv_settings *settings, const char *label, const struct ckv_plan *plan,
                      const struct ckv_tokens *tokens, struct ckv_output *output, char ret_why[static CKV_FILES_WHY]);

#endif
