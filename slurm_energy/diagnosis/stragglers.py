"""The straggler rule: a task is a straggler if it takes much longer than the median of its job's tasks."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_energy.diagnosis.distribution import median


def stragglers(durations_s: Sequence[float], ratio: float) -> list[int]:
    """Return the indices of unusually slow tasks (stragglers).

    A task is a straggler if its duration exceeds `ratio` times the median.

    Args:
        durations_s: duration of each task. If the tasks differ in their amount of work, it is the duration
            per unit of work.
        ratio: threshold relative to the median, above 1. Ravikumar and Sriraman use 1.3.
    """
    middle = median(durations_s)
    if middle is None or middle <= 0:
        return []
    return [index for index, duration in enumerate(durations_s) if duration > ratio * middle]
