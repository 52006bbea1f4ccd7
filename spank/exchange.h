/*
 * One question and one answer, a line each, over a unix socket, within bounded time.
 *
 * Used by the SPANK plugin and by the hook: whatever senergyd does or does not do, the caller goes on.
 */
#ifndef SENERGY_EXCHANGE_H
#define SENERGY_EXCHANGE_H

#include <stddef.h>

#define EXCHANGE_SOCKET_DEFAULT "/run/senergy/agent.sock"
#define EXCHANGE_ROOT_SUFFIX ".root"

/*
 * Sends `message` (one line, its newline included) and reads the first line of the answer, at most size - 1
 * bytes, into `reply` without its newline.
 *
 * Root first tries `socket_path`.root, senergyd's door that only root can open: users cannot fill its queue.
 *
 * `connect_ms` bounds the connection, `total_ms` everything together; both count from the call.
 * Returns NULL, or what went wrong.
 */
const char *exchange(const char *socket_path, const char *message, size_t length, int connect_ms,
                     int total_ms, char *reply, size_t size);

#endif
