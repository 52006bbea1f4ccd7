"""A measurement of the speed and power of a job over a time window at one operating point."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from slurm_energy.policies.operating_point import OperatingPoint

_MIN_DURATION_S, _MAX_DURATION_S = 1e-3, 1e7
_MIN_WATTS, _MAX_WATTS = 1e-3, 1e9
_MIN_UNITS_PER_S, _MAX_UNITS_PER_S = 1e-12, 1e18
_MIN_ERROR, _MAX_ERROR = 1e-6, 10.0


class ProgressSource(StrEnum):
    """Source from which the progress of a job is measured.

    The members are in the order of trust, the most trusted source first.
    """

    REPORTED = "reported"
    PERIOD = "period"
    ACTIVITY = "activity"
    INSTRUCTIONS = "instructions"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ProgressWindow:
    """The speed and power of a job over a measured interval in which its settings did not change.

    The speed of a job on several nodes or GPUs is the speed of the slowest node or GPU. The power is the sum
    over all nodes or GPUs.

    Attributes:
        point: operating point (settings of the hardware) in force, read back from the hardware.
        start_s: start of the interval in seconds of a monotonic clock.
        duration_s: length of the interval in seconds.
        units_per_s: progress per second, in a unit of work that the job chooses.
        relative_error: standard error of `units_per_s` divided by `units_per_s`.
        watts: mean power of the job's components.
        source: source of the progress.
        gpu_watts: mean power of one of the job's GPUs; None without GPUs or if unknown.
        package_watts: mean power of one of the job's processor packages; None if unknown.
        spans_cycles: whether the interval consists of whole cycles of regular pauses such as checkpoints. If
            True, the speed includes the pauses. If False, the speed excludes the pauses.
    """

    point: OperatingPoint
    start_s: float
    duration_s: float
    units_per_s: float
    relative_error: float
    watts: float
    source: ProgressSource
    gpu_watts: float | None = None
    package_watts: float | None = None
    spans_cycles: bool = False

    @property
    def is_plausible(self) -> bool:
        """Whether duration and power of the window are within the range of real measurements.

        The speed is not checked.
        """
        return (
            math.isfinite(self.start_s)
            and _MIN_DURATION_S <= self.duration_s <= _MAX_DURATION_S
            and 0.0 <= self.watts <= _MAX_WATTS
        )

    @property
    def has_speed(self) -> bool:
        """Whether the measured speed and power of the window are usable for tuning."""
        return (
            _MIN_UNITS_PER_S <= self.units_per_s <= _MAX_UNITS_PER_S
            and 0.0 <= self.relative_error <= _MAX_ERROR
            and self.watts >= _MIN_WATTS
        )

    def with_error_scaled(self, factor: float) -> ProgressWindow:
        """Return a copy whose relative error is multiplied by a factor.

        An error below the minimum error is first raised to this minimum, because no measurement is exact.
        """
        return replace(self, relative_error=max(self.relative_error, _MIN_ERROR) * factor)
