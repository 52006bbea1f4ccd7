/* The checksum of both tables: the sum of 64-bit words, each times its odd place 1, 3, 5, ... */
#ifndef SENERGY_TABLE_SUM_H
#define SENERGY_TABLE_SUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct table_sum {
    uint64_t sum;
    uint64_t weight;
};

#define TABLE_SUM_START                                                                                      \
    { 0, 1 }

/* Adds whole words; `bytes` is a multiple of 8. */
static inline void table_sum_add(struct table_sum *at, const void *data, size_t bytes) {
    const unsigned char *next = data;

    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t word;

        memcpy(&word, next + 8 * i, sizeof(word));
        at->sum += word * at->weight;
        at->weight += 2;
    }
}

#endif
