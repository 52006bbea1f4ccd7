/*
 * A one-line message under construction, with text of users made printable. No memory is allocated.
 */
#ifndef SENERGY_LINE_H
#define SENERGY_LINE_H

#include <stddef.h>

/* The text is truncated at `size`. */
struct line {
    char *text;
    size_t used;
    size_t size;
};

void line_append(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends text of a user in quotes: non-printable characters escaped, truncated at 40 characters. */
void line_append_shown(struct line *line, const char *value);

#endif
