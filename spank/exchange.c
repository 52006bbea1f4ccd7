/* See exchange.h. */
#include "exchange.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/*
 * Waits until `fd` is ready for `events`; false if it is not ready at the deadline.
 *
 * Polls at least once, also after the deadline: this process may be late because it was not scheduled, while
 * the peer responded in time.
 */
static bool ready(int fd, short events, int64_t deadline_ms) {
    for (;;) {
        int64_t left = deadline_ms - now_ms();
        struct pollfd watched = {fd, events, 0};
        if (poll(&watched, 1, left > 0 ? (int)left : 0) > 0)
            return true;
        if (left <= 0)
            return false;
    }
}

/* Connects to the socket for root without waiting; false if it does not exist or accept. */
static bool connect_as_root(int fd, struct sockaddr_un address) {
    size_t length = strlen(address.sun_path);
    if (geteuid() != 0 || length + sizeof(EXCHANGE_ROOT_SUFFIX) > sizeof(address.sun_path))
        return false;
    strcpy(address.sun_path + length, EXCHANGE_ROOT_SUFFIX);
    return connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
}

static const char *connect_within(int fd, const char *path, int64_t deadline_ms) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return "path of the socket is too long";
    strcpy(address.sun_path, path);
    if (connect_as_root(fd, address))
        return NULL;
    while (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        /* EAGAIN: the backlog is full. There is no notification when it has space again. */
        if (errno != EAGAIN && errno != EINTR)
            return strerror(errno);
        if (now_ms() >= deadline_ms)
            return "timed out connecting";
        poll(NULL, 0, 1);
    }
    return NULL;
}

/* Whether the peer may give orders to root: only root and this process's user may listen for senergyd. */
static bool peer_is_trusted(int fd) {
    struct ucred peer;
    socklen_t size = sizeof(peer);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == 0 || peer.uid == geteuid());
}

static const char *send_within(int fd, const char *message, size_t length, int64_t deadline_ms) {
    while (length > 0) {
        ssize_t sent = send(fd, message, length, MSG_NOSIGNAL);
        if (sent >= 0) {
            message += sent;
            length -= (size_t)sent;
        } else if (errno == EAGAIN) {
            if (!ready(fd, POLLOUT, deadline_ms))
                return "timed out sending";
        } else if (errno != EINTR) {
            return strerror(errno);
        }
    }
    return NULL;
}

static const char *receive_within(int fd, char *reply, size_t size, int64_t deadline_ms) {
    size_t used = 0;
    while (used < size - 1) {
        if (!ready(fd, POLLIN, deadline_ms))
            return "no answer in time";
        ssize_t got = recv(fd, reply + used, size - 1 - used, 0);
        if (got == 0)
            return "closed the connection without an answer";
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return strerror(errno);
        if (got < 0)
            continue;
        char *newline = memchr(reply + used, '\n', (size_t)got);
        used += (size_t)got;
        if (newline) {
            *newline = '\0';
            return NULL;
        }
    }
    return "answer is too long";
}

const char *exchange(const char *socket_path, const char *message, size_t length, int connect_ms,
                     int total_ms, char *reply, size_t size) {
    int64_t start = now_ms();
    reply[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return strerror(errno);
    const char *problem = connect_within(fd, socket_path, start + connect_ms);
    if (!problem && !peer_is_trusted(fd))
        problem = "another user listens there";
    if (!problem)
        problem = send_within(fd, message, length, start + total_ms);
    if (!problem)
        problem = receive_within(fd, reply, size, start + total_ms);
    reply[size - 1] = '\0';
    close(fd);
    return problem;
}
