"""Healthy synthetic jobs of several kinds, for which the diagnosis must report no findings."""

from __future__ import annotations

from random import Random
from typing import Final

from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy_lab.diagnosis_corpus.job_shape import JobShape
from slurm_energy_lab.diagnosis_corpus.observe import observe
from slurm_energy_lab.diagnosis_corpus.patterns import (
    bursts,
    cpu_job,
    debugging_session,
    inference_service,
    large_memory_job,
)
from slurm_energy_lab.diagnosis_corpus.planted import PlantedJob, training_job


def _training(random: Random, *, steps: bool = True, gpm: bool = True, min_ranks: int = 1) -> JobObservation:
    shape = training_job(random, min_ranks=min_ranks)
    shape.has_steps, shape.has_gpm = steps, gpm
    return observe(shape, random)


def _hidden_communication(random: Random) -> JobObservation:
    """Return a job whose communication is not reported, because it overlaps with the backward pass."""
    shape = training_job(random, min_ranks=4)
    shape.hide_phases = ("communication",)
    return observe(shape, random)


def _short(random: Random) -> JobObservation:
    shape = training_job(random)
    shape.elapsed_s, shape.startup_s = random.uniform(30, 300), random.uniform(10, 25)
    return observe(shape, random)


def _capped(random: Random) -> JobObservation:
    """Return a job with a moderate power limit, such as an energy policy would set."""
    shape = training_job(random)
    assert shape.loop is not None
    clock = random.uniform(0.82, 0.93)
    shape.cap_share, shape.power_throttled = random.uniform(0.65, 0.8), random.uniform(0.5, 0.95)
    for rank in range(shape.loop.ranks):
        shape.gpu_clock[divmod(rank, shape.loop.gpus)] = shape.loop.clock[rank] = clock
    return observe(shape, random)


def _checkpointing(random: Random) -> JobObservation:
    """Return an example job that writes checkpoints rarely.

    With a probability of one half, the job reports its training steps.
    """
    shape = training_job(random)
    shape.checkpoint_s = random.uniform(5, 30)
    shape.checkpoint_every_s = shape.checkpoint_s * random.uniform(30, 80)
    shape.has_steps = random.random() < 0.5
    return observe(shape, random)


def _staged(random: Random) -> JobObservation:
    """Return a job that copies and unpacks its data for some minutes before the training starts."""
    shape = training_job(random)
    shape.startup_s = random.uniform(300, 1200)
    shape.elapsed_s += shape.startup_s
    shape.has_steps = random.random() < 0.5
    return observe(shape, random)


def _power_only(random: Random) -> JobObservation:
    shape = training_job(random)
    shape.has_steps = shape.has_signals = False
    return observe(shape, random)


def _reserved_memory(random: Random) -> JobObservation:
    shape: JobShape = training_job(random)
    shape.gpu_memory_share = random.uniform(0.92, 0.99)
    return observe(shape, random)


HEALTHY: Final[tuple[PlantedJob, ...]] = (
    PlantedJob("training", None, _training),
    PlantedJob("training-no-steps", None, lambda r: _training(r, steps=False)),
    PlantedJob("training-no-steps-no-gpm", None, lambda r: _training(r, steps=False, gpm=False)),
    PlantedJob("training-on-many-gpus", None, lambda r: _training(r, min_ranks=8)),
    PlantedJob("training-hidden-communication", None, _hidden_communication),
    PlantedJob("training-with-reserved-memory", None, _reserved_memory),
    PlantedJob("training-with-checkpoints", None, _checkpointing),
    PlantedJob("training-after-staging", None, _staged),
    PlantedJob("training-under-a-limit", None, _capped),
    PlantedJob("training-power-only", None, _power_only),
    PlantedJob("short-job", None, _short),
    PlantedJob("inference-service", None, inference_service),
    PlantedJob("cpu-program", None, cpu_job),
    PlantedJob("large-memory-job", None, large_memory_job),
    PlantedJob("debugging-session", None, debugging_session),
    PlantedJob("bursts", None, bursts),
)
"""All kinds of healthy jobs."""
