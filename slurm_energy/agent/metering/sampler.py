"""Sampling of the energy counters of a node.

The result is the energy that each counter counted between two samples. `Sampler` decides when each counter
is read, and handles counters that disappear and return. `Sampler` does not depend on jobs. The module
`counter_delta` computes the energy between two readings of one counter.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.metering.counter_delta import (
    SAFE_PART_OF_RANGE,
    UPDATE_SLACK_S,
    CounterDelta,
    energy_between,
    min_energy_across_suspend,
)
from slurm_energy.agent.metering.throttle_sensors import ThrottleSampler
from slurm_energy.devices.driver import DeviceError, DeviceGoneError, EnergyCounter, ThrottleSensor
from slurm_energy.devices.sampling_interval import max_sampling_interval_s, min_wrap_s
from slurm_energy.log_once import RepeatedFailureLog

log = logging.getLogger(__name__)

_SUSPENDED_S = 0.1
_ALMOST = 0.95  # of an interval: a slow counter is still due if the timer fires slightly early
_NOTHING: frozenset[str] = frozenset()


@dataclass(slots=True)
class SampleInterval:
    """The time between two samples of a node, and the energy that the counters counted in it.

    Do not modify an instance. The dataclass is not frozen because freezing costs time in every sample.

    Some counters are not read in every sample. Such a counter is neither in `deltas` nor in `unknown`. Its
    next delta also covers this interval. If a device in `unknown` can be read again later, the next delta of
    its counter may also cover this interval and is marked uncertain.

    Attributes:
        start, end: times of the two samples in seconds since boot.
        deltas: energy that each counter counted in the interval, by counter key.
        throttled_s: seconds of throttling by component, for components with a throttle sensor.
        unknown: keys of the counters that were unreadable at the end of the interval. Counters that were
            read for the first time at the end of the interval are included.
        suspended_s: seconds for which the machine was suspended. If it is not 0, no delta is certain.
        read_duration_s: seconds that it took to read the counters at the end of the interval. `end` is the
            middle of this duration and is therefore uncertain by half of it.
    """

    start: float
    end: float
    deltas: Mapping[str, CounterDelta]
    throttled_s: Mapping[str, float]
    unknown: frozenset[str] = _NOTHING
    suspended_s: float = 0.0
    read_duration_s: float = 0.0

    @property
    def length_s(self) -> float:
        """Length of the interval in seconds."""
        return self.end - self.start


class _CounterState:
    """The last reading of one counter.

    Attributes:
        time: time of the reading, in seconds since boot; None if there is no reading from which energy is
            counted.
        timing_uncertainty_s: uncertainty of `time` in seconds.
        changed: time, in seconds since boot, at which the current value was first read.
        last_attempt: time, in seconds since boot, of the last attempt to read the counter.
        max_uj_per_s: maximum rate of the counter in microjoules per second.
    """

    __slots__ = (
        "changed",
        "counter",
        "key",
        "last_attempt",
        "max_uj_per_s",
        "read",
        "time",
        "timing_uncertainty_s",
        "value_uj",
    )

    def __init__(self, counter: EnergyCounter) -> None:
        self.counter = counter
        self.key = counter.key
        self.read = counter.read
        self.max_uj_per_s = counter.max_watts * 1e6
        self.time: float | None = None
        self.last_attempt = -math.inf
        self.value_uj = 0
        self.timing_uncertainty_s = self.changed = 0.0

    def start(self, now: float, value_uj: int, timing_uncertainty_s: float) -> None:
        """Store a first reading, from which energy is counted.

        Args:
            now: time of the reading, in seconds since boot.
            value_uj: the reading in microjoules.
            timing_uncertainty_s: uncertainty of `now` in seconds.
        """
        self.time = self.changed = now
        self.value_uj, self.timing_uncertainty_s = value_uj, timing_uncertainty_s

    def move(self, now: float, value_uj: int, timing_uncertainty_s: float, suspended: bool) -> CounterDelta:
        """Store a reading and return the energy since the previous reading.

        `energy_between` checks the energy against the maximum power of the counter. For this check the
        interval between the readings is extended by the timing uncertainties of both readings.

        Args:
            now: time of the reading, in seconds since boot.
            value_uj: the reading in microjoules.
            timing_uncertainty_s: uncertainty of `now` in seconds.
            suspended: whether the machine was suspended since the previous reading. The energy is then a
                lower bound.
        """
        start, last_uj = self.time, self.value_uj
        assert start is not None
        length_s = now - start + self.timing_uncertainty_s + timing_uncertainty_s
        self.time, self.timing_uncertainty_s = now, timing_uncertainty_s
        if suspended:
            energy_uj, certain = min_energy_across_suspend(self.counter, last_uj, value_uj, length_s), False
        else:
            energy_uj, certain = energy_between(
                self.counter, last_uj, value_uj, length_s, start - self.changed
            )
        if value_uj != last_uj:
            self.changed = now
            if not (energy_uj == 0 and certain):  # after jitter the higher value remains the base
                self.value_uj = value_uj
        return CounterDelta(start, energy_uj, certain)


class Sampler:
    """Sampler that reads all counters, and keeps the last reading of each counter.

    Attributes:
        time: time of the last sample, in seconds since boot; None before the first.
        max_interval_s: maximum seconds between two samples. With a longer interval a counter could wrap
            unnoticed.
    """

    def __init__(
        self, counters: Sequence[EnergyCounter], throttles: Sequence[ThrottleSensor], clock: Clock
    ) -> None:
        self._counters = {counter.key: _CounterState(counter) for counter in counters}
        self._fast = [state for state in self._counters.values() if state.counter.interval_s <= 0]
        self._slow = [state for state in self._counters.values() if state.counter.interval_s > 0]
        self._throttles = ThrottleSampler(throttles)
        self._clock = clock
        self._suspended_s = clock.suspended()
        self._timing_uncertainty_s = 0.0
        self._unreadable: set[str] = set()
        self._gone: set[str] = set()
        self.time: float | None = None
        self.max_interval_s = max_sampling_interval_s(counters)
        self._safe_s = SAFE_PART_OF_RANGE * min_wrap_s(counters)
        self._failures = RepeatedFailureLog(log)

    def sample(self, due_only: bool = False) -> SampleInterval | None:
        """Read the counters and return the interval since the last sample; None for the first sample.

        Args:
            due_only: whether to skip counters that cannot have a new value yet. If False, every counter is
                read. The sample then separates the energy before this instant exactly from the energy after
                this instant.
        """
        clock = self._clock
        before = clock.boottime()
        unreadable = frozenset(self._unreadable) if self._unreadable else _NOTHING
        values = self._read(self._fast)
        if self._slow:
            values += self._read(self._due_slow_counters(before, due_only))
        after = clock.boottime()
        now, timing_uncertainty_s = (before + after) / 2, (after - before) / 2
        suspended_s = self._suspended()
        start, self.time = self.time, now
        deltas, unknown = self._moved(values, start, now, timing_uncertainty_s, unreadable, suspended_s > 0)
        self._timing_uncertainty_s = timing_uncertainty_s
        throttled_s = self._throttles.seconds(now, start, everything=not due_only)
        if start is None:
            return None
        return SampleInterval(start, now, deltas, throttled_s, unknown, suspended_s, after - before)

    def readings(self) -> dict[str, Any]:
        """Return the last readings of all counters as a dict that can be stored as JSON.

        After a restart of the agent, the method `since` accepts this dict.
        """
        readings = {key: [t.time, t.value_uj] for key, t in self._counters.items() if t.time is not None}
        return {
            "boot_id": self._clock.boot_id,
            "time": self.time,
            "timing_uncertainty_s": self._timing_uncertainty_s,
            "suspended_s": self._suspended_s,
            "counters": readings,
        }

    def since(self, earlier: Mapping[str, Any]) -> SampleInterval | None:
        """Return the interval from an earlier agent's last readings to the last sample of this agent.

        The result covers the time in which no agent ran.

        Args:
            earlier: the output of `readings` in the earlier agent.

        Returns:
            The interval; None after a reboot, or if one of the two agents has no sample. A counter that
            exists but cannot be read has no delta in the interval. When this counter can be read again, its
            delta begins at its last reading by the earlier agent.
        """
        if earlier["boot_id"] != self._clock.boot_id or earlier["time"] is None or self.time is None:
            return None
        suspended_s = self._suspended_s - float(earlier.get("suspended_s", self._suspended_s))
        suspended_s = suspended_s if suspended_s > _SUSPENDED_S else 0.0
        timing_uncertainty_s = float(earlier.get("timing_uncertainty_s", 0.0))
        deltas: dict[str, CounterDelta] = {}
        for key, (time, value_uj) in earlier["counters"].items():
            state = self._counters.get(key)
            if state is None or state.time is None:
                if state is not None and key not in self._gone:
                    state.start(float(time), int(value_uj), timing_uncertainty_s)
                continue
            last = _CounterState(state.counter)
            last.start(float(time), int(value_uj), timing_uncertainty_s)
            deltas[key] = last.move(state.time, state.value_uj, state.timing_uncertainty_s, suspended_s > 0)
        unknown = frozenset(self._counters.keys() - deltas.keys())
        return SampleInterval(float(earlier["time"]), self.time, deltas, {}, unknown, suspended_s)

    def _due_slow_counters(self, now: float, due_only: bool) -> list[_CounterState]:
        due = [state for state in self._slow if not due_only or _is_due(state, now)]
        for state in due:
            state.last_attempt = now
        return due

    def _read(self, counters: Iterable[_CounterState]) -> list[tuple[_CounterState, int]]:
        readings = []
        unreadable = self._unreadable
        for state in counters:
            try:
                readings.append((state, state.read()))
            except DeviceError as error:
                self._mark_unreadable(state, error)
                continue
            if unreadable and state.key in unreadable:
                unreadable.discard(state.key)
                self._gone.discard(state.key)
                self._failures.clear(f"counter {state.key}", "can be read again")
        return readings

    def _moved(
        self,
        values: Iterable[tuple[_CounterState, int]],
        last: float | None,
        now: float,
        timing_uncertainty_s: float,
        unreadable: frozenset[str],
        suspended: bool,
    ) -> tuple[dict[str, CounterDelta], frozenset[str]]:
        """Return the increase (delta) of each counter since the last sample.

        The second result contains the keys of the counters whose energy in this interval is unknown. In the
        usual case, a counter has increased by no more than its maximum rate permits, and nothing else has
        happened. The method handles this case itself, which is fast. It calls `energy_between` for all other
        cases.

        Args:
            values: the readings in microjoules.
            last: time, in seconds since boot, of the last sample; None for the first sample.
            now: time, in seconds since boot, of this sample.
            timing_uncertainty_s: uncertainty of `now` in seconds. Each reading may have been taken up to this
                many seconds before or after `now`.
            unreadable: keys of the counters that could not be read in the last sample.
            suspended: whether the machine was suspended since the last sample.
        """
        deltas: dict[str, CounterDelta] = {}
        started: list[str] = []
        length_s = (
            now - last + self._timing_uncertainty_s + timing_uncertainty_s if last is not None else math.inf
        )
        plain = not (unreadable or suspended) and length_s <= self._safe_s
        max_s = length_s + UPDATE_SLACK_S
        new = tuple.__new__
        for state, value_uj in values:
            moved_uj = value_uj - state.value_uj
            if plain and state.changed == last and 0 < moved_uj <= state.max_uj_per_s * max_s:
                state.time, state.changed, state.value_uj, state.timing_uncertainty_s = (
                    now,
                    now,
                    value_uj,
                    timing_uncertainty_s,
                )
                deltas[state.key] = new(CounterDelta, (last, moved_uj, True))
            elif state.time is None:
                state.start(now, value_uj, timing_uncertainty_s)
                started.append(state.key)
            else:
                delta = state.move(now, value_uj, timing_uncertainty_s, suspended)
                deltas[state.key] = delta._replace(certain=False) if state.key in unreadable else delta
        return deltas, frozenset((*self._unreadable, *started)) if self._unreadable or started else _NOTHING

    def _mark_unreadable(self, state: _CounterState, error: DeviceError) -> None:
        """Record that a counter could not be read.

        If the device of the counter is gone, the counter's last reading is discarded.
        """
        if isinstance(error, DeviceGoneError):
            state.time = None
            self._gone.add(state.key)
        if state.key not in self._unreadable:  # the reason may vary while the device returns
            self._unreadable.add(state.key)
            self._failures.report(f"counter {state.key}", f"cannot be read: {error}")

    def _suspended(self) -> float:
        """Return the seconds for which the machine was suspended since the last sample.

        Less than 0.1 s counts as 0.
        """
        more_s = self._clock.suspended() - self._suspended_s
        if more_s <= _SUSPENDED_S:
            return 0.0
        self._suspended_s += more_s
        return more_s


def _is_due(state: _CounterState, now: float) -> bool:
    return now - state.last_attempt >= _ALMOST * state.counter.interval_s
