/*
 * strtoul and strtod take "  +7", "-1" (as a large number), "0x10", "nan" and
 * "1e400".  Here a number is what matches its grammar from the first to the
 * last character.
 */
#include "tools/numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ONE 1000000u

static bool is_digit(char c) {
        return c >= '0' && c <= '9';
}

/* Reads digits. Return: the first character behind them; NULL if there is none or the value does not fit. */
static const char *digits_read(const char *text, uint32_t *ret_value) {
        uint64_t value = 0;

        if (!is_digit(*text))
                return NULL;
        for (; is_digit(*text); text++) {
                value = value * 10 + (uint64_t)(*text - '0');
                if (value > UINT32_MAX)
                        return NULL;
        }
        *ret_value = (uint32_t)value;
        return text;
}

bool ckv_u32_parse(const char *text, uint32_t *ret_value) {
        uint32_t value;
        const char *end = digits_read(text, &value);

        if (!end || *end)
                return false;
        *ret_value = value;
        return true;
}

bool ckv_real_parse(const char *text, double *ret_value) {
        double value;
        char *end;

        if (!is_digit(*text) && *text != '.')
                return false;
        if (text[strspn(text, "0123456789.eE+-")] != '\0')
                return false;
        value = strtod(text, &end);
        if (end == text || *end || !isfinite(value))
                return false;
        *ret_value = value;
        return true;
}

const char *ckv_millionths_parse(const char *text, uint32_t *ret_value) {
        uint64_t value = 0;
        uint32_t whole = 0, digits = 0, decimals = 0;

        for (; is_digit(*text); text++, digits++)
                whole = whole > 1 ? whole : whole * 10 + (uint32_t)(*text - '0');
        if (*text == '.') {
                for (text++; is_digit(*text); text++, digits++) {
                        if (decimals < 6) {
                                value = value * 10 + (uint64_t)(*text - '0');
                                decimals++;
                        } else if (*text != '0') {
                                return "have at most 6 decimals";
                        }
                }
        }
        if (*text || digits == 0)
                return "be a decimal number above 0 and at most 1";
        for (; decimals < 6; decimals++)
                value *= 10;
        value += (uint64_t)whole * ONE;
        if (value == 0 || value > ONE)
                return "be above 0 and at most 1";
        *ret_value = (uint32_t)value;
        return NULL;
}

const char *ckv_span_parse(const char *text, uint32_t *ret_first, uint32_t *ret_end) {
        size_t left = strspn(text, "0123456789"), right = text[left] == ':' ? strspn(text + left + 1, "0123456789") : 0;
        uint32_t first, end;

        if (left == 0 || right == 0 || text[left + 1 + right] != '\0')
                return "be two positions A:B, whole numbers";
        if (!digits_read(text, &first) || !digits_read(text + left + 1, &end))
                return "be two positions A:B of at most 4294967295";
        if (first >= end)
                return "be two positions A:B with A below B";
        *ret_first = first;
        *ret_end = end;
        return NULL;
}
