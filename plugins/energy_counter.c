/* See energy_counter.h. */
#include "energy_counter.h"

#include <stdio.h>
#include <string.h>

#define MIN_MEAN_MS 1000
#define MAX_WATTS 0xfffffff0u /* larger values have a meaning of their own in Slurm */

void energy_counter_add(struct energy_counter *counter, const char *epoch, uint64_t reading, int64_t now_ms) {
    uint64_t total;

    if (!counter->known) {
        counter->first_ms = now_ms;
        counter->first_joules = reading;
    } else if (strncmp(counter->epoch, epoch, EPOCH_BYTES - 1) != 0) {
        counter->offset = reading < counter->joules ? counter->joules - reading : 0;
    }
    snprintf(counter->epoch, sizeof(counter->epoch), "%s", epoch);
    counter->known = true;
    /* In one epoch a restarted senergyd may divide the time of its absence a little differently. */
    if (__builtin_add_overflow(reading, counter->offset, &total) || total > INT64_MAX)
        return;
    if (total > counter->joules)
        counter->joules = total;
}

bool energy_counter_mean_watts(const struct energy_counter *counter, int64_t now_ms, uint32_t *watts) {
    int64_t elapsed_ms = now_ms - counter->first_ms;
    uint64_t used = counter->joules - counter->first_joules;
    double mean;

    if (!counter->known || elapsed_ms < MIN_MEAN_MS)
        return false;
    mean = (double)used * 1000.0 / (double)elapsed_ms;
    *watts = mean < MAX_WATTS ? (uint32_t)(mean + 0.5) : MAX_WATTS;
    return true;
}
