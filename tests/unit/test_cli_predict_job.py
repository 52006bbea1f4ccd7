"""Tests of the command `senergy predict SCRIPT`.

The tests check the requests to the controller, the printed predictions, and the output if no controller
answers.
"""

from __future__ import annotations

import json

import golden_files
import pytest
from fake_controller import FakeController, install

from slurm_energy.cli import main as cli
from slurm_energy.cli import predict_job
from slurm_energy.errors import ForbiddenError, UnavailableError

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=a100:4 -c 8
#SBATCH --time=2:00:00 --partition=gpu --array=1-6
#SBATCH --energy-policy=edp --energy-tag=thesis
#SBATCH --energy-model=resnet50

srun python train.py
"""
ANSWER = {
    "duration_s": {"mean": 100.0, "low": 96.0, "high": 104.0},
    "power_watts": {"mean": 2000.0, "low": 1900.0, "high": 2100.0},
    "energy_joules": {"mean": 200000.0, "low": 190000.0, "high": 210000.0},
    "source": "history",
    "basis": "12 runs: same script, arguments, resources and policy",
    "age_s": 10800.0,
    "observations": 12,
    "notes": ["1 of 12 runs failed"],
}


class Predicting(FakeController):
    def post(self, path, body):
        self.asked.append((path, body))
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(predict_job, "_login_name", lambda: "alice")
    (tmp_path / "energy.toml").write_text("")
    monkeypatch.setenv("SENERGY_CONFIG", str(tmp_path / "energy.toml"))
    (tmp_path / "job.sh").write_text(SCRIPT)
    return tmp_path


def controller(monkeypatch, answer):
    fake = Predicting({"/v1/predict": answer})
    install(monkeypatch, {})
    monkeypatch.setattr("slurm_energy.cli.connection.connect", lambda args, **options: fake)
    return fake


def test_history(folder, monkeypatch, capsys):
    fake = controller(monkeypatch, {"scope": "own", "predictions": [ANSWER]})
    assert cli.main(["predict", "job.sh", "a", "b"]) == 0
    golden_files.compare("predict_history.txt", capsys.readouterr().out)
    ((_, body),) = fake.asked
    (question,) = body["requests"]
    fingerprint = question.pop("fingerprint")
    assert len(fingerprint) == 16
    assert question == {
        "user": "alice",
        "partition": "gpu",
        "name": "job.sh",
        "nodes": 2,
        "cpus": 16,
        "gpus": 8,
        "gpu_kind": "a100",
        "time_limit_s": 7200.0,
        "policy": "edp",
        "model": "resnet50",
        "tag": "thesis",
    }
    cli.main(["predict", "job.sh", "a", "c"])
    assert fake.asked[1][1]["requests"][0]["fingerprint"] != fingerprint


def test_json(folder, monkeypatch, capsys):
    controller(monkeypatch, {"scope": "own", "predictions": [ANSWER]})
    assert cli.main(["predict", "--json", "--sbatch", "-N 4 -A physics", "job.sh"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["prediction"] == ANSWER
    assert (document["job"]["nodes"], document["request"]["account"]) == (4, "physics")


def test_nameplate_prediction_without_history_and_model(folder, monkeypatch, capsys):
    """Without similar runs and without a model, the prediction uses the time limit and the TDP.

    The range of this prediction is wide.
    """
    controller(monkeypatch, {"scope": "own", "predictions": [None]})
    (folder / "job.sh").write_text(SCRIPT.replace("#SBATCH --energy-model=resnet50\n", ""))
    assert cli.main(["predict", "job.sh"]) == 0
    golden_files.compare("predict_nameplate.txt", capsys.readouterr().out)


def test_the_model_predicts_without_history(folder, monkeypatch, capsys):
    pytest.importorskip("numpy")
    controller(monkeypatch, {"scope": "own", "predictions": [None]})
    assert cli.main(["predict", "--json", "job.sh"]) == 0
    answer = json.loads(capsys.readouterr().out)["prediction"]
    assert answer["source"] == "model" and "resnet50" in answer["basis"]


def test_without_a_controller(folder, monkeypatch, capsys):
    controller(monkeypatch, UnavailableError("controller", "refused"))
    (folder / "job.sh").write_text("#!/bin/sh\ntrue\n")
    assert cli.main(["predict", "job.sh"]) == 0
    out = capsys.readouterr().out
    assert out.count("\nnote") == 2
    assert "history was not used: controller: refused" in out
    assert "no time limit is given: one day is assumed" in out


@pytest.mark.parametrize(
    "answer", [{}, {"predictions": []}, {"predictions": [{"source": "history"}]}, {"predictions": 1}]
)
def test_invalid_responses_are_noted(folder, monkeypatch, capsys, answer):
    controller(monkeypatch, answer)
    assert cli.main(["predict", "job.sh"]) == 0
    assert "Traceback" not in capsys.readouterr().out


def test_errors_are_one_line(folder, monkeypatch, capsys):
    controller(monkeypatch, ForbiddenError("jobs of user bob", "you may ask for your own"))
    (folder / "bad.sh").write_text("#!/bin/sh\n#SBATCH -N two\n")
    for arguments, code, words in (
        (["missing.sh"], 2, "missing.sh: No such file or directory"),
        (["bad.sh"], 2, "bad.sh: line 2: --nodes: 'two' is not a whole number"),
        (["--sbatch", "-J 'x", "job.sh"], 2, "--sbatch: No closing quotation"),
        (["--user", "bob", "job.sh"], 5, "jobs of user bob"),
        (["."], 2, "Is a directory"),
    ):
        assert cli.main(["predict", *arguments]) == code
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1
        assert words in captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["job.sh", "--epochs", "90"], "--epochs: given with a batch script"),
        (["job.sh", "--batch", "32"], "--batch: given with a batch script"),
        (["job.sh", "--eds-k=2"], "--eds-k: given with a batch script"),
        (["--list", "job.sh"], "--list: given with a batch script"),
        (["--model", "resnet50", "--gpu", "a40", "--user", "bob"], "--user: it needs a batch script"),
        (["--model", "resnet50", "--gpu", "a40", "--sbatch=-N4"], "--sbatch: it needs a batch script"),
        (["--list", "--slowdown", "3"], "--slowdown: it needs a batch script"),
    ],
)
def test_options_of_the_other_form_are_refused(folder, monkeypatch, capsys, arguments, words):
    controller(monkeypatch, {"predictions": [ANSWER]})
    assert cli.main(["predict", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and words in captured.err


def test_flags_that_submission_would_refuse_are_noted(folder, monkeypatch, capsys):
    controller(monkeypatch, {"predictions": [ANSWER]})
    (folder / "job.sh").write_text("#!/bin/sh\n#SBATCH --energy-cap=9MW\ntrue\n")
    assert cli.main(["predict", "job.sh"]) == 0
    assert "note    --energy-cap: '9MW' is out of bounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ("--energy-model=resnet49 --gpus=a40:1", "no such workload profile: near names: resnet50"),
        ("--energy-model=resnet50 --gpus=a41:1", "near names: a40"),
        ("--energy-model=resnet50 --gres=gpu:a40:1,gpu:a100:2", "a40 and a100: all GPUs are counted as a40"),
    ],
)
def test_a_note_states_why_the_model_was_not_used(folder, monkeypatch, capsys, options, note):
    (folder / "job.sh").write_text(f"#!/bin/bash\n#SBATCH -t 10 {options}\nsrun x\n")
    controller(monkeypatch, {"predictions": [None]})
    assert cli.main(["predict", "job.sh"]) == 0
    assert note in capsys.readouterr().out


def test_gpus_of_two_types_are_all_counted_and_columns_stay_apart(folder, monkeypatch, capsys):
    (folder / "job.sh").write_text("#!/bin/bash\n#SBATCH --gpus=a40:3,a100:5 -t 99999999-00\nsrun x\n")
    controller(monkeypatch, {"predictions": [None]})
    assert cli.main(["predict", "job.sh"]) == 0
    out = capsys.readouterr().out
    assert "8 GPUs (a40)" in out
    assert len(next(line for line in out.splitlines() if line.startswith("time ")).split()) == 4
