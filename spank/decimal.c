/* See decimal.h. */
#include "decimal.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

static bool is_digit(char character) { return character >= '0' && character <= '9'; }

const char *decimal_read(const char *text, const char *end, int digits, int decimals, uint64_t *micros) {
    const char *at = text;
    uint64_t value = 0;
    for (; at < end && is_digit(*at); at++) {
        if (at - text >= digits)
            return NULL;
        value = value * 10 + (uint64_t)(*at - '0');
    }
    if (at == text)
        return NULL;
    value *= MICRO;
    if (at < end && *at == '.') {
        const char *point = at++;
        uint64_t scale = MICRO;
        for (; at < end && is_digit(*at); at++) {
            if (at - point > decimals)
                return NULL;
            scale /= 10;
            value += (uint64_t)(*at - '0') * scale;
        }
        if (at == point + 1)
            return NULL;
    }
    *micros = value;
    return at;
}

struct decimal decimal_from_micros(uint64_t micros) {
    return (struct decimal){micros / MICRO, (uint32_t)(micros % MICRO)};
}

int decimal_compare(struct decimal a, struct decimal b) {
    if (a.whole != b.whole)
        return a.whole < b.whole ? -1 : 1;
    return (a.micro > b.micro) - (a.micro < b.micro);
}

void decimal_print(struct decimal number, char text[DECIMAL_TEXT_MAX]) {
    int used = snprintf(text, DECIMAL_TEXT_MAX, "%" PRIu64 ".%06" PRIu32, number.whole, number.micro);
    while (text[used - 1] == '0')
        used--;
    if (text[used - 1] == '.')
        used--;
    text[used] = '\0';
}
