"""Tests of the baseline, the step of a study that measures the site before a deployment.

The tests cover mean values with confidence intervals, the power analysis, the detection of outages, the
symptoms of the site, and the command.
"""

from __future__ import annotations

import json
import math
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from study_examples import MONDAY, begin_s, node_energy, week_jobs

from slurm_energy.cli import main as cli
from slurm_energy.errors import UsageError
from slurm_energy.study.baseline import baseline_estimates, read_baseline, run_baseline
from slurm_energy.study.data.days import study_days
from slurm_energy.study.data.energy_file import energy_csv
from slurm_energy.study.data.jobs_file import LoadedJobs
from slurm_energy.study.data.jobs_table import JobsTable, csv_text
from slurm_energy.study.data.kpis import DailyKpis, EnergySeries
from slurm_energy.study.data.outages import outages
from slurm_energy.study.data.period import measured_period
from slurm_energy.study.data.source_data import StudySources
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.effects.effect_periods import EffectPeriods, ExperimentData, washout_seconds
from slurm_energy.study.effects.effects import switchback_effect
from slurm_energy.study.effects.placebo import switchback_placebo
from slurm_energy.study.goals.objective import parse_objective
from slurm_energy.study.rollout.assignment import ArmAssignment, AssignmentDesign, draw_switchback
from slurm_energy.study.statistics.mean_estimate import mean_estimate
from slurm_energy.study.statistics.power_analysis import DayVariation, day_variation, power_analysis

TARGETS = '[[target]]\nkpi = "energy_kwh"\nchange_percent = -10\n'
LIMITS = '[[limit]]\nkpi = "mean_jct_s"\nworse_percent = 10\n'


def daily(values: list[float] | np.ndarray, first: date = MONDAY) -> DailyKpis:
    days = study_days(first, first + timedelta(days=len(values) - 1))
    return DailyKpis(days, {"energy_kwh": np.array(values, np.float64)}, "test")


def test_the_mean_is_that_of_a_week_whatever_days_are_missing() -> None:
    week = [10.0, 10, 10, 10, 10, 3, 3]
    estimate = mean_estimate(daily(week * 2 + week[:3]), "energy_kwh")
    assert estimate.mean == pytest.approx(8.0)
    assert estimate.weekdays == pytest.approx(week)
    assert (estimate.low, estimate.high) == pytest.approx((8.0, 8.0))


def test_unknown_and_excluded_days_do_not_count() -> None:
    values = daily([10.0, math.nan, 99.0] + [10.0] * 18)
    values.days.used[2] = False
    estimate = mean_estimate(values, "energy_kwh")
    assert (estimate.days, estimate.mean) == (19, 10.0)
    nothing = mean_estimate(daily([math.nan] * 3), "energy_kwh")
    assert nothing.days == 0
    assert math.isnan(nothing.mean)
    one_week = mean_estimate(daily([1.0] * 7), "energy_kwh")
    assert math.isnan(one_week.low)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
@pytest.mark.parametrize("weeks", [3, 6])
def test_intervals_cover_the_true_mean(weeks: int, correlation: float) -> None:
    random = np.random.default_rng(5)
    pattern = np.tile([10.0, 11, 12, 11, 10, 5, 4], weeks)
    trials, covered = 80, 0
    for trial in range(trials):
        noise = random.standard_normal(len(pattern))
        for day in range(1, len(noise)):
            noise[day] = correlation * noise[day - 1] + math.sqrt(1 - correlation**2) * noise[day]
        estimate = mean_estimate(daily(pattern + noise), "energy_kwh", resamples=200, seed=trial)
        covered += estimate.low <= 9.0 <= estimate.high
    assert covered >= 0.88 * trials


def test_power_analysis_matches_a_simulated_comparison() -> None:
    analysis = power_analysis(DayVariation(28, 0.1), 0.1)
    random = np.random.default_rng(1)
    before, after = (random.normal(100, 10, (4000, 28)) for _ in range(2))
    difference = before.mean(axis=1) - after.mean(axis=1) + 100 * analysis.detectable
    error = np.sqrt((before.var(axis=1, ddof=1) + after.var(axis=1, ddof=1)) / 28)
    assert np.mean(difference / error > 2.0049) == pytest.approx(0.8, abs=0.03)  # t of 54 degrees of freedom


@examples(10)
@given(st.floats(0.005, 0.4), st.floats(0, 0.8), st.floats(0.02, 0.3))
def test_the_needed_days_are_the_fewest_that_suffice(
    deviation: float, correlation: float, wanted: float
) -> None:
    needed = power_analysis(DayVariation(20, deviation, correlation), wanted).needed_days
    if needed is None:
        return
    assert power_analysis(DayVariation(needed, deviation, correlation), wanted).suffices
    if needed > 14:
        less = power_analysis(DayVariation(needed - 1, deviation, correlation), wanted)
        assert (less.suffices, less.missing_days) == (False, 1)


def test_data_without_energy_cannot_suffice() -> None:
    analysis = power_analysis(DayVariation(0, math.nan), 0.1)
    assert (analysis.suffices, analysis.needed_days) == (False, None)


def test_the_power_analysis_expects_the_intervals_of_the_validation() -> None:
    jobs = week_jobs(28)
    objective = parse_objective(TARGETS, Path("o.toml"))
    period = measured_period(objective, LoadedJobs(jobs), node_energy(jobs, 28))
    variation = day_variation(period, "energy_kwh", AssignmentDesign.SWITCHBACK)
    raw = mean_estimate(period.kpis(), "energy_kwh")
    assert variation.deviation < 0.2 * raw.deviation / raw.mean
    assert {"weekday", "work", "expected energy"} == set(variation.adjusted_for)
    data = ExperimentData(jobs, period.days, period.days.count, period.energy)
    arms = ArmAssignment(AssignmentDesign.SWITCHBACK, 0)
    check = switchback_placebo(EffectPeriods(data, arms, washout_seconds(jobs)).series("energy_kwh"))
    assert check is not None
    analysis = power_analysis(variation, 0.1)
    # The half width is t(0.975) standard errors, the detectable change t(0.975) + t(0.8) of them.
    expected = 2 * 0.705 * analysis.detectable_switchback
    assert check.median_width == pytest.approx(expected, rel=0.25)
    assert (analysis.needed_days, analysis.needed_switchback_days) == (14, 14)


def test_days_of_a_switchback_know_the_period_that_was_drawn() -> None:
    jobs = week_jobs(28)
    objective = parse_objective(TARGETS, Path("o.toml"))
    period = measured_period(objective, LoadedJobs(jobs), node_energy(jobs, 28))
    data = ExperimentData(jobs, period.days, 14, period.energy)
    arms = draw_switchback(MONDAY + timedelta(days=14), 14, 1, period_days=3)
    series = EffectPeriods(data, arms, 0.0).series("energy_kwh")
    assert series.period is not None
    before = [-5, -5, *sorted(3 * [-4, -3, -2, -1])]
    assert series.period.tolist() == before + sorted(3 * [0, 1, 2, 3])
    estimate = switchback_effect(series)
    assert estimate is not None and estimate.freedom == 6  # nine periods, three coefficients
    assert "expected energy" not in day_variation(period, "mean_jct_s", AssignmentDesign.NONE).adjusted_for


def period_days(count: int = 14) -> JobsTable:
    return week_jobs(count)


def shifted_starts(jobs: JobsTable, first_hour: float, hours: float) -> JobsTable:
    """Delay jobs so that none starts in a given time window, to simulate an outage.

    A job that started in the window starts at the end of the window instead.
    """
    begin = begin_s() + 3600 * first_hour
    inside = (jobs.start_s >= begin) & (jobs.start_s < begin + 3600 * hours)
    delay = np.where(inside, begin + 3600 * hours - jobs.start_s, 0.0)
    return jobs.with_columns(start_s=jobs.start_s + delay, end_s=jobs.end_s + delay)


def test_outages_are_found_with_their_reason() -> None:
    jobs = shifted_starts(period_days(), 30, 12)  # Tuesday 06:00 to 18:00
    days = study_days(MONDAY, MONDAY + timedelta(days=13))
    thursday = (days.day_of(jobs.end_s) == 3) & (np.arange(jobs.count) % 3 == 0)
    jobs = jobs.with_columns(state=np.where(thursday, "NODE_FAIL", jobs.state))
    jobs = jobs.where(days.day_of(jobs.submit_s) != 9)  # no submissions on the second Wednesday
    energy = node_energy(jobs, 14)
    energy.joules[24 * 11 : 24 * 11 + 3] = math.nan  # three hours of Friday
    found = outages(jobs, days, energy)
    expected = {
        date(2026, 3, 3): "no job started for 13 h while jobs waited",
        date(2026, 3, 5): "14 of 39 jobs ended because of failed nodes",
        date(2026, 3, 11): "0.0 node-hours of work, usual are 37.6",
        date(2026, 3, 13): "the energy of nodes is missing for 12% of the day",
    }
    assert found == expected


def test_weekends_and_quiet_nights_are_no_outages() -> None:
    jobs = period_days(28)
    assert outages(jobs, study_days(MONDAY, MONDAY + timedelta(days=27)), node_energy(jobs, 28)) == {}


def test_days_before_the_first_measured_energy_are_no_outages() -> None:
    jobs = period_days(14)
    energy = node_energy(jobs, 14)
    half = EnergySeries(energy.start_s[168:], energy.end_s[168:], energy.joules[168:], "meter")
    assert outages(jobs, study_days(MONDAY, MONDAY + timedelta(days=13)), half) == {}


def test_the_scope_selects_jobs_and_days() -> None:
    text = TARGETS + '[scope]\naccounts = ["physics"]\nbegin = "2026-03-04"\nend = "2026-03-10"\n'
    jobs = period_days(14)
    period = measured_period(parse_objective(text, Path("o.toml")), LoadedJobs(jobs), node_energy(jobs, 14))
    assert period.days.dates[0] == date(2026, 3, 4)
    assert period.days.count == 7
    assert set(period.jobs.account) == {"physics"}
    assert period.energy is None
    assert "energy of idle nodes is not included" in period.notes[0]
    with pytest.raises(UsageError, match="no job of the data is in it"):
        other = TARGETS + '[scope]\naccounts = ["none"]\n'
        measured_period(parse_objective(other, Path("o.toml")), LoadedJobs(jobs))
    short = jobs.where(jobs.submit_s < jobs.submit_s.min() + 7200)
    with pytest.raises(UsageError, match="the data: contain no full day in the time zone UTC: wait"):
        measured_period(parse_objective(TARGETS, Path("o.toml")), LoadedJobs(short))
    with pytest.raises(UsageError, match="the data: contain no job"):
        measured_period(parse_objective(TARGETS, Path("o.toml")), LoadedJobs(short.where(short.nodes < 0)))
    with pytest.raises(UsageError, match="no full day"):
        later = TARGETS + '[scope]\nbegin = "2027-01-01"\n'
        measured_period(parse_objective(later, Path("o.toml")), LoadedJobs(jobs))


def test_data_that_do_not_suffice_are_read_again_by_the_next_run(tmp_path: Path) -> None:
    study, jobs = StudyDirectory.create(tmp_path / "study", TARGETS), period_days(14)
    tables = [jobs.where(jobs.nodes < 0), jobs]
    sources = StudySources(lambda: (LoadedJobs(tables.pop(0)), None), {}, {})
    with pytest.raises(UsageError, match="contain no job"):
        run_baseline(study, sources, "c")
    assert run_baseline(study, sources, "c")["period"]["jobs"] > 0


@pytest.fixture
def files(tmp_path: Path) -> Path:
    jobs = week_jobs(28)
    (tmp_path / "jobs.csv").write_text(csv_text(jobs))
    (tmp_path / "energy.csv").write_text(energy_csv(node_energy(jobs, 28)))
    (tmp_path / "objective.toml").write_text(TARGETS + LIMITS)
    return tmp_path


def test_the_command_measures_a_baseline(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(files / "study")
    assert cli.main(["study", "init", folder, "--objective", str(files / "objective.toml")]) == 0
    data = ["--jobs", str(files / "jobs.csv"), "--energy", str(files / "energy.csv")]
    capsys.readouterr()
    assert cli.main(["study", "baseline", folder, *data, "--json", "--seed", "3"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["period"]["used_days"] == 28
    energy = result["kpis"]["energy_kwh"]
    assert energy["low"] < energy["mean"] < energy["high"]
    assert energy["weekdays"][0] > energy["weekdays"][6]
    assert result["unknown_kpis"] == ["carbon_kg", "cost"]
    assert result["limits"][0]["maximum"] == pytest.approx(1.1 * result["kpis"]["mean_jct_s"]["mean"])
    assert [one["name"] for one in result["symptoms"]] == ["idle_energy", "power_peaks"]
    assert "suffice to find a change of 10.0%" in result["statement"][0]
    study = StudyDirectory(Path(folder))
    assert study.manifest.steps["baseline"].seed == 3
    assert read_baseline(study).kpis().values["energy_kwh"][0] == pytest.approx(45.0, rel=0.3)
    assert baseline_estimates(study)["energy_kwh"].mean == pytest.approx(energy["mean"])
    assert (files / "study/baseline/days.csv").read_text().count("\n") == 29


def test_too_few_days_are_said_to_be_too_few(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(files / "study")
    text = TARGETS.replace("-10", "-2") + '[scope]\nend = "2026-03-15"\n'
    text += '[prices]\nprice_per_kwh = 0.2\ncurrency = "CHF"\n'
    (files / "objective.toml").write_text(text)
    cli.main(["study", "init", folder, "--objective", str(files / "objective.toml")])
    assert cli.main(["study", "baseline", folder, "--jobs", str(files / "jobs.csv")]) == 0
    out = capsys.readouterr().out
    assert "14 days do not suffice to find a change of 2.0%" in out
    assert "Weekly pattern" in out
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("cost ")] == ["CHF"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--energy", "x"], "--energy: given without --jobs"),
        (["--column", "a=b"], "--column: given without --jobs"),
        (["--jobs", "missing.csv"], "missing.csv: cannot be read"),
        (["--jobs", "missing.csv", "--column", "a"], "is not OURS=THEIRS"),
        (["-S", "now", "-E", "now-1days"], "--endtime: is not after --starttime"),
        (["--jobs", "jobs.csv", "-S", "now-9days"], "--starttime: given with --jobs: leave it out"),
    ],
)
def test_wrong_options_are_one_line(
    files: Path, capsys: pytest.CaptureFixture[str], options: list[str], fault: str
) -> None:
    cli.main(["study", "init", str(files / "study")])
    assert cli.main(["study", "baseline", str(files / "study"), *options]) == 2
    assert fault in capsys.readouterr().err
