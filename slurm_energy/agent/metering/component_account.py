"""The energy account of one component of a node, such as the CPUs.

It holds the energy that has been assigned (charged) to jobs, idle or unattributed, and the readings whose
energy is not assigned yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.agent.metering.counter_delta import CounterDelta
from slurm_energy.agent.metering.occupancy import OccupancyInterval
from slurm_energy.agent.metering.sampler import SampleInterval
from slurm_energy.known_fields import known_fields

SLACK_S = 1e-6
MAX_WAIT_S = 60.0
"""How long a component waits for an unreadable counter, and `other` for an unreadable component."""


@dataclass(slots=True)
class ComponentAccount:
    """The energy account of one hardware component of a node.

    To charge energy means to assign it to a job, to idle energy or to unattributed energy.

    Attributes:
        keys: keys of the component's counters.
        uncharged_uj: microjoules that the counters reported and that are not charged yet.
        late_since: time of the last reading, in seconds since boot, of each counter that has no current
            reading.
        excluded_until: for each excluded counter, the time in seconds since boot up to which energy was
            charged without it. A counter is excluded if it stays unreadable while other counters are read.
        uncertain_spans: start and end, in seconds since boot, of each span of the uncharged time in which
            energy may be missing.
        open_interval: uncharged time before the current sample interval; None if all energy before the
            current sample interval is charged.
        lost_since: start of a time whose energy is never charged, because no counter can report it. A start
            is stored for each job that was on the node in that time, by name of the job.
        jobs_uj, idle_uj, unattributed_uj: microjoules charged so far.
        measured_uj: sum of `jobs_uj`, `idle_uj` and `unattributed_uj`. For the component `other` this sum is
            the energy of the node meter minus the energy of all other components.
        uncertain_s: charged seconds in which energy may be missing, since the agent started.
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
    uncertain_s: float = 0.0

    def add_readings(self, interval: SampleInterval) -> bool:
        """Add the energy that the counters of the component have counted in a sample interval.

        If a counter can no longer report the energy of some time, for example after a reset, this time is
        marked as uncertain. `open_interval` is the time before this sample interval whose energy is not
        charged (assigned to jobs) yet. If no counter can ever report the energy of `open_interval`,
        `open_interval` is discarded, and no energy is charged for it.

        Returns:
            Whether all counters have a current reading, so that the energy can be charged.
        """
        fresh = 0
        for key in self.keys:
            delta = interval.deltas.get(key)
            if delta is None:
                self.late_since.setdefault(key, interval.start)
                continue
            last_read = self.late_since.pop(key, interval.start)
            self.uncharged_uj += delta.energy_uj - self._unattribute_before(key, delta, interval.end)
            if delta.start > last_read + SLACK_S:
                self.mark_uncertain(last_read, delta.start)
                fresh += delta.start >= interval.start - SLACK_S
            if not delta.certain:
                self.mark_uncertain(delta.start, interval.end)
        self._exclude_unreadable(interval)
        if fresh and fresh == len(self.keys) and self.open_interval is not None:
            self.lost_since = {**self.open_interval.since, **self.lost_since}
            self.open_interval = None
        return not self.late_since

    def mark_uncertain(self, start: float, end: float) -> None:
        """Record a time span in which energy of the component may be missing.

        If the span touches or overlaps the last recorded span, the last span is extended instead.

        Args:
            start: start of the span in seconds since boot.
            end: end of the span in seconds since boot.
        """
        last = self.uncertain_spans[-1] if self.uncertain_spans else None
        if last is not None and last[0] <= end and start <= last[1] + SLACK_S:
            self.uncertain_spans.pop()
            start, end = min(start, last[0]), max(end, last[1])
        self.uncertain_spans.append((start, end))

    def _exclude_unreadable(self, interval: SampleInterval) -> None:
        """Exclude energy counters of the component that could not be read for MAX_WAIT_S.

        Counters are excluded only if other counters of the component can be read.
        """
        if len(self.late_since) == len(self.keys):
            return
        for key, since in list(self.late_since.items()):
            if key in interval.unknown and interval.end - since >= MAX_WAIT_S:
                self.mark_uncertain(self.late_since.pop(key), interval.end)
                self.excluded_until[key] = interval.end

    def _unattribute_before(self, key: str, delta: CounterDelta, end: float) -> int:
        """Mark a part of a counter's energy as unattributed, and return this part in microjoules.

        While a counter cannot be read, energy is charged (assigned) to the jobs without this counter. When
        the counter becomes readable again, its first delta also covers the unreadable time. The part of the
        delta from the unreadable time cannot be assigned to a job. Therefore this part is added to the
        unattributed energy.

        Args:
            key: key of the counter.
            delta: energy that the counter has counted since its previous reading.
            end: time of the end of the delta, in seconds since boot.
        """
        charged_until = self.excluded_until.pop(key, delta.start)
        if charged_until <= delta.start or end <= delta.start:
            return 0
        energy_uj = round(delta.energy_uj * (charged_until - delta.start) / (end - delta.start))
        self.measured_uj += energy_uj
        self.unattributed_uj += energy_uj
        return energy_uj

    def extend(self, interval: OccupancyInterval) -> None:
        """Append an interval to `open_interval`, the time whose energy is not assigned to jobs yet.

        The energy of the appended interval cannot be assigned yet either.
        """
        self.open_interval = self._with(interval)

    def close(self, interval: OccupancyInterval) -> OccupancyInterval:
        """Return the uncharged time up to the end of a sample interval, and start anew.

        The uncharged time is the time whose energy has not been assigned to jobs yet (attribute
        `open_interval`). The result contains this time and `interval`, which follows it. Afterwards the
        attribute is None.
        """
        whole, self.open_interval = self._with(interval), None
        return whole

    def unattribute_open_time(self, energy_uj: int) -> None:
        """Close the time interval that is not yet charged to jobs, after a reboot of the node.

        After a reboot the energy counters start again from 0. The energy of the open interval can therefore
        not be charged.

        Args:
            energy_uj: microjoules of the open interval; this energy becomes unattributed.
        """
        self.measured_uj += energy_uj
        self.unattributed_uj += energy_uj
        self.uncharged_uj, self.open_interval, self.uncertain_spans = 0, None, []
        self.late_since, self.excluded_until, self.lost_since = {}, {}, {}

    def settle(self) -> None:
        """Mark all energy of this component as charged, which means assigned to jobs.

        Afterwards, the account contains no uncharged energy. The durations of the spans with uncertain energy
        are added to `uncertain_s`.
        """
        if self.uncertain_spans:
            self.uncertain_s += sum(end - start for start, end in self.uncertain_spans)
        self.uncharged_uj, self.uncertain_spans, self.lost_since = 0, [], {}

    def job_uncertain_s(self, job: str, since: float) -> float:
        """Return for how many seconds of the uncharged time the energy of a job may be missing.

        The uncharged time is the time whose energy has not been assigned to jobs yet.

        Args:
            job: unique name of the job.
            since: time in seconds since boot from which the job was on the node.
        """
        total_s, counted_until = 0.0, self.lost_since.get(job, since)
        for start, end in sorted(self.uncertain_spans):
            total_s += max(0.0, end - max(start, counted_until))
            counted_until = max(counted_until, end)
        return total_s

    def _with(self, interval: OccupancyInterval) -> OccupancyInterval:
        return interval if self.open_interval is None else self.open_interval.joined_with(interval)

    def dump(self) -> dict[str, Any]:
        """Return the energy account as a dict that JSON can hold.

        Two attributes are left out. `keys` is not stored, because the node's hardware determines the keys of
        the counters. `uncertain_s` is not stored, because another part of the checkpoint (the open period)
        contains the value.
        """
        data = {name: getattr(self, name) for name in self.__slots__ if name not in ("keys", "uncertain_s")}
        return {**data, "open_interval": self.open_interval.dump() if self.open_interval else None}

    def load(self, data: Mapping[str, Any]) -> None:
        """Restore the energy account from the output of `dump`."""
        for name, value in known_fields(ComponentAccount, data).items():
            setattr(self, name, value)
        self.late_since = {key: since for key, since in self.late_since.items() if key in self.keys}
        self.uncertain_spans = [(start, end) for start, end in data["uncertain_spans"]]
        self.open_interval = OccupancyInterval.load(data["open_interval"]) if data["open_interval"] else None
