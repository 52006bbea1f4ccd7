/*
 * Checksum of both tables: the sum of all 64-bit words, each mixed with its position by the output function
 * of SplitMix64. slurm_energy/slurm/queue/table_layout.py computes the same.
 */
#ifndef SENERGY_TABLE_SUM_H
#define SENERGY_TABLE_SUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct table_sum {
    uint64_t sum;
    uint64_t position; /* of the last word, times the step */
};

#define TABLE_SUM_STEP UINT64_C(0x9e3779b97f4a7c15)
#define TABLE_SUM_START                                                                                      \
    { 0, 0 }

/* Adds whole words; `bytes` is a multiple of 8. */
static inline void table_sum_add(struct table_sum *at, const void *data, size_t bytes) {
    const unsigned char *next = data;

    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t word;

        memcpy(&word, next + 8 * i, sizeof(word));
        at->position += TABLE_SUM_STEP;
        word += at->position;
        word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
        at->sum += word ^ (word >> 31);
    }
}

#endif
