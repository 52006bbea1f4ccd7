"""Predictor (oracle) for jobs that train a model.

It predicts many alternatives (configurations) of a job at once. The inputs are workload profiles, hardware
files and calibrations. The module needs numpy, but not PyTorch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.oracle import prediction_notes
from slurm_energy.oracle.calibration_files import shipped_calibration
from slurm_energy.oracle.hardware import PRECISIONS, Hardware, find_hardware
from slurm_energy.oracle.memory_footprint import footprint_bytes
from slurm_energy.oracle.prediction import Estimate, Prediction, PredictionRequest, PredictionSource
from slurm_energy.oracle.selection import CASES
from slurm_energy.oracle.step_prediction import Configurations, Deviation, StepPredictor, support_of
from slurm_energy.oracle.training.parameters import Calibration
from slurm_energy.oracle.transfer.evidence import Evidence
from slurm_energy.oracle.workload import WorkloadProfile, find_optimizer, find_profile
from slurm_energy.quantities import format_scaled

Array = NDArray[np.float64]
_CHUNK = 8192
"""Number of alternatives computed at a time, so that intermediate arrays stay in the CPU cache."""
DEFAULT_BATCH = 32
_MAX_GPUS = 16
"""Largest number of GPUs in one node."""


@dataclass(frozen=True, slots=True)
class TrainingAlternatives:
    """Training jobs to predict, as arrays of equal length n.

    Attributes:
        profiles: distinct workloads.
        kinds: distinct kinds of device.
        profile: index into `profiles`, shape (n,).
        kind: index into `kinds`.
        precision: index into `PRECISIONS`.
        batch: samples per device and pass.
        gpus: number of devices that train together.
        samples: training samples that the job processes in total.
        cap_watts: power limit per device; infinity means no limit.
        clock: clock limit as a share of the maximum clock.
        accumulation: passes per update of the weights.
    """

    profiles: tuple[WorkloadProfile, ...]
    kinds: tuple[Hardware, ...]
    profile: NDArray[np.int64]
    kind: NDArray[np.int64]
    precision: NDArray[np.int64]
    batch: Array
    gpus: Array
    samples: Array
    cap_watts: Array
    clock: Array
    accumulation: Array

    def __len__(self) -> int:
        return len(self.profile)

    def groups(self) -> list[NDArray[np.int64]]:
        """Return the indices of the training alternatives (ways to run a training job) in groups.

        The alternatives of a group have the same workload profile, kind of device and precision.
        """
        codes = (self.profile * len(self.kinds) + self.kind) * len(PRECISIONS) + self.precision
        order = np.argsort(codes, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1) if len(order) else []

    def names(self, row: int) -> tuple[WorkloadProfile, Hardware, str]:
        """Return the workload profile, kind of device and precision of one training alternative.

        Args:
            row: index of the alternative.
        """
        return (
            self.profiles[self.profile[row]],
            self.kinds[self.kind[row]],
            PRECISIONS[self.precision[row]],
        )

    def configurations(self, rows: NDArray[np.int64]) -> Configurations:
        """Return the configurations of the selected training alternatives.

        A configuration consists of batch size, number of GPUs, gradient accumulation, power cap and clock.

        Args:
            rows: indices of the alternatives.
        """
        columns = (self.batch, self.gpus, self.accumulation, self.cap_watts, self.clock)
        return Configurations(*(values[rows] for values in columns))

    def subset(self, rows: NDArray[np.int64]) -> TrainingAlternatives:
        """Return the alternatives (ways to run a training job) with the indices `rows`."""
        columns = ("profile", "kind", "precision", "batch", "gpus", "samples", "cap_watts", "clock")
        return replace(self, **{name: getattr(self, name)[rows] for name in (*columns, "accumulation")})

    @classmethod
    def of(
        cls, combinations: Iterable[tuple[WorkloadProfile, Hardware, str, float, float, float, float]]
    ) -> TrainingAlternatives:
        """Return a table of training jobs to predict (alternatives), without clock limits.

        The weights are updated after each pass (no gradient accumulation).

        Args:
            combinations: one tuple for each alternative: workload profile, kind of device, precision,
                samples per device and pass, number of devices, samples of the job, and power limit in watts
                (infinity means no limit).
        """
        rows = list(combinations)
        profiles = {id(row[0]): row[0] for row in rows}
        kinds = {id(row[1]): row[1] for row in rows}
        profile_ids, kind_ids = list(profiles), list(kinds)
        numbers = np.array([row[3:] for row in rows], dtype=np.float64).reshape(-1, 4)
        return cls(
            tuple(profiles.values()),
            tuple(kinds.values()),
            np.array([profile_ids.index(id(row[0])) for row in rows], dtype=np.int64),
            np.array([kind_ids.index(id(row[1])) for row in rows], dtype=np.int64),
            np.array([PRECISIONS.index(row[2]) for row in rows], dtype=np.int64),
            batch=numbers[:, 0],
            gpus=numbers[:, 1],
            samples=numbers[:, 2],
            cap_watts=numbers[:, 3],
            clock=np.ones(len(rows)),
            accumulation=np.ones(len(rows)),
        )


@dataclass(frozen=True, slots=True)
class TrainingPredictions:
    """Predictions of n alternative training jobs, as arrays of shape (n,).

    An alternative states workload, device, number of devices and batch size. The arrays have the order of
    the alternatives that the caller passed to the predictor.

    Attributes:
        step_s: seconds per update.
        duration_s: seconds of the job.
        power_watts: mean watts of all devices of the job together.
        energy_joules: joules of all devices of the job.
        clock: clock during work as a share of the maximum clock.
        footprint_bytes: estimated device memory that the job needs.
        fits: whether the memory of the device is at least `footprint_bytes`.
        spread: uncertainty of the predictions, shape (n, 4): quantiles of the ratio of measured to predicted
            values. The columns are the 5 and 95 % quantiles of time, then the 5 and 95 % quantiles of power,
            as in `Spread`.
    """

    step_s: Array
    duration_s: Array
    power_watts: Array
    energy_joules: Array
    clock: Array
    footprint_bytes: Array
    fits: NDArray[np.bool_]
    spread: Array


class TrainingOracle:
    """Predictor (oracle) of training jobs that uses the analytical model and its calibrations.

    Args:
        calibration_of: function from the name of a kind of device to its calibration.
        looping: whether the framework updates one tensor after the other (PyTorch before 2.0).
    """

    def __init__(
        self, calibration_of: Callable[[str], Calibration] = shipped_calibration, *, looping: bool = False
    ) -> None:
        self._calibration_of, self._looping = calibration_of, looping
        self._steps = StepPredictor(calibration_of, looping=looping)
        self._priors: dict[str, tuple[Calibration, Calibration]] = {}

    def predict_many(
        self, alternatives: TrainingAlternatives, deviation: Deviation = (0.0, 0.0)
    ) -> TrainingPredictions:
        """Predict time and power of all given training jobs.

        Args:
            alternatives: the training jobs to predict.
            deviation: assumed errors of two estimated properties of the devices, in standard deviations. The
                properties are demand and supply (`oracle.transfer.prior.LATENTS`). The value (0, 0) assumes
                that the estimates have no error.

        Raises:
            UsageError: a device has no unit for the requested precision.
        """
        count = len(alternatives)
        step, watts, clock = np.empty(count), np.empty(count), np.empty(count)
        memory, limit, spread = np.empty(count), np.empty(count), np.empty((count, 4))
        for group in alternatives.groups():
            profile, kind, precision = alternatives.names(group[0])
            limit[group] = kind.memory_bytes
            for start in range(0, len(group), _CHUNK):
                rows = group[start : start + _CHUNK]
                steps = self._steps.steps(
                    profile, kind, precision, alternatives.configurations(rows), deviation
                )
                step[rows], watts[rows], clock[rows] = steps.step_s, steps.power_watts, steps.clock
                spread[rows] = steps.spread
                optimizer = find_optimizer(profile.optimizer)
                memory[rows] = footprint_bytes(profile, alternatives.batch[rows], precision, optimizer)
        updates = np.maximum(
            1.0, alternatives.samples / (alternatives.batch * alternatives.gpus * alternatives.accumulation)
        )
        duration, power = updates * step, watts * alternatives.gpus
        return TrainingPredictions(
            step, duration, power, duration * power, clock, memory, memory <= limit, spread
        )

    def cases(self, alternatives: TrainingAlternatives) -> list[tuple[float, Deviation]]:
        """Return assumed prediction errors with their probabilities, as a list of cases.

        A choice between alternatives uses the mean over these cases. Each element of the list is a pair: the
        probability of the case, and the errors of two estimated properties of the device, demand and supply
        (see the argument `deviation` of `predict_many`). An error of supply is assumed only for predictions
        from other kinds of device.
        """
        second = CASES if self.transferred(alternatives).any() else ((0.0, 1.0),)
        return [(one * two, (first, other)) for first, one in CASES for other, two in second]

    def transferred(self, alternatives: TrainingAlternatives) -> NDArray[np.bool_]:
        """Return for each training job whether its prediction is transferred from other kinds of GPU.

        The result has the shape (n,). The module `oracle.transfer` makes predictions for a kind of GPU from
        measurements on other kinds of GPU.
        """
        flags = np.zeros(len(alternatives), dtype=bool)
        for rows in alternatives.groups():
            profile, kind, _ = alternatives.names(rows[0])
            flags[rows] = self._steps.is_transferred(profile, kind)
        return flags

    def support(self, alternatives: TrainingAlternatives) -> Array:
        """Return how close each batch size is to a measured batch size, shape (n,).

        The values range from 0 (far) to 1 (measured).
        """
        support = np.zeros(len(alternatives))
        for rows in alternatives.groups():
            profile, kind, precision = alternatives.names(rows[0])
            calibration = self._calibration_of(kind.name)
            support[rows] = support_of(calibration, profile, precision, alternatives.batch[rows])
        return support

    def usual_caps(self, alternatives: TrainingAlternatives) -> Array:
        """Return the power limit in watts that is best on average according to other kinds of device.

        The result has one value per alternative (way to run the job), shape (n,). On other kinds of device,
        the best limit is known as a fraction of the design power. This fraction is applied to the design
        power of the alternative's device.
        """
        caps_watts = np.full(len(alternatives), np.inf)
        for rows in alternatives.groups():
            _, kind, _ = alternatives.names(rows[0])
            evidence = self._calibration_of(kind.name).evidence
            caps_watts[rows] = np.inf if evidence is None else evidence.prior.cap_share * kind.tdp_watts
        return caps_watts

    def effective_rows(self, alternatives: TrainingAlternatives) -> Array:
        """Return for each alternative (way to run a job) how many measurements support its prediction.

        The result has shape (n,). Measurements of the same workload count fully, and those of other
        workloads count less.
        """
        counts = np.zeros(len(alternatives))
        for rows in alternatives.groups():
            profile, kind, _ = alternatives.names(rows[0])
            evidence = self._calibration_of(kind.name).evidence
            counts[rows] = 0.0 if evidence is None else evidence.effective_count(profile.name)
        return counts

    @cached_property
    def prior(self) -> TrainingOracle:
        """Predictor (oracle) that knows only measurements on other kinds of device.

        It ignores measurements on the kind of device that the job uses.
        """
        return TrainingOracle(self._prior_calibration, looping=self._looping)

    def _prior_calibration(self, name: str) -> Calibration:
        """Return the calibration of a kind of device, but without the measurements on this kind.

        The part `evidence` of the calibration then contains only measurements on other kinds. The same
        object is returned until the calibration is replaced. `name` is the name of the hardware file.
        """
        calibration = self._calibration_of(name)
        cached = self._priors.get(name)
        if cached is None or cached[0] is not calibration:
            evidence = calibration.evidence and Evidence(calibration.evidence.prior)
            cached = self._priors[name] = (calibration, replace(calibration, evidence=evidence))
        return cached[1]

    def predict(self, request: PredictionRequest) -> Prediction | None:
        """Return the prediction for one training job.

        The result is None if the model or the kind of GPU is missing or unknown. Users choose both names, so
        only names are accepted, never a path.
        """
        model, gpu_kind = request.model or "", request.gpu_kind or ""
        if model.endswith(".json") or gpu_kind.endswith(".toml"):
            return None
        try:
            profile, kind = find_profile(model), find_hardware(gpu_kind)
            precision = request.precision or default_precision(kind)
            kind.matrix_flops_per_s(precision)
        except (NotFoundError, UsageError):
            return None
        samples = request.samples or profile.samples_per_epoch
        if not samples:
            return None
        cap = max(float(request.gpu_cap_watts or np.inf), kind.min_cap_watts)
        row = (profile, kind, precision, float(request.batch or DEFAULT_BATCH), float(request.gpus or 1))
        alternatives = TrainingAlternatives.of([(*row, float(samples), cap)])
        prediction = self.predictions(alternatives, self.predict_many(alternatives))[0]
        assumed = prediction_notes.assumption_notes(request, profile, precision, DEFAULT_BATCH)
        limits = prediction_notes.limitation_notes(request, kind, prediction)
        return replace(
            prediction,
            basis="; ".join((prediction.basis, *assumed)),
            notes=(*prediction.notes, *limits),
        )

    def predictions(
        self, alternatives: TrainingAlternatives, predicted: TrainingPredictions
    ) -> list[Prediction]:
        """Return one `Prediction` per alternative, with its 90 % ranges, basis and warnings."""
        return [self._prediction(alternatives, predicted, row) for row in range(len(alternatives))]

    def _prediction(
        self, alternatives: TrainingAlternatives, predicted: TrainingPredictions, row: int
    ) -> Prediction:
        profile, kind = (
            alternatives.profiles[alternatives.profile[row]],
            alternatives.kinds[alternatives.kind[row]],
        )
        calibration = self._calibration_of(kind.name)
        time_low, time_high, power_low, power_high = (float(value) for value in predicted.spread[row])
        notes = []
        if not predicted.fits[row]:
            needed, available = predicted.footprint_bytes[row], kind.memory_bytes
            notes.append(
                f"about {format_scaled(needed)}B are needed, {kind.name} has {format_scaled(available)}B:"
                " the batch may not fit"
            )
        gpus = float(alternatives.gpus[row])
        if gpus > _MAX_GPUS:
            notes.append(f"{gpus:g} GPUs are assumed to be linked within one node")
        notes += prediction_notes.transfer_notes(profile, kind, calibration)
        max_watts = kind.tdp_watts * gpus
        power = _estimate(float(predicted.power_watts[row]), power_low, power_high, max_watts)
        energy_low, energy_high = _joint_quantile(time_low, power_low), _joint_quantile(time_high, power_high)
        fitted = calibration.fitted_unix_s
        origin = f"{profile.name} on {kind.name}, {calibration.basis}"
        precision = PRECISIONS[alternatives.precision[row]]
        origin += prediction_notes.unmeasured_case(profile, kind, calibration, precision, gpus)
        return Prediction(
            duration_s=_estimate(float(predicted.duration_s[row]), time_low, time_high),
            power_watts=power,
            energy_joules=_estimate(float(predicted.energy_joules[row]), energy_low, energy_high),
            source=PredictionSource.MODEL,
            basis=f"{origin}; watts of the {kind.kind.upper()}s",
            age_s=None if fitted is None else max(0.0, time.time() - fitted),
            observations=calibration.rows or None,
            notes=tuple(notes),
        )


def default_precision(kind: Hardware) -> str:
    """Return the default precision of frameworks: TF32 if the device has a unit for it, else FP32."""
    return common_precision([kind])


def common_precision(kinds: Sequence[Hardware]) -> str:
    """Return the precision at which all given kinds of devices are compared: `tf32` or `fp32`.

    The result is `tf32` if all kinds have hardware for TF32. In this way, all alternatives (kinds of devices
    to choose from) have the same precision.
    """
    return "tf32" if all(kind.tf32_flops_per_s for kind in kinds) else "fp32"


def _estimate(mean: float, low: float, high: float, max_value: float = np.inf) -> Estimate:
    return Estimate(min(mean, max_value), min(mean * low, max_value), min(mean * high, max_value))


def _joint_quantile(first: float, second: float) -> float:
    """Return a quantile of the error of a product, from the quantiles of the errors of both factors.

    An error is a measured value divided by the predicted value. The errors of the two factors are assumed to
    be independent.

    Args:
        first: quantile of the error of the first factor.
        second: quantile of the error of the second factor. The two quantiles are both above or both below 1.
    """
    width = float(np.hypot(np.log(first), np.log(second)))
    return float(np.exp(width if first * second >= 1 else -width))
