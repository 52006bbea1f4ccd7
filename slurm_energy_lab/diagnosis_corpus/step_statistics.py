"""Step statistics of a synthetic training job, computed from noisy simulated steps."""

from __future__ import annotations

import math
from array import array
from random import Random

from slurm_energy.diagnosis.steps import PhaseStatistics, RankSteps, StepIntervals, StepOutlier
from slurm_energy_lab.diagnosis_corpus.job_shape import JobShape
from slurm_energy_lab.diagnosis_corpus.training_loop import Loop, RankStep, step_times

_SIMULATED = 300
_STAGES = ("data", "copy", "forward", "backward", "optimizer", "communication")


def rank_steps(
    shape: JobShape, node: int, name: str, start_s: float, random: Random
) -> tuple[RankSteps, ...]:
    """Return the step statistics of the ranks on one node."""
    loop = shape.loop
    assert loop is not None, "only training jobs report steps"
    steps = step_times(loop)
    first = node * loop.gpus
    return tuple(
        _one_rank(shape, steps[rank], rank, name, start_s, random) for rank in range(first, first + loop.gpus)
    )


def _one_rank(
    shape: JobShape, mean: RankStep, rank: int, node: str, start_s: float, random: Random
) -> RankSteps:
    loop = shape.loop
    assert loop is not None, "only training jobs report steps"
    window_s = max(mean.step, shape.elapsed_s - shape.startup_s - shape.tail_s)
    pause = 0.0
    if shape.checkpoint_every_s:
        pause = shape.checkpoint_s / (shape.checkpoint_every_s + shape.checkpoint_s)
    slow = 1 + (shape.outlier_factor - 1) / shape.outlier_every if shape.outlier_every else 1.0
    total = max(1, round(window_s * (1 - pause) / (mean.step * slow)))
    weight = math.ceil(total / _SIMULATED)
    simulated = max(1, round(total / weight))
    durations: dict[str, list[float]] = {stage: [] for stage in _STAGES}
    outliers: list[StepOutlier] = []
    for index in range(simulated):
        factor = shape.outlier_factor if shape.outlier_every and index % shape.outlier_every == 7 else 1.0
        for stage in _STAGES:
            value = getattr(mean, stage) * max(0.3, random.gauss(1.0, loop.jitter))
            durations[stage].append(value)
        if factor > 1:
            durations["forward"][-1] += (factor - 1) * mean.step
            at_s = start_s + shape.startup_s + window_s * index / simulated
            outliers.append(StepOutlier(at_s, factor * mean.step, mean.step, "forward"))
    whole = [sum(values) for values in zip(*durations.values(), strict=True)]
    if "communication" in shape.hide_phases:  # communication then overlaps with the backward pass
        waits = zip(durations["backward"], durations["communication"], strict=True)
        durations["backward"] = [sum(pair) for pair in waits]
    phases = {stage: _repeated(values, weight) for stage, values in durations.items()}
    phases["step"] = _repeated(whole, weight)
    if shape.checkpoint_every_s:
        period = shape.checkpoint_every_s + shape.checkpoint_s
        count = max(1, int(window_s / period))
        phases["checkpoint"] = PhaseStatistics.of(
            [shape.checkpoint_s * random.gauss(1.0, 0.05) for _ in range(min(count, 2000))]
        )
    kept = {name: phase for name, phase in phases.items() if name not in shape.hide_phases}
    gpu = rank % loop.gpus if shape.gpus else None
    return RankSteps(
        node=node,
        rank=rank,
        gpu=gpu,
        pid=1000 + rank,
        phases=kept,
        samples=float(simulated * weight * loop.batch),
        outlier_count=len(outliers) * weight,
        outlier_excess_s=(shape.outlier_factor - 1) * mean.step * len(outliers) * weight,
        outliers=tuple(outliers[:64]),
        intervals=_intervals(start_s + shape.startup_s, window_s, simulated * weight, mean),
        hints=_hints(loop),
    )


def _hints(loop: Loop) -> dict[str, int]:
    hints = {"batch_size": loop.batch, "num_workers": loop.workers, "world_size": loop.ranks}
    return hints if loop.is_pinned is None else hints | {"pin_memory": loop.is_pinned}


def _repeated(values: list[float], weight: int) -> PhaseStatistics:
    one = PhaseStatistics.of(values)
    histogram = {number: count * weight for number, count in one.histogram.items()}
    return PhaseStatistics(one.count * weight, one.sum_s * weight, one.sum_squares_s2 * weight, histogram)


def _intervals(start_s: float, window_s: float, steps: int, mean: RankStep) -> StepIntervals:
    points = 100
    per_interval = steps / points
    return StepIntervals(
        start_s,
        max(window_s / points, 0.001),
        array("d", [per_interval] * points),
        array("d", [per_interval * mean.step] * points),
        array("d", [per_interval * mean.data] * points),
    )
