/*
 * Digest of a batch script and its arguments, by which repeated runs are recognised.
 *
 * slurm_energy/slurm/script_fingerprint.py computes the same digest in Python. The code does not depend on
 * Slurm.
 */
#ifndef SENERGY_FINGERPRINT_H
#define SENERGY_FINGERPRINT_H

#include <stdbool.h>
#include <sys/types.h>

#define FINGERPRINT_SIZE 17 /* 16 hexadecimal digits and the terminating NUL */

/*
 * Writes the digest of a batch step's command: `arguments[0]` is the script's file, the rest are its
 * arguments.
 *
 * The file must be a regular file, not a link, owned by `owner` and of at most 4 MiB, because the job's owner
 * can write in its directory and the caller may be root. Returns false if there is no such file.
 */
bool fingerprint(int count, char *const arguments[], uid_t owner, char text[FINGERPRINT_SIZE]);

#endif
