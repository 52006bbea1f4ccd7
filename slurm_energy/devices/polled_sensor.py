"""A gauge whose source is slow or may hang: measured in a thread of its own, read without waiting."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.power_sensor import PowerReading, PowerSensor, boottime_s

log = logging.getLogger(__name__)

_MAX_PAUSE_S = 60.0
_MAX_UNREAD = 1000
"""Readings that are kept for somebody who asks seldom; he then knows how power went in between."""
NO_READING_YET = "no reading yet"
"""Why there is no reading as long as the first one is under way."""


class PolledPowerSensor(PowerSensor):
    """Calls `measure` every `interval_s` seconds; after failures with growing pauses, up to a minute.

    The thread starts with the first `read` and is a daemon: a source that never answers holds nobody up.
    """

    def __init__(
        self,
        key: str,
        component: str,
        source: str,
        max_watts: float,
        interval_s: float,
        measure: Callable[[], float],
        release: Callable[[], None] | None = None,
        clock: Callable[[], float] = boottime_s,
        lag_s: float = 0.0,
    ) -> None:
        """Describe the gauge, see `PowerSensor`.

        `measure` returns watts, may take long and raises DeviceError; `release` is called at the end by
        the thread that measures; `clock` tells seconds since boot; `lag_s` is how far back in time what the
        source tells lies on average.
        """
        self.key = key
        self.component = component
        self.source = source
        self.max_watts = max_watts
        self.interval_s = interval_s
        self._measure = measure
        self._release = release
        self._clock = clock
        self._lag_s = lag_s
        self._newest: PowerReading | None = None
        self._unread: deque[PowerReading] = deque(maxlen=_MAX_UNREAD)
        self._why = NO_READING_YET
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> PowerReading:
        """Return the newest reading.

        Raises:
            DeviceError: there was none yet, or the last attempt failed.
        """
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name=f"poll {self.key}", daemon=True)
            self._thread.start()
        newest = self._newest
        if newest is None:
            raise DeviceError(self.key, self._why)
        return newest

    def readings(self) -> Sequence[PowerReading]:
        """Return what was measured since the last call; at least the newest reading.

        Raises:
            DeviceError: there was none yet, or the last attempt failed.
        """
        newest = self.read()
        found = [self._unread.popleft() for _ in range(len(self._unread))]
        return found or [newest]

    def close(self) -> None:
        """Tell the thread to end; one that waits for an answer ends after it."""
        self._stop.set()

    def _run(self) -> None:
        pause_s = self.interval_s
        while not self._stop.is_set():
            asked_s = self._clock()
            try:
                watts = self._measure()
            except DeviceError as error:
                self._fail(error.why or error.what)
                pause_s = self._longer(pause_s)
            except Exception:
                log.exception("%s: unexpected failure", self.key)
                self._fail("unexpected failure, see the log")
                pause_s = self._longer(pause_s)
            else:
                # The source answered between asking and now; the middle is the best guess.
                self._newest = PowerReading((asked_s + self._clock()) / 2 - self._lag_s, watts)
                self._unread.append(self._newest)
                pause_s = self.interval_s
            self._stop.wait(max(0.0, asked_s + pause_s - self._clock()))

        if self._release is not None:
            self._release()

    def _fail(self, why: str) -> None:
        self._why, self._newest = why, None

    def _longer(self, pause_s: float) -> float:
        return min(2 * pause_s, max(_MAX_PAUSE_S, self.interval_s))
