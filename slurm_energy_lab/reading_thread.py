"""Thread that reads a value of a lab at a fixed rate while a `with` block runs.

The true power of the nodes is an example of such a value.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

Value = TypeVar("Value")


class ReadingThread(Generic[Value]):
    """Context manager that reads a value at a fixed rate in a thread.

    A reading that takes longer than the interval delays the next reading. An error of `read` ends the thread.
    The error is raised at the end of the block, so that missing readings do not go unnoticed.

    Args:
        read: function that returns the value.
        interval_s: seconds between two readings.
        clock: clock of `readings` in seconds.

    Attributes:
        readings: pairs of the time after a reading and the value.
    """

    def __init__(
        self, read: Callable[[], Value], interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read_value, self._interval_s, self._clock = read, interval_s, clock
        self._stopped = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="readings", daemon=True)
        self.readings: list[tuple[float, Value]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error

    @property
    def values(self) -> list[Value]:
        """The values that the thread has read, without the times of the readings."""
        return [value for _, value in self.readings]

    def _run(self) -> None:
        next_s = time.monotonic()
        try:
            while not self._stopped.wait(max(0.0, next_s - time.monotonic())):
                next_s = max(next_s + self._interval_s, time.monotonic())
                value = self._read_value()
                self.readings.append((self._clock(), value))
        except Exception as error:
            self._error = error
