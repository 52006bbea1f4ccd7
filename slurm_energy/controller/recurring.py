"""Log a failure that repeats once, and its end once, so that a log stays readable over a long outage."""

from __future__ import annotations

import logging
import re
from typing import Final

_NUMBER: Final = re.compile(r"\d+")


class Recurring:
    """Remembers per subject what was last said."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, str] = {}

    def failed(self, subject: str, message: str) -> None:
        """Log a warning unless the same one, but for its numbers, was the last about `subject`."""
        words = _NUMBER.sub("0", message)
        if self._said.get(subject) != words:
            self._said[subject] = words
            self._log.warning("%s: %s", subject, message)

    def works(self, subject: str) -> None:
        """Say that `subject` works again if its failure was logged."""
        if self._said.pop(subject, None) is not None:
            self._log.info("%s: works again", subject)
