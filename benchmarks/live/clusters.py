"""Parts of the benchmark clusters_live.py: workload, prices, costs and simulation.

All times are seconds of the lab, where time passes faster.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.placement.choice import options_of
from slurm_energy.placement.sites import Floats, Site
from slurm_energy.scheduling import policy
from slurm_energy.signals import SignalColumns, SignalForecast
from slurm_energy.simulator import engine
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.sites.site_placement import SiteNodes, plan_jobs
from slurm_energy.simulator.sites.site_workload import on_all_sites, part_at_site
from slurm_energy.simulator.workloads.workload import workload

Json = dict[str, Any]
SPEED = 180.0
HOUR_S = 3600.0 / SPEED
CPUS = 16
HOURS = 96
HOURS_BEFORE = 24
MAX_DELAY_S = 3 * HOUR_S
BANDWIDTH_MBIT_PER_S = 1000.0 * SPEED
TRANSFER_KWH_PER_GB = 0.03 / SPEED
WATTS_PER_CPU = 7.5
"""Power that senergyctld predicts for a CPU of which it knows nothing."""
SYNTHETIC = {
    "east": (
        92,
        88,
        85,
        84,
        86,
        95,
        118,
        139,
        128,
        96,
        70,
        48,
        40,
        38,
        45,
        66,
        92,
        124,
        142,
        131,
        118,
        108,
        100,
        95,
    ),
    "west": (
        70,
        88,
        121,
        138,
        130,
        116,
        104,
        96,
        91,
        88,
        86,
        85,
        87,
        92,
        104,
        112,
        96,
        72,
        52,
        41,
        36,
        38,
        47,
        58,
    ),
}
"""Prices per MWh of two zones by hour (UTC): days with much solar power, eight hours apart."""


@dataclass(frozen=True, slots=True)
class ZoneJob:
    """A job of the workload.

    Attributes:
        at_s: time of the job's submission, in seconds after the start.
        home: the cluster at whose login node the job is submitted.
        cpus: number of CPUs.
        minutes: time limit in minutes of lab time. Half of the time limit is the predicted run
            time.
        sleep_s: run time of the script.
        data_gb: data to transfer if the job runs at another cluster.
    """

    at_s: float
    home: str
    cpus: int
    minutes: int
    sleep_s: int
    data_gb: float

    @property
    def predicted_s(self) -> float:
        """Run time that senergyctld predicts: half the time limit."""
        return 30.0 * self.minutes


def draw(count: int, hours: float, names: Sequence[str], seed: int) -> list[ZoneJob]:
    """Return random jobs whose submissions are spread evenly over the given hours.

    The home cluster of a job is the cluster at whose login node the job is submitted. It is drawn at random
    with equal probabilities.
    """
    rng = random.Random(seed)
    jobs = []
    for _ in range(count):
        minutes = rng.choice((1, 1, 2))
        jobs.append(
            ZoneJob(
                at_s=rng.uniform(0, hours) * HOUR_S,
                home=rng.choice(list(names)),
                cpus=rng.randint(1, 4),
                minutes=minutes,
                sleep_s=round(30.0 * minutes * rng.uniform(0.8, 0.97)),
                data_gb=round(rng.expovariate(1 / 0.2), 3),
            )
        )
    return sorted(jobs, key=lambda job: job.at_s)


def prices(path: Path, day: str) -> tuple[float, ...]:
    """Return the prices of one day by hour (UTC) from a file with `Datetime (UTC)` and `Price (.../MWh)`."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    column = next(name for name in rows[0] if name.startswith("Price"))
    wanted = [row for row in rows if row["Datetime (UTC)"].startswith(day)]
    hours = {datetime.fromisoformat(row["Datetime (UTC)"]).astimezone(UTC).hour: row for row in wanted}
    if len(hours) != 24:
        raise SystemExit(f"clusters_live.py: {path}: {len(hours)} hours of {day}, 24 are needed")
    return tuple(float(hours[hour][column]) for hour in range(24))


def hourly(day: Sequence[float], begin_hour: int) -> Floats:
    """Return the electricity prices per kWh of successive hours, made from the prices of one day.

    The 24 hourly prices of the day repeat. The first returned price is that of the hour `HOURS_BEFORE`
    hours before the hour `begin_hour`.
    """
    return np.array([day[(begin_hour + at) % 24] / 1000.0 for at in range(-HOURS_BEFORE, HOURS)])


def mean_price(values: Floats, start_s: float, end_s: float) -> float:
    """Return the mean electricity price per kWh between two times.

    The times are in seconds after the start of the benchmark.
    """
    edges = HOUR_S * np.arange(-HOURS_BEFORE, HOURS)
    overlap = np.clip(np.minimum(edges + HOUR_S, end_s) - np.maximum(edges, start_s), 0.0, None)
    return float(np.sum(values * overlap) / np.sum(overlap))


def cost(job: ZoneJob, cluster: str, start_s: float, end_s: float, values: Mapping[str, Floats]) -> float:
    """Return the cost of a job on a cluster and of the transfer of its data from its home cluster.

    The cost is energy times the mean price during the run or the transfer.
    """
    end_s = max(end_s, start_s + 0.1)
    kwh = WATTS_PER_CPU * job.cpus * (end_s - start_s) / 3.6e6
    total = kwh * mean_price(values[cluster], start_s, end_s)
    if cluster != job.home:
        transfer_s = max(0.1, job.data_gb * 8000.0 / BANDWIDTH_MBIT_PER_S)
        for end in (cluster, job.home):
            price = mean_price(values[end], job.at_s, job.at_s + transfer_s)
            total += job.data_gb * TRANSFER_KWH_PER_GB * price
    return total


def simulate(
    jobs: Sequence[ZoneJob],
    rule: str,
    values: Mapping[str, Floats],
    launch_s: float,
    clusters: Sequence[str] = (),
) -> list[Json]:
    """Simulate jobs on several clusters, and return cluster, start, end and cost of each job.

    Args:
        jobs: the workload.
        rule: placement policy that chooses the cluster of each job, or `round-robin`.
        values: electricity prices over time, by cluster.
        launch_s: seconds from the start of a job to the start of its script.
        clusters: the cluster of each job. If this list is not empty, `rule` is not used.
    """
    names, count = list(values), len(jobs)
    work = workload(
        np.arange(count + 1),
        {
            "submit_s": np.array([job.at_s for job in jobs]),
            "time_limit_s": np.array([60.0 * job.minutes for job in jobs]),
        },
        {
            "units": np.array([job.cpus for job in jobs]),
            "time_s": np.array([job.sleep_s + launch_s for job in jobs]),
            "predicted_time_s": np.array([job.predicted_s for job in jobs]),
            "power_watts": np.array([WATTS_PER_CPU * job.cpus for job in jobs]),
        },
    )
    work = on_all_sites(work, [(at,) for at in range(len(names))], [1.0] * len(names), [1.0] * len(names))
    sites = [
        Site(
            name,
            SignalColumns(
                -HOURS_BEFORE * HOUR_S,
                HOUR_S,
                price_per_kwh=SignalForecast(values[name], np.zeros(len(values[name])), "known"),
            ),
            bandwidth_bytes_per_s=BANDWIDTH_MBIT_PER_S * 1e6 / 8,
            transfer_kwh_per_gb=TRANSFER_KWH_PER_GB,
        )
        for name in names
    ]
    home = np.array([names.index(job.home) for job in jobs])
    data_bytes = np.array([job.data_gb * 1e9 for job in jobs])
    if clusters:
        chosen = np.array([names.index(name) for name in clusters])
    elif rule == "round-robin":
        chosen = np.arange(count) % len(names)
    else:
        options = options_of(rule, {}, max_delay_s=MAX_DELAY_S, min_saving=0.05, confidence=1.0)
        nodes = [SiteNodes((at,), CPUS) for at in range(len(names))]
        plan = plan_jobs(work, sites, nodes, home, data_bytes, options, HOURS * HOUR_S, 0.0)
        chosen = plan.site
    rows: list[Json] = [{} for _ in jobs]
    for at, name in enumerate(names):
        own = np.flatnonzero(chosen == at)
        if not len(own):
            continue
        part = part_at_site(work, own, work.submit_s[own], (at,))
        settings = ScheduleSettings()
        accounts = engine.simulate(part, [NodeKind(name, 1, CPUS)], policy("fcfs"), settings).accounts
        for job, start_s, end_s in zip(own.tolist(), accounts.start_s, accounts.end_s, strict=True):
            begin_s, finish_s = float(start_s), float(end_s)
            paid = cost(jobs[job], name, begin_s, finish_s, values)
            rows[job] = {"cluster": name, "start_s": begin_s, "end_s": finish_s, "cost": paid}
    return rows
