"""The node's power now, by component, from the intervals that the sampler sees. Knows no jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_energy.agent.sampler import Interval
from slurm_energy.devices.interface import EnergyCounter

LEAST_WINDOW_S = 0.5
"""A shorter window would see the steps in which counters are updated rather than power."""
MOST_WINDOW_S = 60.0
"""The mean of a longer interval is not what the node draws now."""


class LivePower:
    """Mean watts by component over the last window of at least `LEAST_WINDOW_S`.

    Attributes:
        window_s: length of that window in seconds; None before the first.
    """

    def __init__(self, counters: Sequence[EnergyCounter]) -> None:
        self._counters = counters
        self._watts: dict[str, float | None] = {}
        self._end = float("-inf")
        self.window_s: float | None = None
        self._restart()

    def add(self, interval: Interval) -> None:
        """Add an interval."""
        for counter in self._counters:
            delta = interval.deltas.get(counter.key)
            known = delta is not None and delta.certain and delta.start >= interval.start
            if delta is None or not known:
                self._unknown.add(counter.component)
            else:
                energy_uj = self._energy_uj.get(counter.component, 0)
                self._energy_uj[counter.component] = energy_uj + delta.energy_uj
        self._length_s += interval.length_s
        if self._length_s >= LEAST_WINDOW_S:
            self._finish(interval.end)

    def watts(self, now: float) -> Mapping[str, float | None]:
        """Return watts by component, None where not known.

        Args:
            now: boot time in seconds; what is older than `MOST_WINDOW_S` is not known.
        """
        if now - self._end > MOST_WINDOW_S:
            return dict.fromkeys((counter.component for counter in self._counters), None)
        return self._watts

    def _finish(self, end: float) -> None:
        length_s = self._length_s
        self._watts = {}
        for counter in self._counters:
            component = counter.component
            unknown = component in self._unknown or length_s > MOST_WINDOW_S
            self._watts[component] = None if unknown else self._energy_uj[component] / 1e6 / length_s
        self._end, self.window_s = end, length_s
        self._restart()

    def _restart(self) -> None:
        self._length_s = 0.0
        self._energy_uj: dict[str, int] = {}
        self._unknown: set[str] = set()
