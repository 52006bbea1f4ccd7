/*
 * The energy flags as pure rules: how values are written, which are allowed, what a refusal says.
 *
 * No Slurm, no files, no memory of its own: everything here can be tested and fuzzed alone. The same rules in
 * Lua are in prolog_epilog/senergy_submit.lua; docs/reference/protocol.md, is the contract of both.
 */
#ifndef SENERGY_FLAGS_H
#define SENERGY_FLAGS_H

#include "policies.h"

#include <stdbool.h>

#define FLAG_LABEL_MAX 64    /* characters of a model or tag */
#define FLAG_SHAPES_MAX 8    /* shapes that a job may offer */
#define FLAG_KIND_MAX 32     /* characters of a kind of GPU */
#define FLAG_VALUE_MAX 335   /* characters of a normal value: shapes, gpu:KIND:COUNT, with commas */
#define FLAG_MESSAGE_MAX 640 /* characters of a refusal, which is one line */

enum flag { FLAG_POLICY, FLAG_CAP, FLAG_GPU_CAP, FLAG_MODEL, FLAG_TAG, FLAG_ALTERNATIVES, FLAG_COUNT };

struct flag_name {
    const char *option;   /* energy-cap: without the dashes */
    const char *variable; /* ENERGY_CAP: in the job-control environment */
    const char *argument; /* WATTS: in --help */
    const char *usage;
};
extern const struct flag_name flag_names[FLAG_COUNT];

/*
 * Checks one value and writes its normal form: watts as plain decimal numbers, counts without leading zeros.
 *
 * `user` is who submits; NULL for root, who may submit for others: then every policy passes here.
 * Returns false with one printable line in `message` that names flag, value and what is allowed.
 */
bool flag_check(enum flag flag, const char *value, const struct policy_file *file, const char *user,
                char normal[FLAG_VALUE_MAX + 1], char message[FLAG_MESSAGE_MAX + 1]);

/*
 * Checks that values which passed one by one also go together: no cap where nothing is changed, and no policy
 * that only keeps to a cap without one. `normal` has NULL for each flag that was not given.
 *
 * Returns false with one printable line in `message`.
 */
bool flags_agree(const char *const normal[FLAG_COUNT], const struct policy_file *file,
                 char message[FLAG_MESSAGE_MAX + 1]);

#endif
