"""Tests of the residuals of the prediction model, and of the choice of power limits.

A residual is a deviation of the measured time or power from the model. The tested choice of a power limit
takes the uncertainty of the predictions into account.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy", reason="predictions need numpy")
pytest.importorskip("scipy", reason="calibration needs scipy")

import measured_steps  # noqa: E402

from slurm_energy.errors import ConfigError  # noqa: E402
from slurm_energy.oracle.calibration.evaluation import errors, predict_rows  # noqa: E402
from slurm_energy.oracle.calibration.fitting import fit, leave_out, with_residuals  # noqa: E402
from slurm_energy.oracle.calibration.kriging import krige  # noqa: E402
from slurm_energy.oracle.calibration.measurements import Measurement, read_measurements  # noqa: E402
from slurm_energy.oracle.calibration.search import SearchSettings  # noqa: E402
from slurm_energy.oracle.calibration_files import load_calibration, save_calibration, shipped_calibration  # noqa: E402
from slurm_energy.oracle.configuration_sweep import Sweep, sweep  # noqa: E402
from slurm_energy.oracle.hardware import find_hardware  # noqa: E402
from slurm_energy.oracle.selection import CASES, TOLERANCE, expected_objective, select_alternative  # noqa: E402
from slurm_energy.oracle.training.parameters import Calibration, Scalars  # noqa: E402
from slurm_energy.oracle.training.residuals import Residuals  # noqa: E402
from slurm_energy.oracle.training_oracle import TrainingAlternatives, TrainingOracle  # noqa: E402
from slurm_energy.oracle.workload import find_profile  # noqa: E402

A40, RESNET = find_hardware("a40"), find_profile("resnet50")
STUDY = Path(__file__).parents[2].parent / "shared/data/power-limits"
TABLE = ((1.0, 1.0), (1.2, 1.0), (1.4, 1.1), (1.0, 0.8), (1.2, 1.2), (1.0, 1.0))
SMALL = Residuals((4, 8, 16, 32, 64, 128), (100, 300), TABLE, tuple(reversed(TABLE)))
CAPS = (100.0, 150.0, 200.0, 250.0, 300.0)


def as_measured(calibration: Calibration, factor: Any) -> list[Measurement]:
    """Return synthetic measurements that deviate from a calibration by a known factor.

    The times that the calibration predicts are multiplied by `factor(batch, limit)`. The powers are those
    that the calibration predicts.
    """
    batches = (16.0, 32.0, 64.0, 128.0)
    rows = measured_steps.grid(["resnet50"], batches, CAPS, precision="tf32", optimizer="sgd")
    seconds, watts = predict_rows(A40, rows, calibration)
    factors = [factor(row.batch, row.cap_watts) for row in rows]
    return measured_steps.measured(rows, seconds * factors, watts)


OWN = Calibration(A40.name, workloads={"resnet50": Scalars()})


def test_factors_are_linear_between_nodes() -> None:
    batch, cap = np.array([16.0, 16.0, 16 * 2**0.5, 16.0]), np.array([100.0, 200.0, 100.0, 150.0])
    time, power = SMALL.at(batch, cap)
    assert time == pytest.approx([1.4, 1.25, 1.2, 1.325])
    assert power == pytest.approx([1.0, 0.9, 1.2, 0.95])


def test_factors_beyond_the_outermost_nodes() -> None:
    batch, cap = np.array([16.0, 16.0, 1.0, 4.0, 1e6]), np.array([50.0, np.inf, 100.0, 300.0, 300.0])
    assert SMALL.at(batch, cap)[0] == pytest.approx([1.4, 1.1, 1.0, 1.0, 1.0])


@given(st.floats(0.1, 1e6), st.floats(1.0, 1e4))
def test_factors_stay_within_those_of_the_nodes(batch: float, cap: float) -> None:
    for factor in SMALL.at(np.array([batch]), np.array([cap])):
        assert 0.8 - 1e-9 <= factor[0] <= 1.4 + 1e-9


def test_a_workload_measured_at_one_limit_has_factors_for_all() -> None:
    single = Residuals(SMALL.batches, (150,), [[row[0]] for row in TABLE], [[1.0]] * 6)
    assert single.at(np.array([16.0, 16.0]), np.array([100.0, 300.0]))[0] == pytest.approx([1.4, 1.4])


def test_support_ends_half_a_doubling_from_a_measured_batch() -> None:
    quarter = 2**0.25
    found = SMALL.support([16.0, 16 * quarter, 32 / quarter, 16 * 2**0.5, 32 * 2**0.5, 8.0, 4.0])
    assert found == pytest.approx([1.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0], abs=1e-9)


def grid(noise: float, low: float) -> tuple[Any, ...]:
    """Return example data for the function `krige`, which fits correction factors to measured ratios.

    The data are ratios of measured to predicted time and power on a grid of batch sizes and power limits. At
    100 W the time ratios are multiplied by `low`. All time ratios have noise.
    """
    batch, cap = (axis.ravel() for axis in np.meshgrid(2.0 ** np.arange(3, 10), CAPS, indexing="ij"))
    draw = np.random.default_rng(1).normal(size=len(batch))
    time = np.where(cap == 100.0, low, 1.0) * np.exp(noise * draw)
    return batch, cap, np.zeros(len(batch)), time, np.where(batch == 8.0, np.nan, 1.1)


def test_common_deviations_are_learned_and_noise_is_not() -> None:
    batch, cap, waiting, time, power = grid(0.03, 1.3)
    found = krige(batch, cap, waiting, time, power).residuals
    on_time, on_power = found.at(batch, cap)
    truth = np.where(cap == 100.0, 1.3, 1.0)
    assert np.abs(on_time - truth).mean() < 0.6 * np.abs(time - truth).mean()
    assert on_power == pytest.approx(
        np.full(len(batch), 1.1), rel=0.01
    )  # also at batches that were not measured
    assert found.at(np.array([8 / 4, 512 * 4]), np.array([100.0, 100.0]))[0] == pytest.approx([1.0, 1.0])


def test_pure_noise_is_mostly_discarded() -> None:
    batch, cap, waiting, time, power = grid(0.05, 1.0)
    on_time, _ = krige(batch, cap, waiting, time, power).residuals.at(batch, cap)
    assert np.abs(on_time - 1.0).mean() < 0.5 * np.abs(time - 1.0).mean()


def test_the_held_out_prediction_of_a_batch_does_not_use_it() -> None:
    batch, cap, waiting, time, power = grid(0.0, 1.0)
    own = batch == 64.0
    found = krige(batch, cap, waiting, np.where(own, 1.5, time), power)
    assert np.abs(found.held_out_time[own] - 1.0).max() < 0.1
    assert found.residuals.at(batch[own], cap[own])[0].min() > 1.2


def test_a_fit_learns_deviations_from_its_parameters() -> None:
    rows = as_measured(OWN, lambda batch, cap: 1.3 if (batch, cap) in ((32.0, 150.0), (64.0, 150.0)) else 1.0)
    quick = SearchSettings(generations=0, population=8, polish=5, kicks=0)
    result, plain = (fit(A40, rows, quick, start=OWN, residuals=wanted) for wanted in (True, False))
    assert set(result.calibration.residuals) == {("resnet50", "tf32")}
    assert result.combined_error < 0.5 * result.model_error == 0.5 * plain.combined_error
    assert not plain.calibration.residuals


def test_the_oracle_predicts_with_residuals_of_the_same_precision() -> None:
    rows = as_measured(OWN, lambda batch, cap: 1.1)
    own = with_residuals(A40, rows, OWN)
    oracle, plain = TrainingOracle(lambda name: own), TrainingOracle(lambda name: OWN)
    alternatives = TrainingAlternatives.of(
        (RESNET, A40, "tf32", row.batch, 1.0, 1e5, row.cap_watts) for row in rows
    )
    ratio = oracle.predict_many(alternatives).step_s / plain.predict_many(alternatives).step_s
    assert ratio == pytest.approx(np.full(len(rows), 1.1), rel=0.01)
    assert with_residuals(A40, rows, own) == own  # the residuals of the start are not applied again
    other = TrainingAlternatives.of([(RESNET, A40, "fp32", 32.0, 1.0, 1e5, 200.0)])  # no measurement in FP32
    assert oracle.predict_many(other).step_s == plain.predict_many(other).step_s


def test_left_out_rows_do_not_leak_through_residuals() -> None:
    rows = as_measured(OWN, lambda batch, cap: 1.0)
    start = with_residuals(A40, as_measured(OWN, lambda batch, cap: 1.5), OWN)
    still = SearchSettings(generations=0, population=8, polish=0, kicks=0)
    held = leave_out(A40, rows, lambda row: row.batch == 32.0, still, start=start)
    seconds = np.array([row.step_s for row in rows])
    assert held.seconds == pytest.approx(seconds, rel=0.01)


def test_residuals_round_trip_through_a_file(tmp_path: Path) -> None:
    own = dataclasses.replace(OWN, residuals={("resnet50", "tf32"): SMALL})
    save_calibration(own, tmp_path / "own.toml")
    again = load_calibration(tmp_path / "own.toml").residuals["resnet50", "tf32"]
    for field in dataclasses.fields(Residuals):
        assert np.array_equal(getattr(again, field.name), getattr(SMALL, field.name))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "batches = [4, 8",
            "batches = [8, 4",
            "residuals.resnet50.tf32.batches: is not 5 or more increasing",
        ),
        ("batches = [4, 8, 16, 32, 64, 128]", "batches = [4, 8]", "batches: is not 5 or more increasing"),
        ("[1.4, 1.1]", "[1.4]", "resnet50.tf32.time: does not have one factor above 0 per limit"),
        ("[1.4, 1.1]", "[1.4, 0.0]", "resnet50.tf32.time: does not have one factor above 0 per limit"),
        ("    [1.4, 1.1],\n", "", "resnet50.tf32.time: does not have one row per batch"),
        (
            "caps_watts = [100, 300]\n",
            "",
            "resnet50.tf32: must have exactly the keys batches, caps_watts, time",
        ),
        ('[residuals."resnet50".tf32]', "[[residuals]]", "residuals: is not a table"),
    ],
)
def test_corrupt_residuals_name_file_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "own.toml"
    save_calibration(dataclasses.replace(OWN, residuals={("resnet50", "tf32"): SMALL}), path)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load_calibration(path)
    assert str(path) in str(caught.value)


def test_the_expectation_is_over_losses_in_each_case() -> None:
    cases = [np.array([1.0, 2.0]), np.array([30.0, 20.0]), np.array([5.0, np.inf])]
    assert expected_objective(cases) == pytest.approx([1 / 6 + 2 / 3 * 1.5 + 1 / 6, np.inf])
    assert sum(share for _, share in CASES) == pytest.approx(1.0)


def test_the_tolerance_grows_with_less_support() -> None:
    values = np.array([1.0 + 0.6 * TOLERANCE, 1.0])
    assert [select_alternative(values, np.full(2, support)) for support in (0.0, 0.3, 0.5, 1.0)] == [
        0,
        0,
        1,
        1,
    ]


def best_cap(calibration: Calibration, model: str, batch: float = 128.0) -> Sweep:
    caps = [100.0 + 25 * step for step in range(9)]
    oracle = TrainingOracle(lambda name: calibration)
    return sweep(oracle, find_profile(model), [A40], [1.0], [batch], caps, "tf32", 1e6)


def test_an_unmeasured_workload_gets_no_tight_limit() -> None:
    known = dataclasses.replace(OWN, workloads={"resnet50": Scalars()}, residuals={})
    observed = best_cap(known, "resnet50")
    unseen = best_cap(Calibration(A40.name), "resnet50")  # the same prediction with a larger uncertainty
    assert np.array_equal(observed.objectives["edp"], unseen.objectives["edp"])
    assert unseen.rows[unseen.best["edp"]][3] > observed.rows[observed.best["edp"]][3]
    assert unseen.best["time"] == observed.best["time"]


def test_a_measured_job_has_no_tolerance() -> None:
    rows = as_measured(OWN, lambda batch, cap: 1.0)
    own = with_residuals(A40, rows, OWN)
    for batch in (64.0, 128.0):
        found = best_cap(own, "resnet50", batch)
        assert found.best["edp"] == int(np.argmin(found.objectives["edp"]))


@pytest.mark.parametrize(("device", "precision"), [("a40", "tf32"), ("rtx6000", "fp32")])
def test_the_best_limit_of_measured_jobs_is_found(device: str, precision: str) -> None:
    path = STUDY / f"summary_power_{device}.csv"
    if not path.exists():
        pytest.skip(f"the measured study is not at {STUDY}")
    hardware, rows = find_hardware(device), read_measurements(path, precision)
    study: dict[Any, list[Measurement]] = {}
    for row in sorted(rows, key=lambda row: row.cap_watts):
        study.setdefault(row.row, []).append(row)
    hits, losses = [], []
    for own in (own for own in study.values() if len(own) > 2):
        profile, caps = find_profile(own[0].model), [row.cap_watts for row in own]
        found = sweep(
            TrainingOracle(looping=True), profile, [hardware], [1.0], [own[0].batch], caps, precision, 1e6
        )
        products = [row.step_s**2 * row.power_watts for row in own]
        index, best = found.best["edp"], int(np.argmin(products))
        hits.append(abs(caps[index] - caps[best]) <= 25.0)
        losses.append(products[index] / products[best] - 1.0)
    assert np.mean(hits) >= 0.85
    assert np.mean(losses) <= 0.025
    calibration = shipped_calibration(hardware.name)
    time, power = errors(rows, *predict_rows(hardware, rows, calibration))
    assert 0.6 * time + 0.4 * power <= 0.02
