"""Interface between the code that chooses a job's operating point and the code that applies it."""

from __future__ import annotations

from typing import Any, Protocol

from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.tuning.progress_window import ProgressWindow

HOLD = "hold"
"""Phase in which the operating point stays and only the speed is checked."""


class PointSource(Protocol):
    """A source of operating points for one job: a search on this node, or the coordinator of several nodes.

    The tuner of the job applies `requested`, measures windows at this point, and passes each window to
    `observe`. Both calls must take less than 1 ms and may not block.
    """

    @property
    def requested(self) -> OperatingPoint:
        """Operating point that the job should have now."""

    @property
    def phase(self) -> str:
        """Phase of the decision, for example `reference`, `probe` or `hold`."""

    def observe(self, window: ProgressWindow) -> None:
        """Take a measured window into account. `requested` may change."""

    def summary(self) -> dict[str, Any]:
        """Return the result so far in the format of the record's key `tuning`."""


class ConstantPoint:
    """A source that requests the same operating point for the whole job.

    Args:
        point: the operating point.
        summary: result for the record's key `tuning`.
    """

    phase = HOLD

    def __init__(self, point: OperatingPoint, summary: dict[str, Any]) -> None:
        self.requested = point
        self._summary = summary

    def observe(self, window: ProgressWindow) -> None:
        """Ignore the measured window, because the operating point does not depend on measurements."""

    def summary(self) -> dict[str, Any]:
        """Return the result for the record's key `tuning`."""
        return dict(self._summary)
