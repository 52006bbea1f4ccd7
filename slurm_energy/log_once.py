"""Log a repeated failure only when it begins and when it ends, so that the log stays readable."""

from __future__ import annotations

import logging
import re
import traceback
from typing import Final

_NUMBER: Final = re.compile(r"\d+")
_MAX_ERROR_KINDS: Final = 100


class RepeatedFailureLog:
    """Log of failures by subject. A failure is logged again only when its reason changes.

    Args:
        log: logger that receives the messages.
        ignore_numbers: treat two reasons as the same if they differ only in their numbers.
    """

    def __init__(self, log: logging.Logger, *, ignore_numbers: bool = False) -> None:
        self._log = log
        self._ignore_numbers = ignore_numbers
        self._current: dict[str, str] = {}

    def report(self, subject: str, reason: str, level: int = logging.WARNING) -> None:
        """Log a failure unless the last report about `subject` had the same reason.

        Args:
            subject: name of the device, file or daemon that fails; the message in the log starts with this
                name.
            reason: why the subject fails.
            level: log level.
        """
        compared = _NUMBER.sub("0", reason) if self._ignore_numbers else reason
        if self._current.get(subject) != compared:
            self._current[subject] = compared
            self._log.log(level, "%s: %s", subject, reason)

    def clear(self, subject: str, message: str = "works again") -> None:
        """Log that the failure of `subject` is over. Do nothing if no failure of `subject` was reported."""
        if self._current.pop(subject, None) is not None:
            self._log.info("%s: %s", subject, message)


class UnexpectedErrorLog:
    """Log of programming errors. Each error is logged once, with its traceback.

    Two errors count as the same error if they have the same context, type and line of code. After a hundred
    different errors, no further errors are logged. Therefore no sequence of requests can fill the log.

    Args:
        log: logger that receives the messages.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: set[str] = set()

    def report(self, error: Exception, message: str, context: str = "") -> None:
        """Log an error with its traceback unless the same error was logged before.

        Args:
            error: the exception, which must have been raised.
            message: text of the line in the log.
            context: any text; errors with different contexts are different errors.
        """
        frame = traceback.extract_tb(error.__traceback__)[-1]
        identity = f"{context} {type(error).__name__} {frame.filename}:{frame.lineno}"
        if identity not in self._logged and len(self._logged) < _MAX_ERROR_KINDS:
            self._logged.add(identity)
            self._log.error("%s", message, exc_info=error)
