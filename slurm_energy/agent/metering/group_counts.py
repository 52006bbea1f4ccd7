"""Use of hardware by each job and by all processes, from counts that the processor makes.

The processor counts the use of each monitoring group of tasks. The module computes the difference between
two readings of these counts.

The groups belong to the kernel's file system resctrl. A resctrl control group contains monitoring groups.
The agent creates monitoring groups for the jobs. A control group of resctrl is not a cgroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.agent.metering.occupancy import MonitoredUse
from slurm_energy.devices.cpu.resctrl import CORE_ENERGY, TRAFFIC, Counts, control_of, is_control_group

GroupReadings = dict[str, Counts]
"""Counts by group. A control group's counts include those of its monitoring groups."""

_MAX_PER_S = {TRAFFIC: 10**14, CORE_ENERGY: 10**11}
"""Maximum plausible use of a node per second: 100 TB, and 100 kJ in microjoules."""
_NO_DOMAIN = -1
_TOLERANCE = 0.02
"""Counts of a control group may lag those of its groups by this fraction: files are read in sequence.

A slow reading adds its duration, as a fraction of the time since the last reading."""


@dataclass(slots=True)
class _QuantityCounts:
    """The last reading of one quantity that the processor counts, for example memory traffic.

    The processor counts the quantity for each monitoring group of the file system resctrl, and for each
    domain (L3 cache or package).

    Attributes:
        groups: counts by the agent's monitoring group and by domain.
        uncounted: monitoring group and domain of each count that was unknown.
        own: counts of tasks outside the agent's monitoring groups, by resctrl control group and domain.
            These counts equal the counts of the control group minus the counts of the agent's monitoring
            groups in that control group.
        is_own_known: whether all counts of the resctrl control groups were known.
    """

    groups: dict[str, dict[int, int]] = field(default_factory=dict)
    uncounted: set[tuple[str, int]] = field(default_factory=set)
    own: dict[str, dict[int, int]] = field(default_factory=dict)
    is_own_known: bool = True

    def counted(self) -> set[tuple[str, int]]:
        """Return the pairs of monitoring group and domain for which counts are known.

        A monitoring group is a group of tasks whose use the processor counts. A domain is an L3 cache or a
        package.
        """
        return {(group, domain) for group, counts in self.groups.items() for domain in counts}


class CountsBetweenReadings:
    """Keeper of the last reading of resctrl counts.

    At each reading, it returns the use since the previous reading.

    Args:
        quantities: quantities that the processor counts, for example memory traffic.
    """

    def __init__(self, quantities: Iterable[str]) -> None:
        self._last = {quantity: _QuantityCounts() for quantity in quantities}
        self._time: float | None = None

    def age_s(self, now: float) -> float:
        """Return the seconds from the last reading to `now`; 0 if there was no reading."""
        return 0.0 if self._time is None else now - self._time

    def forget(self) -> None:
        """Forget the last reading, so that the next reading starts a new interval."""
        self._last = {quantity: _QuantityCounts() for quantity in self._last}
        self._time = None

    def remove_group(self, group: str) -> None:
        """Discard the counts of a removed monitoring group of resctrl.

        A control group contains the monitoring groups. Its counts no longer include the removed group.
        """
        for counts in self._last.values():
            counts.groups.pop(group, None)
            counts.uncounted = {place for place in counts.uncounted if place[0] != group}

    def since_last(
        self,
        now: float,
        readings: GroupReadings,
        groups: Mapping[str, Iterable[str]],
        unknown: set[str],
        duration_s: float = 0.0,
    ) -> dict[str, MonitoredUse]:
        """Return how much each job used each counted quantity since the last reading, by quantity.

        Args:
            now: time of the reading in seconds since boot.
            readings: counts of all resctrl control groups and of the jobs' monitoring groups.
            groups: monitoring groups by job. A job without groups has used nothing, unless `unknown` contains
                the job.
            unknown: jobs whose use since the last reading was not counted completely.
            duration_s: seconds between the first and the last file of this reading.
        """
        length_s = None if self._time is None else max(0.0, now - self._time)
        self._time = now
        lag = _TOLERANCE + (duration_s / length_s if length_s else 0.0)
        return {
            quantity: self._use(quantity, length_s, lag, readings, groups, unknown) for quantity in self._last
        }

    def dump(self) -> dict[str, Any]:
        """Return the last reading as a dict that JSON can hold."""
        return {
            "time": self._time,
            "quantities": {
                quantity: {
                    "groups": _dumped(counts.groups),
                    "own": _dumped(counts.own),
                    "is_own_known": counts.is_own_known,
                    "uncounted": sorted(counts.uncounted),
                }
                for quantity, counts in self._last.items()
            },
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore the last reading of the counts from stored data, which `dump` has produced."""
        self._time = data["time"]
        for quantity, counts in data["quantities"].items():
            if quantity in self._last:
                loaded = _QuantityCounts(_loaded(counts["groups"]))
                loaded.uncounted = {(group, domain) for group, domain in counts["uncounted"]}
                loaded.own, loaded.is_own_known = _loaded(counts["own"]), bool(counts["is_own_known"])
                self._last[quantity] = loaded

    def _use(
        self,
        quantity: str,
        length_s: float | None,
        lag: float,
        readings: GroupReadings,
        groups: Mapping[str, Iterable[str]],
        unknown: set[str],
    ) -> MonitoredUse:
        last, now = self._last[quantity], _counts(quantity, readings)
        self._last[quantity] = now
        flipped = last.counted() & now.uncounted | last.uncounted & now.counted()
        uncounted_groups = {group for group, _ in now.uncounted | last.uncounted}
        deltas = {
            group: delta
            for group, counts in now.groups.items()
            if group not in uncounted_groups
            and _is_plausible(
                quantity, delta := sum(_grown(last.groups.get(group, {}), counts).values()), length_s
            )
        }
        jobs: dict[str, int | None] = {}
        for job, names in groups.items():
            parts = [deltas.get(name) for name in names]
            amounts = [part for part in parts if part is not None]
            is_counted = len(amounts) == len(parts) and job not in unknown
            jobs[job] = sum(amounts) if is_counted else None
        uncounted = {job for job, names in groups.items() if uncounted_groups.intersection(names)}
        total = None
        # A count that appears or disappears also changes the count of its control group.
        comparable = length_s is not None and last.is_own_known and now.is_own_known and not flipped
        if comparable and now.groups.keys() - uncounted_groups == deltas.keys():
            own = _own_growth(quantity, last.own, now.own, lag * sum(deltas.values()), length_s or 0.0)
            total = None if own is None else own + sum(deltas.values())
        return MonitoredUse(total, jobs, frozenset(uncounted))


def _counts(quantity: str, readings: GroupReadings) -> _QuantityCounts:
    """Return the counts of one quantity, such as memory traffic, by resctrl group.

    The reading `readings` contains the resctrl control groups and the agent's monitoring groups inside
    them.
    """
    counts = _QuantityCounts()
    below: dict[str, dict[int, int]] = {}
    for group, by_quantity in readings.items():
        by_domain = by_quantity.get(quantity, {})
        if is_control_group(group):
            continue
        counts.groups[group] = {}
        if not by_domain:
            counts.uncounted.add((group, _NO_DOMAIN))
        for domain, amount in by_domain.items():
            if amount is None:
                counts.uncounted.add((group, domain))
                continue
            counts.groups[group][domain] = amount
            sums = below.setdefault(control_of(group), {})
            sums[domain] = sums.get(domain, 0) + amount
    for control, by_quantity in readings.items():
        if is_control_group(control):
            by_domain, sums = by_quantity.get(quantity, {}), below.get(control, {})
            known = {d: amount - sums.get(d, 0) for d, amount in by_domain.items() if amount is not None}
            counts.own[control] = known
            counts.is_own_known = counts.is_own_known and len(known) == len(by_domain) > 0
    return counts


def _own_growth(
    quantity: str,
    last: Mapping[str, Mapping[int, int]],
    now: Mapping[str, Mapping[int, int]],
    lag: float,
    length_s: float,
) -> int | None:
    """Return how much of a quantity was used by tasks that are in none of the agent's groups.

    The agent puts the tasks of jobs into groups whose use the processor counts (resctrl). The function
    returns the use between two readings, or None if the readings are not comparable.

    Args:
        quantity: name of the quantity, for example memory traffic.
        last: count of the tasks outside the agent's groups at the last reading, by resctrl control group
            and by processor domain.
        now: the same counts at the current reading.
        lag: maximum amount by which a count may fall. It is use of tasks inside the agent's groups that
            the count of the control group does not include yet.
        length_s: seconds between the readings.
    """
    if not now or {c: set(d) for c, d in last.items()} != {c: set(d) for c, d in now.items()}:
        return None
    total = 0
    for control, counts in now.items():
        for amount in _grown(last[control], counts).values():
            if amount < -lag or amount > _MAX_PER_S[quantity] * max(1.0, length_s):
                return None
            total += max(0, amount)
    return total


def _is_plausible(quantity: str, delta: int, length_s: float | None) -> bool:
    return 0 <= delta <= _MAX_PER_S[quantity] * max(1.0, length_s or 1.0)


def _grown(last: Mapping[int, int], now: Mapping[int, int]) -> dict[int, int]:
    return {domain: amount - last.get(domain, 0) for domain, amount in now.items()}


def _dumped(counts: Mapping[str, Mapping[int, int]]) -> dict[str, list[tuple[int, int]]]:
    return {group: list(count.items()) for group, count in counts.items()}


def _loaded(data: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    return {group: {int(domain): int(amount) for domain, amount in items} for group, items in data.items()}
