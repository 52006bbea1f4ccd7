"""Power analysis of a study's baseline.

The analysis determines which effects a validation can detect, and how many days the validation needs
to detect an effect.

The variation between days is determined in the same way as in a validation. The variation is relative
to the energy that is expected from the work of a day. It is adjusted for the weekday and the work.
The first hours of each day (the washout) are left out. If the effect of a change differs between
days, the days with the change vary more than the analysis assumes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slurm_energy.study.data.period import StudyPeriod
from slurm_energy.study.effects.effect_periods import EffectPeriods, ExperimentData, washout_seconds
from slurm_energy.study.effects.effects import adjustment_columns, usable_periods
from slurm_energy.study.rollout.assignment import ArmAssignment, AssignmentDesign
from slurm_energy.study.statistics.least_squares import residual_spread
from slurm_energy.study.statistics.mean_estimate import MIN_DAYS
from slurm_energy.study.statistics.student_t import student_quantile

_MAX_DAYS: Final = 3650
_WEEKDAYS: Final = 7


@dataclass(frozen=True, slots=True)
class DayVariation:
    """How much a KPI (key performance indicator) varies from day to day in a baseline.

    The variation is measured around the values that a later evaluation expects. The evaluation (the step
    `validate` of a study) compares days with and without a change. The variation determines how small an
    effect the evaluation can detect.

    Attributes:
        days: number of days with a known value.
        deviation: standard deviation relative to the mean; NaN means unknown.
        correlation: correlation of neighbouring days, not below 0.
        parameters: number of parameters that the evaluation fits, including the mean.
        adjusted_for: factors for which the evaluation adjusts.
    """

    days: int
    deviation: float
    correlation: float = 0.0
    parameters: int = _WEEKDAYS
    adjusted_for: tuple[str, ...] = ()


def day_variation(period: StudyPeriod, kpi: str, design: AssignmentDesign) -> DayVariation:
    """Return how much a KPI varies from day to day in the baseline of a study.

    The variation determines how small an effect the study can detect. It is computed in the same way as in
    the later validation of a deployment.

    Args:
        period: measured period of the step `baseline`.
        kpi: name of the KPI.
        design: `SWITCHBACK` or `NONE`. In a switchback, a change is switched on and off on random days, and
            the first hours of each day (the washout) do not count.
    """
    data = ExperimentData(period.jobs, period.days, period.days.count, period.energy, period.prices)
    periods = EffectPeriods(data, ArmAssignment(design, -1), washout_seconds(period.jobs))
    raw = periods.series(kpi)
    has_expected = raw.expected is not None
    series, is_relative = usable_periods(raw.relative_to_expected())
    count = len(series.value)
    if count == 0:
        return DayVariation(0, math.nan)
    columns, names = adjustment_columns(series)
    # The expected energy was fitted to the same days: its parameters cost degrees of freedom too.
    fitted = 1 + len(np.unique(period.jobs.partition)) if has_expected and period.energy is not None else 0
    values = np.log(series.value) if is_relative else series.value
    deviation, correlation = residual_spread(np.column_stack(columns), values, fitted)
    if not is_relative:
        deviation /= abs(float(series.value.mean())) or math.nan
    names += ["expected energy"] if has_expected else []
    return DayVariation(count, deviation, correlation, len(columns), tuple(names))


@dataclass(frozen=True, slots=True)
class PowerAnalysis:
    """Statistical power of a baseline: how small an effect a later comparison can detect.

    Attributes:
        wanted: wanted relative change, as a positive number.
        detectable: minimum relative change that a comparison with equally many later days detects.
        detectable_switchback: minimum relative change that a switchback (changes on random days) over
            equally many days detects.
        days: number of days of the baseline.
        needed_days: number of days that the baseline and the later comparison each need for the wanted
            effect. None means more than ten years, or unknown.
        needed_switchback_days: number of days that a switchback needs for the wanted effect. None means more
            than ten years, or unknown.
        deviation: relative standard deviation of daily values on which the figures are based; NaN means
            unknown.
        adjusted_for: factors for which the comparison adjusts.
    """

    wanted: float
    detectable: float
    detectable_switchback: float
    days: int
    needed_days: int | None
    needed_switchback_days: int | None
    deviation: float
    adjusted_for: tuple[str, ...]

    @property
    def suffices(self) -> bool:
        """Whether the baseline has at least as many days as are needed to detect the wanted effect."""
        return self.needed_days is not None and self.days >= self.needed_days

    @property
    def missing_days(self) -> int | None:
        """Number of further days that the baseline needs; None if the baseline cannot become long enough."""
        return None if self.needed_days is None else max(0, self.needed_days - self.days)

    def to_json(self) -> dict[str, Any]:
        """Return the analysis as a JSON object."""
        return {
            "wanted": self.wanted,
            "detectable": self.detectable,
            "detectable_switchback": self.detectable_switchback,
            "days": self.days,
            "needed_days": self.needed_days,
            "needed_switchback_days": self.needed_switchback_days,
            "suffices": self.suffices,
            "missing_days": self.missing_days,
            "deviation": self.deviation,
            "adjusted_for": list(self.adjusted_for),
        }


def power_analysis(
    comparison: DayVariation,
    wanted: float,
    confidence: float = 0.95,
    power: float = 0.8,
    switchback: DayVariation | None = None,
) -> PowerAnalysis:
    """Return the effects that a baseline can detect, and how many days the wanted effect needs.

    Baseline and comparison have n days each. The difference of their means has the variance 2 s^2 / n. In a
    switchback over n days, the difference has the variance 4 s^2 / n. s^2 is the variance of daily values,
    increased for the correlation of neighbouring days.

    Args:
        comparison: variation of days in a comparison with the baseline.
        wanted: wanted relative change, positive.
        confidence: confidence level of the interval in the validation.
        power: probability with which the validation should detect the effect.
        switchback: variation of days in a switchback; None means the same as `comparison`.

    Source: Cohen 1988, Statistical Power Analysis, section 2 (with Student's t for few days).
    """
    switchback = switchback or comparison
    correlation = comparison.correlation
    inflated = comparison.deviation * math.sqrt((1 + correlation) / (1 - correlation))
    alternating = switchback.deviation * math.sqrt(2)  # alternating days share the length between two arms

    def detectable(days: int, deviation: float, groups: int, parameters: int) -> float:
        freedom = max(1.0, groups * days - parameters - 1)
        quantiles = student_quantile(0.5 + confidence / 2, freedom) + student_quantile(power, freedom)
        return quantiles * deviation * math.sqrt(2 / days)

    def needed(deviation: float, groups: int, parameters: int) -> int | None:
        if not math.isfinite(deviation):
            return None
        low, high = MIN_DAYS, _MAX_DAYS + 1
        while low < high:  # more days detect smaller changes
            middle = (low + high) // 2
            if detectable(middle, deviation, groups, parameters) <= wanted:
                high = middle
            else:
                low = middle + 1
        return low if low <= _MAX_DAYS else None

    days, own, other = comparison.days, comparison.parameters, switchback.parameters
    return PowerAnalysis(
        wanted,
        detectable(days, inflated, 2, own) if days else math.nan,
        detectable(switchback.days, alternating, 1, other) if switchback.days else math.nan,
        days,
        needed(inflated, 2, own),
        needed(alternating, 1, other),
        comparison.deviation,
        comparison.adjusted_for,
    )
