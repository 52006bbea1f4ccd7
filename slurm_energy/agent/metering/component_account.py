"""One component in the node's books: what its counters told, and what of it is booked. Splits nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.agent.metering.occupancy import Span
from slurm_energy.agent.metering.sampler import Delta, Interval

SLACK_S = 1e-6
LONGEST_WAIT_S = 60.0
"""A component waits so long for a counter that cannot be read, as `other` does for a component."""


@dataclass(slots=True)
class Line:
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
    energy_uj: int = 0
    behind: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, float] = field(default_factory=dict)
    doubt: list[tuple[float, float]] = field(default_factory=list)
    open: Span | None = None
    lost: dict[str, float] = field(default_factory=dict)
    jobs_uj: int = 0
    idle_uj: int = 0
    unattributed_uj: int = 0
    measured_uj: int = 0

    def take(self, interval: Interval) -> bool:
        """Take an interval's deltas.

        Returns:
            False while a counter is late. What a counter lost for good is doubtful; if all lost everything
            before this interval, the time before is not open any more.
        """
        fresh = 0
        for key in self.keys:
            delta = interval.deltas.get(key)
            if delta is None:
                self.behind.setdefault(key, interval.start)
                continue
            known = self.behind.pop(key, interval.start)
            self.energy_uj += delta.energy_uj - self._write_off_before(key, delta, interval.end)
            if delta.start > known + SLACK_S:
                self.doubt_between(known, delta.start)
                fresh += delta.start >= interval.start - SLACK_S
            if not delta.certain:
                self.doubt_between(delta.start, interval.end)
        self._leave_out(interval)
        if fresh and fresh == len(self.keys) and self.open is not None:
            self.lost = {**self.open.since, **self.lost}
            self.open = None
        return not self.behind

    def doubt_between(self, start: float, end: float) -> None:
        """Note that something may be missing; one stretch where it follows on the last, however long."""
        if self.doubt and self.doubt[-1][0] <= start <= self.doubt[-1][1] + SLACK_S:
            start, end = self.doubt[-1][0], max(end, self.doubt.pop()[1])
        self.doubt.append((start, end))

    def _leave_out(self, interval: Interval) -> None:
        """Go on without counters that cannot be read for long, as long as others tell."""
        if len(self.behind) == len(self.keys):
            return
        for key, since in list(self.behind.items()):
            if key in interval.unknown and interval.end - since >= LONGEST_WAIT_S:
                self.doubt_between(self.behind.pop(key), interval.end)
                self.left_out[key] = interval.end

    def _write_off_before(self, key: str, delta: Delta, end: float) -> int:
        """Return the part of a delta that is of time already booked without the counter: nobody's."""
        booked = self.left_out.pop(key, delta.start)
        if booked <= delta.start or end <= delta.start:
            return 0
        energy_uj = round(delta.energy_uj * (booked - delta.start) / (end - delta.start))
        self.measured_uj += energy_uj
        self.unattributed_uj += energy_uj
        return energy_uj

    def wait(self, piece: Span) -> None:
        """Leave an interval open."""
        self.open = self._with(piece)

    def close(self, piece: Span) -> Span:
        """Return all of the time that is open, this interval included, and begin a new one."""
        whole, self.open = self._with(piece), None
        return whole

    def doubtful_s(self, job: str, since: float) -> float:
        """Return seconds in which something may be missing of a job that was there from `since` on."""
        total_s, known = 0.0, self.lost.get(job, since)
        for start, end in sorted(self.doubt):
            total_s += max(0.0, end - max(start, known))
            known = max(known, end)
        return total_s

    def _with(self, piece: Span) -> Span:
        return piece if self.open is None else self.open.then(piece)

    def dump(self) -> dict[str, Any]:
        """Return JSON-ready data, without the keys."""
        data = {name: getattr(self, name) for name in self.__slots__ if name != "keys"}
        return {**data, "open": self.open.dump() if self.open else None}

    def load(self, data: Mapping[str, Any]) -> None:
        """Read the output of `dump`."""
        for name, value in data.items():
            setattr(self, name, value)
        self.behind = {key: since for key, since in self.behind.items() if key in self.keys}
        self.doubt = [(start, end) for start, end in data["doubt"]]
        self.open = Span.load(data["open"]) if data["open"] else None
