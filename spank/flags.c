/* See flags.h. */
#include "flags.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SHOWN_MAX 40     /* characters of the user's text in a message */
#define ALLOWED_MAX 400  /* characters of the list of policies or profiles in a message */
#define PROFILES_MAX 255 /* numbers of NVIDIA power profiles, NVML's nvmlMask255_t */

const struct flag_name flag_names[FLAG_COUNT] = {
    [FLAG_POLICY] = {"energy-policy", "ENERGY_POLICY", "NAME", "energy policy (senergy policies lists them)",
                     false},
    [FLAG_CAP] = {"energy-cap", "ENERGY_CAP", "WATTS", "power limit per node: 200, 200W or 1.6kW", true},
    [FLAG_GPU_CAP] = {"energy-gpu-cap", "ENERGY_GPU_CAP", "WATTS", "power limit per GPU: 200, 200W or 0.3kW",
                      true},
    [FLAG_SLOWDOWN] = {"energy-slowdown", "ENERGY_SLOWDOWN", "PERCENT",
                       "slowdown that tuning may cause: 5, 5% or 2.5%", false},
    [FLAG_TUNING] = {"energy-tuning", "ENERGY_TUNING", "MODE", "off, advise or on", false},
    [FLAG_CPU_FREQ] = {"energy-cpu-freq", "ENERGY_CPU_FREQ", "MHZ",
                       "highest CPU frequency: 2400, 2400MHz or 2.4GHz", true},
    [FLAG_GPU_CLOCK] = {"energy-gpu-clock", "ENERGY_GPU_CLOCK", "MHZ",
                        "highest GPU clock: 1200, 1200MHz or 1.2GHz", true},
    [FLAG_POWER_PROFILE] = {"energy-power-profile", "ENERGY_POWER_PROFILE", "NAME",
                            "workload power profile of NVIDIA GPUs, such as MAX-Q", true},
    [FLAG_MODEL] = {"energy-model", "ENERGY_MODEL", "NAME", "workload profile for settings and prediction",
                    false},
    [FLAG_TAG] = {"energy-tag", "ENERGY_TAG", "TEXT", "free label that the energy record will carry", false},
    [FLAG_ALTERNATIVES] = {"energy-alternatives", "ENERGY_ALTERNATIVES", "SHAPES",
                           "GPUs per node that would do as well: gpu:a100:4,gpu:h100:2", false},
};

struct unit {
    const char *name;
    unsigned factor; /* 1, 1000 or 1000000 */
};

/* A kind of number. */
struct quantity {
    const char *unit; /* of the bounds */
    const char *form; /* for messages */
    bool zero;        /* whether 0 is valid */
    struct unit units[4];
};

static const struct quantity watts = {
    "W",
    "a power; write watts as 200, 200W or 1.6kW",
    false,
    {{"", 1}, {"W", 1}, {"kW", 1000}, {"MW", 1000000}},
};
static const struct quantity megahertz = {
    "MHz",
    "a frequency; write MHz as 2400, 2400MHz or 2.4GHz",
    false,
    {{"", 1}, {"MHz", 1}, {"GHz", 1000}, {NULL, 0}},
};
static const struct quantity percent = {
    "%",
    "a percentage; write it as 5, 5% or 2.5%",
    true,
    {{"", 1}, {"%", 1}, {NULL, 0}, {NULL, 0}},
};

/* Flags with a number: its quantity, and the key of its bounds in the policy file. */
static const struct number_flag {
    const struct quantity *quantity;
    const char *bounds_key;
} number_flags[FLAG_COUNT] = {
    [FLAG_CAP] = {&watts, "cap_watts"},
    [FLAG_GPU_CAP] = {&watts, "gpu_cap_watts"},
    [FLAG_SLOWDOWN] = {&percent, "slowdown_percent"},
    [FLAG_CPU_FREQ] = {&megahertz, "cpu_freq_mhz"},
    [FLAG_GPU_CLOCK] = {&megahertz, "gpu_clock_mhz"},
};

static const char *const tuning_modes[] = {"off", "advise", "on"};

/* A message under construction; it is truncated at `size`. */
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
    int length = vsnprintf(line->text + line->used, line->size - line->used, format, arguments);
    va_end(arguments);
    if (length > 0)
        line->used += (size_t)length;
}

/* Appends the user's text in quotes: non-printable characters escaped, truncated at SHOWN_MAX. */
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

static bool parse_number(const struct quantity *quantity, const char *value, struct decimal *number) {
    uint64_t micros;
    const char *unit = decimal_read(value, value + strlen(value), 9, 6, &micros);
    for (const struct unit *at = quantity->units; unit && at < quantity->units + 4 && at->name; at++)
        if (strcmp(unit, at->name) == 0) {
            uint64_t part = MICRO / at->factor;
            *number = (struct decimal){micros / part, (uint32_t)(micros % part) * at->factor};
            return micros > 0 || quantity->zero;
        }
    return false;
}

static void append_bounds(struct line *line, const struct bounds *bounds, const char *unit) {
    char low[DECIMAL_TEXT_MAX], high[DECIMAL_TEXT_MAX];
    decimal_print(bounds->low, low);
    decimal_print(bounds->high, high);
    append(line, "allowed: %s to %s %s", low, high, unit);
}

static bool check_number(enum flag flag, const char *value, const struct policy_file *file, char *normal,
                         struct line *line) {
    const struct quantity *quantity = number_flags[flag].quantity;
    struct bounds bounds = {{0, 0}, {0, 0}};
    struct decimal number = {0, 0};
    bool bounded = policies_bounds(file, number_flags[flag].bounds_key, &bounds);
    bool well_formed = parse_number(quantity, value, &number);
    if (well_formed && (!bounded || (decimal_compare(number, bounds.low) >= 0 &&
                                     decimal_compare(number, bounds.high) <= 0))) {
        decimal_print(number, normal);
        return true;
    }
    append_shown(line, value);
    if (well_formed) {
        append(line, " is out of bounds; ");
        append_bounds(line, &bounds, quantity->unit);
        return false;
    }
    append(line, " is not %s", quantity->form);
    if (bounded) {
        append(line, " (");
        append_bounds(line, &bounds, quantity->unit);
        append(line, ")");
    }
    return false;
}

static bool check_tuning(const char *value, char *normal, struct line *line) {
    for (size_t i = 0; i < sizeof(tuning_modes) / sizeof(*tuning_modes); i++)
        if (strcmp(value, tuning_modes[i]) == 0) {
            strcpy(normal, value);
            return true;
        }
    append_shown(line, value);
    append(line, " is not a tuning mode; allowed: off, advise, on");
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
static bool check_profile(const char *value, const struct policy_file *file, char *normal,
                          struct line *line) {
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
    append_shown(line, value);
    append(line, " is not a power profile");
    if (any && list.length < ALLOWED_MAX)
        append(line, "; allowed: %.*s", (int)list.length, list.start);
    return false;
}

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
    size_t limit = line->used + ALLOWED_MAX;
    struct policy policy;
    append(line, "allowed: ");
    for (struct span lines = policies_lines(file); policies_next(&lines, user, &policy);) {
        if (!policy.open)
            continue;
        if (line->used + policy.name.length > limit) {
            append(line, "%s...", separator);
            return;
        }
        append(line, "%s%.*s", separator, (int)policy.name.length, policy.name.start);
        separator = ", ";
    }
    if (!*separator)
        append(line, "none");
}

static bool check_policy(const char *value, const struct policy_file *file, const char *user, char *normal,
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
    append(line, well_formed && !known ? "unknown policy " : "");
    append_shown(line, value);
    if (!well_formed)
        append(line, " is not a policy name");
    else if (known)
        append(line, " is not open to user %s", user);
    append(line, "; ");
    struct span nearest = nearest_policy(value, file, user);
    if (nearest.start && !known)
        append(line, "did you mean '%.*s'? ", (int)nearest.length, nearest.start);
    if (any)
        append_policies(line, file, user);
    else
        append(line, "allowed: a to z first, then a to z, 0 to 9, - and _, at most %d characters",
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
    append(normal, "gpu:%.*s:%.*s", (int)length, kind, (int)(count - zeros), digits + zeros);
    return digits + count;
}

static bool check_shapes(const char *value, char *normal, struct line *line) {
    struct line form = {normal, 0, FLAG_VALUE_MAX + 1};
    const char *rest = value;
    for (int shapes = 0; shapes < FLAG_SHAPES_MAX; shapes++) {
        rest = read_shape(rest, &form);
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
    case FLAG_TUNING:
        return check_tuning(value, normal, &line);
    case FLAG_POWER_PROFILE:
        return check_profile(value, file, normal, &line);
    default:
        return check_number(flag, value, file, normal, &line);
    }
}

/*
 * Returns the properties of a policy. If the file lists no policies, only built-in policies have properties.
 * A file in which no policy is tuned comes from an older senergyctld; any policy may then be tuned.
 */
static struct policy policy_properties(const char *name, const struct policy_file *file) {
    struct policy policy, properties = {.open = true};
    bool any = false, any_tuned = false;
    for (struct span lines = policies_lines(file); policies_next(&lines, NULL, &policy); any = true) {
        any_tuned = any_tuned || policy.tuned;
        if (span_is(policy.name, name))
            properties = policy;
    }
    if (!any) {
        properties.measures_only = strcmp(name, "monitor") == 0;
        properties.needs_cap = strcmp(name, "cap") == 0;
    }
    if (!any_tuned)
        properties.tuned = !properties.measures_only && !properties.needs_cap;
    return properties;
}

/* Returns the first flag that fixes a setting; FLAG_COUNT if there is none. */
static enum flag first_limit(const char *const normal[FLAG_COUNT]) {
    for (int i = 0; i < FLAG_COUNT; i++)
        if (normal[i] && flag_names[i].limits)
            return (enum flag)i;
    return FLAG_COUNT;
}

bool flags_check_combination(const char *const normal[FLAG_COUNT], const struct policy_file *file,
                             char message[FLAG_MESSAGE_MAX + 1]) {
    struct line line = {message, 0, FLAG_MESSAGE_MAX + 1};
    const char *name = normal[FLAG_POLICY], *mode = normal[FLAG_TUNING];
    if (!name) /* a limit then selects the policy cap, or applies to the default policy */
        return true;
    struct policy policy = policy_properties(name, file);
    enum flag limit = first_limit(normal);
    enum flag tuning = normal[FLAG_SLOWDOWN]              ? FLAG_SLOWDOWN
                       : mode && strcmp(mode, "off") != 0 ? FLAG_TUNING
                                                          : FLAG_COUNT;
    if (limit != FLAG_COUNT && policy.measures_only)
        append(&line, "--%s: policy '%s' changes nothing; choose another policy or leave the flag out",
               flag_names[limit].option, name);
    else if (limit == FLAG_COUNT && policy.needs_cap)
        append(&line,
               "--energy-policy=%s needs --energy-cap, --energy-gpu-cap, --energy-cpu-freq, "
               "--energy-gpu-clock or "
               "--energy-power-profile",
               name);
    else if (tuning != FLAG_COUNT && !policy.tuned)
        append(&line, "--%s: policy '%s' is not tuned; choose edp, ed2p or energy, or leave the flag out",
               flag_names[tuning].option, name);
    return line.used == 0;
}
