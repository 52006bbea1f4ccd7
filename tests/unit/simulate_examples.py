"""Example scenarios for tests of `senergy simulate`."""

from __future__ import annotations

import math
from pathlib import Path

from slurm_energy.simulator.workloads.workload_generator import ShapePrediction

JOBS = "job_id,user,submit_s,units,time_s,power_watts,deadline_s\n" + "\n".join(
    f"{i},u{i % 3},{10 * i},{1 + i % 4},{60 + 7 * (i % 5)},{100 * (1 + i % 4)},"
    + (f"{10 * i + 400}" if i % 6 == 0 else "")
    for i in range(40)
)
SCENARIO = """\
title = "A small day"
[cluster.n]
nodes = 2
units = 4
idle_watts = 200.0
unit_idle_watts = 20.0
[workload]
file = "jobs.csv"
[schedule]
policies = ["fcfs", "zeus"]
discipline = "easy"
[power]
budget_watts = 1000.0
price_file = "price.csv"
"""
MODELS = """\
[cluster.a]
nodes = 1
units = 8
[cluster.b]
nodes = 1
units = 8
[workload]
arrivals_per_s = 0.01
hours = 2.0
urgent_share = 0.2
users = 4
majority_share = 0.5
prediction_error = 0.1
[[model]]
name = "x"
profile = "x"
gpus = [1, 2, 4]
batches = [32, 64]
[[model]]
profile = "y"
gpus = [2]
batches = [64]
rigid_gpus = 2
rigid_batch = 64
[schedule]
policies = ["pollux", "zeus"]
discipline = "packing"
interval_s = 1.0
seeds = 3
"""


def write_scenarios(folder: Path) -> Path:
    """Write the scenarios with their jobs and prices to a folder. Return the folder."""
    (folder / "jobs.csv").write_text(JOBS)
    (folder / "price.csv").write_text("time_s,price\n0,100\n300,50\n900,50\n")
    (folder / "small.toml").write_text(SCENARIO)
    (folder / "models.toml").write_text(MODELS)
    return folder


def predict(model, hardware, gpus, batch, cap_watts=math.inf):
    """Return the predicted time and power of a training job on a kind and number of GPUs.

    Twice as many GPUs are 1.8 times as fast. Hardware `b` is twice as fast and draws twice the power.
    """
    fast = 2.0 if hardware == "b" else 1.0
    time_s = 600.0 / (fast * gpus**0.85) * (32 / batch) ** 0.1
    return ShapePrediction(time_s, 300.0 * fast * gpus, 400.0 * fast * gpus)
