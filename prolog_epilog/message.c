/* See message.h. */
#include "message.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRED_VALUE_MAX 2048 /* bytes up to which a required_variables variable is always kept */

/* Variables from which senergyd learns the job, its owner and its energy flags. */
static const char *const required_variables[] = {
    "SLURM_JOB_ID",           "SLURM_JOBID",
    "SLURM_JOB_UID",          "SLURM_UID",
    "SLURM_JOB_USER",         "SLURM_JOB_GID",
    "SLURM_JOB_PARTITION",    "SLURM_JOB_RESTART_COUNT",
    "SLURM_RESTART_COUNT",    "SLURM_CLUSTER_NAME",
    "SLURMD_NODENAME",        "SLURM_JOB_SLUID",
    "SLURM_JOB_GPUS",         "SLURM_JOB_CPUS_PER_NODE",
    "SPANK_ENERGY_POLICY",    "SPANK_ENERGY_CAP",
    "SPANK_ENERGY_GPU_CAP",   "SPANK_ENERGY_MODEL",
    "SPANK_ENERGY_TAG",       "SPANK_ENERGY_ALTERNATIVES",
    "SPANK_ENERGY_SLACK",     "SPANK_ENERGY_SLOWDOWN",
    "SPANK_ENERGY_TUNING",    "SPANK_ENERGY_CPU_FREQ",
    "SPANK_ENERGY_GPU_CLOCK", "SPANK_ENERGY_POWER_PROFILE",
    "SPANK_ENERGY_SIGNALS",   "SPANK_ENERGY_CHECKPOINTABLE",
};

struct variable {
    const char *text; /* NAME=value */
    size_t size;      /* bytes as JSON member, with its comma */
    size_t weight;    /* variables with the largest weight are dropped first */
    bool dropped;
};

static bool begins_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* Length of the UTF-8 sequence at `text`, 1 to 4; 0 if it is invalid (also overlong forms and surrogates). */
static size_t utf8_length(const unsigned char *text) {
    static const unsigned lowest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80   ? 1
                    : text[0] < 0xc2 ? 0
                    : text[0] < 0xe0 ? 2
                    : text[0] < 0xf0 ? 3
                    : text[0] < 0xf5 ? 4
                                     : 0;
    if (length <= 1)
        return length;
    unsigned point = text[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (text[i] & 0x3f);
    }
    bool valid = point >= lowest[length] && point <= 0x10ffff && (point < 0xd800 || point > 0xdfff);
    return valid ? length : 0;
}

/* Writes `length` bytes as the content of a JSON string to `out`, or only counts its bytes if `out` is NULL.
 */
static size_t escape(char *out, const char *text, size_t length) {
    char piece[8];
    size_t size = 0;
    for (size_t at = 0; at < length;) {
        const unsigned char *byte = (const unsigned char *)text + at;
        size_t taken = utf8_length(byte), wrote = taken; /* a sequence never extends beyond '=' or the end */
        if (taken == 0) {
            taken = 1;
            wrote = (size_t)snprintf(piece, sizeof(piece), "\\ufffd");
        } else if (*byte == '"' || *byte == '\\') {
            wrote = (size_t)snprintf(piece, sizeof(piece), "\\%c", *byte);
        } else if (*byte < 0x20) {
            wrote = (size_t)snprintf(piece, sizeof(piece), "\\u%04x", *byte);
        } else {
            memcpy(piece, byte, taken);
        }
        if (out)
            memcpy(out + size, piece, wrote);
        size += wrote;
        at += taken;
    }
    return size;
}

/* Writes `"NAME":"value",` to `out`, or only counts its bytes if `out` is NULL. */
static size_t print_member(char *out, const char *variable) {
    size_t name = strcspn(variable, "="), size = 0;
    const char *value = variable + name + 1;
    const struct {
        const char *text;
        size_t length;
        bool raw;
    } parts[] = {{"\"", 1, true},
                 {variable, name, false},
                 {"\":\"", 3, true},
                 {value, strlen(value), false},
                 {"\",", 2, true}};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        if (!parts[i].raw) {
            size += escape(out ? out + size : NULL, parts[i].text, parts[i].length);
            continue;
        }
        if (out)
            memcpy(out + size, parts[i].text, parts[i].length);
        size += parts[i].length;
    }
    return size;
}

static size_t weight_of(const char *variable, size_t size) {
    size_t name = strcspn(variable, "=");
    for (size_t i = 0; i < sizeof(required_variables) / sizeof(*required_variables); i++)
        if (strlen(required_variables[i]) == name && strncmp(required_variables[i], variable, name) == 0)
            return size > REQUIRED_VALUE_MAX ? size : begins_with(variable, "SPANK_") ? 1 : 0;
    return begins_with(variable, "SPANK_") ? size + (1u << 30) : size;
}

static int by_weight_falling(const void *left, const void *right) {
    size_t a = (*(struct variable *const *)left)->weight, b = (*(struct variable *const *)right)->weight;
    return (a < b) - (a > b);
}

/* Marks the heaviest variables as dropped until the others take at most `room` bytes. */
static bool drop_heaviest(struct variable *variables, size_t count, size_t total, size_t room,
                          size_t *dropped) {
    struct variable **order = calloc(count, sizeof(*order));
    if (!order)
        return false;
    for (size_t i = 0; i < count; i++)
        order[i] = &variables[i];
    qsort(order, count, sizeof(*order), by_weight_falling);
    for (*dropped = 0; total > room && *dropped < count; ++*dropped) {
        order[*dropped]->dropped = true;
        total -= order[*dropped]->size;
    }
    free(order);
    return true;
}

static bool is_relevant(const char *variable) {
    return strchr(variable, '=') &&
           (begins_with(variable, "SLURM") || begins_with(variable, "SPANK_ENERGY_"));
}

size_t message_build(char text[MESSAGE_MAX + 1], const char *operation, char *const environment[],
                     size_t *dropped) {
    size_t count = 0, total = 0, used = (size_t)snprintf(text, 64, "{\"op\":\"%s\",\"env\":{", operation);
    *dropped = 0;
    for (char *const *at = environment; *at; at++)
        count++;
    struct variable *variables = calloc(count + 1, sizeof(*variables));
    if (!variables)
        return 0;
    count = 0;
    for (char *const *at = environment; *at; at++) {
        if (!is_relevant(*at))
            continue;
        size_t size = print_member(NULL, *at);
        variables[count++] = (struct variable){*at, size, weight_of(*at, size), false};
        total += size;
    }
    size_t room = MESSAGE_MAX - used - strlen("}}\n");
    if (total > room && !drop_heaviest(variables, count, total, room, dropped)) {
        free(variables);
        return 0;
    }
    for (size_t i = 0; i < count; i++)
        if (!variables[i].dropped)
            used += print_member(text + used, variables[i].text);
    free(variables);
    if (text[used - 1] == ',')
        used--;
    memcpy(text + used, "}}\n", 4);
    return used + 3;
}
