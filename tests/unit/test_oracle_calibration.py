"""Tests of the calibration of the prediction model.

The tests check measurement files, the objective, the search, and the cross-validation, in which each fold
leaves out workloads. The search must be deterministic, and must resume after an interruption.
"""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="calibration needs numpy")
pytest.importorskip("scipy", reason="calibration needs scipy")

import measured_steps  # noqa: E402

from slurm_energy.cli import main as cli  # noqa: E402
from slurm_energy.errors import NotFoundError, UsageError  # noqa: E402
from slurm_energy.oracle.calibration.fit_problem import Problem, Weights, start_vector  # noqa: E402
from slurm_energy.oracle.calibration.fitting import choose_unknowns, fit, leave_out  # noqa: E402
from slurm_energy.oracle.calibration.measurements import (  # noqa: E402
    COLUMNS,
    Measurement,
    read_measurements,
    write_measurements,
)
from slurm_energy.oracle.calibration.search import SEGMENT, SearchSettings, search  # noqa: E402
from slurm_energy.oracle.calibration_files import load_calibration, shipped_calibration  # noqa: E402
from slurm_energy.oracle.hardware import find_hardware  # noqa: E402
from slurm_energy.oracle.training.parameters import Scalars, Theta  # noqa: E402

A40 = find_hardware("a40")
TRUTH = Theta(beta_conv=0.45, beta_gemm=0.8, kernel_s=1.1e-5, static_share=0.2, voltage_floor=0.5)
SMALL = SearchSettings(generations=SEGMENT, population=24, polish=40, kicks=0)
STUDY_HEADER = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"
STUDY = Path(__file__).parents[2].parent / "shared/data/power-limits"


def measured(models: tuple[str, ...] = ("resnet50", "bert-base")) -> list[Measurement]:
    """Return synthetic measurements: the values that the model predicts with its true parameters."""
    rows = measured_steps.grid(models, (4.0, 16.0, 64.0), (100.0, 150.0, 200.0, 300.0))
    seconds, watts, _ = Problem(A40, rows, TRUTH, {}).predict([], np.zeros((1, 0)))
    return measured_steps.measured(rows, seconds[0], watts[0])


@pytest.fixture(scope="module")
def task() -> tuple[Problem, Any, Any]:
    rows = measured()
    found = choose_unknowns(A40, rows)
    return Problem(A40, rows, Theta(), {}), found, start_vector(found, Theta(), {})


def test_the_truth_has_no_loss(task: tuple[Problem, Any, Any]) -> None:
    problem, found, _ = task
    exact = start_vector(found, TRUTH, {})
    assert problem.loss(found, exact[None], Weights(1.0, 0.0))[0] == pytest.approx(0.0, abs=1e-9)
    assert problem.errors(found, exact[None])[0][0] == pytest.approx(0.0, abs=1e-9)


def test_plain_weights_give_equation_4_18(task: tuple[Problem, Any, Any]) -> None:
    problem, found, start = task
    (time,), (power,) = problem.errors(found, start[None])
    assert problem.loss(found, start[None], Weights(0.0, 0.0))[0] == pytest.approx(0.6 * time + 0.4 * power)


def test_only_identifiable_parameters_are_unknowns() -> None:
    names = {unknown.name for unknown in choose_unknowns(A40, measured(("bert-base",)))}
    assert {"beta_gemm", "voltage_floor", "kernel_s", "sample_s"} <= names
    assert not names & {"beta_conv", "link_share", "low_gemm"}
    several = [dataclasses.replace(row, gpus=4.0, precision="bf16", cap_watts=math.inf) for row in measured()]
    names = {unknown.name for unknown in choose_unknowns(A40, several)}
    assert {"beta_conv", "link_share", "low_gemm"} <= names
    assert "voltage_floor" not in names


def test_a_search_is_deterministic_for_any_number_of_workers(task: tuple[Problem, Any, Any]) -> None:
    problem, found, start = task
    quick = dataclasses.replace(SMALL, generations=6, polish=0)
    alone = search(problem, found, start, quick)
    assert np.array_equal(alone, search(problem, found, start, quick))
    assert not np.array_equal(alone, search(problem, found, start, dataclasses.replace(quick, seed=2)))
    if not _semaphores_can_be_created():
        pytest.skip("worker processes need semaphores, and this user cannot write /dev/shm")
    assert np.allclose(alone, search(problem, found, start, dataclasses.replace(quick, workers=2)), atol=1e-9)


def _semaphores_can_be_created() -> bool:
    try:
        multiprocessing.Lock()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_workers_need_no_short_directory_for_temporary_files(
    task: tuple[Problem, Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker processes also start if the path of the temporary directory is long.

    A fork server would create a socket in this directory. Paths of sockets are limited to 107
    bytes.
    """
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    problem, found, start = task
    quick = dataclasses.replace(SMALL, generations=1, polish=0)
    alone = search(problem, found, start, quick)
    assert np.allclose(alone, search(problem, found, start, dataclasses.replace(quick, workers=2)), atol=1e-9)


def test_an_interrupted_search_resumes(task: tuple[Problem, Any, Any], tmp_path: Path) -> None:
    problem, found, start = task
    whole = dataclasses.replace(SMALL, generations=2 * SEGMENT, population=12, polish=0)
    told: list[int] = []

    def interrupted(done: int, planned: int, loss: float) -> None:
        told.append(done)
        if len(told) == 1:
            raise KeyboardInterrupt

    checkpoint_path = tmp_path / "state.npz"
    with pytest.raises(KeyboardInterrupt):
        search(problem, found, start, whole, checkpoint_path, interrupted)
    resumed = search(problem, found, start, whole, checkpoint_path, interrupted)
    assert told == [SEGMENT, 2 * SEGMENT]
    assert np.array_equal(resumed, search(problem, found, start, whole))


def test_a_foreign_checkpoint_is_refused(task: tuple[Problem, Any, Any], tmp_path: Path) -> None:
    problem, found, start = task
    checkpoint_path = tmp_path / "state.npz"
    few = dataclasses.replace(SMALL, generations=1, population=8, polish=0)
    search(problem, found, start, few, checkpoint_path)
    with pytest.raises(UsageError, match="checkpoint of other measurements or settings"):
        search(problem, found, start, dataclasses.replace(few, seed=2), checkpoint_path)
    checkpoint_path.write_bytes(b"nonsense")
    with pytest.raises(UsageError, match="is not a checkpoint"):
        search(problem, found, start, few, checkpoint_path)


@pytest.mark.slow
def test_a_fit_is_accurate_and_predicts_an_unseen_limit() -> None:
    rows = measured()
    result = fit(A40, rows, SMALL)
    assert result.combined_error < 0.03
    assert set(result.calibration.workloads) == {"resnet50", "bert-base"}
    spread = result.calibration.measured_spread
    assert 0.8 < spread.time_low <= 1.0 <= spread.time_high < 1.2
    quick = dataclasses.replace(SMALL, generations=0)
    held = leave_out(A40, rows, lambda row: row.cap_watts == 150.0, quick, start=result.calibration)
    assert max(held.errors()) < 0.2
    assert np.isfinite(held.seconds).all()


@pytest.mark.slow
def test_a_left_out_workload_has_no_factors() -> None:
    rows = measured()
    quick = dataclasses.replace(SMALL, generations=2, population=8, polish=0)
    changed = [dataclasses.replace(row, step_s=1.0) if row.model == "bert-base" else row for row in rows]
    first, second = (
        leave_out(A40, given, lambda row: row.model, quick, forget_workload=True) for given in (rows, changed)
    )
    own = [index for index, row in enumerate(rows) if row.model == "bert-base"]
    assert np.array_equal(first.seconds[own], second.seconds[own])


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(UsageError, match="3 measurements are too few"):
        fit(A40, measured()[:3], SMALL, method="search")


def test_measurements_round_trip_through_a_file(tmp_path: Path) -> None:
    rows = [*measured(), Measurement("ncf", 8.0, 2.0, "bf16", "adam", math.inf, 0.5, math.nan)]
    write_measurements(rows, tmp_path / "steps.csv")
    again = read_measurements(tmp_path / "steps.csv")
    assert again[:-1] == rows[:-1]
    assert (again[-1].cap_watts, math.isnan(again[-1].power_watts)) == (math.inf, True)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ("resnet50,0,1,fp32,sgd,,1,2", UsageError, "line 2: batch: '0' is not a number above 0"),
        ("resnet50,8,1,fp32,sgd,,,2", UsageError, "line 2: step_s: '' is not a number above 0"),
        ("resnet50,8,1,int8,sgd,,1,2", UsageError, "line 2: precision: is not one of"),
        ("resnet5,8,1,fp32,sgd,,1,2", NotFoundError, "near names: resnet50"),
        ("resnet50,8,1,fp32,lion,,1,2", NotFoundError, "optimizer 'lion'"),
        ("resnet50,8,1,fp32,sgd,nan,1,2", UsageError, "line 2: cap_watts"),
        ("resnet50,8,1,fp32,sgd,250,1,25,200,5", UsageError, "line 2: has more fields.*decimal comma"),
    ],
)
def test_bad_measurements_name_the_line(
    tmp_path: Path, values: str, error: type[Exception], message: str
) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(",".join(COLUMNS) + "\n" + values + "\n", encoding="utf-8")
    with pytest.raises(error, match=message):
        read_measurements(path)


def test_files_with_another_header_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(UsageError, match="header: is not known: columns: model,batch"):
        read_measurements(path)
    with pytest.raises(UsageError, match="No such file"):
        read_measurements(tmp_path / "none.csv")


def test_measurements_from_a_spreadsheet_are_read(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(f"{', '.join(COLUMNS)}\n\nresnet50, 8, 1, fp32, sgd, , 1, 2\n", encoding="utf-8-sig")
    (row,) = read_measurements(path)
    assert (row.model, row.optimizer, row.power_watts) == ("resnet50", "sgd", 2.0)
    path.write_text(path.read_text(encoding="utf-8") + "resnet50,0,1,fp32,sgd,,1,2\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 4: batch"):
        read_measurements(path)


@pytest.mark.parametrize(
    ("header", "optimizer", "error", "message"),
    [
        (STUDY_HEADER.removesuffix(",average_power"), "sgd", UsageError, "columns: dataset.*average_power"),
        (STUDY_HEADER, "lion", NotFoundError, "study.csv, line 2: optimizer 'lion'"),
        (STUDY_HEADER, "sgd,5", UsageError, "study.csv, line 2: has more fields"),
    ],
)
def test_faults_in_a_study_are_named(
    tmp_path: Path, header: str, optimizer: str, error: type[Exception], message: str
) -> None:
    path = tmp_path / "study.csv"
    path.write_text(f"{header}\ncifar100,shufflenetv2,1000,{optimizer},150,100,140\n", encoding="utf-8")
    with pytest.raises(error, match=message):
        read_measurements(path)


def test_the_study_is_converted_to_steps(tmp_path: Path) -> None:
    path = tmp_path / "study.csv"
    path.write_text(f"{STUDY_HEADER}\ncifar100,shufflenetv2,1000,adadelta,150,100,140\n", encoding="utf-8")
    (row,) = read_measurements(path, "tf32")
    assert (row.model, row.cap_watts, row.precision, row.looping) == ("shufflenetv2-32", 150.0, "tf32", True)
    assert row.step_s == pytest.approx(2.0)  # 50,000 images, 50 steps


@pytest.mark.parametrize(("device", "precision"), [("a40", "tf32"), ("rtx6000", "fp32")])
def test_the_shipped_calibrations_match_their_data(device: str, precision: str) -> None:
    path = STUDY / f"summary_power_{device}.csv"
    if not path.exists():
        pytest.skip(f"the measured study is not at {STUDY}")
    hardware = find_hardware(device)
    shipped = shipped_calibration(hardware.name)
    problem = Problem(hardware, read_measurements(path, precision), shipped.theta, dict(shipped.workloads))
    time, power = problem.errors([], np.zeros((1, 0)))
    assert 0.6 * time[0] + 0.4 * power[0] <= 0.042
    assert shipped.measured_spread.time_low < 1.0 < shipped.measured_spread.time_high


def test_neutral_factors_change_nothing() -> None:
    rows = measured()
    plain, named = (
        Problem(A40, rows, TRUTH, factors).predict([], np.zeros((1, 0)))[0]
        for factors in ({}, {"resnet50": Scalars()})
    )
    assert np.array_equal(plain, named)


@pytest.mark.slow
def test_predict_accepts_a_calibration_written_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps, output = tmp_path / "steps.csv", tmp_path / "a40.toml"
    write_measurements(measured(), steps)
    words = f"calibrate {steps} --gpu a40 --output {output} --generations 5 --population 8 --polish 3 --json"
    assert cli.main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 24
    assert found["combined_mape"] == pytest.approx(0.6 * found["time_mape"] + 0.4 * found["power_mape"])
    assert load_calibration(output).rows == 24
    assert cli.main(f"predict --model resnet50 --gpu a40 --calibration {output}".split()) == 0
    assert "fitted to 24 measurements of 2 workloads" in capsys.readouterr().out
    assert cli.main(f"calibrate {steps} --gpu a40 --output {output} --saturation step".split()) == 2


def test_a_missing_package_is_named() -> None:
    code = """
import sys
sys.modules["scipy"] = None
from slurm_energy.cli.main import main
sys.exit(main("calibrate steps.csv --gpu a40 --output a40.toml".split()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith("senergy: error: senergy calibrate: scipy is not installed: ")
    assert done.stderr.count("\n") == 1
