/*
 * The policy file that senergyctld writes, or a copy of it: names of policies, users who may use them, bounds
 * of numbers.
 *
 * docs/reference/protocol.md defines its format. The text is stored as read and scanned on each query, which
 * needs no allocation. Unknown lines are skipped: they are for newer readers.
 */
#ifndef SENERGY_POLICIES_H
#define SENERGY_POLICIES_H

#include "decimal.h"

#include <stdbool.h>
#include <stddef.h>

#define POLICY_FILE_MAX (64 * 1024) /* bytes; a longer file is not used */
#define POLICY_NAME_MAX 32

/* Content of the file. If `present` is false, only the form of values can be checked. */
struct policy_file {
    bool present;
    size_t length;
    char text[POLICY_FILE_MAX + 1];
};

/* A substring, not terminated by NUL. */
struct span {
    const char *start;
    size_t length;
};

struct policy {
    struct span name;
    bool open;          /* the given user may use it */
    bool measures_only; /* changes no settings, so a cap has no effect */
    bool needs_cap;     /* has no cap of its own, so the job must give a limit */
    bool tuned;         /* names an objective to which jobs are tuned */
};

struct bounds {
    struct decimal low, high;
};

/*
 * Reads the file without blocking, even if the path is a FIFO or a device.
 * Returns NULL, or why the file cannot be used; `file` is then marked absent. A missing file is not an error.
 * A file that users other than root and the owner of its directory could have written, or a copy whose line
 * `fresh-until` has passed, cannot be used.
 */
const char *policies_load(struct policy_file *file, const char *path);

/* Finds the bounds of `key`, such as cap_watts, in the last valid line with this key. */
bool policies_bounds(const struct policy_file *file, const char *key, struct bounds *bounds);

/* Returns the start of an iteration with policies_next; empty for an absent file. */
struct span policies_lines(const struct policy_file *file);

/* Removes the next policy from `lines`; false at the end. `open` is for `user`, or with NULL for any user. */
bool policies_next(struct span *lines, const char *user, struct policy *policy);

/* Finds the rest of the last line whose first word is `key`; empty if there is none. */
struct span policies_line(const struct policy_file *file, const char *key);

/* Removes the next piece up to `separator` from `rest`; skips empty pieces. False at the end. */
bool next_piece(struct span *rest, char separator, struct span *piece);

/* Whether a text is a valid policy name: a to z first, then a to z, 0 to 9, - and _. */
bool policies_is_name(struct span text);

bool span_is(struct span span, const char *text);

#endif
