"""The energy of one job: sums of its charges, uncertain time, peak power, time above caps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.agent.metering.attribution import OTHER

_CAP_TOLERANCE = 1.02
"""A regulator holds the mean around its limit, so up to 2 % above the cap counts as at the cap."""
_ALMOST = 0.95  # a window still ends if the timer fires slightly early
_MAX_TIMING_UNCERTAINTY = 0.01
"""Maximum timing uncertainty of a window, as share of its length.

Without it the highest mean of many windows would be that of a window that ended late."""


@dataclass(frozen=True, slots=True)
class Charge:
    """The energy that one interval adds to one job.

    Attributes:
        start, end: boot time of the interval in seconds.
        energy_uj: microjoules by component, of the components charged now.
        since: boot time from which on a component's energy is charged, where it is not `start`.
        waiting: components whose energy of this interval will be charged later.
        component_uncertain_s: seconds by component with a possibly missed wrap or reset, or without a
            reading.
        assumed: components whose energy is partly other jobs', so that the job's part is an assumption.
        throttled_s: seconds of throttling by component.
        timing_uncertainty_s: uncertainty of `end`.
    """

    start: float
    end: float
    energy_uj: Mapping[str, int]
    since: Mapping[str, float] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()
    component_uncertain_s: Mapping[str, float] = field(default_factory=dict)
    assumed: frozenset[str] = frozenset()
    throttled_s: Mapping[str, float] = field(default_factory=dict)
    timing_uncertainty_s: float = 0.0

    @property
    def length_s(self) -> float:
        """Seconds from start to end."""
        return self.end - self.start


@dataclass(slots=True)
class JobMeter:
    """Energy of a job since `start` (boot time), in microjoules by component.

    Attributes:
        component_uncertain_s: seconds by component that may lack energy.
        assumed_s: seconds by component in which the job's part is an assumption.
        uncertain_s: the largest value of `component_uncertain_s`. Components are charged at different times,
            so a sum would count the same seconds several times.
        throttled_s: seconds of throttling; None until a sensor was read.
        elapsed_s: charged seconds.
    """

    start: float
    energy_uj: dict[str, int] = field(default_factory=dict)
    component_uncertain_s: dict[str, float] = field(default_factory=dict)
    assumed_s: dict[str, float] = field(default_factory=dict)
    uncertain_s: float = 0.0
    throttled_s: float | None = None
    elapsed_s: float = 0.0

    def add(self, charge: Charge, components: Iterable[str]) -> None:
        """Add a charge, limited to the components that count."""
        counted = set(components)
        total = self.energy_uj
        for name, energy in charge.energy_uj.items():
            if name in counted:
                total[name] = total.get(name, 0) + energy
        if charge.component_uncertain_s:
            self.add_uncertain(
                {name: seconds for name, seconds in charge.component_uncertain_s.items() if name in counted}
            )
        for name in charge.assumed & counted:
            length_s = charge.end - charge.since.get(name, charge.start)
            self.assumed_s[name] = self.assumed_s.get(name, 0.0) + length_s
        throttled = [seconds for name, seconds in charge.throttled_s.items() if name in counted]
        if throttled:
            self.throttled_s = (self.throttled_s or 0.0) + max(throttled)
        self.elapsed_s += charge.length_s

    def add_uncertain(self, seconds: Mapping[str, float]) -> None:
        """Add seconds by component that may lack energy."""
        for name, length_s in seconds.items():
            self.component_uncertain_s[name] = self.component_uncertain_s.get(name, 0.0) + length_s
        self.uncertain_s = max(self.component_uncertain_s.values(), default=0.0)

    def copy(self) -> JobMeter:
        """Return a copy of the current state, for `since`."""
        return JobMeter(**_copied(self.dump()))

    def since(self, earlier: JobMeter) -> JobMeter:
        """Return the energy added since `earlier` was copied."""
        throttled = None if self.throttled_s is None else self.throttled_s - (earlier.throttled_s or 0.0)
        component_uncertain_s = _grown(self.component_uncertain_s, earlier.component_uncertain_s)
        return JobMeter(
            start=earlier.start + earlier.elapsed_s,
            energy_uj={name: uj - earlier.energy_uj.get(name, 0) for name, uj in self.energy_uj.items()},
            component_uncertain_s=component_uncertain_s,
            assumed_s=_grown(self.assumed_s, earlier.assumed_s),
            uncertain_s=max(component_uncertain_s.values(), default=0.0),
            throttled_s=throttled,
            elapsed_s=self.elapsed_s - earlier.elapsed_s,
        )

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON-ready data; `JobMeter(**data)` reads it."""
        return {name: getattr(self, name) for name in self.__slots__}


def _copied(data: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, dict) else value for name, value in data.items()}


def _grown(now: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    return {name: more for name, value in now.items() if (more := value - earlier.get(name, 0.0)) > 0}


@dataclass(slots=True)
class PowerMonitor:
    """Mean power over windows of at least `window_s`: peak, and time above caps.

    A window shorter than a second would show the update steps of the counters instead of power. A window that
    ends with delayed readings would contain the energy of more time than its own.

    Attributes:
        cap_watts: cap of all components that can be limited, so without `other`; None without a cap.
        gpu_cap_watts: cap of each GPU; None without a cap.
        peak_watts: highest mean of a window so far, without `other`. The node meter is slower than the
            counters of the components, so `other` oscillates whenever their power changes.
        above_cap_s: seconds of windows above a cap; None without caps.
        watts: mean of the last window by component.
        length_s, joules, covered_s: the open window: length, energy by component, seconds of that energy.
        timing_uncertainty_s: uncertainty of the end of the last interval.
    """

    window_s: float
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None
    peak_watts: float | None = None
    above_cap_s: float | None = None
    watts: dict[str, float] = field(default_factory=dict)
    length_s: float = 0.0
    joules: dict[str, float] = field(default_factory=dict)
    covered_s: dict[str, float] = field(default_factory=dict)
    timing_uncertainty_s: float = 0.0

    def add(
        self,
        length_s: float,
        joules: Mapping[str, float],
        lengths_s: Mapping[str, float] | None = None,
        waiting: Iterable[str] = (),
        timing_uncertainty_s: float = 0.0,
    ) -> None:
        """Add an interval's energy; end the window once it is long enough and its end is certain enough.

        Args:
            length_s: length of the interval.
            joules: energy by component.
            lengths_s: seconds that a component's energy covers, where they are not `length_s`.
            waiting: components whose energy comes later; their last power holds until then.
            timing_uncertainty_s: uncertainty of the end of the interval.
        """
        self.timing_uncertainty_s = timing_uncertainty_s
        self.length_s += length_s
        for name, energy in joules.items():
            self.joules[name] = self.joules.get(name, 0.0) + energy
            covered_s = (lengths_s or {}).get(name, length_s)
            self.covered_s[name] = self.covered_s.get(name, 0.0) + covered_s
        for name in waiting:
            self.covered_s.setdefault(name, 0.0)
        if self._is_whole():
            self.finish()

    def finish(self) -> None:
        """End the window. At the end of a job a shorter window is a peak only if it is the only window."""
        if self.length_s <= 0:
            return
        whole = self._is_whole()
        means = {name: watts for name in self.covered_s if (watts := self._mean(name)) is not None}
        if means and (whole or self.peak_watts is None):
            self.peak_watts = max(_fast_watts(means), self.peak_watts or 0.0)
            self.watts = means
        if self.cap_watts is not None or self.gpu_cap_watts is not None:
            above_s = self.length_s if self._is_sharp() and self._above(means) else 0.0
            self.above_cap_s = (self.above_cap_s or 0.0) + above_s
        self.length_s, self.joules, self.covered_s = 0.0, {}, {}

    def reset(self) -> None:
        """Drop everything except window length and caps."""
        self.peak_watts = self.above_cap_s = None
        self.watts, self.joules, self.covered_s, self.length_s = {}, {}, {}, 0.0

    def _is_whole(self) -> bool:
        return self.length_s >= _ALMOST * self.window_s and self._is_sharp()

    def _is_sharp(self) -> bool:
        return self.timing_uncertainty_s <= _MAX_TIMING_UNCERTAINTY * self.length_s

    def _mean(self, name: str) -> float | None:
        covered_s = self.covered_s[name]
        return self.joules[name] / covered_s if covered_s > 0 else self.watts.get(name)

    def _above(self, means: Mapping[str, float]) -> bool:
        total = _fast_watts(means)
        gpus = [watts for name, watts in means.items() if name.startswith("gpu")]
        over_node = self.cap_watts is not None and total > self.cap_watts * _CAP_TOLERANCE
        over_gpu = self.gpu_cap_watts is not None and any(
            watts > self.gpu_cap_watts * _CAP_TOLERANCE for watts in gpus
        )
        return over_node or over_gpu

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON-ready data; `PowerMonitor(**data)` reads it."""
        return {name: getattr(self, name) for name in self.__slots__}


def _fast_watts(means: Mapping[str, float]) -> float:
    """Return the power of all components except `other`."""
    return math.fsum(watts for name, watts in means.items() if name != OTHER)
