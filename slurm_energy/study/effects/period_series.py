"""Values of a key performance indicator (KPI) by period, for the estimate of the effect of a deployment."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slurm_energy.study.statistics.least_squares import Floats

Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PeriodSeries:
    """Values of a KPI by period, in the order of time.

    Attributes:
        start_day: start of each period in days since an arbitrary day.
        weekday: day of the week, 0 for Monday.
        is_treated: whether the change was in force.
        is_experiment: whether the period belongs to the deployment. All other periods belong to the baseline.
        value: value of the KPI.
        work: work of the period in a unit that the change cannot alter, such as node-hours at untuned speed.
            None means that the comparison does not adjust for work.
        expected: value that the work of the period suggests without the change; None means unknown.
        block: number of the block of periods within which the assignment was drawn at random. None means that
            the assignment was not drawn at random.
        period: number of the drawn period that contains each row, if the rows are days. Days of the baseline
            are divided into periods of the same length. None means that each row is a period of its own.
    """

    start_day: Floats
    weekday: Integers
    is_treated: Booleans
    is_experiment: Booleans
    value: Floats
    work: Floats | None = None
    expected: Floats | None = None
    block: Integers | None = None
    period: Integers | None = None

    def rows(self, keep: Booleans) -> PeriodSeries:
        """Return a copy of the series with only the selected periods (usually days)."""
        return PeriodSeries(
            self.start_day[keep],
            self.weekday[keep],
            self.is_treated[keep],
            self.is_experiment[keep],
            self.value[keep],
            None if self.work is None else self.work[keep],
            None if self.expected is None else self.expected[keep],
            None if self.block is None else self.block[keep],
            None if self.period is None else self.period[keep],
        )

    def relative_to_expected(self) -> PeriodSeries:
        """Return the series with each value divided by the expected value.

        The series is unchanged if the expected values are unknown.
        """
        if self.expected is None:
            return self
        usable = np.isfinite(self.expected) & (self.expected > 0)
        ratio = self.value / np.where(usable, self.expected, np.nan)
        return replace(self, value=ratio, expected=None)
