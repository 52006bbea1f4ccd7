"""Records that the controller cannot take yet, such as those of a newer schema, and when to retry them.

All of them wait together. After the pause one record is sent as a probe. If it is accepted, the others follow
at once; otherwise the pause doubles. Deferred records never delay other records.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

FIRST_PAUSE_S = 30.0
MAX_PAUSE_S = 600.0


@dataclass(slots=True)
class DeferredRecords:
    """The deferred records by file name, the least recently tried first.

    Times are seconds of the monotonic clock.

    Attributes:
        reason: why the last of them was deferred.
    """

    reason: str = ""
    _names: dict[str, None] = field(default_factory=dict)
    _pause_s: float = FIRST_PAUSE_S
    _due: float = 0.0
    _probe: str | None = None

    def __len__(self) -> int:
        """Return the number of deferred records."""
        return len(self._names)

    def add(self, name: str, reason: str, now: float) -> None:
        """Defer a record; a probe that returns doubles the pause."""
        if name == self._probe:
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
            self._probe = None
            self._due = now + self._pause_s
        elif not self._names:
            self._due = now + self._pause_s
        self._names.pop(name, None)
        self._names[name] = None
        self.reason = reason

    def withheld(self, now: float) -> Set[str]:
        """Return the records not to send now: all deferred ones, except the probe when it is due."""
        if not self._names:
            return frozenset()
        if now < self._due:
            return self._names.keys()
        self._probe = next(iter(self._names))
        return self._names.keys() - {self._probe}

    def forget(self, name: str) -> None:
        """Remove an accepted or rejected record; if it was the probe, the others may be sent."""
        if name == self._probe:
            self.release()
        self._names.pop(name, None)

    def release(self) -> None:
        """Let every record be sent at once."""
        self._names.clear()
        self._pause_s, self._due, self._probe = FIRST_PAUSE_S, 0.0, None

    def pause_s(self, now: float) -> float | None:
        """Return the seconds until the next probe; None if no record is deferred."""
        return max(0.0, self._due - now) if self._names else None
