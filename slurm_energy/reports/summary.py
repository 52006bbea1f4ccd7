"""Totals of a cluster's jobs in a time window, as `senergy experiment` shows them.

There is one row of totals for all jobs, and one for each group of jobs. The module only computes; it creates
no text. The figures have the names and definitions of the simulator's summaries, so that a live and a
simulated run can be compared. Energy is the energy of jobs, without idle nodes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.reports.usage import JobUsage
from slurm_energy.slurm.tres import parse_tres

COMPLETED, DEADLINE = "COMPLETED", "DEADLINE"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class WholeJob:
    """A job with all its runs. A job that Slurm has requeued has several runs.

    Attributes:
        runs: runs in the order of their starts; never empty.
    """

    runs: tuple[JobUsage, ...]

    @property
    def last(self) -> JobUsage:
        """The last run of the job. The job's state and names are those of this run."""
        return self.runs[-1]

    @property
    def state(self) -> str:
        """Final state in Slurm, `CANCELLED` without the user's id; `unknown` until Slurm supplies it."""
        return (self.last.job.state or UNKNOWN).split(" ")[0]

    @property
    def energy_joules(self) -> float | None:
        """Joules of all runs, including work that was lost; None if unknown for all runs."""
        known_joules = [joules for run in self.runs if (joules := run.energy_joules) is not None]
        return math.fsum(known_joules) if known_joules else None

    @property
    def submit(self) -> float | None:
        """First submission, Unix seconds; None until Slurm's accounting supplies it."""
        return min((run.job.submit for run in self.runs if run.job.submit is not None), default=None)

    @property
    def start(self) -> float:
        """Unix time at which the first run started.

        The time comes from Slurm's accounting, or else from the first record.
        """
        first = self.runs[0]
        return first.start if first.job.start is None else first.job.start

    @property
    def end(self) -> float:
        """Unix time at which the last run ended.

        The time comes from Slurm's accounting, or else from the last record.
        """
        return self.last.end if self.last.job.end is None else self.last.job.end


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals of a set of jobs. None means unknown or not applicable.

    Attributes:
        jobs: number of jobs.
        states: number of jobs by final state.
        energy_joules: energy of all runs of all jobs. Jobs without a known energy are not included.
        unknown_energy: number of jobs without a known energy.
        lost_joules: energy of runs that ended in a requeue.
        users_joules: energy of the jobs in joules, by user.
        users_jct_s: by user, the mean seconds from submission to end of the user's jobs.
        first_submit, last_end: first submission and last end in Unix seconds.
        jct_s: seconds from submission to end, one value per completed job, in ascending order.
        wait_s: seconds from submission to first start, one value per completed job, in ascending order.
    """

    jobs: int
    states: Mapping[str, int]
    energy_joules: float | None
    unknown_energy: int
    lost_joules: float
    users_joules: Mapping[str, float]
    users_jct_s: Mapping[str, float]
    first_submit: float | None
    last_end: float | None
    jct_s: Sequence[float]
    wait_s: Sequence[float]

    @property
    def completed(self) -> int:
        """Number of jobs that ended in the state `COMPLETED`."""
        return self.states.get(COMPLETED, 0)

    @property
    def makespan_s(self) -> float | None:
        """Seconds from the first submission to the last end; None if unknown."""
        if self.first_submit is None or self.last_end is None:
            return None
        return self.last_end - self.first_submit

    @property
    def jobs_per_hour(self) -> float | None:
        """Completed jobs per hour of the makespan; None if the makespan is unknown."""
        return self.completed / (self.makespan_s / 3600) if self.makespan_s else None

    @property
    def mean_watts(self) -> float | None:
        """Mean power of all jobs together in watts: energy divided by makespan. None if unknown."""
        if self.energy_joules is None or not self.makespan_s:
            return None
        return self.energy_joules / self.makespan_s

    @property
    def mean_jct_s(self) -> float | None:
        """Mean completion time of completed jobs in seconds; None if no job has completed.

        The completion time of a job is its end minus its submission.
        """
        return _mean(self.jct_s)

    @property
    def p95_jct_s(self) -> float | None:
        """95th percentile of the seconds from submission to end, for completed jobs.

        The value is None if no job completed.
        """
        return _quantile(self.jct_s, 0.95)

    @property
    def mean_wait_s(self) -> float | None:
        """Mean waiting time of completed jobs in seconds.

        The waiting time of a job is its first start minus its submission. The value is None if no job has
        completed.
        """
        return _mean(self.wait_s)

    @property
    def p95_wait_s(self) -> float | None:
        """95th percentile of the seconds from submission to first start of completed jobs.

        The value is None if no job completed.
        """
        return _quantile(self.wait_s, 0.95)

    @property
    def edp_js(self) -> float | None:
        """Energy of all jobs times mean completion time, in J s, as in the simulator."""
        if self.energy_joules is None or self.mean_jct_s is None:
            return None
        return self.energy_joules * self.mean_jct_s

    def to_json(self) -> dict[str, Any]:
        """Return the totals by name.

        Keys that also occur in a simulation's summary have the same meaning in both.
        """
        return {
            "jobs": self.jobs,
            "completed": self.completed,
            "states": dict(sorted(self.states.items())),
            "first_submit": self.first_submit,
            "last_end": self.last_end,
            "makespan_s": self.makespan_s,
            "jobs_per_hour": self.jobs_per_hour,
            "job_energy_joules": self.energy_joules,
            "job_kwh": None if self.energy_joules is None else self.energy_joules / JOULES_PER_KWH,
            "job_mean_watts": self.mean_watts,
            "job_edp_js": self.edp_js,
            "jobs_without_energy": self.unknown_energy,
            "lost_kwh": self.lost_joules / JOULES_PER_KWH,
            "mean_jct_s": self.mean_jct_s,
            "p95_jct_s": self.p95_jct_s,
            "mean_wait_s": self.mean_wait_s,
            "p95_wait_s": self.p95_wait_s,
            "max_wait_s": self.wait_s[-1] if self.wait_s else None,
            "deadline_kills": self.states.get(DEADLINE, 0),
            "jain_jct": _jain(self.users_jct_s.values()),
            "jain_energy": _jain(self.users_joules.values()),
        }


def whole_jobs(usages: Iterable[JobUsage]) -> list[WholeJob]:
    """Return one `WholeJob` for each job, with all runs of the job.

    Args:
        usages: jobs as returned by `usage.summarise(..., duplicates=True)`. Entries that describe Slurm
            steps are ignored.
    """
    by_id: dict[tuple[str, int], list[list[JobUsage]]] = defaultdict(list)
    for usage in sorted(usages, key=lambda usage: usage.start):
        if usage.first.step is not None:
            continue
        runs = by_id[usage.first.cluster, usage.first.job_id]
        if runs and _continues(usage, runs[-1][-1]):
            runs[-1].append(usage)
        else:
            runs.append([usage])
    return [WholeJob(tuple(runs)) for jobs in by_id.values() for runs in jobs]


def _continues(run: JobUsage, previous: JobUsage) -> bool:
    """Return whether a run belongs to the same job as the previous run with the same id.

    If job ids restarted, another job with the same id begins with restart count 0.
    """
    later, earlier = run.first, previous.first
    return later.uid == earlier.uid and later.restart_count > earlier.restart_count


def last_runs(usages: Iterable[JobUsage]) -> list[JobUsage]:
    """Return the last run of each job id, with the earlier runs of the same job in `earlier_runs`.

    Runs of another job that had the same id before are left out.

    Args:
        usages: jobs as returned by `usage.summarise(..., duplicates=True)`.
    """
    all_usages = list(usages)
    last = {(usage.first.cluster, usage.first.job_id): usage for usage in all_usages}
    earlier = {id(job.last): job.runs[:-1] for job in whole_jobs(all_usages)}
    return [replace(usage, earlier_runs=earlier.get(id(usage), ())) for usage in last.values()]


def totals(jobs: Sequence[WholeJob]) -> Summary:
    """Return the totals of a set of jobs."""
    with_energy = [(job, joules) for job in jobs if (joules := job.energy_joules) is not None]
    submits = [submit for job in jobs if (submit := job.submit) is not None]
    done = [(job, submit) for job in jobs if job.state == COMPLETED and (submit := job.submit) is not None]
    by_user: dict[str, list[float]] = defaultdict(list)
    energies: dict[str, float] = defaultdict(float)
    for job, submit in done:
        by_user[user_of(job)].append(job.end - submit)
    for job, joules in with_energy:
        energies[user_of(job)] += joules
    lost = (run.energy_joules or 0.0 for job in jobs for run in job.runs[:-1])
    return Summary(
        jobs=len(jobs),
        states=Counter(job.state for job in jobs),
        energy_joules=math.fsum(joules for _, joules in with_energy) if with_energy else None,
        unknown_energy=len(jobs) - len(with_energy),
        lost_joules=math.fsum(lost),
        users_joules=energies,
        users_jct_s={user: math.fsum(spent) / len(spent) for user, spent in by_user.items()},
        first_submit=min(submits, default=None),
        last_end=max((job.end for job in jobs), default=None),
        jct_s=sorted(job.end - submit for job, submit in done),
        wait_s=sorted(max(0.0, job.start - submit) for job, submit in done),
    )


def user_of(job: WholeJob) -> str:
    """Return the name of the job's owner, or the uid as text if the name is unknown."""
    return job.last.job.user or job.last.first.user or str(job.last.first.uid)


def gpu_of(job: WholeJob) -> str | None:
    """Return the GPU type that the job requested, or `any`. None if the job requested no GPUs."""
    gpu_type = parse_tres(job.last.job.requested).gpu_kind
    return gpu_type or ("any" if any(record.gpus for record in job.last.records) else None)


GROUPS: Mapping[str, Callable[[WholeJob], str | None]] = {
    "cluster": lambda job: job.last.first.cluster,
    "account": lambda job: job.last.job.account,
    "user": user_of,
    "partition": lambda job: job.last.job.partition or job.last.first.partition,
    "policy": lambda job: job.last.first.policy,
    "gpu": gpu_of,
    "tag": lambda job: job.last.first.tag,
    "model": lambda job: job.last.first.model,
}
"""Criteria by which jobs can be grouped."""


def grouped(jobs: Iterable[WholeJob], by: str) -> dict[str, Summary]:
    """Return the totals by group, sorted by the group's name.

    Jobs without a value of the criterion come last, under the empty name.

    Args:
        jobs: jobs to group.
        by: criterion of the groups, a key of `GROUPS`.
    """
    groups: dict[str, list[WholeJob]] = defaultdict(list)
    for job in jobs:
        groups[GROUPS[by](job) or ""].append(job)
    return {name: totals(groups[name]) for name in sorted(groups, key=lambda name: (not name, name))}


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _quantile(values: Sequence[float], part: float) -> float | None:
    """Return a quantile of ascending values, interpolated linearly between neighbours; None without values.

    Source: Hyndman, Fan 1996, definition 7, the default of numpy.
    """
    if not values:
        return None
    position = part * (len(values) - 1)
    below = math.floor(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (position - below) * (values[above] - values[below])


def _jain(values: Iterable[float]) -> float | None:
    """Return Jain's fairness index (sum x)^2 / (n sum x^2); None if all values are 0.

    The function computes the same as `scheduling.fairness.jain`, which needs numpy. Reports must also work
    in the base installation, which has no numpy. Values are divided by the largest value, because their
    squares could overflow.
    """
    all_values = [*values]
    largest = max(map(abs, all_values), default=0.0)
    if largest == 0:
        return None
    scaled = [value / largest for value in all_values]
    return math.fsum(scaled) ** 2 / (len(scaled) * math.fsum(value * value for value in scaled))
