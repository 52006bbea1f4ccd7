/*
 * Exact decimal numbers with up to six decimals: no locale, no rounding, no exponents.
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
 * Reads digits (at most `digits`) and perhaps a point and decimals (at most `decimals`, up to 6) from `text`
 * up to `end`. Returns where the number ends, with its value in millionths; NULL if it is no such number.
 */
const char *decimal_read(const char *text, const char *end, int digits, int decimals, uint64_t *micros);

struct decimal decimal_from_micros(uint64_t micros);

/* Less than, equal to or greater than 0, as `a` is to `b`. */
int decimal_compare(struct decimal a, struct decimal b);

/* Writes `number` without needless zeros: 1600, 2.5. */
void decimal_print(struct decimal number, char text[DECIMAL_TEXT_MAX]);

#endif
