"""Measurement of throttling: for how many seconds components were throttled between two samples.

The throttle sensors are read in turn, a few per sample.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_energy.devices.driver import DeviceError, ThrottleSensor

_ROUND = 8
"""Throttling is an estimate from samples, so only an eighth of the sensors is read at a time."""
_FRESH_S = 0.5
"""A sensor that was read less than this before is not read again when a job or step starts or ends."""


class ThrottleSampler:
    """Sampler that reads an eighth of the throttle sensors per sample.

    The value of a sensor is used until the sensor is read again.
    """

    def __init__(self, sensors: Sequence[ThrottleSensor]) -> None:
        self._sensors = list(sensors)
        self._read_at: list[float | None] = [None] * len(self._sensors)
        self._shares: list[float | None] = [None] * len(self._sensors)
        self._share_by_component: dict[str, float] = {}
        self._any_throttled = False
        self._step = -(-len(self._sensors) // _ROUND)
        self._next = 0

    def seconds(self, now: float, start: float | None, everything: bool) -> dict[str, float]:
        """Return the seconds of throttling between two samples by component.

        If a component has several sensors, the maximum of the sensors counts. A component without a readable
        sensor is absent.

        Args:
            now: time of this sample, in seconds since boot.
            start: time of the previous sample, in seconds since boot; None for the first sample.
            everything: whether to read all sensors, except sensors that were read just before. If False, only
                the sensors whose turn it is are read.
        """
        if not self._sensors:
            return {}
        if everything:
            changed = [
                self._read(index, now, start)
                for index, read_at in enumerate(self._read_at)
                if read_at is None or not 0 <= now - read_at < _FRESH_S
            ]
        else:
            changed = [self._read(self._take_turn(), now, start) for _ in range(self._step)]
        if any(changed):
            self._update_shares()
        if start is None or not self._any_throttled:
            return self._share_by_component
        length_s = now - start
        return {name: share * length_s for name, share in self._share_by_component.items()}

    def _take_turn(self) -> int:
        turn = self._next
        self._next = (turn + 1) % len(self._sensors)
        return turn

    def _read(self, index: int, now: float, start: float | None) -> bool:
        """Read one sensor and return whether its value changed.

        Args:
            index: index of the sensor.
            now: time of this sample, in seconds since boot.
            start: time of the previous sample, in seconds since boot; None for the first sample.
        """
        since, before = self._read_at[index], self._shares[index]
        since = start if since is None else since
        length_s = now - since if since is not None else 0.0
        self._read_at[index] = now
        try:
            seconds = self._sensors[index].throttled_s(length_s)
            self._shares[index] = min(1.0, seconds / length_s) if length_s > 0 else 0.0
        except DeviceError:
            self._shares[index] = None
        return self._shares[index] != before

    def _update_shares(self) -> None:
        self._share_by_component = {}
        for sensor, share in zip(self._sensors, self._shares, strict=True):
            if share is not None:
                self._share_by_component[sensor.component] = max(
                    share, self._share_by_component.get(sensor.component, 0.0)
                )
        self._any_throttled = any(self._share_by_component.values())
