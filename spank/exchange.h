/*
 * Exchange of one request line and one response line over a Unix socket within bounded time.
 *
 * Used by the SPANK plugin and by the hook. The caller continues whatever senergyd does.
 */
#ifndef SENERGY_EXCHANGE_H
#define SENERGY_EXCHANGE_H

#include <stddef.h>

#define EXCHANGE_SOCKET_DEFAULT "/run/senergy/agent.sock"
#define EXCHANGE_ROOT_SUFFIX ".root"

/*
 * Sends `message` (one line, its newline included) and reads the first line of the response, at most size - 1
 * bytes, into `reply` without its newline.
 *
 * Root first tries `socket_path`.root. Only root can connect to this second socket of senergyd, so users
 * cannot fill its queue.
 *
 * `connect_ms` bounds the connection, `total_ms` the whole exchange; both count from the call.
 * Returns NULL, or a description of the error.
 */
const char *exchange(const char *socket_path, const char *message, size_t length, int connect_ms,
                     int total_ms, char *reply, size_t size);

#endif
