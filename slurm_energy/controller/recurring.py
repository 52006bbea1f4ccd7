"""Log a failure that repeats once, and its end once, so that a log stays readable over a long outage."""

from __future__ import annotations

import logging


class Recurring:
    """Remembers per subject what was last said."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, str] = {}

    def failed(self, subject: str, message: str) -> None:
        """Log a warning unless the same one was the last about `subject`."""
        if self._said.get(subject) != message:
            self._said[subject] = message
            self._log.warning("%s: %s", subject, message)

    def works(self, subject: str) -> None:
        """Say that `subject` works again if its failure was logged."""
        if self._said.pop(subject, None) is not None:
            self._log.info("%s: works again", subject)
