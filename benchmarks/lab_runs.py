"""Runs of a tuned program on an emulated node, for benchmarks of the tuning.

A run uses either the whole agent or only the search for the best operating point.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.policies.operating_point import UNTUNED
from slurm_energy.tuning.candidates import (
    CpuHardware,
    GpuHardware,
    cpu_frequencies,
    gpu_limits,
    joint_candidates,
)
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.priors import cpu_prior, joint_prior
from slurm_energy.tuning.progress_window import ProgressSource, ProgressWindow
from slurm_energy.tuning.search import TuningSearch
from slurm_energy_lab.model import NodeProfile
from slurm_energy_lab.model.phase_walk import PhaseWalk
from slurm_energy_lab.model.programs import workload_spec
from slurm_energy_lab.model.steady_state import SteadyState
from slurm_energy_lab.virtual_node import VirtualNode

WINDOW_S, SETTLE_S = 10.0, 2.0
STEP_VARIATION, POWER_ERROR = 0.02, 0.005
"""Relative standard deviations: of a step's time, and of the power of a window."""


@dataclass(frozen=True)
class TunedRun:
    """Time and energy of a whole node during a run of a tuned job, and the result of the tuning.

    Attributes:
        seconds: run time.
        joules: energy of the node.
        summary: the key `tuning` of the job's record.
        progress: (time in seconds, exact progress in units) at every sample.
    """

    seconds: float
    joules: float
    summary: dict[str, Any]
    progress: tuple[tuple[float, float], ...] = ()


def run_agent(
    node: VirtualNode, device: str, program: str, size: float, objective: Objective, seed: str
) -> TunedRun:
    """Run a program as a tuned job; the agent starts without knowledge of earlier jobs.

    The progress that the program reports has random errors.
    """
    node.restart_agent()
    node.wait(5.0)
    job_id, flags = node.new_job_id(), {"policy": objective.name}
    if objective.slowdown_limit is not None:
        flags["slowdown"] = f"{100 * objective.slowdown_limit:g}"
    node.begin(job_id, None, **flags)
    progress: list[tuple[float, float]] = []
    result = node.run_reporting(
        program,
        device,
        None,
        job_id,
        STEP_VARIATION,
        random.Random(seed),
        size,
        lambda *pair: progress.append(pair),
    )
    node.end(job_id)
    record = node.records()[job_id]
    assert record.tuning is not None
    return TunedRun(result.seconds, result.energy_joules["node"], record.tuning, tuple(progress))


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Context manager that yields a temporary folder in memory where possible."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def run_search(truth: SteadyState, program: str, size: float, objective: Objective, seed: str) -> TunedRun:
    """Run a program on a modelled node while the search for the best operating point adjusts it.

    Only the search runs, without the rest of the agent. Its measurement windows consist of whole steps and
    have random errors.
    """
    numbers = random.Random(seed)
    search = new_search(truth.profile, objective)
    walk = PhaseWalk(truth, workload_spec(program), size)
    current = UNTUNED
    while not walk.finished:
        if search.requested != current:
            current = search.requested
            walk.advance(current, SETTLE_S)
            walk.finish_step(current)
        before = copy.copy(walk)
        walk.advance(current, WINDOW_S)
        walk.finish_step(current)
        duration_s = walk.seconds - before.seconds
        if walk.finished:
            break
        units = walk.units - before.units
        error = STEP_VARIATION / math.sqrt(max(1.0, units if units < 2 * WINDOW_S else WINDOW_S))
        search.observe(
            ProgressWindow(
                current,
                before.seconds,
                duration_s,
                units / duration_s * (1 + numbers.gauss(0, error)),
                error,
                (walk.joules - before.joules) / duration_s * (1 + numbers.gauss(0, POWER_ERROR)),
                ProgressSource.REPORTED,
                (walk.gpu_joules - before.gpu_joules) / duration_s if truth.profile.gpu else None,
                (walk.package_joules - before.package_joules) / duration_s,
            )
        )
    return TunedRun(walk.seconds, walk.joules, search.summary())


def new_search(profile: NodeProfile, objective: Objective) -> TuningSearch:
    """Return a tuning search over the settings of a node whose hardware has not been measured before."""
    cpufreq, gpu = profile.cpufreq, profile.gpu
    cpu = CpuHardware(
        profile.cpu.packages,
        cpufreq.cpuinfo_max_khz / 1000,
        cpufreq.min_khz / 1000,
        table_mhz=tuple(khz / 1000 for khz in cpufreq.available_khz),
        boosts=cpufreq.driver == "acpi-cpufreq" and cpufreq.max_khz > cpufreq.cpuinfo_max_khz,
    )
    frequencies = cpu_frequencies(cpu)
    if gpu is None:
        return TuningSearch(frequencies, objective, cpu_prior(cpu))
    hardware = GpuHardware(gpu.count, gpu.default_limit_watts, gpu.min_limit_watts, None)
    few = list(dict.fromkeys(frequencies[round(i * (len(frequencies) - 1) / 4)] for i in range(5)))
    return TuningSearch(
        joint_candidates(gpu_limits(hardware, 14), few), objective, joint_prior(hardware, cpu)
    )


def regain_seconds(truth: SteadyState, size: float, run: TunedRun, limit: float) -> float:
    """Return the time that tuning needs to restore the speed of `solver` in its compute-bound phase.

    The time starts when the program changes from memory-bound to compute-bound work. The time ends
    with the first sample at which the program is slower than the untuned program by at most
    `limit`. The result is infinity if there is no such sample.
    """
    spec = workload_spec("solver")
    memory, compute = spec.phases[0], spec.phases[-1]
    change_units = float(spec.phases.count(memory))
    untuned_per_s = 1.0 / (truth.phase(UNTUNED, compute).seconds * spec.scale(size))
    after = [pair for pair in run.progress if pair[1] > change_units]
    for (begin_s, begin), (end_s, end) in itertools.pairwise(after):
        if (end - begin) / (end_s - begin_s) * (1.0 + limit) >= 0.999 * untuned_per_s:
            first_s, first = after[0]
            changed_s = first_s - min(1.0, (first - change_units) / untuned_per_s)
            return begin_s - changed_s
    return math.inf
