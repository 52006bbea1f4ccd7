"""Tests of the study step that validates a deployment, on weeks of a simulated site.

The tests check the estimated effect, a placebo, the undo of a deployment that breaks a limit, and the
report.
"""

import csv
import json
import os
import shutil
from copy import copy
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from slurm_energy.cli.main import main
from slurm_energy.study.choice.alternatives import StudyAlternative, parse_alternative
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.effects.effects import switchback_effect
from slurm_energy.study.rollout.deploy_step import Deployment
from slurm_energy_lab.study_weeks.site_directory import SiteDirectory
from slurm_energy_lab.study_weeks.study_site import tuned_mode

OBJECTIVE = """
title = "weeks"
[[target]]
kpi = "energy_per_work_kwh"
change_percent = -5.0
[[limit]]
kpi = "worst_wait_s"
worse_percent = 100.0
[[conclusion]]
text = "tuning halves the energy"
kpi = "energy_per_work_kwh"
percent = 50.0
"""
MONDAY = date(2026, 9, 7)


class Trial:
    """A simulated site with a study, for tests of the step `validate`.

    The baseline has two weeks. The deployment is a switchback, in which the change is in force in periods
    drawn at random.
    """

    def __init__(self, folder: Path, seed: int = 5, *, tuning: str = "energy,slowdown=5") -> None:
        self.site = SiteDirectory.create(folder / "site", seed, MONDAY)
        self.site.run(14)
        self.study = StudyDirectory.create(folder / "study", OBJECTIVE)
        assert self.main("baseline", *self.files()) == 0
        choice = {
            "recommended": "gentle",
            "alternatives": [
                StudyAlternative("today").document(),
                parse_alternative(f"gentle:tuning={tuning}").document(),
            ],
            "partition_energy_joules": {"ampere": 1.0, "hopper": 2.0},
            "user_energy_joules": {"physics0": 1.0, "vision0": 1.0},
        }
        for step, result in (("model", {}), ("choose", choice)):
            with self.study.running(step, step) as run:
                run.finish(result)

    def copy(self, folder: Path) -> "Trial":
        """Copy the trial to another directory, so that the baseline need not be simulated again."""
        made = copy(self)
        shutil.copytree(self.site.path.parent, folder, dirs_exist_ok=True)
        made.site = SiteDirectory(folder / "site")
        made.study = StudyDirectory(folder / "study")
        return made

    def main(self, action: str, *words: str) -> int:
        return main(["study", action, str(self.study.path), *words])

    def files(self) -> list[str]:
        days = self.site.days
        return [f"--{name}={self.site.path}/{name}-{days}.csv" for name in ("jobs", "energy")]

    def deploy(self, *words: str) -> None:
        config = f"--config={self.site.path}/energy.toml"
        common = ["--skip-stages", "--yes", "--apply-command=true", "--at=2026-09-20T12:00", config]
        assert self.main("deploy", *(words or ("--stage=all", *SWITCHBACK)), *common) == 0

    def run(self, days: int = 14, fault: str | None = None) -> None:
        self.site.run(days, self.tick, fault)

    def tick(self, now: datetime) -> None:
        Deployment(StudyDirectory(self.study.path), now.timestamp(), lambda _: []).tick("tick")

    def result(self) -> dict:
        return StudyDirectory(self.study.path).result("validate")

    def configuration(self) -> str:
        return (self.site.path / "energy.toml").read_text()


SWITCHBACK = ("--design=switchback", "--first-day=2026-09-21", "--days=14", "--seed=3")


@pytest.fixture(scope="module", autouse=True)
def no_fsync():
    """Leave out fsync, which takes most of the time here; test_atomic_file.py covers durability."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return Trial(tmp_path_factory.mktemp("measured"))


@pytest.fixture(scope="module")
def validated(measured, tmp_path_factory):
    trial = measured.copy(tmp_path_factory.mktemp("validated"))
    trial.deploy()
    trial.run()
    assert trial.main("validate", *trial.files()) == 0
    return trial


@pytest.mark.slow
def test_the_interval_contains_the_true_saving(validated):
    effect = validated.result()["targets"][0]["effect"]
    truth = validated.site.true_saving(tuned_mode(), 14)
    assert effect["low"] <= truth <= effect["high"] < 0.0
    assert effect["method"] == "switchback"
    assert {"expected energy", "weekday"} <= set(effect["adjusted_for"])


@pytest.mark.slow
def test_a_validation_is_reproducible_and_hashed(validated, capsys):
    before = (validated.study.path / "validate/days.csv").read_bytes()
    effects = validated.result()["effects"]
    assert validated.main("validate", *validated.files()) == 0
    capsys.readouterr()
    assert (validated.study.path / "validate/days.csv").read_bytes() == before
    assert validated.result()["effects"] == effects
    study = StudyDirectory(validated.study.path)
    entry = study.manifest.steps["validate"]
    assert {"result.json", "days.csv", "jobs.csv", "energy.csv"} == set(entry.outputs)
    assert "deploy/result.json" in entry.inputs
    assert study.staleness("validate") == ""


def test_jobs_of_the_deployment_are_stored_with_their_arm(validated):
    with (validated.study.path / "validate/jobs.csv").open(newline="") as file:
        arms = {row["arm"] for row in csv.DictReader(file)}
    assert {"treated", "control"} <= arms


@pytest.mark.slow
def test_the_report_names_verdict_steps_and_hashes(validated, capsys):
    assert validated.main("report") == 0
    assert "not reached: tuning halves the energy: -" in capsys.readouterr().out
    page = (validated.study.path / "report.html").read_text()
    assert "Limits" in page
    assert "tuning halves the energy" in page
    entry = StudyDirectory(validated.study.path).manifest.steps["baseline"]
    assert entry.outputs["result.json"][:12] in page
    assert page.count("<svg") == 3  # pattern of the week, effects, days of the effect
    notebook = json.loads((validated.study.path / "report.ipynb").read_text())
    assert notebook["nbformat"] == 4
    known: dict = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile(cell["source"], "cell", "exec"), known)
    again = switchback_effect(known["series"]).change
    assert again == pytest.approx(validated.result()["targets"][0]["effect"]["change"], abs=0.03)
    report = json.loads((validated.study.path / "report.json").read_text())
    assert report["results"]["validate"]["targets"][0]["verdict"] == "reached"


@pytest.mark.soak
def test_a_deployment_without_an_effect_is_a_placebo(measured, tmp_path, capsys):
    trial = measured.copy(tmp_path)
    trial.deploy()
    trial.site.run(14, trial.tick, has_effect=False)
    assert trial.main("validate", *trial.files()) == 0
    assert "no effect" in capsys.readouterr().out


def test_a_broken_limit_takes_the_deployment_back_and_changes_nothing_else(measured, tmp_path, capsys):
    trial = measured.copy(tmp_path)
    own = trial.configuration()
    trial.deploy()
    trial.run(10, fault="physics")
    (trial.site.path / "energy.toml").write_text(trial.configuration() + "\n# a note of the site\n")
    assert trial.main("validate", *trial.files()) == 1
    assert "taken back" in capsys.readouterr().out
    assert trial.configuration() == own + "\n# a note of the site\n"
    state = Deployment(StudyDirectory(trial.study.path)).state()
    assert state is not None
    assert state.stopped == "limit broken: worst_wait_s"
    assert StudyDirectory(trial.study.path).staleness("validate") == ""
    trial.run(1)
    assert trial.configuration() == own + "\n# a note of the site\n"


@pytest.mark.soak
def test_no_undo_leaves_a_broken_deployment_in_force(measured, tmp_path, capsys):
    trial = measured.copy(tmp_path)
    trial.deploy()
    trial.run(10, fault="physics")
    assert trial.main("validate", "--no-undo", *trial.files()) == 1
    assert trial.result()["undone"] is False
    state = Deployment(StudyDirectory(trial.study.path)).state()
    assert state is not None
    assert state.is_active


@pytest.mark.soak
def test_partitions_are_compared_as_difference_in_differences(measured, tmp_path, capsys):
    trial = measured.copy(tmp_path)
    trial.deploy("--stage=partition", "--partition=hopper")
    trial.site.run(14)
    assert trial.main("validate", *trial.files()) == 0
    effect = trial.result()["targets"][0]["effect"]
    assert effect["method"] == "difference_in_differences"
    assert effect["high"] < 0.0


@pytest.mark.soak
def test_days_on_which_the_switch_was_late_do_not_count(measured, tmp_path, capsys):
    trial = measured.copy(tmp_path)
    trial.deploy()
    skipped = [datetime(2026, 9, 23, tzinfo=UTC), datetime(2026, 9, 30, tzinfo=UTC)]
    trial.site.run(14, lambda now: None if now in skipped else trial.tick(now))
    trial.main("validate", *trial.files())
    assert "the configuration was not that of their arm" in " ".join(trial.result()["remarks"])


def test_an_interrupted_validation_continues_with_the_data_that_it_has_read(validated, monkeypatch, capsys):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slurm_energy.study.effects.validation.effect_days", stop)
    assert validated.main("validate", *validated.files()) != 0
    assert StudyDirectory(validated.study.path).manifest.steps["validate"].state == "running"
    monkeypatch.undo()
    monkeypatch.setattr("slurm_energy.study.data.jobs_file.read_jobs", stop)
    assert validated.main("validate", *validated.files()) == 0


def test_stages_without_effect_and_wrong_washouts_are_refused(measured, tmp_path, capsys):
    trial = measured.copy(tmp_path)
    assert trial.main("validate", *trial.files()) == 2
    assert "needs the step deploy" in capsys.readouterr().err
    trial.deploy("--stage=advise")
    assert trial.main("validate", *trial.files()) == 2
    assert "the stage advise has no effect on jobs" in capsys.readouterr().err
    assert trial.main("validate", "--washout=24", *trial.files()) == 2
    assert "--washout" in capsys.readouterr().err


def test_a_validation_before_the_end_of_the_first_day_says_when_to_repeat_it(measured, tmp_path, capsys):
    trial = measured.copy(tmp_path)
    trial.deploy("--stage=all")
    assert trial.main("validate", *trial.files()) == 2
    first = "before the end of its first full day, 2026-09-21: validate again after this day"
    assert first in capsys.readouterr().err


def test_the_washout_can_be_chosen(validated, capsys):
    assert validated.main("validate", "--washout=2", *validated.files()) == 0
    assert validated.result()["washout_hours"] == 2.0
