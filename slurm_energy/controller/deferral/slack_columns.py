"""Durations that users state in the energy flags of their jobs, as columns with a value per job.

An example of such a duration is the slack, by which the start of a job may be delayed. The module needs
numpy.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.policies.slack import parse_slack
from slurm_energy.scheduling.queue import Floats
from slurm_energy.slurm.queue.columns import QueueColumns


def duration_column(queue: QueueColumns, flag: str) -> Floats:
    """Return the duration in seconds that a flag of each job states; NaN means that the job lacks the flag.

    The shape is (n,), where n is the number of jobs in the queue.
    """
    seconds = np.full(queue.count, np.nan)
    for row in range(queue.count):
        if text := queue.flags[row].get(flag):
            try:
                seconds[row] = parse_slack(text)
            except UsageError:  # a client without our check sent it
                continue
    return seconds
