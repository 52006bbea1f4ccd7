"""Power sensor for slow or unreliable sources: a thread measures, and `read` returns without waiting."""

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
"""Maximum number of stored readings. A caller that reads rarely gets all readings since its last call."""
NO_READING_YET = "no reading yet"
"""Reason stated in the error before the first measurement is complete."""


class PolledPowerSensor(PowerSensor):
    """A sensor whose thread calls `measure` every `interval_s` seconds.

    After each failure the pause before the next call doubles, up to one minute. The first `read` starts the
    thread. The thread is a daemon thread, so that a source that never responds does not delay the end of the
    process.
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
        """Create the sensor; the first `read` starts its thread.

        Args:
            key: unique name.
            component: component of an energy record.
            source: name of the interface.
            max_watts: upper bound of the component's power in watts.
            interval_s: seconds between measurements.
            measure: function that returns watts, or raises DeviceError. It may block for a long time.
            release: function that the thread calls when it ends; None if nothing has to be released.
            clock: function that returns seconds since boot.
            lag_s: mean age in seconds of the power values that the source reports.
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
        """Return the newest reading of the power; the sensor is measured by a separate thread.

        Raises:
            DeviceError: no measurement has completed yet, or the last one failed.
        """
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name=f"poll {self.key}", daemon=True)
            self._thread.start()
        newest = self._newest
        if newest is None:
            raise DeviceError(self.key, self._why)
        return newest

    def readings(self) -> Sequence[PowerReading]:
        """Return the measurements of the sensor since the last call, the newest last.

        If there is no new measurement, the newest earlier measurement is returned again.

        Raises:
            DeviceError: no measurement has completed yet, or the last one failed.
        """
        newest = self.read()
        unread = [self._unread.popleft() for _ in range(len(self._unread))]
        return unread or [newest]

    def close(self) -> None:
        """Stop the thread. If `measure` is waiting for a response, the thread ends after that response."""
        self._stop.set()

    def _run(self) -> None:
        pause_s = self.interval_s
        while not self._stop.is_set():
            requested_s = self._clock()
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
                # The source measured between the request and now. The middle is the best estimate.
                self._newest = PowerReading((requested_s + self._clock()) / 2 - self._lag_s, watts)
                self._unread.append(self._newest)
                pause_s = self.interval_s
            self._stop.wait(max(0.0, requested_s + pause_s - self._clock()))

        if self._release is not None:
            self._release()

    def _fail(self, why: str) -> None:
        self._why, self._newest = why, None

    def _longer(self, pause_s: float) -> float:
        return min(2 * pause_s, max(_MAX_PAUSE_S, self.interval_s))
