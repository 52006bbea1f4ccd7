"""Random workloads of models to train: arrivals, users, deadlines, and every shape with its prediction.

Source: thesis, 5.3.2.2 and 5.5.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.scheduling.queue import Floats
from slurm_energy.simulator.scenario import ModelSection, Scenario
from slurm_energy.simulator.workload import Workload, workload


@dataclass(frozen=True, slots=True)
class Predicted:
    """What an oracle says of a model in one shape.

    Attributes:
        time_s: of the whole training.
        power_watts: of all GPUs together.
        most_watts: what they can draw at most (thermal design power).
    """

    time_s: float
    power_watts: float
    most_watts: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to run a model: hardware (a kind of the cluster), number of GPUs, batch size per GPU."""

    kind: str
    gpus: int
    batch: int


Predict = Callable[[ModelSection, str, int, int], Predicted | None]
"""(model, the oracle's name of the hardware, GPUs, batch) to the prediction; None: it does not run there."""


def generate(scenario: Scenario, seed: int, predict: Predict) -> Workload:
    """Return a random workload; the same for the same seed, whatever policy it is for.

    Args:
        scenario: with models.
        seed: of the random numbers.
        predict: the oracle.

    Raises:
        UsageError: a model runs nowhere in this cluster.
    """
    section = scenario.workload
    random = np.random.default_rng(seed)
    submit_s = _arrivals(random, section.arrivals_per_s, section.hours * 3600)
    count = len(submit_s)
    weights = np.array([model.weight for model in scenario.models])
    model_of = random.choice(len(scenario.models), count, p=weights / weights.sum())
    user = _users(random, count, section.users, section.majority_share)
    urgent = random.random(count) < section.urgent_share
    tables = [_shapes(scenario, model, predict) for model in scenario.models]
    parts = [
        _of_job(random, scenario, scenario.models[m], tables[m]) if section.rigid else tables[m]
        for m in model_of
    ]
    first = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    flat = [entry for part in parts for entry in part]
    kinds = list(scenario.kinds)
    time_s = np.array([found.time_s for _, found in flat])
    watts = np.array([found.power_watts for _, found in flat])
    most = np.array([found.most_watts for _, found in flat])
    error = section.prediction_error
    guess_s = time_s * random.uniform(1 - error, 1 + error, len(flat))
    guess = np.minimum(most, watts * random.uniform(1 - error, 1 + error, len(flat)))
    least_s = np.array([min(found.time_s for _, found in tables[m]) for m in model_of])
    return workload(
        first,
        {
            "submit_s": submit_s,
            "user": user,
            "deadline_s": np.where(urgent, submit_s + section.deadline_factor * least_s, np.nan),
        },
        {
            "hardware": [kinds.index(shape.kind) for shape, _ in flat],
            "units": [shape.gpus for shape, _ in flat],
            "batch": [shape.batch for shape, _ in flat],
            "time_s": guess_s if section.error_is_real else time_s,
            "power_watts": guess if section.error_is_real else watts,
            "predicted_time_s": guess_s,
            "predicted_watts": guess,
        },
        users=tuple(f"user{number}" for number in range(section.users)),
        names=tuple(scenario.models[m].name or scenario.models[m].profile for m in model_of),
    )


def _arrivals(random: np.random.Generator, rate_per_s: float, length_s: float) -> Floats:
    """Return the times of a Poisson process."""
    times: list[Floats] = []
    now_s, block = 0.0, max(16, int(1.2 * rate_per_s * length_s))
    while now_s < length_s:
        times.append(now_s + np.cumsum(random.exponential(1 / rate_per_s, block)))
        now_s = float(times[-1][-1])
    found: Floats = np.concatenate(times)
    return found[found < length_s]


def _users(random: np.random.Generator, count: int, users: int, majority: float) -> np.ndarray:
    """Return the user of each job; the first one has her share of all jobs, the others the rest alike."""
    if not majority or users == 1:
        return random.integers(0, users, count)
    others = random.integers(1, users, count)
    return np.where(random.random(count) < majority, 0, others)


Table = list[tuple[Shape, Predicted]]


def _shapes(scenario: Scenario, model: ModelSection, predict: Predict) -> Table:
    """Return every shape of a model that the cluster could hold, with its prediction."""
    found: Table = []
    for kind, section in scenario.kinds.items():
        for gpus in model.gpus:
            if gpus > section.nodes * section.units:
                continue
            for batch in model.batches:
                answer = predict(model, section.hardware or kind, gpus, batch)
                if answer is not None:
                    found.append((Shape(kind, gpus, batch), answer))
    if not found:
        raise UsageError(
            f"model '{model.profile}'", "fits nowhere in this cluster", "more GPUs or less batch"
        )
    return found


def _of_job(random: np.random.Generator, scenario: Scenario, model: ModelSection, table: Table) -> Table:
    """Return the one shape of a rigid job; its hardware is drawn if the model does not say it."""
    kind = model.rigid_hardware or str(random.choice(list(scenario.kinds)))
    wanted = Shape(kind, model.rigid_gpus, model.rigid_batch)
    match = [entry for entry in table if entry[0] == wanted]
    if not match:
        raise UsageError(
            f"model '{model.profile}'",
            f"its rigid shape ({kind}, {wanted.gpus} GPUs, batch {wanted.batch}) is none of its shapes",
        )
    return match


def rigid(scenario: Scenario) -> Scenario:
    """Return the scenario with every job in its one rigid shape."""
    return replace(scenario, workload=replace(scenario.workload, rigid=True))
