"""Lowest power limit that each device keeps in practice.

The range of limits that a driver states need not be reachable: at its lowest frequency a package or GPU under
full load may draw more than a low limit, and the range of packages often has no lower bound at all. A ceiling
that a device exceeds is no bound of its power. The power that the device draws there is its lowest limit.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from slurm_energy.budget.messages import DeviceReport, NodePoll

_EXCESS_RATIO, _EXCESS_WATTS = 1.05, 2.0
"""Excess over a ceiling at the lowest limit that counts. A smaller one may be an error of the sensor."""
_LARGE_RATIO: Final = 1.3
"""Excess over a higher ceiling that counts. Smaller ones end when the ceiling is lowered."""
_LOWEST_RATIO: Final = 1.02
"""Ceiling at the lowest limit, divided by that limit."""
_SHORT_S: Final = 2.5
"""Time for which a device must exceed its ceiling, because a power limit has an averaging window."""
_MAX_GPU_RATIO: Final = 1.6
"""Power of a GPU divided by its driver's lowest limit above which an excess is a fault: drivers state limits
that GPUs nearly keep. The excess is mostly memory traffic, which lower clocks of the cores do not end."""
_MAX_SHARE: Final = 0.9
"""Share of the maximum limit above which an excess is no property of a low limit, but a fault."""


class ReachableLimits:
    """Lowest reachable limits of the devices of one node, learned from its polls."""

    def __init__(self) -> None:
        self._min_watts: dict[str, float] = {}
        self._since_s: dict[str, float] = {}

    def apply(self, poll: NodePoll, now_s: float, *, is_trusted: bool = True) -> NodePoll:
        """Return the poll with the lowest reachable limits as minimum limits.

        Args:
            poll: the poll.
            now_s: time of the poll on a monotonic clock.
            is_trusted: whether the node's sensors are trusted. Otherwise all that was learned from them is
                forgotten.
        """
        if not is_trusted:
            self._min_watts.clear()
            self._since_s.clear()
            return poll
        devices = tuple(self._with_reachable_minimum(device, now_s) for device in poll.devices)
        return dataclasses.replace(poll, devices=devices) if devices != poll.devices else poll

    def _with_reachable_minimum(self, device: DeviceReport, now_s: float) -> DeviceReport:
        if device.min_watts is None or device.max_watts is None:
            return device
        watts = device.watts
        known_watts = max(device.min_watts, self._min_watts.get(device.name, 0.0))
        exceeds = watts is not None and known_watts < watts <= _plausible_watts(device)
        exceeds = exceeds and _exceeds_ceiling(device, known_watts)
        if not exceeds:
            self._since_s.pop(device.name, None)
        elif now_s - self._since_s.setdefault(device.name, now_s) >= _SHORT_S:
            known_watts = self._min_watts[device.name] = watts or 0.0
        if known_watts == device.min_watts:
            return device
        return dataclasses.replace(device, min_watts=known_watts)


def _exceeds_ceiling(device: DeviceReport, lowest_watts: float) -> bool:
    """Whether a device exceeds its ceiling so that only a higher lowest limit explains it.

    Args:
        device: report of the device.
        lowest_watts: lowest limit known so far.
    """
    watts, ceiling = device.watts, device.ceiling_watts
    if watts is None or ceiling is None:
        return False
    is_lowest = ceiling <= _LOWEST_RATIO * lowest_watts
    if _is_gpu(device) and not (is_lowest and device.job_ids):
        return False
    return watts > (_EXCESS_RATIO if is_lowest else _LARGE_RATIO) * ceiling + _EXCESS_WATTS


def _plausible_watts(device: DeviceReport) -> float:
    """Return the highest power that may be a lowest limit; a higher one is a fault of the sensor."""
    highest = _MAX_SHARE * (device.max_watts or 0.0)
    return min(highest, _MAX_GPU_RATIO * (device.min_watts or 0.0)) if _is_gpu(device) else highest


def _is_gpu(device: DeviceReport) -> bool:
    return device.name.startswith("gpu")
