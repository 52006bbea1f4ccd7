"""Benchmark of the CPU time that the tuner (the search for good settings) needs on a node.

The node is emulated. The agent runs on a virtual clock, so that the figures do not depend on the load of the
machine. There are two programs: a training with checkpoints, and a program of three phases. Each program
runs once with reports of its progress, and once without them. Without reports, the agent samples the power
ten times per second and looks for a period.

The benchmark prints three figures, each divided by its bound:

- `tuning_cost_share`: CPU time of everything that the tuner does at a sample (signals,
  windows, period detection, decisions, changes of settings) as a share of a core. The CPU time of the sample
  itself is not included. The bound is 0.5 %.
- `tuning_period_share`: CPU time of the period detection alone, as a share of a core. The
  bound is 0.5 % here, too.
- `tuning_decision_ms`: median CPU time of a decision, from the measurements to the next
  settings. The bound is 1 ms.

Before the first decision in a phase of a job, the tuner builds an ensemble: samples of possible responses of
the job to settings. The time for this is printed beside that of the decisions, without a bound.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as senergyd does

import numpy as np
from claims import Claim, at_most, publish
from lab_runs import memory_folder, run_agent

from slurm_energy.agent.tuning.job_tuners import JobTuners
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.phase_knowledge import PhaseKnowledge
from slurm_energy.tuning.prior_samples import prepare_gpu_samples
from slurm_energy.tuning.progress import period
from slurm_energy.tuning.search import TuningSearch
from slurm_energy_lab.model import default_size, load_profile
from slurm_energy_lab.virtual_node import VirtualNode

PROGRAMS = ("checkpointed", "pipeline")
MAX_SHARE, MAX_DECISION_MS = 0.005, 1.0


class CpuTimer:
    """Timer that records the CPU time of each call of the functions that it wraps.

    If a wrapped function calls another wrapped function, only the outer call is recorded.

    Attributes:
        spent_s: CPU time of each recorded call.
    """

    def __init__(self) -> None:
        self.spent_s: list[float] = []
        self._is_running = False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its CPU time recorded."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._is_running:
                return function(*args, **kwargs)
            self._is_running, begin = True, time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self._is_running = False
                self.spent_s.append(time.thread_time() - begin)

        return timed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=8000, help="seed of the first of two nodes (8000)")
    parser.add_argument("--seconds", type=float, default=900, help="untuned run time (900)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    prepare_gpu_samples()  # senergyd does so in the thread that loads numpy
    claims: list[Claim] = []
    for reporting in (True, False):
        claims += measure(arguments.seed, arguments.seconds, reporting=reporting)
    return publish(claims, arguments.json)


def measure(seed: int, seconds: float, *, reporting: bool) -> list[Claim]:
    """Measure the CPU time that tuning costs, and return the claims of the benchmark.

    All programs run on a node with GPUs and on a node without GPUs.
    """
    samples, decisions, builds, detections = CpuTimer(), CpuTimer(), CpuTimer(), CpuTimer()
    job_s = 0.0
    with (
        mock.patch.object(JobTuners, "add_sample", samples.wrap(JobTuners.add_sample)),
        mock.patch.object(TuningSearch, "_move_on", decisions.wrap(TuningSearch._move_on)),
        mock.patch.object(PhaseKnowledge, "build", builds.wrap(PhaseKnowledge.build)),
        mock.patch.object(period, "detect_period", detections.wrap(period.detect_period)),
        memory_folder() as folder,
    ):
        for number, device in enumerate(("cpu", "gpu")):
            name = f"random-{device}-{seed + number}"
            node = VirtualNode(folder / device, name, sampling_hz=1.0, node_meter=True)
            for program in PROGRAMS:
                job_s += run(node, device, program, seconds, reporting=reporting)
            node.close()
    kind = "reported" if reporting else "unreported"
    spent = np.array(samples.spent_s)
    print(f"{kind}: {job_s:.0f} s of jobs, {len(spent)} samples, {1e3 * spent.sum() / job_s:.2f} ms/s,")
    print(f"  longest sample {1e3 * spent.max():.1f} ms, {len(detections.spent_s)} period detections")
    claims = [at_most(f"tuning_cost_share_{kind}", spent.sum() / job_s / MAX_SHARE, 1.0)]
    if detections.spent_s:
        longest_ms = 1e3 * max(detections.spent_s)
        print(f"  period detection {1e3 * np.median(detections.spent_s):.1f} ms, at most {longest_ms:.1f} ms")
        share = sum(detections.spent_s) / job_s
        claims.append(at_most(f"tuning_period_share_{kind}", share / MAX_SHARE, 1.0))
    for name, timer in (("decision", decisions), ("ensemble", builds)):
        times_ms = 1e3 * np.array(timer.spent_s)
        median, p95, most = np.median(times_ms), np.percentile(times_ms, 95), times_ms.max()
        print(f"  {len(times_ms)} x {name}: {median:.2f} ms, 95 % within {p95:.2f} ms, at most {most:.2f} ms")
    median_ms = 1e3 * float(np.median(decisions.spent_s))
    claims.append(at_most(f"tuning_decision_ms_{kind}", median_ms / MAX_DECISION_MS, 1.0))
    return claims


def run(node: VirtualNode, device: str, program: str, seconds: float, *, reporting: bool) -> float:
    """Run a program as a tuned job and return its run time."""
    size = default_size(load_profile(node.model.profile.name), program, device, seconds)
    if reporting:
        return run_agent(node, device, program, size, Objective("edp"), f"{program}/{device}").seconds
    job_id = node.new_job_id()
    node.begin(job_id, None, policy="edp")
    result = node.run(program, device, None, job_id, size=size)  # type: ignore[arg-type]  # size instead of seconds
    node.end(job_id)
    return result.seconds


if __name__ == "__main__":
    sys.exit(main())
