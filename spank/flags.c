/* See flags.h. */
#include "flags.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SHOWN_MAX 40     /* characters of the user's text in a message */
#define ALLOWED_MAX 320  /* characters of the list of policies in a message */
#define PERCENT_MAX 1000 /* where the policy file gives no bounds */

const struct flag_name flag_names[FLAG_COUNT] = {
    [FLAG_POLICY] = {"energy-policy", "ENERGY_POLICY", "NAME", "energy policy (senergy policies lists them)"},
    [FLAG_CAP] = {"energy-cap", "ENERGY_CAP", "WATTS", "power limit per node: 200, 200W or 1.6kW"},
    [FLAG_GPU_CAP] = {"energy-gpu-cap", "ENERGY_GPU_CAP", "WATTS", "power limit per GPU: 200, 200W or 0.3kW"},
    [FLAG_SLOWDOWN] = {"energy-slowdown", "ENERGY_SLOWDOWN", "PERCENT",
                       "how much longer the job may run to save energy: 10 or 10%"},
    [FLAG_MODEL] = {"energy-model", "ENERGY_MODEL", "NAME", "workload profile for settings and prediction"},
    [FLAG_TAG] = {"energy-tag", "ENERGY_TAG", "TEXT", "free label that the energy record will carry"},
    [FLAG_ALTERNATIVES] = {"energy-alternatives", "ENERGY_ALTERNATIVES", "SHAPES",
                           "GPUs per node that would do as well: gpu:a100:4,gpu:h100:2"},
};

/* What the messages about a flag with a number say, and its key in the policy file. */
static const struct number {
    const char *key;
    const char *unit;
    const char *claim;
    const char *form;
} numbers[FLAG_COUNT] = {
    [FLAG_CAP] = {"cap_watts", "W", "a power", "write watts as 200, 200W or 1.6kW"},
    [FLAG_GPU_CAP] = {"gpu_cap_watts", "W", "a power", "write watts as 200, 200W or 1.6kW"},
    [FLAG_SLOWDOWN] = {"slowdown_percent", "%", "a percentage", "write it as 10 or 10%"},
};

/* A message under construction; what does not fit is cut. */
struct line {
    char *text;
    size_t used;
    size_t size;
};

static void append(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(struct line *line, const char *format, ...) {
    if (line->used >= line->size)
        return;
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(line->text + line->used, line->size - line->used, format, arguments);
    va_end(arguments);
    if (wanted > 0)
        line->used += (size_t)wanted;
}

/* Appends the user's text in quotes: printable ASCII only, cut at SHOWN_MAX. */
static void append_shown(struct line *line, const char *value) {
    char shown[SHOWN_MAX + 5] = "";
    size_t used = 0;
    for (const unsigned char *byte = (const unsigned char *)value; *byte && used <= SHOWN_MAX; byte++) {
        bool plain = *byte >= 0x20 && *byte < 0x7f && *byte != '\\';
        used += (size_t)snprintf(shown + used, sizeof(shown) - used, plain ? "%c" : "\\x%02x", *byte);
    }
    if (used > SHOWN_MAX)
        strcpy(shown + SHOWN_MAX - 3, "...");
    append(line, "'%s'", shown);
}

static bool parse_watts(const char *value, struct decimal *watts) {
    uint64_t micros;
    const char *unit = decimal_read(value, value + strlen(value), 9, 6, &micros);
    if (!unit)
        return false;
    if (strcmp(unit, "") == 0 || strcmp(unit, "W") == 0)
        *watts = decimal_from_micros(micros);
    else if (strcmp(unit, "kW") == 0)
        *watts = (struct decimal){micros / 1000, (uint32_t)(micros % 1000) * 1000};
    else if (strcmp(unit, "MW") == 0)
        *watts = (struct decimal){micros, 0};
    else
        return false;
    return micros > 0;
}

static bool parse_percent(const char *value, struct decimal *percent) {
    uint64_t micros;
    const char *unit = decimal_read(value, value + strlen(value), 4, 4, &micros);
    if (!unit || (strcmp(unit, "") != 0 && strcmp(unit, "%") != 0))
        return false;
    *percent = decimal_from_micros(micros);
    return micros <= (uint64_t)PERCENT_MAX * MICRO;
}

static void append_bounds(struct line *line, const struct bounds *bounds, const char *unit) {
    char low[DECIMAL_TEXT_MAX], high[DECIMAL_TEXT_MAX];
    decimal_print(bounds->low, low);
    decimal_print(bounds->high, high);
    append(line, "allowed: %s to %s %s", low, high, unit);
}

static bool check_number(enum flag flag, const char *value, const struct policy_file *file, char *normal,
                         struct line *line) {
    const struct number *number = &numbers[flag];
    struct bounds bounds = {{0, 0}, {0, 0}};
    struct decimal amount = {0, 0};
    bool bounded = policies_bounds(file, number->key, &bounds);
    bool formed = flag == FLAG_SLOWDOWN ? parse_percent(value, &amount) : parse_watts(value, &amount);
    if (formed && (!bounded ||
                   (decimal_compare(amount, bounds.low) >= 0 && decimal_compare(amount, bounds.high) <= 0))) {
        decimal_print(amount, normal);
        return true;
    }
    append_shown(line, value);
    if (formed) {
        append(line, " is out of bounds; ");
        append_bounds(line, &bounds, number->unit);
        return false;
    }
    append(line, " is not %s; %s", number->claim, number->form);
    if (bounded) {
        append(line, " (");
        append_bounds(line, &bounds, number->unit);
        append(line, ")");
    }
    return false;
}

/* Edits between two names; a longer `wanted` is cut. */
static unsigned distance(const char *wanted, struct span name) {
    size_t length = strnlen(wanted, POLICY_NAME_MAX);
    unsigned row[POLICY_NAME_MAX + 1];
    for (size_t i = 0; i <= length; i++)
        row[i] = (unsigned)i;
    for (size_t j = 0; j < name.length; j++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)j + 1;
        for (size_t i = 1; i <= length; i++) {
            unsigned replaced = diagonal + (wanted[i - 1] != name.start[j]);
            unsigned moved = (row[i] < row[i - 1] ? row[i] : row[i - 1]) + 1;
            diagonal = row[i];
            row[i] = replaced < moved ? replaced : moved;
        }
    }
    return row[length];
}

/* Lists the policies that the user may ask for, the one most like `wanted` first. */
static void append_policies(struct line *line, const char *wanted, const struct policy_file *file,
                            const char *user) {
    struct span nearest = {"none", 4};
    unsigned best = UINT_MAX;
    struct policy policy;
    for (struct span lines = policies_lines(file); policies_next(&lines, user, &policy);)
        if (policy.open && distance(wanted, policy.name) < best) {
            best = distance(wanted, policy.name);
            nearest = policy.name;
        }
    append(line, "; allowed: %.*s", (int)nearest.length, nearest.start);
    size_t limit = line->used + ALLOWED_MAX;
    for (struct span lines = policies_lines(file); policies_next(&lines, user, &policy);) {
        if (!policy.open || policy.name.start == nearest.start)
            continue;
        if (line->used + policy.name.length > limit) {
            append(line, ", ...");
            return;
        }
        append(line, ", %.*s", (int)policy.name.length, policy.name.start);
    }
}

static bool check_policy(const char *value, const struct policy_file *file, const char *user, char *normal,
                         struct line *line) {
    bool formed = policies_is_name((struct span){value, strlen(value)});
    bool any = false, known = false, open = false;
    struct policy policy;
    for (struct span lines = policies_lines(file); policies_next(&lines, user, &policy);) {
        any = true;
        known = known || span_is(policy.name, value);
        open = open || (policy.open && span_is(policy.name, value));
    }
    if (formed && (open || !any)) {
        strcpy(normal, value);
        return true;
    }
    append(line, formed && !known ? "unknown policy " : "");
    append_shown(line, value);
    if (!formed)
        append(line, " is not a policy name");
    else if (known)
        append(line, " is not open to user %s", user);
    if (any)
        append_policies(line, value, file, user);
    else
        append(line, "; allowed: a to z first, then a to z, 0 to 9, - and _, at most %d characters",
               POLICY_NAME_MAX);
    return false;
}

static bool check_label(enum flag flag, const char *value, char *normal, struct line *line) {
    size_t length = strnlen(value, FLAG_LABEL_MAX + 1);
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:/+-";
    if (length >= 1 && length <= FLAG_LABEL_MAX && strspn(value, allowed) == length) {
        strcpy(normal, value);
        return true;
    }
    append_shown(line, value);
    append(line, " is not a %s; allowed: 1 to %d characters of A-Z a-z 0-9 _ . : / + -",
           flag == FLAG_MODEL ? "model name" : "tag", FLAG_LABEL_MAX);
    return false;
}

/* Reads one gpu:KIND:COUNT, appends its normal form to `normal` and returns what follows; NULL: it is none.
 */
static const char *take_shape(const char *text, struct line *normal) {
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
    append(normal, "gpu:%.*s:%.*s", (int)length, kind, (int)(count - zeros), digits + zeros);
    return digits + count;
}

static bool check_shapes(const char *value, char *normal, struct line *line) {
    struct line form = {normal, 0, FLAG_VALUE_MAX + 1};
    const char *rest = value;
    for (int shapes = 0; shapes < FLAG_SHAPES_MAX; shapes++) {
        rest = take_shape(rest, &form);
        if (rest && !*rest)
            return true;
        if (!rest || *rest++ != ',')
            break;
        append(&form, ",");
    }
    append_shown(line, value);
    append(line, " is not a list of shapes; write 1 to %d as gpu:KIND:COUNT, as in gpu:a100:4,gpu:h100:2",
           FLAG_SHAPES_MAX);
    return false;
}

bool flag_check(enum flag flag, const char *value, const struct policy_file *file, const char *user,
                char normal[FLAG_VALUE_MAX + 1], char message[FLAG_MESSAGE_MAX + 1]) {
    struct line line = {message, 0, FLAG_MESSAGE_MAX + 1};
    if (!value)
        value = "";
    append(&line, "--%s: ", flag_names[flag].option);
    switch (flag) {
    case FLAG_POLICY:
        return check_policy(value, file, user, normal, &line);
    case FLAG_MODEL:
    case FLAG_TAG:
        return check_label(flag, value, normal, &line);
    case FLAG_ALTERNATIVES:
        return check_shapes(value, normal, &line);
    default:
        return check_number(flag, value, file, normal, &line);
    }
}

/* Finds the kind of a policy. Where the file lists none, only that of built-in ones is known. */
static struct policy policy_kind(const char *name, const struct policy_file *file) {
    struct policy policy, found = {.open = true};
    bool any = false;
    for (struct span lines = policies_lines(file); policies_next(&lines, NULL, &policy); any = true)
        if (span_is(policy.name, name))
            found = policy;
    if (!any) {
        found.measures_only = strcmp(name, "monitor") == 0;
        found.needs_cap = strcmp(name, "cap") == 0;
    }
    return found;
}

bool flags_agree(const char *const normal[FLAG_COUNT], const struct policy_file *file,
                 char message[FLAG_MESSAGE_MAX + 1]) {
    struct line line = {message, 0, FLAG_MESSAGE_MAX + 1};
    const char *name = normal[FLAG_POLICY];
    enum flag cap = normal[FLAG_CAP] ? FLAG_CAP : FLAG_GPU_CAP;
    if (!name) /* then a cap means the policy cap, or goes with the default one */
        return true;
    struct policy policy = policy_kind(name, file);
    if (normal[cap] && policy.measures_only)
        append(&line, "--%s: policy '%s' changes nothing; choose another policy or leave the cap out",
               flag_names[cap].option, name);
    else if (!normal[cap] && policy.needs_cap)
        append(&line, "--energy-policy=%s needs --energy-cap or --energy-gpu-cap", name);
    return line.used == 0;
}
