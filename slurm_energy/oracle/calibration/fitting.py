"""From measurements on one kind of device to a calibration: which unknowns they can tell, search, spread."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.oracle.calibration.evaluation import circumstances, errors, predicted, spread, waiting
from slurm_energy.oracle.calibration.fit_problem import (
    Array,
    Problem,
    Unknown,
    combined,
    start_vector,
    unknowns,
)
from slurm_energy.oracle.calibration.identification import (
    WORKLOAD_ROWS,
    fixes_response,
    learn_transfer,
    own_workloads,
    sweeps,
    with_own_cap,
)
from slurm_energy.oracle.calibration.kriging import krige
from slurm_energy.oracle.calibration.measurements import Measurement, column
from slurm_energy.oracle.calibration.search import Progress, SearchSettings, search
from slurm_energy.oracle.hardware import Hardware
from slurm_energy.oracle.training.ensemble import device_sample_s
from slurm_energy.oracle.training.parameters import Calibration, Scalars, Spread, Theta
from slurm_energy.oracle.transfer.evidence import Evidence, assess
from slurm_energy.oracle.transfer.prior import NOTHING, Transfer
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
_LEAST_ROWS = 4
_FEW_WORKLOADS = 3
"""With fewer measured workloads their mean says little about others, which are then predicted by transfer."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A calibration and how well it does on its own measurements.

    Attributes:
        calibration: parameters, scalars and residuals.
        time_error: MAPE of time, a share.
        power_error: MAPE of power, a share.
        model_error: combined error of parameters and scalars without residuals.
        method: `search` or `transfer`.
    """

    calibration: Calibration
    time_error: float
    power_error: float
    model_error: float
    method: str = "search"

    @property
    def combined_error(self) -> float:
        """Weighted error (thesis, Eq. 4.18)."""
        return float(combined(np.array(self.time_error), np.array(self.power_error)))


def choose_unknowns(hardware: Hardware, rows: Sequence[Measurement]) -> list[Unknown]:
    """Return what these measurements can tell: e.g. nothing of the link where one GPU ran.

    What shapes the response to power limits is sought only where sweeps over limits show it.
    """
    profiles = [find_profile(row.model) for row in rows]
    names = list(_ALWAYS)
    names += _WITH_GEMM if any(profile.gemm_flops_forward.per_sample for profile in profiles) else ()
    names += _WITH_CONV if any(profile.conv_flops_forward.per_sample for profile in profiles) else ()
    names += _WITH_CAPS if sweeps(hardware, rows) else ()
    names += _WITH_GPUS if any(row.gpus > 1 for row in rows) else ()
    names += _WITH_16_BITS if any(row.precision in ("bf16", "fp16") for row in rows) else ()
    return unknowns(names, own_workloads(hardware, rows), _SCALARS)


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
    prior: Transfer = NOTHING,
) -> Fit:
    """Calibrate a kind of device.

    Args:
        hardware: the kind of device.
        rows: measurements on it.
        settings: how hard to search.
        start: calibration to start from; None: defaults.
        saturation: name of the saturation function.
        checkpoint: see `search`.
        progress: see `search`.
        residuals: also take up what the measurements say beyond the model. Those of `start` belong to other
            parameters and are never kept.
        method: `search`: find the parameters of the device; `transfer`: correct what other kinds of device
            say (`transfer`); `auto`: search where sweeps over power limits show the device's response, else
            transfer. After a search, workloads without sweeps are predicted by transfer.
        prior: what other kinds of device say.

    Raises:
        UsageError: too few measurements.
    """
    if len(rows) < (_LEAST_ROWS if method == "search" else 1):
        raise UsageError(
            "calibration", f"{len(rows)} measurements are too few", f"give at least {_LEAST_ROWS}"
        )
    if method == "transfer" or (method == "auto" and not fixes_response(hardware, rows)):
        return _transferred(hardware, rows, prior)
    first = start or Calibration(hardware.name)
    problem = Problem(hardware, rows, first.theta, dict(first.workloads), saturation)
    found = choose_unknowns(hardware, rows)
    guess = start_vector(found, first.theta, dict(first.workloads))
    vector = search(problem, found, guess, settings, checkpoint, progress)
    theta, workloads = _values(found, vector, first)
    calibration = Calibration(
        hardware.name,
        theta,
        workloads,
        saturation=saturation,
        basis=f"fitted to {len(rows)} measurements of {len(problem.models)} workloads",
        fitted_unix_s=float(round(time.time())),
        rows=len(rows),
    )
    calibration = dataclasses.replace(calibration, supply_ratios=supply_ratios(hardware, rows, calibration))
    plain = errors(rows, *predicted(hardware, rows, calibration))
    if residuals:
        calibration = with_residuals(hardware, rows, calibration)
        known = _widened(calibration.known, rows, len(found))
        calibration = dataclasses.replace(calibration, known=known)
        calibration = _with_transfer(hardware, rows, calibration, prior)
    else:
        own = predicted(hardware, rows, calibration)
        calibration = dataclasses.replace(calibration, known=spread(rows, *own))
    left = errors(rows, *predicted(hardware, rows, calibration))
    return Fit(calibration, *left, float(combined(*map(np.asarray, plain))))


def _widened(spread: Spread, rows: Sequence[Measurement], unknown_count: int) -> Spread:
    """Return a range for rows not seen, from that of the rows to which so many numbers were fitted."""
    known_watts = int(np.count_nonzero(np.isfinite(column(rows, "power_watts"))))
    count = len(rows) + known_watts
    factor = float(np.sqrt(count / max(count - unknown_count, count / 4)))
    wider = Spread(*(value**factor for value in dataclasses.astuple(spread)))
    if known_watts:
        return wider
    return dataclasses.replace(wider, power_low=spread.power_low, power_high=spread.power_high)


def _with_transfer(
    hardware: Hardware, rows: Sequence[Measurement], calibration: Calibration, prior: Transfer
) -> Calibration:
    """Return a searched calibration that also speaks to other kinds, and of workloads without sweeps."""
    evidence = None
    lacking = any(row.model not in calibration.workloads for row in rows)
    if lacking or len(calibration.workloads) < _FEW_WORKLOADS:
        evidence = assess(hardware, rows, with_own_cap(hardware, rows, prior))
    return dataclasses.replace(calibration, evidence=evidence, transfer=learn_transfer(hardware, rows))


def _transferred(hardware: Hardware, rows: Sequence[Measurement], prior: Transfer) -> Fit:
    """Return what measurements make of what other kinds of device say."""
    count = len({row.model for row in rows})
    sources = ", ".join(prior.sources) or "the defaults"
    calibration = Calibration(
        hardware.name,
        basis=f"{len(rows)} measurements of {count} workload{'' if count == 1 else 's'} and {sources}",
        fitted_unix_s=float(round(time.time())),
        rows=len(rows),
        evidence=assess(hardware, rows, with_own_cap(hardware, rows, prior)),
    )
    before = errors(
        rows,
        *predicted(hardware, rows, dataclasses.replace(calibration, evidence=Evidence(prior))),
    )
    after = errors(rows, *predicted(hardware, rows, calibration))
    return Fit(calibration, *after, float(combined(*map(np.asarray, before))), "transfer")


def with_residuals(hardware: Hardware, rows: Sequence[Measurement], calibration: Calibration) -> Calibration:
    """Return a calibration with what measurements say beyond its parameters, and its spread.

    That is how far each measurement is off when only other batch sizes of its workload count.
    """
    plain = dataclasses.replace(calibration, residuals={})
    seconds, watts = predicted(hardware, rows, plain)
    on_time, on_power = column(rows, "step_s") / seconds, column(rows, "power_watts") / watts
    caps = np.minimum(column(rows, "cap_watts"), hardware.tdp_watts)
    kinds = [(row.model, row.precision) for row in rows]
    found = {}
    for kind in sorted(set(kinds)):
        own = np.array([place for place, other in enumerate(kinds) if other == kind])
        if len(own) < WORKLOAD_ROWS or kind[0] not in calibration.workloads:
            continue
        waits = waiting(hardware, [rows[place] for place in own], calibration)
        kriged = krige(column(rows, "batch")[own], caps[own], waits, on_time[own], on_power[own])
        found[kind] = kriged.residuals
        seconds[own] *= kriged.time_left
        watts[own] *= kriged.power_left
    fitted = [place for place, row in enumerate(rows) if row.model in calibration.workloads]
    if not fitted:
        return dataclasses.replace(plain, residuals=found)
    known = spread([rows[place] for place in fitted], seconds[fitted], watts[fitted])
    return dataclasses.replace(plain, residuals=found, known=known)


def _values(found: Sequence[Unknown], vector: Array, first: Calibration) -> tuple[Theta, dict[str, Scalars]]:
    theta: dict[str, float] = {}
    special: dict[str, dict[str, float]] = {}
    for unknown, number in zip(found, vector, strict=True):
        target = theta if unknown.workload is None else special.setdefault(unknown.workload, {})
        target[unknown.name] = float(unknown.value(number))
    workloads = dict(first.workloads)
    for name, values in special.items():
        workloads[name] = dataclasses.replace(workloads.get(name, Scalars()), **values)
    return dataclasses.replace(first.theta, **theta), workloads


@dataclass(frozen=True, slots=True)
class Held:
    """Predictions for measurements that their calibration had not seen.

    Attributes:
        rows: the measurements.
        seconds: predicted seconds per step, in their order.
        watts: predicted watts.
        calibrations: by fold, the calibration without it.
    """

    rows: list[Measurement]
    seconds: Array
    watts: Array
    calibrations: dict[Hashable, Calibration]

    def errors(self) -> tuple[float, float]:
        """Return MAPE of time and of power, as shares."""
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
) -> Held:
    """Calibrate once for each fold without it, and predict it.

    Args:
        hardware: the kind of device.
        rows: measurements.
        fold: what is left out together, e.g. all of one power limit.
        settings: how hard to search each time.
        start: where each search starts; None: defaults. A calibration of all rows makes this quick, but the
            start has then seen the fold.
        forget_workload: the fold is a workload: predict it as one never measured.
        progress: told after each fold: folds done, all folds, time error of the last.
    """
    folds = sorted({fold(row) for row in rows}, key=str)
    seconds, watts = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    calibrations: dict[Hashable, Calibration] = {}
    for number, left in enumerate(folds, 1):
        inside = [row for row in rows if fold(row) != left]
        outside = [place for place, row in enumerate(rows) if fold(row) == left]
        result = fit(hardware, inside, settings, start=start, method="search").calibration
        judged = [rows[place] for place in outside]
        if forget_workload:
            left_in = {name: values for name, values in result.workloads.items() if name != left}
            result = dataclasses.replace(result, workloads=left_in, evidence=None)
        calibrations[left] = result
        seconds[outside], watts[outside] = predicted(hardware, judged, result)
        progress(number, len(folds), errors(judged, seconds[outside], watts[outside])[0])
    return Held(list(rows), seconds, watts, calibrations)


def supply_ratios(
    hardware: Hardware, rows: Sequence[Measurement], calibration: Calibration
) -> dict[str, float]:
    """Return, for each measured workload with factors, the host's seconds per sample over the device's."""
    ratios = {}
    for name, factors in calibration.workloads.items():
        own = next((row for row in rows if row.model == name), None)
        if own is not None:
            busy_s = device_sample_s(calibration, *circumstances(hardware, own), factors)
            ratios[name] = factors.sample_s / busy_s
    return {**calibration.supply_ratios, **ratios}
