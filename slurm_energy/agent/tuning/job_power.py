"""Power of a job between two points in time, computed from the job's energy meter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_energy.agent.metering.attribution import OTHER
from slurm_energy.agent.metering.job_meter import JobMeter


@dataclass(frozen=True, slots=True)
class MeterReading:
    """Values of a job's energy meter at one time.

    Attributes:
        time_s: time of the reading in seconds since boot.
        energy_uj: microjoules by component since the start of the job.
        elapsed_s: metered seconds since the start of the job.
        uncertain_s: seconds since the start of the job whose energy may be missing.
    """

    time_s: float
    energy_uj: Mapping[str, int]
    elapsed_s: float
    uncertain_s: float

    @classmethod
    def of(cls, meter: JobMeter, time_s: float) -> MeterReading:
        """Copy the values of a meter at the time `time_s`."""
        return cls(time_s, dict(meter.energy_uj), meter.elapsed_s, meter.uncertain_s)


def watts_between(earlier: MeterReading, later: MeterReading) -> dict[str, float]:
    """Return the mean power by component between two readings; empty if no energy was metered between them.

    The energy of `other` is charged seconds later than the energy of the other components. The power of
    `other` is therefore the mean since the start of the job.
    """
    length_s = later.elapsed_s - earlier.elapsed_s
    if length_s <= 0:
        return {}
    watts = {}
    for name, energy_uj in later.energy_uj.items():
        if name == OTHER:
            watts[name] = energy_uj / 1e6 / later.elapsed_s
        else:
            watts[name] = (energy_uj - earlier.energy_uj.get(name, 0)) / 1e6 / length_s
    return watts


def total_watts(watts: Mapping[str, float]) -> float:
    """Return the sum of the power of all components in watts."""
    return math.fsum(watts.values())


def mean_gpu_watts(watts: Mapping[str, float]) -> float | None:
    """Return the mean power per GPU of the job in watts; None without GPUs or if the power is unknown."""
    gpus = [value for name, value in watts.items() if name.startswith("gpu[")]
    return math.fsum(gpus) / len(gpus) if gpus else None


def package_watts(watts: Mapping[str, float], packages: int) -> float | None:
    """Return the mean power per processor package of the job in watts; None if unknown.

    Args:
        watts: power by component.
        packages: number of packages of the job.
    """
    return watts["cpu"] / packages if "cpu" in watts and packages > 0 else None
