/*
 * Chunks that end where sentences and lines do.
 *
 * Whether a chunk may end between two tokens is read off the bytes around that
 * place alone, so it does not matter how a tokenizer cuts text into words.  A
 * place is of one of five levels: inside a character, between characters,
 * between words, after a clause, and after a sentence or line.  A chunk ends at
 * the first place of the last kind that its bounds allow, else as late as they
 * allow at the best there is.  Blanks belong to the word that follows, line
 * ends to the line that they end.
 *
 * The rules are few and English has most of them: a full stop ends nothing
 * inside a number, after an initial or one of the abbreviations below, after
 * the number of a list's item, or when the text goes on in lower case (ASCII).
 * The full-width stops of Chinese and Japanese need no blank behind them.
 *
 * clients/python/src/chunkkv/text.py has the same rules; tests/vectors/text.json
 * and tests/python/test_text.py hold the two together.
 */
#include "clients/c/src/client.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum level { INSIDE, CHARACTER, WORD, CLAUSE, END };

enum {
        MIN_ROWS = 4, MAX_ROWS = 32,    /* defaults */
        MARKS = 8,                      /* quotes and brackets that are looked past */
        WORD_BYTES = 12,                /* no abbreviation is longer */
};

struct text {
        const char *bytes;
        const uint64_t *offsets;
        uint64_t begin, end;
        bool wrapped;
};

static const char *const narrow_stops[] = { ".", "!", "?", "\u2026", "\u0964", "\u061f", "\u06d4", NULL };
static const char *const wide_stops[] = { "\u3002", "\uff01", "\uff1f", "\uff0e", NULL };
static const char *const narrow_commas[] = { ",", ";", ":", NULL };
static const char *const wide_commas[] = { "\uff0c", "\u3001", "\uff1b", "\uff1a", "\u2014", NULL };
static const char *const closers[] = { "\"", "'", ")", "]", "}", "*", "_", "`", "\u201d", "\u2019", "\u00bb", "\u203a",
                                       "\u300d", "\u300f", "\uff09", "\u3011", NULL };
static const char *const openers[] = { "\"", "'", "(", "[", "{", "*", "_", "`", "\u201c", "\u2018", "\u00ab", "\u2039", NULL };
static const char *const abbreviations[] = {
        "Mr", "Mrs", "Ms", "Messrs", "Dr", "Prof", "St", "Jr", "Sr", "Rev", "Hon", "Gen", "Col", "Capt", "Lt", "Sgt",
        "Gov", "Sen", "Rep", "No", "Nos", "Vol", "vol", "Fig", "fig", "Figs", "Eq", "eq", "Eqs", "Sec",
        "sec", "Ch", "ch", "Tab", "Ref", "pp", "vs", "cf", "viz", "approx", "ca", "al", "Inc", "Ltd", "Co", "Corp",
        "Jan", "Feb", "Mar", "Apr", "Jun", "Jul", "Aug", "Sep", "Sept", "Oct", "Nov", "Dec", NULL,
};

static bool is_blank(char c) {
        return c == ' ' || c == '\t' || c == '\r';
}

static bool is_space(char c) {
        return is_blank(c) || c == '\n';
}

static bool is_digit(char c) {
        return c >= '0' && c <= '9';
}

static bool is_lower(char c) {
        return c >= 'a' && c <= 'z';
}

static bool is_letter(char c) {
        return is_lower(c) || (c >= 'A' && c <= 'Z');
}

/* Bytes of the word of a list that ends at @at; 0 = none does. */
static uint64_t ends(const struct text *text, uint64_t at, const char *const *list) {
        for (; *list; list++) {
                size_t n = strlen(*list);

                if (at - text->begin >= n && memcmp(text->bytes + at - n, *list, n) == 0)
                        return n;
        }
        return 0;
}

/* Bytes of the word of a list that begins at @at; 0 = none does. */
static uint64_t begins(const struct text *text, uint64_t at, const char *const *list) {
        for (; *list; list++) {
                size_t n = strlen(*list);

                if (text->end - at >= n && memcmp(text->bytes + at, *list, n) == 0)
                        return n;
        }
        return 0;
}

/* Does the text from @at on go on with a small letter, perhaps after quotes? */
static bool goes_on(const struct text *text, uint64_t at) {
        while (at < text->end && is_space(text->bytes[at]))
                at++;
        for (int i = 0; i < MARKS && at < text->end; i++)
                at += begins(text, at, openers);
        return at < text->end && is_lower(text->bytes[at]);
}

/* Is the full stop before @at the end of an initial, an abbreviation or a list item's number? */
static bool is_abbreviation(const struct text *text, uint64_t at) {
        const char *bytes = text->bytes;
        uint64_t stop = at - 1, first = stop, before;
        bool digits = true;
        size_t n;

        while (first > text->begin && (is_letter(bytes[first - 1]) || is_digit(bytes[first - 1]) ||
                                       bytes[first - 1] == '.' || (bytes[first - 1] & 0x80))) {
                first--;
                digits = digits && is_digit(bytes[first]);
                if (stop - first > WORD_BYTES)
                        return false;
        }
        n = (size_t)(stop - first);
        if (n == 0)
                return false;
        if (is_letter(bytes[stop - 1]) && (n == 1 || bytes[stop - 2] == '.'))
                return n > 1 || bytes[first] != 'I';
        for (before = first; before > text->begin && is_blank(bytes[before - 1]);)
                before--;
        if (digits)
                return before == text->begin || bytes[before - 1] == '\n';
        for (const char *const *word = abbreviations; *word; word++) {
                if (strlen(*word) == n && memcmp(*word, bytes + first, n) == 0)
                        return true;
        }
        return false;
}

/* Level of a place whose last character but blanks ends at @last: what kind of stop is it? */
static enum level level_of_stop(const struct text *text, uint64_t last, uint64_t at) {
        bool spaced = at > last || is_space(text->bytes[at]);
        uint64_t stop = last, n = 1;

        if (!spaced && (begins(text, at, closers) || begins(text, at, wide_stops)))
                return CHARACTER;
        for (int i = 0; i < MARKS && n > 0; i++) {
                n = ends(text, stop, closers);
                stop -= n;
        }
        if (ends(text, stop, wide_stops))
                return END;
        if (ends(text, stop, wide_commas) || (spaced && ends(text, stop, narrow_commas)))
                return CLAUSE;
        if (!spaced || !ends(text, stop, narrow_stops) || goes_on(text, at))
                return CHARACTER;
        return text->bytes[stop - 1] == '.' && is_abbreviation(text, stop) ? CHARACTER : END;
}

/* Level of the place between the tokens @row - 1 and @row, 1 .. rows - 1. */
static enum level level_of(const struct text *text, uint32_t row) {
        const char *bytes = text->bytes;
        uint64_t at = text->offsets[row], last = at, next = at, start;
        enum level level;
        unsigned lines = 0;

        if (text->offsets[row + 1] == at || (bytes[at] & 0xC0) == 0x80)
                return INSIDE;  /* an empty token stays with the one before it, a character in one chunk */
        while (row > 0 && text->offsets[row] == at)
                row--;
        start = text->offsets[row];
        while (last > start && is_blank(bytes[last - 1]))
                last--;
        level = at > text->begin && (is_space(bytes[at]) || is_space(bytes[at - 1])) ? WORD : CHARACTER;
        if (last == start)
                return level;   /* what may end here ended in an earlier token */
        while (next < text->end && is_blank(bytes[next]))
                next++;
        if (next < text->end && bytes[next] == '\n')
                return CHARACTER;
        if (bytes[last - 1] == '\n') {
                while (last > text->begin && is_space(bytes[last - 1]))
                        lines += bytes[--last] == '\n';
                if (lines > 1 || !text->wrapped)
                        return END;
        }
        return CKV_MAX(level, level_of_stop(text, last, at));
}

/* Where the chunk ends that begins with row @first. */
static uint32_t chunk_end(const struct text *text, uint32_t first, uint32_t rows, uint32_t min, uint32_t max) {
        bool all = rows - first <= max;
        uint32_t end = all ? rows : first + max, best = end;
        enum level level, highest = INSIDE;

        if (rows - first < 2 * (uint64_t)min)
                return rows;
        end = CKV_MIN(end, rows - min);
        for (uint32_t row = first + min; row <= end; row++) {
                level = level_of(text, row);
                if (level == END)
                        return row;
                if (!all && level >= highest) {
                        highest = level;
                        best = row;
                }
        }
        return best;
}

int chunkkv_text_chunks(const char *text, const uint64_t *offsets, uint32_t rows, uint32_t min_rows, uint32_t max_rows,
                        bool wrapped, uint32_t *ret_lengths, size_t *ret_count, struct chunkkv_error *ret_error) {
        struct text about = { .bytes = text, .offsets = offsets, .begin = offsets[0], .end = offsets[rows],
                              .wrapped = wrapped };
        uint32_t min = min_rows ? min_rows : MIN_ROWS, max = max_rows ? max_rows : CKV_MAX((uint32_t)MAX_ROWS, 2 * min);
        size_t count = 0;

        if (max / 2 < min)
                return ckv__fault(ret_error, -EINVAL, "max_rows", "must be at least twice min_rows %" PRIu32 ", is %" PRIu32,
                                  min, max);
        for (uint32_t i = 0; i < rows; i++) {
                if (offsets[i + 1] < offsets[i])
                        return ckv__fault(ret_error, -EINVAL, "offsets", "must not descend, entry %" PRIu32 " does", i + 1);
        }
        for (uint32_t first = 0, end; first < rows; first = end) {
                end = chunk_end(&about, first, rows, min, max);
                ret_lengths[count++] = end - first;
        }
        *ret_count = count;
        return 0;
}
