"""The next run of a synthetic training job with adjusted values: the same work in the model of the loop."""

from __future__ import annotations

import copy
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

Effect = Callable[[JobShape, JobShape], None]
"""True effect of adjusted values: changes the adjusted job (first), given the original one."""


@dataclass(frozen=True, slots=True)
class NextRun:
    """A run with adjusted values.

    Attributes:
        shape: its parameters.
        samples: samples that it processes.
    """

    shape: JobShape
    samples: float


def next_run(
    shape: JobShape,
    values: Mapping[str, int],
    noise: float = 1.0,
    effect: Effect | None = None,
) -> NextRun:
    """Return the run that does the same work with adjusted values.

    Args:
        shape: the job without adjustments.
        values: adjusted values by kind of adjustment.
        noise: factor of the time that the work takes.
        effect: true effect of the values; None: they do what they promise.
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
    if effect is not None:
        effect(adjusted, shape)
    work = _samples(shape)
    work_s = work / _samples_per_s(adjusted) * noise
    adjusted.elapsed_s = adjusted.startup_s + work_s + adjusted.tail_s
    limit_s = 60.0 * values.get("time", float("inf"))
    if adjusted.elapsed_s > limit_s:
        adjusted.elapsed_s, adjusted.state = limit_s, "TIMEOUT"
        adjusted.tail_s = max(0.0, limit_s - adjusted.startup_s - work_s)
        work *= min(1.0, (limit_s - adjusted.startup_s) / work_s)
    return NextRun(adjusted, work)


def observe_run(run: NextRun, random: Random) -> JobObservation:
    """Return what is observed of a run. Its ranks report the samples that it processes."""
    observation = observe(run.shape, random)
    count = len(observation.ranks)
    nodes = tuple(
        replace(node, ranks=tuple(replace(rank, samples=run.samples / count) for rank in node.ranks))
        for node in observation.nodes
    )
    return replace(observation, nodes=nodes)


def training_loop(shape: JobShape) -> Loop:
    """Return the loop of a training job."""
    assert shape.loop is not None, "only training jobs are adjusted"
    return shape.loop


def _samples(shape: JobShape) -> float:
    return (shape.elapsed_s - shape.startup_s - shape.tail_s) * _samples_per_s(shape)


def _samples_per_s(shape: JobShape) -> float:
    """Return the samples per second between start-up and tail."""
    loop = training_loop(shape)
    share = 1.0
    if shape.checkpoint_every_s:
        share = shape.checkpoint_every_s / (shape.checkpoint_every_s + shape.checkpoint_s)
    return loop.batch * loop.ranks / step_times(loop)[0].step * share
