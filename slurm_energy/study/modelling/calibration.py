"""Calibration of the digital twin (simulation model of the cluster) with a measured period.

The calibration determines the nodes, their idle power, the scheduling rule and the delay of starts.
All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.study.data.days import HOUR_S, spread
from slurm_energy.study.data.jobs_table import Floats, JobsTable
from slurm_energy.study.data.kpis import EnergySeries
from slurm_energy.study.data.period import StudyPeriod
from slurm_energy.study.modelling.twin import TwinKind, TwinSettings, simulate

_IMMEDIATE_S: Final = 1.0
"""Simulated wait up to which a job counts as started at once."""
Fit = tuple[float, float]
Cache = Callable[[str, Callable[[], Fit]], Fit]


@dataclass(frozen=True, slots=True)
class CalibratedTwin:
    """A simulation model (digital twin) of the cluster that was calibrated with a measured period.

    Attributes:
        settings: settings of the twin.
        candidates: the scheduling rules that were tried in the calibration. For each rule, the value is
            the relative error of the simulated mean completion time in the calibration period.
        notes: how each figure was obtained, one line each.
    """

    settings: TwinSettings
    candidates: Mapping[str, float]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the calibrated twin (simulated site) as a JSON object."""
        return {
            "twin": self.settings.document(),
            "candidates": dict(self.candidates),
            "notes": list(self.notes),
        }


def calibrated_twin(
    period: StudyPeriod, nodes: Mapping[str, int] | None = None, cached: Cache | None = None
) -> CalibratedTwin:
    """Return the digital twin (simulation model of the cluster), calibrated with a measured period.

    For a partition whose number of nodes is not given, the maximum number of nodes that jobs held at once
    is used. The idle power follows from a regression of the energy without jobs on the idle node-hours.
    Several scheduling rules are tried in a replay of the period. The twin uses the rule whose simulated
    mean completion time is nearest to the measured one.

    Args:
        period: measured period for the calibration.
        nodes: number of nodes by partition. The number is estimated for missing partitions.
        cached: function that returns the stored score with a name. If no score is stored, the function
            computes and stores the score. None means that nothing is stored.

    Raises:
        UsageError: no job of the period has run, or a given partition has no job.
    """
    jobs = period.jobs.where(period.jobs.run_s > 0)
    if not jobs.count:
        raise UsageError("the baseline", "has no finished job", "measure a longer baseline")
    notes: list[str] = []
    sizes = _sizes(jobs, nodes or {}, notes)
    idle_watts = _idle_watts(jobs, period, sum(sizes.values()), notes)
    kinds = {name: TwinKind(count, idle_watts) for name, count in sizes.items()}
    watts = jobs.power_watts / np.maximum(jobs.nodes, 1)
    known = watts[~np.isnan(watts)]
    default_watts = float(np.median(known)) if len(known) else idle_watts
    if len(known) < jobs.count:
        notes.append(
            f"{jobs.count - len(known)} of {jobs.count} jobs have no measured energy: "
            f"the median of the others is assumed, {default_watts:.0f} W per node"
        )
    fits: dict[str, tuple[float, float]] = {}
    candidates = _candidates(TwinSettings(kinds, default_watts=default_watts))
    for label, candidate in candidates.items():
        compute = partial(replay_fit, period.jobs, candidate)
        fits[label] = compute() if cached is None else cached(label, compute)
    best = min(fits, key=lambda name: fits[name][0])  # the first of equals
    scores = {label: fit[0] for label, fit in fits.items()}
    settings = replace(candidates[best], start_delay_s=fits[best][1])
    notes.append(f"schedule: {best}, mean completion time {scores[best]:.1%} off in the calibration period")
    if settings.start_delay_s >= _IMMEDIATE_S:
        notes.append(f"jobs start {settings.start_delay_s:.0f} s after nodes are free")
    return CalibratedTwin(settings, scores, tuple(notes))


def _candidates(base: TwinSettings) -> dict[str, TwinSettings]:
    """Return the scheduling rules to compare when the twin is calibrated, by label.

    The twin is the simulator of the site. It is simulated once under each of these rules.
    """
    labels = {}
    for discipline in (Discipline.EASY, Discipline.CONSERVATIVE):
        for name, uses_limits in (("time limits", True), ("run times", False)):
            settings = replace(base, discipline=str(discipline), uses_limits=uses_limits)
            labels[f"fcfs, {discipline}, {name}"] = settings
    labels["fcfs, strict"] = replace(base, discipline=str(Discipline.STRICT))
    return labels


def replay_fit(jobs: JobsTable, settings: TwinSettings) -> tuple[float, float]:
    """Compare a replay of measured jobs with their real completion times.

    The replay simulates the jobs in the digital twin. Because of scheduling passes, prolog and begin times,
    Slurm starts a job some seconds after nodes are free. This start delay is estimated as the mean measured
    wait of the jobs that the twin starts at once. It is added to all simulated times.

    Returns:
        Relative error of the mean completion time if the delay is added, and the delay in seconds.
    """
    finished = jobs.where(jobs.run_s >= 1)
    simulated = simulate(finished, settings).jobs
    at_once = simulated.start_s - simulated.submit_s <= _IMMEDIATE_S
    waits_s = (finished.start_s - finished.submit_s)[at_once]
    delay_s = max(0.0, float(waits_s.mean())) if len(waits_s) else 0.0
    if np.isnan(simulated.completion_s).all():
        return math.inf, delay_s
    mean_s = float(np.nanmean(simulated.completion_s)) + delay_s
    return abs(mean_s / float(finished.completion_s.mean()) - 1), delay_s


def _sizes(jobs: JobsTable, given: Mapping[str, int], notes: list[str]) -> dict[str, int]:
    """Return the number of nodes by partition."""
    names = [str(name) for name in np.unique(jobs.partition)]
    for name in given:
        if name not in names:
            raise UsageError(f"--nodes {name}", "no job ran in this partition", f"known: {', '.join(names)}")
    sizes = {}
    for name in names:
        if name in given:
            sizes[name] = given[name]
            continue
        sizes[name] = peak_nodes(jobs.where(jobs.partition == name))
        notes.append(f"partition {name or '(none)'}: jobs held at most {sizes[name]} nodes at once")
    return sizes


def peak_nodes(jobs: JobsTable) -> int:
    """Return the maximum number of nodes that jobs held at the same time; at least 1."""
    times = np.concatenate([jobs.end_s, jobs.start_s])
    changes = np.concatenate([-np.nan_to_num(jobs.nodes, nan=1.0), np.nan_to_num(jobs.nodes, nan=1.0)])
    order = np.argsort(times, kind="stable")  # ends come before starts at the same time
    held = np.cumsum(changes[order])
    return max(1, math.ceil(float(held.max()) - 1e-9)) if len(held) else 1


def _idle_watts(jobs: JobsTable, period: StudyPeriod, nodes: int, notes: list[str]) -> float:
    """Return the power of an idle node.

    The power is computed from the hours in which the energy of nodes and jobs is known.
    """
    if period.energy is None:
        notes.append("idle power: unknown, 0 W assumed; energies are those of jobs")
        return 0.0
    rest, idle_s = _energy_without_jobs(jobs, period.energy, nodes)
    usable = idle_s > 0.02 * nodes * HOUR_S
    if not usable.any() or float(idle_s[usable] @ idle_s[usable]) == 0:
        notes.append("idle power: unknown, no hour has idle nodes; 0 W assumed")
        return 0.0
    watts = max(0.0, float(rest[usable] @ idle_s[usable]) / float(idle_s[usable] @ idle_s[usable]))
    notes.append(f"idle power: {watts:.0f} W per node, from {int(usable.sum())} hours")
    return watts


def _energy_without_jobs(jobs: JobsTable, energy: EnergySeries, nodes: int) -> tuple[Floats, Floats]:
    """Return two values for each hour: the energy that no job used, and the idle node-seconds.

    From these values the calibration computes the idle power of a node. Hours with an unknown energy are
    left out.
    """
    edges = np.append(energy.start_s, energy.end_s[-1])
    held = spread(jobs.start_s, jobs.end_s, jobs.nodes * jobs.run_s, edges)
    unknown = jobs.where(np.isnan(jobs.energy_joules))
    unmeasured = spread(unknown.start_s, unknown.end_s, unknown.nodes * unknown.run_s, edges)
    known = jobs.where(~np.isnan(jobs.energy_joules))
    of_jobs = spread(known.start_s, known.end_s, known.energy_joules, edges)
    length_s = energy.end_s - energy.start_s
    adjacent = np.append(energy.start_s[1:] == energy.end_s[:-1], True)
    kept = ~np.isnan(energy.joules) & (unmeasured < 0.01 * np.maximum(held, 1.0)) & adjacent
    rest: Floats = (energy.joules - of_jobs)[kept]
    idle_s: Floats = np.maximum(0.0, nodes * length_s - held)[kept]
    return rest, idle_s
