/*
 * Messages that senergyd did not receive, stored in a directory beside its socket until it runs again.
 *
 * senergyd creates the directory, and no other user may write there. Without the directory no message is
 * stored.
 */
#ifndef SENERGY_DEFERRED_MESSAGE_H
#define SENERGY_DEFERRED_MESSAGE_H

#include <stddef.h>

#define DEFERRED_SUFFIX ".deferred" /* of the socket's path */
/* Maximum number of messages, so that a stopped senergyd does not fill the memory. */
#define DEFERRED_MAX 1000

/*
 * Stores a message atomically in a file of its own. File names sort by time: nanoseconds since boot.
 *
 * Returns NULL, or why the message could not be stored.
 */
const char *defer_message(const char *socket_path, const char *message, size_t length);

#endif
