"""How time and watts of a run change when its power cap changes. Pure arithmetic.

The model has three constants. A run that drew `p` watts without feeling a cap draws `min(p, cap)` under one.
The power above the static share goes with a power of the clock, and the compute share of the time goes with
its inverse:

    f = ((P / p - static_share) / (1 - static_share)) ^ (1 / clock_exponent)
    T = t (1 - compute_share + compute_share / f)

Watts are per unit (see `levels.units`). docs/oracle-history.md has the errors on measured data.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final, NamedTuple

from slurm_energy.errors import EnergyError
from slurm_energy.oracle.hardware import find_hardware


class CapResponse(NamedTuple):
    """Constants of the model.

    Attributes:
        static_share: part of the watts of an uncapped run that does not depend on the clock.
        clock_exponent: power above the static share goes with the clock to this power.
        compute_share: part of the time of an uncapped run that goes with the inverse of the clock.
    """

    static_share: float
    clock_exponent: float
    compute_share: float


RESPONSE: Final = CapResponse(0.35, 1.5, 0.5)
"""Fitted to the A40 and the Quadro RTX 6000 of the power-limit study by `benchmarks/cap_response.py`."""

MAX_POWER_FACTOR: Final = 2.0
"""A run that was held by its cap would draw at most so many times its watts without it."""

CAP_REACHED_SHARE: Final = 0.9
"""A run that drew more than this part of its cap was held by it."""

_MIN_DYNAMIC_SHARE: Final = 0.05  # of the power above the static share: devices do not go lower


class Caps(NamedTuple):
    """Limits that hold for a job, in watts; infinity for none.

    Attributes:
        gpu_watts: of each GPU.
        unit_watts: of all measured parts together, per unit (see `levels.units`).
    """

    gpu_watts: float = math.inf
    unit_watts: float = math.inf


NO_CAPS: Final = Caps()


def caps_of(
    cap_watts: float | None, gpu_cap_watts: float | None, nodes: int | None, gpus: int | None
) -> Caps:
    """Return the limits per unit of a job.

    Args:
        cap_watts: limit per node; None for none.
        gpu_cap_watts: limit per GPU; None for none. It has no meaning for a job without GPUs.
        nodes: number of nodes; None: one.
        gpus: number of GPUs of all nodes; None or 0: none.
    """
    if cap_watts is None and gpu_cap_watts is None:
        return NO_CAPS
    gpu_watts = math.inf if gpu_cap_watts is None or not gpus else gpu_cap_watts
    unit_watts = math.inf
    if cap_watts is not None:
        unit_watts = cap_watts * (nodes or 1) / gpus if gpus else cap_watts
    return Caps(gpu_watts, unit_watts)


def time_factor(power_share: float, response: CapResponse = RESPONSE) -> float:
    """Return how many times as long a run takes that has this share of its uncapped watts (0 to 1)."""
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
    """Return watts and relative time of a part under another cap.

    Equal caps change nothing, but that no more than the cap is returned. Watts never fall and time never
    rises when `after` rises.

    Args:
        watts: mean watts under `before`.
        before: cap of the run; infinity for none.
        after: cap to predict for; infinity for none.
        tdp_watts: design power of the part; a higher cap does not lift the watts above it.
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
    """Return watts per unit and relative time of a run under other caps.

    Args:
        watts: mean watts per unit of all measured parts.
        gpu_watts: those of the GPU among them.
        before: caps of the run.
        after: caps to predict for.
        tdp_watts: design power of one GPU; infinity: not known.
    """
    rest = max(0.0, watts - gpu_watts)
    gpu, gpu_time = convert_part(gpu_watts, before.gpu_watts, after.gpu_watts, tdp_watts)
    total, _ = convert_part(rest + gpu, before.unit_watts, after.unit_watts)
    _, unit_time = convert_part(watts, before.unit_watts, after.unit_watts)
    # Two caps stretch the time by what the stricter one does alone.
    slowdown = max(1.0, gpu_time, unit_time)
    return total, slowdown * min(1.0, gpu_time) * min(1.0, unit_time)


@lru_cache(maxsize=256)
def tdp_watts(gpu_kind: str | None) -> float:
    """Return the design power of a kind of GPU; infinity where no hardware file has that name."""
    if gpu_kind is None or gpu_kind.endswith(".toml"):
        return math.inf
    try:
        return find_hardware(gpu_kind).tdp_watts
    except EnergyError:
        return math.inf
