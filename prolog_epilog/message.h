/*
 * The hook's message: an operation and the environment variables for senergyd, as one line of JSON.
 *
 * A pure function, which can be tested and fuzzed separately.
 */
#ifndef SENERGY_MESSAGE_H
#define SENERGY_MESSAGE_H

#include <stddef.h>

#define MESSAGE_MAX (64 * 1024) /* bytes of a line on senergyd's socket, its newline included */

/*
 * Writes `{"op":OPERATION,"env":{...}}` and a newline with every variable of `environment` whose name begins
 * with SLURM or SPANK_ENERGY_. Bytes that are not UTF-8 become U+FFFD.
 *
 * Variables that do not fit are dropped: first SPANK variables with unknown names, then the largest values.
 * The variables that senergyd requires are never dropped unless they are larger than REQUIRED_VALUE_MAX.
 *
 * Returns the length, with the number of dropped variables in `*dropped`; 0 if there is no memory.
 */
size_t message_build(char text[MESSAGE_MAX + 1], const char *operation, char *const environment[],
                     size_t *dropped);

#endif
