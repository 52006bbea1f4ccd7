"""Power of a node's parts without a power limit: memory, board, fans and losses."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Final

_DECAY_S: Final = 3600.0
_WINDOW: Final = 31
"""Number of polls from which the power is computed, as a median of differences. Sensors of whole nodes lag
behind those of devices, so that single differences are wrong when jobs start or end."""
UNKNOWN_SLOPE: Final = 0.12
"""Watts of the other parts per watt of the devices before the slope is learned: power supplies lose up to
12 %."""
MAX_SLOPE: Final = 0.25
_STEADY: Final = 0.05
"""Maximum relative change of the devices' power over three polls for the slope to be fitted to it."""
_PRIOR_POLLS: Final = 10.0
_PRIOR_SPREAD: Final = 0.05
"""The slope before it is learned weighs as much as this number of polls with this relative spread."""
_LOWERED_SHARE: Final = 0.5
"""Share of the slope that counts if the devices may draw less than before: fans slow down with a delay."""
_KEPT: Final = 0.999  # weight of earlier polls, per poll


class OtherPower:
    """Estimate of the power that a node needs for its other parts, i.e. all parts except its devices.

    The estimate is learned from readings of the node. The attribute `value` is the maximum of the recent
    readings. These readings were taken while the devices drew `device_watts`. The method `watts_at`
    returns the estimate for any other power of the devices. It adds `slope` watts to `value` for each
    watt of the devices above `device_watts`. It subtracts half of `slope` for each watt below
    `device_watts`. The slope is fitted by least squares. No slope is applied to a power that was restored
    from storage, or on a node without a sensor of the whole node.

    Attributes:
        value: maximum of recent readings of the other parts' power in watts; None means unknown.
        device_watts: power of the devices up to which `value` applies without addition.
    """

    __slots__ = ("_last", "_sums", "_time_s", "_window", "device_watts", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        self.device_watts = 0.0
        self._time_s = 0.0
        self._window: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self._last: tuple[float, float] = (math.nan, math.nan)
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # weight, means of x and y, sums of squares xx and xy

    @property
    def slope(self) -> float:
        """Increase of the power of a node's other parts per watt of additional power of its devices.

        The value ranges from 0 to `MAX_SLOPE`.
        """
        _, mean, _, xx, xy = self._sums
        prior = _PRIOR_POLLS * (_PRIOR_SPREAD * max(mean, 1.0)) ** 2
        return min(MAX_SLOPE, max(0.0, (xy + UNKNOWN_SLOPE * prior) / (xx + prior)))

    def watts_at(self, device_watts: float) -> float:
        """Return the power of the parts of a node other than its devices; 0 means unknown.

        The result is the power that these parts need if the devices draw `device_watts`.
        """
        value = self.value or 0.0
        if not self._window:
            return value
        more_watts = device_watts - self.device_watts
        return value + self.slope * (more_watts if more_watts > 0 else _LOWERED_SHARE * more_watts)

    def add(self, device_watts: float, other_watts: float, now_s: float) -> None:
        """Take one reading of a node's power into account.

        The object learns from the readings how much power the node draws besides its devices.

        Args:
            device_watts: power of the node's devices.
            other_watts: power of the rest of the node.
            now_s: time of the reading in seconds.
        """
        if all(abs(watts - device_watts) <= _STEADY * device_watts for watts in self._last):
            self._fit(device_watts, other_watts)
        self._last = (self._last[1], device_watts)
        self._window.append((device_watts, other_watts))
        devices, others = zip(*self._window, strict=True)
        self.update(statistics.median(others), now_s, statistics.median(devices))

    def update(self, other_watts: float, now_s: float, device_watts: float = 0.0) -> None:
        """Update the estimate of the power of a node's other parts with a new reading.

        A higher reading raises `value` to the reading at once. A lower reading lowers `value` slowly.

        Args:
            other_watts: new reading: power of the other parts.
            now_s: current time in seconds.
            device_watts: power of the devices at the time of the reading; 0 if it is unknown.
        """
        if self.value is None or other_watts >= self.value:
            self.value, self.device_watts = other_watts, device_watts
        else:
            part = -math.expm1(-max(0.0, now_s - self._time_s) / _DECAY_S)
            self.value += (other_watts - self.value) * part
            self.device_watts += (device_watts - self.device_watts) * (
                1.0 if device_watts > self.device_watts else part
            )
        self._time_s = now_s

    def _fit(self, x: float, y: float) -> None:
        weight, mean_x, mean_y, xx, xy = self._sums
        weight = weight * _KEPT + 1.0
        off_x, off_y = x - mean_x, y - mean_y
        mean_x, mean_y = mean_x + off_x / weight, mean_y + off_y / weight
        self._sums = (
            weight,
            mean_x,
            mean_y,
            xx * _KEPT + off_x * (x - mean_x),
            xy * _KEPT + off_x * (y - mean_y),
        )
