"""Records that the controller cannot accept yet, for example records of a newer schema.

All deferred records wait together. After a pause one of these records is sent as a probe. If the controller
accepts the probe, all other deferred records are sent at once; otherwise the pause doubles. Deferred records
never delay other records.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

FIRST_PAUSE_S = 30.0
MAX_PAUSE_S = 600.0


@dataclass(slots=True)
class DeferredRecords:
    """The file names of the deferred records.

    The names are ordered by the time of the last delivery attempt, oldest first.

    All times are seconds of the monotonic clock.

    Attributes:
        reason: why the most recently deferred record was deferred.
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
        """Defer a record.

        If the record was sent as a probe (see `withheld`), the pause before the next probe doubles.

        Args:
            name: file name of the record.
            reason: one line that explains why the record is deferred.
            now: seconds of the monotonic clock.
        """
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
        """Return the file names of the records that must not be sent now.

        During the pause after a refusal no deferred record may be sent. After the pause the first deferred
        record may be sent as a probe, which shows whether the controller accepts the records now. All other
        deferred records stay withheld.
        """
        if not self._names:
            return frozenset()
        if now < self._due:
            return self._names.keys()
        self._probe = next(iter(self._names))
        return self._names.keys() - {self._probe}

    def forget(self, name: str) -> None:
        """Remove a record from the deferred records, after the controller has accepted or rejected it.

        If the record was sent as a probe, to test whether the controller accepts records again (see
        `withheld`), all other records may now be sent.
        """
        if name == self._probe:
            self.release()
        self._names.pop(name, None)

    def discard(self, name: str) -> None:
        """Remove a record whose file was deleted before the controller accepted or rejected the record.

        The other records stay deferred.
        """
        if name == self._probe:
            self._probe = None
        self._names.pop(name, None)

    def release(self) -> None:
        """Stop deferring the records: empty the list, so that all its records can be sent at once."""
        self._names.clear()
        self._pause_s, self._due, self._probe = FIRST_PAUSE_S, 0.0, None

    def pause_s(self, now: float) -> float | None:
        """Return the seconds until the next attempt to deliver a deferred record.

        Deferred records are records that the controller cannot accept yet. After each pause, one of them is
        sent as a test. The result is None if no record is deferred.

        Args:
            now: current time in seconds of the monotonic clock.
        """
        return max(0.0, self._due - now) if self._names else None
