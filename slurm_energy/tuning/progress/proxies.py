"""Check whether a substitute for a job's progress rate can be trusted.

A substitute (proxy) is, for example, the rate of retired instructions. The check compares the substitute
with a more trusted progress rate.
"""

from __future__ import annotations

import math
from typing import Final

from slurm_energy.tuning.progress.estimate import Progress
from slurm_energy.tuning.progress_window import ProgressSource

_MIN_WINDOWS: Final = 3
_MIN_SPEED_SPREAD: Final = 0.05
_MAX_WINDOWS: Final = 64


class ProxyValidation:
    """Test whether a proxy, such as a sensor value, measures the job's work.

    The proxy is compared with a trusted rate over several measurement windows. It measures the work if it
    and the trusted rate change by the same factor from window to window. Windows of equal speed do not
    suffice, because a proxy that never changes would agree with them, too.

    Args:
        tolerance: maximum relative difference between the factor of the proxy and the factor of the trusted
            rate.
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._source: ProgressSource | None = None
        self._speeds: list[float] = []
        self._ratios: list[float] = []

    def compare(self, proxy: Progress, true: Progress) -> None:
        """Add a measurement window to the comparison of a progress proxy with a trusted progress rate.

        A proxy is a quantity that may follow the progress of the job. If the source of the trusted rate
        differs from that of the previous window, the comparison starts again.

        Args:
            proxy: rate of the proxy in the window.
            true: trusted rate in the window.
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
        """Whether the proxy is refuted as a measure of the job's work.

        A proxy is an indirect measure, such as retired instructions. It is refuted if its ratios to a more
        trusted rate differ too much between at least two windows.
        """
        return len(self._ratios) > 1 and _spread(self._ratios) > self._tolerance

    @property
    def is_confirmed(self) -> bool:
        """Whether the measurement windows confirm that the proxy follows the job's progress.

        A proxy is a substitute for the progress rate, such as the rate of retired instructions. It is
        compared with a trusted progress rate. At least three windows are needed, and the speeds of two of
        them must differ clearly.
        """
        enough = len(self._ratios) >= _MIN_WINDOWS and _spread(self._speeds) >= _MIN_SPEED_SPREAD
        return enough and not self.is_refuted


def _spread(values: list[float]) -> float:
    return max(values) - min(values)
