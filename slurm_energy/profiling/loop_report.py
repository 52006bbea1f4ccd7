"""Progress reports of a training loop, with the number of its steps and statistics of its phases.

A report is sent at most twice a second.
"""

from __future__ import annotations

from typing import Final

from slurm_energy.profiling.progress import progress
from slurm_energy.profiling.step_recorder import recorder

_REPORT_NS: Final = 500_000_000
_COLLECT_NS: Final = 2_000_000_000
_MAX_STEPS: Final = 1024
"""Maximum number of steps between two computations of statistics. It bounds the memory and the pause."""


class LoopReport:
    """Reports of one loop.

    Statistics are computed every two seconds, because processing many steps at once costs less per step.

    Args:
        total: total number of steps of this process, if known.
    """

    __slots__ = ("_collect_ns", "_collect_steps", "_sent", "total")

    def __init__(self, total: float | None = None) -> None:
        self.total = total
        self._collect_ns = self._collect_steps = self._sent = 0

    def send(self, end_ns: int, steps: int) -> tuple[int, int]:
        """Report the steps that have ended, and return when the loop should call this method again.

        Args:
            end_ns: end of the last step.
            steps: number of steps since the loop began.

        Returns:
            A time and a number of steps. The loop calls this method again when a step ends after this time,
            or when it has done this number of steps.
        """
        if end_ns >= self._collect_ns or steps >= self._collect_steps:
            self._collect_ns, self._collect_steps = end_ns + _COLLECT_NS, steps + _MAX_STEPS
            recorder.collect()
        self.close(steps)
        return end_ns + _REPORT_NS, self._collect_steps

    def close(self, steps: int) -> None:
        """Report the last steps of the training loop as progress.

        The statistics of all steps are reported later, when Python exits.
        """
        progress(steps - self._sent, self.total)
        self._sent = steps
