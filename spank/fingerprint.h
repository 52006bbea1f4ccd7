/*
 * The digest by which runs of the same batch script with the same arguments are recognised; the same
 * arithmetic in Python is in slurm_energy/slurm/script_fingerprint.py. No Slurm here.
 */
#ifndef SENERGY_FINGERPRINT_H
#define SENERGY_FINGERPRINT_H

#include <stdbool.h>
#include <sys/types.h>

#define FINGERPRINT_SIZE 17 /* 16 hexadecimal digits and the end */

/*
 * Writes the digest of a batch step's command: `arguments[0]` is the script's file, the rest are its
 * arguments.
 *
 * The file must be a regular one, not a link, owned by `owner` and of at most 4 MiB: the job's owner can
 * write in its directory, and whoever calls this may be root. Returns false where there is no such file.
 */
bool fingerprint(int count, char *const arguments[], uid_t owner, char text[FINGERPRINT_SIZE]);

#endif
