"""Test the step `model` of a study, which makes the digital twin of a cluster.

A digital twin is a simulator that is calibrated with the measured jobs of the cluster. In the tests,
the true settings of the cluster are known. The tests check the calibrated settings, the error of a
replay of measured days, the refusal of a twin with too large errors, and the continuation of an
interrupted calibration.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from study_examples import IDLE_WATTS, week_jobs

from slurm_energy.cli import main as cli
from slurm_energy.study.baseline import read_baseline
from slurm_energy.study.data.energy_file import energy_csv
from slurm_energy.study.data.jobs_file import LoadedJobs
from slurm_energy.study.data.jobs_table import csv_text, jobs_table
from slurm_energy.study.data.kpis import EnergySeries
from slurm_energy.study.data.period import measured_period
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.goals.objective import parse_objective
from slurm_energy.study.modelling import model
from slurm_energy.study.modelling.calibration import calibrated_twin, peak_nodes
from slurm_energy.study.modelling.model import ModelOptions, held_out_rows, read_twin, run_model
from slurm_energy.study.modelling.replay import replay_errors
from slurm_energy.study.modelling.twin import TwinKind, TwinRun, TwinSettings, simulate

OBJECTIVE = """\
[[target]]
kpi = "energy_kwh"
change_percent = -10
[scope]
begin = "2026-03-02"
end = "2026-03-15"
"""
TRUE = TwinSettings({"batch": TwinKind(2, IDLE_WATTS)}, discipline="strict", start_delay_s=40.0)
"""The cluster that made the data: so few nodes that jobs wait."""


@pytest.fixture(scope="module")
def site() -> TwinRun:
    return simulate(week_jobs(15, share=0.5), TRUE)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, site: TwinRun) -> Path:
    return create(tmp_path_factory.mktemp("measured"), site)


@pytest.fixture
def folder(tmp_path: Path, measured: Path) -> Path:
    """Return a study with a baseline of two weeks."""
    return shutil.copytree(measured, tmp_path / "study")


def create(folder: Path, site: TwinRun, energy: EnergySeries | None = None, text: str = OBJECTIVE) -> Path:
    """Create a study with the baseline of a site."""
    (folder / "o.toml").write_text(text)
    (folder / "jobs.csv").write_text(csv_text(site.jobs))
    (folder / "energy.csv").write_text(energy_csv(energy or site.energy))
    study = folder / "study"
    assert cli.main(["study", "init", str(study), "--objective", str(folder / "o.toml")]) == 0
    data = ["--jobs", str(folder / "jobs.csv"), "--energy", str(folder / "energy.csv")]
    assert cli.main(["study", "baseline", str(study), *data]) == 0
    return study


def test_calibration_finds_the_cluster_that_made_the_data(site: TwinRun) -> None:
    objective = parse_objective(OBJECTIVE, Path("o.toml"))
    period = measured_period(objective, LoadedJobs(site.jobs), site.energy)
    twin = calibrated_twin(period.between(0, 7))
    kind = twin.settings.kinds["batch"]
    assert kind.nodes == 2
    assert kind.idle_watts == pytest.approx(IDLE_WATTS, rel=0.02)
    assert twin.settings.discipline == "strict"
    assert twin.settings.start_delay_s == pytest.approx(40.0, abs=5.0)
    assert len(twin.candidates) == 5
    assert min(twin.candidates, key=lambda name: twin.candidates[name]) == "fcfs, strict"
    errors = {
        one.kpi: one
        for one in replay_errors(period, simulate(period.jobs, twin.settings), period.days.between(7, 14))
    }
    assert abs(errors["energy_kwh"].error) < 0.02
    assert abs(errors["mean_jct_s"].error) < 0.02
    assert abs(errors["power_p90_watts"].error) < 0.05


def test_idle_power_is_unknown_without_energy_of_nodes(site: TwinRun) -> None:
    objective = parse_objective(OBJECTIVE, Path("o.toml"))
    unmeasured = site.jobs.with_columns(energy_joules=np.full(site.jobs.count, math.nan))
    twin = calibrated_twin(measured_period(objective, LoadedJobs(unmeasured)).between(0, 7), {"batch": 5})
    assert twin.settings.kinds["batch"] == TwinKind(5, 0.0)
    assert any("idle power: unknown" in note for note in twin.notes)
    assert any("have no measured energy" in note for note in twin.notes)


def test_the_command_states_errors_and_the_twin_can_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["study", "model", str(folder), "--json", "--max-error", "mean_jct_s=14"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {one["kpi"]: one["bound"] for one in result["errors"] if one["bound"]} == {
        "energy_kwh": 0.08,
        "makespan_s": 0.08,
        "mean_jct_s": 0.14,
    }
    assert not any(one["exceeds"] for one in result["errors"])
    study = StudyDirectory(folder)
    assert read_twin(study).kinds["batch"].nodes == 2
    assert held_out_rows(study, read_baseline(study)) == (7, 14)


def test_the_report_draws_baseline_and_replay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["study", "model", str(folder), "--accept-error"]) == 0
    assert cli.main(["study", "report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 3  # pattern of the week, errors of the twin, power by hour
    assert "Twin: replay of the held-out days 2026-03-09 to 2026-03-15" in page
    hours = json.loads((folder / "report.json").read_text())["hours"]
    assert len(hours) == 7 * 24
    errors = json.loads((folder / "model/result.json").read_text())["errors"]
    middle = next(one["measured"] for one in errors if one["kpi"] == "power_p50_watts")
    known = [row["measured_watts"] for row in hours if row["simulated_watts"]]
    assert np.median(known) == pytest.approx(middle, rel=1e-3)
    (folder / "model/hours.csv").write_text("start_s,measured_watts\nx,1\n")
    assert cli.main(["study", "report", str(folder)]) == 2
    assert "hours.csv: cannot be read" in capsys.readouterr().err


def test_a_twin_that_is_off_is_refused_unless_accepted(
    tmp_path: Path, site: TwinRun, capsys: pytest.CaptureFixture[str]
) -> None:
    # Idle nodes draw more power in the last week than in the weeks before.
    late = site.energy.start_s >= site.energy.start_s[0] + 7 * 86400
    energy = replace(site.energy, joules=np.where(late, site.energy.joules * 1.3, site.energy.joules))
    folder = create(tmp_path, site, energy)
    assert cli.main(["study", "model", str(folder)]) == 1
    captured = capsys.readouterr()
    assert "exceeded" in captured.out
    assert captured.err.endswith("or continue with --accept-error\n")
    assert StudyDirectory(folder).manifest.steps["model"].state == "failed"
    assert cli.main(["study", "model", str(folder), "--accept-error"]) == 0
    assert StudyDirectory(folder).result("model")["accepted"] == ["energy_kwh"]


def test_a_short_baseline_says_how_many_days_are_missing(
    tmp_path: Path, site: TwinRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = create(tmp_path, site, text=OBJECTIVE.replace("15", "11"))
    assert cli.main(["study", "model", str(folder)]) == 2
    assert "has 10 days, the twin needs 14" in (err := capsys.readouterr().err)
    assert "measure 4 more days" in err


def test_an_interrupted_calibration_continues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = StudyDirectory(folder)

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model, "replay_errors", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_model(study, ModelOptions(), "x")
    partial = study.path / "model/partial/fits.json"
    stored = json.loads(partial.read_text())
    stored["fcfs, easy, time limits"] = [-1.0, 7.0]  # a stored fit is not computed again
    partial.write_text(json.dumps(stored))
    result = run_model(study, ModelOptions(), "x")
    assert result["candidates"]["fcfs, easy, time limits"] == -1.0
    assert result["twin"]["start_delay_s"] == 7.0


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--nodes", "batch"], "is not PARTITION=N"),
        (["--nodes", "batch=1.5"], "is not PARTITION=N"),
        (["--nodes", "gpu=1"], "--nodes gpu: no job ran in this partition: known: batch"),
        (["--max-error", "speed=5"], "--max-error speed: is not compared"),
        (["--max-error", "energy_kwh=-5"], "is not KPI=PERCENT"),
        (["--held-out-days", "0"], "--held-out-days: must be from 1 to 366"),
    ],
)
def test_wrong_options_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], fault: str
) -> None:
    assert cli.main(["study", "model", str(folder), *options]) == 2
    assert fault in capsys.readouterr().err


def test_peak_nodes() -> None:
    jobs = jobs_table(
        submit_s=[0, 0, 0], start_s=[0, 10, 20], end_s=[10, 30, 30], nodes=[2, 3, 1], job_id=["1", "2", "3"]
    )
    assert peak_nodes(jobs) == 4
