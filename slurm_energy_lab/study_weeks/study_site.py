"""Simulated HPC site for studies over synthetic weeks: its scheduling and its running jobs.

The module also makes the job and energy records that slurm-energy reads.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.config import Config
from slurm_energy.policies.catalogue import OBJECTIVES
from slurm_energy_lab.study_weeks.arrivals import DAY_S, NODES_PER_PARTITION, WeekJob
from slurm_energy_lab.study_weeks.program_truth import PARTITION_PROFILES, node_idle_watts, program_truth
from slurm_energy_lab.virtual_cluster.job_queue import JobRelease, start_jobs
from slurm_energy_lab.virtual_cluster.workload import ClusterJob

HOUR_S = 3600.0
_METER_ERROR, _JOB_METER_ERROR, _SPEED_ERROR = 0.003, 0.01, 0.01
_AMBIENT_SWING, _AMBIENT_DAYS = 0.015, 0.008
"""Change of power with the room's temperature: over the day, and from day to day."""


@dataclass(frozen=True, slots=True)
class SiteMode:
    """Settings of a simulated site that decide how its jobs run.

    Attributes:
        tuned: partitions whose jobs may be tuned.
        policy: energy policy of jobs without an entry in `partition_policy` or `user_policy`.
        partition_policy, user_policy: energy policy by partition and by user. The policy of the user takes
            precedence.
        slowdown_limit: maximum increase of the run time of jobs with the policy `energy`, as a fraction of
            the untuned run time.
        starved_account: Slurm account whose jobs do not start. This simulates a fault that a policy causes;
            None means no fault.
    """

    tuned: frozenset[str] = frozenset()
    policy: str = "monitor"
    partition_policy: Mapping[str, str] = field(default_factory=dict)
    user_policy: Mapping[str, str] = field(default_factory=dict)
    slowdown_limit: float = 0.05
    starved_account: str | None = None

    def objective(self, job: WeekJob) -> str:
        """Return the quantity that tuning of a job minimises (objective); empty if the job is not tuned."""
        policy = self.user_policy.get(job.user, self.partition_policy.get(job.partition, self.policy))
        return policy if policy in OBJECTIVES and job.partition in self.tuned else ""


def tuned_mode(slowdown_limit: float = 0.05) -> SiteMode:
    """Return the settings (mode) of the simulated site with which all jobs are tuned.

    The objective of the tuning is `energy`.
    """
    return SiteMode(frozenset(PARTITION_PROFILES), "energy", slowdown_limit=slowdown_limit)


def site_mode(config: Config, fault: str | None = None) -> SiteMode:
    """Return the settings of the simulated site (`SiteMode`) that result from a configuration.

    Args:
        config: the site's configuration.
        fault: Slurm account whose jobs do not start while the configuration tunes any jobs. This fault is
            inserted on purpose for a test. None means no fault.
    """
    tuning, defaults = config.tuning, config.defaults
    tuned = frozenset(name for name in PARTITION_PROFILES if tuning.partition.get(name, tuning.mode) == "on")
    policies = {defaults.policy, *defaults.partition.values(), *defaults.user.values()}
    applies = bool(tuned) and bool(policies & set(OBJECTIVES))
    return SiteMode(
        tuned,
        defaults.policy,
        defaults.partition,
        defaults.user,
        tuning.slowdown_limit_percent / 100.0,
        fault if applies else None,
    )


@dataclass(slots=True)
class PlacedWeekJob:
    """A job that is placed on nodes.

    Attributes:
        job: job as it was submitted.
        nodes: names of the job's nodes.
        start_s, end_s: start of the job, and its end, which follows from the job's speed.
        watts: power of each of the job's nodes, before the influence of the room's temperature.
        time_ratio: run time divided by the run time of the untuned job.
        is_tuned: whether the job runs tuned.
    """

    job: WeekJob
    nodes: tuple[str, ...]
    start_s: float
    end_s: float
    watts: float
    time_ratio: float
    is_tuned: bool


@dataclass(slots=True)
class SiteTotals:
    """True energy of the simulated HPC site and completed work of its jobs in a period.

    Attributes:
        joules: energy of all nodes.
        work_node_s: completed work in node-seconds, where one node-second is the work of a node in one
            second without tuning.
    """

    joules: float = 0.0
    work_node_s: float = 0.0


class StudySite:
    """Four nodes in two partitions that run jobs under changing settings.

    Args:
        seed: seed of the measurement errors and of the room's temperature.
        jobs: the jobs in the order of their submission.
        epoch_s: Unix time of the start, a Monday at midnight.
    """

    def __init__(self, seed: int, jobs: Sequence[WeekJob], epoch_s: float) -> None:
        self.epoch_s = epoch_s
        self.now_s = 0.0
        self._seed = seed
        self._arriving = list(reversed(jobs))
        self._queue: list[WeekJob] = []
        self._running: dict[int, PlacedWeekJob] = {}
        self._started: list[PlacedWeekJob] = []
        self._ends: list[tuple[float, int]] = []

    def run_until(self, time_s: float, mode: SiteMode) -> None:
        """Run the simulated site until a time in seconds since the start.

        `mode` contains the settings of the site. They decide how the jobs run that start in this time.
        """
        self._start_jobs(mode)
        while True:
            arrival_s = self._arriving[-1].submit_s if self._arriving else math.inf
            end_s = self._ends[0][0] if self._ends else math.inf
            event_s = min(arrival_s, end_s)
            if event_s > time_s:
                break
            self.now_s = event_s
            if end_s <= arrival_s:
                del self._running[heapq.heappop(self._ends)[1]]
            else:
                self._queue.append(self._arriving.pop())
            self._start_jobs(mode)
        self.now_s = time_s

    def job_rows(self) -> list[dict[str, Any]]:
        """Return all submitted jobs as rows of a study's jobs table."""
        rows = [self._row(entry.job, entry) for entry in self._started]
        return rows + [self._row(job, None) for job in self._queue]

    def energy_rows(self) -> list[tuple[float, float, float]]:
        """Return the measured joules of all nodes in each full hour.

        A row has begin and end of the hour in Unix seconds, and the joules.
        """
        hours = int(self.now_s // HOUR_S)
        joules = self._hourly_joules(hours)
        rows = []
        for hour, value in enumerate(joules):
            begin_s = self.epoch_s + hour * HOUR_S
            rows.append((begin_s, begin_s + HOUR_S, value * self._error("meter", hour, _METER_ERROR)))
        return rows

    def totals(self, begin_s: float, end_s: float) -> SiteTotals:
        """Return the true energy and the completed work between two full hours.

        Args:
            begin_s: first hour, in seconds since the start.
            end_s: last hour, in seconds since the start.
        """
        hours = self._hourly_joules(int(end_s // HOUR_S))
        totals = SiteTotals(sum(hours[int(begin_s // HOUR_S) :]))
        for entry in self._started:
            overlap_s = min(entry.end_s, end_s) - max(entry.start_s, begin_s)
            totals.work_node_s += max(0.0, overlap_s) * entry.job.nodes / entry.time_ratio
        return totals

    def job_totals(self, begin_s: float, end_s: float, partition: str) -> SiteTotals:
        """Return true energy and work of those jobs of a partition that started between two times."""
        totals = SiteTotals()
        for entry in self._started:
            if entry.job.partition == partition and begin_s <= entry.start_s < end_s:
                totals.joules += self._job_joules(entry)
                totals.work_node_s += entry.job.seconds * entry.job.nodes
        return totals

    def _start_jobs(self, mode: SiteMode) -> None:
        if not self._queue:
            return
        waiting = {job.job_id: job for job in self._queue}
        queue = [_cluster_job(job) for job in self._queue if job.account != mode.starved_account]
        releases = [
            JobRelease(entry.start_s + entry.job.limit_s, entry.nodes) for entry in self._running.values()
        ]

        def start(job: ClusterJob, nodes: tuple[str, ...]) -> bool:
            self._start(waiting[job.job_id], nodes, mode)
            return True

        started = {job.job_id for job in start_jobs(queue, self._free_nodes(), releases, self.now_s, start)}
        self._queue = [job for job in self._queue if job.job_id not in started]

    def _start(self, job: WeekJob, nodes: tuple[str, ...], mode: SiteMode) -> None:
        objective = mode.objective(job)
        truth = program_truth(job.partition, job.program, objective, mode.slowdown_limit)
        idle = node_idle_watts(job.partition)
        watts = idle + (truth.watts - idle) * job.power_factor
        end_s = self.now_s + job.seconds * truth.time_ratio
        entry = PlacedWeekJob(job, nodes, self.now_s, end_s, watts, truth.time_ratio, bool(objective))
        self._running[job.job_id] = entry
        self._started.append(entry)
        heapq.heappush(self._ends, (end_s, job.job_id))

    def _free_nodes(self) -> dict[str, list[str]]:
        busy = {name for entry in self._running.values() for name in entry.nodes}
        return {
            partition: [
                name
                for number in range(1, NODES_PER_PARTITION + 1)
                if (name := f"{partition}{number}") not in busy
            ]
            for partition in PARTITION_PROFILES
        }

    def _row(self, job: WeekJob, entry: PlacedWeekJob | None) -> dict[str, Any]:
        row: dict[str, Any] = {
            "job_id": str(job.job_id),
            "name": job.name,
            "user": job.user,
            "account": job.account,
            "partition": job.partition,
            "state": "PENDING" if entry is None else "RUNNING",
            "nodes": job.nodes,
            "submit_s": round(self.epoch_s + job.submit_s),
            "time_limit_s": job.limit_s,
        }
        if entry is None:
            return row
        row["start_s"] = round(self.epoch_s + entry.start_s)
        if entry.end_s <= self.now_s:
            joules = self._job_joules(entry) * self._error("job", job.job_id, _JOB_METER_ERROR)
            row |= {"state": "COMPLETED", "end_s": round(self.epoch_s + entry.end_s), "energy_joules": joules}
        if entry.is_tuned:
            row["speed"] = self._error("speed", job.job_id, _SPEED_ERROR) / entry.time_ratio
        return row

    def _job_joules(self, entry: PlacedWeekJob) -> float:
        return sum(
            seconds * entry.watts * entry.job.nodes * self._ambient(hour)
            for hour, seconds in _hours(entry.start_s, entry.end_s)
        )

    def _hourly_joules(self, hours: int) -> list[float]:
        idle = sum(NODES_PER_PARTITION * node_idle_watts(name) for name in PARTITION_PROFILES) * HOUR_S
        joules = [idle] * hours
        for entry in self._started:
            extra = (entry.watts - node_idle_watts(entry.job.partition)) * entry.job.nodes
            for hour, seconds in _hours(entry.start_s, min(entry.end_s, self.now_s)):
                if hour < hours:
                    joules[hour] += seconds * extra
        return [value * self._ambient(hour) for hour, value in enumerate(joules)]

    def _ambient(self, hour: int) -> float:
        """Return the factor by which the room temperature changes the power of the site in an hour.

        `hour` is the number of the hour since the start of the simulation.
        """
        day = random.Random(f"ambient/{self._seed}/{hour * HOUR_S // DAY_S}").gauss(0.0, _AMBIENT_DAYS)
        return 1.0 + day - _AMBIENT_SWING * math.cos(2.0 * math.pi * (hour % 24 - 3.0) / 24.0)

    def _error(self, quantity: str, number: int, deviation: float) -> float:
        return math.exp(random.Random(f"{quantity}/{self._seed}/{number}").gauss(0.0, deviation))


def _hours(begin_s: float, end_s: float) -> list[tuple[int, float]]:
    """Split a time span at full hours.

    Each entry of the result is the number of an hour, and the seconds of the span in this hour.
    """
    parts = []
    at_s = begin_s
    while at_s < end_s:
        hour = int(at_s // HOUR_S)
        until_s = min(end_s, (hour + 1) * HOUR_S)
        parts.append((hour, until_s - at_s))
        at_s = until_s
    return parts


def _cluster_job(job: WeekJob) -> ClusterJob:
    return ClusterJob(
        job.job_id, job.submit_s, job.partition, job.program, job.nodes, job.seconds, job.limit_s
    )


def true_saving(seed: int, jobs: Sequence[WeekJob], mode: SiteMode, first_day: int, days: int) -> float:
    """Return the true relative change of energy per unit of work that the settings `mode` cause.

    The same jobs run with and without these settings.

    Args:
        seed: seed of the room's temperature.
        jobs: all jobs from day 0.
        mode: settings whose effect is computed.
        first_day: first day with the settings, and first day of the comparison.
        days: number of days that are simulated.
    """
    ratios = []
    for used in (SiteMode(), mode):
        site = StudySite(seed, jobs, 0.0)
        site.run_until(first_day * DAY_S, SiteMode())
        site.run_until((first_day + days) * DAY_S, used)
        totals = site.totals(first_day * DAY_S, (first_day + days) * DAY_S)
        ratios.append(totals.joules / totals.work_node_s)
    return ratios[1] / ratios[0] - 1.0
