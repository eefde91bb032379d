/*
 * Pieces of a tokenizer can hold anything, "</script>" and half a character
 * included.  Nothing of them may act as markup, and nothing of them may vanish:
 * each piece stands for a row.
 */
#include "tools/html.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REPLACEMENT "\xef\xbf\xbd"
#define NEWLINE_SIGN "\xe2\x86\xb5"

/* Bytes of the character at @text, 0 if they are not well-formed UTF-8; a NUL ends it. */
static size_t character_read(const unsigned char *text, uint32_t *ret_code) {
        static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
        size_t length = text[0] < 0x80 ? 1 : text[0] < 0xc2 ? 0 : text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3
                        : text[0] < 0xf5 ? 4 : 0;
        uint32_t code = length > 1 ? text[0] & (0x7fu >> length) : text[0];

        for (size_t i = 1; i < length; i++) {
                if ((text[i] & 0xc0) != 0x80)
                        return 0;
                code = code << 6 | (text[i] & 0x3fu);
        }
        if (length > 1 && (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)))
                return 0;
        *ret_code = code;
        return length;
}

/* Characters that are not seen themselves but change what is. */
static bool is_hidden(uint32_t code) {
        return (code >= 0x80 && code < 0xa0) || code == 0xad || code == 0x61c || (code >= 0x200b && code <= 0x200f) ||
               (code >= 0x2028 && code <= 0x202e) || (code >= 0x2060 && code <= 0x206f) || code == 0xfeff ||
               (code >= 0xfff9 && code <= 0xfffb);
}

static void character_write(FILE *to, uint32_t code, const char *bytes, size_t length) {
        switch (code) {
        case '&':
                (void)fputs("&amp;", to);
                return;
        case '<':
                (void)fputs("&lt;", to);
                return;
        case '>':
                (void)fputs("&gt;", to);
                return;
        case '"':
                (void)fputs("&quot;", to);
                return;
        case '\'':
                (void)fputs("&#39;", to);
                return;
        case '\n':
                (void)fputs(NEWLINE_SIGN "\n", to);
                return;
        case 0x7f:
                (void)fputs("&#x2421;", to);
                return;
        default:
                if (code < 0x20)
                        (void)fprintf(to, "&#x%" PRIx32 ";", 0x2400 + code);   /* the control pictures of Unicode */
                else if (is_hidden(code))
                        (void)fprintf(to, "[U+%04" PRIX32 "]", code);
                else
                        (void)fwrite(bytes, 1, length, to);
        }
}

void ckv_html_text(FILE *to, const char *text) {
        while (*text) {
                uint32_t code = 0;
                size_t length = character_read((const unsigned char *)text, &code);

                if (length == 0)
                        (void)fputs(REPLACEMENT, to);
                else
                        character_write(to, code, text, length);
                text += length ? length : 1;
        }
}
