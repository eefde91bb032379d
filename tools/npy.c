/*
 * An .npy file is
 *
 *     "\x93NUMPY" | major | minor | header length, u16 or (from 2.0 on) u32 | header | elements
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (1024, 3, 64), }
 *
 * The header is a Python literal.  Only what NumPy itself writes for a plain
 * array is read: a dict of these three keys, each once, strings without
 * escapes, a tuple of whole numbers.  bfloat16 is no type of NumPy; ml_dtypes
 * saves it as two untyped bytes, and others as 16-bit integers, which are
 * taken for bfloat16 only when the caller says so.
 */
#include "tools/npy.h"

#include "base/checked.h"
#include "base/macros.h"
#include "tools/files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MAGIC "\x93NUMPY"
#define TEXT_BYTES 32

static int fail(char *why, int error, const char *format, ...) _printf_(3, 4);
static int fail(char *why, int error, const char *format, ...) {
        va_list args;

        va_start(args, format);
        (void)vsnprintf(why, CKV_SAFETENSORS_WHY, format, args);
        va_end(args);
        return error;
}

/* A place in the header. */
struct text {
        const char *at, *end;
};

struct header {
        bool has_descr, has_order, has_shape, fortran;
        char descr[TEXT_BYTES];
        uint32_t rank;
        uint64_t shape[CKV_TENSOR_RANK_MAX];
};

static void blanks_skip(struct text *text) {
        while (text->at < text->end && (*text->at == ' ' || *text->at == '\n' || *text->at == '\t'))
                text->at++;
}

/* Takes one character, and blanks before it. Return: was it there? */
static bool sign_take(struct text *text, char sign) {
        blanks_skip(text);
        if (text->at == text->end || *text->at != sign)
                return false;
        text->at++;
        return true;
}

static bool word_take(struct text *text, const char *word) {
        size_t length = strlen(word);

        blanks_skip(text);
        if ((size_t)(text->end - text->at) < length || memcmp(text->at, word, length) != 0)
                return false;
        text->at += length;
        return true;
}

static bool string_take(struct text *text, char ret_string[static TEXT_BYTES]) {
        size_t n = 0;
        char quote;

        blanks_skip(text);
        if (text->at == text->end || (*text->at != '\'' && *text->at != '"'))
                return false;
        quote = *text->at++;
        while (text->at < text->end && *text->at != quote && *text->at != '\\' && *text->at && n + 1 < TEXT_BYTES)
                ret_string[n++] = *text->at++;
        ret_string[n] = '\0';
        return sign_take(text, quote);
}

static bool number_take(struct text *text, uint64_t *ret_value) {
        uint64_t value = 0;

        blanks_skip(text);
        if (text->at == text->end || *text->at < '0' || *text->at > '9')
                return false;
        for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
                if (!ckv_mul_u64(value, 10, &value) || !ckv_add_u64(value, (uint64_t)(*text->at - '0'), &value))
                        return false;
        }
        *ret_value = value;
        return true;
}

static bool shape_take(struct text *text, struct header *header) {
        if (!sign_take(text, '('))
                return false;
        while (!sign_take(text, ')')) {
                if (header->rank == CKV_TENSOR_RANK_MAX || !number_take(text, &header->shape[header->rank]))
                        return false;
                header->rank++;
                if (!sign_take(text, ','))
                        return sign_take(text, ')');
        }
        return true;
}

/* One key and its value. */
static int entry_read(struct text *text, struct header *header, char *why) {
        char key[TEXT_BYTES];
        bool *has;

        if (!string_take(text, key) || !sign_take(text, ':'))
                return fail(why, -EBADMSG, "its header is not a dict as NumPy writes it");
        has = strcmp(key, "descr") == 0 ? &header->has_descr
              : strcmp(key, "fortran_order") == 0 ? &header->has_order
              : strcmp(key, "shape") == 0 ? &header->has_shape : NULL;
        if (!has || *has)
                return fail(why, -EBADMSG, "its header has %s %s", has ? "twice the key" : "the unknown key", key);
        *has = true;
        if (has == &header->has_shape)
                return shape_take(text, header) ? 0 : fail(why, -EBADMSG, "its shape is not up to %d whole numbers",
                                                           CKV_TENSOR_RANK_MAX);
        if (has == &header->has_descr)
                return string_take(text, header->descr) ? 0 : fail(why, -EBADMSG, "its elements are not of one type");
        header->fortran = word_take(text, "True");
        return header->fortran || word_take(text, "False") ? 0
               : fail(why, -EBADMSG, "fortran_order in its header is neither True nor False");
}

static int header_read(struct text text, struct header *ret_header, char *why) {
        struct header header = { 0 };
        bool more = true;
        int r;

        if (!sign_take(&text, '{'))
                return fail(why, -EBADMSG, "its header is not a dict as NumPy writes it");
        while (!sign_take(&text, '}')) {
                if (!more)
                        return fail(why, -EBADMSG, "its header is not a dict as NumPy writes it");
                r = entry_read(&text, &header, why);
                if (r)
                        return r;
                more = sign_take(&text, ',');
        }
        blanks_skip(&text);
        if (text.at != text.end)
                return fail(why, -EBADMSG, "its header goes on after its dict");
        if (!header.has_descr || !header.has_order || !header.has_shape)
                return fail(why, -EBADMSG, "its header lacks descr, fortran_order or shape");
        *ret_header = header;
        return 0;
}

/* NumPy's word for a type, in that of safetensors. Return: NULL if it is none that is taken. */
static const char *dtype_of(const char *descr, bool integers_are_bf16) {
        bool integer = strcmp(descr, "<u2") == 0 || strcmp(descr, "<i2") == 0;

        if (strcmp(descr, "<V2") == 0 || strcmp(descr, "|V2") == 0 || (integer && integers_are_bf16))
                return "BF16";
        if (strcmp(descr, "<f4") == 0)
                return "F32";
        return strcmp(descr, "<f2") == 0 ? "F16" : NULL;
}

static int tensor_fill(const struct header *header, const uint8_t *data, uint64_t size, bool integers_are_bf16,
                       struct ckv_tensor *tensor, char *why) {
        const char *dtype = dtype_of(header->descr, integers_are_bf16);
        uint64_t bytes;
        bool fits = true;

        if (!dtype && strlen(header->descr) == 3 && strcmp(header->descr + 1, "u2") == 0 && header->descr[0] == '<')
                return fail(why, -EBADMSG, "its elements are 16-bit integers; --dtype bf16 takes them for bfloat16");
        if (!dtype)
                return fail(why, -EBADMSG, "its elements are %s, not little-endian float32, float16 or bfloat16",
                            header->descr);
        if (header->fortran && header->rank > 1)
                return fail(why, -EBADMSG, "it is in Fortran order; numpy.ascontiguousarray() changes that");
        bytes = ckv_dtype_bytes(dtype);
        for (uint32_t i = 0; i < header->rank && fits; i++)
                fits = ckv_mul_u64(bytes, header->shape[i], &bytes);
        if (!fits || bytes > size)
                return fail(why, -EBADMSG,
                            "it holds %" PRIu64 " bytes of elements, less than its shape needs: it is cut short", size);
        if (bytes < size)
                return fail(why, -EBADMSG, "it goes on for %" PRIu64 " bytes after its elements", size - bytes);
        tensor->rank = header->rank;
        memcpy(tensor->shape, header->shape, sizeof(tensor->shape));
        memcpy(tensor->dtype, dtype, strlen(dtype) + 1);
        tensor->data = data;
        tensor->size = bytes;
        return 0;
}

int ckv_npy_parse(const uint8_t *bytes, uint64_t size, bool integers_are_bf16, const char *name,
                  struct ckv_tensor *ret_tensor, char ret_why[static CKV_SAFETENSORS_WHY]) {
        struct ckv_tensor tensor = { .name = name };
        struct header header;
        uint64_t start, length;
        uint32_t length_32 = 0;
        uint16_t length_16;
        int r;

        if (size < 10 || memcmp(bytes, MAGIC, strlen(MAGIC)) != 0)
                return fail(ret_why, -EBADMSG, "it is no .npy file");
        if (bytes[6] < 1 || bytes[6] > 3 || bytes[7] != 0)
                return fail(ret_why, -EBADMSG, "it is of .npy format %u.%u, not 1.0, 2.0 or 3.0", bytes[6], bytes[7]);
        memcpy(&length_16, bytes + 8, sizeof(length_16));
        if (bytes[6] > 1 && size >= 12)
                memcpy(&length_32, bytes + 8, sizeof(length_32));
        start = bytes[6] == 1 ? 10 : 12;
        length = bytes[6] == 1 ? length_16 : length_32;
        if (start > size || length > size - start)
                return fail(ret_why, -EBADMSG,
                            "its header would have %" PRIu64 " bytes, but the file has only %" PRIu64, length, size);
        r = header_read((struct text){ (const char *)bytes + start, (const char *)bytes + start + length }, &header,
                        ret_why);
        if (r == 0)
                r = tensor_fill(&header, bytes + start + length, size - start - length, integers_are_bf16, &tensor,
                                ret_why);
        if (r == 0)
                *ret_tensor = tensor;
        return r;
}

int ckv_npy_open(const char *path, bool integers_are_bf16, const char *name, struct ckv_npy *ret_npy,
                 char ret_why[static CKV_SAFETENSORS_WHY]) {
        struct ckv_npy npy = { 0 };
        int r;

        r = ckv_file_map(path, &npy.mapped, &npy.mapped_size, ret_why);
        if (r)
                return r;
        r = ckv_npy_parse(npy.mapped, npy.mapped_size, integers_are_bf16, name, &npy.tensor, ret_why);
        if (r) {
                ckv_npy_close(&npy);
                return r;
        }
        *ret_npy = npy;
        return 0;
}

void ckv_npy_close(struct ckv_npy *npy) {
        if (npy->mapped)
                (void)munmap(npy->mapped, npy->mapped_size);
        *npy = (struct ckv_npy){ 0 };
}
