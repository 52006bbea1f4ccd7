"""Lowest power limit that each device keeps in practice.

A device may not reach the whole range of limits that its driver states. Under full load, a package or GPU
may draw more than a low limit even at its minimum frequency. The stated range of packages often has no lower
bound at all.

A budget sets a power limit (ceiling) for each device. A ceiling that a device exceeds does not bound the
device's power. The power that such a device draws is its lowest reachable limit.

The lowest reachable limit depends on the program and is therefore unknown when a job starts. Until the power
of the job shows this limit, the device counts with a power that nearly no program exceeds at the device's
lowest limit.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
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
_START_S: Final = 3.0
"""Time after the start of a job after which its own power shows whether it keeps the lowest limit."""
START_GPU_RATIO: Final = 1.4
"""Power of a GPU with an unknown program at its driver's lowest limit, divided by that limit. Memory-bound
programs draw up to 1.37 times the limit."""
HOST_SHARE: Final = 0.5
"""Power of a package that feeds GPUs at its lowest limit, divided by its maximum limit, until it is known."""
START_SHARE: Final = 0.9
"""Share of the power of a start that must be free for the start. The other power varies by the rest."""
_MAX_SHARE: Final = 1.0
"""Power divided by the maximum limit above which an excess is no property of a low limit, but a fault.
Packages of the lab draw up to 0.91 of it at their lowest frequency."""


class ReachableLimits:
    """Lowest power limit that each device of a node actually respects.

    The limits are learned from the node's polls. A device may accept a low limit and yet draw more than this
    limit under full load.
    """

    def __init__(self) -> None:
        self._states: dict[str, _DeviceState] = {}

    def apply(self, poll: NodePoll, now_s: float, *, is_trusted: bool = True) -> NodePoll:
        """Return the report of a node with corrected minimum power limits of the devices.

        The minimum limit of a device is replaced by the lowest limit that the device really reaches.

        Args:
            poll: report of the node's agent.
            now_s: time of the report on a monotonic clock.
            is_trusted: whether the node's sensors are trusted. If not, everything that was learned from
                these sensors is discarded, and the report is returned unchanged.
        """
        if not is_trusted:
            self._states.clear()
            return poll
        devices = tuple(self._with_reachable_minimum(device, now_s) for device in poll.devices)
        return dataclasses.replace(poll, devices=devices) if devices != poll.devices else poll

    def start_watts(self, name: str) -> float:
        """Return the power in watts to expect from a device when a job starts on it.

        The value assumes that the device has its lowest power limit. Some devices draw more than this limit.
        The value is known while the device is idle or while jobs start on it. Afterwards it is 0, because the
        measured power of the device is used.
        """
        state = self._states.get(name)
        return 0.0 if state is None else state.start_watts

    def reachable_watts(self, name: str) -> float:
        """Return the power that a device may draw at its lowest limit with its present jobs.

        Until the device has had its lowest limit with these jobs, the result is an assumption. For a GPU, it
        is a power that nearly no program exceeds. For a package, it is infinity, because the power of a
        package at its lowest frequency cannot be predicted.
        """
        state = self._states.get(name)
        return math.inf if state is None else state.reachable_watts

    def _with_reachable_minimum(self, device: DeviceReport, now_s: float) -> DeviceReport:
        if device.min_watts is None or device.max_watts is None:
            return device
        state = self._states.setdefault(device.name, _DeviceState())
        min_watts = state.update(device, now_s)
        return device if min_watts == device.min_watts else dataclasses.replace(device, min_watts=min_watts)


@dataclass(slots=True)
class _DeviceState:
    """What is known about one device whose power a budget limits.

    A ceiling is the upper bound that the budget sets on the device's power limit. A device cannot always
    keep a low ceiling: its power may stay above it. The present jobs are those in `job_ids`.

    Attributes:
        job_ids: jobs that use the device.
        started_s: time at which the first report named these jobs.
        exceeds_since_s: time since which the power of the device is above its ceiling; None means that the
            power is not above the ceiling.
        learned_watts: lowest power to which the device can be limited with the present jobs, learned from
            measured power above the ceiling; 0 means unknown.
        highest_watts: maximum of `learned_watts` over all jobs so far.
        start_watts: power that the device may draw at its lowest limit while a job starts; 0 means that the
            jobs have started.
        reachable_watts: power that the device may draw at its lowest limit with the present jobs.
        keeps_lowest: whether the power of the device has stayed within its lowest limit with the present
            jobs.
    """

    job_ids: tuple[int, ...] = ()
    started_s: float = -math.inf
    exceeds_since_s: float | None = None
    learned_watts: float = 0.0
    highest_watts: float = 0.0
    start_watts: float = 0.0
    reachable_watts: float = math.inf
    keeps_lowest: bool = False

    def update(self, device: DeviceReport, now_s: float) -> float:
        """Update what is known about a device from its report. Return its lowest reachable limit.

        This is the lowest power limit that the device does not exceed while it runs its present jobs.

        Args:
            device: report of a device with a range of limits.
            now_s: time of the report.
        """
        if not set(device.job_ids) & set(self.job_ids) and device.job_ids != self.job_ids:
            self.started_s, self.learned_watts, self.exceeds_since_s = now_s, 0.0, None
            self.keeps_lowest = False
        self.job_ids = device.job_ids
        has_started = bool(device.job_ids) and now_s - self.started_s >= _START_S
        self.start_watts = 0.0 if has_started else self._unknown_watts(device)
        known_watts = self._lowest_watts(device, now_s)
        is_lowest = device.ceiling_watts is not None and device.ceiling_watts <= _LOWEST_RATIO * known_watts
        self.keeps_lowest |= has_started and is_lowest and self.exceeds_since_s is None
        is_known = self.keeps_lowest or self.learned_watts > 0
        unknown_watts = max(known_watts, self._unknown_watts(device)) if _is_gpu(device) else math.inf
        self.reachable_watts = known_watts if is_known else unknown_watts
        return known_watts

    def _lowest_watts(self, device: DeviceReport, now_s: float) -> float:
        """Return the lowest power to which the device can be limited.

        If the device exceeds the limit of a power budget (ceiling) for a long time, this power is updated to
        the measured power.
        """
        known_watts = max(device.min_watts or 0.0, self.learned_watts)
        watts = device.watts
        exceeds = watts is not None and known_watts < watts <= _plausible_watts(device)
        if not (exceeds and _exceeds_ceiling(device, known_watts)):
            self.exceeds_since_s = None
            return known_watts
        if self.exceeds_since_s is None:
            self.exceeds_since_s = now_s
        if now_s - self.exceeds_since_s >= _SHORT_S:
            known_watts = self.learned_watts = watts or 0.0
            self.highest_watts = max(self.highest_watts, known_watts)
        return known_watts

    def _unknown_watts(self, device: DeviceReport) -> float:
        """Return a cautious estimate of the power that an unknown program draws at the lowest limit.

        The limit is the lowest power limit of the device.
        """
        watts = START_GPU_RATIO * (device.min_watts or 0.0) if _is_gpu(device) else 0.0
        return min(max(watts, self.highest_watts), device.max_watts or 0.0)


def _exceeds_ceiling(device: DeviceReport, lowest_watts: float) -> bool:
    """Return whether a device draws clearly more power than its ceiling permits.

    The ceiling is the upper bound that a budget sets for the power limit. If the result is true, the lowest
    limit that the device can keep is higher than assumed. The assumption must then be corrected.

    Args:
        device: report of the device.
        lowest_watts: lowest reachable limit known so far.
    """
    watts, ceiling = device.watts, device.ceiling_watts
    if watts is None or ceiling is None:
        return False
    is_lowest = ceiling <= _LOWEST_RATIO * lowest_watts
    if _is_gpu(device) and not (is_lowest and device.job_ids):
        return False
    return watts > (_EXCESS_RATIO if is_lowest else _LARGE_RATIO) * ceiling + _EXCESS_WATTS


def _plausible_watts(device: DeviceReport) -> float:
    """Return the highest power in watts at which a device may still have its lowest reachable limit.

    The lowest reachable limit is the power that the device still draws at its lowest power limit. A
    measurement above the returned value is not taken as this limit. It is assumed to be a fault of the
    sensor.
    """
    highest = _MAX_SHARE * (device.max_watts or 0.0)
    return min(highest, _MAX_GPU_RATIO * (device.min_watts or 0.0)) if _is_gpu(device) else highest


def _is_gpu(device: DeviceReport) -> bool:
    return device.name.startswith("gpu")
