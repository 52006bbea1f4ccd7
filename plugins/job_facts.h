/* What queue.table says of a job, read out of slurmctld's own record under the locks that the caller holds:
 * Slurm's for writing jobs, and those of associations and QOS for reading. */
#ifndef SENERGY_JOB_FACTS_H
#define SENERGY_JOB_FACTS_H

#include "queue_writer.h"
#include "slurm_release.h"

/* Whether the job is one for the queue: pending or running, and not just configuring or completing. */
bool job_is_listed(const job_record_t *job);

/*
 * Whether a job that is just being given a priority may be none: `sbatch --test-only` has slurmctld make a
 * job, ask when it would start, and take it away again, and nobody is told of that. Nothing waits for such a
 * job, no script and no port. A true job that looks alike comes with the next pass.
 */
bool job_may_be_a_question(const job_record_t *job);

/*
 * Fills in everything but the place in the file. Strings point into the record or into static memory that the
 * next call writes again. `released`: the job is just being given a priority, whatever it is now.
 */
void job_facts(const job_record_t *job, bool released, struct queue_job *facts);

/* Asks for the memory of a record, and then for that of what it points to, in time for `job_facts`. */
void job_fetch_record(const job_record_t *job);
void job_fetch_facts(const job_record_t *job);

#endif
