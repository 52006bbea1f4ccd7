/* See flag_values.h: words, labels and lists. */
#include "flag_values.h"

#include <string.h>

#define PROFILES_MAX 255 /* numbers of NVIDIA power profiles, NVML's nvmlMask255_t */

static const char *const tuning_modes[] = {"off", "advise", "on"};

bool check_tuning(const char *value, char *normal, struct line *line) {
    for (size_t i = 0; i < sizeof(tuning_modes) / sizeof(*tuning_modes); i++)
        if (strcmp(value, tuning_modes[i]) == 0) {
            strcpy(normal, value);
            return true;
        }
    line_append_shown(line, value);
    line_append(line, " is not a tuning mode; allowed: off, advise, on");
    return false;
}

/* Whether a text is the number that follows PROFILE_ in the name of a profile without a name: 0 to 254. */
static bool is_profile_number(const char *text) {
    size_t digits = strspn(text, "0123456789");
    if (digits < 1 || digits > 3 || text[digits] || (digits > 1 && *text == '0'))
        return false;
    int number = 0;
    for (const char *at = text; *at; at++)
        number = number * 10 + (*at - '0');
    return number < PROFILES_MAX;
}

/* Checks the name of a power profile. Without a list in the policy file, any word may be a profile. */
bool check_profile(const char *value, const struct policy_file *file, char *normal, struct line *line) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    char name[FLAG_LABEL_MAX + 1] = "";
    size_t length = strnlen(value, FLAG_LABEL_MAX + 1);
    for (size_t i = 0; i < length && length <= FLAG_LABEL_MAX; i++)
        name[i] = value[i] == '-'                      ? '_'
                  : value[i] >= 'a' && value[i] <= 'z' ? (char)(value[i] - 'a' + 'A')
                                                       : value[i];
    struct span names = policies_line(file, "power-profiles"), list, one;
    bool any = next_piece(&names, ' ', &list), known = !any && *name;
    for (struct span rest = list; any && next_piece(&rest, ',', &one);)
        known = known || span_is(one, name);
    known = known || (strncmp(name, "PROFILE_", 8) == 0 && is_profile_number(name + 8));
    if (known && strspn(name, letters) == strlen(name)) {
        strcpy(normal, name);
        return true;
    }
    line_append_shown(line, value);
    line_append(line, " is not a power profile");
    if (any && list.length < FLAG_ALLOWED_MAX)
        line_append(line, "; allowed: %.*s", (int)list.length, list.start);
    return false;
}

bool check_label(enum flag flag, const char *value, char *normal, struct line *line) {
    size_t length = strnlen(value, FLAG_LABEL_MAX + 1);
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:/+-";
    if (length >= 1 && length <= FLAG_LABEL_MAX && strspn(value, allowed) == length) {
        strcpy(normal, value);
        return true;
    }
    line_append_shown(line, value);
    line_append(line, " is not a %s; allowed: 1 to %d characters of A-Z a-z 0-9 _ . : / + -",
                flag == FLAG_MODEL ? "model name" : "tag", FLAG_LABEL_MAX);
    return false;
}

/* Parses one gpu:KIND:COUNT, appends its normal form to `normal` and returns the rest; NULL if invalid. */
static const char *read_shape(const char *text, struct line *normal) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.+-";
    if (strncmp(text, "gpu:", 4) != 0 || strspn(text + 4, letters) == 0)
        return NULL;
    const char *kind = text + 4;
    size_t length = strspn(kind, allowed);
    if (length > FLAG_KIND_MAX || kind[length] != ':')
        return NULL;
    const char *digits = kind + length + 1;
    size_t count = strspn(digits, "0123456789"), zeros = strspn(digits, "0");
    if (count < 1 || count > 4 || zeros == count)
        return NULL;
    line_append(normal, "gpu:%.*s:%.*s", (int)length, kind, (int)(count - zeros), digits + zeros);
    return digits + count;
}

bool check_shapes(const char *value, char *normal, struct line *line) {
    struct line form = {normal, 0, FLAG_VALUE_MAX + 1};
    const char *rest = value;
    for (int shapes = 0; shapes < FLAG_SHAPES_MAX; shapes++) {
        rest = read_shape(rest, &form);
        if (rest && !*rest)
            return true;
        if (!rest || *rest++ != ',')
            break;
        line_append(&form, ",");
    }
    line_append_shown(line, value);
    line_append(line,
                " is not a list of shapes; write 1 to %d as gpu:KIND:COUNT, as in gpu:a100:4,gpu:h100:2",
                FLAG_SHAPES_MAX);
    return false;
}
