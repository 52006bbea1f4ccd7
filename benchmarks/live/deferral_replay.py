"""Simulation of the measured runs of the benchmark benchmarks/deferral_live.py."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from live.deferral import CPUS, HOUR_S, JOB_CPUS, MARGIN_S, NODES, SLOT_S, PlannedJob
from slurm_energy import deferral
from slurm_energy.deferral import DeferralOptions
from slurm_energy.scheduling import policy
from slurm_energy.signals import SignalName
from slurm_energy.signals.feed import SignalFeed, SignalSource
from slurm_energy.signals.forecast import ForecastMode
from slurm_energy.signals.signal_series import SignalSeries
from slurm_energy.simulator import engine
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.schedule_settings import Deferral, ScheduleSettings
from slurm_energy.simulator.workloads.workload import workload

Json = dict[str, Any]


def simulate(jobs: Sequence[PlannedJob], first: Json, apart_s: float, day: Sequence[float]) -> Json:
    """Simulate a run of the benchmark with deferral, for comparison with the measured run.

    The simulation uses measurements of an earlier run without deferral: the launch time and the power of the
    jobs. The jobs of the earlier run are simulated too, because the plans of the run with deferral take
    their arrivals into account.

    Args:
        jobs: the workload, with submission times.
        first: measurements of the run without deferral.
        apart_s: time from the start of the run without deferral to the start of the run with deferral.
        day: prices of a day by hour, from the start of the run with deferral on.
    """
    launch_s = statistics.median(
        row["end_s"] - row["start_s"] - job.sleep_s for job, row in zip(jobs, first["jobs"], strict=True)
    )
    watts = statistics.mean(row["watts"] for row in first["jobs"])
    count = 2 * len(jobs)
    submit = np.array([job.at_s for job in jobs])
    slack = np.array([job.slack_s or np.nan for job in jobs], np.float64)
    work = workload(
        np.arange(count + 1),
        {
            "submit_s": np.append(submit, submit + apart_s),
            "slack_s": np.append(np.full(len(jobs), np.nan), slack),
        },
        {
            "time_s": np.array([job.sleep_s + launch_s for job in (*jobs, *jobs)]),
            "units": np.full(count, JOB_CPUS),
            "power_watts": np.full(count, watts),
        },
    )
    values = np.array([day[hour % len(day)] for hour in range(-48, 96)]) / 1000.0
    series = SignalSeries(apart_s - 48 * HOUR_S, HOUR_S, values)
    feed = SignalFeed(
        {SignalName.PRICE: SignalSource(series, ForecastMode.PERFECT)}, horizon_s=48 * HOUR_S, step_s=SLOT_S
    )
    options = DeferralOptions(slot_s=SLOT_S, start_margin_s=MARGIN_S)
    settings = ScheduleSettings(
        deferral=Deferral(deferral.policy("cheapest"), options, SignalName.PRICE), signals=feed
    )
    result = engine.simulate(work, [NodeKind("n", len(NODES), CPUS)], policy("fcfs"), settings)
    starts = result.accounts.start_s[len(jobs) :]
    ends = starts + work.time_s[len(jobs) :]
    cost = watts / 3.6e6 * np.diff(np.stack([series.integral(starts), series.integral(ends)]), axis=0)[0]
    return {
        "start_s": (starts - apart_s).tolist(),
        "cost": cost.tolist(),
        "watts": watts,
        "launch_s": launch_s,
    }
