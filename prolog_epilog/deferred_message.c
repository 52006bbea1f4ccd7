/* See deferred_message.h. */
#include "deferred_message.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NAME_BYTES 64

/* Opens the directory if it belongs to this process's user and no other user can write to it. */
static int open_folder(const char *socket_path) {
    char path[PATH_MAX];
    struct stat status;
    if ((size_t)snprintf(path, sizeof(path), "%s" DEFERRED_SUFFIX, socket_path) >= sizeof(path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0)
        return -1;
    if (fstat(folder, &status) == 0 && status.st_uid == geteuid() && (status.st_mode & 022) == 0)
        return folder;
    close(folder);
    errno = EPERM;
    return -1;
}

static bool is_full(int folder) {
    int count = 0, copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    if (!entries) {
        if (copy >= 0)
            close(copy);
        return true;
    }
    while (count <= DEFERRED_MAX + 1 && readdir(entries))
        count++; /* `.` and `..` too */
    closedir(entries);
    return count > DEFERRED_MAX + 1;
}

static bool write_all(int fd, const char *text, size_t length) {
    while (length > 0) {
        ssize_t wrote = write(fd, text, length);
        if (wrote < 0 && errno != EINTR)
            return false;
        if (wrote > 0) {
            text += wrote;
            length -= (size_t)wrote;
        }
    }
    return true;
}

/* Writes the file under a name that senergyd ignores, then renames it. */
static bool write_message(int folder, const char *message, size_t length) {
    char name[NAME_BYTES], unfinished[NAME_BYTES + 1];
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    snprintf(name, sizeof(name), "%020" PRIu64 "-%d.json",
             (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec, (int)getpid());
    snprintf(unfinished, sizeof(unfinished), ".%s", name);
    int fd = openat(folder, unfinished, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    bool done = write_all(fd, message, length);
    done = close(fd) == 0 && done && renameat(folder, unfinished, folder, name) == 0;
    int code = errno;
    if (!done)
        unlinkat(folder, unfinished, 0);
    errno = code;
    return done;
}

const char *defer_message(const char *socket_path, const char *message, size_t length) {
    int folder = open_folder(socket_path);
    if (folder < 0)
        return strerror(errno);
    const char *problem = is_full(folder)                          ? "too many wait already"
                          : write_message(folder, message, length) ? NULL
                                                                   : strerror(errno);
    close(folder);
    return problem;
}
