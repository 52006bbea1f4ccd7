/*
 * Writer of queue.table and its journal, from which senergyctld reads slurmctld's queue.
 *
 * slurm_energy/slurm/queue/table_layout.py describes the layout for both sides. The writer does not depend on
 * Slurm.
 */
#ifndef SENERGY_QUEUE_WRITER_H
#define SENERGY_QUEUE_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#define QUEUE_MAX_JOBS (1u << 20)

enum { QUEUE_PENDING, QUEUE_RUNNING };
enum { QUEUE_HELD = 1, QUEUE_DEPENDENT = 2, QUEUE_FIXED = 4, QUEUE_REQUEUE = 8 };
/* The higher bits hold the CPUs of a whole node; 0: the job shares nodes. */
#define QUEUE_NODE_CPUS_SHIFT 8
#define QUEUE_NODE_CPUS_MOST (UINT32_MAX >> QUEUE_NODE_CPUS_SHIFT)
enum {
    QUEUE_ACCOUNT,
    QUEUE_PARTITION,
    QUEUE_QOS,
    QUEUE_NAME,
    QUEUE_REASON,
    QUEUE_TRES,
    QUEUE_GRES,
    QUEUE_FLAGS,
    QUEUE_TEXTS
};

struct queue_entry {
    uint32_t job_id, array_job_id, array_task_id, tasks, het_job_id, uid, state, bits;
    int64_t submit, eligible, start, end, deadline;
    uint32_t time_limit_min, nodes, cpus, processes, priority, site_factor, nice, restart_count;
    double shares_norm;
    uint64_t heap_offset; /* set by the writer */
    uint16_t lengths[QUEUE_TEXTS];
};

struct queue_job {
    struct queue_entry entry;
    const char *texts[QUEUE_TEXTS]; /* lengths[i] bytes each */
};

/* Sets the paths of the files; false: the path is too long. */
bool queue_open(const char *path);

/* Starts a snapshot of at most `most` jobs. Returns 0 or an errno. */
int queue_begin(uint32_t most);

/* Adds a job to the snapshot. `queue_end` returns errors of all additions. */
void queue_add(struct queue_job *job);

/* Publishes the snapshot and closes the journal. Returns 0, or an errno if the old snapshot remains. */
int queue_end(void);

/*
 * Appends a job to the journal of the last snapshot, which may be from an earlier slurmctld; creates snapshot
 * and journal if missing. A job that does not fit is part of the next snapshot only. Returns 0 or an errno.
 */
int queue_append_to_journal(struct queue_job *job);

/* Closes the journal. */
void queue_close(void);

#endif
