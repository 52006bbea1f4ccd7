"""Energy meter of one job.

The meter adds up the energy that is charged to the job, and the time in which the energy is uncertain. The
module also determines the job's peak power and the time above its power caps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from slurm_energy.agent.metering.attribution import OTHER

_CAP_TOLERANCE = 1.02
"""A regulator holds the mean around its limit, so up to 2 % above the cap counts as at the cap."""
_ALMOST = 0.95  # a window still ends if the timer fires slightly early
_MAX_TIMING_UNCERTAINTY = 0.01
"""Maximum timing uncertainty of a window, as a fraction of its length.

Without this limit, a window whose true length is longer than recorded would have the highest mean."""


@dataclass(frozen=True, slots=True)
class Charge:
    """The energy that is charged to one job for one sample interval.

    Attributes:
        start, end: times of the interval, in seconds since boot.
        energy_uj: microjoules of each component that are charged now.
        since: start of the charged time in seconds since boot, by component. The dict contains only
            components whose charged time starts before `start`.
        waiting: components whose energy of this interval will be charged later.
        component_uncertain_s: seconds by component in which the counter could not be read, or may have
            wrapped or been reset unnoticed.
        assumed: components that other jobs use too, so that the job's share is an assumption.
        throttled_s: seconds of throttling by component.
        timing_uncertainty_s: uncertainty of `end` in seconds.
        methods: quantity by which the dynamic energy was divided, by component, see `EnergySplit`.
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
    methods: Mapping[str, str] = field(default_factory=dict)

    @property
    def length_s(self) -> float:
        """Length of the interval in seconds."""
        return self.end - self.start


@dataclass(slots=True)
class JobMeter:
    """The energy meter of one job.

    The meter counts from `start`, a time in seconds since boot.

    Attributes:
        energy_uj: microjoules by component.
        component_uncertain_s: seconds for which energy may be missing, by component.
        assumed_s: seconds for which the job's share of the energy is an assumption, by component.
        uncertain_s: the maximum of `component_uncertain_s`. Components are charged at different times, so a
            sum would count the same seconds several times.
        throttled_s: seconds of throttling; None until a throttle sensor was read.
        elapsed_s: seconds of the job's time that are charged.
        divided_s: seconds for which the dynamic energy of a component was divided among jobs in proportion to
            a quantity, by component and quantity as `COMPONENT:QUANTITY`.
    """

    start: float
    energy_uj: dict[str, int] = field(default_factory=dict)
    component_uncertain_s: dict[str, float] = field(default_factory=dict)
    assumed_s: dict[str, float] = field(default_factory=dict)
    uncertain_s: float = 0.0
    throttled_s: float | None = None
    elapsed_s: float = 0.0
    divided_s: dict[str, float] = field(default_factory=dict)

    def add(self, charge: Charge, components: Iterable[str]) -> None:
        """Add a charge (the energy of one interval that is attributed to the job) to the meter.

        Energy of components that are not in `components` is ignored.
        """
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
        for name, method in charge.methods.items():
            length_s = charge.end - charge.since.get(name, charge.start)
            key = f"{name}:{method}"
            self.divided_s[key] = self.divided_s.get(key, 0.0) + length_s
        throttled = [seconds for name, seconds in charge.throttled_s.items() if name in counted]
        if throttled:
            self.throttled_s = (self.throttled_s or 0.0) + max(throttled)
        self.elapsed_s += charge.length_s

    def add_uncertain(self, seconds: Mapping[str, float]) -> None:
        """Add seconds by component for which energy may be missing."""
        for name, length_s in seconds.items():
            self.component_uncertain_s[name] = self.component_uncertain_s.get(name, 0.0) + length_s
        self.uncertain_s = max(self.component_uncertain_s.values(), default=0.0)

    def copy(self) -> JobMeter:
        """Return a copy of the current state of this meter.

        The method `since` later uses the copy to compute the energy that was added in the meantime.
        """
        return JobMeter(**_copied(self.dump()))

    def since(self, earlier: JobMeter) -> JobMeter:
        """Return the difference of this meter and an earlier copy of it.

        The result is a meter with only the energy that was added since `earlier` was copied.
        """
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
            divided_s=_grown(self.divided_s, earlier.divided_s),
        )

    def dump(self) -> dict[str, Any]:
        """Return the state of the meter as a dict that can be stored as JSON.

        `build_from(JobMeter, data)` restores the state.
        """
        return dict(zip(self.__slots__, _METER_VALUES(self), strict=True))


_METER_VALUES = attrgetter(*JobMeter.__slots__)
"""Reads all fields of a meter. Checkpoints read all meters of the node, and `getattr` would be slower."""


def _copied(data: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, dict) else value for name, value in data.items()}


def _grown(now: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    return {name: more for name, value in now.items() if (more := value - earlier.get(name, 0.0)) > 0}


@dataclass(slots=True)
class PowerMonitor:
    """Mean power of a job over windows of at least `window_s` seconds.

    The monitor determines the peak power and the time above power caps.

    A window shorter than a second would distort the power, because the counters are updated in steps. A
    window does not end at a delayed reading, because the reading could contain energy that was used after the
    window.

    Attributes:
        cap_watts: power cap for the sum of all components except `other`; None without a cap.
        gpu_cap_watts: power cap of each GPU; None without a cap.
        peak_watts: highest mean power of a window so far, without `other`; None before the first window.
            `other` is left out because the node meter is slower than the counters of the components. The
            power of `other` therefore oscillates whenever the power of a component changes.
        above_cap_s: seconds of windows above a cap; None without caps.
        budget_capped_s: seconds in which a power budget limited a device of the job to less than the job's
            own power limit; None if no budget applied.
        watts: mean power of the last complete window by component.
        length_s, joules, covered_s: length of the current window in seconds, its energy by component, and the
            seconds that this energy covers, by component.
        timing_uncertainty_s: uncertainty of the end of the last interval in seconds.
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
    budget_capped_s: float | None = None

    def add(
        self,
        length_s: float,
        joules: Mapping[str, float],
        lengths_s: Mapping[str, float] | None = None,
        waiting: Iterable[str] = (),
        timing_uncertainty_s: float = 0.0,
    ) -> None:
        """Add the energy of an interval to the current window over which power is averaged.

        The window ends once its length is sufficient and the time of its end is known exactly enough.

        Args:
            length_s: length of the interval in seconds.
            joules: energy by component.
            lengths_s: seconds that a component's energy covers; absent components cover `length_s`.
            waiting: components whose energy follows later. Until then the power of these components in the
                previous window is used.
            timing_uncertainty_s: uncertainty of the end of the interval in seconds.
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
        """End the current window over which power is averaged.

        The last window of a job may be shorter than `window_s`. A shorter window counts for the peak power
        only if the job has no other window.
        """
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
        """Discard all results and the current window.

        The window length and the caps remain.
        """
        self.peak_watts = self.above_cap_s = self.budget_capped_s = None
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
        """Return the state as a dict that JSON can hold.

        `build_from(PowerMonitor, data)` restores the state.
        """
        return dict(zip(self.__slots__, _MONITOR_VALUES(self), strict=True))


_MONITOR_VALUES = attrgetter(*PowerMonitor.__slots__)


def _fast_watts(means: Mapping[str, float]) -> float:
    """Return the sum of the power of all components except `other`, which the slow node meter determines."""
    return math.fsum(watts for name, watts in means.items() if name != OTHER)
