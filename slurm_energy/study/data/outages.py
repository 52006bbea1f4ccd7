"""Days of a period that do not show normal operation, each with the reason. Pure functions."""

from __future__ import annotations

from datetime import date
from typing import Final

import numpy as np

from slurm_energy.study.data.days import HOUR_S, StudyDays, spread
from slurm_energy.study.data.jobs_table import OUTAGE_STATES, Floats, JobsTable
from slurm_energy.study.data.kpis import EnergySeries

_MIN_GAP_S: Final = 6 * HOUR_S
_FAILED_SHARE: Final = 0.2
_MIN_FAILED: Final = 3
_IDLE_SHARE: Final = 0.05
_MISSING_SHARE: Final = 0.05


def outages(jobs: JobsTable, days: StudyDays, energy: EnergySeries | None) -> dict[date, str]:
    """Return the days that do not show normal operation, each with the reason.

    A day is returned if at least one of these conditions holds:

    - No job starts for at least six hours, and for ten times the usual gap between starts, while
      jobs wait.
    - At least a fifth of the jobs end because nodes failed.
    - There is hardly any work compared with the median day.
    - The energy of the nodes is missing for more than 5 % of the day.

    Args:
        jobs: all jobs of the period.
        days: days of the period.
        energy: energy of the nodes; None means not used.
    """
    reasons: dict[date, str] = {}
    checks = (
        _stopped_starts(jobs, days),
        _node_failures(jobs, days),
        _idle_days(jobs, days),
        {} if energy is None else _missing_energy(energy, days),
    )
    for found in checks:
        for row, reason in found.items():
            reasons.setdefault(days.dates[row], reason)
    return dict(sorted(reasons.items()))


def _stopped_starts(jobs: JobsTable, days: StudyDays) -> dict[int, str]:
    """Return the days on which no job started for a long time, although a job was waiting."""
    started = jobs.where(~np.isnan(jobs.start_s))
    times = np.unique(started.start_s)
    if len(times) < 2:
        return {}
    gaps = np.diff(times)
    bound_s = max(_MIN_GAP_S, 10 * float(np.median(gaps)))
    reasons: dict[int, str] = {}
    for index in np.flatnonzero(gaps >= bound_s):
        begin, end = times[index], times[index + 1]
        waited = (jobs.submit_s <= end - _MIN_GAP_S) & ~(jobs.start_s < end) & ~(jobs.end_s < end)
        if not waited.any():
            continue
        hours = (end - begin) / HOUR_S
        last = np.searchsorted(days.edges_s, end, side="left")
        for row in range(max(0, int(np.searchsorted(days.edges_s, begin, side="right")) - 1), last):
            if row < days.count:
                reasons[row] = f"no job started for {hours:.0f} h while jobs waited"
    return reasons


def _node_failures(jobs: JobsTable, days: StudyDays) -> dict[int, str]:
    ended = days.day_of(jobs.end_s)
    failed = np.isin(jobs.state, sorted(OUTAGE_STATES))
    all_jobs = np.bincount(ended[ended >= 0], minlength=days.count)
    failures = np.bincount(ended[(ended >= 0) & failed], minlength=days.count)
    rows = np.flatnonzero((failures >= _MIN_FAILED) & (failures >= _FAILED_SHARE * all_jobs))
    return {
        int(row): f"{failures[row]} of {all_jobs[row]} jobs ended because of failed nodes" for row in rows
    }


def _idle_days(jobs: JobsTable, days: StudyDays) -> dict[int, str]:
    ran = jobs.where(jobs.end_s > jobs.start_s)
    work: Floats = spread(ran.start_s, ran.end_s, ran.nodes * ran.run_s / HOUR_S, days.edges_s)
    usual = float(np.median(work)) if days.count else 0.0
    rows = np.flatnonzero(work < _IDLE_SHARE * usual)
    return {int(row): f"{work[row]:.1f} node-hours of work, usual are {usual:.1f}" for row in rows}


def _missing_energy(energy: EnergySeries, days: StudyDays) -> dict[int, str]:
    known = ~np.isnan(energy.joules)
    start, end = energy.start_s[known], energy.end_s[known]
    missing = 1.0 - spread(start, end, end - start, days.edges_s) / np.diff(days.edges_s)
    # Days before the first measurement are days without energy, not outages.
    first = int(np.argmax(missing < 1.0)) if np.any(missing < 1.0) else days.count
    rows = [row for row in np.flatnonzero(missing > _MISSING_SHARE).tolist() if row >= first]
    return {row: f"the energy of nodes is missing for {missing[row]:.0%} of the day" for row in rows}
