"""Progress windows: the measured speed and power of a job at one operating point."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slurm_energy.policies.operating_point import OperatingPoint


class ProgressSource(StrEnum):
    """Source of a job's progress, in order of trust."""

    REPORTED = "reported"
    PERIOD = "period"
    ACTIVITY = "activity"
    INSTRUCTIONS = "instructions"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ProgressWindow:
    """The speed and power of a job over an interval in which its knobs did not change.

    The speed of a job on several nodes or GPUs is that of the slowest, the power is that of all together.

    Attributes:
        point: operating point in force, read back from the hardware.
        start_s: start of the interval in seconds of a monotonic clock.
        duration_s: length of the interval in seconds.
        units_per_s: progress in units of the job's own choice per second.
        relative_error: standard error of `units_per_s` divided by `units_per_s`.
        watts: mean power of the job's components.
        source: source of the progress.
        gpu_watts: mean power of one of the job's GPUs; None without GPUs or if unknown.
        package_watts: mean power of one of the job's processor packages; None if unknown.
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
