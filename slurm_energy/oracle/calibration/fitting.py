"""Calibration of the training model for one kind of device.

The module selects the unknown parameters, searches their values, and computes residuals and error
statistics.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.oracle.calibration.evaluation import (
    errors,
    host_wait_shares,
    predict_rows,
    prediction_inputs,
    spread,
)
from slurm_energy.oracle.calibration.fit_problem import (
    Array,
    Problem,
    Unknown,
    combined,
    list_unknowns,
    start_vector,
)
from slurm_energy.oracle.calibration.identification import (
    WORKLOAD_ROWS,
    learn_transfer,
    sweeps,
    sweeps_determine_response,
    with_own_cap,
    workloads_with_own_factors,
)
from slurm_energy.oracle.calibration.kriging import krige
from slurm_energy.oracle.calibration.measurements import Measurement, column, max_gpus
from slurm_energy.oracle.calibration.search import Progress, SearchSettings, search
from slurm_energy.oracle.hardware import Hardware
from slurm_energy.oracle.training.ensemble import device_sample_s
from slurm_energy.oracle.training.parameters import Calibration, Scalars, Spread, Theta
from slurm_energy.oracle.transfer.evidence import Evidence, fit_evidence
from slurm_energy.oracle.transfer.prior import NO_TRANSFER, Transfer
from slurm_energy.oracle.workload import find_profile

_ALWAYS = (
    *("beta_alu", "time_memory", "time_optimizer", "kernel_s", "fixed_s", "overlap", "overlap_host"),
    *("static_share", "power_alu", "power_memory", "power_wait"),
)
_WITH_GEMM = ("beta_gemm", "ref_gemm_m", "power_gemm")
_WITH_CONV = ("beta_conv", "ref_conv_pixels", "power_conv")
_WITH_CAPS = ("voltage_floor", "voltage_knee", "clock_floor", "memory_knee")
_WITH_GPUS = ("link_share", "hop_s", "power_link")
_WITH_16_BITS = ("low_gemm", "low_conv", "low_alu")
_SCALARS = tuple(spec.name for spec in dataclasses.fields(Scalars))
METHODS = ("auto", "search", "transfer")
_MIN_ROWS = 4
_MIN_WORKLOADS = 3
"""Minimum number of measured workloads for predicting other workloads by their mean. With fewer workloads,
other workloads are predicted by transfer.
"""


@dataclass(frozen=True, slots=True)
class Fit:
    """A calibration and its errors on the measurements to which it was fitted.

    Attributes:
        calibration: fitted parameters, factors and residuals.
        time_error: mean absolute relative error of seconds per step, as a share (0.1: 10 %).
        power_error: mean absolute relative error of watts, as a share.
        model_error: weighted sum of the errors of time and power when the residuals are not applied.
        method: `search`: the parameters of the device were searched. `transfer`: the measurements correct the
            knowledge from other kinds of device.
    """

    calibration: Calibration
    time_error: float
    power_error: float
    model_error: float
    method: str = "search"

    @property
    def combined_error(self) -> float:
        """Weighted sum of the relative errors of time and power (0.1: 10 %).

        Source: thesis, Eq. 4.18.
        """
        return float(combined(np.array(self.time_error), np.array(self.power_error)))


def choose_unknowns(hardware: Hardware, rows: Sequence[Measurement]) -> list[Unknown]:
    """Return the unknowns of the model that these measurements determine.

    For example, the parameters of the link between GPUs are not unknowns if all measurements used one GPU.
    Parameters of the response to power limits are unknowns only if the same job was measured under several
    limits.
    """
    profiles = [find_profile(row.model) for row in rows]
    names = list(_ALWAYS)
    names += _WITH_GEMM if any(profile.gemm_flops_forward.per_sample for profile in profiles) else ()
    names += _WITH_CONV if any(profile.conv_flops_forward.per_sample for profile in profiles) else ()
    names += _WITH_CAPS if sweeps(hardware, rows) else ()
    names += _WITH_GPUS if any(row.gpus > 1 for row in rows) else ()
    names += _WITH_16_BITS if any(row.precision in ("bf16", "fp16") for row in rows) else ()
    return list_unknowns(names, workloads_with_own_factors(hardware, rows), _SCALARS)


def fit(
    hardware: Hardware,
    rows: Sequence[Measurement],
    settings: SearchSettings,
    *,
    start: Calibration | None = None,
    saturation: str = "sigmoid",
    checkpoint: Path | None = None,
    progress: Progress = lambda done, planned, loss: None,
    residuals: bool = True,
    method: str = "auto",
    prior: Transfer = NO_TRANSFER,
) -> Fit:
    """Calibrate a kind of device.

    Args:
        hardware: the kind of device.
        rows: measurements on this kind of device.
        settings: settings of the search.
        start: calibration from which the search starts; None means the defaults of the model.
        saturation: name of the saturation function, a key of `SATURATIONS`.
        checkpoint: file in which the search stores its state and from which it resumes; None means no
            file.
        progress: function that the search calls after each segment with the finished and the planned
            generations and the current loss.
        residuals: whether to fit residuals, too. Residuals are corrections of the predicted time and
            power. The residuals of the calibration `start` are never kept, because they belong to other
            parameters.
        method: `search` searches the parameters of the device. `transfer` starts from the measurements of
            other kinds of device and corrects them. `auto` searches if enough jobs were measured under
            several power limits to determine the device's response. Otherwise `auto` transfers. After a
            search, workloads that were measured under one limit only are predicted by transfer.
        prior: expected values and variances from measurements of other kinds of device.

    Raises:
        UsageError: too few measurements.
    """
    if len(rows) < (_MIN_ROWS if method == "search" else 1):
        raise UsageError("calibration", f"{len(rows)} measurements are too few", f"give at least {_MIN_ROWS}")
    if method == "transfer" or (method == "auto" and not sweeps_determine_response(hardware, rows)):
        return _transferred(hardware, rows, prior)
    first = start or Calibration(hardware.name)
    searched, unknown_count = _searched(hardware, rows, settings, first, saturation, checkpoint, progress)
    model_errors = errors(rows, *predict_rows(hardware, rows, searched))
    if residuals:
        calibration = with_residuals(hardware, rows, searched)
        measured_spread = _widened(calibration.measured_spread, rows, unknown_count)
        calibration = dataclasses.replace(calibration, measured_spread=measured_spread)
        calibration = _with_transfer(hardware, rows, calibration, prior)
    else:
        own_spread = spread(rows, *predict_rows(hardware, rows, searched))
        calibration = dataclasses.replace(searched, measured_spread=own_spread)
    time_error, power_error = errors(rows, *predict_rows(hardware, rows, calibration))
    return Fit(calibration, time_error, power_error, float(combined(*map(np.asarray, model_errors))))


def _searched(
    hardware: Hardware,
    rows: Sequence[Measurement],
    settings: SearchSettings,
    first: Calibration,
    saturation: str,
    checkpoint: Path | None,
    progress: Progress,
) -> tuple[Calibration, int]:
    """Search the parameters of the device.

    Args:
        hardware: the kind of device.
        rows: measurements on this kind of device.
        settings: settings of the search.
        first: calibration from which the search starts.
        saturation: name of the saturation function.
        checkpoint: file for the state of the search; None means no file.
        progress: function that the search calls after each segment. A segment is a part of the search
            after which an interrupted search can resume.

    Returns:
        Two values. The first is the calibration with the parameters that the search has found; it has no
        residuals. The second is the number of unknown parameters.
    """
    problem = Problem(hardware, rows, first.theta, dict(first.workloads), saturation)
    unknowns = choose_unknowns(hardware, rows)
    guess = start_vector(unknowns, first.theta, dict(first.workloads))
    vector = search(problem, unknowns, guess, settings, checkpoint, progress)
    theta, workloads = _values(unknowns, vector, first)
    calibration = Calibration(
        hardware.name,
        theta,
        workloads,
        saturation=saturation,
        basis=f"fitted to {len(rows)} measurements of {len(problem.models)} workloads",
        fitted_unix_s=float(round(time.time())),
        rows=len(rows),
        measured_gpus={**(first.measured_gpus or {}), **max_gpus(rows)},
    )
    ratios = supply_ratios(hardware, rows, calibration)
    return dataclasses.replace(calibration, supply_ratios=ratios), len(unknowns)


def _widened(spread: Spread, rows: Sequence[Measurement], unknown_count: int) -> Spread:
    """Widen the range of prediction errors of a fitted model so that it holds for new measurements.

    A prediction error is a measured value divided by the predicted value. The errors of measurements to
    which a model was fitted are smaller than those of new measurements. Therefore the logarithms of the ends
    of `spread` are multiplied by sqrt(n / max(n - unknown_count, n / 4)), where n is the number of
    observations.

    Args:
        spread: range of the errors of the measurements to which the model was fitted.
        rows: the measurements to which the model was fitted.
        unknown_count: number of fitted parameters (unknowns).
    """
    measured_watts = int(np.count_nonzero(np.isfinite(column(rows, "power_watts"))))
    count = len(rows) + measured_watts
    factor = float(np.sqrt(count / max(count - unknown_count, count / 4)))
    wider = Spread(*(value**factor for value in dataclasses.astuple(spread)))
    if measured_watts:
        return wider
    return dataclasses.replace(wider, power_low=spread.power_low, power_high=spread.power_high)


def _with_transfer(
    hardware: Hardware, rows: Sequence[Measurement], calibration: Calibration, prior: Transfer
) -> Calibration:
    """Return a copy of a searched calibration with the fields `transfer` and `evidence`.

    With these fields the calibration can predict other kinds of device, and workloads on this device that
    were not measured under several power limits.
    """
    evidence = None
    lacking = any(row.model not in calibration.workloads for row in rows)
    if lacking or len(calibration.workloads) < _MIN_WORKLOADS:
        evidence = fit_evidence(hardware, rows, with_own_cap(hardware, rows, prior))
    return dataclasses.replace(calibration, evidence=evidence, transfer=learn_transfer(hardware, rows))


def _transferred(hardware: Hardware, rows: Sequence[Measurement], prior: Transfer) -> Fit:
    """Fit the calibration of a kind of device that has few measurements.

    The measurements only correct the expectations from other kinds of device. No parameters are searched.
    """
    count = len({row.model for row in rows})
    sources = ", ".join(prior.sources) or "the defaults"
    calibration = Calibration(
        hardware.name,
        basis=f"{len(rows)} measurements of {count} workload{'' if count == 1 else 's'} and {sources}",
        fitted_unix_s=float(round(time.time())),
        rows=len(rows),
        measured_gpus=max_gpus(rows),
        evidence=fit_evidence(hardware, rows, with_own_cap(hardware, rows, prior)),
    )
    before = errors(
        rows,
        *predict_rows(hardware, rows, dataclasses.replace(calibration, evidence=Evidence(prior))),
    )
    after = errors(rows, *predict_rows(hardware, rows, calibration))
    return Fit(calibration, *after, float(combined(*map(np.asarray, before))), "transfer")


def with_residuals(hardware: Hardware, rows: Sequence[Measurement], calibration: Calibration) -> Calibration:
    """Return a copy of a calibration with residuals and with the resulting error range.

    Residuals are the deviations of the measured time and power from the model. To compute the range, the
    measurements of each batch size are predicted with residuals fitted to the other batch sizes of the same
    workload.
    """
    plain = dataclasses.replace(calibration, residuals={})
    seconds, watts = predict_rows(hardware, rows, plain)
    on_time, on_power = column(rows, "step_s") / seconds, column(rows, "power_watts") / watts
    caps = np.minimum(column(rows, "cap_watts"), hardware.tdp_watts)
    groups = [(row.model, row.precision) for row in rows]
    residuals_of = {}
    for group in sorted(set(groups)):
        indices = np.array([index for index, other in enumerate(groups) if other == group])
        if len(indices) < WORKLOAD_ROWS or group[0] not in calibration.workloads:
            continue
        waits = host_wait_shares(hardware, [rows[index] for index in indices], calibration)
        kriged = krige(
            column(rows, "batch")[indices], caps[indices], waits, on_time[indices], on_power[indices]
        )
        residuals_of[group] = kriged.residuals
        seconds[indices] *= kriged.held_out_time
        watts[indices] *= kriged.held_out_power
    fitted = [index for index, row in enumerate(rows) if row.model in calibration.workloads]
    if not fitted:
        return dataclasses.replace(plain, residuals=residuals_of)
    measured_spread = spread([rows[index] for index in fitted], seconds[fitted], watts[fitted])
    return dataclasses.replace(plain, residuals=residuals_of, measured_spread=measured_spread)


def _values(
    unknowns: Sequence[Unknown], vector: Array, first: Calibration
) -> tuple[Theta, dict[str, Scalars]]:
    theta: dict[str, float] = {}
    special: dict[str, dict[str, float]] = {}
    for unknown, number in zip(unknowns, vector, strict=True):
        target = theta if unknown.workload is None else special.setdefault(unknown.workload, {})
        target[unknown.name] = float(unknown.value(number))
    workloads = dict(first.workloads)
    for name, values in special.items():
        workloads[name] = dataclasses.replace(workloads.get(name, Scalars()), **values)
    return dataclasses.replace(first.theta, **theta), workloads


@dataclass(frozen=True, slots=True)
class HeldOutPredictions:
    """Predictions of measurements by calibrations that do not know these measurements.

    The measurements are divided into groups (folds). One calibration per group is fitted to all other groups
    and predicts this group.

    Attributes:
        rows: the predicted measurements.
        seconds: predicted seconds per step, in the order of `rows`.
        watts: predicted mean watts of one device, in the order of `rows`.
        calibrations: the calibrations. The key is the group of measurements that was withheld from the fit.
    """

    rows: list[Measurement]
    seconds: Array
    watts: Array
    calibrations: dict[Hashable, Calibration]

    def errors(self) -> tuple[float, float]:
        """Return the mean absolute relative errors of time and of power (0.1 means 10 %)."""
        return errors(self.rows, self.seconds, self.watts)


def leave_out(
    hardware: Hardware,
    rows: Sequence[Measurement],
    fold: Callable[[Measurement], Hashable],
    settings: SearchSettings,
    *,
    start: Calibration | None = None,
    forget_workload: bool = False,
    progress: Progress = lambda done, planned, loss: None,
) -> HeldOutPredictions:
    """Predict each fold of the measurements by a calibration that was fitted to all other folds.

    The method is a cross-validation.

    Args:
        hardware: the kind of device.
        rows: measurements on this kind of device.
        fold: function that returns the fold of a measurement, e.g. its power limit.
        settings: settings of each search.
        start: start of each search; None means defaults. A calibration of all rows makes the search fast, but
            it contains information on the withheld fold.
        forget_workload: whether each fold is one workload. The withheld workload is then predicted like a
            workload that was never measured.
        progress: function that is called after each fold. Its arguments are the number of finished folds, the
            number of all folds, and the time error of the last fold.
    """
    folds = sorted({fold(row) for row in rows}, key=str)
    seconds, watts = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    calibrations: dict[Hashable, Calibration] = {}
    for number, fold_value in enumerate(folds, 1):
        inside = [row for row in rows if fold(row) != fold_value]
        outside = [index for index, row in enumerate(rows) if fold(row) == fold_value]
        result = fit(hardware, inside, settings, start=start, method="search").calibration
        held_out = [rows[index] for index in outside]
        if forget_workload:
            workloads = {name: values for name, values in result.workloads.items() if name != fold_value}
            result = dataclasses.replace(result, workloads=workloads, evidence=None)
        calibrations[fold_value] = result
        seconds[outside], watts[outside] = predict_rows(hardware, held_out, result)
        progress(number, len(folds), errors(held_out, seconds[outside], watts[outside])[0])
    return HeldOutPredictions(list(rows), seconds, watts, calibrations)


def supply_ratios(
    hardware: Hardware, rows: Sequence[Measurement], calibration: Calibration
) -> dict[str, float]:
    """Return how long the host needs to supply a sample, relative to the device's computation.

    A new ratio is computed for each workload that has measurements and for which the calibration has
    factors. Ratios that the calibration already contains are also returned, unless a new ratio replaces
    them.

    Args:
        hardware: known devices.
        rows: measurements.
        calibration: factors of the workloads, and earlier ratios.

    Returns:
        The ratios by profile name of the workload.
    """
    ratios = {}
    for name, factors in calibration.workloads.items():
        own = next((row for row in rows if row.model == name), None)
        if own is not None:
            busy_s = device_sample_s(calibration, *prediction_inputs(hardware, own), factors)
            ratios[name] = factors.sample_s / busy_s
    return {**calibration.supply_ratios, **ratios}
