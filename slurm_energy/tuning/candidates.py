"""Candidate operating points of a job, and the choice of its safe point.

The candidates form grids over the hardware's ranges of settings. The safe point is the operating point for a
job of which only the power is known. It is chosen without measurements of other points.

This module does not need numpy. An agent without numpy can therefore still set the safe point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.objective import Objective

SAFE_SHARE: Final = 0.85
"""Limit of a job without progress and without a slowdown limit, as a share of its own draw. Published curves
lose nothing at 0.9 and up to a fifth of their EDP at 0.8."""
MAX_CANDIDATES: Final = 40
_LIMIT_STEPS_WATTS: Final = (5, 10, 20, 25, 50, 100)
_TURBO_SHARE: Final = 0.99
"""Drivers of Intel processors enter boost in the table as base frequency plus 1 MHz."""
_CLOCK_STEPS_MHZ: Final = (50, 100, 200, 250, 500)


@dataclass(frozen=True, slots=True)
class Reference:
    """Power of the untuned job.

    Attributes:
        watts: mean power of the job's components.
        gpu_watts: mean power of one GPU of the job; None without GPUs or if unknown.
        package_watts: mean power of one processor package of the job; None if unknown.
    """

    watts: float
    gpu_watts: float | None = None
    package_watts: float | None = None


@dataclass(frozen=True, slots=True)
class GpuHardware:
    """The GPUs of a job. All GPUs are of the same kind.

    Attributes:
        count: number of GPUs.
        default_limit_watts: power limit in force before the job.
        min_limit_watts: minimum power limit that the device accepts.
        max_clock_mhz: maximum graphics clock; None if clocks are not tuned.
    """

    count: int
    default_limit_watts: float
    min_limit_watts: float
    max_clock_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class CpuHardware:
    """The processors of a job. All processors are of the same kind.

    Attributes:
        packages: number of packages.
        max_mhz: maximum frequency in force before the job.
        min_mhz: minimum frequency.
        base_mhz: base frequency, which is the maximum frequency without boost; None if unknown.
        package_limit_watts: package power limit in force before the job; None if limits are not tuned.
        table_mhz: frequencies of a driver with a frequency table; empty for other drivers. Boost frequencies
            are above the maximum of the table and are not in the table. Every bound below this maximum
            disables boost.
        boosts: whether boost is on and can be disabled by a bound at the maximum of the table.
    """

    packages: int
    max_mhz: float
    min_mhz: float
    base_mhz: float | None = None
    package_limit_watts: float | None = None
    table_mhz: tuple[float, ...] = ()
    boosts: bool = False


def gpu_limits(gpu: GpuHardware, max_points: int = 20) -> tuple[OperatingPoint, ...]:
    """Return candidate operating points, each of which sets only a power limit of the GPUs.

    The limits have even steps, from the minimum to below the default.
    """
    values = _grid(gpu.min_limit_watts, gpu.default_limit_watts, _LIMIT_STEPS_WATTS, max_points)
    return tuple(OperatingPoint(gpu_limit_watts=value) for value in values)


def gpu_clocks(
    gpu: GpuHardware, min_mhz: float = 0.0, min_share: float = 0.4, max_points: int = 12
) -> tuple[OperatingPoint, ...]:
    """Return candidate operating points, each of which sets only an upper bound of the GPU clock.

    An operating point is a set of hardware settings. The bounds lie on a grid from `min_share` times the
    maximum clock, or from `min_mhz` if it is higher, to below the maximum clock. The result is empty if the
    maximum clock of the GPU is unknown.

    Args:
        gpu: the GPUs.
        min_mhz: minimum clock that the devices and the site permit.
        min_share: minimum as a share of the maximum clock.
        max_points: maximum number of points.
    """
    if gpu.max_clock_mhz is None:
        return ()
    minimum = max(min_mhz, min_share * gpu.max_clock_mhz)
    values = _grid(minimum, gpu.max_clock_mhz, _CLOCK_STEPS_MHZ, max_points)
    return tuple(OperatingPoint(gpu_clock_mhz=value) for value in values)


def cpu_frequencies(cpu: CpuHardware, max_points: int = 12) -> tuple[OperatingPoint, ...]:
    """Return upper bounds of the CPU frequency that tuning may try, as operating points.

    The bounds rise from the minimum frequency to a value below the maximum. The maximum frequency is a
    further bound if two conditions hold: the processor can boost, and its list of frequencies has no
    other value near the clock of an untuned job. This bound has an effect, because it switches boost off.

    Args:
        cpu: frequencies of the processors.
        max_points: maximum number of bounds.
    """
    values = sorted({value for value in cpu.table_mhz if cpu.min_mhz <= value < cpu.max_mhz})
    has_base = bool(values) and values[-1] > _TURBO_SHARE * cpu.max_mhz
    if cpu.boosts and cpu.max_mhz in cpu.table_mhz and not has_base:
        values.append(cpu.max_mhz)
    values = values[-max_points:]
    if not cpu.table_mhz:
        values = _grid(cpu.min_mhz, cpu.max_mhz, _CLOCK_STEPS_MHZ, max_points)
    return tuple(OperatingPoint(cpu_max_mhz=value) for value in values)


def joint_candidates(
    first: Sequence[OperatingPoint], second: Sequence[OperatingPoint], max_points: int = MAX_CANDIDATES
) -> tuple[OperatingPoint, ...]:
    """Return operating points to try: points that set one of two knobs, and points that set both.

    A knob is a hardware setting, such as a power limit. All given points of a single knob are returned. If
    fewer than `max_points` are given, evenly spread combinations of both knobs fill the rest.

    Args:
        first: points of the first knob, for example GPU limits.
        second: points of the second knob, for example CPU frequencies.
        max_points: maximum number of points.
    """
    alone = (*first, *second)[:max_points]
    pairs = [merged(one, other) for one in first for other in second]
    room = max_points - len(alone)
    if room <= 0 or not pairs:
        return alone
    stride = math.ceil(len(pairs) / room)
    return (*alone, *pairs[::stride])


def merged(first: OperatingPoint, second: OperatingPoint) -> OperatingPoint:
    """Return an operating point that combines the settings of two points.

    If both points set the same knob, the value of `second` applies.
    """
    values = {
        field.name: value
        for point in (first, second)
        for field in fields(point)
        if (value := getattr(point, field.name)) is not None
    }
    return OperatingPoint(**values)


def safe_point(
    candidates: Sequence[OperatingPoint], reference: Reference, gpu: GpuHardware | None, objective: Objective
) -> OperatingPoint:
    """Return the safe point: the operating point for a job of which only the power is known.

    The safe point is the lowest candidate that sets only a GPU power limit of at least `SAFE_SHARE` of the
    GPU's power. The safe point is UNTUNED if no candidate qualifies, if the power is unknown, or if the
    objective has a slowdown limit. A slowdown limit is a reason because, in the power-limit study, these GPU
    power limits slowed a fifth of the jobs down by more than 5 %. Processors are not changed.
    """
    if gpu is None or reference.gpu_watts is None or objective.slowdown_limit is not None:
        return UNTUNED
    minimum = max(gpu.min_limit_watts, SAFE_SHARE * reference.gpu_watts)
    limits = [
        point.gpu_limit_watts
        for point in candidates
        if point.gpu_limit_watts is not None
        and is_gpu_limit(point)
        and minimum <= point.gpu_limit_watts < min(reference.gpu_watts, gpu.default_limit_watts)
    ]
    return OperatingPoint(gpu_limit_watts=min(limits)) if limits else UNTUNED


def is_gpu_limit(point: OperatingPoint) -> bool:
    """Return whether a point sets a GPU power limit and nothing else."""
    return point != UNTUNED and point == OperatingPoint(gpu_limit_watts=point.gpu_limit_watts)


def _grid(minimum: float, maximum: float, steps: Sequence[int], max_points: int) -> list[float]:
    """Return multiples of a step from `minimum` (included) to `maximum` (excluded)."""
    if not 0 < minimum < maximum:
        return []
    step = next((step for step in steps if (maximum - minimum) / step <= max_points - 1), steps[-1])
    first = math.floor(minimum / step) + 1
    values = [float(step * number) for number in range(first, math.ceil(maximum / step))]
    return [float(minimum), *values][:max_points]
