"""Estimated usage (energy and GPU seconds) of runs that have no energy record yet.

These are the runs of running jobs, and of jobs that have just ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from slurm_energy.priority.usage import Association, decay_weight
from slurm_energy.scheduling.queue import Floats
from slurm_energy.slurm.queue.columns import RUNNING, QueueColumns

RECORD_TIMEOUT_S: Final = 300.0
"""Seconds after the end of a run for which the estimate counts if no energy record arrives."""


class UnrecordedRun(NamedTuple):
    """A run without an energy record.

    Attributes:
        job_id: Slurm's job id.
        restart_count: number of requeues before this run.
        association: account and user.
        start_s: Unix seconds.
        end_s: time at which the queue no longer contained the run, in Unix seconds; infinity means that it
            still runs.
        power_watts: predicted watts of the whole job.
        gpus: number of GPUs on all nodes.
    """

    job_id: int
    restart_count: int
    association: Association
    start_s: float
    end_s: float
    power_watts: float
    gpus: int


@dataclass(slots=True)
class UnrecordedRuns:
    """Runs whose energy records are missing: running jobs, and jobs that ended a short time ago.

    The usage of a user includes these runs. Without the ended jobs, the usage would drop at the end of each
    job and rise again some seconds later, when the record arrives. In these seconds, the user's next jobs
    would rank too high.
    """

    _runs: dict[int, UnrecordedRun] = field(default_factory=dict)

    def update(
        self,
        queue: QueueColumns,
        power_watts: Floats,
        now_s: float,
        has_record: Callable[[int, int], bool],
    ) -> None:
        """Update the list of runs without an energy record from the current queue.

        Running jobs are taken from the queue. Jobs that have ended remain in the list for a limited time,
        until they have a record.

        Args:
            queue: all jobs.
            power_watts: predicted watts of each row of the queue, shape (n,).
            now_s: Unix seconds.
            has_record: function of job id and number of requeues. It returns whether a recent record
                describes this run or a later run of the job.
        """
        running: dict[int, UnrecordedRun] = {}
        for row in np.flatnonzero((queue.state == RUNNING) & ~np.isnan(queue.start_s)).tolist():
            job_id, start_s = int(queue.job_id[row]), min(float(queue.start_s[row]), now_s)
            association = queue.account[row], queue.user[row]
            figures = float(power_watts[row]), int(queue.gpus[row])
            restarts = int(queue.restart_count[row])
            running[job_id] = UnrecordedRun(job_id, restarts, association, start_s, math.inf, *figures)
        for job_id, run in self._runs.items():
            ended = run._replace(end_s=min(run.end_s, now_s))
            recorded = has_record(job_id, run.restart_count)
            if job_id not in running and not recorded and now_s - ended.end_s < RECORD_TIMEOUT_S:
                running[job_id] = ended
        self._runs = running

    def associations(self) -> list[Association]:
        """Return the association (account and user) of each run."""
        return [run.association for run in self._runs.values()]

    def decayed(self, now_s: float, half_life_s: float) -> tuple[Floats, Floats]:
        """Return the joules and GPU seconds of each run, weighted so that older usage counts less.

        The joules are the predicted power times the duration of the run so far. The order is that of
        `associations`.

        Args:
            now_s: Unix seconds.
            half_life_s: seconds after which usage counts half (half-life).
        """
        columns = [(run.start_s, run.end_s, run.power_watts, run.gpus) for run in self._runs.values()]
        start, end, watts, gpus = np.array(columns, np.float64).reshape(-1, 4).T
        end = np.minimum(end, now_s)
        counted_s = (end - start) * decay_weight(start, end, now_s, half_life_s)
        return watts * counted_s, gpus * counted_s
