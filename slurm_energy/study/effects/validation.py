"""Step 6 of a study, the validation: it measures the effect of the deployment.

The result contains verdicts on the targets and limits. If a limit is broken, the deployment is undone.
Source: thesis, section 6.3.6; the intervals and the control group are additions to this method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from typing import Any, Final

import numpy as np

from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.study.baseline import read_baseline
from slurm_energy.study.data.days import HOUR_S, StudyDays, date_of, study_days
from slurm_energy.study.data.energy_file import energy_csv
from slurm_energy.study.data.jobs_table import JobsTable, concatenated, csv_text
from slurm_energy.study.data.kpis import EnergySeries
from slurm_energy.study.data.period import (
    ENERGY_NAME,
    JOBS_NAME,
    StudyPeriod,
    measured_period,
    period_document,
)
from slurm_energy.study.data.source_data import StudySources, source_data
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.effects.effect_periods import EffectPeriods, ExperimentData, washout_seconds
from slurm_energy.study.effects.effects import EffectEstimate, carry_over
from slurm_energy.study.effects.placebo import PlaceboCheck, difference_placebo, switchback_placebo
from slurm_energy.study.effects.validation_days import days_csv, effect_days
from slurm_energy.study.goals.indicators import KPIS
from slurm_energy.study.goals.objective import StudyObjective
from slurm_energy.study.goals.verdicts import (
    LimitResult,
    LimitVerdict,
    TargetResult,
    estimate_effect,
    judge_limit,
    judge_target,
)
from slurm_energy.study.rollout.assignment import ArmAssignment, AssignmentDesign
from slurm_energy.study.rollout.deploy_step import Apply, Deployment, apply_configuration
from slurm_energy.study.rollout.deployment import DeploymentState
from slurm_energy.study.step_run import RESULT_NAME, file_sha256

STEP: Final = "validate"
DAYS_NAME: Final = "days.csv"


@dataclass(frozen=True, slots=True)
class ValidationOptions:
    """Options of the validation of a deployment in an energy study.

    A switchback is an experiment in which the deployment is switched on and off on random days.

    Attributes:
        seed: seed of the randomisation test and of the placebo checks.
        washout_hours: hours at the start of each day of a switchback that do not count. None means that
            these hours are computed from the run times of jobs in the baseline.
        undo: whether the deployment is undone if a limit is broken.
    """

    seed: int = 0
    washout_hours: float | None = None
    undo: bool = True


def run_validation(
    study: StudyDirectory,
    sources: StudySources,
    command: str,
    options: ValidationOptions,
    apply: Apply = apply_configuration,
) -> dict[str, Any]:
    """Run the step `validate` of a study and return its result.

    If a limit is broken, the deployment is reverted.

    Args:
        study: directory of the study.
        sources: jobs and energy of the deployment.
        command: command line of the step, which the manifest records.
        options: options of the validation.
        apply: function that brings the restored configuration into force.

    Raises:
        EnergyError: the data cannot be read, the deployment has no effect on jobs, or the configuration
            cannot be restored.
    """
    chosen = {**sources.options, "washout_hours": options.washout_hours, "undo": options.undo}
    seed = options.seed
    with study.running(STEP, command, files=sources.files, options=chosen, seed=seed) as run:
        objective, state = study.objective(), _deployed(study)
        baseline = read_baseline(study)
        loaded, energy = source_data(run, sources)
        begin = _first_full_day(state, objective)
        try:
            _require_day(loaded.jobs, energy, begin, objective.season.timezone)
            period = measured_period(objective, loaded, energy, begin=begin)
        except EnergyError:
            run.clear_partial()  # the next run reads the site again: by then the data may suffice
            raise
        zone = objective.season.timezone
        periods = effect_periods(baseline, period, state, zone, options.washout_hours)
        run.write(JOBS_NAME, csv_text(state.with_arms(period.jobs)))
        if period.energy is not None:
            run.write(ENERGY_NAME, energy_csv(period.energy))
        run.write(DAYS_NAME, days_csv(effect_days(periods)))
        result = validation_result(periods, objective, options.seed)
        result |= {"period": period_document(period), "deployment": _deployment_document(state)}
        result["predicted"] = _predicted(study, state)
        broken = [one for one in result["limits"] if one["verdict"] == LimitVerdict.BROKEN]
        result["undone"] = bool(broken and options.undo and state.is_active)
        run.finish(result)
    if result["undone"]:
        reason = f"limit broken: {broken[0]['kpi']} {broken[0]['account']}".rstrip()
        Deployment(study, apply=apply).undo(reason, command)
        _accept_undo(study)
    return result


def deployment_begin_s(study: StudyDirectory) -> float | None:
    """Return the Unix time from which the deployment assigns jobs to treatment or control.

    None means that the deployment has no such assignment, or that there is no deployment.
    """
    state = Deployment(study).state()
    return None if state is None or state.assignment is None else state.assignment.begin_s


def effect_periods(
    baseline: StudyPeriod,
    period: StudyPeriod,
    state: DeploymentState,
    timezone: str = "",
    washout_hours: float | None = None,
) -> EffectPeriods:
    """Return the days of the baseline and of the deployment for the estimation of effects.

    Each day is assigned to an arm, which is the treated group or the control group.

    Args:
        baseline: the baseline.
        period: the days of the deployment.
        state: state of the deployment. `state.assignment` must not be None.
        timezone: time zone in which days begin; an empty value means UTC.
        washout_hours: see `ValidationOptions`.
    """
    assert state.assignment is not None
    first = period.days.dates[0]
    known = _used_days(baseline.days, before=first) | _used_days(period.days)
    days = study_days(min(baseline.days.dates[0], first), period.days.dates[-1], timezone)
    days = replace(days, used=np.array([known.get(day, False) for day in days.dates], np.bool_))
    energy = None
    if baseline.energy is not None and period.energy is not None:
        energy = _joined_energy(baseline.energy, period.energy)
    data = ExperimentData(
        _joined_jobs(baseline.jobs, period.jobs),
        days,
        days.dates.index(first),
        energy,
        period.prices,
        _as_drawn(days, state, state.assignment, days.dates.index(first)),
    )
    washout_s = washout_seconds(baseline.jobs) if washout_hours is None else washout_hours * HOUR_S
    return EffectPeriods(data, state.assignment, washout_s)


def validation_result(periods: EffectPeriods, objective: StudyObjective, seed: int) -> dict[str, Any]:
    """Return the statistical evaluation of a study as a JSON object.

    The object contains the estimated effects, the verdicts on the targets and limits of the study, and
    checks of the method.
    """
    level = objective.statistics.confidence
    targets = [judge_target(periods, target, seed, level) for target in objective.targets]
    limits = [one for limit in objective.limits for one in judge_limit(periods, limit, seed, level)]
    main = objective.targets[0].kpi
    series = periods.series(main)
    is_switchback = series.block is not None
    check = (
        switchback_placebo(series, seed)
        if is_switchback
        else difference_placebo(series, periods.control_series(main))
    )
    effects = {name: estimate_effect(periods, name, seed=seed, level=level) for name in KPIS}
    lag = carry_over(series, level) if is_switchback else None
    result: dict[str, Any] = {
        "design": str(periods.assignment.design),
        "washout_hours": periods.washout_s / HOUR_S,
        "confidence": level,
        "targets": [_target_document(one) for one in targets],
        "limits": [_limit_document(one) for one in limits],
        "effects": {name: _estimate_document(one) for name, one in effects.items() if one is not None},
        "placebo": None if check is None else {**asdict(check), "passes": check.passes},
        "carry_over": _estimate_document(lag),
    }
    result["remarks"] = _remarks(periods, check, lag)
    return result


def _deployed(study: StudyDirectory) -> DeploymentState:
    """Return the state of the deployment. Refuse a deployment that has no effect on jobs."""
    state = Deployment(study).state()
    if state is None or state.assignment is None or not state.stage.applies:
        stage = "no stage" if state is None else f"the stage {state.stage}"
        why = f"{stage} has no effect on jobs that could be measured"
        raise UsageError(f"{study.path}: deploy", why, "--stage partition or --stage all")
    return state


def _first_full_day(state: DeploymentState, objective: StudyObjective) -> date:
    """Return the first full day of the deployment."""
    assignment, zone = state.assignment, objective.season.timezone
    assert assignment is not None
    begin = date_of(assignment.begin_s, zone)
    if study_days(begin, begin, zone).edges_s[0] < assignment.begin_s - 1.0:
        begin += timedelta(days=1)
    return begin


def _require_day(jobs: JobsTable, energy: EnergySeries | None, begin: date, timezone: str) -> None:
    """Check that the data reach beyond the first full day of the deployment.

    Raises:
        UsageError: the data end too early. The message names the day.
    """
    ends_s = jobs.end_s[:0] if energy is None else energy.end_s
    last_s = float(np.nanmax(np.concatenate([jobs.submit_s, jobs.end_s, ends_s]), initial=-np.inf))
    if math.isfinite(last_s) and date_of(last_s, timezone) <= begin:
        why = f"the data end on {date_of(last_s, timezone)}, before the end of its first full day, {begin}"
        raise UsageError("the deployment", why, "validate again after this day, or give newer data")


def _used_days(days: StudyDays, before: date | None = None) -> dict[date, bool]:
    return {
        day: bool(is_used)
        for day, is_used in zip(days.dates, days.used, strict=True)
        if before is None or day < before
    }


def _joined_jobs(before: JobsTable, after: JobsTable) -> JobsTable:
    """Return the jobs of the tables `before` and `after`.

    If both tables contain the same job, the row of `after` is kept.
    """
    joined = concatenated([after, before])
    keys = np.char.add(np.char.add(joined.job_id, " "), joined.submit_s.astype(np.str_))
    _, rows = np.unique(keys, return_index=True)
    kept = np.zeros(joined.count, np.bool_)
    kept[rows] = True
    return joined.where(kept)


def _joined_energy(before: EnergySeries, after: EnergySeries) -> EnergySeries:
    kept = before.end_s <= after.start_s[0]
    return EnergySeries(
        np.concatenate([before.start_s[kept], after.start_s]),
        np.concatenate([before.end_s[kept], after.end_s]),
        np.concatenate([before.joules[kept], after.joules]),
        after.source,
    )


def _as_drawn(
    days: StudyDays, state: DeploymentState, assignment: ArmAssignment, first: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return, for each day, whether the drawn configuration was in force.

    The experiment draws at random whether a day belongs to the treatment or to the control. The result is
    True if the configuration in force was the drawn one from the end of the first hour of the day to the end
    of the day. The first hour is ignored. Days before `first` are True.
    """
    drawn = np.ones(days.count, np.bool_)
    for row in range(first, days.count):
        begin_s, end_s = float(days.edges_s[row]), float(days.edges_s[row + 1])
        states = [state.in_force_at(begin_s + HOUR_S)]
        states += [one for one in state.switches if begin_s + HOUR_S < one.time_s < end_s - 1.0]
        wanted = True
        if assignment.design is AssignmentDesign.SWITCHBACK:
            period = assignment.period_at(0.5 * (begin_s + end_s))
            wanted = period is not None and period.is_treated
        drawn[row] = all(one is not None and one.is_treated == wanted for one in states)
    return drawn


def _accept_undo(study: StudyDirectory) -> None:
    """Record the changed result of the step `deploy` as an input of the step `validate`.

    The step `validate` itself changed the result of `deploy` when it undid the deployment. Without the
    record, this change would mark the step `validate` as out of date (stale).
    """
    with study.locked(STEP):
        name = f"deploy/{RESULT_NAME}"
        entry = study.manifest.steps[STEP]
        digest = file_sha256(study.folder("deploy") / RESULT_NAME) or ""
        inputs = entry.inputs | {name: digest}
        study.save(study.manifest.with_step(STEP, replace(entry, inputs=inputs)))


def _target_document(result: TargetResult) -> dict[str, Any]:
    return {
        "kpi": result.target.kpi,
        "wanted": result.target.change_percent / 100.0,
        "verdict": str(result.verdict),
        "is_certain": result.is_certain,
        "baseline": result.baseline,
        "effect": _estimate_document(result.estimate),
    }


def _limit_document(result: LimitResult) -> dict[str, Any]:
    return {
        "kpi": result.limit.kpi,
        "account": result.account,
        "verdict": str(result.verdict),
        "reason": result.reason,
        "baseline": result.baseline,
        "level": result.level,
        "level_low": result.level_low,
        "level_high": result.level_high,
        "minimum": result.minimum,
        "maximum": result.maximum,
        "effect": _estimate_document(result.estimate),
    }


def _estimate_document(estimate: EffectEstimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {**asdict(estimate), "excludes_zero": estimate.excludes_zero}


def _deployment_document(state: DeploymentState) -> dict[str, Any]:
    assert state.assignment is not None
    return {
        "alternative": state.alternative.document(),
        "stage": str(state.stage),
        "seed": state.assignment.seed,
        "switches": len(state.switches),
        "stopped": state.stopped,
    }


def _predicted(study: StudyDirectory, state: DeploymentState) -> dict[str, Any] | None:
    """Return the predicted changes of the KPIs for the deployed alternative.

    An alternative is a combination of energy-saving measures. The earlier step `choose` has predicted the
    changes by simulation. The result is None if the step did not predict the deployed alternative.
    """
    result = study.result("choose")
    listed: Sequence[Mapping[str, Any]] = result.get("alternatives", [])
    for one in listed:
        if one.get("name") == state.alternative.name:
            changes = {name: kpi.get("change_percent") for name, kpi in one.get("kpis", {}).items()}
            return {name: value / 100.0 for name, value in changes.items() if value is not None}
    return None


def _remarks(periods: EffectPeriods, check: PlaceboCheck | None, lag: EffectEstimate | None) -> list[str]:
    remarks = []
    data = periods.data
    late = 0 if data.as_drawn is None else int((~data.as_drawn & data.days.used).sum())
    if late:
        remarks.append(f"{late} days do not count: the configuration was not that of their arm all day")
    if check is None:
        remarks.append(
            "a placebo check needs a baseline of at least 8 days, or of 8 periods with --period-days above 1"
        )
    elif not check.passes:
        remarks.append(
            f"the placebo check fails: {check.false_effects} of {check.trials} imagined deployments in the "
            "baseline have an effect; do not trust the intervals"
        )
    if lag is not None and lag.excludes_zero:
        remarks.append("the arm of the previous day still has an effect: use a longer washout")
    if periods.assignment.design is AssignmentDesign.NONE:
        remarks.append("there is no control group: whatever else changed since the baseline is in the effect")
    return remarks
