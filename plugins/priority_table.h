/*
 * Reader of priority.table, which holds the site factor of each job. senergyctld writes it
 * (slurm_energy/priority/table_file.py).
 *
 * The reader does not depend on Slurm. It copies the table with bounded reads into a static buffer, because a
 * memory mapping would kill slurmctld with SIGBUS if the file were truncated.
 */
#ifndef SENERGY_PRIORITY_TABLE_H
#define SENERGY_PRIORITY_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#define PRIORITY_TABLE_MAX_JOBS (1u << 20)
#define PRIORITY_TABLE_MAX_FACTOR (0x7fffffff - 3)

enum priority_table_status {
    PRIORITY_TABLE_OK,
    PRIORITY_TABLE_UNREADABLE,  /* missing, or a file system error */
    PRIORITY_TABLE_LINK,        /* a symbolic link */
    PRIORITY_TABLE_NOT_REGULAR, /* a FIFO, a directory, ... */
    PRIORITY_TABLE_UNSAFE,      /* writable by users other than root and this process's user */
    PRIORITY_TABLE_FOREIGN,     /* not a priority table */
    PRIORITY_TABLE_VERSION,     /* written by another version of slurm-energy */
    PRIORITY_TABLE_TORN,        /* truncated or modified */
    PRIORITY_TABLE_STALE,       /* written too long ago */
    PRIORITY_TABLE_FUTURE,      /* written in the future: the clock was set back */
};

/*
 * Reads the table again if it was replaced. With `always` every call reads (once a pass); without it calls
 * skip the read so that reads take at most 1/20 of the time. An invalid file leaves the last valid table.
 *
 * Returns the status of the file or, if that is valid, of the age of the last valid table. A table with an
 * invalid age must not be used. `reason` (64 bytes) receives a readable detail.
 */
enum priority_table_status priority_table_refresh(const char *path, bool always, char *reason);

/* Whether there is a valid table that is not too old. */
bool priority_table_is_usable(void);

/* Finds the site factor of a job; false: the job is not in the table. Fast for ids in rising order. */
bool priority_table_find(uint32_t job_id, int32_t *factor);

/* The site factor of new jobs that are not in the table; 0: none. */
int32_t priority_table_default_factor(void);

/* Discards the table and all state, before another path is used. */
void priority_table_reset(void);

#endif
