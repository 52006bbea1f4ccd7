"""The runs of a sweep, which measures a job at several points (combinations of settings).

Each run is a job for one point and one repetition. The module determines the order in which the runs are
submitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number, shown
from slurm_energy.tuning.sweep.dominance import dominated_points
from slurm_energy.tuning.sweep.metrics import PointSummary, RunMeasurement, summarise

MAX_ATTEMPTS: Final = 2
"""Number of failed runs of one repetition after which the point is given up."""


class RunStatus(StrEnum):
    """Status of a run of a sweep.

    The members are in the order of time. SUBMITTING: sbatch is running. SUBMITTED: the job exists. MEASURED:
    the energy record has arrived. FAILED: the run has failed.
    """

    SUBMITTING = "submitting"
    SUBMITTED = "submitted"
    MEASURED = "measured"
    FAILED = "failed"


@dataclass(slots=True)
class SweepRun:
    """One job of a sweep: a run of the program at one point (combination of settings).

    Attributes:
        point: index of the point.
        repetition: number of the repetition, from 1.
        job_name: name of the job, unique to this run.
        status: status of the run.
        job_id: job id; None while sbatch runs.
        time_s: seconds from start to end of the job; None if not measured.
        energy_joules: energy of the job on all nodes; None if not measured.
        quality: worst quality mark of the energy figures; None if not measured.
        unmeasured: types of components without an energy figure, such as `other`. `energy_joules` does
            not include them.
        note: reason of a failure; an empty value means that the run has not failed.
    """

    point: int
    repetition: int
    job_name: str
    status: RunStatus = RunStatus.SUBMITTING
    job_id: int | None = None
    time_s: float | None = None
    energy_joules: float | None = None
    quality: str | None = None
    unmeasured: tuple[str, ...] = ()
    note: str = ""

    @property
    def is_in_flight(self) -> bool:
        """Whether the job of this run was submitted and may still be pending or running."""
        return self.status in (RunStatus.SUBMITTING, RunStatus.SUBMITTED)

    def to_json(self) -> dict[str, Any]:
        """Return the run as a dict for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> SweepRun:
        """Build a run from a dict that `to_json` returned.

        Raises:
            UsageError: a key is missing or unknown, or a value has the wrong type.
        """
        try:
            unmeasured = tuple(data.get("unmeasured", ()))
            run = cls(**{**data, "status": RunStatus(data["status"]), "unmeasured": unmeasured})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"run of a sweep: {shown(str(error), 200)}") from None
        numbers = (run.time_s, run.energy_joules)
        measured = run.status is RunStatus.MEASURED
        if not (
            all(type(count) is int and count >= 0 for count in (run.point, run.repetition))
            and (run.job_id is None or (type(run.job_id) is int and run.job_id > 0))
            and all(_is_positive(number) if measured else number is None for number in numbers)
            and isinstance(run.job_name, str)
            and all(isinstance(text, str) for text in (run.note, *unmeasured))
            and isinstance(run.quality, str | None)
        ):
            raise UsageError("run of a sweep: a value is out of range")
        return run


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


@dataclass(frozen=True, slots=True)
class SweepSchedule:
    """Plan of a sweep: which runs to submit next, and which points are not repeated.

    A point is a combination of settings.

    Attributes:
        due: (point, repetition) of each run that may be submitted now, in order.
        dominated: points that are not repeated because another point is faster and needs less energy.
        failed: points whose jobs failed.
        is_complete: whether no run is left to submit and no run is unfinished.
    """

    due: tuple[tuple[int, int], ...]
    dominated: frozenset[int]
    failed: frozenset[int]
    is_complete: bool


def schedule_runs(
    runs: Sequence[SweepRun], points: int, repetitions: int, *, exhaustive: bool = False
) -> SweepSchedule:
    """Return the runs of a sweep to submit next.

    One repetition of all points (combinations of settings) is completed before the next repetition
    begins. Slow changes of the machine therefore affect all points alike. For the same reason, every
    second repetition runs in reverse order. A point is dominated if another point is better in all
    respects. Dominated points are not repeated unless `exhaustive` is set. The reference, which is point
    0, is always repeated.

    Args:
        runs: all runs so far.
        points: number of points.
        repetitions: number of repetitions of each point.
        exhaustive: whether dominated points are repeated too.
    """
    active = set(range(points))
    dominated: set[int] = set()
    failed: set[int] = set()
    by_repetition: dict[int, list[SweepRun]] = {}
    for run in runs:
        by_repetition.setdefault(run.repetition, []).append(run)
    for repetition in range(1, repetitions + 1):
        own = by_repetition.get(repetition, [])
        settled = {run.point for run in own if run.status is RunStatus.MEASURED}
        running = {run.point for run in own if run.is_in_flight}
        failures = Counter(run.point for run in own if run.status is RunStatus.FAILED)
        given_up = {point for point, count in failures.items() if count >= MAX_ATTEMPTS} - settled - running
        failed |= given_up
        active -= given_up
        due = active - settled - running
        if due or running:
            order = sorted(due, reverse=repetition % 2 == 0)
            return SweepSchedule(
                tuple((point, repetition) for point in order), frozenset(dominated), frozenset(failed), False
            )
        if not exhaustive:
            dominated |= dominated_points(point_summaries(runs, points, repetition)) - {0}
            active -= dominated
    return SweepSchedule((), frozenset(dominated), frozenset(failed), True)


def point_summaries(
    runs: Sequence[SweepRun], points: int, last_repetition: int | None = None
) -> tuple[PointSummary | None, ...]:
    """Return the summary of each point; None for a point without measurements.

    Args:
        runs: all runs so far.
        points: number of points.
        last_repetition: last repetition that counts; None means that all repetitions count.
    """
    measured: list[list[RunMeasurement]] = [[] for _ in range(points)]
    for run in runs:
        if last_repetition is not None and run.repetition > last_repetition:
            continue
        if run.status is RunStatus.MEASURED and run.time_s and run.energy_joules and run.point < points:
            measured[run.point].append(RunMeasurement(run.time_s, run.energy_joules))
    return tuple(summarise(group) for group in measured)
