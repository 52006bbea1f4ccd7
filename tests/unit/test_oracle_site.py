"""Tests of calibrations and hardware files that a site adds for its own kinds of device.

The tests check that the configuration, the live queue, senergyctld and the command line use the files.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

np = pytest.importorskip("numpy", reason="predictions need numpy")
pytest.importorskip("scipy", reason="calibration needs scipy")

import measured_steps  # noqa: E402
from queue_examples import queue  # noqa: E402

from slurm_energy import config as configuration  # noqa: E402
from slurm_energy.cli import main as cli  # noqa: E402
from slurm_energy.config.findings import Severity  # noqa: E402
from slurm_energy.controller.tuning.history_cache import HistoryCache, training_model  # noqa: E402
from slurm_energy.errors import ConfigError  # noqa: E402
from slurm_energy.log_once import RepeatedFailureLog  # noqa: E402
from slurm_energy.oracle.calibration.evaluation import predict_rows  # noqa: E402
from slurm_energy.oracle.calibration.measurements import write_measurements  # noqa: E402
from slurm_energy.oracle.calibration_files import save_calibration, shipped_calibration  # noqa: E402
from slurm_energy.oracle.hardware import find_hardware, hardware_names, use_site_hardware  # noqa: E402
from slurm_energy.oracle.hardware.hardware_files import _DIRECTORY as SHIPPED  # noqa: E402
from slurm_energy.oracle.prediction import PredictionRequest, PredictionSource  # noqa: E402
from slurm_energy.oracle.site_files import read_site  # noqa: E402
from slurm_energy.oracle.training.parameters import Calibration, Scalars  # noqa: E402
from slurm_energy.priority.prediction import MODEL, QueuePredictor  # noqa: E402
from slurm_energy.validation import check_file  # noqa: E402

A100 = "a100-sxm4-40gb"
SLOW = Calibration(A100, workloads={"resnet50": Scalars(compute=9.0, memory=9.0)}, basis="ours")
JOB = "#!/bin/bash\n#SBATCH --gpus=a100:1 -t 600\n#SBATCH --energy-model=resnet50\nsrun python x.py\n"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_other_kinds() -> Iterator[None]:
    yield
    use_site_hardware(())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a calibration, a hardware file and a configuration that names both."""
    monkeypatch.chdir(tmp_path)
    save_calibration(SLOW, tmp_path / "a100.toml")
    text = (SHIPPED / "a40-48gb.toml").read_text(encoding="utf-8")
    text = text.replace('name = "a40-48gb"', 'name = "x9"').replace(
        'aliases = ["a40"]', 'aliases = ["x-nine"]'
    )
    (tmp_path / "x9.toml").write_text(text, encoding="utf-8")
    (tmp_path / "energy.toml").write_text(
        f'[oracle]\ncalibrations = ["{tmp_path}/a100.toml"]\nhardware = ["{tmp_path}/x9.toml"]\n'
    )
    monkeypatch.setenv("SENERGY_CONFIG", str(tmp_path / "energy.toml"))
    (tmp_path / "job.sh").write_text(JOB)
    return tmp_path


@pytest.fixture
def senergy(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(words: str) -> tuple[int, str, str]:
        code = cli.main(words.split())
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def test_the_live_queue_predicts_with_the_sites_calibration(folder: Path) -> None:
    trains = {"gpus": 1, "gpu_kind": "a100", "flags": {"ENERGY_MODEL": "resnet50"}, "time_limit_s": 1e6}
    plain = QueuePredictor(configuration.Config()).predict(queue(trains))
    own = QueuePredictor(configuration.load()).predict(queue(trains))
    assert (plain.source[0], own.source[0]) == (MODEL, MODEL)
    assert own.time_s[0] > 2.0 * plain.time_s[0]


def test_senergyctld_predicts_jobs_without_history(folder: Path) -> None:
    model = training_model(configuration.load())
    assert model is not None
    requests = PredictionRequest(model="resnet50", gpu_kind="a100", gpus=1)
    prediction = model.predict(requests)
    assert (
        prediction is not None and "ours" in prediction.basis and prediction.source is PredictionSource.MODEL
    )
    new = model.predict(dataclasses.replace(requests, gpu_kind="x-nine"))
    assert new is not None and "resnet50 on x9" in new.basis
    training_model(configuration.Config())  # like a reload without the files
    assert model.predict(dataclasses.replace(requests, gpu_kind="x-nine")) is None


def test_kinds_of_the_site_are_found_by_every_name(folder: Path) -> None:
    training_model(configuration.load())
    assert find_hardware("x9") is find_hardware("X-Nine")
    assert hardware_names()["x-nine"] == "x9"
    assert find_hardware("a40").name == "a40-48gb"


def test_predict_uses_the_files_of_the_configuration(folder: Path, senergy: Run) -> None:
    code, out, _ = senergy("predict --model resnet50 --gpu a100,x9 --json")
    first, second = json.loads(out)["alternatives"]
    assert (code, "ours" in first["basis"], second["gpu"]) == (0, True, "x9")
    code, out, _ = senergy("predict --list")
    assert (code, "ours" in out, "x9 " in out) == (0, True, True)
    (folder / "energy.toml").write_text("")
    assert senergy("predict --model resnet50 --gpu x9")[0] == 6


def test_predict_job_uses_them_too(folder: Path, senergy: Run) -> None:
    code, out, _ = senergy("predict --json job.sh")
    prediction = json.loads(out)["prediction"]
    assert (code, prediction["source"], "ours" in prediction["basis"]) == (0, "model", True)


def test_predict_job_with_a_calibration_ignores_history(folder: Path, senergy: Run, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        "slurm_energy.cli.connection.connect", lambda args, **options: pytest.fail("history was asked")
    )
    (folder / "energy.toml").write_text("")
    save_calibration(dataclasses.replace(SLOW, basis="the file"), folder / "own.toml")
    code, out, _ = senergy("predict --calibration own.toml --json job.sh")
    assert (code, "the file" in json.loads(out)["prediction"]["basis"]) == (0, True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (" --energy-model=resnet50", "", "does not name a model (--energy-model)"),
        ("--gpus=a100:1", "--gpus=1", "does not name a kind of GPU"),
        ("--gpus=a100:1", "--gpus=h100:1", f"it is for {A100}: the script requests h100-sxm5-80gb"),
        ("resnet50", "a-model-of-no-profile", "was not used"),
    ],
)
def test_a_calibration_without_effect_is_refused(
    folder: Path, senergy: Run, old: str, new: str, message: str
) -> None:
    script = JOB.replace("\n#SBATCH --energy-model=resnet50", "\n#SBATCH -J x --energy-model=resnet50")
    assert old in script
    (folder / "job.sh").write_text(script.replace(old, new))
    code, _, err = senergy("predict --calibration a100.toml job.sh")
    assert (code, message in err, err.count("\n")) == (2, True, 1), err


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('calibrations = ["{0}/none.toml"]', "none.toml"),
        ('calibrations = ["{0}/energy.toml"]', "unknown key"),
        ('calibrations = ["{0}/a100.toml", "{0}/a100.toml"]', f"is a second calibration of {A100}"),
        ('hardware = ["{0}/a100.toml"]', "unknown key"),
        ('hardware = ["{0}/x9.toml", "{0}/y.toml"]', "also names 'x9'"),
        ('calibrations = ["{0}/x.toml"]', "is for the unknown kind x9"),
        ('calibrations = ["a100.toml"]', "absolute paths"),
        ("hardware = 3", "must be a list of absolute paths"),
    ],
)
def test_invalid_files_are_reported_by_config_check(folder: Path, lines: str, message: str) -> None:
    (folder / "y.toml").write_text((folder / "x9.toml").read_text())
    save_calibration(Calibration("x9"), folder / "x.toml")
    (folder / "energy.toml").write_text(f"[oracle]\n{lines.format(folder)}\n")
    result = [finding for finding in check_file().findings if finding.key.startswith("oracle.")]
    assert [message in finding.text for finding in result] == [True], [finding.text for finding in result]
    severe = (
        Severity.WARNING if "none.toml" in lines else Severity.ERROR
    )  # the file may exist on the controller only
    assert {finding.severity for finding in result} == {severe}
    assert {finding.line for finding in result} == {2}


def test_valid_files_pass(folder: Path) -> None:
    assert not [finding for finding in check_file().findings if finding.key.startswith("oracle.")]
    site, kinds = read_site([folder / "a100.toml"], [folder / "x9.toml"])
    assert site.of(A100).basis == "ours"
    assert site.of("a40-48gb") is shipped_calibration("a40-48gb")
    assert [kind.name for kind in kinds] == ["x9"]


def test_a_file_of_another_kind_is_refused(folder: Path) -> None:
    save_calibration(Calibration("nothing"), folder / "odd.toml")
    with pytest.raises(ConfigError, match=r"name its file in oracle\.hardware"):
        read_site([folder / "odd.toml"], [folder / "x9.toml"])
    assert "x9" not in hardware_names()


def steps(folder: Path, count: int) -> None:
    """Write a file of measured training steps for tests of the calibration.

    The steps are measured at `count` power limits. The limits rise in steps of 25 W from 100 W.
    """
    a40 = find_hardware("a40")
    caps = [100.0 + 25.0 * index for index in range(count)]
    rows = measured_steps.grid(["resnet50"], [64.0], caps, precision="tf32", optimizer="sgd")
    figures = predict_rows(a40, rows, shipped_calibration(a40.name))
    write_measurements(measured_steps.measured(rows, *figures), folder / "steps.csv")


def test_one_sweep_of_seven_rows_is_a_calibration(folder: Path, senergy: Run) -> None:
    steps(folder, 7)
    code, out, _ = senergy("calibrate steps.csv --gpu a40 --output own.toml --json")
    assert (code, json.loads(out)["method"], json.loads(out)["rows"]) == (0, "transfer", 7)
    code, out, _ = senergy("predict --model resnet50 --gpu a40 --batch 64 --calibration own.toml --json")
    (alternative,) = json.loads(out)["alternatives"]
    assert alternative["notes"] == [
        "7 measurements of resnet50 on a40-48gb, otherwise as on other kinds (rtx6000-24gb)"
    ]


def test_options_of_a_search_are_refused_without_one(folder: Path, senergy: Run) -> None:
    steps(folder, 7)
    for option in ("--checkpoint s.npz", "--start a100.toml"):
        code, _, err = senergy(f"calibrate steps.csv --gpu a40 --output own.toml {option} --method transfer")
        assert (code, "it requires a search" in err or "it is for" in err, err.count("\n")) == (2, True, 1), (
            err
        )
    assert senergy("calibrate steps.csv --gpu a40 --output own.toml --method guess")[0] == 2


def test_a_prior_must_be_of_another_kind_with_data(folder: Path, senergy: Run) -> None:
    steps(folder, 7)
    own = shipped_calibration("a40-48gb")
    save_calibration(own, folder / "a40.toml")
    save_calibration(dataclasses.replace(own, hardware="x9"), folder / "other.toml")
    code, _, err = senergy("calibrate steps.csv --gpu a40 --output own.toml --prior a40.toml")
    assert (code, "it is for the same kind" in err) == (2, True)
    code, _, err = senergy("calibrate steps.csv --gpu a40 --output own.toml --prior a100.toml")
    assert (code, "it has no [transfer]" in err) == (2, True)
    assert senergy("calibrate steps.csv --gpu x9 --output own.toml --prior a40.toml")[0] == 0
    assert senergy("calibrate steps.csv --gpu a40 --output own.toml --prior other.toml")[0] == 0


def test_the_controller_queries_the_model_without_history(folder: Path) -> None:
    memory = HistoryCache(
        Mock(), RepeatedFailureLog(logging.getLogger("test"), ignore_numbers=True), retention_days=1.0
    )
    requests = [
        PredictionRequest(model="resnet50", gpu_kind="a100", gpus=1),
        PredictionRequest(name="anything"),
    ]
    assert asyncio.run(memory.predict(requests, own_only=True)) == [None, None]
    memory.model = training_model(configuration.load())
    first, second = asyncio.run(memory.predict(requests, own_only=True))
    memory.close()
    assert first is not None and (first["source"], second) == ("model", None)
    assert "ours" in first["basis"]
