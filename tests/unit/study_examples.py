"""Synthetic jobs and energy of several weeks, for the tests of energy studies.

The jobs follow a weekly pattern.
"""

from __future__ import annotations

from datetime import date, datetime
from zoneinfo import ZoneInfo

import numpy as np

from slurm_energy.study.data.jobs_table import JobsTable, jobs_table
from slurm_energy.study.data.kpis import EnergySeries

MONDAY = date(2026, 3, 2)
NODES = 12
IDLE_WATTS = 100.0
WORKDAY_JOBS, WEEKEND_JOBS = 40, 15


def begin_s(day: date = MONDAY) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo("UTC")).timestamp()


def week_jobs(days: int = 28, seed: int = 1, noise: float = 0.05, share: float = 1.0) -> JobsTable:
    """Return jobs of two classes and three accounts. Each waits up to an hour, and takes one or two nodes."""
    random = np.random.default_rng(seed)
    rows: dict[str, list[object]] = {name: [] for name in ("submit_s", "name", "account", "user", "nodes")}
    for number in range(days):
        is_weekend = number % 7 >= 5
        for _ in range(round(share * (WEEKEND_JOBS if is_weekend else WORKDAY_JOBS))):
            rows["submit_s"].append(begin_s() + 86400.0 * number + float(random.uniform(0, 82800)))
            long = random.random() < 0.3
            rows["name"].append("train" if long else "analyse")
            rows["account"].append(["physics", "biology", "chemistry"][int(random.integers(3))])
            rows["user"].append("alice" if long else "bob")
            rows["nodes"].append(2.0 if long else 1.0)
    order = np.argsort(np.array(rows["submit_s"], np.float64))
    columns = {name: np.array(values)[order] for name, values in rows.items()}
    count = len(order)
    is_long = columns["name"] == "train"
    start_s = columns["submit_s"] + random.uniform(0, 3600, count)
    run_s = np.where(is_long, 5400.0, 900.0) * random.uniform(0.8, 1.2, count)
    watts = np.where(is_long, 500.0, 250.0) * (1 + noise * random.standard_normal(count))
    return jobs_table(
        **columns,
        job_id=[str(number) for number in range(1, count + 1)],
        partition=["batch"] * count,
        state=["COMPLETED"] * count,
        cpus=columns["nodes"] * 16,
        gpus=np.zeros(count),
        start_s=start_s,
        end_s=start_s + run_s,
        time_limit_s=run_s * 2,
        energy_joules=watts * columns["nodes"] * run_s,
    )


def node_energy(jobs: JobsTable, days: int = 28) -> EnergySeries:
    """Return the energy of all nodes in each hour: energy of jobs plus idle energy of free nodes."""
    from slurm_energy.study.data.days import spread

    edges = begin_s() + 3600.0 * np.arange(24 * days + 1, dtype=np.float64)
    held_s = spread(jobs.start_s, jobs.end_s, jobs.nodes * jobs.run_s, edges)
    joules = spread(jobs.start_s, jobs.end_s, jobs.energy_joules, edges)
    joules += IDLE_WATTS * (NODES * 3600 - held_s)
    return EnergySeries(edges[:-1], edges[1:], joules, "test")
