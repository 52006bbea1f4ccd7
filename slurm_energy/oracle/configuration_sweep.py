"""Comparison of many configurations (alternatives) of one training job.

The comparison contains predictions, the values of objectives, the best alternatives, and the Pareto front.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import UsageError
from slurm_energy.oracle.hardware import Hardware
from slurm_energy.oracle.objectives import OBJECTIVES, Array, edp_js, eds, first_minimum, pareto_front
from slurm_energy.oracle.prediction import Prediction
from slurm_energy.oracle.selection import (
    expected_objective,
    measurement_weight,
    select_alternative,
    select_near_usual_cap,
)
from slurm_energy.oracle.training_oracle import TrainingAlternatives, TrainingOracle, TrainingPredictions
from slurm_energy.oracle.workload import WorkloadProfile

MAX_ALTERNATIVES = 100_000
_OF_CAPS = ("edp", "eds")
"""Objectives for which the usual limit, the best limit for the energy-delay product, is a good choice."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Configurations of one training job that were compared, and their predictions.

    Each configuration is an alternative. All lists and arrays have one entry per alternative.

    Attributes:
        rows: settings of each alternative: kind of device, number of devices, samples per device and
            step, and power limit per device in watts (infinity means no limit).
        predictions: predicted time, power and energy with their ranges.
        step_s: seconds per update.
        clock: clock as a fraction of the maximum clock.
        objectives: by name in `OBJECTIVES`, the values of all alternatives; lower is better.
        best: by objective, the index of the best alternative. Only alternatives that fit the memory are
            considered. If none fits, all are considered.
        front: mask of the alternatives on the Pareto front. An alternative is on the front if no other
            alternative is better in both time and energy.
        fits: mask of the alternatives whose batch fits the memory of the device.
    """

    rows: list[tuple[Hardware, float, float, float]]
    predictions: list[Prediction]
    step_s: Array
    clock: Array
    objectives: dict[str, Array]
    best: dict[str, int]
    front: NDArray[np.bool_]
    fits: NDArray[np.bool_]


def sweep(
    oracle: TrainingOracle,
    profile: WorkloadProfile,
    kinds: Sequence[Hardware],
    gpus: Sequence[float],
    batches: Sequence[float],
    caps_watts: Sequence[float],
    precision: str,
    samples: float,
    *,
    k: float = 1.5,
    clock_mhz: float = np.inf,
    accumulation: float = 1.0,
) -> Sweep:
    """Predict every combination of the given settings of a training job.

    Args:
        oracle: predictor of the time and energy of training jobs.
        profile: profile of the workload.
        kinds: kinds of device.
        gpus: numbers of devices.
        batches: samples per device and step.
        caps_watts: power limits per device; infinity means no limit.
        precision: precision of matrix products.
        samples: training samples of the whole job.
        k: constant of the energy-delay sum (see `objectives.eds`).
        clock_mhz: clock limit of all devices; infinity means no limit.
        accumulation: forward and backward passes per update of the weights.

    Raises:
        UsageError: too many combinations, a limit that a device does not support, or an unknown precision.
    """
    count = math.prod(map(len, (kinds, gpus, batches, caps_watts)))
    if count > MAX_ALTERNATIVES:
        raise UsageError(
            "alternatives", f"{count} are too many", f"request at most {MAX_ALTERNATIVES} combinations"
        )
    combinations = list(itertools.product(kinds, gpus, batches, sorted(caps_watts)))
    for kind, cap in itertools.product(kinds, caps_watts):
        _check_cap(kind, cap)
    alternatives = TrainingAlternatives.of(
        (profile, kind, precision, batch, count, samples, cap) for kind, count, batch, cap in combinations
    )
    alternatives = replace(
        alternatives,
        clock=np.array([_clock_share(kind, clock_mhz) for kind, *_ in combinations]),
        accumulation=np.full(len(alternatives), accumulation),
    )
    first = (profile, kinds[0], precision, batches[0], gpus[0], samples, np.inf)
    reference_job = replace(TrainingAlternatives.of([first]), accumulation=np.array([accumulation]))
    reference, predicted = oracle.predict_many(reference_job), oracle.predict_many(alternatives)
    values = _objectives(predicted, reference, k)
    selectable = predicted.fits if predicted.fits.any() else np.ones(len(alternatives), dtype=bool)
    best = _best(oracle, alternatives, predicted, reference_job, reference, k)
    front = np.zeros(len(alternatives), dtype=bool)
    front[selectable] = pareto_front(predicted.duration_s[selectable], predicted.energy_joules[selectable])
    predictions = oracle.predictions(alternatives, predicted)
    return Sweep(
        combinations, predictions, predicted.step_s, predicted.clock, values, best, front, predicted.fits
    )


def _objectives(predicted: TrainingPredictions, reference: TrainingPredictions, k: float) -> dict[str, Array]:
    return {
        "time": predicted.duration_s,
        "energy": predicted.energy_joules,
        "edp": edp_js(predicted.duration_s, predicted.energy_joules),
        "eds": eds(
            predicted.duration_s,
            predicted.energy_joules,
            float(reference.duration_s[0]),
            float(reference.energy_joules[0]),
            k,
        ),
    }


def _best(
    oracle: TrainingOracle,
    alternatives: TrainingAlternatives,
    predicted: TrainingPredictions,
    reference_job: TrainingAlternatives,
    reference: TrainingPredictions,
    k: float,
) -> dict[str, int]:
    """Return the index of the best alternative (configuration of a training job) by objective.

    For the objective time, predicted times are compared. For the other objectives, expected values under
    uncertain predictions are compared. Alternatives that do not fit the memory are excluded, unless none
    fits.
    """
    selectable = predicted.fits if predicted.fits.any() else np.ones(len(alternatives), dtype=bool)
    probabilities = [probability for probability, _ in oracle.cases(alternatives)]
    cases = [
        {name: np.where(selectable, values, np.inf) for name, values in case.items()}
        for case in _cases(oracle, alternatives, predicted, reference_job, reference, k)
    ]
    best = {"time": first_minimum(np.where(selectable, predicted.duration_s, np.inf))}
    support = oracle.support(alternatives)
    for name in OBJECTIVES[1:]:
        values = [case[name] for case in cases]
        mean = expected_objective(values, probabilities)
        best[name] = select_alternative(mean, support)
        first = int(np.argmin(mean))
        if name in _OF_CAPS and oracle.transferred(alternatives)[first]:
            best[name] = _near_usual_cap(oracle, alternatives, reference_job, k, name, values, first)
    return {name: best[name] for name in OBJECTIVES}


def _cases(
    oracle: TrainingOracle,
    alternatives: TrainingAlternatives,
    predicted: TrainingPredictions,
    reference_job: TrainingAlternatives,
    reference: TrainingPredictions,
    k: float,
) -> list[dict[str, Array]]:
    """Return the objectives of all training alternatives, for each assumed error of the predictions.

    An alternative is a way to run the training job. The list has one dict per assumed error. Each dict maps
    the name of an objective to an array with one value per alternative.
    """
    objectives = []
    for _, deviation in oracle.cases(alternatives):
        likeliest = deviation == (0.0, 0.0)
        case = predicted if likeliest else oracle.predict_many(alternatives, deviation)
        usual = reference if likeliest else oracle.predict_many(reference_job, deviation)
        objectives.append(_objectives(case, usual, k))
    return objectives


def _near_usual_cap(
    oracle: TrainingOracle,
    alternatives: TrainingAlternatives,
    reference_job: TrainingAlternatives,
    k: float,
    name: str,
    values: list[Array],
    best: int,
) -> int:
    """Choose, for the best alternative, a power limit that is nearer to the usual limit.

    An alternative is a way to run a training job. The result is an alternative that differs from `best` only
    in the power limit. The function is used for jobs whose response to power limits was measured rarely or
    never on this kind of device. The usual limit is the one that is best on average on other kinds of
    device. The fewer the measurements, the closer the returned limit is to the usual limit.

    Args:
        oracle: predictor of training jobs.
        alternatives: all alternatives.
        reference_job: the job to which the energy-delay sum refers.
        k: constant of the energy-delay sum.
        name: name of the objective.
        values: values of the objective for all alternatives, once for each assumed error of the prediction.
            An infinite value means that the alternative cannot be selected.
        best: index of the alternative with the least expected objective.
    """
    columns = (
        alternatives.profile,
        alternatives.kind,
        alternatives.precision,
        alternatives.batch,
        alternatives.gpus,
        alternatives.clock,
    )
    same = np.logical_and.reduce([column == column[best] for column in columns])
    rows = np.flatnonzero(same & np.isfinite(values[0]))
    own = alternatives.subset(rows)
    probabilities = [probability for probability, _ in oracle.cases(own)]
    mean = expected_objective([case[rows] for case in values], probabilities)
    if effective_rows := float(oracle.effective_rows(alternatives)[best]):
        prior, weight = oracle.prior, measurement_weight(effective_rows)
        prior_cases = _cases(
            prior, own, prior.predict_many(own), reference_job, prior.predict_many(reference_job), k
        )
        mean = weight * mean + (1.0 - weight) * expected_objective(
            [case[name] for case in prior_cases], probabilities
        )
    caps_watts = np.minimum(own.cap_watts, alternatives.kinds[alternatives.kind[best]].tdp_watts)
    return int(rows[select_near_usual_cap(mean, caps_watts, float(oracle.usual_caps(alternatives)[best]))])


def _check_cap(kind: Hardware, cap_watts: float) -> None:
    if np.isfinite(cap_watts) and not kind.min_cap_watts <= cap_watts <= kind.max_cap_watts:
        limits_text = f"{kind.name} takes {kind.min_cap_watts:g} to {kind.max_cap_watts:g} W"
        raise UsageError(f"--cap: {cap_watts:g} W", limits_text, "leave it out")


def _clock_share(kind: Hardware, clock_mhz: float) -> float:
    if clock_mhz < kind.min_clock_mhz:
        runs = f"{kind.name} runs at {kind.min_clock_mhz:g} to {kind.max_clock_mhz:g} MHz"
        raise UsageError(f"--clock: {clock_mhz:g} MHz", runs, "leave it out")
    return min(1.0, clock_mhz / kind.max_clock_mhz)


def to_json(result: Sweep, names: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a comparison of configurations as a dict for JSON.

    Args:
        result: the compared configurations (alternatives) with their predictions.
        names: entries that describe the inputs. They are the first entries of the dict.
    """
    alternatives = []
    for row, (kind, gpus, batch, cap) in enumerate(result.rows):
        alternatives.append(
            {
                "gpu": kind.name,
                "gpus": int(gpus),
                "batch": int(batch),
                "cap_watts": None if np.isinf(cap) else cap,
                "step_s": float(result.step_s[row]),
                "clock_mhz": float(result.clock[row]) * kind.max_clock_mhz,
                "edp_js": float(result.objectives["edp"][row]),
                "eds": float(result.objectives["eds"][row]),
                "pareto": bool(result.front[row]),
                "fits_memory": bool(result.fits[row]),
                **result.predictions[row].to_json(),
            }
        )
    return {**names, "alternatives": alternatives, "best": result.best}
