/*
 * A case of S4 to S8 in progress: T[j] given, the stages run one after the
 * other, the kept rows as text.  Set what differs after begin(), then settle().
 */
#ifndef CKV_TESTS_SUPPORT_STAGE_H
#define CKV_TESTS_SUPPORT_STAGE_H

#include "kernels/select.h"

enum { MOST_ROWS = 8192 };

extern struct ckv_selection selection;
extern struct ckv_policy policy;
extern struct ckv_budget budget;
extern double T[MOST_ROWS];
extern char text[64 * 1024];

/* begin() - T of section 6.2 and its parameters (profile default; n_s 4, r 8, min_tokens 0 unless given); the window is 1,
 * because the scores are given */
void begin(uint32_t rows, uint32_t keep_ratio, struct ckv_policy asked);

/* settle() - all stages. Return: the kept rows as text, or a word for what stopped them; until the next call. */
const char *settle(void);

/* rows_in() - number of rows in what settle() said */
uint32_t rows_in(const char *rows);

/* assert_numbers() - B and p */
void assert_numbers(uint32_t b, uint32_t p);

#endif
