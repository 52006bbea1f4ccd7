"""Model of the next run of a synthetic training job, after its values were adjusted.

The next run does the same work as the original job. Its times come from the model of the training loop.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy_lab.diagnosis_corpus.job_shape import JobShape
from slurm_energy_lab.diagnosis_corpus.observe import observe
from slurm_energy_lab.diagnosis_corpus.training_loop import Loop, step_times

RUN_NOISE: Final = 0.015
"""Relative standard deviation of the time that equal work takes in equal runs."""
_PINNED_BYTES_PER_S: Final = 2e10
_LOCAL_BYTES_PER_S: Final = 5e9
"""Bandwidth of fast storage of a node."""
EPOCHS: Final = 10.0
"""Times that a training reads its data set."""
_GPU_WATTS: Final = 400.0
_GPU_IDLE_WATTS: Final = 60.0
_GPU_MHZ: Final = 1980.0

Effect = Callable[[JobShape, JobShape], None]
"""True effect of adjusted values: changes the adjusted job (first), given the original one."""


@dataclass(frozen=True, slots=True)
class NextRun:
    """The next run of a program, with adjusted values.

    Attributes:
        shape: parameters of the run, such as batch size and number of workers.
        samples: number of training samples that the run processes.
    """

    shape: JobShape
    samples: float


def next_run(
    shape: JobShape,
    values: Mapping[str, int],
    noise: float = 1.0,
    effect: Effect | None = None,
) -> NextRun:
    """Return a simulated next run of a job, with adjusted values and the same work.

    Args:
        shape: parameters of the job without adjustments.
        values: adjusted values by kind of adjustment.
        noise: random factor by which the time of the work is multiplied.
        effect: true effect of the adjusted values; None means the effect that the advice promises.
    """
    adjusted = copy.deepcopy(shape)
    loop = training_loop(adjusted)
    loop.workers = values.get("workers", loop.workers)
    if "cpus-per-task" in values:
        adjusted.cpus = loop.cpus = values["cpus-per-task"] * loop.gpus
    if "batch-size" in values:
        adjusted.gpu_memory_share *= values["batch-size"] / loop.batch
        loop.batch = values["batch-size"]
    if "checkpoint-interval" in values:
        adjusted.checkpoint_every_s = max(1.0, values["checkpoint-interval"] - adjusted.checkpoint_s)
    if values.get("pin-memory"):
        loop.is_pinned, loop.copy_bytes_per_s = True, _PINNED_BYTES_PER_S
    adjusted.gpus = values.get("gpus-per-node", adjusted.gpus)
    loop.accumulation = values.get("accumulation", loop.accumulation)
    loop.is_balanced = bool(values.get("balance", loop.is_balanced))
    if "mem" in values:
        adjusted.memory_stall, loop.storage_bytes_per_s = (
            0.0,
            loop.storage_bytes_per_s / shape.memory_slowdown,
        )
    _set_limits(adjusted, values)
    work = _samples(shape)
    if values.get("stage-data"):
        read_bytes = work * loop.sample_bytes / EPOCHS / loop.nodes
        adjusted.startup_s += read_bytes / loop.storage_bytes_per_s
        loop.storage_bytes_per_s = max(loop.storage_bytes_per_s, _LOCAL_BYTES_PER_S)
    if effect is not None:
        effect(adjusted, shape)
    work_s = work / _samples_per_s(adjusted) * noise
    adjusted.elapsed_s = adjusted.startup_s + work_s + adjusted.tail_s
    limit_s = 60.0 * values.get("time", float("inf"))
    if adjusted.elapsed_s > limit_s:
        adjusted.elapsed_s, adjusted.state = limit_s, "TIMEOUT"
        adjusted.tail_s = max(0.0, limit_s - adjusted.startup_s - work_s)
        work *= min(1.0, (limit_s - adjusted.startup_s) / work_s)
    return NextRun(adjusted, work)


def _set_limits(adjusted: JobShape, values: Mapping[str, int]) -> None:
    """Set the limits of all GPUs.

    If a GPU is at its power limit, its clock is assumed to be proportional to the square root of the
    difference between the limit and the idle power.
    """
    loop, old = training_loop(adjusted), min(adjusted.gpu_clock.values(), default=1.0)
    clock = old
    if "gpu-cap" in values:
        share = values["gpu-cap"] / _GPU_WATTS
        low, high = (one * _GPU_WATTS - _GPU_IDLE_WATTS for one in (adjusted.cap_share, share))
        clock = min(1.0, old * math.sqrt(high / low))
        adjusted.cap_share = share
        adjusted.power_throttled = adjusted.power_throttled if clock < 1 else 0.0
    if "gpu-clock" in values:
        clock = min(1.0, values["gpu-clock"] / _GPU_MHZ)
    if clock != old:
        for rank in range(loop.ranks):
            adjusted.gpu_clock[divmod(rank, loop.gpus)] = loop.clock[rank] = clock


def observe_run(run: NextRun, random: Random) -> JobObservation:
    """Return the observation of a simulated run, as the diagnosis receives it.

    In the observation, the ranks also report the number of samples that they process.
    """
    observation = observe(run.shape, random)
    count = len(observation.ranks)
    nodes = tuple(
        replace(node, ranks=tuple(replace(rank, samples=run.samples / count) for rank in node.ranks))
        for node in observation.nodes
    )
    return replace(observation, nodes=nodes)


def training_loop(shape: JobShape) -> Loop:
    """Return the parameters of the training loop of a synthetic training job."""
    assert shape.loop is not None, "only training jobs are adjusted"
    return shape.loop


def _samples(shape: JobShape) -> float:
    return (shape.elapsed_s - shape.startup_s - shape.tail_s) * _samples_per_s(shape)


def _samples_per_s(shape: JobShape) -> float:
    """Return how many training samples per second a job processes while its training loop runs.

    Time before and after the loop is not included.
    """
    loop = training_loop(shape)
    share = 1.0
    if shape.checkpoint_every_s:
        share = shape.checkpoint_every_s / (shape.checkpoint_every_s + shape.checkpoint_s)
    return loop.batch * loop.ranks / step_times(loop)[0].step * share
