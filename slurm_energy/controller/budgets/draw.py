"""Expected power of a device without a power limit, estimated from the power that its node reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

AT_LIMIT_SHARE: Final = 0.97
"""Share of the limit above which a device counts as held back by it."""
GROWTH: Final = 1.4
"""Factor by which the expected power grows per report while the limit holds the device back."""
SLACK: Final = 1.06
"""Expected power divided by the highest power seen, so that a device below its limit does not count as held
back by noise."""
START_S: Final = 10.0
"""Time after the start of a job for which its measured power may still be that of its start-up."""
KNOWN_S: Final = 300.0
"""Time after which a peak that was seen without a limit is unknown again."""
_PEAK_DECAY_S: Final = 120.0
_LIMITED_DECAY_S: Final = 10.0
_IDLE_DECAY_S: Final = 600.0


@dataclass(slots=True)
class DecayingMaximum:
    """Maximum of recent values, with decay.

    A larger value raises the maximum at once. Otherwise the maximum decays towards smaller values with a
    time constant.

    Attributes:
        decay_s: time constant of the decay in seconds.
        value: the present maximum; None means that no value was added yet.
    """

    decay_s: float
    value: float | None = None
    _time_s: float = 0.0

    def update(self, value: float, now_s: float) -> None:
        """Update the maximum with a new value at time `now_s`.

        A lower value lets the maximum decay towards it.
        """
        if self.value is None or value >= self.value:
            self.value = value
        else:
            self.value += (value - self.value) * -math.expm1(-max(0.0, now_s - self._time_s) / self.decay_s)
        self._time_s = now_s


class DeviceDraw:
    """Estimates of a device's power, which are updated with each report of its node.

    One estimate is the power that the device would draw with its present jobs if it had no power limit. The
    other estimate is the power of the idle device.

    Attributes:
        idle: power of the device while no job uses it.
        limited_share: share of the last seconds in which the power limit held the device back, from 0 to 1.
    """

    __slots__ = (
        *("_held_back_watts", "_job_ids", "_peak", "_peak_s", "_started_s", "_updated_s"),
        *("idle", "limited_share"),
    )

    def __init__(self) -> None:
        self.idle = DecayingMaximum(_IDLE_DECAY_S)
        self._begin((), -math.inf)

    def _begin(self, job_ids: tuple[int, ...], now_s: float) -> None:
        self._job_ids, self._started_s = job_ids, now_s
        self._peak = DecayingMaximum(_PEAK_DECAY_S)
        self._peak_s = -math.inf
        self._held_back_watts: float | None = None
        self.limited_share, self._updated_s = 0.0, now_s

    def update(
        self, watts: float | None, limit_watts: float | None, job_ids: tuple[int, ...], now_s: float
    ) -> None:
        """Update the estimates of the device's power with a new report of its node.

        Args:
            watts: mean power since the last report; None if unknown.
            limit_watts: power limit of the device; None means that the device has no power limit.
            job_ids: jobs that use the device.
            now_s: time of the report in seconds.
        """
        if job_ids != self._job_ids:
            is_first = not set(job_ids) & set(self._job_ids)
            if is_first:
                self._begin(job_ids, now_s)
                return  # the mean power since the last report partly belongs to the time before the change
            self._job_ids = job_ids
        if watts is None:
            return
        is_limited = limit_watts is not None and watts >= AT_LIMIT_SHARE * limit_watts
        part = -math.expm1(-max(0.0, now_s - self._updated_s) / _LIMITED_DECAY_S)
        self.limited_share += (float(is_limited) - self.limited_share) * part
        self._updated_s = now_s
        if not job_ids:
            self.idle.update(watts, now_s)
        elif is_limited:
            self._held_back_watts = watts
        else:
            self._held_back_watts = None
            self._peak.update(watts, now_s)
            self._peak_s = now_s

    def expected_watts(self, max_watts: float, predicted_watts: float | None, now_s: float) -> float:
        """Return the power that a device is expected to draw with its current jobs without a limit.

        The result is at most `max_watts`.

        Args:
            max_watts: highest power limit of the device.
            predicted_watts: power of the device predicted for its job; None means that no prediction exists.
            now_s: current time in seconds.
        """
        unknown = max_watts if predicted_watts is None else predicted_watts
        is_known = self._peak.value is not None and now_s - self._peak_s <= KNOWN_S
        if not is_known:
            expected = max(unknown, self._held_back_watts or 0.0)
        else:
            expected = (self._peak.value or 0.0) * SLACK
            if self._held_back_watts is not None:
                expected = max(expected, self._held_back_watts * GROWTH)
            if now_s - self._started_s < START_S:
                expected = max(expected, unknown)
        return min(expected, max_watts)
