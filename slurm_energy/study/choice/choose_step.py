"""The step `choose` of a study, which recommends a plan for saving energy at the site.

The step simulates alternatives with the twin, the calibrated simulator of the site. Its result contains the
Pareto front of the alternatives, a decision tree and the recommended plan.

Source: thesis, sections 6.3.4 and 6.3.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Any, Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.study.baseline import read_baseline
from slurm_energy.study.characterisation.characterise import read_classes
from slurm_energy.study.characterisation.job_classes import classified
from slurm_energy.study.characterisation.responses import responses_of
from slurm_energy.study.choice.alternative_runs import AlternativeRuns, Progress
from slurm_energy.study.choice.alternatives import TODAY, StudyAlternative
from slurm_energy.study.choice.combination import combinations
from slurm_energy.study.choice.decision_tree import DecisionNode, SiteFigures, decide
from slurm_energy.study.choice.evaluation import (
    AlternativeForecast,
    limit_outlook,
    pareto_front,
    recommend,
)
from slurm_energy.study.data.jobs_table import JobsTable
from slurm_energy.study.data.period import StudyPeriod
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.goals.indicators import KPIS
from slurm_energy.study.goals.objective import StudyObjective
from slurm_energy.study.modelling.forecast import (
    ForecastInput,
    forecast_change,
    group_changes,
)
from slurm_energy.study.modelling.twin import twin_settings_of

STEP: Final = "choose"
_BUDGET_SHARES: Final = (0.9, 0.8)
"""Power budgets to simulate, as shares of the present peak."""
Runs = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """Options of the step `choose`.

    Attributes:
        alternatives: alternatives that the administrator adds to the alternatives of the decision tree.
        only: whether only the administrator's alternatives are simulated.
        seeds: number of periods to simulate. One of them is the held-out period, whose days were not used
            for the calibration.
        processes: number of parallel processes.
        slack_share: assumed share of jobs that may wait. Accounting does not say which jobs may wait.
        slack_hours: assumed time for which these jobs may wait.
    """

    alternatives: tuple[StudyAlternative, ...] = ()
    only: bool = False
    seeds: int = 8
    processes: int = 1
    slack_share: float = 0.0
    slack_hours: float = 8.0


def run_choose(
    study: StudyDirectory, request: ChoiceRequest, command: str, progress: Progress = lambda done, total: None
) -> dict[str, Any]:
    """Run the study step `choose`, which selects an alternative, and return its result.

    Args:
        study: directory of the study.
        request: options of the step.
        command: command line of the step, which the manifest records.
        progress: function that is called with the numbers of finished simulations and of all simulations.

    Raises:
        EnergyError: an earlier step is missing or stale, or a lever (means to save energy) is unknown.
    """
    names = [TODAY, *(one.name for one in request.alternatives)]
    if len(set(names)) < len(names):
        raise UsageError("--alternative", "two alternatives have the same name", "give each another name")
    if not request.slack_share and any(one.deferral for one in request.alternatives):
        why = "accounting does not say how many jobs may wait"
        raise UsageError("deferral", why, "state an assumption: --slack-share 0.3 --slack-hours 8")
    options = {
        "alternatives": [one.document() for one in request.alternatives],
        "only": request.only,
        "seeds": request.seeds,
        "slack": [request.slack_share, request.slack_hours],
    }
    with study.running(STEP, command, options=options, seed=0) as run:
        objective = study.objective()
        data, period = _input(study, objective)
        data = replace(data, slack_share=request.slack_share, slack_s=3600 * request.slack_hours)
        simulations = AlternativeRuns(run, data, request.seeds, request.processes, progress)
        today = StudyAlternative(TODAY)
        simulations.simulate([today])
        site = _site_figures(data, simulations.runs[TODAY], objective)
        tree = decide(objective, site)
        single = list(request.alternatives)
        if not request.only:
            single += [
                one
                for one in _proposed(tree, site, objective, single)
                if request.slack_share or not one.deferral
            ]
        if not single:
            raise UsageError("choose", _nothing(tree), "--alternative NAME:LEVER=VALUE")
        simulations.simulate(single)
        forecasts = _forecasts(single, simulations.runs, objective)
        combined = [] if request.only else combinations(forecasts, objective)
        simulations.simulate(combined)
        forecasts = _forecasts([today, *single, *combined], simulations.runs, objective)
        result = _result(forecasts, tree, site, data, period, objective)
        result["assumptions"] = _assumptions(request, single)
        result["twin_errors"] = study.result("model").get("errors", [])
        run.finish(result)
    return result


def _assumptions(request: ChoiceRequest, alternatives: Sequence[StudyAlternative]) -> list[str]:
    """Return the assumptions of the forecasts that the data cannot confirm."""
    if any(one.deferral for one in alternatives):
        share, hours = 100 * request.slack_share, request.slack_hours
        return [f"{share:g} % of the jobs may start up to {hours:g} h later, drawn at random"]
    return []


def _input(study: StudyDirectory, objective: StudyObjective) -> tuple[ForecastInput, StudyPeriod]:
    """Return the input that all simulations of the study step `choose` share.

    The second result is the baseline, which is the period that was measured before the deployment.
    """
    period, model = read_baseline(study), study.result("model")
    classes: list[Mapping[str, Any]] = []
    jobs = classified(period.jobs, read_classes(study))
    if study.manifest.steps["characterise"].outputs:
        characterisation = study.result("characterise")
        classes = characterisation.get("classes", [])
    try:
        first, last = (date.fromisoformat(model["held_out"][name]) for name in ("begin", "end"))
        rows = period.days.dates.index(first), period.days.dates.index(last) + 1
    except (KeyError, TypeError, ValueError):
        path = study.folder("model")
        raise UsageError(
            f"{path}", "names no held-out days of the baseline", "run senergy study model again"
        ) from None
    names = tuple(dict.fromkeys(one.kpi for one in objective.limits if one.per == "account"))
    data = ForecastInput(
        jobs, period.days, *rows, twin_settings_of(model["twin"]), responses_of(classes), period.prices, names
    )
    return data, period


def _site_figures(
    data: ForecastInput, today: Sequence[Mapping[str, Any]], objective: StudyObjective
) -> SiteFigures:
    """Return figures that describe the site before any change, such as the fraction of idle energy.

    The energies, waits and completion times come from a simulation with the digital twin (the calibrated
    simulator of the site). The simulation covers the held-out days, which are the days that were not used
    for the calibration.
    """
    figures = today[0]
    job_kwh = sum(totals["energy_kwh"] for totals in figures["accounts"].values())
    day_kwh = figures["kpis"]["energy_kwh"]
    days = data.end - data.first
    jobs = sum(totals["jobs"] for totals in figures["accounts"].values())
    waits = sum(totals["wait_s"] * totals["jobs"] for totals in figures["accounts"].values())
    completion = sum(totals["completion_s"] * totals["jobs"] for totals in figures["accounts"].values())
    peak = figures["kpis"]["peak_power_watts"]
    return SiteFigures(
        idle_share=max(0.0, 1 - job_kwh / (day_kwh * days)) if day_kwh else math.nan,
        wait_share=waits / completion if jobs and completion else math.nan,
        tuning_potential=data.responses.potential(data.jobs, "energy", _slowdown(objective) / 100),
        curve_share=data.responses.covered_share(data.jobs),
        peak_watts=math.nan if peak is None else peak,
        has_varying_price=bool(objective.prices.price_file or objective.prices.carbon_file),
    )


def _slowdown(objective: StudyObjective) -> float:
    """Return the maximum slowdown of jobs by tuning that the objective of the study permits.

    The result is in percent. It is 5 % if the objective sets no limit for the mean job completion time.
    """
    limits = [one.worse_percent for one in objective.limits if one.kpi == "mean_jct_s"]
    return min((one for one in limits if one is not None), default=5.0)


def _proposed(
    tree: Sequence[DecisionNode],
    site: SiteFigures,
    objective: StudyObjective,
    given: Sequence[StudyAlternative],
) -> list[StudyAlternative]:
    """Return the study alternatives that the decision tree proposes.

    Alternatives that the administrator has given are left out.
    """
    levers = {node.lever: node.choice for node in tree if node.answer}
    proposed = []
    if "tuning" in levers:
        limit = _slowdown(objective)
        proposed.append(StudyAlternative("tune-energy", tuning="energy", slowdown_percent=limit))
        proposed.append(StudyAlternative("tune-gently", tuning="energy", slowdown_percent=limit / 2))
        proposed.append(StudyAlternative("tune-edp", tuning="edp"))
    if "power_saving" in levers:
        proposed.append(StudyAlternative("nodes-off", powers_down=True))
    if "priority" in levers:
        names = dict.fromkeys((levers["priority"], "zeus", "hades"))
        proposed += [StudyAlternative(f"order-{name}", ranking=name) for name in names]
    if "deferral" in levers:
        proposed.append(StudyAlternative(f"shift-{levers['deferral']}", deferral=levers["deferral"]))
    if "budget" in levers:
        proposed += [
            StudyAlternative(f"budget-{100 * share:.0f}", budget_watts=round(share * site.peak_watts, -1))
            for share in _BUDGET_SHARES
        ]
    taken, nameless = {one.name for one in given}, [replace(one, name="") for one in given]
    return [one for one in proposed if one.name not in taken and replace(one, name="") not in nameless]


def _nothing(tree: Sequence[DecisionNode]) -> str:
    return "no lever promises anything: " + "; ".join(node.reason for node in tree if not node.answer)


def _forecasts(
    alternatives: Sequence[StudyAlternative], runs: Runs, objective: StudyObjective
) -> list[AlternativeForecast]:
    """Return a forecast for each simulated alternative (set of energy measures) of a study."""
    today, confidence = runs[TODAY], objective.statistics.confidence
    forecasts = []
    for one in alternatives:
        own = runs[one.name]
        changes = {}
        for kpi in KPIS:
            change = forecast_change(
                [run["kpis"][kpi] for run in today], [run["kpis"][kpi] for run in own], confidence
            )
            if change is not None:
                changes[kpi] = change
        outlooks = []
        for limit in objective.limits:
            if limit.per == "account":
                for account in sorted({name for run in today for name in run["account_kpis"]}):
                    values = [
                        [run["account_kpis"].get(account, {}).get(limit.kpi) for run in some]
                        for some in (today, own)
                    ]
                    change = forecast_change(values[0], values[1], confidence)
                    outlooks.append(limit_outlook(limit, change, math.nan, account))
            else:
                deviation = today[0]["deviations"][limit.kpi]
                known = math.nan if deviation is None else deviation
                outlooks.append(limit_outlook(limit, changes.get(limit.kpi), known))
        accounts, classes = (group_changes(today, own, key) for key in ("accounts", "classes"))
        forecasts.append(AlternativeForecast(one, changes, outlooks, accounts, classes, len(own)))
    return forecasts


def _result(
    forecasts: Sequence[AlternativeForecast],
    tree: Sequence[DecisionNode],
    site: SiteFigures,
    data: ForecastInput,
    period: StudyPeriod,
    objective: StudyObjective,
) -> dict[str, Any]:
    kpis = [KPIS[name] for name in objective.kpi_names()]
    front = pareto_front(forecasts, kpis)
    advice = recommend([one for one in forecasts if one.alternative.levers], objective)
    held_out = data.days.between(data.first, data.end)
    return {
        "held_out": {"begin": held_out.dates[0].isoformat(), "end": held_out.dates[-1].isoformat()},
        "seeds": forecasts[0].seeds,
        "confidence": objective.statistics.confidence,
        "objective_kpis": objective.kpi_names(),
        "recommended": advice.name or None,
        "reaches_target": advice.reaches_target,
        "reasons": list(advice.reasons),
        "tree": [node.document() for node in tree],
        "site": asdict(site),
        "alternatives": [_document(one, row in front) for row, one in enumerate(forecasts)],
        "partition_energy_joules": _energy_by(period.jobs, period.jobs.partition),
        "user_energy_joules": _energy_by(period.jobs, period.jobs.user),
    }


def _document(one: AlternativeForecast, on_front: bool) -> dict[str, Any]:
    return one.alternative.document() | {
        "kpis": {
            name: {
                "today": change.today,
                "value": change.value,
                "change_percent": 100 * change.change,
                "low_percent": 100 * change.low,
                "high_percent": 100 * change.high,
                "mean_low_percent": 100 * change.mean_low,
                "mean_high_percent": 100 * change.mean_high,
            }
            for name, change in one.changes.items()
        },
        "limits": [asdict(limit) | {"text": limit.text} for limit in one.limits],
        "permitted": one.is_permitted,
        "safe": one.is_safe,
        "on_front": on_front,
        "accounts": list(one.accounts),
        "classes": list(one.classes),
    }


def _energy_by(jobs: JobsTable, names: np.ndarray) -> dict[str, float]:
    """Return the sum of the jobs' energy for each name.

    `names` contains one name per job, for example its account. If no energy is known, node-seconds are
    summed instead.
    """
    amounts = jobs.energy_joules if np.nansum(jobs.energy_joules) > 0 else jobs.nodes * jobs.run_s
    return {str(name): float(np.nansum(amounts[names == name])) for name in np.unique(names) if name}
