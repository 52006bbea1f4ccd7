"""Main loop of a sweep, which runs one program at many settings.

The loop submits the runs that are due, collects their states and energy records, saves the state of the
sweep, and waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.reports.usage import AccountedRecord, JobUsage, summarise
from slurm_energy.slurm.job_state import JobStatus
from slurm_energy.slurm.sbatch import RefusedError
from slurm_energy.sweep.state import SweepState
from slurm_energy.sweep.submission import deferred_interrupt
from slurm_energy.tuning.sweep.design import SweepPoint
from slurm_energy.tuning.sweep.runs import RunStatus, SweepRun, SweepSchedule, schedule_runs

POLL_S: Final = 2.0
MAX_POLL_S: Final = 15.0
RECORD_WAIT_S: Final = 300.0
"""Maximum time between the end of a job and the arrival of its records."""
OUTAGE_S: Final = 600.0
"""Duration after which a sweep ends if slurmctld or senergyctld does not answer."""
_COMPLETED: Final = "COMPLETED"
_NO_ENERGY: Final = "the node measures no energy"


@dataclass(frozen=True, slots=True)
class SweepCluster:
    """Functions by which a sweep uses Slurm and the controller.

    A point of the sweep is a combination of settings.

    Attributes:
        submit: function that submits a run at a point under a given job name, and returns the job id.
        find: function that returns the job ids of the caller's jobs with given names, by job name.
        states: function that returns the states of jobs. Jobs that Slurm does not know are missing.
        records: function that returns the energy records of jobs.
    """

    submit: Callable[[SweepPoint, str], int]
    find: Callable[[Sequence[str]], Mapping[str, int]]
    states: Callable[[Sequence[int]], Mapping[int, JobStatus]]
    records: Callable[[Sequence[int]], Sequence[AccountedRecord]]


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """Limits of the number of jobs in a sweep.

    Attributes:
        repetitions: number of repetitions of each point (combination of settings).
        max_in_flight: maximum number of jobs that are pending or running at the same time.
        exhaustive: whether to repeat also the points that another point beats in time and energy.
        deadline_s: time on the runner's clock after which no further job is submitted; None means no limit.
    """

    repetitions: int
    max_in_flight: int
    exhaustive: bool = False
    deadline_s: float | None = None


class SweepRunner:
    """Runner of one sweep. Every change of the state is saved before the next action.

    Args:
        state: state of the sweep, which the runner changes.
        cluster: access to Slurm and to the controller.
        limits: limits of the extent of the sweep.
        save: function that stores the state of the sweep durably.
        report: function that is called with the schedule after each round of the loop.
        sleep: function that waits for some seconds.
        clock: function that returns monotonic time in seconds.
    """

    def __init__(
        self,
        state: SweepState,
        cluster: SweepCluster,
        limits: SweepLimits,
        save: Callable[[], None],
        report: Callable[[SweepSchedule], None] = lambda schedule: None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._cluster = cluster
        self._limits = limits
        self._save = save
        self._report = report
        self._sleep = sleep
        self._clock = clock
        self._max_in_flight = limits.max_in_flight
        self._ended: dict[int, float] = {}
        self._outage_since: float | None = None

    def run(self) -> None:
        """Run the sweep until all runs have ended or the deadline has passed.

        Raises:
            UnavailableError: slurmctld or senergyctld did not answer for OUTAGE_S seconds.
        """
        poll_s = POLL_S
        while True:
            changed = self._attempt()
            schedule = self._schedule()
            self._report(schedule)
            if not self._state.in_flight and (schedule.is_complete or self._is_over):
                return
            poll_s = POLL_S if changed else min(self._max_poll_s(), 1.3 * poll_s)
            self._sleep(poll_s)

    def _max_poll_s(self) -> float:
        """Return the maximum interval between polls: a tenth of the shortest run so far."""
        shortest_s = min((run.time_s for run in self._state.runs if run.time_s), default=10.0 * MAX_POLL_S)
        return max(POLL_S, min(MAX_POLL_S, 0.1 * shortest_s))

    def _attempt(self) -> bool:
        """Collect results and submit due runs. Return whether anything changed. Tolerate short outages."""
        try:
            changed = self._adopt() | self._collect()
            changed |= self._submit_due()
        except UnavailableError:
            now = self._clock()
            if self._outage_since is None:
                self._outage_since = now
            if now - self._outage_since >= OUTAGE_S:
                raise
            return False
        self._outage_since = None
        return changed

    @property
    def _is_over(self) -> bool:
        """Whether no further job may be submitted because the deadline has passed."""
        return self._limits.deadline_s is not None and self._clock() >= self._limits.deadline_s

    def _schedule(self) -> SweepSchedule:
        return schedule_runs(
            self._state.runs,
            len(self._state.points),
            self._limits.repetitions,
            exhaustive=self._limits.exhaustive,
        )

    def _adopt(self) -> bool:
        """Find out which runs of the sweep have a job in Slurm, after a submission was interrupted.

        A run is uncertain if the sweep was interrupted while it submitted the run. An uncertain run without
        a job in Slurm is removed from the state. Return whether there were uncertain runs.
        """
        unknown = [run for run in self._state.runs if run.status is RunStatus.SUBMITTING]
        if not unknown:
            return False
        job_ids = self._cluster.find([run.job_name for run in unknown])
        for run in unknown:
            run.job_id = job_ids.get(run.job_name)
            if run.job_id is None:
                self._state.runs.remove(run)
            else:
                run.status = RunStatus.SUBMITTED
        self._save()
        return True

    def _submit_due(self) -> bool:
        changed = False
        for point, repetition in self._schedule().due:
            if self._is_over or len(self._state.in_flight) >= self._max_in_flight:
                break
            if not self._submit(point, repetition):
                break
            changed = True
        return changed

    def _submit(self, point: int, repetition: int) -> bool:
        """Submit one run. Return False if Slurm accepts no job until another job ends."""
        state = self._state
        attempt = sum((run.point, run.repetition) == (point, repetition) for run in state.runs)
        run = SweepRun(point, repetition, f"{state.name}-{state.token}-{point}.{repetition}.{attempt}")
        state.runs.append(run)
        with deferred_interrupt():
            self._save()
            try:
                run.job_id = self._cluster.submit(state.points[point], run.job_name)
                run.status = RunStatus.SUBMITTED
            except RefusedError as error:
                if _is_limit(error) and len(state.in_flight) > 1:
                    state.runs.remove(run)
                    self._max_in_flight = max(1, len(state.in_flight))
                    return False
                run.status, run.note = RunStatus.FAILED, str(error)
            finally:
                self._save()
        return True

    def _collect(self) -> bool:
        """Read the states and records of the sweep's jobs that were still running at the last call.

        Return whether a job has ended since then.
        """
        runs = {run.job_id: run for run in self._state.in_flight if run.job_id is not None}
        if not runs:
            return False
        statuses = self._cluster.states(list(runs))
        ended = [job_id for job_id in runs if job_id not in statuses or not statuses[job_id].is_active]
        if not ended:
            return False
        jobs = {job.first.job_id: job for job in summarise(self._cluster.records(ended)) if self._is_own(job)}
        settled = [self._settle(runs[job_id], statuses.get(job_id), jobs.get(job_id)) for job_id in ended]
        if any(settled):
            self._save()
        return any(settled)

    def _is_own(self, job: JobUsage) -> bool:
        """Return whether a job has a tag of this sweep.

        Slurm may have used the job id for another job before.
        """
        tag = job.first.tag or ""
        return job.first.step is None and (tag == self._state.tag or tag.startswith(f"{self._state.tag}+"))

    def _settle(self, run: SweepRun, status: JobStatus | None, job: JobUsage | None) -> bool:
        """Store the result of a run of the sweep whose job has ended.

        Return False if the job's state or its energy records have not arrived yet.
        """
        state = status.state if status else (job.job.state or "").split(" ")[0] if job else ""
        if state and state != _COMPLETED:
            run.status, run.note = RunStatus.FAILED, f"the job ended as {state}"
            return True
        reason = _missing(job, status) if state else "Slurm does not know whether the job succeeded"
        if job is not None and not reason:
            run.status = RunStatus.MEASURED
            run.time_s, run.energy_joules = job.elapsed_s, job.energy_joules
            run.quality = job.quality.value if job.quality else None
            run.unmeasured = job.unknown_components
            return True
        waited_s = self._clock() - self._ended.setdefault(run.job_id or 0, self._clock())
        if waited_s < RECORD_WAIT_S and reason != _NO_ENERGY:  # all records have arrived, and they are final
            return False
        run.status, run.note = RunStatus.FAILED, f"{reason} (job {run.job_id})"
        return True


def _missing(job: JobUsage | None, status: JobStatus | None) -> str:
    """Return a text that names the missing data of a job.

    Without these data, the records of the job cannot be used as a measurement.

    The text is empty if nothing is missing.
    """
    if job is None:
        return "no energy record arrived: is senergyd running on the node?"
    nodes = status.nodes if status and status.nodes is not None else job.job.nodes
    if nodes is not None and len(job.records) < nodes:
        return f"energy records of {len(job.records)} of {nodes} nodes arrived"
    if not job.energy_joules:
        return _NO_ENERGY if nodes is not None else "no energy arrived, and the number of nodes is unknown"
    return "" if job.elapsed_s > 0 else "the record has no duration"


def _is_limit(error: RefusedError) -> bool:
    """Return whether sbatch refused a job because the user has too many jobs."""
    return any(text in str(error) for text in ("MaxSubmit", "accounting/QOS policy", "job submit limit"))
