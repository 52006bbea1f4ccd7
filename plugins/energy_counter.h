/* A cumulative energy value that never decreases within a process, even if senergyd loses its state. */
#ifndef SENERGY_ENERGY_COUNTER_H
#define SENERGY_ENERGY_COUNTER_H

#include <stdbool.h>
#include <stdint.h>

#define EPOCH_BYTES 40

/*
 * `joules` is the reported value. senergyd names its own counter by an epoch: a restart of senergyd keeps the
 * epoch, and only a lost state directory changes it. `offset` is what the counters of earlier epochs
 * contribute.
 */
struct energy_counter {
    uint64_t joules;
    uint64_t offset;
    uint64_t first_joules;
    int64_t first_ms;
    char epoch[EPOCH_BYTES];
    bool known;
};

/* Adds a reading of senergyd's counter. `now_ms` is the time of the reading by the monotonic clock. */
void energy_counter_add(struct energy_counter *counter, const char *epoch, uint64_t reading, int64_t now_ms);

/* Mean power since the first reading in watts; false: no reading, or less than a second since the first. */
bool energy_counter_mean_watts(const struct energy_counter *counter, int64_t now_ms, uint32_t *watts);

#endif
