"""Run single simulations for the benchmark of scheduling policies.

A simulation applies one policy to one part of a family of workloads (a job trace or generated jobs),
with a given load of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from families import FAMILIES, POISSON, TraceRows

from slurm_energy.scheduling import policy as policy_named
from slurm_energy.simulator import engine
from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator.model_predictions import predict
from slurm_energy.simulator.scenario import Scenario
from slurm_energy.simulator.workloads.workload import Workload, workload
from slurm_energy.simulator.workloads.workload_generator import generate


@dataclass(frozen=True)
class Run:
    """Identification of one simulation of the benchmark by its workload, policy and settings."""

    family: str
    load: float
    part: int
    tuning: bool
    policy: str
    weights: tuple[tuple[str, float], ...] = ()


_SCENARIO = """
extends = "replay"
[workload]
load = 0.0
part_jobs = 0
deadline_factor = 3.5
[schedule]
horizon_hours = 0.0
interval_s = 10.0
"""
_MODELS_RATE_PER_S = 0.01
"""Arrival rate with which jobs of the family `poisson` are drawn, before they are stretched to the load."""


def _scenario(run: Run, caps: Sequence[float]) -> Scenario:
    base = scenarios.parse(_SCENARIO, Path("compare.toml"))
    models = tuple(replace(model, caps_watts=list(caps)) for model in base.models)
    return replace(base, models=models, schedule=replace(base.schedule, weights=dict(run.weights)))


def jobs_of(base: Scenario, run: Run, folder: Path, jobs: int) -> Workload:
    """Return the jobs of one run of the benchmark.

    The jobs are generated, or they are the jobs of a trace. Each job of the trace is treated as a training
    of one of the scenario's models. The arrivals are adapted to the load of the run.

    Raises:
        IndexError: the trace does not have the part that the run names.
    """
    seed = 10_000 * run.tuning + run.part
    if run.family == POISSON:
        hours = jobs / (3600 * _MODELS_RATE_PER_S)
        section = replace(base.workload, arrivals_per_s=_MODELS_RATE_PER_S, hours=hours)
        work = generate(replace(base, workload=section), seed, predict)
    else:
        rows = FAMILIES[run.family].rows(folder, run.part, run.tuning, jobs)
        work = generate(base, seed, predict, _trace(rows))
    return _at_load(work, base, run.load)


def _trace(rows: TraceRows) -> Workload:
    count = len(rows.submit_s)
    return workload(
        np.arange(count + 1),
        {"submit_s": rows.submit_s},
        {"units": rows.units, "time_s": rows.time_s},
        users=("user",),
        names=("",) * count,
    )


def _at_load(work: Workload, base: Scenario, load: float) -> Workload:
    """Return the jobs with stretched arrival times, so that the cluster has the offered load `load`.

    The offered load is a ratio of two times. The first time is the time in which the whole cluster could run
    all jobs without gaps. Each job then runs in the shape (set of resources) with the least GPU time on its
    kind of nodes, and the jobs are divided between the two kinds of nodes in the best way. The second time
    is the time from the first to the last arrival.
    """
    total = np.array([kind.nodes * kind.units for kind in base.nodes()], float)
    span_s = float(work.submit_s[-1] - work.submit_s[0])
    if span_s <= 0:
        raise IndexError("all jobs of the part arrive at the same time: it has no load")
    factor = _need_s(work, total) / load / span_s
    submit_s = (work.submit_s - work.submit_s[0]) * factor
    return replace(work, submit_s=submit_s, deadline_s=work.deadline_s - work.submit_s + submit_s)


def _need_s(work: Workload, total: np.ndarray) -> float:
    gpu_s = work.units * work.time_s / total[work.hardware]
    least = np.full((len(total), work.count), np.inf)
    job = np.repeat(np.arange(work.count), np.diff(work.first))
    for kind in range(len(total)):
        of_kind = work.hardware == kind
        np.minimum.at(least[kind], job[of_kind], gpu_s[of_kind])
    order = np.argsort(least[0] / least[1])
    first, second = np.cumsum(least[0][order]), np.cumsum(least[1][order][::-1])[::-1]
    # The first jobs of the order run on kind 0, the others on kind 1, and both kinds finish together.
    return float(np.min(np.maximum(first, np.append(second[1:], 0.0))))


def run_one(run: Run, folder: Path, jobs: int, caps: Sequence[float] = ()) -> dict[str, Any] | None:
    """Simulate one run and return its figures.

    The result is None if the trace has no jobs in the requested part.
    """
    base = _scenario(run, caps)
    try:
        work = jobs_of(base, run, folder, jobs)
    except IndexError:
        return None
    kinds = base.nodes()
    result = engine.simulate(work, kinds, policy_named(run.policy), base.settings(run.part))
    jct_s = result.accounts.end_s - work.submit_s
    return {
        "end_s": result.end_s,
        "energy_joules": result.energy_joules,
        "idle_watts": float(sum(kind.nodes * kind.idle_watts for kind in kinds)),
        "jct_s": float(np.mean(jct_s)),
        "max_wait_s": float(np.max(result.accounts.start_s - work.submit_s)),
        "missed": result.summary()["deadline_miss_rate"],
        "preemptions": int(np.sum(result.accounts.preemptions)),
    }
