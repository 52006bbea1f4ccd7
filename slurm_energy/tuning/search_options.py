"""Phases and options of the search for the best operating point within a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slurm_energy.policies.operating_point import OperatingPoint


class SearchPhase(StrEnum):
    """Phase of the search for the best operating point of a job."""

    REFERENCE = "reference"
    PROBE = "probe"
    HOLD = "hold"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options and bounds of a search.

    Attributes:
        max_probes: maximum number of points that are tried in each phase of the job.
        warmup_s: seconds from the start of the first window. Windows that start in this time are ignored,
            because programs start slowly.
        expected_duration_s: expected time from the start of the first window to the end of the job; None if
            unknown. A job that runs for clearly longer is treated like a job of unknown duration.
        start: first point to try, for example from earlier runs; None means that the prior decides.
        max_reference_windows: maximum number of measurement windows of a reference measurement.
    """

    max_probes: int = 9
    warmup_s: float = 0.0
    expected_duration_s: float | None = None
    start: OperatingPoint | None = None
    max_reference_windows: int = 6
