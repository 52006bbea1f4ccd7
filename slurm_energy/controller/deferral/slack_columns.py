"""Durations that jobs request by energy flags such as the slack, as columns. It needs numpy."""

from __future__ import annotations

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.policies.slack import parse_slack
from slurm_energy.scheduling.queue import Floats
from slurm_energy.slurm.queue.columns import QueueColumns


def duration_column(queue: QueueColumns, flag: str) -> Floats:
    """Return, for each job, the duration in seconds that a flag of the job states; NaN: none. Shape (n,)."""
    seconds = np.full(queue.count, np.nan)
    for row in range(queue.count):
        if text := queue.flags[row].get(flag):
            try:
                seconds[row] = parse_slack(text)
            except UsageError:  # a client without our check sent it
                continue
    return seconds
