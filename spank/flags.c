/* See flags.h. */
#include "flags.h"

#include "flag_values.h"

#include <string.h>

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
    [FLAG_SLACK] = {"energy-slack", "ENERGY_SLACK", "TIME",
                    "time by which the start may be delayed for cheap or clean power: 30m, 4h or 1d", false},
    [FLAG_CHECKPOINTABLE] =
        {"energy-checkpointable", "ENERGY_CHECKPOINTABLE", "TIME",
         "the job saves its state at SIGTERM and may be suspended by a requeue; time that "
         "a restart costs: 5m",
         false},
    [FLAG_SIGNALS] = {"energy-signals", "ENERGY_SIGNALS", "INTERVAL",
                      "interval at which signals of the job are sampled: off, or 1s to 5m", false},
};

bool flag_check(enum flag flag, const char *value, const struct policy_file *file, const char *user,
                char normal[FLAG_VALUE_MAX + 1], char message[FLAG_MESSAGE_MAX + 1]) {
    struct line line = {message, 0, FLAG_MESSAGE_MAX + 1};
    if (!value)
        value = "";
    line_append(&line, "--%s: ", flag_names[flag].option);
    switch (flag) {
    case FLAG_POLICY:
        return check_policy(value, file, user, normal, &line);
    case FLAG_MODEL:
    case FLAG_TAG:
        return check_label(flag, value, normal, &line);
    case FLAG_ALTERNATIVES:
        return check_shapes(value, normal, &line);
    case FLAG_SLACK:
    case FLAG_CHECKPOINTABLE:
        return check_duration(flag, value, file, normal, &line);
    case FLAG_SIGNALS:
        return check_signals(value, normal, &line);
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
        line_append(&line, "--%s: policy '%s' changes nothing; choose another policy or leave the flag out",
                    flag_names[limit].option, name);
    else if (limit == FLAG_COUNT && policy.needs_cap)
        line_append(&line,
                    "--energy-policy=%s needs --energy-cap, --energy-gpu-cap, --energy-cpu-freq, "
                    "--energy-gpu-clock or "
                    "--energy-power-profile",
                    name);
    else if (tuning != FLAG_COUNT && !policy.tuned)
        line_append(&line,
                    "--%s: policy '%s' is not tuned; choose edp, ed2p or energy, or leave the flag out",
                    flag_names[tuning].option, name);
    return line.used == 0;
}
