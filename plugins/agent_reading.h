/* Request of an energy reading from senergyd, in bounded time. */
#ifndef SENERGY_AGENT_READING_H
#define SENERGY_AGENT_READING_H

#include "energy_counter.h"

#include <stdbool.h>
#include <stdint.h>

struct agent_reading {
    char epoch[EPOCH_BYTES];
    uint64_t joules;
    uint32_t watts;
    bool watts_known;
};

enum agent_status {
    AGENT_ANSWERED,
    AGENT_KNOWS_NOTHING, /* it does not know this step, or its energy */
    AGENT_FAILED,
};

/*
 * Requests the energy of this process's step, or of the node if this process is slurmd. senergyd identifies
 * the process by the kernel's credentials of the socket.
 *
 * Connecting takes at most 20 ms, the answer at most 100 ms more. `*problem` describes a failure.
 */
enum agent_status agent_read(const char *socket_path, struct agent_reading *reading, const char **problem);

/* Parses senergyd's answer, one line of JSON. */
enum agent_status agent_parse(const char *answer, struct agent_reading *reading, const char **problem);

#endif
