"""Objectives of tuning: energy, EDP or ED2P, with an optional slowdown limit.

An objective defines the cost of a setting as a function of relative time and power.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UsageError

TIME_EXPONENTS: Final = {"energy": 1, "edp": 2, "ed2p": 3}
"""Exponent of the relative time by objective. Energy is time times power; each delay is one more factor."""


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective with its slowdown limit.

    Attributes:
        name: `edp` (energy-delay product), `ed2p` (energy times the square of the delay) or `energy`.
        slowdown_limit: maximum increase of the job's time relative to the untuned job, for example 0.05
            for 5 %; None for no limit.
    """

    name: str
    slowdown_limit: float | None = None

    def __post_init__(self) -> None:
        """Check that the objective is known and that the slowdown limit is not negative.

        Raises:
            UsageError: the objective is unknown, or the limit is negative.
        """
        if self.name not in TIME_EXPONENTS:
            raise UsageError(f"objective '{self.name}' is not one of {', '.join(TIME_EXPONENTS)}")
        if self.slowdown_limit is not None and not self.slowdown_limit >= 0:
            raise UsageError(f"slowdown limit {self.slowdown_limit} is negative")

    def cost(self, time_ratio: float, power_ratio: float) -> float:
        """Return the cost: the objective relative to its value for the untuned job. Lower is better.

        Args:
            time_ratio: time divided by the time of the untuned job.
            power_ratio: mean power divided by the mean power of the untuned job.
        """
        return power_ratio * time_ratio ** TIME_EXPONENTS[self.name]

    def allows(self, time_ratio: float) -> bool:
        """Return whether a time, relative to the untuned job, is within the slowdown limit."""
        return self.slowdown_limit is None or time_ratio <= 1.0 + self.slowdown_limit
