"""A program of fixed work that writes checkpoints.

Usage: checkpointing_program.py STEPS CHECKPOINT_S GROWTH

The interval of the checkpoints comes from `slurm_energy.adjusted`. Steps and checkpoints
sleep, so that the load of the machine does not change their times. With GROWTH above 0 a
checkpoint takes longer if the interval is longer. The time of all checkpoints together then
also rises with the interval.
"""

from __future__ import annotations

import sys
import time

import slurm_energy

STEP_S = 0.05
INTERVAL_S = 1.0


def main() -> int:
    """Run sleeping steps with checkpoints at intervals, and return the exit status 0."""
    steps, checkpoint_s, growth = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    interval_s = slurm_energy.adjusted("checkpoint-interval", default=INTERVAL_S)
    duration_s = checkpoint_s * (1 + growth * (interval_s / INTERVAL_S - 1))
    worked_s = 0.0
    for _ in slurm_energy.watch(range(steps), total=steps):
        time.sleep(STEP_S)
        worked_s += STEP_S
        if worked_s >= interval_s:
            worked_s = 0.0
            with slurm_energy.phase("checkpoint"):
                time.sleep(duration_s)
    if growth:
        with slurm_energy.phase("checkpoint"):
            time.sleep(duration_s)  # the state that is left at the end
    return 0


if __name__ == "__main__":
    sys.exit(main())
