"""Adds up intervals for one job or step: energy per counter, uncertain time, peaks, time above caps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.agent.sampler import Interval

_CLOCK_SLACK_S = 1e-6
_CAP_TOLERANCE = 1.02
"""A regulator holds the mean around its limit, so up to 2 % above the cap counts as at the cap."""
_ALMOST = 0.95  # a timer that fires a little early still ends a window


@dataclass(slots=True)
class Meter:
    """Energy from `start` (boot time) on, as raw microjoules by counter key.

    Attributes:
        uncertain: keys of counters that were unreadable or may have wrapped unseen in some interval.
        uncertain_s: seconds of all such intervals.
        throttled_s: seconds of throttling; None as long as no sensor was read.
        elapsed_s: seconds added up.
    """

    start: float
    energy_uj: dict[str, int] = field(default_factory=dict)
    uncertain: list[str] = field(default_factory=list)
    uncertain_s: float = 0.0
    throttled_s: float | None = None
    elapsed_s: float = 0.0

    def add(self, interval: Interval, keys: Iterable[str], components: Iterable[str]) -> dict[str, int]:
        """Add an interval for the given counters and throttle components.

        Returns:
            Microjoules of this interval by counter key, unknown ones left out.
        """
        added: dict[str, int] = {}
        doubtful: set[str] = set()
        for key in keys:
            delta = interval.deltas.get(key)
            if delta is None:  # not due unless it is said to be unknown
                doubtful.update({key} & interval.unknown)
                continue
            if delta.start < self.start - _CLOCK_SLACK_S:
                doubtful.add(key)
                continue
            added[key] = delta.energy_uj
            self.energy_uj[key] = self.energy_uj.get(key, 0) + delta.energy_uj
            if not delta.certain:
                doubtful.add(key)
        if doubtful:
            self.uncertain = sorted(doubtful.union(self.uncertain))
            self.uncertain_s += interval.length_s
        throttled = [interval.throttled_s[c] for c in components if c in interval.throttled_s]
        if throttled:
            self.throttled_s = (self.throttled_s or 0.0) + max(throttled)
        self.elapsed_s += interval.length_s
        return added

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON-ready data; `Meter(**data)` reads it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class PowerWatch:
    """Mean power over windows of at least `window_s`: the peak, and the time above caps.

    A window shorter than a second would see the steps in which counters are updated rather than power.

    Attributes:
        cap_watts: cap of all components together; None for none.
        gpu_cap_watts: cap of each GPU; None for none.
        peak_watts: highest mean of a window so far.
        above_cap_s: seconds of windows above a cap; None without caps.
        watts: mean of the last window by component.
    """

    window_s: float
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None
    peak_watts: float | None = None
    above_cap_s: float | None = None
    watts: dict[str, float] = field(default_factory=dict)
    length_s: float = 0.0
    joules: dict[str, float] = field(default_factory=dict)

    def add(self, length_s: float, joules: Mapping[str, float]) -> None:
        """Add an interval's energy by component; ends the window when it is long enough."""
        self.length_s += length_s
        for name, energy in joules.items():
            self.joules[name] = self.joules.get(name, 0.0) + energy
        if self.length_s >= _ALMOST * self.window_s:
            self.finish()

    def finish(self) -> None:
        """End the window; one shorter than `window_s`, at the end of a job, is a peak only if it is alone."""
        if self.length_s <= 0:
            return
        whole = self.length_s >= _ALMOST * self.window_s
        means = {name: energy / self.length_s for name, energy in self.joules.items()}
        total = math.fsum(means.values())
        if means and (whole or self.peak_watts is None):
            self.peak_watts = max(total, self.peak_watts or 0.0)
            self.watts = means
        if self.cap_watts is not None or self.gpu_cap_watts is not None:
            above_s = self.length_s if self._above(means, total) else 0.0
            self.above_cap_s = (self.above_cap_s or 0.0) + above_s
        self.length_s, self.joules = 0.0, {}

    def reset(self) -> None:
        """Forget everything but window and caps."""
        self.peak_watts = self.above_cap_s = None
        self.watts, self.joules, self.length_s = {}, {}, 0.0

    def _above(self, means: Mapping[str, float], total: float) -> bool:
        gpus = [watts for name, watts in means.items() if name.startswith("gpu")]
        over_node = self.cap_watts is not None and total > self.cap_watts * _CAP_TOLERANCE
        over_gpu = self.gpu_cap_watts is not None and any(
            watts > self.gpu_cap_watts * _CAP_TOLERANCE for watts in gpus
        )
        return over_node or over_gpu

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON-ready data; `PowerWatch(**data)` reads it."""
        return {name: getattr(self, name) for name in self.__slots__}
