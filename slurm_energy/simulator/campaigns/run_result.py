"""Simulations of a campaign and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CampaignTask:
    """One simulation of a campaign (the same scenario with several policies and seeds).

    It is given by the name of a scheduling policy and a seed of the random numbers.
    """

    policy: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the file that stores this simulation's result, without the suffix."""
        return f"{self.policy}-{self.seed}"


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of one simulation: totals over all jobs. It contains no data of single jobs.

    Attributes:
        policy: name of the scheduling policy.
        seed: seed of the random numbers.
        summary: totals by name, as `summary` returns them.
        notes: remarks for the user.
    """

    policy: str
    seed: int
    summary: dict[str, Any]
    notes: list[str]
