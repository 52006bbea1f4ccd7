"""Validation of a progress proxy, such as retired instructions, against a more trusted progress rate."""

from __future__ import annotations

import math
from typing import Final

from slurm_energy.tuning.progress.estimate import Progress
from slurm_energy.tuning.progress_window import ProgressSource

_MIN_WINDOWS: Final = 3
_MIN_SPEED_SPREAD: Final = 0.05
_MAX_WINDOWS: Final = 64


class ProxyValidation:
    """Comparison of a proxy with a trusted rate over several measurement windows.

    A proxy measures the job's work if the proxy and the trusted rate change by the same factor. Windows of
    equal speed do not suffice, because a proxy that never changes would agree with them, too.

    Args:
        tolerance: maximum relative difference of the two factors.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._source: ProgressSource | None = None
        self._speeds: list[float] = []
        self._ratios: list[float] = []

    def compare(self, proxy: Progress, true: Progress) -> None:
        """Add a measurement window.

        If the trusted source differs from that of the previous window, start the comparison again.
        """
        if true.source is not self._source:
            self._source = true.source
            self._speeds.clear()
            self._ratios.clear()
        if len(self._speeds) < _MAX_WINDOWS:
            self._speeds.append(math.log(true.units_per_s))
            self._ratios.append(math.log(proxy.units_per_s / true.units_per_s))

    @property
    def is_refuted(self) -> bool:
        """Whether two windows contradict the assumption that the proxy measures the job's work."""
        return len(self._ratios) > 1 and _spread(self._ratios) > self._tolerance

    @property
    def is_confirmed(self) -> bool:
        """Whether three windows agree with the proxy. Two windows must have clearly different speeds."""
        enough = len(self._ratios) >= _MIN_WINDOWS and _spread(self._speeds) >= _MIN_SPEED_SPREAD
        return enough and not self.is_refuted


def _spread(values: list[float]) -> float:
    return max(values) - min(values)
