"""All alternatives of one training job side by side: predictions, objectives, the best of each, the front."""

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
from slurm_energy.oracle.objectives import OBJECTIVES, Array, edp_js, eds, least, pareto_front
from slurm_energy.oracle.prediction import Prediction
from slurm_energy.oracle.selection import expected, measurement_weight, near_usual_cap, taken
from slurm_energy.oracle.training_oracle import TrainingAlternatives, TrainingOracle, TrainingPredictions
from slurm_energy.oracle.workload import WorkloadProfile

MOST = 100_000
_OF_CAPS = ("edp", "eds")
"""Objectives that the usual limit is good for: it is the best one for the energy-delay product."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Alternatives with what was predicted for them, in the order asked.

    Attributes:
        rows: (kind, gpus, batch, cap in watts; infinite for none) of each.
        answers: predictions with their ranges.
        step_s: seconds per update.
        clock: share of the highest clock.
        objectives: by name of `OBJECTIVES`, values of all alternatives; less is better.
        best: by name, place of the best; what does not fit the memory is left out where something does.
        front: whether no other alternative is better in time and energy.
        fits: whether the batch fits the device's memory.
    """

    rows: list[tuple[Hardware, float, float, float]]
    answers: list[Prediction]
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
    """Predict every combination.

    Args:
        oracle: the model.
        profile: the workload.
        kinds: kinds of device.
        gpus: numbers of devices.
        batches: samples per device and step.
        caps_watts: power limits per device; infinite: none.
        precision: of matrix products.
        samples: training samples of the whole job.
        k: of the energy-delay sum.
        clock_mhz: clock limit of all devices; infinite: none.
        accumulation: passes per update.

    Raises:
        UsageError: too many combinations, a limit that a device does not take, or a precision.
    """
    count = math.prod(map(len, (kinds, gpus, batches, caps_watts)))
    if count > MOST:
        raise UsageError("alternatives", f"{count} are too many", f"ask for at most {MOST}")
    combinations = list(itertools.product(kinds, gpus, batches, sorted(caps_watts)))
    for kind, cap in itertools.product(kinds, caps_watts):
        _check_cap(kind, cap)
    asked = TrainingAlternatives.of(
        (profile, kind, precision, batch, count, samples, cap) for kind, count, batch, cap in combinations
    )
    asked = replace(
        asked,
        clock=np.array([_clock_share(kind, clock_mhz) for kind, *_ in combinations]),
        accumulation=np.full(len(asked), accumulation),
    )
    first = (profile, kinds[0], precision, batches[0], gpus[0], samples, np.inf)
    plain = replace(TrainingAlternatives.of([first]), accumulation=np.array([accumulation]))
    reference, found = oracle.predict_many(plain), oracle.predict_many(asked)
    values = _objectives(found, reference, k)
    able = found.fits if found.fits.any() else np.ones(len(asked), dtype=bool)
    best = _best(oracle, asked, found, plain, reference, k)
    front = np.zeros(len(asked), dtype=bool)
    front[able] = pareto_front(found.duration_s[able], found.energy_joules[able])
    answers = oracle.answers(asked, found)
    return Sweep(combinations, answers, found.step_s, found.clock, values, best, front, found.fits)


def _objectives(found: TrainingPredictions, reference: TrainingPredictions, k: float) -> dict[str, Array]:
    return {
        "time": found.duration_s,
        "energy": found.energy_joules,
        "edp": edp_js(found.duration_s, found.energy_joules),
        "eds": eds(
            found.duration_s,
            found.energy_joules,
            float(reference.duration_s[0]),
            float(reference.energy_joules[0]),
            k,
        ),
    }


def _best(
    oracle: TrainingOracle,
    asked: TrainingAlternatives,
    found: TrainingPredictions,
    plain: TrainingAlternatives,
    reference: TrainingPredictions,
    k: float,
) -> dict[str, int]:
    """Return the place to take for each objective: least time as predicted, least others as expected.

    What does not fit the memory is left out where something does.
    """
    able = found.fits if found.fits.any() else np.ones(len(asked), dtype=bool)
    probabilities = [probability for probability, _ in oracle.cases(asked)]
    cases = [
        {name: np.where(able, values, np.inf) for name, values in case.items()}
        for case in _cases(oracle, asked, found, plain, reference, k)
    ]
    best = {"time": least(np.where(able, found.duration_s, np.inf))}
    support = oracle.support(asked)
    for name in OBJECTIVES[1:]:
        values = [case[name] for case in cases]
        mean = expected(values, probabilities)
        best[name] = taken(mean, support)
        first = int(np.argmin(mean))
        if name in _OF_CAPS and oracle.transferred(asked)[first]:
            best[name] = _near_usual_cap(oracle, asked, plain, k, name, values, first)
    return {name: best[name] for name in OBJECTIVES}


def _cases(
    oracle: TrainingOracle,
    asked: TrainingAlternatives,
    found: TrainingPredictions,
    plain: TrainingAlternatives,
    reference: TrainingPredictions,
    k: float,
) -> list[dict[str, Array]]:
    """Return the objectives of all alternatives in each case to average a choice over."""
    objectives = []
    for _, deviation in oracle.cases(asked):
        likeliest = deviation == (0.0, 0.0)
        case = found if likeliest else oracle.predict_many(asked, deviation)
        usual = reference if likeliest else oracle.predict_many(plain, deviation)
        objectives.append(_objectives(case, usual, k))
    return objectives


def _near_usual_cap(
    oracle: TrainingOracle,
    asked: TrainingAlternatives,
    plain: TrainingAlternatives,
    k: float,
    name: str,
    values: list[Array],
    best: int,
) -> int:
    """Return the alternative with the power limit to take for the job at `best`, which is transferred.

    The fewer measurements the prediction rests on, the more the prediction without them counts.

    Args:
        oracle: the model.
        asked: all alternatives.
        plain: the job that the energy-delay sum refers to.
        k: of the energy-delay sum.
        name: of the objective.
        values: objective of all alternatives in each case; infinite: not to be taken.
        best: alternative of least expected objective.
    """
    columns = (asked.profile, asked.kind, asked.precision, asked.batch, asked.gpus, asked.clock)
    same = np.logical_and.reduce([column == column[best] for column in columns])
    rows = np.flatnonzero(same & np.isfinite(values[0]))
    own = asked.subset(rows)
    probabilities = [probability for probability, _ in oracle.cases(own)]
    mean = expected([case[rows] for case in values], probabilities)
    if effective_rows := float(oracle.effective_rows(asked)[best]):
        prior, weight = oracle.prior, measurement_weight(effective_rows)
        without = _cases(prior, own, prior.predict_many(own), plain, prior.predict_many(plain), k)
        mean = weight * mean + (1.0 - weight) * expected([case[name] for case in without], probabilities)
    caps_watts = np.minimum(own.cap_watts, asked.kinds[asked.kind[best]].tdp_watts)
    return int(rows[near_usual_cap(mean, caps_watts, float(oracle.usual_caps(asked)[best]))])


def _check_cap(kind: Hardware, cap_watts: float) -> None:
    if np.isfinite(cap_watts) and not kind.min_cap_watts <= cap_watts <= kind.max_cap_watts:
        takes = f"{kind.name} takes {kind.min_cap_watts:g} to {kind.max_cap_watts:g} W"
        raise UsageError(f"--cap: {cap_watts:g} W", takes, "leave it out")


def _clock_share(kind: Hardware, clock_mhz: float) -> float:
    if clock_mhz < kind.min_clock_mhz:
        runs = f"{kind.name} runs at {kind.min_clock_mhz:g} to {kind.max_clock_mhz:g} MHz"
        raise UsageError(f"--clock: {clock_mhz:g} MHz", runs, "leave it out")
    return min(1.0, clock_mhz / kind.max_clock_mhz)


def to_json(found: Sweep, names: dict[str, Any]) -> dict[str, Any]:
    """Return a sweep as plain data.

    Args:
        found: the sweep.
        names: what was asked, put first as it is.
    """
    alternatives = []
    for place, (kind, gpus, batch, cap) in enumerate(found.rows):
        alternatives.append(
            {
                "gpu": kind.name,
                "gpus": int(gpus),
                "batch": int(batch),
                "cap_watts": None if np.isinf(cap) else cap,
                "step_s": float(found.step_s[place]),
                "clock_mhz": float(found.clock[place]) * kind.max_clock_mhz,
                "edp_js": float(found.objectives["edp"][place]),
                "eds": float(found.objectives["eds"][place]),
                "pareto": bool(found.front[place]),
                "fits_memory": bool(found.fits[place]),
                **found.answers[place].to_json(),
            }
        )
    return {**names, "alternatives": alternatives, "best": found.best}
