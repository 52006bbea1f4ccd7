"""Forecast of an alternative: a simulated change of the site, compared with the present site.

The twin (the simulator calibrated for the site) simulates several weeks, one period for each seed. Seed 0 is
the held-out period, whose days did not calibrate the twin. The periods of other seeds are composed of random
days of the data. A working day is replaced by a working day, and a weekend day by a weekend day. The
alternative and the present site are simulated with the same jobs, so that the difference does not depend on
the choice of days.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.signals.signal_series import from_grid
from slurm_energy.study.characterisation.responses import ClassResponses
from slurm_energy.study.choice.alternatives import StudyAlternative
from slurm_energy.study.data.days import HOUR_S, StudyDays
from slurm_energy.study.data.jobs_table import Bools, Floats, JobsTable, concatenated
from slurm_energy.study.data.kpis import DailyKpis, EnergyPrices, account_kpis, daily_kpis
from slurm_energy.study.modelling.twin import TwinChange, TwinDeferral, TwinSettings, simulate
from slurm_energy.study.statistics.student_t import student_quantile

_HISTORY_S: Final = 28 * 86_400.0
"""Time before the period for which the simulated controller knows prices, if the file contains them."""
WARM_UP_DAYS: Final = 2
"""Days before the period whose jobs are simulated, so that the period begins with a busy cluster."""


@dataclass(frozen=True, slots=True)
class ForecastInput:
    """Input that all simulations in the step `choose` of an energy study have in common.

    Attributes:
        jobs: all jobs of the data, with their classes.
        days: the days of the data.
        first, end: index of the first held-out day, and index of the day after the last held-out day.
            Held-out days are days that did not calibrate the digital twin.
        twin: calibrated settings of the digital twin (the simulator of the site).
        responses: response curves of the job classes. A response curve states how time and power depend
            on the hardware settings.
        prices: price and carbon intensity of energy.
        account_kpi_names: names of the KPIs that are computed for each account.
        slack_share: assumed share of the jobs whose users permit a later start.
        slack_s: assumed time by which the start of these jobs may be delayed.
    """

    jobs: JobsTable
    days: StudyDays
    first: int
    end: int
    twin: TwinSettings
    responses: ClassResponses
    prices: EnergyPrices
    account_kpi_names: tuple[str, ...] = ()
    slack_share: float = 0.0
    slack_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """Figures of the jobs of an account or a class in one simulation.

    Attributes:
        jobs: number of jobs that ended.
        energy_kwh: energy of these jobs.
        wait_s, completion_s: mean wait of these jobs, and mean time from submission to end.
    """

    jobs: int
    energy_kwh: float
    wait_s: float
    completion_s: float


def period_jobs(data: ForecastInput, seed: int) -> JobsTable:
    """Return the jobs that one simulation of an energy study replays.

    The jobs of some days before the period are included to fill the simulated cluster.

    Args:
        data: common input of all simulations.
        seed: 0 selects the days that did not calibrate the twin (held-out days). Other values select days
            drawn at random.
    """
    days, jobs = data.days, data.jobs
    if seed == 0:
        from_s, end_s = days.edges_s[max(0, data.first - WARM_UP_DAYS)], days.edges_s[data.end]
        return jobs.where((jobs.submit_s >= from_s) & (jobs.submit_s < end_s))
    random = np.random.default_rng([seed, 0x57D])
    weekend = days.weekdays >= 5
    parts = []
    for row in range(max(0, data.first - WARM_UP_DAYS), data.end):
        pool = np.flatnonzero(days.used & (weekend == weekend[row]))
        drawn = int(random.choice(pool)) if len(pool) else row
        on_day: Bools = (jobs.submit_s >= days.edges_s[drawn]) & (jobs.submit_s < days.edges_s[drawn + 1])
        parts.append(_moved(jobs.where(on_day), float(days.edges_s[row] - days.edges_s[drawn])))
    return concatenated(parts)


def _moved(jobs: JobsTable, by_s: float) -> JobsTable:
    return replace(jobs, submit_s=jobs.submit_s + by_s, start_s=jobs.start_s + by_s, end_s=jobs.end_s + by_s)


def forecast_run(data: ForecastInput, alternative: StudyAlternative, seed: int) -> dict[str, Any]:
    """Simulate an alternative with random jobs and return its figures as a JSON object.

    Args:
        data: common input of all simulations.
        alternative: combination of means to save energy (levers) to simulate.
        seed: seed of the random numbers. It determines which jobs are simulated, and the random errors of
            the response curves.
    """
    jobs = period_jobs(data, seed)
    run = simulate(jobs, data.twin, _change(data, alternative, jobs, seed), seed)
    days = data.days.between(data.first, data.end)
    if seed:
        days = replace(days, used=np.ones(days.count, np.bool_))
    daily = daily_kpis(run.jobs, days, run.energy, data.prices)
    inside = (run.jobs.end_s >= days.edges_s[0]) & (run.jobs.end_s < days.edges_s[-1])
    ended = run.jobs.where(inside)
    document: dict[str, Any] = {
        "kpis": {name: _mean(daily, name) for name in daily.values},
        "deviations": {name: _deviation(daily, name) for name in daily.values},
        "accounts": {name: asdict(totals) for name, totals in _groups(ended, ended.account).items()},
        "classes": {name: asdict(totals) for name, totals in _groups(ended, ended.job_class).items()},
        "notes": list(run.notes),
    }
    if data.account_kpi_names:
        by_account = account_kpis(run.jobs, days, data.prices)
        document["account_kpis"] = {
            account: {name: _mean(values, name) for name in data.account_kpi_names}
            for account, values in by_account.items()
        }
    return document


def _change(data: ForecastInput, alternative: StudyAlternative, jobs: JobsTable, seed: int) -> TwinChange:
    time_ratio = power_ratio = None
    if alternative.tuning:
        limit = None if alternative.slowdown_percent is None else alternative.slowdown_percent / 100
        random = np.random.default_rng([seed, 0xC1A55]) if seed else None
        time_ratio, power_ratio = data.responses.ratios(jobs, alternative.tuning, limit, random)
    return TwinChange(
        alternative.ranking,
        alternative.weights,
        alternative.budget_watts,
        alternative.powers_down,
        _deferral(data, alternative.deferral, jobs, seed) if alternative.deferral else None,
        time_ratio,
        power_ratio,
        data.responses.caps() if alternative.budget_watts is not None else {},
    )


def _deferral(data: ForecastInput, policy: str, jobs: JobsTable, seed: int) -> TwinDeferral:
    """Return a deferral of jobs in the simulation. Jobs that may wait are drawn at random."""
    series = data.prices.carbon_g_per_kwh if policy == "cleanest" else data.prices.price_per_kwh
    if series is None:
        name = "carbon intensity" if policy == "cleanest" else "price"
        raise UsageError(f"deferral {policy}", f"the {name} is unknown", "give its file in [prices]")
    chosen = np.random.default_rng([seed, 0x51AC]).random(jobs.count) < data.slack_share
    begin_s = float(np.nanmin(jobs.submit_s)) - _HISTORY_S
    end_s = float(np.nanmax(jobs.end_s)) + data.slack_s
    slack_s = np.where(chosen, data.slack_s, np.nan)
    return TwinDeferral(policy, slack_s, from_grid(series, begin_s, end_s, HOUR_S))


def _mean(daily: DailyKpis, name: str) -> float | None:
    values = daily.used(name)
    return float(values.mean()) if len(values) else None


def _deviation(daily: DailyKpis, name: str) -> float | None:
    values = daily.used(name)
    return float(values.std(ddof=1)) if len(values) > 1 else None


def _groups(jobs: JobsTable, names: np.ndarray) -> dict[str, GroupTotals]:
    """Return number, energy and mean waits of the jobs in a simulation, by name of their group.

    A group is an account or a class of jobs. `names` has the group of each job.
    """
    totals = {}
    for name in np.unique(names):
        part = jobs.where(names == name)
        kwh = float(np.nansum(part.energy_joules)) / 3.6e6
        waits_s = float(np.mean(part.start_s - part.submit_s))
        totals[str(name)] = GroupTotals(part.count, kwh, waits_s, float(np.mean(part.completion_s)))
    return totals


@dataclass(frozen=True, slots=True)
class ForecastChange:
    """Forecast of how a figure, such as energy, changes under an alternative.

    An alternative is a combination of energy measures. It is compared with the present configuration of
    the site.

    Attributes:
        today: mean under the present configuration.
        value: mean under the alternative.
        change: relative change; NaN means unknown.
        low, high: prediction interval of the change in a further period.
        mean_low, mean_high: confidence interval of the mean change over many periods.
    """

    today: float
    value: float
    change: float
    low: float
    high: float
    mean_low: float
    mean_high: float


def forecast_change(
    today: Sequence[float | None], values: Sequence[float | None], confidence: float
) -> ForecastChange | None:
    """Return the forecast change of a figure between the present configuration and an alternative.

    The present configuration and the alternative are simulated with the same seeds. The change is computed
    from pairs of simulations with equal seeds. The result is None if the figure is unknown in every pair.

    Args:
        today: the figure under the present configuration, by seed.
        values: the figure under the alternative, by seed.
        confidence: confidence level of the intervals. The intervals are unknown if the figure is known for
            one seed only.
    """
    pairs = [(a, b) for a, b in zip(today, values, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    before, after = (np.array(column, np.float64) for column in zip(*pairs, strict=True))
    mean, value = float(before.mean()), float(after.mean())
    known = before != 0
    if not known.any():
        return ForecastChange(mean, value, *[math.nan] * 5)
    changes: Floats = after[known] / before[known] - 1
    change, count = float(changes.mean()), len(changes)
    if count < 2:
        return ForecastChange(mean, value, change, *[math.nan] * 4)
    half = student_quantile(0.5 + confidence / 2, count - 1) * float(changes.std(ddof=1))
    period, mean_half = half * math.sqrt(1 + 1 / count), half / math.sqrt(count)
    return ForecastChange(
        *(mean, value, change, change - period, change + period, change - mean_half, change + mean_half)
    )


def group_changes(
    today: Sequence[Mapping[str, Any]], runs: Sequence[Mapping[str, Any]], key: str
) -> list[dict[str, Any]]:
    """Compare the accounts or classes of jobs between the present site and an alternative.

    There are several simulations of both. The results of one side are joined to means.

    Args:
        today: results of the present site, by seed.
        runs: results of the alternative, by seed.
        key: `accounts` or `classes`.

    Returns:
        One object per account or class. It contains the `name`, and the values in `today` (present site)
        and `alternative`. The values are the number of jobs, the energy, the mean wait and the mean
        completion time.
    """
    names = sorted({name for run in (*today, *runs) for name in run[key]})
    rows = []
    for name in names:
        before, after = (_joined([run[key].get(name) for run in some]) for some in (today, runs))
        rows.append({"name": name, "today": before, "alternative": after})
    return rows


def _joined(totals: Sequence[Mapping[str, Any] | None]) -> dict[str, float | None]:
    """Return the mean figures of an account, or of a class of jobs, over all simulated periods.

    The numbers of jobs and the energy are means per period. The times are means per job.
    """
    known = [one for one in totals if one is not None]
    jobs = sum(one["jobs"] for one in known)
    if not jobs:
        return {"jobs": 0.0, "energy_kwh": 0.0, "wait_s": None, "completion_s": None}
    return {
        "jobs": jobs / len(totals),
        "energy_kwh": sum(one["energy_kwh"] for one in known) / len(totals),
        "wait_s": sum(one["wait_s"] * one["jobs"] for one in known) / jobs,
        "completion_s": sum(one["completion_s"] * one["jobs"] for one in known) / jobs,
    }
