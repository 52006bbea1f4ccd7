/* See policies.h. */
#include "policies.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FIRST_LINE "senergy-policies 1"
#define FRESH_LINE "fresh-until"
#define FRESH_MAX_S (24 * 60 * 60) /* a later end comes from a clock that was ahead */
#define WRITE_BY_OTHERS (S_IWGRP | S_IWOTH)

bool span_is(struct span span, const char *text) {
    return span.length == strlen(text) && memcmp(span.start, text, span.length) == 0;
}

bool next_piece(struct span *rest, char separator, struct span *piece) {
    while (rest->length > 0 && *rest->start == separator) {
        rest->start++;
        rest->length--;
    }
    if (rest->length == 0)
        return false;
    const char *end = memchr(rest->start, separator, rest->length);
    piece->start = rest->start;
    piece->length = end ? (size_t)(end - rest->start) : rest->length;
    rest->start += piece->length;
    rest->length -= piece->length;
    return true;
}

static bool next_bound(struct span *rest, struct decimal *bound) {
    struct span word;
    uint64_t micros;
    if (!next_piece(rest, ' ', &word))
        return false;
    const char *end = word.start + word.length;
    if (decimal_read(word.start, end, 12, 6, &micros) != end)
        return false;
    *bound = decimal_from_micros(micros);
    return true;
}

struct span policies_lines(const struct policy_file *file) {
    return (struct span){file->text, file->present ? file->length : 0};
}

struct span policies_line(const struct policy_file *file, const char *key) {
    struct span lines = policies_lines(file), line, word, rest = {NULL, 0};
    while (next_piece(&lines, '\n', &line))
        if (next_piece(&line, ' ', &word) && span_is(word, key))
            rest = line;
    return rest;
}

bool policies_bounds(const struct policy_file *file, const char *key, struct bounds *bounds) {
    struct span lines = policies_lines(file), line, word;
    bool found = false;
    while (next_piece(&lines, '\n', &line)) {
        struct bounds candidate;
        if (next_piece(&line, ' ', &word) && span_is(word, key) && next_bound(&line, &candidate.low) &&
            next_bound(&line, &candidate.high)) {
            *bounds = candidate;
            found = true;
        }
    }
    return found;
}

bool policies_is_name(struct span text) {
    if (text.length < 1 || text.length > POLICY_NAME_MAX || text.start[0] < 'a' || text.start[0] > 'z')
        return false;
    for (size_t i = 0; i < text.length; i++) {
        char at = text.start[i];
        if (!((at >= 'a' && at <= 'z') || (at >= '0' && at <= '9') || at == '-' || at == '_'))
            return false;
    }
    return true;
}

/* Whether `user` is in a comma-separated list. An empty list means all users, as in the configuration. */
static bool is_open(struct span users, const char *user) {
    struct span one;
    bool listed = false, empty = true;
    while (next_piece(&users, ',', &one)) {
        empty = false;
        listed = listed || span_is(one, user);
    }
    return listed || empty;
}

bool policies_next(struct span *lines, const char *user, struct policy *policy) {
    static const char key[] = "users=";
    struct span line, word;
    while (next_piece(lines, '\n', &line)) {
        if (!next_piece(&line, ' ', &word) || !span_is(word, "policy") ||
            !next_piece(&line, ' ', &policy->name) || !policies_is_name(policy->name))
            continue;
        policy->open = true;
        policy->measures_only = policy->needs_cap = policy->tuned = false;
        while (next_piece(&line, ' ', &word)) {
            policy->measures_only = policy->measures_only || span_is(word, "measures-only");
            policy->needs_cap = policy->needs_cap || span_is(word, "needs-cap");
            policy->tuned = policy->tuned || span_is(word, "tuned");
            if (user && word.length >= strlen(key) && memcmp(word.start, key, strlen(key)) == 0)
                policy->open =
                    is_open((struct span){word.start + strlen(key), word.length - strlen(key)}, user);
        }
        return true;
    }
    return false;
}

/*
 * Returns NULL, or why a file is not trusted: only root and the owner of its directory may have written it.
 * The directory may be /tmp, where the sticky bit keeps other users from replacing files of root.
 */
static const char *distrust(const struct stat *status, const char *path) {
    char folder[PATH_MAX] = ".";
    struct stat parent;
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof(folder))
        return strerror(ENAMETOOLONG);
    if (slash) {
        memcpy(folder, path, length + 1); /* with the slash, for a file below the root directory */
        folder[length + 1] = '\0';
    }
    if (stat(folder, &parent) != 0)
        return strerror(errno);
    if (status->st_uid != 0 && (status->st_uid != parent.st_uid || parent.st_mode & S_ISVTX))
        return "owned neither by root nor by the owner of its directory";
    if (status->st_mode & WRITE_BY_OTHERS ||
        (parent.st_mode & WRITE_BY_OTHERS && !(parent.st_mode & S_ISVTX)))
        return "other users may write it";
    return NULL;
}

/* Reads `fd` completely into `file`; returns NULL or the reason of a failure. */
static const char *read_all(int fd, const char *path, struct policy_file *file) {
    struct stat status;
    if (fstat(fd, &status) != 0)
        return strerror(errno);
    if (!S_ISREG(status.st_mode))
        return "not a regular file";
    const char *problem = distrust(&status, path);
    if (problem)
        return problem;
    while (file->length < sizeof(file->text)) {
        ssize_t got = read(fd, file->text + file->length, sizeof(file->text) - file->length);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return strerror(errno);
        if (got == 0)
            return NULL;
        file->length += (size_t)got;
    }
    return "longer than 64 KiB";
}

/* Whether a copy is too old. The file of senergyctld itself names no end. */
static bool is_stale(const struct policy_file *file) {
    struct span end = policies_line(file, FRESH_LINE), word;
    uint64_t micros;
    if (end.length == 0)
        return false;
    if (!next_piece(&end, ' ', &word) ||
        decimal_read(word.start, word.start + word.length, 12, 6, &micros) != word.start + word.length)
        return true;
    int64_t left_s = (int64_t)(micros / 1000000) - (int64_t)time(NULL);
    return left_s <= 0 || left_s > FRESH_MAX_S;
}

const char *policies_load(struct policy_file *file, const char *path) {
    file->present = false;
    file->length = 0;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return errno == ENOENT ? NULL : strerror(errno);
    const char *problem = read_all(fd, path, file);
    close(fd);
    if (problem)
        return problem;
    struct span lines = {file->text, file->length}, first;
    if (memchr(file->text, '\0', file->length) || !next_piece(&lines, '\n', &first) ||
        !span_is(first, FIRST_LINE))
        return "does not begin with the line '" FIRST_LINE "'";
    file->present = true;
    if (!is_stale(file))
        return NULL;
    file->present = false;
    return "out of date";
}
