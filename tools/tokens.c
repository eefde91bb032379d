/*
 * Both forms exist in the wild: a bare list, as a tokenizer's
 * convert_ids_to_tokens() dumps it, and an object that says more about the text
 * (tests/data/needle-1k.json, whose "tokens" is their number).  So a key counts
 * only if it holds a list.
 *
 * cJSON ends a string at \u0000; such a piece is cut there.
 */
#include "tools/tokens.h"

#include "base/macros.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>

/* A text of a million tokens has about 20 MB. */
#define FILE_MAX_BYTES (256u << 20)

static int fail(char *why, int error, const char *format, ...) _printf_(3, 4);
static int fail(char *why, int error, const char *format, ...) {
        va_list args;

        va_start(args, format);
        (void)vsnprintf(why, CKV_FILES_WHY, format, args);
        va_end(args);
        return error;
}

static const cJSON *list_find(const cJSON *root) {
        static const char *const keys[] = { "pieces", "tokens" };
        const cJSON *list;

        if (cJSON_IsArray(root))
                return root;
        for (size_t i = 0; i < CKV_ARRAY_SIZE(keys); i++) {
                list = cJSON_GetObjectItemCaseSensitive(root, keys[i]);
                if (cJSON_IsArray(list))
                        return list;
        }
        return NULL;
}

static int pieces_fill(struct ckv_tokens *tokens, char *why) {
        const cJSON *list = list_find(tokens->json), *item;

        if (!list)
                return fail(why, -EBADMSG, "it holds no list of strings, nor one as \"pieces\" or \"tokens\"");
        tokens->pieces = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(*tokens->pieces));
        if (!tokens->pieces)
                return fail(why, -ENOMEM, "no memory for its pieces");
        cJSON_ArrayForEach(item, list) {
                if (!cJSON_IsString(item))
                        return fail(why, -EBADMSG, "entry %zu of its list is not a string", tokens->count);
                tokens->pieces[tokens->count++] = item->valuestring;
        }
        return 0;
}

/* Is this an escape D800 to DFFF with one of these as its third digit from the right? */
static bool is_surrogate(const char *text, size_t size, const char *digits) {
        return size >= 6 && text[0] == '\\' && text[1] == 'u' && (text[2] == 'd' || text[2] == 'D') && text[3] &&
               strchr(digits, text[3]);
}

/* Does a text begin with half a character?  JSON's grammar has it, Unicode has not, and cJSON stops there. */
static bool is_half(const char *text, size_t size) {
        if (is_surrogate(text, size, "cdefCDEF"))
                return true;
        return is_surrogate(text, size, "89abAB") && !is_surrogate(text + 6, size - 6, "cdefCDEF");
}

int ckv_tokens_parse(const char *text, size_t size, struct ckv_tokens *ret_tokens, char ret_why[static CKV_FILES_WHY]) {
        struct ckv_tokens tokens = { 0 };
        const char *end = NULL;
        int r;

        tokens.json = cJSON_ParseWithLengthOpts(text, size, &end, 0);
        if (!tokens.json && end && is_half(end, size - (size_t)(end - text)))
                return fail(ret_why, -EBADMSG, "%.6s at byte %zu is half a character, a surrogate without its other",
                            end, (size_t)(end - text));
        if (!tokens.json)
                return fail(ret_why, -EBADMSG, "it is no JSON, or not from byte %zu on",
                            end ? (size_t)(end - text) : (size_t)0);
        while (end < text + size && *end && strchr(" \t\r\n", *end))
                end++;
        r = end == text + size ? pieces_fill(&tokens, ret_why)
                               : fail(ret_why, -EBADMSG, "it goes on after its JSON");
        if (r) {
                ckv_tokens_deinit(&tokens);
                return r;
        }
        *ret_tokens = tokens;
        return 0;
}

int ckv_tokens_load(const char *path, struct ckv_tokens *ret_tokens, char ret_why[static CKV_FILES_WHY]) {
        void *mapped;
        size_t size;
        int r;

        r = ckv_file_map(path, &mapped, &size, ret_why);
        if (r)
                return r;
        if (size > FILE_MAX_BYTES)
                r = fail(ret_why, -EBADMSG, "it has %zu bytes, the limit is %u", size, FILE_MAX_BYTES);
        else
                r = ckv_tokens_parse(mapped, size, ret_tokens, ret_why);
        (void)munmap(mapped, size);
        return r;
}

void ckv_tokens_deinit(struct ckv_tokens *tokens) {
        cJSON_Delete(tokens->json);
        free(tokens->pieces);
        *tokens = (struct ckv_tokens){ 0 };
}
