"""Daily values of key performance indicators (KPIs) for the two arms of a deployment.

The arms are the treated group and the control group. Effects are estimated from these values.

In the first hours of a day (the washout), jobs that started under the other arm still run. These hours do
not count. The same hours do not count on days of the baseline either, so that all days are compared over the
same time of day.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from slurm_energy.study.data.days import HOUR_S, StudyDays
from slurm_energy.study.data.jobs_table import Bools, Floats, JobsTable
from slurm_energy.study.data.kpis import DailyKpis, EnergyPrices, EnergySeries, daily_kpis
from slurm_energy.study.effects.expected_energy import expected_kwh
from slurm_energy.study.effects.period_series import Integers, PeriodSeries
from slurm_energy.study.rollout.assignment import ArmAssignment, AssignmentDesign

MAX_WASHOUT_S: Final = 12 * HOUR_S
RESIDUAL_SHARE: Final = 0.05
"""Share of the work of the previous arm that may still run after the washout."""
_MIN_WAIT_S: Final = 60.0
_ADJUSTED_FOR_WORK: Final = ("energy_kwh", "energy_per_work_kwh", "cost", "carbon_kg")
_SUMS: Final = ("energy_kwh", "cost", "carbon_kg", "edp_joule_seconds")
"""KPIs that are sums over a day; they are scaled to 24 hours."""


@dataclass(frozen=True, slots=True)
class ExperimentData:
    """Jobs and energy of the baseline and of the deployment of a study.

    Attributes:
        jobs: all jobs within the scope of the study.
        days: the days of the baseline, then the days of the deployment.
        first_day: index of the first day of the deployment.
        energy: energy of all nodes; None means unknown.
        prices: factors for cost and emissions.
        as_drawn: whether the configuration of the randomly drawn arm (treated or control) was in force on
            each day, shape (n,). None means that this was true on all days.
    """

    jobs: JobsTable
    days: StudyDays
    first_day: int
    energy: EnergySeries | None = None
    prices: EnergyPrices | None = None
    as_drawn: Bools | None = None


def washout_seconds(jobs: JobsTable) -> float:
    """Return the length of the washout in seconds.

    In a switchback, the tested change is in force on some days only. In the first hours of a day, jobs that
    started under the rules of the previous day still run. These hours are the washout. It ends when at most
    5 % of the work of these jobs still runs, and after at most 12 h.

    At a random time, the share of the work that still runs t seconds later is E[max(0, L - t)] / E[L]. L is
    the run time, weighted by nodes.
    """
    known = (jobs.run_s > 0) & (jobs.nodes > 0)
    run_s, nodes = jobs.run_s[known], jobs.nodes[known]
    total = float((run_s * nodes).sum())
    if total <= 0.0:
        return 0.0
    for hour in range(int(MAX_WASHOUT_S // HOUR_S)):
        if float((np.maximum(0.0, run_s - hour * HOUR_S) * nodes).sum()) <= RESIDUAL_SHARE * total:
            return hour * HOUR_S
    return MAX_WASHOUT_S


class EffectPeriods:
    """Daily KPI values of a deployment, for its treated jobs and for its control jobs.

    An arm is one of these two groups of jobs.

    Args:
        data: jobs and energy of the baseline and of the deployment.
        assignment: assignment of days, partitions or users to the treated arm and the control arm.
        washout_s: seconds at the start of each day that do not count, because jobs of the previous arm still
            run.
    """

    def __init__(self, data: ExperimentData, assignment: ArmAssignment, washout_s: float) -> None:
        self.data = data
        self.assignment = assignment
        self.washout_s = washout_s if assignment.design is AssignmentDesign.SWITCHBACK else 0.0
        self._segments = _without_washout(data.days, self.washout_s)
        self._daily: dict[tuple[str, str], DailyKpis] = {}
        self._expected: dict[tuple[str, str], Floats | None] = {}

    @property
    def has_control(self) -> bool:
        """Whether the study compares the treated jobs with a control group at the same time."""
        return self.assignment.design in (AssignmentDesign.PARTITION, AssignmentDesign.USERS)

    def series(self, kpi: str, account: str = "") -> PeriodSeries:
        """Return the values of a KPI in each period.

        If the deployment has a control group, only the jobs of the treated group count. In a switchback, in
        which all jobs are treated on days drawn at random, all jobs count.

        Args:
            kpi: name of the KPI.
            account: Slurm account whose jobs count; an empty value means all accounts.
        """
        return self._series(kpi, "treated" if self.has_control else "", account)

    def control_series(self, kpi: str, account: str = "") -> PeriodSeries | None:
        """Return the values of a key performance indicator (KPI) for the control group.

        Return None if there was no control group at the same time as the treated group.
        """
        return self._series(kpi, "control", account) if self.has_control else None

    def accounts(self) -> list[str]:
        """Return the accounts of the jobs."""
        return [str(account) for account in np.unique(self.data.jobs.account)]

    def _series(self, kpi: str, group: str, account: str) -> PeriodSeries:
        daily, expected = self._kpis(group, account), None
        rows = np.arange(self.data.days.count) * (2 if self.washout_s > 0 else 1) + int(self.washout_s > 0)
        values = daily.values[kpi][rows].copy()
        if kpi in _SUMS:
            values *= 24.0 / daily.days.hours[rows]
        work = daily.values["node_hours_per_hour"][rows] if kpi in _ADJUSTED_FOR_WORK else None
        if work is not None and (kwh := self._expected[group, account]) is not None:
            expected = kwh[rows] * 24.0 / daily.days.hours[rows]
            expected = expected / work if kpi == "energy_per_work_kwh" else expected
        if kpi == "worst_wait_s":
            values = self._bounded(values)
        arm, block, counts = self._arms(group)
        is_switchback = self.assignment.design is AssignmentDesign.SWITCHBACK
        series = PeriodSeries(
            self.data.days.edges_s[:-1] / 86400.0,
            self.data.days.weekdays,
            arm,
            np.arange(self.data.days.count) >= self.data.first_day,
            values,
            work,
            expected,
            block,
            self._periods() if is_switchback else None,
        )
        if self.data.as_drawn is not None:
            counts = counts & self.data.as_drawn
        return series.rows(counts & self.data.days.used)

    def _bounded(self, waits_s: Floats) -> Floats:
        """Return waits with a lower bound, so that ratios of waits can be compared.

        The bound is a quarter of the median wait of the baseline, and at least a minute. Without this bound,
        short waits whose exact length does not matter would dominate a ratio.
        """
        own = waits_s[: self.data.first_day]
        own = own[np.isfinite(own)]
        bound_s = max(_MIN_WAIT_S, 0.25 * float(np.median(own))) if len(own) else _MIN_WAIT_S
        return np.maximum(waits_s, bound_s)

    def _kpis(self, group: str, account: str) -> DailyKpis:
        key = group, account
        if key not in self._daily:
            jobs, energy = self.data.jobs, self.data.energy
            if group:
                jobs, energy = jobs.where(self._members(group)), None
            if account:
                jobs, energy = jobs.where(jobs.account == account), None
            self._daily[key] = daily = daily_kpis(jobs, self._segments, energy, self.data.prices)
            kwh = daily.values["energy_kwh"] if energy is not None else None
            begin_s = float(self.data.days.edges_s[self.data.first_day])
            self._expected[key] = expected_kwh(jobs, self._segments, begin_s, kwh)
        return self._daily[key]

    def _members(self, group: str) -> Bools:
        names = self.assignment.treated if group == "treated" else self.assignment.control
        column = (
            self.data.jobs.partition
            if self.assignment.design is AssignmentDesign.PARTITION
            else self.data.jobs.user
        )
        return np.isin(column, list(names))

    def _arms(self, group: str) -> tuple[Bools, np.ndarray | None, Bools]:
        """Return three arrays over the days, which state how each day takes part in the comparison.

        The first array states whether the day is treated, that is, whether the tested change is in force.
        The second array is the block of days within which treatment was drawn at random, or None if it was
        not drawn. The third array states whether the day counts.
        """
        days, first = self.data.days, self.data.first_day
        is_after = np.arange(days.count) >= first
        if self.assignment.design is not AssignmentDesign.SWITCHBACK:
            arm = is_after & (group != "control")
            return arm, None, np.ones(days.count, np.bool_)
        arm = np.zeros(days.count, np.bool_)
        block = np.zeros(days.count, np.int64)
        counts = ~is_after
        middles = 0.5 * (days.edges_s[:-1] + days.edges_s[1:])
        for row in range(first, days.count):
            period = self.assignment.period_at(float(middles[row]))
            if period is not None:
                arm[row], block[row], counts[row] = period.is_treated, 1 + period.block, True
        return arm, block, counts

    def _periods(self) -> Integers:
        """Return the number of the drawn period of a switchback to which each day belongs.

        The days before the deployment are divided into periods of the same length, counted back from the
        deployment, with negative numbers. Days after the last drawn period have a period each.
        """
        days, first, drawn = self.data.days, self.data.first_day, self.assignment.periods
        length = max(1, round((drawn[0].end_s - drawn[0].begin_s) / (24 * HOUR_S))) if drawn else 1
        day = np.arange(days.count)
        number: Integers = np.where(day < first, (day - first) // length, len(drawn) + day)
        middles = 0.5 * (days.edges_s[:-1] + days.edges_s[1:])
        for index, period in enumerate(drawn):
            number[(day >= first) & (period.begin_s <= middles) & (middles < period.end_s)] = index
        return number


def _without_washout(days: StudyDays, washout_s: float) -> StudyDays:
    """Split each day into two segments, so that the first hours can be ignored.

    The first segment is the washout: the hours in which jobs from the day before still run. It is marked as
    unused. The second segment is the rest of the day.
    """
    if washout_s <= 0.0:
        return days
    begin = days.edges_s[:-1]
    inner: Floats = np.column_stack([begin, begin + washout_s]).ravel()
    return replace(
        days,
        dates=tuple(day for day in days.dates for _ in range(2)),
        edges_s=np.append(inner, days.edges_s[-1]),
        used=np.column_stack([np.zeros(days.count, np.bool_), days.used]).ravel(),
    )
