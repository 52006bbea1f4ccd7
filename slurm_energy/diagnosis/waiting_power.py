"""Power of a job during the time in which it waits for data or other processes.

The energy of lost time is computed from this power.
"""

from __future__ import annotations

import math
from typing import Final

from slurm_energy.diagnosis.distribution import percentile
from slurm_energy.diagnosis.observation import JobObservation, NodeObservation

_WAITING_PERCENTILE: Final = 10.0


def waiting_power(observation: JobObservation, mean_watts: float | None) -> float | None:
    """Return the power of a job while it waits, in watts; None if unknown.

    The result is the minimum of the known values among these three:

    - the 10th percentile of the job's power trace,
    - the mean power that the job would have if its GPUs drew idle power,
    - the mean power of the job.

    The trace alone is not sufficient. It shows no low power if steps wait for less than a sampling interval.

    Args:
        observation: observations of the job.
        mean_watts: mean power of the job; None if unknown.
    """
    lows = [watts for node in observation.nodes if (watts := _low_watts(node)) is not None]
    trace = math.fsum(lows) if lows and len(lows) == len(observation.nodes) else None
    idle = _idle_gpu_watts(observation, mean_watts)
    return min((watts for watts in (trace, idle, mean_watts) if watts is not None), default=None)


def _idle_gpu_watts(observation: JobObservation, mean_watts: float | None) -> float | None:
    """Return the power in watts that the job would have on average if its GPUs were idle.

    The result is None if it is unknown.
    """
    context, above = observation.context, 0.0
    parts = [(node, f"gpu[{gpu}]") for node, gpus in context.gpus.items() for gpu in gpus]
    if mean_watts is None or not parts or context.elapsed_s <= 0:
        return None
    for node, part in parts:
        joules, idle = (
            table.get(node, {}).get(part) for table in (context.energy_joules, context.idle_watts)
        )
        if joules is None or idle is None:
            return None
        above += max(0.0, joules / context.elapsed_s - idle)
    return max(0.0, mean_watts - above)


def _low_watts(node: NodeObservation) -> float | None:
    """Return the 10th percentile of a node's power; None if unknown."""
    traces = [series for series in node.series if series.name == "power_watts" and series.known()]
    whole = [series for series in traces if series.part == "node"] or traces
    lows = [percentile(sorted(series.known()), _WAITING_PERCENTILE) for series in whole]
    return math.fsum(lows) if lows else None
