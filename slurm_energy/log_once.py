"""Failures that repeat are logged once, and once more when they are over."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Complaints:
    """What is wrong at present, by subject."""

    def __init__(self) -> None:
        self._present: dict[str, str] = {}

    def tell(self, subject: str, reason: str, level: int = logging.WARNING) -> None:
        """Log a failure unless the same was said about this subject last time."""
        if self._present.get(subject) != reason:
            log.log(level, "%s: %s", subject, reason)
            self._present[subject] = reason

    def settle(self, subject: str, text: str) -> None:
        """Log that a failure is over, if there was one."""
        if self._present.pop(subject, None) is not None:
            log.info("%s: %s", subject, text)
