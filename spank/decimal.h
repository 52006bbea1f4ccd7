/*
 * Exact decimal numbers with up to six decimals, independent of the locale, without rounding and exponents.
 */
#ifndef SENERGY_DECIMAL_H
#define SENERGY_DECIMAL_H

#include <stdint.h>

#define DECIMAL_TEXT_MAX 32 /* bytes that decimal_print needs */
#define MICRO 1000000u

struct decimal {
    uint64_t whole;
    uint32_t micro; /* millionths */
};

/*
 * Parses digits (at most `digits`) and an optional fraction (at most `decimals` digits, up to 6) between
 * `text` and `end`. Returns the end of the number, with its value in millionths in `micros`; NULL if it is
 * invalid.
 */
const char *decimal_read(const char *text, const char *end, int digits, int decimals, uint64_t *micros);

struct decimal decimal_from_micros(uint64_t micros);

/* Returns a number less than, equal to or greater than 0 if `a` is less than, equal to or greater than `b`.
 */
int decimal_compare(struct decimal a, struct decimal b);

/* Writes `number` without trailing zeros: 1600, 2.5. */
void decimal_print(struct decimal number, char text[DECIMAL_TEXT_MAX]);

#endif
