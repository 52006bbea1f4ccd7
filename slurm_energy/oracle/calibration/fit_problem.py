"""The objective that the calibration minimises: the model's error on measurements.

The error is a function of the unknowns, which are the fitted parameters. All functions here are pure and
evaluate many vectors of unknowns at once: values have the shape (vectors, measurements).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_energy.oracle.calibration.measurements import Measurement, column
from slurm_energy.oracle.hardware import Hardware
from slurm_energy.oracle.training.demand import StepDemand, demand
from slurm_energy.oracle.training.parameters import Bound, Scalars, Theta, bounds_of
from slurm_energy.oracle.training.power import clock_under, step_watts
from slurm_energy.oracle.training.saturation import SATURATIONS
from slurm_energy.oracle.training.timing import DeviceParameters, device_s, step_s, step_times
from slurm_energy.oracle.workload import find_optimizer, find_profile

Array = NDArray[np.float64]
TIME_WEIGHT, POWER_WEIGHT = 0.6, 0.4
_NO_DEFAULT = ("sample_s", "crowd_batch")
"""Names of workload factors that have no typical value."""


def mape(predicted: Array, measured: Array, smoothing: float = 0.0) -> Array:
    """Return the mean absolute relative error of predictions (0.1 means 10 %).

    It is the mean of |predicted - measured| / measured over the last axis.

    Args:
        predicted: predictions; the last axis of the array runs over the measurements.
        measured: the measurements; NaN values are ignored, and the error is 0 if all are NaN.
        smoothing: replaces |x| by sqrt(x^2 + smoothing^2), for searches that follow a gradient.

    Source: thesis, Eq. 4.16 and 4.17.
    """
    errors = (predicted - measured) / measured
    sizes = np.sqrt(errors * errors + smoothing * smoothing)
    is_measured = np.isfinite(measured)
    if not is_measured.all():
        sizes = sizes[..., is_measured] if is_measured.any() else np.zeros((*sizes.shape[:-1], 1))
    return np.asarray(np.mean(sizes, axis=-1))


def combined(time_error: Array, power_error: Array) -> Array:
    """Return the sum of a time error and a power error, weighted by `TIME_WEIGHT` and `POWER_WEIGHT`.

    Source: thesis, Eq. 4.18.
    """
    return TIME_WEIGHT * time_error + POWER_WEIGHT * power_error


@dataclass(frozen=True, slots=True)
class Unknown:
    """One unknown of the calibration: a parameter of the device, or a factor of one workload.

    The search varies the parameter itself, or its logarithm if `bound.logarithmic` is true.

    Attributes:
        name: field name in `Theta` (device) or `Scalars` (workload).
        workload: profile name of the workload; None for a parameter of the device.
        bound: permitted values.
    """

    name: str
    workload: str | None
    bound: Bound

    @property
    def limits(self) -> tuple[float, float]:
        """Minimum and maximum of the number that the search varies for this unknown."""
        low, high = self.bound.low, self.bound.high
        return (float(np.log(low)), float(np.log(high))) if self.bound.logarithmic else (low, high)

    def value(self, searched: Any) -> Any:
        """Convert a number of the calibration's search to the value of the fitted parameter.

        For some parameters the search varies the logarithm of the value.

        Args:
            searched: number that the search varies for this unknown, or an array of such numbers.
        """
        return np.exp(searched) if self.bound.logarithmic else searched

    def searched(self, value: float) -> float:
        """Convert the value of a model parameter to the number that the calibration's search varies.

        The number is clipped to `limits()`.

        Args:
            value: value of the parameter.
        """
        low, high = self.limits
        searched = float(np.log(max(value, 1e-300))) if self.bound.logarithmic else value
        return min(max(searched, low), high)


def list_unknowns(
    parameters: Sequence[str], workloads: Sequence[str], scalars: Sequence[str]
) -> list[Unknown]:
    """Return the list of unknown numbers that a calibration must fit.

    The unknown parameters of the device come first, then all factors of each workload.

    Args:
        parameters: field names in `Theta` of the device parameters that the measurements determine.
        workloads: profile names of the workloads that get their own factors.
        scalars: field names in `Scalars` that are fitted for each of these workloads.
    """
    theta, special = bounds_of(Theta), bounds_of(Scalars)
    result = [Unknown(name, None, theta[name]) for name in parameters]
    result += [Unknown(name, workload, special[name]) for workload in workloads for name in scalars]
    return result


class Problem:
    """Least-squares problem of a fit: the error of the model for given values of the fitted parameters.

    The error is taken over the measurements on one kind of device. The fitted parameters are called unknowns.

    The attribute `origin` describes all inputs except the measurements. A search that resumes from a
    checkpoint compares `origin` with the origin in the checkpoint, to verify that the checkpoint belongs to
    the same problem.

    Args:
        hardware: the kind of device.
        rows: measurements on this kind of device, at least one.
        theta: values of the device parameters that are not unknowns.
        scalars: values of the workload factors that are not unknowns, by profile name.
        saturation: name of the saturation function, a key of `SATURATIONS`.
    """

    def __init__(
        self,
        hardware: Hardware,
        rows: Sequence[Measurement],
        theta: Theta,
        scalars: dict[str, Scalars],
        saturation: str = "sigmoid",
    ) -> None:
        self.rows, self.theta = list(rows), theta
        self.origin = (hardware, theta, scalars, saturation)
        self._function = SATURATIONS[saturation]
        self._demand, self._device = demands(rows), devices(hardware, rows)
        self._gpus, self._caps = column(rows, "gpus"), column(rows, "cap_watts")
        self.measured_s, self.measured_watts = column(rows, "step_s"), column(rows, "power_watts")
        self.models = sorted({row.model for row in rows})
        self._index = np.array([self.models.index(row.model) for row in rows])
        self._groups = _Groups(rows, self.measured_s, self.measured_watts)
        self._fixed = {
            spec.name: np.array([getattr(scalars.get(row.model, Scalars()), spec.name) for row in rows])
            for spec in dataclasses.fields(Scalars)
        }

    def parameters(self, unknowns: Sequence[Unknown], vectors: Array) -> tuple[Theta, Scalars]:
        """Return the parameters of the device and the factors of each measurement's workload.

        Args:
            unknowns: the unknowns, n entries.
            vectors: values that the search varies, shape (vectors, n).

        Returns:
            Values that broadcast to the shape (vectors, measurements).
        """
        changes: dict[str, Any] = {}
        special: dict[str, Any] = dict(self._fixed)
        for index, unknown in enumerate(unknowns):
            values = unknown.value(vectors[:, index])[:, None]
            if unknown.workload is None:
                changes[unknown.name] = values
            elif unknown.workload in self.models:
                own = self._index == self.models.index(unknown.workload)
                special[unknown.name] = np.where(own, values, special[unknown.name])
        return dataclasses.replace(self.theta, **changes), Scalars(**special)

    def predict(self, unknowns: Sequence[Unknown], vectors: Array) -> tuple[Array, Array, Array]:
        """Return predicted seconds per step, watts of one device, and clock of each measurement.

        Each of the three arrays has the shape (vectors, measurements). The clock is a share of the maximum
        clock. The arguments are those of the method `parameters`.
        """
        theta, scalars = self.parameters(unknowns, vectors)
        times = step_times(self._demand, self._device, theta, scalars, self._function, self._gpus)
        tdp_watts = self._device.tdp_watts
        clock = clock_under(times, theta, scalars, tdp_watts, self._caps)
        seconds, watts = step_s(times, theta, clock), step_watts(times, theta, scalars, tdp_watts, clock)
        shape = (len(vectors), len(self.rows))
        return np.broadcast_to(seconds, shape), np.broadcast_to(watts, shape), np.broadcast_to(clock, shape)

    def host_wait_shares(self) -> Array:
        """Return the fraction of each measured step in which the device waits for its host.

        The shape is (measurements,). The fractions are computed without power limits. The parameters that
        the search fits (unknowns) do not influence them.
        """
        theta, scalars = self.parameters([], np.zeros((1, 0)))
        times = step_times(self._demand, self._device, theta, scalars, self._function, self._gpus)
        share = 1.0 - (device_s(times, theta) + times.link_s) / step_s(times, theta)
        return np.asarray(np.broadcast_to(share, len(self.rows)))

    def errors(self, unknowns: Sequence[Unknown], vectors: Array) -> tuple[Array, Array]:
        """Return the mean absolute relative errors of the predicted time and power.

        The two results have shape (vectors,) each: one error per parameter vector.

        Args:
            unknowns: the unknowns, n entries.
            vectors: values that the search varies, shape (vectors, n).
        """
        seconds, watts, _ = self.predict(unknowns, vectors)
        return mape(seconds, self.measured_s), mape(watts, self.measured_watts)

    def loss(
        self, unknowns: Sequence[Unknown], vectors: Array, weights: Weights, smoothing: float = 0.0
    ) -> Array:
        """Return the value that the calibration's search minimises, for each vector of parameters.

        The value is mainly the error of predicted times and powers. The thesis defines this error. The
        result has shape (vectors,).

        Args:
            unknowns: the fitted parameters, n entries.
            vectors: values that the search varies, shape (vectors, n).
            weights: weights of further terms that are added to the error.
            smoothing: replaces |x| by sqrt(x^2 + smoothing^2) in the errors, for searches that follow a
                gradient.
        """
        seconds, watts, _ = self.predict(unknowns, vectors)
        total = combined(
            mape(seconds, self.measured_s, smoothing), mape(watts, self.measured_watts, smoothing)
        )
        if weights.shape:
            total = total + weights.shape * self._groups.error(seconds, watts, smoothing)
        if weights.restraint:
            total = total + weights.restraint * _deviation(unknowns, vectors)
        return total


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of two terms that the search adds to the error of the thesis (Eq. 4.18).

    If both weights are 0, the search minimises the error of the thesis alone.

    Attributes:
        shape: weight of the error in the curve that shows the energy-delay product as a function of the power
            limit. Each curve is first divided by its mean. Measurements near the minimum of a curve count
            most.
        restraint: weight of the mean squared distance of the unknowns from their defaults. This term keeps
            unknowns near their defaults if the measurements contain little information on them.
    """

    shape: float = 0.6
    restraint: float = 0.004


class _Groups:
    """Groups of measurements. The measurements of one group differ only in the power limit."""

    def __init__(self, rows: Sequence[Measurement], seconds: Array, watts: Array) -> None:
        names: dict[tuple[Any, ...], int] = {}
        keys = [(*row.row, row.gpus, row.precision) for row in rows]
        group_of = np.array([names.setdefault(key, len(names)) for key in keys])
        self._product = np.log(seconds * seconds * watts)
        best = np.full(len(names), np.inf)
        np.fmin.at(best, group_of, self._product)
        self._near = np.nan_to_num(np.exp(-(self._product - best[group_of]) / 0.2))
        self._spread = np.zeros((len(names), len(rows)))
        self._spread[group_of, np.arange(len(rows))] = 1.0
        mean = self._spread.T * self._near[:, None]
        self._mean = mean / np.maximum(mean.sum(axis=0), 1e-300)

    def error(self, seconds: Array, watts: Array, smoothing: float) -> Array:
        """Return the error of the predicted curves of energy-delay product (EDP) over power limit.

        There is one error for each vector of parameters, shape (vectors,).

        The measurements are divided into groups, each of which has one curve. In each group, the predicted
        curve and the measured curve are each divided by their own mean. The two results are compared on a
        logarithmic scale. The error is the weighted mean of the absolute differences.

        Args:
            seconds: predicted seconds per step, shape (vectors, measurements).
            watts: predicted watts, of the same shape.
            smoothing: the absolute value of a difference d is computed as sqrt(d^2 + smoothing^2).
        """
        error = np.nan_to_num(np.log(seconds * seconds * watts) - self._product)
        error = error - (error @ self._mean) @ self._spread
        return np.asarray(np.mean(np.sqrt(error * error + smoothing * smoothing) * self._near, axis=-1))


def start_vector(unknowns: Sequence[Unknown], theta: Theta, scalars: dict[str, Scalars]) -> Array:
    """Return the parameter vector from which the calibration's search starts, shape (n,).

    Args:
        unknowns: the n fitted parameters.
        theta: start values of the device's parameters.
        scalars: start values of the workloads' factors, by profile name. For a workload that is missing
            here, the factors start at their defaults.
    """
    sources = [
        theta if unknown.workload is None else scalars.get(unknown.workload, Scalars())
        for unknown in unknowns
    ]
    pairs = zip(unknowns, sources, strict=True)
    return np.array([unknown.searched(float(getattr(source, unknown.name))) for unknown, source in pairs])


def _deviation(unknowns: Sequence[Unknown], vectors: Array) -> Array:
    """Return how far each vector of fitted parameters is from the default values, shape (vectors,).

    The result is the mean squared distance of the parameters from their defaults. The distance of each
    parameter is measured in units of its typical deviation.
    """
    usual = np.array([0.7 if unknown.workload else np.ptp(unknown.limits) / 2 for unknown in unknowns])
    free = np.array([unknown.name not in _NO_DEFAULT for unknown in unknowns])
    distance = (vectors - start_vector(unknowns, Theta(), {})) / usual
    return np.asarray(np.mean(distance * distance * free, axis=-1))


def demands(rows: Sequence[Measurement]) -> StepDemand:
    """Return the operations and bytes of n measured training steps as one object.

    The arrays of the returned `StepDemand` have the shape (n,).
    """
    each = [
        demand(
            find_profile(row.model),
            row.batch,
            row.precision,
            find_optimizer(row.optimizer),
            looping=row.looping,
        )
        for row in rows
    ]
    return StepDemand(
        **{
            spec.name: _stacked([getattr(item, spec.name) for item in each])
            for spec in dataclasses.fields(StepDemand)
        }
    )


def _stacked(values: list[Any]) -> Any:
    if isinstance(values[0], tuple):
        return tuple(np.array(part) for part in zip(*values, strict=True))
    return np.array(values)


def devices(hardware: Hardware, rows: Sequence[Measurement]) -> DeviceParameters:
    """Return the peak rates of a device for n measurements, as columns of shape (n,).

    The rate of the matrix units depends on the precision of the measurement.
    """
    return DeviceParameters(
        matrix_flops_per_s=np.array([hardware.matrix_flops_per_s(row.precision) for row in rows]),
        alu_flops_per_s=hardware.alu_flops_per_s,
        memory_bytes_per_s=hardware.memory_bytes_per_s,
        l2_bytes=hardware.l2_bytes,
        link_bytes_per_s=hardware.link_bytes_per_s,
        tdp_watts=hardware.tdp_watts,
    )
