/*
 * Messages that senergyd did not take, left in a directory beside its socket until it is back.
 *
 * The directory is senergyd's: it makes it, and nobody else may write there. Without it nothing is left.
 */
#ifndef SENERGY_MISSED_H
#define SENERGY_MISSED_H

#include <stddef.h>

#define MISSED_SUFFIX ".missed" /* of the socket's path */
#define MISSED_MOST 1000        /* messages in it: whoever took senergyd away must not fill the memory */

/*
 * Leaves a message as a file of its own, whole or not at all. Names sort by time: nanoseconds since boot.
 *
 * Returns NULL, or why it could not be left.
 */
const char *missed_leave(const char *socket_path, const char *message, size_t length);

#endif
