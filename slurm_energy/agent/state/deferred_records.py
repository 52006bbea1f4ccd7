"""Records that the controller cannot take yet, such as those of a newer schema, and when to try them again.

All of them wait together. When their pause is over one record is sent as a probe: if it is taken, the others
follow at once; if not, the pause doubles. Records that do not wait are never held up.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

FIRST_PAUSE_S = 30.0
MAX_PAUSE_S = 600.0


@dataclass(slots=True)
class DeferredRecords:
    """The records that wait, by file name, the least recently tried first.

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
        """Return the number of records that wait."""
        return len(self._names)

    def add(self, name: str, reason: str, now: float) -> None:
        """Let a record wait; a probe that comes back doubles the pause."""
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
        """Return the records not to send now: all that wait, but for the probe when it is due."""
        if not self._names:
            return frozenset()
        if now < self._due:
            return self._names.keys()
        self._probe = next(iter(self._names))
        return self._names.keys() - {self._probe}

    def forget(self, name: str) -> None:
        """Remove a record that was taken or put aside; if it was the probe, the others may be sent."""
        if name == self._probe:
            self.release()
        self._names.pop(name, None)

    def release(self) -> None:
        """Let every record be sent at once."""
        self._names.clear()
        self._pause_s, self._due, self._probe = FIRST_PAUSE_S, 0.0, None

    def pause_s(self, now: float) -> float | None:
        """Return the seconds until the next probe; None if nothing waits."""
        return max(0.0, self._due - now) if self._names else None
