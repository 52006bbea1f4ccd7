"""Clock for the models of virtual nodes.

The agent's clock shows the same time.
"""

from __future__ import annotations

from collections.abc import Callable

from slurm_energy.agent.metering.clock import Clock

_START_S = 1000.0


class ModelClock:
    """Clock in seconds that advances only when `now_s` is set."""

    def __init__(self) -> None:
        self.now_s = _START_S

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


class VirtualClock(Clock):
    """Clock of the agent, which shows the time of a model's clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._now_s = now_s

    def boottime(self) -> float:
        """Return the model time as the number of seconds since boot."""
        return self._now_s()

    def suspended(self) -> float:
        """Return 0, because the node is never suspended."""
        return 0.0

    def unix(self) -> float:
        """Return the model time as Unix seconds."""
        return 1_700_000_000 + self._now_s()
