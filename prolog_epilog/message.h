/*
 * The hook's message: an operation and the environment that senergyd wants, as one line of JSON.
 *
 * Pure: memory in, text out, so that it can be tested and fuzzed alone.
 */
#ifndef SENERGY_MESSAGE_H
#define SENERGY_MESSAGE_H

#include <stddef.h>

#define MESSAGE_MAX (64 * 1024) /* bytes of a line on senergyd's socket, its newline included */

/*
 * Writes `{"op":OPERATION,"env":{...}}` and a newline with every variable of `environment` whose name begins
 * with SLURM or SPANK_ENERGY_. Bytes that are not UTF-8 become U+FFFD.
 *
 * What does not fit is left out: first names that we do not know, then the largest values; never the few that
 * senergyd cannot do without, as long as they are of sensible size.
 *
 * Returns the length, with the number of variables left out in `*dropped`; 0 if there is no memory.
 */
size_t message_build(char text[MESSAGE_MAX + 1], const char *operation, char *const environment[],
                     size_t *dropped);

#endif
