/* See flag_values.h: names of policies. */
#include "flag_values.h"

#include <limits.h>
#include <string.h>

static char lower(char letter) {
    return letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
}

static unsigned smaller(unsigned a, unsigned b) { return a < b ? a : b; }

/*
 * Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `typed` into
 * `name`, ignoring case. `typed` is truncated to POLICY_NAME_MAX. A prefix of `name` has distance 1 at most.
 */
static unsigned distance(const char *typed, struct span name) {
    size_t length = strnlen(typed, POLICY_NAME_MAX), same = 0;
    unsigned rows[3][POLICY_NAME_MAX + 1];
    unsigned *before = rows[0], *above = rows[1], *row = rows[2];
    for (size_t i = 0; i <= length; i++)
        above[i] = (unsigned)i;
    for (size_t j = 1; j <= name.length; j++) {
        row[0] = (unsigned)j;
        for (size_t i = 1; i <= length; i++) {
            char ours = lower(typed[i - 1]), theirs = name.start[j - 1];
            row[i] = smaller(smaller(row[i - 1], above[i]) + 1, above[i - 1] + (ours != theirs));
            if (i > 1 && j > 1 && ours == name.start[j - 2] && lower(typed[i - 2]) == theirs)
                row[i] = smaller(row[i], before[i - 2] + 1);
        }
        unsigned *spare = before;
        before = above, above = row, row = spare;
    }
    while (same < length && same < name.length && lower(typed[same]) == name.start[same])
        same++;
    return same >= 2 && same == length ? smaller(above[length], 1) : above[length];
}

/* Finds the policy that the user most likely meant, with at most a third of its letters wrong. */
static struct span nearest_policy(const char *typed, const struct policy_file *file, const char *user) {
    struct span nearest = {NULL, 0};
    unsigned best = UINT_MAX;
    struct policy policy;
    for (struct span lines = policies_lines(file); policies_next(&lines, user, &policy);) {
        size_t length = strnlen(typed, POLICY_NAME_MAX);
        size_t longer = length > policy.name.length ? length : policy.name.length;
        unsigned edits = policy.open ? distance(typed, policy.name) : UINT_MAX;
        if (edits < best && edits <= (longer < 6 ? 1 : longer / 3)) {
            best = edits;
            nearest = policy.name;
        }
    }
    return nearest;
}

/* Appends the list of policies that the user may use. */
static void append_policies(struct line *line, const struct policy_file *file, const char *user) {
    const char *separator = "";
    size_t limit = line->used + FLAG_ALLOWED_MAX;
    struct policy policy;
    line_append(line, "allowed: ");
    for (struct span lines = policies_lines(file); policies_next(&lines, user, &policy);) {
        if (!policy.open)
            continue;
        if (line->used + policy.name.length > limit) {
            line_append(line, "%s...", separator);
            return;
        }
        line_append(line, "%s%.*s", separator, (int)policy.name.length, policy.name.start);
        separator = ", ";
    }
    if (!*separator)
        line_append(line, "none");
}

bool check_policy(const char *value, const struct policy_file *file, const char *user, char *normal,
                  struct line *line) {
    bool well_formed = policies_is_name((struct span){value, strlen(value)});
    bool any = false, known = false, open = false;
    struct policy policy;
    for (struct span lines = policies_lines(file); policies_next(&lines, user, &policy);) {
        any = true;
        known = known || span_is(policy.name, value);
        open = open || (policy.open && span_is(policy.name, value));
    }
    if (well_formed && (open || !any)) {
        strcpy(normal, value);
        return true;
    }
    line_append(line, well_formed && !known ? "unknown policy " : "");
    line_append_shown(line, value);
    if (!well_formed)
        line_append(line, " is not a policy name");
    else if (known)
        line_append(line, " is not open to user %s", user);
    line_append(line, "; ");
    struct span nearest = nearest_policy(value, file, user);
    if (nearest.start && !known)
        line_append(line, "did you mean '%.*s'? ", (int)nearest.length, nearest.start);
    if (any)
        append_policies(line, file, user);
    else
        line_append(line, "allowed: a to z first, then a to z, 0 to 9, - and _, at most %d characters",
                    POLICY_NAME_MAX);
    return false;
}
