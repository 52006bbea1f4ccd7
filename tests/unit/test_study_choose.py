"""Tests of the step `choose` of a study, which compares combinations of energy measures.

The tests check the forecasts and limits of these alternatives, and their Pareto front. They also check the
decision tree, the recommendation, and the continuation of an interrupted step.
"""

from __future__ import annotations

import functools
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.cli.main import main
from slurm_energy.errors import UsageError
from slurm_energy.study.baseline import run_baseline
from slurm_energy.study.characterisation.responses import responses_of
from slurm_energy.study.choice import alternative_runs
from slurm_energy.study.choice.alternatives import StudyAlternative, parse_alternative
from slurm_energy.study.choice.choose_step import ChoiceRequest, run_choose
from slurm_energy.study.choice.combination import combinations
from slurm_energy.study.choice.evaluation import (
    AlternativeForecast,
    LimitForecast,
    limit_outlook,
    pareto_front,
    recommend,
)
from slurm_energy.study.data.days import study_days
from slurm_energy.study.data.jobs_file import LoadedJobs
from slurm_energy.study.data.jobs_table import JobsTable, jobs_table
from slurm_energy.study.data.kpis import EnergyPrices
from slurm_energy.study.data.source_data import StudySources
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.goals.indicators import KPIS
from slurm_energy.study.goals.objective import StudyLimit, parse_objective
from slurm_energy.study.modelling.forecast import ForecastChange, ForecastInput, forecast_change, period_jobs
from slurm_energy.study.modelling.twin import TwinKind, TwinSettings, simulate

MONDAY_S = 20_759 * 86_400.0  # 2026-11-02
TWIN = TwinSettings({"gpu": TwinKind(2, 5.0), "cpu": TwinKind(1, 5.0)})
OBJECTIVE = """\
title = "Saving"
[statistics]
resamples = 100
[[target]]
kpi = "energy_per_work_kwh"
change_percent = -5.0
[[limit]]
kpi = "mean_jct_s"
worse_percent = 8.0
"""
CLASSES = [
    {
        "name": "memory",
        "ranges": {},
        "programs": ["ann/memory", "bob/memory"],
        "points": [
            {"time_ratio": 1.02, "power_ratio": 0.7, "deviation": 0.01},
            {"time_ratio": 1.4, "power_ratio": 0.5, "deviation": None},
        ],
    },
    {"name": "compute", "ranges": {}, "programs": ["ann/compute", "bob/compute"], "points": []},
]


@functools.cache
def site_jobs() -> JobsTable:
    random = np.random.default_rng(3)
    count = 16 * 12
    submit = MONDAY_S - 3600 + np.sort(random.uniform(0, 16 * 86_400, count))
    run_s = random.uniform(1800, 7200, count)
    jobs = jobs_table(
        job_id=list(range(count)),
        user=random.choice(["ann", "bob"], count),
        account=random.choice(["physics", "bio"], count),
        partition=["gpu"] * count,
        state=["COMPLETED"] * count,
        name=random.choice(["memory", "compute"], count, p=[0.8, 0.2]),
        nodes=[1] * count,
        submit_s=submit,
        start_s=submit,
        end_s=submit + run_s,
        energy_joules=run_s * 400,
    )
    return simulate(jobs, TWIN).jobs


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = StudyDirectory.create(tmp_path_factory.mktemp("measured") / "study", OBJECTIVE)
    jobs = site_jobs()
    energy = simulate(jobs, TWIN).energy
    run_baseline(made, StudySources(lambda: (LoadedJobs(jobs, ()), energy), {}, {}), "baseline")
    write_model(made)
    return made.path


@pytest.fixture
def study(tmp_path: Path, measured: Path) -> StudyDirectory:
    return StudyDirectory(shutil.copytree(measured, tmp_path / "study"))


def write_model(study: StudyDirectory, classes: Sequence[object] = CLASSES, last: str = "2026-11-15") -> None:
    with study.running("characterise", "characterise") as run:
        run.finish({"classes": classes})
    with study.running("model", "model") as run:
        days = {"begin": "2026-11-11", "end": last}
        run.finish({"twin": TWIN.document(), "held_out": days, "errors": []})


def test_the_choice_recommends_what_reaches_the_target_within_the_limits(
    study: StudyDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["study", "choose", str(study.path), "--seeds", "2", "--processes", "1"]
    own = ["--alternative", "short:ranking=sjf", "--alternative", "mine:tuning=edp"]
    assert main([*arguments, *own, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    by_name = {one["name"]: one for one in result["alternatives"]}
    assert {"today", "tune-energy", "tune-gently", "short", "mine"} <= set(by_name)
    assert "tune-edp" not in by_name  # it is the same as mine
    tuned = by_name["tune-energy"]["kpis"]["energy_per_work_kwh"]
    assert -30 < tuned["low_percent"] < tuned["change_percent"] < tuned["high_percent"] < -5
    assert by_name["mine"]["limits"][0]["forecast"] in ("kept", "at risk")
    assert result["recommended"] is not None and result["reaches_target"]
    chosen = by_name[result["recommended"]]
    assert chosen["permitted"] and chosen["on_front"]
    memory = next(row for row in chosen["classes"] if row["name"] == "memory")
    compute = next(row for row in chosen["classes"] if row["name"] == "compute")
    assert memory["alternative"]["energy_kwh"] < 0.8 * memory["today"]["energy_kwh"]
    assert compute["alternative"]["energy_kwh"] == pytest.approx(compute["today"]["energy_kwh"], rel=0.05)
    assert [node["lever"] for node in result["tree"] if node["answer"]] == ["tuning"]
    assert main([*arguments, "--only", "--alternative", "short:ranking=sjf"]) == 0
    out = capsys.readouterr().out
    assert "No alternative is recommended:\n  not short: energy per work may" in out
    assert set(result["partition_energy_joules"]) == {"gpu"}


def test_an_interrupted_choice_continues(study: StudyDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ChoiceRequest((parse_alternative("edp:tuning=edp"),), only=True, seeds=2)
    real, calls = alternative_runs.forecast_run, list[tuple[str, int]]()

    def counting(data: object, alternative: StudyAlternative, seed: int) -> object:
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append((alternative.name, seed))
        return real(data, alternative, seed)  # type: ignore[arg-type]

    monkeypatch.setattr(alternative_runs, "forecast_run", counting)
    with pytest.raises(KeyboardInterrupt):
        run_choose(study, request, "c")
    assert study.manifest.steps["choose"].state == "running"
    done = list(calls)
    calls.clear()
    run_choose(study, request, "c")
    assert calls == [("edp", 1)]
    assert done == [("today", 0), ("today", 1), ("edp", 0)]


@pytest.mark.slow
def test_jobs_with_slack_move_to_cheap_hours(study: StudyDirectory) -> None:
    hours = [datetime.fromtimestamp(MONDAY_S + 3600 * hour, UTC) for hour in range(-24, 420)]
    rows = [f"{hour:%Y-%m-%dT%H:%MZ},{100 if 8 <= hour.hour < 20 else 10}" for hour in hours]
    (study.path / "price.csv").write_text("\n".join(["time,EUR/MWh", *rows]))
    objective = study.path / "objective.toml"
    objective.write_text(
        OBJECTIVE.replace("energy_per_work_kwh", "cost") + '[prices]\nprice_file = "price.csv"\n'
    )
    jobs = site_jobs()
    run_baseline(study, StudySources(lambda: (LoadedJobs(jobs, ()), None), {}, {}), "baseline")
    write_model(study, [], "2026-11-12")
    with pytest.raises(UsageError, match="accounting does not say how many jobs may wait"):
        run_choose(study, ChoiceRequest((parse_alternative("night:deferral=cheapest"),), True, 1), "c")
    night = (parse_alternative("night:deferral=cheapest"),)
    result = run_choose(study, ChoiceRequest(night, True, 1, slack_share=0.5, slack_hours=12), "c")
    assert [node["choice"] for node in result["tree"] if node["lever"] == "deferral"] == ["cheapest"]
    shifted = result["alternatives"][1]
    assert shifted["kpis"]["cost"]["change_percent"] < -5
    assert abs(shifted["kpis"]["energy_kwh"]["change_percent"]) < 5
    assert result["assumptions"] == ["50 % of the jobs may start up to 12 h later, drawn at random"]


_ratio = st.floats(-0.5, 0.5)


@examples(30)
@given(st.lists(st.tuples(_ratio, _ratio), min_size=1, max_size=6))
def test_each_alternative_is_on_the_front_or_dominated(points: list[tuple[float, float]]) -> None:
    kpis = [KPIS["energy_kwh"], KPIS["jobs_per_hour"]]
    forecasts = [
        AlternativeForecast(
            StudyAlternative(f"a{number}"),
            {
                kpi.name: ForecastChange(1.0, 1 + change, *[change] * 5)
                for kpi, change in zip(kpis, point, strict=True)
            },
            (),
        )
        for number, point in enumerate(points)
    ]
    front = pareto_front(forecasts, kpis)
    for row, (energy, jobs) in enumerate(points):
        better = [p for p in points if p[0] <= energy and p[1] >= jobs and p != (energy, jobs)]
        assert (row in front) == (not better)


def changed(today: float, change: float, spread: float) -> ForecastChange:
    low, high = change - spread, change + spread
    return ForecastChange(today, today * (1 + change), change, low, high, low, high)


def forecast(name: str, energy: float, jct: float, spread: float = 0.0) -> AlternativeForecast:
    changes = {
        "energy_per_work_kwh": changed(2.0, energy, spread),
        "mean_jct_s": changed(100.0, jct, spread),
    }
    outlook = limit_outlook(StudyLimit(worse_percent=8.0), changes["mean_jct_s"], math.nan)
    return AlternativeForecast(parse_alternative(f"{name}:ranking=zeus,off=yes"), changes, [outlook])


def test_recommendations_and_their_reasons() -> None:
    objective = parse_objective(OBJECTIVE, Path("objective.toml"))
    fast, greedy, unsafe = (
        forecast("fast", -0.06, 0.0),
        forecast("greedy", -0.3, 0.2),
        forecast("unsafe", -0.1, 0.07, 0.02),
    )
    assert [one.limits[0].forecast for one in (fast, greedy, unsafe)] == [
        LimitForecast.KEPT,
        LimitForecast.BROKEN,
        LimitForecast.AT_RISK,
    ]
    advice = recommend([fast, greedy, unsafe], objective)
    assert advice.name == "fast" and advice.reaches_target
    assert any(
        reason.startswith("not greedy: mean completion time 120 s, limit 108") for reason in advice.reasons
    )
    weak = recommend([forecast("weak", -0.02, 0.0)], objective)
    assert weak.name == "weak" and not weak.reaches_target
    none = recommend([greedy, forecast("noise", -0.02, 0.0, 0.05)], objective)
    assert none.name == ""
    assert none.reasons[1] == "not noise: energy per work may worsen by 3.0 % on average"


def test_drawn_periods_keep_working_days_and_weekends() -> None:
    days = study_days(date(2026, 11, 2), date(2026, 11, 15))
    noon = days.edges_s[:-1] + 43_200.0
    kinds = ["weekend" if weekday >= 5 else "working" for weekday in days.weekdays]
    jobs = jobs_table(job_id=range(14), name=kinds, submit_s=noon, start_s=noon, end_s=noon + 60.0)
    data = ForecastInput(jobs, days, 7, 14, TWIN, responses_of([]), EnergyPrices())
    assert period_jobs(data, 0).job_id.tolist() == list(map(str, range(5, 14)))
    orders = set()
    for seed in range(1, 6):
        drawn = period_jobs(data, seed)
        assert drawn.submit_s.tolist() == noon[5:].tolist()
        assert drawn.name.tolist() == kinds[5:]
        orders.add(tuple(drawn.job_id.tolist()))
    assert len(orders) == 5


def test_levers_that_improve_are_combined_and_one_that_breaks_a_limit_gets_help() -> None:
    objective = parse_objective(OBJECTIVE, Path("objective.toml"))

    def single(text: str, energy: float, jct: float) -> AlternativeForecast:
        return replace(forecast("x", energy, jct), alternative=parse_alternative(text))

    forecasts = [
        single("strong:tuning=edp", -0.12, 0.15),
        single("gentle:tuning=energy", -0.06, 0.02),
        single("off:off=yes", -0.05, 0.0),
        single("fair:ranking=hades", 0.01, -0.1),
        single("short:ranking=sjf", 0.01, -0.2),
        single("budget:budget=900", -0.01, 0.0),
    ]
    names = {one.name for one in combinations(forecasts, objective)}
    assert names == {"gentle+off", "gentle+budget", "strong+short", "strong+short+off", "strong+short+budget"}


def test_the_interval_of_a_forecast_is_that_of_another_period() -> None:
    change = forecast_change([10.0, 20.0, None], [9.0, 17.0, 5.0], 0.95)
    assert change is not None
    assert change.change == pytest.approx(-0.125)
    half = 12.706 * np.std([-0.1, -0.15], ddof=1) * math.sqrt(1.5)
    assert change.high - change.change == pytest.approx(half, rel=1e-3)
    assert change.mean_high - change.change == pytest.approx(half / math.sqrt(3), rel=1e-3)
    assert forecast_change([None], [1.0], 0.95) is None


def test_the_best_point_of_a_class_keeps_the_slowdown_limit() -> None:
    responses = responses_of(CLASSES)
    assert responses.best("memory", "energy", 0.05).time_ratio == 1.02
    assert responses.best("memory", "energy", 0.5).time_ratio == 1.4
    assert responses.best("memory", "energy", 0.01).time_ratio == 1.0
    assert responses.best("compute", "edp").power_ratio == 1.0
    jobs = jobs_table(job_class=["memory", "other"], energy_joules=[300.0, 100.0])
    assert responses.covered_share(jobs) == 0.75
    assert responses.potential(jobs, "energy", 0.05) == pytest.approx(0.75 * (1 - 1.02 * 0.7))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tuning=edp", "the name is letters"),
        ("today:off=yes", "the name is letters"),
        ("a:tuning=fast", "tuning is one of edp, ed2p, energy, not 'fast'"),
        ("a:slowdown=-1", "slowdown is a percentage"),
        ("a:ranking", "has no ="),
        ("a:budget=much", "budget is a positive number of watts, not 'much'"),
        ("a:ranking=zeus,weight.wait=x", "weight.wait is a number, not 'x'"),
        ("a:speed=1", "there is no lever 'speed', only tuning, slowdown,"),
    ],
)
def test_wrong_alternatives_are_one_line(text: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        parse_alternative(text)
