"""Tests of the options of `senergy diagnose` that adjust programs.

The options are `--apply`, `--permit`, `--adjustments`, `--submit` and `--undo`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_controller
import pytest

from slurm_energy.cli.main import main
from slurm_energy.errors import UnavailableError
from slurm_energy.reports.diagnosis.adjustment_text import trial_lines
from slurm_energy.slurm import sbatch

PROPOSAL: dict[str, Any] = {
    "finding": "data-stall-cpu",
    "adjustments": [{"kind": "workers", "old": 1, "new": 8}, {"kind": "cpus-per-task", "old": 4, "new": 9}],
    "predicted_time_ratio": 0.6,
    "predicted_energy_ratio": None,
    "prediction_source": "step times\x1b[2J of this job",
}
DECISION = {
    "verdict": "kept",
    "reason": "takes less time per sample beyond the noise",
    "unit": "sample",
    "measured_time_ratio": 0.65,
    "measured_energy_ratio": 0.8,
    "noise": 0.01,
}
TRIAL = PROPOSAL | {
    "trial": 3,
    "uid": 1000,
    "state": "kept",
    "source": "apply",
    "job": "12",
    "created_unix_s": 1.7e9,
    "before": [{}, {}],
    "after": [{}],
    "decision": DECISION,
}
PATH = "/v1/adjustments"
OF_JOB = {
    "permissions": None,
    "workload": "0123456789abcdef",
    "proposals": [PROPOSAL],
    "trials": [TRIAL],
    "values": {"workers": 8, "cpus-per-task": 9},
}


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> fake_controller.FakeController:
    answers: dict[str, Any] = {
        PATH: OF_JOB,
        f"{PATH}/apply": {"trial": TRIAL, "further_proposals": 1},
        f"{PATH}/permit": {"permissions": "workers=0..16", "within_site_limits": "workers=0..4"},
        f"{PATH}/undo": {"undone": [TRIAL]},
        f"{PATH}/submitted": {"job_id": 77},
    }
    return fake_controller.install(monkeypatch, answers)


def test_apply_sends_the_permission_and_shows_what_the_next_run_gets(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "12", "--apply", "--permit", "workers=0..16"]) == 0
    assert controller.posted == [(f"{PATH}/apply", {"job": "12", "permit": "workers=0..16"})]
    text = capsys.readouterr().out
    assert "workers 1 -> 8, cpus-per-task 4 -> 9" in text
    assert "--submit SCRIPT, which adds --cpus-per-task=9" in text
    assert "\x1b" not in text


def test_apply_without_permission_shows_the_proposals_and_changes_nothing(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "12", "--apply"]) == 2
    captured = capsys.readouterr()
    assert "workers 1 -> 8" in captured.out
    assert "--permit" in captured.err
    assert not controller.posted


def test_permissions_are_saved_and_the_limit_of_the_site_is_told(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--permit", "workers=0..16"]) == 0
    assert controller.posted == [(f"{PATH}/permit", {"permit": "workers=0..16"})]
    captured = capsys.readouterr()
    assert "permitted: workers=0..16" in captured.out
    assert "workers=0..4" in captured.err


def test_list_shows_predicted_and_measured_gain(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--adjustments"]) == 0
    text = capsys.readouterr().out
    assert "-40.0 % / unknown" in text
    assert "-35.0 % / -20.0 %" in text
    assert "2/1" in text
    assert "takes less time per sample" in text
    assert main(["diagnose", "12", "--adjustments", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"][0]["state"] == "kept"
    assert controller.asked == [(PATH, {}), (PATH, {"job": "12"})]


def batch_script(directory: Path, lines: str) -> str:
    """Write a batch script with the given #SBATCH lines, and return its path."""
    path = directory / "train.sh"
    path.write_text(f"#!/bin/bash\n{lines}\npython train.py\n")
    return str(path)


def test_submission_has_the_options_and_is_reported(
    controller: fake_controller.FakeController,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    commands = []
    monkeypatch.setattr(sbatch, "run_sbatch", lambda command, _: commands.append(command) or 77)
    script = batch_script(tmp_path, "#SBATCH --nodes=1")
    assert main(["diagnose", "12", "--submit", script]) == 0
    assert commands == [["sbatch", "--parsable", "--cpus-per-task=9", script]]
    body = {"job_id": 77, "workload": "0123456789abcdef"}
    assert controller.posted == [(f"{PATH}/submitted", body)]
    controller.answers[f"{PATH}/submitted"] = UnavailableError("controller", "it does not answer")
    assert main(["diagnose", "12", "--submit", script]) == 0
    assert "job 77 is not compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("#SBATCH --array=1-4", "a job array are not compared"),
        ("#SBATCH -N 1 -a 7", "a job array are not compared"),
        ("#SBATCH -N 1\n#SBATCH hetjob\n#SBATCH -N 2", "heterogeneous job"),
        (None, "No such file"),
    ],
)
def test_a_script_of_several_jobs_is_not_submitted(
    controller: fake_controller.FakeController,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    lines: str | None,
    why: str,
) -> None:
    monkeypatch.setattr(sbatch, "run_sbatch", lambda *_: pytest.fail("submitted"))
    script = str(tmp_path / "train.sh") if lines is None else batch_script(tmp_path, lines)
    assert main(["diagnose", "12", "--submit", script]) == 2
    error = capsys.readouterr().err
    assert why in error and error.count("\n") == 1


def test_options_of_a_submission_are_checked_on_this_side(
    controller: fake_controller.FakeController, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sbatch, "run_sbatch", lambda *_: pytest.fail("submitted"))
    controller.answers[PATH] = OF_JOB | {"values": {"--uid=0 nodes": 1}}
    assert main(["diagnose", "12", "--submit", batch_script(tmp_path, "")]) == 2


def test_undo_names_what_was_undone(
    controller: fake_controller.FakeController, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "12", "--undo"]) == 0
    assert "undone: workers 1 -> 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["--apply"],
        ["--undo"],
        ["12", "--apply", "--undo"],
        ["12", "--permit", "workers"],
        ["--permit", "worker=1"],
        ["12", "--undo", "--permit", "workers"],
        ["12", "--apply", "--html", "x"],
        ["--patterns", "--adjustments"],
    ],
)
def test_options_that_exclude_each_other_are_refused(
    controller: fake_controller.FakeController, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", *argv]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not controller.posted


@pytest.mark.parametrize(
    ("state", "verdict", "reason"),
    [
        ("undone", "undecided", "undone on request"),
        ("undone", "kept", "undone on request"),
        ("undone", "undone", "more energy"),
        ("pending", "undecided", "more energy"),
    ],
)
def test_an_adjustment_that_its_user_undid_says_so(state: str, verdict: str, reason: str) -> None:
    trial = {"trial": 1, "state": state, "decision": {"verdict": verdict, "reason": "more energy"}}
    assert list(trial_lines([trial]))[-1].strip() == reason
