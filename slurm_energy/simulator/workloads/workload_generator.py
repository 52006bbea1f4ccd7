"""Random workloads of jobs that train neural networks: arrivals, users, deadlines and predictions.

Source: thesis, 5.3.2.2 and 5.5.1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.scheduling.queue import Floats
from slurm_energy.simulator.scenario import Scenario
from slurm_energy.simulator.scenario_schema import ModelSection
from slurm_energy.simulator.workloads.workload import REQUEST_COLUMNS, REQUEST_NAMES, Workload, workload


@dataclass(frozen=True, slots=True)
class ShapePrediction:
    """Predicted time and power of training one model in one shape.

    A shape states the kind of nodes, the number of GPUs, the batch size and the power cap. The prediction
    comes from the predictor (oracle).

    Attributes:
        time_s: time of the whole training in seconds.
        power_watts: power of all GPUs together.
        max_watts: maximum power of all GPUs together (thermal design power or cap).
    """

    time_s: float
    power_watts: float
    max_watts: float


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One way to train a model.

    A shape states the kind of nodes, the number of GPUs, the batch size, and the power cap per GPU in watts.
    """

    kind: str
    gpus: int
    batch: int
    cap_watts: float = math.inf


Predict = Callable[[ModelSection, str, int, int, float], ShapePrediction | None]
"""Function from (model, hardware name in the oracle, GPUs, batch, power cap per GPU in watts or infinity) to
the prediction; None if the model cannot run in that shape.
"""


Table = list[tuple[ModelShape, ShapePrediction]]
"""The shapes of a model with their predictions."""


def generate(scenario: Scenario, seed: int, predict: Predict, trace: Workload | None = None) -> Workload:
    """Return a random workload. The jobs depend only on the arguments, not on the scheduling policy.

    A shape is a number and kind of GPUs with which a job can run.

    Args:
        scenario: a scenario with models.
        seed: seed of the random numbers.
        predict: predictor (oracle) of time and power of each model in each shape.
        trace: workload from a file that gives submission times, users and run times. If None, these values
            are drawn at random as the scenario states.

    Raises:
        UsageError: a model fits in no shape on this cluster.
    """
    section = scenario.workload
    random = np.random.default_rng(seed)
    if trace is None:
        submit_s = _arrivals(random, section.arrivals_per_s, section.hours * 3600)
    else:
        submit_s = trace.submit_s
    count = len(submit_s)
    weights = np.array([model.weight for model in scenario.models])
    model_of = random.choice(len(scenario.models), count, p=weights / weights.sum())
    user = _users(random, count, section.users, section.majority_share) if trace is None else trace.user
    urgent = random.random(count) < section.urgent_share
    tables = [_shapes(scenario, model, predict) for model in scenario.models]
    scale = np.ones(count) if trace is None else _scale(scenario, tables, model_of, trace)
    chosen = [
        _rigid_shapes(model, table) if section.rigid else table
        for model, table in zip(scenario.models, tables, strict=True)
    ]
    shortest_s = (
        np.array([min(prediction.time_s for _, prediction in table) for table in tables])[model_of] * scale
    )
    return workload(
        np.concatenate([[0], np.cumsum([len(chosen[m]) for m in model_of])]).astype(np.int64),
        {
            "submit_s": submit_s,
            "user": user,
            "deadline_s": np.where(urgent, submit_s + section.deadline_factor * shortest_s, np.nan),
            **({} if trace is None else {name: getattr(trace, name) for name in REQUEST_COLUMNS}),
        },
        _columns(scenario, random, [chosen[m] for m in model_of], scale),
        users=tuple(f"user{n}" for n in range(section.users)) if trace is None else trace.users,
        names=tuple(scenario.models[m].name or scenario.models[m].profile for m in model_of),
        **({} if trace is None else {name: getattr(trace, name) for name in REQUEST_NAMES}),
    )


def _columns(
    scenario: Scenario, random: np.random.Generator, parts: list[Table], scale: Floats
) -> dict[str, Any]:
    """Return the columns of the table of shapes (possible sets of resources) of all jobs.

    The columns are the size, the predicted and real time, and the predicted and real power. Each job
    trains a neural network.

    Args:
        scenario: the scenario.
        random: source of the random prediction errors.
        parts: for each job, the shapes in which its network can be trained, with predictions for one
            training of the network.
        scale: for each job, its run time divided by the time of this training.
    """
    section, kinds = scenario.workload, list(scenario.kinds)
    flat = [entry for part in parts for entry in part]
    time_s = np.array([prediction.time_s for _, prediction in flat]) * np.repeat(
        scale, [len(part) for part in parts]
    )
    watts = np.array([prediction.power_watts for _, prediction in flat])
    max_watts = np.array([prediction.max_watts for _, prediction in flat])
    error = section.prediction_error
    predicted_s = time_s * random.uniform(1 - error, 1 + error, len(flat))
    predicted_watts = np.minimum(max_watts, watts * random.uniform(1 - error, 1 + error, len(flat)))
    return {
        "hardware": [kinds.index(shape.kind) for shape, _ in flat],
        "units": [shape.gpus for shape, _ in flat],
        "batch": [shape.batch for shape, _ in flat],
        "cap_watts": [math.nan if math.isinf(shape.cap_watts) else shape.cap_watts for shape, _ in flat],
        "time_s": predicted_s if section.error_is_real else time_s,
        "power_watts": predicted_watts if section.error_is_real else watts,
        "predicted_time_s": predicted_s,
        "predicted_watts": predicted_watts,
    }


def _scale(scenario: Scenario, tables: list[Table], model_of: np.ndarray, trace: Workload) -> Floats:
    """Return by which factor each job of a trace is longer than a run of its model, shape (n,).

    A model is a training job whose run time is predicted. The factor is the run time in the trace divided by
    the predicted run time. The run time in the trace is assumed to be measured on the first kind of nodes on
    which the model runs, with the model's fixed (rigid) batch size and the job's number of GPUs. If the
    model cannot run on this number of GPUs, the next smaller possible number is assumed.
    """
    units = trace.units[trace.first[:-1]]
    lengths: Floats = np.empty(trace.count)
    for number, (model, table) in enumerate(zip(scenario.models, tables, strict=True)):
        kind = table[0][0].kind
        times_s = {
            shape.gpus: prediction.time_s
            for shape, prediction in table
            if (shape.kind, shape.batch) == (kind, model.rigid_batch) and math.isinf(shape.cap_watts)
        }
        if not times_s:
            raise UsageError(f"model '{model.profile}'", f"has no shape with its rigid batch on {kind}")
        options = np.array(sorted(times_s))
        rows = np.flatnonzero(model_of == number)
        nearest = options[np.maximum(0, np.searchsorted(options, units[rows], "right") - 1)]
        reference_s = np.array([times_s[gpus] for gpus in nearest.tolist()])
        lengths[rows] = trace.time_s[trace.first[:-1]][rows] / reference_s
    return lengths


def _arrivals(random: np.random.Generator, rate_per_s: float, length_s: float) -> Floats:
    """Return arrival times of a Poisson process, in seconds from 0 to `length_s`."""
    times: list[Floats] = []
    now_s, block = 0.0, max(16, int(1.2 * rate_per_s * length_s))
    while now_s < length_s:
        times.append(now_s + np.cumsum(random.exponential(1 / rate_per_s, block)))
        now_s = float(times[-1][-1])
    arrivals: Floats = np.concatenate(times)
    return arrivals[arrivals < length_s]


def _users(random: np.random.Generator, count: int, users: int, majority: float) -> np.ndarray:
    """Return a random user number for each job.

    Args:
        random: source of the random numbers.
        count: number of jobs.
        users: number of users.
        majority: probability that a job belongs to the first user. All further users are equally likely. With
            0, all users are equally likely.
    """
    if not majority or users == 1:
        return random.integers(0, users, count)
    others = random.integers(1, users, count)
    return np.where(random.random(count) < majority, 0, others)


def _shapes(scenario: Scenario, model: ModelSection, predict: Predict) -> Table:
    """Return all shapes in which a training model can run on the cluster, each with its prediction.

    A shape is a kind and number of GPUs with a batch size and a power cap.
    """
    table: Table = []
    for kind, section in scenario.kinds.items():
        for gpus in model.gpus:
            if gpus > section.nodes * section.units:
                continue
            for batch, cap_watts in itertools.product(model.batches, [math.inf, *model.caps_watts]):
                shape = ModelShape(kind, gpus, batch, cap_watts)
                prediction = _predicted(scenario, model, shape, predict)
                if prediction is not None:
                    table.append((shape, prediction))
    if not table:
        raise UsageError(
            f"model '{model.profile}'",
            "fits in no shape on this cluster",
            "add GPUs or reduce its batch sizes",
        )
    return table


def _predicted(
    scenario: Scenario, model: ModelSection, shape: ModelShape, predict: Predict
) -> ShapePrediction | None:
    """Return the predicted time and power of a model in a shape; None if it cannot run in the shape.

    A shape is a number of GPUs with a batch size and a power cap. The prediction comes from the predictor
    (oracle). If the scenario states a speed-up per doubling of GPUs, this speed-up replaces the predicted
    one. The time that the shape then takes beyond perfect scaling from one GPU counts as communication.
    During communication, a GPU draws the fraction `communication_power` of its power during computation.
    """
    hardware = scenario.kinds[shape.kind].hardware or shape.kind
    answer = predict(model, hardware, shape.gpus, shape.batch, shape.cap_watts)
    section = scenario.workload
    if not section.speedup_per_doubling or answer is None:
        return answer
    max_gpus = max(model.gpus)
    on_max = predict(model, hardware, max_gpus, shape.batch, shape.cap_watts)
    if on_max is None:
        return None
    working_share = (section.speedup_per_doubling / 2) ** math.log2(shape.gpus)
    power_share = working_share + (1 - working_share) * section.communication_power
    return replace(
        answer,
        time_s=on_max.time_s * section.speedup_per_doubling ** math.log2(max_gpus / shape.gpus),
        power_watts=answer.power_watts * power_share,
    )


def _rigid_shapes(model: ModelSection, table: Table) -> Table:
    """Select the shapes of jobs that have a fixed number of GPUs and a fixed batch size.

    A shape is a way to run a training job. The scenario states the two fixed values for each model. Only
    shapes without a power cap are selected. If the model requires a kind of nodes, the shapes must have this
    kind.
    """
    match = [
        (shape, prediction)
        for shape, prediction in table
        if (shape.gpus, shape.batch) == (model.rigid_gpus, model.rigid_batch)
        and math.isinf(shape.cap_watts)
        and model.rigid_hardware in ("", shape.kind)
    ]
    if not match:
        wanted = f"{model.rigid_gpus} GPUs, batch {model.rigid_batch}"
        raise UsageError(f"model '{model.profile}'", f"its rigid shape ({wanted}) is none of its shapes")
    return match


def rigid(scenario: Scenario) -> Scenario:
    """Return a copy of the scenario in which all jobs have a fixed number of GPUs and a fixed batch size."""
    return replace(scenario, workload=replace(scenario.workload, rigid=True))
