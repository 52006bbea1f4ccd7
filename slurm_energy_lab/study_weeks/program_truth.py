"""True speed and power of the programs of a simulated site, tuned and untuned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.objective import TIME_EXPONENTS
from slurm_energy_lab.model import load_profile
from slurm_energy_lab.model.programs import workload_spec
from slurm_energy_lab.model.steady_state import StaticRun, SteadyState
from slurm_energy_lab.virtual_cluster.workload import idle_watts

PARTITION_PROFILES = {"ampere": "epyc-7513-a100", "hopper": "xeon-h100"}
"""Hardware of the nodes of each partition."""
_LIMITS = 13


@dataclass(frozen=True, slots=True)
class ProgramTruth:
    """Behaviour of a program at one setting.

    Attributes:
        time_ratio: run time divided by the run time of the untuned program.
        watts: mean power of a node.
        gpu_limit_watts: power limit of each GPU; None if untuned.
    """

    time_ratio: float
    watts: float
    gpu_limit_watts: float | None


@cache
def node_idle_watts(partition: str) -> float:
    """Return the power of an idle node of a partition."""
    return idle_watts(load_profile(PARTITION_PROFILES[partition]))


@cache
def program_truth(
    partition: str, program: str, objective: str = "", slowdown_limit: float = math.inf
) -> ProgramTruth:
    """Return the behaviour of a program on the nodes of a partition.

    Args:
        partition: `ampere` or `hopper`.
        program: compute kernel or program of the node model.
        objective: quantity that tuning minimises: `energy`, `edp` or `ed2p`; empty if untuned.
        slowdown_limit: maximum increase of the run time with the objective `energy`, as a fraction of the
            untuned run time.
    """
    runs = _runs(partition, program)
    untuned = chosen = runs[0]
    if objective:
        limit = slowdown_limit if objective == "energy" else math.inf
        permitted = [run for run in runs if run.seconds <= untuned.seconds * (1.0 + limit)]
        exponent = TIME_EXPONENTS[objective]
        chosen = min(permitted, key=lambda run: run.joules * run.seconds**exponent)
    watts = chosen.joules / chosen.seconds
    return ProgramTruth(chosen.seconds / untuned.seconds, watts, chosen.point.gpu_limit_watts)


@cache
def _runs(partition: str, program: str) -> tuple[StaticRun, ...]:
    """Return one run of a program for each power limit. The untuned run comes first."""
    profile = load_profile(PARTITION_PROFILES[partition])
    assert profile.gpu is not None
    low, high = profile.gpu.min_limit_watts, profile.gpu.default_limit_watts
    limits = [low + (high - low) * index / (_LIMITS - 1) for index in range(_LIMITS - 1)]
    points = [UNTUNED, *(OperatingPoint(gpu_limit_watts=limit) for limit in limits)]
    truth = SteadyState(profile, "gpu")
    return tuple(truth.sweep(workload_spec(program), 1.0, points))
