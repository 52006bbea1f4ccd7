/*
 * queue.table and its journal: the queue as slurmctld sees it, for senergyctld. The layout is described, for
 * both sides, in slurm_energy/slurm/queue/table_layout.py. Knows files and numbers, nothing of Slurm.
 */
#ifndef SENERGY_QUEUE_WRITER_H
#define SENERGY_QUEUE_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#define QUEUE_MOST_JOBS (1u << 20)

enum { QUEUE_PENDING, QUEUE_RUNNING };
enum { QUEUE_HELD = 1, QUEUE_DEPENDENT = 2, QUEUE_FIXED = 4, QUEUE_REQUEUE = 8 };
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

/* Names the files; false: the path is too long. */
bool queue_open(const char *path);

/* Begins a snapshot of at most `most` jobs. Returns 0 or an errno. */
int queue_begin(uint32_t most);

/* Adds a job to the snapshot; an error shows at the end. */
void queue_add(struct queue_job *job);

/* Puts the snapshot in place, which ends the journal. Returns 0 or an errno; then the old one stays. */
int queue_end(void);

/*
 * Appends a job to the journal of the last snapshot, also of one that an earlier slurmctld wrote; makes each
 * where there is none. What does not fit comes with the next snapshot. Returns 0 or an errno.
 */
int queue_note(struct queue_job *job);

/* Closes the journal. */
void queue_close(void);

#endif
