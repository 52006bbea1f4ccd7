/*
 * Rules of the energy flags: form of values, allowed values, error messages.
 *
 * Pure functions without Slurm, files or allocated memory, which can be tested and fuzzed separately.
 * prolog_epilog/senergy_submit.lua implements the same rules; docs/reference/protocol.md is the contract of
 * both.
 */
#ifndef SENERGY_FLAGS_H
#define SENERGY_FLAGS_H

#include "policies.h"

#include <stdbool.h>

#define FLAG_LABEL_MAX 64    /* characters of a model or tag */
#define FLAG_SHAPES_MAX 8    /* shapes that a job may offer */
#define FLAG_KIND_MAX 32     /* characters of a GPU type */
#define FLAG_VALUE_MAX 335   /* characters of a normalised value: shapes, gpu:KIND:COUNT, with commas */
#define FLAG_MESSAGE_MAX 640 /* characters of an error message, which is one line */

enum flag {
    FLAG_POLICY,
    FLAG_CAP,
    FLAG_GPU_CAP,
    FLAG_SLOWDOWN,
    FLAG_TUNING,
    FLAG_CPU_FREQ,
    FLAG_GPU_CLOCK,
    FLAG_POWER_PROFILE,
    FLAG_MODEL,
    FLAG_TAG,
    FLAG_ALTERNATIVES,
    FLAG_SLACK,
    FLAG_CHECKPOINTABLE,
    FLAG_SIGNALS,
    FLAG_COUNT
};

struct flag_name {
    const char *option;   /* energy-cap: without leading dashes */
    const char *variable; /* ENERGY_CAP: in the job-control environment */
    const char *argument; /* WATTS: in --help */
    const char *usage;
    bool limits; /* fixes a setting; `monitor` excludes the flag, and `cap` needs one such flag */
};
extern const struct flag_name flag_names[FLAG_COUNT];

/*
 * Checks one value and writes its normal form: amounts as plain decimal numbers in W, MHz or percent, counts
 * without leading zeros, power profiles in NVML's spelling, durations in whole seconds as in 14400s.
 *
 * `user` is the submitting user. NULL stands for root, who may submit for other users and may use every
 * policy here. Returns false with one printable line in `message` that names flag, value and allowed values.
 */
bool flag_check(enum flag flag, const char *value, const struct policy_file *file, const char *user,
                char normal[FLAG_VALUE_MAX + 1], char message[FLAG_MESSAGE_MAX + 1]);

/*
 * Checks the combination of individually valid values. A policy that only measures excludes flags that fix a
 * setting, a policy that only enforces limits needs such a flag, and a policy that is not tuned excludes a
 * slowdown limit and a tuning mode other than off. `normal` has NULL for each flag that was not given.
 *
 * Returns false with one printable line in `message`.
 */
bool flags_check_combination(const char *const normal[FLAG_COUNT], const struct policy_file *file,
                             char message[FLAG_MESSAGE_MAX + 1]);

/*
 * Whether the site defers jobs (FLAG_SLACK) or suspends them (FLAG_CHECKPOINTABLE), so that the flag has an
 * effect; true without a policy file.
 */
bool duration_has_effect(enum flag flag, const struct policy_file *file);

#endif
