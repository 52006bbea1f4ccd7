"""Guard against run times and powers that are predicted too low.

The order of the queue follows the predictions, so a job's owner profits from a prediction that is too low.
`PredictionGuard` raises times and watts to the bounds of `oracle.history.lower_bounds`. It also multiplies
times by the user's misprediction factor, the ratio of actual to predicted time of past jobs. A running job
that exceeds its predicted time raises the factor already before it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from slurm_energy.oracle.history.lower_bounds import Bounds
from slurm_energy.oracle.history.track_record import misprediction_factor, overrun, size
from slurm_energy.oracle.nameplate import NO_LIMIT_S
from slurm_energy.scheduling.queue import Bools, Floats
from slurm_energy.slurm.queue.columns import PENDING, RUNNING, QueueColumns

BoundsSource = Callable[[Mapping[str, Sequence[Any]], Sequence[float], Sequence[float], float], Bounds]
"""`oracle.history.lower_bounds.bounds_many` for the current history."""

SAME_START_S: Final = 2.0
"""Maximum difference in seconds between two start times of a job that count as the same start."""


class StartedPrediction(NamedTuple):
    """The prediction of a job's run time that was valid when the job started.

    Attributes:
        job_id: Slurm's job id.
        start: start time of the job, Unix seconds.
        predicted_s: predicted run time in seconds, before the misprediction factor is applied.
    """

    job_id: int
    start: float
    predicted_s: float


@dataclass(slots=True)
class Mispredictions:
    """Store of the run times that were predicted for jobs before their start.

    It is used to compare predicted with actual run times. It also knows which running jobs exceed their
    predicted time.

    Attributes:
        unsaved: predictions of started jobs that are not yet in the database.
        loaded: whether predictions from before this process were loaded.
    """

    unsaved: list[StartedPrediction] = field(default_factory=list)
    loaded: bool = False
    _pending: dict[int, float] = field(default_factory=dict)
    _started: dict[int, StartedPrediction] = field(default_factory=dict)
    _running: dict[str, tuple[float, float]] = field(default_factory=dict)

    def load(self, before: Iterable[tuple[int, float, float]]) -> None:
        """Load the predictions of started jobs that the database holds.

        Each prediction is a tuple (job id, start in Unix seconds, predicted seconds). If a job has several
        starts, the newest one is used.
        """
        for row in sorted(before, key=lambda one: one[1]):
            self._started[row[0]] = StartedPrediction(*row)
        self.loaded = True

    def record_starts(self, queue: QueueColumns, now_s: float) -> None:
        """Record the predictions of running jobs, and the overruns of these predictions.

        An overrun is the time by which a running job exceeds its predicted time. A job that has started
        since the last call is recorded with the last prediction before its start.
        """
        at = np.flatnonzero((queue.state == RUNNING) & ~np.isnan(queue.start_s)).tolist()
        started: dict[int, StartedPrediction] = {}
        self._running = {}
        for row in at:
            job_id, start = int(queue.job_id[row]), float(queue.start_s[row])
            prediction = self._prediction(job_id, int(queue.array_job_id[row]), start)
            if prediction is None:
                continue
            started[job_id] = prediction
            over = overrun(now_s - start, prediction.predicted_s)
            if over > 0:
                weight = (now_s - start) * size(*(int(n[row]) for n in (queue.nodes, queue.cpus, queue.gpus)))
                before = self._running.get(queue.user[row], (0.0, 0.0))
                self._running[queue.user[row]] = (before[0] + over * weight, before[1] + weight)
        self._started = started

    def record_predictions(self, queue: QueueColumns, predicted_s: Floats) -> None:
        """Store the predicted run times of pending jobs until the jobs start.

        The predictions are later compared with the real run times of the jobs, to correct further predictions
        by a factor.

        Args:
            queue: all jobs.
            predicted_s: predicted seconds without this correction, by queue row, shape (n,).
        """
        rows = np.flatnonzero(queue.state == PENDING)
        self._pending = dict(zip(queue.job_id[rows].tolist(), predicted_s[rows].tolist(), strict=True))
        arrays = rows[queue.array_job_id[rows] > 0]
        for array, seconds in zip(queue.array_job_id[arrays].tolist(), predicted_s[arrays], strict=True):
            self._pending.setdefault(array, float(seconds))

    def running_overruns(self, user: str) -> tuple[float, float]:
        """Return two sums over a user's running jobs that exceed their predicted run times.

        The first value (`overrun_sum`) is the weighted sum of the relative overruns. The second value
        (`overrun_size_seconds`) is the sum of the weights. The weight of a job is its run time in seconds
        times its size. (0, 0) means that no job exceeds its prediction.
        """
        return self._running.get(user, (0.0, 0.0))

    def _prediction(self, job_id: int, array_job_id: int, start: float) -> StartedPrediction | None:
        earlier = self._started.get(job_id)
        if earlier is not None and abs(earlier.start - start) <= SAME_START_S:
            return earlier
        seconds = self._pending.get(job_id, self._pending.get(array_job_id) if array_job_id else None)
        if seconds is None:
            return None
        new = StartedPrediction(job_id, start, seconds)
        self.unsaved.append(new)
        return new


@dataclass(frozen=True, slots=True)
class GuardedPredictions:
    """Corrected predictions of m alternatives; each array has shape (m,).

    An alternative is one way to run a pending job. If a job can run on several numbers or kinds of GPUs,
    each of them is an alternative.

    Attributes:
        time_s: predicted run time in seconds, but at least `lower_bound_s`; the result is multiplied by
            `misprediction`.
        power_watts: predicted watts, but at least the lower bound on the watts.
        lower_bound_s: lower bound on the run time in seconds, before the multiplication.
        misprediction: factor on the run time, at least 1.
    """

    time_s: Floats
    power_watts: Floats
    lower_bound_s: Floats
    misprediction: Floats


class PredictionGuard:
    """Correction of predictions, so that no user gains from wrong predictions.

    Without the correction, a user could run cheap jobs only to lower the predicted time of other jobs.

    Args:
        mispredictions: record of jobs that ran longer than predicted.
        bounds: function that returns lower bounds from measured runs; None means that there is no history.
    """

    def __init__(self, mispredictions: Mispredictions, bounds: BoundsSource | None) -> None:
        self._mispredictions, self._bounds = mispredictions, bounds
        self.now_s = 0.0

    def apply(
        self,
        requests: Mapping[str, Sequence[Any]],
        time_s: Floats,
        power_watts: Floats,
        no_runs: Bools,
        nameplate_watts: Floats,
        max_watts: Floats,
    ) -> GuardedPredictions:
        """Correct the predictions of jobs so that users cannot gain from wrong predictions.

        Predictions below the lower bounds are raised to the bounds. The times are multiplied by the users'
        misprediction factors.

        Args:
            requests: columns as in `oracle.history.lower_bounds.bounds_many`.
            time_s: predicted run time in seconds, shape (m,).
            power_watts: predicted watts, shape (m,).
            no_runs: whether each job has no similar runs. The predictions of such a job are replaced by the
                bounds. Without this rule, a user could lower the usual predictions of a partition by decoys
                (cheap jobs that are run to lower predictions).
            nameplate_watts: watts of each job according to the nameplate, without a power cap.
            max_watts: maximum watts under each job's power caps; infinity for none.
        """
        limit = np.array([value or NO_LIMIT_S for value in requests["time_limit_s"]], np.float64)
        count, now = len(limit), self.now_s
        if self._bounds is None:
            none = np.zeros(count)
            bounds = Bounds(none, none, none.copy(), none.copy())
        else:
            bounds = self._bounds(requests, limit.tolist(), nameplate_watts.tolist(), now)
        running = [self._mispredictions.running_overruns(user or "") for user in requests["user"]]
        sums = zip(
            bounds.overrun_sum + np.array([one[0] for one in running], np.float64),
            bounds.overrun_size_seconds + np.array([one[1] for one in running], np.float64),
            strict=True,
        )
        factor = np.array([misprediction_factor(*pair) for pair in sums], np.float64)
        no_runs = no_runs & (self._bounds is not None)
        time_s = np.where(no_runs, bounds.time_s, time_s)
        power_watts = np.where(no_runs, np.minimum(bounds.power_watts, max_watts), power_watts)
        limited_s = np.minimum(np.maximum(time_s, bounds.time_s) * factor, np.maximum(limit, time_s))
        watts = np.maximum(power_watts, np.minimum(bounds.power_watts, max_watts))
        return GuardedPredictions(limited_s, watts, bounds.time_s, factor)
