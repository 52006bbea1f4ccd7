"""Differences of the counts of monitoring groups between two readings, by job and for all processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.agent.metering.occupancy import MonitoredUse
from slurm_energy.devices.cpu.resctrl import CORE_ENERGY, TRAFFIC, Counts, control_of, is_control_group

GroupReadings = dict[str, Counts]
"""Counts by group. A control group's counts include those of its monitoring groups."""

_MAX_PER_S = {TRAFFIC: 10**14, CORE_ENERGY: 10**11}
"""Maximum plausible use of a package per second: 100 TB, and 100 kJ in microjoules."""
_TOLERANCE = 0.02
"""Files are read one after the other, so the counts of a control group may lag those of its groups."""


@dataclass(slots=True)
class _QuantityCounts:
    """The last reading of one quantity.

    Attributes:
        groups: counts by group and package; groups without a count are absent.
        own: counts of each control group's own tasks by package, which are the counts of the control group
            minus those of our groups below it.
        uncounted: groups without a count.
    """

    groups: dict[str, Mapping[int, int]] = field(default_factory=dict)
    uncounted: set[str] = field(default_factory=set)
    own: dict[str, Mapping[int, int]] = field(default_factory=dict)


class CountsBetweenReadings:
    """Keeps the last reading and returns the use since then.

    Args:
        quantities: quantities that are read.
    """

    def __init__(self, quantities: Iterable[str]) -> None:
        self._last = {quantity: _QuantityCounts() for quantity in quantities}
        self._time: float | None = None

    def forget(self) -> None:
        """Forget the last reading, so that the next one starts a new interval."""
        self._last = {quantity: _QuantityCounts() for quantity in self._last}
        self._time = None

    def remove_group(self, group: str) -> None:
        """Forget a group that has been removed. Its counts disappear from those of the control group, too."""
        for counts in self._last.values():
            counts.groups.pop(group, None)
            counts.uncounted.discard(group)

    def since_last(
        self,
        now: float,
        readings: GroupReadings,
        groups: Mapping[str, Iterable[str]],
        unknown: set[str],
    ) -> dict[str, MonitoredUse]:
        """Return the use since the last reading by quantity.

        Args:
            now: time of the reading in seconds since boot.
            readings: counts of all control groups and of the jobs' groups.
            groups: groups by job; a job without groups has used nothing, unless it is listed in `unknown`.
            unknown: jobs whose groups have not counted all of their use since the last reading.
        """
        length_s = None if self._time is None else max(0.0, now - self._time)
        self._time = now
        return {quantity: self._use(quantity, length_s, readings, groups, unknown) for quantity in self._last}

    def dump(self) -> dict[str, Any]:
        """Return the last reading as a dict that JSON can hold."""
        return {
            "time": self._time,
            "quantities": {
                quantity: {
                    "groups": _dumped(counts.groups),
                    "own": _dumped(counts.own),
                    "uncounted": sorted(counts.uncounted),
                }
                for quantity, counts in self._last.items()
            },
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore the last reading from the output of `dump`."""
        self._time = data["time"]
        for quantity, counts in data["quantities"].items():
            if quantity in self._last:
                loaded = _QuantityCounts(_loaded(counts["groups"]), set(counts["uncounted"]))
                loaded.own = _loaded(counts["own"])
                self._last[quantity] = loaded

    def _use(
        self,
        quantity: str,
        length_s: float | None,
        readings: GroupReadings,
        groups: Mapping[str, Iterable[str]],
        unknown: set[str],
    ) -> MonitoredUse:
        last, now = self._last[quantity], _QuantityCounts()
        for group, counts in readings.items():
            count = counts.get(quantity)
            if is_control_group(group):
                continue
            if count is None:
                now.uncounted.add(group)
            else:
                now.groups[group] = count
        now.own = _own_counts(quantity, readings, now.groups)
        self._last[quantity] = now
        # A count that comes or goes also changes that of the control group.
        steady = not (last.groups.keys() & now.uncounted or last.uncounted & now.groups.keys())
        deltas = {
            group: delta
            for group, count in now.groups.items()
            if group not in last.uncounted
            and _is_plausible(quantity, delta := _grown(last.groups.get(group, {}), count), length_s)
        }
        jobs: dict[str, Mapping[int, int] | None] = {}
        uncounted = set()
        for job, names in groups.items():
            parts = [deltas.get(name) for name in names]
            is_counted = None not in parts and job not in unknown
            jobs[job] = _summed(part for part in parts if part is not None) if is_counted else None
            if now.uncounted.intersection(names):
                uncounted.add(job)
        total = None
        if length_s is not None and steady and len(deltas) == len(now.groups):
            total = _total(quantity, last.own, now.own, deltas, length_s)
        return MonitoredUse(total, jobs, frozenset(uncounted))


def _own_counts(
    quantity: str, readings: GroupReadings, groups: Mapping[str, Mapping[int, int]]
) -> dict[str, Mapping[int, int]]:
    """Return the counts of each control group without those of our groups below it."""
    own: dict[str, Mapping[int, int]] = {}
    for control, counts in readings.items():
        count = counts.get(quantity)
        if not is_control_group(control) or count is None:
            continue
        below = _summed(part for group, part in groups.items() if control_of(group) == control)
        own[control] = {package: amount - below.get(package, 0) for package, amount in count.items()}
    return own


def _total(
    quantity: str,
    last: Mapping[str, Mapping[int, int]],
    now: Mapping[str, Mapping[int, int]],
    deltas: Mapping[str, Mapping[int, int]],
    length_s: float,
) -> dict[int, int] | None:
    """Return the use of all processes by package; None if the counts of a control group are not comparable.

    Args:
        quantity: the quantity.
        last: counts of the control groups' own tasks at the last reading.
        now: the same at this reading.
        deltas: use by group.
        length_s: seconds between the readings.
    """
    if not now or last.keys() != now.keys():
        return None
    total = _summed(deltas.values())
    tolerance = _TOLERANCE * sum(total.values())
    for control, counts in now.items():
        for package, amount in counts.items():
            grown = amount - last[control].get(package, 0)
            if grown < -tolerance or grown > _MAX_PER_S[quantity] * max(1.0, length_s):
                return None
            total[package] = total.get(package, 0) + max(0, grown)
    return total


def _is_plausible(quantity: str, delta: Mapping[int, int], length_s: float | None) -> bool:
    limit = _MAX_PER_S[quantity] * max(1.0, length_s or 1.0)
    return all(0 <= amount <= limit for amount in delta.values())


def _grown(last: Mapping[int, int], now: Mapping[int, int]) -> dict[int, int]:
    return {package: amount - last.get(package, 0) for package, amount in now.items()}


def _summed(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for part in parts:
        for package, amount in part.items():
            total[package] = total.get(package, 0) + amount
    return total


def _dumped(counts: Mapping[str, Mapping[int, int]]) -> dict[str, list[tuple[int, int]]]:
    return {group: list(count.items()) for group, count in counts.items()}


def _loaded(data: Mapping[str, Any]) -> dict[str, Mapping[int, int]]:
    return {group: {int(package): int(amount) for package, amount in items} for group, items in data.items()}
