/*
 * priority.table: the site factor of each job, as senergyctld writes it
 * (slurm_energy/priority/table_file.py).
 *
 * Knows files and numbers, nothing of Slurm. The table is copied by bounded reads into a static buffer: a
 * mapping would end slurmctld by SIGBUS when somebody truncates the file.
 */
#ifndef SENERGY_SCORES_H
#define SENERGY_SCORES_H

#include <stdbool.h>
#include <stdint.h>

#define SCORES_MOST_JOBS (1u << 20)
#define SCORES_LARGEST_FACTOR (0x7fffffff - 3)

enum scores_trouble {
    SCORES_GOOD,
    SCORES_UNREADABLE, /* missing, or an error of the file system */
    SCORES_LINK,       /* a symbolic link */
    SCORES_NOT_PLAIN,  /* a FIFO, a directory, ... */
    SCORES_UNSAFE,     /* others than root and this process's user can write it */
    SCORES_FOREIGN,    /* something else than a table */
    SCORES_VERSION,    /* of another version of slurm-energy */
    SCORES_TORN,       /* cut off or changed */
    SCORES_STALE,      /* written too long ago */
    SCORES_AHEAD,      /* written in the future: the clock was set back */
};

/*
 * Reads the table again if it was replaced. `always`: as often as asked (once a pass); else not so often that
 * reading takes more than a twentieth of the time. The last good table stays when the file is bad.
 *
 * Returns what is wrong with the file or, if nothing is, with the age of the last good table; then that is
 * not to be used. `why` (64 bytes) receives a detail for people.
 */
enum scores_trouble scores_refresh(const char *path, bool always, char *why);

/* Whether there is a good table of an age to be used. */
bool scores_usable(void);

/* The site factor of a job; false: the table does not know the job. Cheap for ids that come in order. */
bool scores_find(uint32_t job_id, int32_t *factor);

/* The site factor of new jobs that the table does not know; 0: none. */
int32_t scores_default(void);

/* Forgets everything, for another path. */
void scores_forget(void);

#endif
