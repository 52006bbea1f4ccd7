"""What keeps predictions honest: lower bounds, and the factor by which a user's jobs outran theirs.

The order of the queue follows predictions, so a prediction that is too short is worth something to its
owner. `PredictionGuard` raises times and watts to the bounds of `oracle.history.bounds` and multiplies times
by the user's misprediction factor. Jobs that run past their prediction count before they end.
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
"""`oracle.history.bounds.bounds_many` for the history in force."""

SAME_START_S: Final = 2.0
"""Starts of one job that are so close are the same start."""


class StartedPrediction(NamedTuple):
    """What was predicted of a job when it started.

    Attributes:
        job_id: Slurm's number.
        start: Unix seconds.
        predicted_s: seconds, before the misprediction factor.
    """

    job_id: int
    start: float
    predicted_s: float


@dataclass(slots=True)
class Mispredictions:
    """Predictions of jobs at their start, and how far running jobs are past theirs.

    Attributes:
        unsaved: predictions of jobs that have started and are not in the database yet.
        loaded: whether predictions from before this process were read.
    """

    unsaved: list[StartedPrediction] = field(default_factory=list)
    loaded: bool = False
    _pending: dict[int, float] = field(default_factory=dict)
    _started: dict[int, StartedPrediction] = field(default_factory=dict)
    _running: dict[str, tuple[float, float]] = field(default_factory=dict)

    def load(self, before: Iterable[tuple[int, float, float]]) -> None:
        """Take over job id, start and seconds from the database; the newest start of a job counts."""
        for row in sorted(before, key=lambda one: one[1]):
            self._started[row[0]] = StartedPrediction(*row)
        self.loaded = True

    def see_running(self, queue: QueueColumns, now_s: float) -> None:
        """Note which jobs have started since the last ranking, and which run past their prediction."""
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

    def see_ranking(self, queue: QueueColumns, predicted_s: Floats) -> None:
        """Remember what was predicted of the pending jobs.

        Args:
            queue: all jobs.
            predicted_s: before the misprediction factor, shape (n,).
        """
        rows = np.flatnonzero(queue.state == PENDING)
        self._pending = dict(zip(queue.job_id[rows].tolist(), predicted_s[rows].tolist(), strict=True))
        arrays = rows[queue.array_job_id[rows] > 0]
        for array, seconds in zip(queue.array_job_id[arrays].tolist(), predicted_s[arrays], strict=True):
            self._pending.setdefault(array, float(seconds))

    def running_overruns(self, user: str) -> tuple[float, float]:
        """Return `overrun_sum` and `overrun_size_seconds` of a user's jobs that run past their prediction."""
        return self._running.get(user, (0.0, 0.0))

    def _prediction(self, job_id: int, array_job_id: int, start: float) -> StartedPrediction | None:
        known = self._started.get(job_id)
        if known is not None and abs(known.start - start) <= SAME_START_S:
            return known
        seconds = self._pending.get(job_id, self._pending.get(array_job_id) if array_job_id else None)
        if seconds is None:
            return None
        new = StartedPrediction(job_id, start, seconds)
        self.unsaved.append(new)
        return new


@dataclass(frozen=True, slots=True)
class Guarded:
    """The outcome for m jobs or shapes; arrays of shape (m,).

    Attributes:
        time_s: predicted time after bound and factor.
        power_watts: predicted watts after the bound.
        lower_bound_s: least time, before the factor.
        misprediction: factor on the time, 1 or more.
    """

    time_s: Floats
    power_watts: Floats
    lower_bound_s: Floats
    misprediction: Floats


class PredictionGuard:
    """Raises predictions that cheap jobs could have pushed down.

    Args:
        mispredictions: of running jobs.
        bounds: answers from measured runs; None: there is no history, so nothing of it was predicted either.
    """

    def __init__(self, mispredictions: Mispredictions, bounds: BoundsSource | None) -> None:
        self._mispredictions, self._bounds = mispredictions, bounds
        self.now_s = 0.0

    def apply(
        self,
        asked: Mapping[str, Sequence[Any]],
        time_s: Floats,
        power_watts: Floats,
        unknown: Bools,
        nameplate_watts: Floats,
        most_watts: Floats,
    ) -> Guarded:
        """Return the guarded predictions.

        Args:
            asked: columns as in `oracle.history.columns.predict_many`.
            time_s: predicted, shape (m,).
            power_watts: predicted, shape (m,).
            unknown: jobs of which nothing is known: the bounds replace their figures. Else decoys could
                replace what is usual in the partition by something of their owner's.
            nameplate_watts: watts of each where nothing is known, without any cap.
            most_watts: watts that each job's caps allow; infinity for none.
        """
        limit = np.array([value or NO_LIMIT_S for value in asked["time_limit_s"]], np.float64)
        count, now = len(limit), self.now_s
        if self._bounds is None:
            none = np.zeros(count)
            bounds = Bounds(none, none, none.copy(), none.copy())
        else:
            bounds = self._bounds(asked, limit.tolist(), nameplate_watts.tolist(), now)
        running = [self._mispredictions.running_overruns(user or "") for user in asked["user"]]
        sums = zip(
            bounds.overrun_sum + np.array([one[0] for one in running], np.float64),
            bounds.overrun_size_seconds + np.array([one[1] for one in running], np.float64),
            strict=True,
        )
        factor = np.array([misprediction_factor(*pair) for pair in sums], np.float64)
        unknown = unknown & (self._bounds is not None)
        time_s = np.where(unknown, bounds.time_s, time_s)
        power_watts = np.where(unknown, np.minimum(bounds.power_watts, most_watts), power_watts)
        held = np.minimum(np.maximum(time_s, bounds.time_s) * factor, np.maximum(limit, time_s))
        watts = np.maximum(power_watts, np.minimum(bounds.power_watts, most_watts))
        return Guarded(held, watts, bounds.time_s, factor)
