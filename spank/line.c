/* See line.h. */
#include "line.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define SHOWN_MAX 40

void line_append(struct line *line, const char *format, ...) {
    if (line->used >= line->size)
        return;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line->text + line->used, line->size - line->used, format, arguments);
    va_end(arguments);
    if (length > 0)
        line->used += (size_t)length;
}

void line_append_shown(struct line *line, const char *value) {
    char shown[SHOWN_MAX + 5] = "";
    size_t used = 0;
    for (const unsigned char *byte = (const unsigned char *)value; *byte && used <= SHOWN_MAX; byte++) {
        bool plain = *byte >= 0x20 && *byte < 0x7f && *byte != '\\';
        used += (size_t)snprintf(shown + used, sizeof(shown) - used, plain ? "%c" : "\\x%02x", *byte);
    }
    if (used > SHOWN_MAX)
        strcpy(shown + SHOWN_MAX - 3, "...");
    line_append(line, "'%s'", shown);
}
