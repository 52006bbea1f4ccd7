/*
 * Checks of single values of the energy flags. Each check writes the normal form of a valid value to
 * `normal`; for an invalid value it appends the reason to `line`, after the name of the flag, and returns
 * false.
 */
#ifndef SENERGY_FLAG_VALUES_H
#define SENERGY_FLAG_VALUES_H

#include "flags.h"
#include "line.h"

#define FLAG_ALLOWED_MAX 400 /* characters of the list of policies or profiles in a message */

/* Amounts in W, MHz, percent or seconds, within the bounds of the policy file. */
bool check_number(enum flag flag, const char *value, const struct policy_file *file, char *normal,
                  struct line *line);
bool check_duration(enum flag flag, const char *value, const struct policy_file *file, char *normal,
                    struct line *line);
bool check_signals(const char *value, char *normal, struct line *line);
bool check_tuning(const char *value, char *normal, struct line *line);
bool check_profile(const char *value, const struct policy_file *file, char *normal, struct line *line);
bool check_label(enum flag flag, const char *value, char *normal, struct line *line);
bool check_shapes(const char *value, char *normal, struct line *line);
bool check_policy(const char *value, const struct policy_file *file, const char *user, char *normal,
                  struct line *line);

#endif
