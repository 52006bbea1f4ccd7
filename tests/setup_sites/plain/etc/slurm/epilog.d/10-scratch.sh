#!/bin/sh
# Removes what 10-scratch.sh made.
[ -z "$SLURM_JOB_ID" ] || rm -rf "/tmp/scratch.$SLURM_JOB_ID"
exit 0
