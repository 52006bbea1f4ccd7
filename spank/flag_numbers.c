/* See flag_values.h: amounts. */
#include "flag_values.h"

#include <string.h>

#define DURATION_MAX_S 999999999
#define SIGNALS_DIGITS_MAX 4
#define SIGNALS_MAX_S 300

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
    line_append(line, "allowed: %s to %s %s", low, high, unit);
}

bool check_number(enum flag flag, const char *value, const struct policy_file *file, char *normal,
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
    line_append_shown(line, value);
    if (well_formed) {
        line_append(line, " is out of bounds; ");
        append_bounds(line, &bounds, quantity->unit);
        return false;
    }
    line_append(line, " is not %s", quantity->form);
    if (bounded) {
        line_append(line, " (");
        append_bounds(line, &bounds, quantity->unit);
        line_append(line, ")");
    }
    return false;
}

/* Parses one of M, M:S, H:M:S, D-H, D-H:M and D-H:M:S, as Slurm's --time; false if invalid. */
static bool parse_clock(const char *value, uint64_t *seconds) {
    static const unsigned with_days[] = {3600, 60, 1};
    uint64_t fields[4], days = 0;
    size_t count = 0;
    bool has_days = strchr(value, '-') != NULL;
    for (const char *at = value;; at++) {
        uint64_t micros;
        const char *end = decimal_read(at, at + strspn(at, "0123456789"), 9, 0, &micros);
        if (!end || count == 4)
            return false;
        fields[count++] = micros / MICRO;
        if (!*end)
            break;
        if (*end != (has_days && count == 1 ? '-' : ':'))
            return false;
        at = end;
    }
    const uint64_t *clock = fields;
    if (has_days) {
        days = *clock++;
        count--;
    }
    if (count > 3)
        return false;
    const unsigned *factor = has_days ? with_days : count == 3 ? with_days : with_days + 1;
    *seconds = days * 86400;
    for (size_t i = 0; i < count; i++)
        *seconds += clock[i] * factor[i];
    return true;
}

/* Parses a duration into whole seconds, 1 to DURATION_MAX_S; false if invalid. */
static bool parse_duration(const char *value, uint64_t *seconds) {
    static const struct {
        char unit;
        unsigned seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    uint64_t micros;
    const char *unit = decimal_read(value, value + strlen(value), 9, 6, &micros);
    bool valid = false;
    for (size_t i = 0; unit && i < sizeof(units) / sizeof(*units); i++)
        if (*unit == units[i].unit && !unit[1]) {
            *seconds = micros / MICRO * units[i].seconds + micros % MICRO * units[i].seconds / MICRO;
            valid = true;
        }
    return (valid || parse_clock(value, seconds)) && *seconds >= 1 && *seconds <= DURATION_MAX_S;
}

static const char *bounds_of_duration(enum flag flag) { return flag == FLAG_SLACK ? "slack_s" : "restart_s"; }

bool duration_has_effect(enum flag flag, const struct policy_file *file) {
    struct bounds bounds;
    return !policies_bounds(file, bounds_of_duration(flag), &bounds) || bounds.high.whole > 0;
}

bool check_duration(enum flag flag, const char *value, const struct policy_file *file, char *normal,
                    struct line *line) {
    struct bounds bounds = {{0, 0}, {0, 0}};
    bool bounded =
        policies_bounds(file, bounds_of_duration(flag), &bounds) && duration_has_effect(flag, file);
    uint64_t seconds = 0;
    if (!parse_duration(value, &seconds)) {
        line_append_shown(line, value);
        line_append(line, " is not a duration; write it as 30m, 4h or 1d, or as for --time: 4:00:00 or 1-12");
        return false;
    }
    struct decimal number = {seconds, 0};
    if (bounded && (decimal_compare(number, bounds.low) < 0 || decimal_compare(number, bounds.high) > 0)) {
        line_append_shown(line, value);
        line_append(line, " is out of bounds; ");
        append_bounds(line, &bounds, "s");
        return false;
    }
    decimal_print(number, normal);
    strcat(normal, "s"); /* a number without unit would be minutes */
    return true;
}

/* Checks the interval of signals: off, or digits with the unit s or m, from 1s to 5m. */
bool check_signals(const char *value, char *normal, struct line *line) {
    if (strcmp(value, "off") == 0) {
        strcpy(normal, value);
        return true;
    }
    size_t digits = strspn(value, "0123456789");
    const char *unit = value + digits;
    unsigned seconds = 0;
    for (size_t i = 0; i < digits && digits <= SIGNALS_DIGITS_MAX; i++)
        seconds = 10 * seconds + (unsigned)(value[i] - '0');
    seconds *= strcmp(unit, "s") == 0 ? 1 : strcmp(unit, "m") == 0 ? 60 : 0;
    if (seconds >= 1 && seconds <= SIGNALS_MAX_S) {
        decimal_print((struct decimal){seconds, 0}, normal);
        strcat(normal, "s");
        return true;
    }
    line_append_shown(line, value);
    line_append(line, " is not an interval; write off, or 1s to 5m as in 10s");
    return false;
}
