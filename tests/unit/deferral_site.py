"""Test substitute for a site that defers jobs.

It contains the planner of deferred jobs and a substitute for slurmctld. Slurm is not needed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy.accounting.decisions import Decision
from slurm_energy.config import Config, parse
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.controller.deferral.planner import DeferralPlanner
from slurm_energy.controller.deferral.signals import signal_columns
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.slurm.queue.columns import PENDING, RUNNING, QueueColumns, queue_columns
from slurm_energy.slurm.queue.job_update import JobUpdater, UpdateResult
from slurm_energy.slurm.queue.node_resources import NodeResources

NOW = 1_790_000_100.0  # 100 s after a quarter of an hour
HOUR = 3600.0
CONFIG = '[price]\nprovider = "csv"\nfile = "/x"\n[deferral]\npolicy = "cheapest"\nstart_margin_s = 0\n'
CHEAP_S = (NOW // HOUR + 3) * HOUR
"""Start of the cheap hours of `prices`."""


def prices(now_s: float = NOW, hours: int = 72) -> GridSeries:
    """Return hourly prices: cheap for two hours from `CHEAP_S` on, expensive otherwise."""
    first = (NOW // HOUR - 24) * HOUR
    samples = []
    for hour in range(hours):
        start = first + hour * HOUR
        cheap = CHEAP_S <= start < CHEAP_S + 2 * HOUR
        samples.append((start, start + HOUR, 0.03 if cheap else 0.12))
    return GridSeries(SeriesSource("csv"), samples, HOUR)


class Slurm(JobUpdater):
    """Stand-in for slurmctld with pending and running jobs, for tests of deferral.

    slurm-energy defers a job by moving its begin time. The stand-in records these moves.
    """

    def __init__(self) -> None:
        super().__init__(1000.0)
        self.jobs: list[dict[str, Any]] = []
        self.now_s = NOW
        self.moves: list[tuple[list[str], int | None]] = []

    def add(self, slack: str = "12h", **more: Any) -> int:
        job_id = 100 + len(self.jobs)
        flags = {"ENERGY_SLACK": slack} if slack else {}
        job = {"job_id": job_id, "submit_s": self.now_s, "eligible_s": self.now_s, "flags": flags}
        job |= {"state": PENDING, "time_limit_s": HOUR, "cpus": 4, "uid": 1000, "user": "alice"}
        self.jobs.append(job | {"restart_count": 0, "gpus": 0, "nodes": 1} | more)
        return job_id

    def read(self) -> QueueColumns:
        names = {name for job in self.jobs for name in job}
        columns = {name: [job.get(name, _DEFAULTS.get(name)) for job in self.jobs] for name in names}
        job_ids = columns.pop("job_id", [])
        columns["dependent"] = [
            job["eligible_s"] > self.now_s or job.get("dependent", False) for job in self.jobs
        ]
        return queue_columns(self.now_s, job_ids, **columns)

    def set_begin(
        self, jobs: Sequence[int], names: Mapping[int, str], begin_unix_s: int | None
    ) -> UpdateResult:
        if jobs:
            self.moves.append(([names[job] for job in jobs], begin_unix_s))
        for job in self.jobs:
            if job["job_id"] in jobs:
                job["eligible_s"] = self.now_s if begin_unix_s is None else float(begin_unix_s)
        return UpdateResult(done=tuple(jobs))

    def requeue(self, names: Mapping[int, str]) -> UpdateResult:
        done = [job for job in names if names[job] == str(job)]
        for job in self.jobs:
            if job["job_id"] in done:
                again = {"state": PENDING, "submit_s": self.now_s, "eligible_s": self.now_s + 121.0}
                job |= again | {"restart_count": job["restart_count"] + 1, "start_s": float("nan")}
        return UpdateResult(done=tuple(done))

    def start(self, job_id: int) -> None:
        self.change(job_id, state=RUNNING, start_s=self.now_s)

    def begin(self, job_id: int) -> float:
        return next(float(job["eligible_s"]) for job in self.jobs if job["job_id"] == job_id)

    def change(self, job_id: int, **fields: Any) -> None:
        next(job for job in self.jobs if job["job_id"] == job_id).update(fields)


_DEFAULTS: dict[str, Any] = {"array_tasks": "", "dependent": False, "held": False, "requeue": True}
_DEFAULTS |= {"deadline_s": float("nan"), "het_job_id": 0, "array_job_id": 0, "array_task_id": -1, "tasks": 1}
_DEFAULTS |= {"start_s": float("nan")}


class Site:
    """Test object: a planner that defers jobs, with a fake Slurm."""

    def __init__(self, toml: str = "", slurm: Slurm | None = None, cpus: int = 0) -> None:
        self.slurm = slurm or Slurm()
        self.times = BeginTimes()
        nodes = [NodeResources("n1", cpus=cpus)] if cpus else []
        self.config: Config = parse(CONFIG + toml)
        parts = (self.slurm, self.slurm, self.times, None, lambda: nodes)
        self.planner = DeferralPlanner(self.config, *parts)  # type: ignore[arg-type]
        self.stored: list[Decision] = []
        self.series: dict[str, GridSeries] = {"price_per_kwh": prices()}

    def cycle(self, now_s: float | None = None) -> None:
        self.slurm.now_s = now_s if now_s is not None else self.slurm.now_s
        now_s = self.slurm.now_s
        cycle = self.planner.plan(signal_columns(self.config, self.series, now_s), now_s)
        self.stored += cycle.decisions()
        ended, problems = self.planner.apply(cycle)
        self.stored += [job.release_decision(now_s, "x") for job in ended]
        assert problems == ()

    def run_until(self, end_s: float, step_s: float = 60.0) -> None:
        now_s = self.slurm.now_s
        while now_s < end_s:
            now_s = min(end_s, now_s + step_s)
            self.cycle(now_s)
