#!/bin/sh
# Scratch directory of the job.
[ -z "$SLURM_JOB_ID" ] || mkdir -p "/tmp/scratch.$SLURM_JOB_ID"
exit 0
