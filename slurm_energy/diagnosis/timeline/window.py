"""Selection of the part of a job's time that a timeline shows.

The module also counts events: the events that are shown, the events outside this part, and the refused
events.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

NANOSECONDS: Final = 1_000_000_000
MAX_UNIX_S: Final = 4e9
"""Maximum Unix time in seconds. Later times, beyond the year 2096, count as errors."""


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Part of a job's time that a timeline shows. All times are Unix nanoseconds.

    Attributes:
        origin_ns: time 0 of the timeline; not after `from_ns`.
        from_ns: start of the window.
        to_ns: end of the window; after `from_ns`.
    """

    origin_ns: int
    from_ns: int
    to_ns: int

    @classmethod
    def of_seconds(cls, origin_s: float, from_s: float, to_s: float) -> TimeWindow:
        """Return the window between two Unix times in seconds. The window is at least 1 microsecond long."""
        from_ns = round(from_s * NANOSECONDS)
        to_ns = max(round(to_s * NANOSECONDS), from_ns + 1000)
        return cls(min(round(origin_s * NANOSECONDS), from_ns), from_ns, to_ns)

    @property
    def from_s(self) -> float:
        """Start of the time window in Unix seconds."""
        return self.from_ns / NANOSECONDS

    @property
    def to_s(self) -> float:
        """End of the window, Unix seconds."""
        return self.to_ns / NANOSECONDS

    def microseconds(self, unix_s: float) -> float:
        """Convert a Unix time to microseconds since the origin of the timeline."""
        return (unix_s * NANOSECONDS - self.origin_ns) / 1000

    def clip_s(self, start_s: float, end_s: float) -> tuple[float, float] | None:
        """Return the part of an interval (Unix seconds) inside the window.

        Return None if the whole interval is outside the window.
        """
        start_s, end_s = max(start_s, self.from_s), min(end_s, self.to_s)
        return (start_s, end_s) if start_s <= end_s else None


@dataclass(slots=True)
class EventTally:
    """Counts of the events of one input file of a timeline.

    An event is shown, lies outside the time window, or is refused.

    Attributes:
        shown: number of events in the timeline.
        outside: number of events outside the time window.
        refused: number of events that cannot be shown, by reason.
        first_offsets: position of the first refused event in the input, in bytes, for each reason; empty if
            unknown.
    """

    shown: int = 0
    outside: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    first_offsets: dict[str, int] = field(default_factory=dict)

    def refuse(self, reason: str, offset: int | None = None) -> None:
        """Count an event that cannot be shown."""
        if not self.refused[reason] and offset is not None:
            self.first_offsets[reason] = offset
        self.refused[reason] += 1
