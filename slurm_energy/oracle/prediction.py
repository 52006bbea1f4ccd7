"""Time, power and energy of training jobs from profiles, hardware files and calibrations; many at once.

Needs numpy, and PyTorch for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.oracle.answer import Answer, Estimate, Question, Source
from slurm_energy.oracle.calibrations import shipped_calibration
from slurm_energy.oracle.choice import UNSEEN_DOUBT
from slurm_energy.oracle.footprint import footprint_bytes
from slurm_energy.oracle.hardware import PRECISIONS, Hardware, find_hardware
from slurm_energy.oracle.training.demand import demand
from slurm_energy.oracle.training.members import averaged, members
from slurm_energy.oracle.training.parameters import Calibration, Spread
from slurm_energy.oracle.training.power import clock_under, step_watts
from slurm_energy.oracle.training.saturation import SATURATIONS
from slurm_energy.oracle.training.timing import Device, step_s, step_times
from slurm_energy.oracle.workload import Profile, find_optimizer, find_profile
from slurm_energy.quantities import format_duration, format_scaled

Array = NDArray[np.float64]
_CHUNK = 8192
"""Alternatives worked on at a time, so that intermediate arrays stay in the cache."""
DEFAULT_BATCH = 32
_MOST_GPUS = 16
"""Most GPUs that one node has."""


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Jobs to predict, as columns of equal length n.

    Attributes:
        profiles: the workloads that occur.
        kinds: the kinds of device that occur.
        profile: index into `profiles`, shape (n,).
        kind: index into `kinds`.
        precision: index into `PRECISIONS`.
        batch: samples per device and pass.
        gpus: devices that train together.
        samples: training samples that the job works through.
        cap_watts: power limit per device; infinite: none.
        clock: clock limit, share of the highest.
        accumulation: passes per update.
    """

    profiles: tuple[Profile, ...]
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

    @classmethod
    def of(
        cls, questions: Iterable[tuple[Profile, Hardware, str, float, float, float, float]]
    ) -> Alternatives:
        """Build from rows (profile, kind, precision, batch, gpus, samples, cap in watts)."""
        rows = list(questions)
        profiles = {id(row[0]): row[0] for row in rows}
        kinds = {id(row[1]): row[1] for row in rows}
        place, kind_place = list(profiles), list(kinds)
        numbers = np.array([row[3:] for row in rows], dtype=np.float64).reshape(-1, 4)
        return cls(
            tuple(profiles.values()),
            tuple(kinds.values()),
            np.array([place.index(id(row[0])) for row in rows], dtype=np.int64),
            np.array([kind_place.index(id(row[1])) for row in rows], dtype=np.int64),
            np.array([PRECISIONS.index(row[2]) for row in rows], dtype=np.int64),
            batch=numbers[:, 0],
            gpus=numbers[:, 1],
            samples=numbers[:, 2],
            cap_watts=numbers[:, 3],
            clock=np.ones(len(rows)),
            accumulation=np.ones(len(rows)),
        )


@dataclass(frozen=True, slots=True)
class Predictions:
    """Answers as columns, in the order of the alternatives.

    Attributes:
        step_s: seconds per update.
        duration_s: seconds of the job.
        power_watts: mean watts of all its devices together.
        energy_joules: joules of all its devices.
        clock: share of the highest clock while working.
        footprint_bytes: device memory that is needed, estimated.
        fits: whether that is within the device's memory.
        spread: quantiles of measured / predicted, columns as in `Spread`, shape (n, 4).
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
    """The analytical model with its calibrations.

    Args:
        calibration_of: from the name of a kind of device, its calibration.
        looping: the framework updates one tensor after the other (PyTorch before 2.0).
    """

    def __init__(
        self, calibration_of: Callable[[str], Calibration] = shipped_calibration, *, looping: bool = False
    ) -> None:
        self._calibration_of, self._looping = calibration_of, looping

    def predict_many(self, asked: Alternatives) -> Predictions:
        """Predict all alternatives.

        Raises:
            UsageError: a device that has no unit for the precision asked.
        """
        count = len(asked)
        step, watts, clock = np.empty(count), np.empty(count), np.empty(count)
        memory, limit, spread = np.empty(count), np.empty(count), np.empty((count, 4))
        codes = (asked.profile * len(asked.kinds) + asked.kind) * len(PRECISIONS) + asked.precision
        order = np.argsort(codes, kind="stable")
        edges = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for first, last in zip(edges, [*edges[1:], count], strict=False):
            for start in range(first, last, _CHUNK):
                rows = order[start : min(start + _CHUNK, last)]
                step[rows], watts[rows], clock[rows], memory[rows] = self._group(asked, rows)
            rows = order[first:last]
            kind, profile = asked.kinds[asked.kind[rows[0]]], asked.profiles[asked.profile[rows[0]]]
            limit[rows], spread[rows] = (
                kind.memory_bytes,
                _spread_of(self._calibration_of(kind.name), profile),
            )
        updates = np.maximum(1.0, asked.samples / (asked.batch * asked.gpus * asked.accumulation))
        duration, power = updates * step, watts * asked.gpus
        return Predictions(step, duration, power, duration * power, clock, memory, memory <= limit, spread)

    def standing(self, asked: Alternatives) -> tuple[Array, Array]:
        """Return how well each alternative is known.

        Returns:
            Standard deviation of the logarithm of measured over predicted power, which a choice between power
            limits must reckon with (see `choice`), and how far the very job was measured
            (`Residuals.support`); shape (n,) each.
        """
        doubt, support = np.zeros(len(asked)), np.zeros(len(asked))
        codes = np.stack((asked.profile, asked.kind, asked.precision))
        for code in np.unique(codes, axis=1).T:
            rows = (codes == code[:, None]).all(axis=0)
            profile, calibration = asked.profiles[code[0]], self._calibration_of(asked.kinds[code[1]].name)
            doubt[rows] = 0.0 if profile.name in calibration.workloads else UNSEEN_DOUBT
            residuals = calibration.residuals.get((profile.name, PRECISIONS[code[2]]))
            if residuals is not None:
                support[rows] = residuals.support(asked.batch[rows])
        return doubt, support

    def _group(self, asked: Alternatives, rows: NDArray[np.int64]) -> tuple[Array, Array, Array, Array]:
        """Predict alternatives that share profile, kind and precision."""
        profile, kind = asked.profiles[asked.profile[rows[0]]], asked.kinds[asked.kind[rows[0]]]
        precision = PRECISIONS[asked.precision[rows[0]]]
        calibration, optimizer = self._calibration_of(kind.name), find_optimizer(profile.optimizer)
        theta, batch = calibration.theta, asked.batch[rows]
        work = demand(profile, batch, precision, optimizer, looping=self._looping)
        device, tdp_watts = device_of(kind, precision), kind.tdp_watts
        found = []
        for scalars in members(calibration, profile, device, precision, optimizer):
            times = step_times(
                work,
                device,
                theta,
                scalars,
                SATURATIONS[calibration.saturation],
                asked.gpus[rows],
                asked.accumulation[rows],
            )
            clock = clock_under(times, theta, scalars, tdp_watts, asked.cap_watts[rows], asked.clock[rows])
            watts = step_watts(times, theta, scalars, tdp_watts, clock)
            found.append((step_s(times, theta, clock), watts, clock))
        step, power, clock = (averaged(values) for values in zip(*found, strict=True))
        residuals = calibration.residuals.get((profile.name, precision))
        if residuals is not None:
            on_time, on_power = residuals.at(batch, asked.cap_watts[rows])
            step, power = step * on_time, np.minimum(power * on_power, tdp_watts)
        memory = footprint_bytes(profile, batch, precision, optimizer)
        return step, power, clock, np.asarray(memory)

    def predict(self, question: Question) -> Answer | None:
        """Answer for one training job; None if its model or kind of GPU is not named or not known.

        The names come from users and their jobs, so only shipped files count here, never a path.
        """
        model, gpu_kind = question.model or "", question.gpu_kind or ""
        if model.endswith(".json") or gpu_kind.endswith(".toml"):
            return None
        try:
            profile, kind = find_profile(model), find_hardware(gpu_kind)
            precision = question.precision or default_precision(kind)
            kind.matrix_flops_per_s(precision)
        except (NotFoundError, UsageError):
            return None
        samples = question.samples or profile.samples_per_epoch
        if not samples:
            return None
        cap = max(float(question.gpu_cap_watts or np.inf), kind.min_cap_watts)
        row = (profile, kind, precision, float(question.batch or DEFAULT_BATCH), float(question.gpus or 1))
        asked = Alternatives.of([(*row, float(samples), cap)])
        answer = self.answers(asked, self.predict_many(asked))[0]
        basis = "; ".join((answer.basis, *_assumed(question, profile, precision)))
        return replace(answer, basis=basis, notes=(*answer.notes, *_doubts(question, kind, answer)))

    def answers(self, asked: Alternatives, predicted: Predictions) -> list[Answer]:
        """Return predictions one by one, with range, origin and warnings."""
        return [self._answer(asked, predicted, place) for place in range(len(asked))]

    def _answer(self, asked: Alternatives, predicted: Predictions, place: int) -> Answer:
        profile, kind = asked.profiles[asked.profile[place]], asked.kinds[asked.kind[place]]
        calibration = self._calibration_of(kind.name)
        time_low, time_high, power_low, power_high = (float(value) for value in predicted.spread[place])
        notes = []
        if not predicted.fits[place]:
            needed, there = predicted.footprint_bytes[place], kind.memory_bytes
            notes.append(
                f"about {format_scaled(needed)}B are needed, {kind.name} has {format_scaled(there)}B:"
                " the batch may not fit"
            )
        if asked.gpus[place] > _MOST_GPUS:
            notes.append(f"{asked.gpus[place]:g} GPUs are taken as linked within one node")
        if profile.name not in calibration.workloads:
            notes.append(f"{profile.name} was never measured on {kind.name}: wide range")
        most = kind.tdp_watts * float(asked.gpus[place])
        power = _estimate(float(predicted.power_watts[place]), power_low, power_high, most)
        energy_low, energy_high = _product(time_low, power_low), _product(time_high, power_high)
        fitted = calibration.fitted_unix_s
        return Answer(
            duration_s=_estimate(float(predicted.duration_s[place]), time_low, time_high),
            power_watts=power,
            energy_joules=_estimate(float(predicted.energy_joules[place]), energy_low, energy_high),
            source=Source.MODEL,
            basis=f"{profile.name} on {kind.name}, {calibration.basis}; watts of the {kind.kind.upper()}s",
            age_s=None if fitted is None else max(0.0, time.time() - fitted),
            observations=calibration.rows or None,
            notes=tuple(notes),
        )


def _assumed(question: Question, profile: Profile, precision: str) -> tuple[str, ...]:
    """Return what the question did not say, as one part of a basis; nothing if it said all."""
    parts = []
    if not question.samples:
        parts.append(f"one epoch of {profile.dataset or 'its data set'}")
    if not question.batch:
        parts.append(f"{DEFAULT_BATCH} samples per GPU and step")
    if not question.precision:
        parts.append(precision)
    return (f"assumed: {', '.join(parts)}",) if parts else ()


def _doubts(question: Question, kind: Hardware, answer: Answer) -> list[str]:
    """Return notes on what the question says and the model cannot follow."""
    notes, limit_s = [], question.time_limit_s
    if limit_s and answer.duration_s.mean > limit_s:
        notes.append(
            f"this is more than the time limit of {format_duration(limit_s)}: the job would be killed"
        )
    if (question.nodes or 1) > 1:
        notes.append("the model knows one node only: its GPUs are taken as linked within one")
    if question.cap_watts is not None:
        notes.append("the model knows limits per GPU only: that per node is left out")
    if question.gpu_cap_watts and question.gpu_cap_watts < kind.min_cap_watts:
        notes.append(f"{kind.name} takes limits from {kind.min_cap_watts:g} W on: this one counts")
    return notes


def default_precision(kind: Hardware) -> str:
    """Return what frameworks use without being told: TF32 where there is a unit for it, else FP32."""
    return common_precision([kind])


def common_precision(kinds: Sequence[Hardware]) -> str:
    """Return TF32 if all of these kinds have a unit for it, else FP32: alternatives are compared in one."""
    return "tf32" if all(kind.tf32_flops_per_s for kind in kinds) else "fp32"


def device_of(kind: Hardware, precision: str) -> Device:
    """Return the peak figures for one precision.

    Raises:
        UsageError: the device has no unit for it.
    """
    return Device(
        matrix_flops_per_s=kind.matrix_flops_per_s(precision),
        alu_flops_per_s=kind.alu_flops_per_s,
        memory_bytes_per_s=kind.memory_bytes_per_s,
        l2_bytes=kind.l2_bytes,
        link_bytes_per_s=kind.link_bytes_per_s,
        tdp_watts=kind.tdp_watts,
    )


def _spread_of(calibration: Calibration, profile: Profile) -> tuple[float, float, float, float]:
    spread: Spread = calibration.known if profile.name in calibration.workloads else calibration.unknown
    return spread.time_low, spread.time_high, spread.power_low, spread.power_high


def _estimate(mean: float, low: float, high: float, most: float = np.inf) -> Estimate:
    return Estimate(min(mean, most), min(mean * low, most), min(mean * high, most))


def _product(first: float, second: float) -> float:
    """Return the quantile of a product of two independent errors, from theirs on the same side of 1."""
    width = float(np.hypot(np.log(first), np.log(second)))
    return float(np.exp(width if first * second >= 1 else -width))
