/*
 * The policy file that senergyctld writes: which policies exist, who may ask for them, bounds of numbers.
 *
 * Its format is in docs/reference/protocol.md. The text is kept as read and scanned on each question, so
 * that there is nothing to allocate; lines that are not understood are passed over, they are for newer
 * readers.
 */
#ifndef SENERGY_POLICIES_H
#define SENERGY_POLICIES_H

#include "decimal.h"

#include <stdbool.h>
#include <stddef.h>

#define POLICY_FILE_MAX (64 * 1024) /* bytes; a longer file is not used */
#define POLICY_NAME_MAX 32

/* The file as it was read. With `present` false only the form of values can be checked. */
struct policy_file {
    bool present;
    size_t length;
    char text[POLICY_FILE_MAX + 1];
};

/* A piece of text that is not terminated. */
struct span {
    const char *start;
    size_t length;
};

struct policy {
    struct span name;
    bool open;          /* to the user in question */
    bool measures_only; /* a cap has no meaning under it */
    bool needs_cap;     /* has none of its own, so the job must give one */
};

struct bounds {
    struct decimal low, high;
};

/*
 * Reads the file without ever waiting for it, also where a FIFO or a device stands in its place.
 * Returns NULL, or why it cannot be used; `file` is then marked absent. A missing file is no problem.
 */
const char *policies_load(struct policy_file *file, const char *path);

/* Finds the bounds of `key`, such as cap_watts: the last line of that key that can be read. */
bool policies_bounds(const struct policy_file *file, const char *key, struct bounds *bounds);

/* Where to begin with policies_next; empty for an absent file. */
struct span policies_lines(const struct policy_file *file);

/* Takes the next policy off `lines`; `user` is whom `open` is about, NULL for anybody. False at the end. */
bool policies_next(struct span *lines, const char *user, struct policy *policy);

/* Whether text has the form of a policy name: a to z first, then a to z, 0 to 9, - and _. */
bool policies_is_name(struct span text);

bool span_is(struct span span, const char *text);

#endif
