"""Response of a run's time and watts to its power cap. Pure arithmetic.

The model has three constants. A run that draws `p` watts without a cap draws `min(p, cap)` watts under a cap.
The watts above the static share are proportional to clock ^ clock_exponent. The compute share of the run time
is proportional to the inverse of the clock, and the rest of the run time is constant. For a capped power P
and an uncapped time t:

    f = ((P / p - static_share) / (1 - static_share)) ^ (1 / clock_exponent)
    T = t (1 - compute_share + compute_share / f)

Watts are per unit: per GPU, or per node for a job without GPUs (`similarity.units`). docs/oracle-history.md
lists the errors on measured data.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

from slurm_energy.errors import EnergyError
from slurm_energy.oracle.hardware import find_hardware


class CapResponse(NamedTuple):
    """Parameters of the model by which power caps change the time and power of a run.

    All except the exponent are between 0 and 1.

    Attributes:
        static_share: share of the watts of an uncapped run that does not depend on the clock.
        clock_exponent: exponent of the clock in the power above the static share.
        compute_share: share of the time of an uncapped run that is inversely proportional to the clock.
    """

    static_share: float
    clock_exponent: float
    compute_share: float


RESPONSE: Final = CapResponse(0.35, 1.5, 0.5)
"""Constants fitted to the A40 and Quadro RTX 6000 of the power-limit study.

`benchmarks/cap_response.py` fits them.
"""

MAX_POWER_FACTOR: Final = 2.0
"""Maximum ratio of the uncapped watts to the watts of a run that reached its cap."""

CAP_REACHED_SHARE: Final = 0.9
"""Ratio of watts to cap above which a run counts as limited by the cap."""

_MIN_DYNAMIC_SHARE: Final = 0.05  # minimum fraction of the uncapped dynamic power


class Caps(NamedTuple):
    """Power caps of a job in watts. Infinity means that the job has no cap of this kind.

    Attributes:
        gpu_watts: cap of each GPU.
        unit_watts: cap of all measured components together, per GPU, or per node for a job without GPUs.
    """

    gpu_watts: float = math.inf
    unit_watts: float = math.inf


NO_CAPS: Final = Caps()


def caps_of(
    cap_watts: float | None, gpu_cap_watts: float | None, nodes: int | None, gpus: int | None
) -> Caps:
    """Return a job's power caps, converted to watts per GPU and watts per unit.

    The units of a job are its GPUs. If the job has no GPUs, the units are its nodes (`similarity.units`).

    Args:
        cap_watts: cap per node in watts; None means no cap.
        gpu_cap_watts: cap per GPU in watts; None means no cap. The cap is ignored for a job without GPUs.
        nodes: number of nodes; None counts as one node.
        gpus: number of GPUs on all nodes; None or 0: the job has no GPUs.
    """
    if cap_watts is None and gpu_cap_watts is None:
        return NO_CAPS
    gpu_watts = math.inf if gpu_cap_watts is None or not gpus else gpu_cap_watts
    unit_watts = math.inf
    if cap_watts is not None:
        unit_watts = cap_watts * (nodes or 1) / gpus if gpus else cap_watts
    return Caps(gpu_watts, unit_watts)


def time_factor(power_share: float, response: CapResponse = RESPONSE) -> float:
    """Return by which factor a power cap lengthens the run time of a job, at least 1.

    Args:
        power_share: watts of the capped run divided by the watts of the uncapped run, 0 to 1.
        response: constants of the model.
    """
    dynamic = (min(1.0, power_share) - response.static_share) / (1.0 - response.static_share)
    clock: float = max(dynamic, _MIN_DYNAMIC_SHARE) ** (1.0 / response.clock_exponent)
    return 1.0 - response.compute_share + response.compute_share / clock


def convert_part(
    watts: float,
    before: float,
    after: float,
    tdp_watts: float = math.inf,
    response: CapResponse = RESPONSE,
) -> tuple[float, float]:
    """Return a component's mean watts under another cap, and the new time divided by the old time.

    If both caps are equal, the time ratio is 1 and the result is `watts`, limited to the cap. A higher cap
    `after` never lowers the watts and never increases the time.

    Args:
        watts: mean watts under the cap `before`.
        before: cap of the measured run in watts; infinity means no limit.
        after: cap for the prediction in watts; infinity means no cap.
        tdp_watts: design power of the component. A higher cap does not raise the watts above the design
            power.
        response: constants of the model.
    """
    if after <= before:
        capped_watts = min(watts, after)
        return capped_watts, time_factor(
            capped_watts / watts, response
        ) if capped_watts < watts and after < before else 1.0
    if watts < CAP_REACHED_SHARE * before:
        return watts, 1.0
    power_factor = max(1.0, min(after / before, MAX_POWER_FACTOR, tdp_watts / watts if watts > 0 else 1.0))
    return min(watts * power_factor, after), 1.0 / time_factor(1.0 / power_factor, response)


def convert_run(
    watts: float, gpu_watts: float, before: Caps, after: Caps, tdp_watts: float = math.inf
) -> tuple[float, float]:
    """Return the mean power and the relative time that a measured run would have under other caps.

    The power is in watts per unit. A unit is a GPU, or a node for a job without GPUs. The relative time is
    the new time divided by the old time.

    Args:
        watts: mean watts of all measured components, divided by the number of units.
        gpu_watts: the part of `watts` that the GPU draws; 0 for a run without GPUs.
        before: caps of the measured run.
        after: caps to predict for.
        tdp_watts: design power of one GPU; infinity means unknown.
    """
    rest = max(0.0, watts - gpu_watts)
    gpu, gpu_time = convert_part(gpu_watts, before.gpu_watts, after.gpu_watts, tdp_watts)
    total, _ = convert_part(rest + gpu, before.unit_watts, after.unit_watts)
    _, unit_time = convert_part(watts, before.unit_watts, after.unit_watts)
    # The stricter of two caps alone determines the longer time.
    slowdown = max(1.0, gpu_time, unit_time)
    return total, slowdown * min(1.0, gpu_time) * min(1.0, unit_time)


@lru_cache(maxsize=256)
def tdp_watts(gpu_kind: str | None) -> float:
    """Return the design power (TDP) of a GPU model in watts.

    The result is infinite if `gpu_kind` is None, a path, or not the name of a hardware file.
    """
    if gpu_kind is None or gpu_kind.endswith(".toml"):
        return math.inf
    try:
        return find_hardware(gpu_kind).tdp_watts
    except EnergyError:
        return math.inf
