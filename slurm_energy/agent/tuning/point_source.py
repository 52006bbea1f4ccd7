"""Interface between the code that chooses a job's operating point and the code that applies it."""

from __future__ import annotations

from typing import Any, Protocol

from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.tuning.progress_window import ProgressWindow

HOLD = "hold"
"""Phase in which the operating point stays and only the speed is checked."""


class PointSource(Protocol):
    """Interface of an object that decides at which operating point (hardware settings) a job runs.

    The object is a search on this node, or the coordinator of several nodes. The tuner of the job applies
    the operating point `requested`. The tuner then measures the progress in time windows, and passes each
    window to `observe`. Reading `requested` and calling `observe` must each take less than 1 ms and may
    not block.
    """

    @property
    def requested(self) -> OperatingPoint:
        """Operating point (set of hardware settings) that the job should have now."""

    @property
    def phase(self) -> str:
        """Present phase of the search for the best hardware settings of a job.

        Examples are `reference`, `probe` and `hold`.
        """

    def observe(self, window: ProgressWindow) -> None:
        """Process the measurements of a time window.

        The operating point `requested` may change as a result.
        """

    def summary(self) -> dict[str, Any]:
        """Return the result of the tuning so far, in the format of the key `tuning` of an energy record."""


class ConstantPoint:
    """A source that always requests the same operating point.

    Args:
        point: the operating point.
        summary: result for the record's key `tuning`.
        is_provisional: whether a search replaces this source when the progress of the job becomes known.
    """

    phase = HOLD

    def __init__(
        self, point: OperatingPoint, summary: dict[str, Any], *, is_provisional: bool = False
    ) -> None:
        self.requested = point
        self.is_provisional = is_provisional
        self._summary = summary

    def observe(self, window: ProgressWindow) -> None:
        """Ignore the measured window, because this source always gives the same operating point."""

    def summary(self) -> dict[str, Any]:
        """Return the result of the tuning in the format of the key `tuning` in the job's record."""
        return dict(self._summary)
