"""One component in the node's books: what its counters told, and what of it is booked. Splits nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.agent.metering.occupancy import OccupancyInterval
from slurm_energy.agent.metering.sampler import CounterDelta, SampleInterval

SLACK_S = 1e-6
MAX_WAIT_S = 60.0
"""A component waits so long for a counter that cannot be read, as `other` does for a component."""


@dataclass(slots=True)
class ComponentAccount:
    """One component.

    Attributes:
        keys: its counters.
        energy_uj: told by counters and not booked yet.
        behind: counters that are late, and the boot time up to which they are known.
        left_out: counters without which was booked because others told, and the boot time up to which.
        doubt: stretches of the open time in which something may be missing, boot times.
        open: the time before the present interval that is not booked yet.
        lost: jobs that were there in time of which nothing is known for good, and since when.
        jobs_uj, idle_uj, unattributed_uj: what was booked so far.
        measured_uj: what was booked so far; of `other`, the node's meter less the parts.
    """

    keys: tuple[str, ...]
    uncharged_uj: int = 0
    late_since: dict[str, float] = field(default_factory=dict)
    excluded_until: dict[str, float] = field(default_factory=dict)
    uncertain_spans: list[tuple[float, float]] = field(default_factory=list)
    open_interval: OccupancyInterval | None = None
    lost_since: dict[str, float] = field(default_factory=dict)
    jobs_uj: int = 0
    idle_uj: int = 0
    unattributed_uj: int = 0
    measured_uj: int = 0

    def add_readings(self, interval: SampleInterval) -> bool:
        """Take an interval's deltas.

        Returns:
            False while a counter is late. What a counter lost for good is doubtful; if all lost everything
            before this interval, the time before is not open any more.
        """
        fresh = 0
        for key in self.keys:
            delta = interval.deltas.get(key)
            if delta is None:
                self.late_since.setdefault(key, interval.start)
                continue
            known = self.late_since.pop(key, interval.start)
            self.uncharged_uj += delta.energy_uj - self._unattribute_before(key, delta, interval.end)
            if delta.start > known + SLACK_S:
                self.mark_uncertain(known, delta.start)
                fresh += delta.start >= interval.start - SLACK_S
            if not delta.certain:
                self.mark_uncertain(delta.start, interval.end)
        self._exclude_unreadable(interval)
        if fresh and fresh == len(self.keys) and self.open_interval is not None:
            self.lost_since = {**self.open_interval.since, **self.lost_since}
            self.open_interval = None
        return not self.late_since

    def mark_uncertain(self, start: float, end: float) -> None:
        """Note that something may be missing; one stretch where it follows on the last, however long."""
        if (
            self.uncertain_spans
            and self.uncertain_spans[-1][0] <= start <= self.uncertain_spans[-1][1] + SLACK_S
        ):
            start, end = self.uncertain_spans[-1][0], max(end, self.uncertain_spans.pop()[1])
        self.uncertain_spans.append((start, end))

    def _exclude_unreadable(self, interval: SampleInterval) -> None:
        """Go on without counters that cannot be read for long, as long as others tell."""
        if len(self.late_since) == len(self.keys):
            return
        for key, since in list(self.late_since.items()):
            if key in interval.unknown and interval.end - since >= MAX_WAIT_S:
                self.mark_uncertain(self.late_since.pop(key), interval.end)
                self.excluded_until[key] = interval.end

    def _unattribute_before(self, key: str, delta: CounterDelta, end: float) -> int:
        """Return the part of a delta that is of time already booked without the counter: nobody's."""
        booked = self.excluded_until.pop(key, delta.start)
        if booked <= delta.start or end <= delta.start:
            return 0
        energy_uj = round(delta.energy_uj * (booked - delta.start) / (end - delta.start))
        self.measured_uj += energy_uj
        self.unattributed_uj += energy_uj
        return energy_uj

    def extend(self, interval: OccupancyInterval) -> None:
        """Leave an interval open."""
        self.open_interval = self._with(interval)

    def close(self, interval: OccupancyInterval) -> OccupancyInterval:
        """Return all of the time that is open, this interval included, and begin a new one."""
        whole, self.open_interval = self._with(interval), None
        return whole

    def uncertain_s(self, job: str, since: float) -> float:
        """Return seconds in which something may be missing of a job that was there from `since` on."""
        total_s, known = 0.0, self.lost_since.get(job, since)
        for start, end in sorted(self.uncertain_spans):
            total_s += max(0.0, end - max(start, known))
            known = max(known, end)
        return total_s

    def _with(self, interval: OccupancyInterval) -> OccupancyInterval:
        return interval if self.open_interval is None else self.open_interval.joined_with(interval)

    def dump(self) -> dict[str, Any]:
        """Return JSON-ready data, without the keys."""
        data = {name: getattr(self, name) for name in self.__slots__ if name != "keys"}
        return {**data, "open_interval": self.open_interval.dump() if self.open_interval else None}

    def load(self, data: Mapping[str, Any]) -> None:
        """Read the output of `dump`."""
        for name, value in data.items():
            setattr(self, name, value)
        self.late_since = {key: since for key, since in self.late_since.items() if key in self.keys}
        self.uncertain_spans = [(start, end) for start, end in data["uncertain_spans"]]
        self.open_interval = OccupancyInterval.load(data["open_interval"]) if data["open_interval"] else None
