"""Tests of a benchmark that runs jobs on a lab cluster and compares them with a simulation.

The tests cover the jobs of this experiment (live_energy), the inputs of its simulation, and its tables. The
experiment itself is not run, because it takes half an hour.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from live import replay, tables, workload
from live.workload import Shape, Wish

IDLE = {
    "a1": {"node": 650.0, "gpu": 392.0, "cpu": 56.0},
    "h1": {"node": 1414.0, "gpu": 560.0, "cpu": 180.0},
}
LAUNCH_S = 0.5


def calibration():
    """Return calibration runs of all kinds of jobs on an A100 node.

    A run takes 10 s on four GPUs and more on fewer GPUs, in inverse proportion. It draws 300 W per
    GPU.
    """
    kinds = list(workload.kinds_of_jobs())
    records = [(40 / shape.gpus, 300 * shape.gpus) for _, shape in kinds]
    jobs = [
        {"model": model, "shape": shape.text, "record": {"elapsed_s": s, "energy_joules": s * watts}}
        for (model, shape), (s, watts) in zip(kinds, records, strict=True)
    ]
    return {"idle_watts": IDLE, "launch_s": LAUNCH_S, "jobs": jobs}


def test_the_same_numbers_draw_the_same_jobs():
    jobs = workload.draw(40, 3, 1.0)
    assert jobs == workload.draw(40, 3, 1.0) != workload.draw(40, 4, 1.0)
    assert jobs[0].submit_s == 0 and [job.number for job in jobs] == list(range(1, 41))
    assert {job.home for job in jobs} == {Shape("a100", 4), Shape("h100", 4)}
    assert {job.model for job in jobs} == set(workload.KERNELS)
    twice = workload.draw(40, 3, 2.0)
    assert twice[-1].submit_s == pytest.approx(jobs[-1].submit_s / 2)


def test_users_name_a_kind_or_none_or_offer_shapes():
    job = workload.draw(1, 1, 1.0)[0]
    assert f"--gres={job.home.text}" in job.sbatch(Wish.KIND)
    assert "--gres=gpu:4" in job.sbatch(Wish.ANY)
    assert "--energy-alternatives=gpu:a100:4,gpu:a100:8,gpu:h100:2,gpu:h100:4" in job.sbatch(Wish.SHAPES)
    counts = {wish: len(job.offered(wish)) for wish in Wish}
    assert counts == {Wish.KIND: 1, Wish.ANY: 2, Wish.SHAPES: 4}


@pytest.mark.slow
@pytest.mark.parametrize("wish", list(Wish))
def test_the_simulation_holds_gpus_for_launch_and_run_and_adds_up_to_the_measured_joules(tmp_path, wish):
    jobs = workload.draw(5, 1, 1.0)
    scenario = replay.write(tmp_path, calibration(), jobs, wish)
    with (tmp_path / "submissions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(job.offered(wish)) for job in jobs)
    row = next(row for row in rows if row["units"] == "4" and row["hardware"] == "a100") if rows else {}
    time_s, watts = float(row["time_s"]), float(row["power_watts"])
    assert time_s == pytest.approx(10 + LAUNCH_S)
    unit_watts = (392 + (650 - 392 - 56) / 2) / 8
    job_watts = (56 + (650 - 392 - 56) / 2) * workload.CPUS / 64
    beyond_idle = 12_000 - 10 * (4 * unit_watts + job_watts)
    assert (watts - 4 * unit_watts) * time_s == pytest.approx(beyond_idle, rel=1e-3)
    summary = replay.simulate(scenario, "zeus")
    assert summary["completed"] == 5
    assert summary["energy_kwh"] > summary["job_kwh"] > 0


def test_the_tables_tell_differences_from_what_was_measured():
    total = {
        "job_energy_joules": 9e5,
        "completed": 80,
        "mean_jct_s": 20.0,
        "p95_jct_s": 60.0,
        "mean_wait_s": 9.0,
    }
    run = {"makespan_s": 250.0, "cluster_joules": 1.5e6, "report": {"total": total}}
    summary = {"makespan_s": 255.0, "energy_kwh": 1.515e6 / 3.6e6, "job_kwh": 0.25, "completed": 80}
    summary |= {"mean_jct_s": 21.0, "p95_jct_s": 60.0, "mean_wait_s": 9.0}
    better = run | {"cluster_joules": 1.2e6}
    lines = tables.lines({"multifactor": run, "zeus": better}, {"multifactor": summary, "zeus": summary})
    assert "| multifactor | 250.0 | 1500 | 900.0 | 1152 | 20.0 | 60.0 | 9.0 | 18.0 |" in lines
    assert any(line.startswith("| multifactor | 255.0 (+2.0 %) | 1515 (+1.0 %)") for line in lines)
    assert lines[-1].startswith("zeus against multifactor: cluster's energy -20.0 %")
