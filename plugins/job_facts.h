/*
 * Entry of a job in queue.table, read from slurmctld's own record.
 *
 * The caller holds Slurm's write lock of jobs and the read locks of associations and QOS.
 */
#ifndef SENERGY_JOB_FACTS_H
#define SENERGY_JOB_FACTS_H

#include "queue_writer.h"
#include "slurm_release.h"

/* Whether the job belongs into the table: pending or running, but not configuring or completing. */
bool job_is_listed(const job_record_t *job);

/*
 * Whether a job whose priority is being set may come from `sbatch --test-only`.
 *
 * For --test-only slurmctld creates a job, computes its start and deletes it without a notification. Such a
 * job has neither a batch script nor a response port. A real job without both appears with the next pass.
 */
bool job_may_be_test_only(const job_record_t *job);

/*
 * Fills in all fields except the position in the file. Strings point into the record or into static memory
 * that the next call overwrites. `released`: the job is being given a priority, whatever its current priority
 * is.
 */
void job_facts(const job_record_t *job, bool released, struct queue_job *facts);

/* Prefetch the memory of a record, and the memory that it points to, for a later call of `job_facts`. */
void job_fetch_record(const job_record_t *job);
void job_fetch_facts(const job_record_t *job);

#endif
