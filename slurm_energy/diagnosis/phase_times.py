"""Division of the time of one process among categories.

The categories are compute, data, copies, communication, checkpoints, evaluation and idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurm_energy.diagnosis.steps import RankSteps

TIME_CATEGORIES: Final = (
    "compute",
    "data",
    "copy",
    "communication",
    "checkpoint",
    "evaluation",
    "other",
    "idle",
)
_COMPUTE = ("forward", "backward", "optimizer")
_TOLERANCE = 1.02


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Time that a process spent in its iterations and in each category.

    Attributes:
        step_s: time of all iterations, including waits for data.
        seconds: time by category of `TIME_CATEGORIES`; a category that the program does not report is absent.
    """

    step_s: float
    seconds: Mapping[str, float]

    def share(self, category: str) -> float | None:
        """Return the fraction of the time of all iterations that a category takes.

        Return None if the program does not report the category.
        """
        value = self.seconds.get(category)
        return None if value is None or self.step_s <= 0 else value / self.step_s


def phase_times(rank: RankSteps, elapsed_s: float) -> PhaseTimes:
    """Return the times of a process by category.

    A program may report only part of the phases. Compute time is the sum of forward, backward and optimizer.
    If these phases are not reported, compute time is the part of the iterations that belongs to no other
    category.

    Args:
        rank: steps of the process.
        elapsed_s: duration of the job in seconds. Time of the job outside all categories counts as `idle`.
    """
    sums = {name: phase.sum_s for name, phase in rank.phases.items() if phase.count}
    seconds: dict[str, float] = {
        name: sums[name] for name in ("data", "copy", "communication") if name in sums
    }
    waits_s = sum(seconds.values())
    compute_s = sum(sums.get(name, 0.0) for name in _COMPUTE)
    step_s = max(sums.get("step", 0.0), waits_s + compute_s)
    between: dict[str, float] = {name: sums[name] for name in ("checkpoint", "evaluation") if name in sums}
    between_s = sum(between.values())
    is_inside = between_s > 0 and step_s + between_s > elapsed_s * _TOLERANCE
    if is_inside:
        step_s = max(step_s - between_s, waits_s + compute_s)
    rest_s = max(0.0, step_s - waits_s - compute_s)
    if step_s > 0:
        seconds["compute"] = compute_s if compute_s > 0 else rest_s
        seconds["other"] = rest_s if compute_s > 0 else 0.0
    seconds |= between
    seconds["idle"] = max(0.0, elapsed_s - step_s - between_s)
    return PhaseTimes(step_s, seconds)
