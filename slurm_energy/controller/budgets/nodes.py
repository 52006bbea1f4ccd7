"""State of nodes and devices in the budget engine.

The state comes from the polls of the nodes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from slurm_energy.budget.messages import DeviceReport, JobReport, NodePoll
from slurm_energy.budget.node_trust import NodeTrust
from slurm_energy.budget.reachable_limits import ReachableLimits
from slurm_energy.controller.budgets.draw import DecayingMaximum, DeviceDraw
from slurm_energy.controller.budgets.facts import JobRange
from slurm_energy.controller.budgets.other_power import OtherPower
from slurm_energy.controller.budgets.polls import UNKNOWN_JOB
from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number
from slurm_energy.tuning.response_curve import ResponseCurve

_MIN_POLLS: Final = 5
"""Number of polls without the power of the whole node after which this power counts as not measured."""
_UNLIMITED_DECAY_S: Final = 3600.0
_UNLIMITED_FACTOR: Final = 1.25
"""Power at which a device without a limit counts, as a multiple of its highest recent power."""


class BudgetDevice:
    """A device (CPU package or GPU) of a node under power budgets.

    Attributes:
        node: name of the node to which the device belongs.
        report: last report about the device.
        row: index of the device in the arrays of ceilings (upper bounds of power limits); -1 means that its
            power cannot be limited.
        is_gpu: whether the device is a GPU.
        min_watts, max_watts: range of the power limit. For a device without a power limit, `max_watts` is
            the power that the budgets assume for the device.
        requested_watts: power limit that the job on the device requests. Infinity means that the job
            requests no limit, or the device does not have exactly one job.
        start_watts: power that the device may draw at its lowest limit while a job starts; 0 means that no
            job starts.
        reachable_watts: power that the device may draw at its lowest limit with its present jobs; infinity
            means that this power is unknown.
        draw: estimates of the device's power.
    """

    __slots__ = (
        *("_peak", "draw", "is_gpu", "max_watts", "min_watts", "node", "report", "requested_watts"),
        *("reachable_watts", "row", "start_watts"),
    )

    def __init__(self, node: BudgetNode, report: DeviceReport, row: int = -1) -> None:
        self.node, self.draw = node, DeviceDraw()
        self._peak = DecayingMaximum(_UNLIMITED_DECAY_S)
        self.is_gpu = report.name.startswith("gpu")
        self.requested_watts, self.start_watts, self.reachable_watts = math.inf, 0.0, math.inf
        self._store(report, row)

    def update(self, report: DeviceReport, row: int, jobs: Mapping[int, JobReport], now_s: float) -> None:
        """Store a report about the device.

        Args:
            report: part of a poll of the node that describes the device.
            row: index of the device in the engine's table of ceilings (upper bounds of device power).
            jobs: jobs on the node, by job id.
            now_s: time now.
        """
        self.draw.update(report.watts, report.limit_watts, report.job_ids, now_s)
        if report.watts is not None:
            self._peak.update(report.watts, now_s)
        self.requested_watts = math.inf
        if len(report.job_ids) == 1 and (job := jobs.get(report.job_ids[0])) is not None:
            self.requested_watts = job.requested_watts.get(report.name, math.inf)
        self._store(report, row)

    def _store(self, report: DeviceReport, row: int) -> None:
        self.report, self.row = report, row
        self.min_watts = report.min_watts or 0.0
        unlimited_watts = _UNLIMITED_FACTOR * (self._peak.value or 0.0)
        self.max_watts = unlimited_watts if report.max_watts is None else report.max_watts


class BudgetNode:
    """A node that has reported, or whose state was stored by an earlier process.

    Attributes:
        name: Slurm's name of the node.
        index: position in the engine's list of nodes.
        poll: last poll; None means that the node has not polled since the controller started.
        job_ids: ids of the jobs in the last poll.
        polled_s: time of the last poll.
        devices: devices by name.
        reserve: power of the parts that are not in `devices`: memory, board, fans.
        unlimited: power at which budgets count the devices without a power limit.
        curves: response curves measured in the present runs of the jobs in the last poll, by job id.
    """

    __slots__ = (
        "_polls",
        "_raw_curves",
        "_reachable",
        "_trust",
        "curves",
        "devices",
        "index",
        "job_ids",
        "name",
        "poll",
        "polled_s",
        "reserve",
        "unlimited",
    )

    def __init__(self, name: str, index: int) -> None:
        self.name, self.index = name, index
        self.poll: NodePoll | None = None
        self.job_ids: frozenset[int] = frozenset()
        self.polled_s = float("-inf")
        self.devices: dict[str, BudgetDevice] = {}
        self.reserve = OtherPower()
        self.unlimited = DecayingMaximum(_UNLIMITED_DECAY_S)
        self.curves: dict[int, ResponseCurve] = {}
        self._raw_curves: dict[int, dict[str, Any]] = {}
        self._trust = NodeTrust()
        self._polls = 0
        self._reachable = ReachableLimits()

    @property
    def distrust(self) -> str:
        """Reason why the controller does not trust the reports of the node.

        An empty text means that the reports are trusted.
        """
        return self._trust.reason or ""

    def update(self, poll: NodePoll, rows: Mapping[str, int], now_s: float) -> None:
        """Update the state of the node with its latest poll.

        Args:
            poll: poll of this node.
            rows: index of each device of the node in the engine's table of devices whose power is limited.
            now_s: time now.
        """
        poll = self._reachable.apply(poll, now_s, is_trusted=not self.distrust)
        self.poll, self.polled_s, self._polls = poll, now_s, self._polls + 1
        self.job_ids = _job_ids(poll)
        self._trust.observe(poll, now_s)
        jobs = {job.job_id: job for job in poll.jobs}
        for report in poll.devices:
            device = self.devices.get(report.name)
            if device is None:
                device = self.devices[report.name] = BudgetDevice(self, report)
            device.update(report, rows.get(report.name, -1), jobs, now_s)
            device.start_watts = self._reachable.start_watts(report.name)
            device.reachable_watts = self._reachable.reachable_watts(report.name)
        self._forget_unlimited({report.name for report in poll.devices})
        self._read_curves(poll)
        if not self.distrust:
            self._learn_reserve(poll, now_s)
        unlimited = [device.max_watts for device in self.devices.values() if device.row < 0]
        if all(unlimited):
            self.unlimited.update(sum(unlimited), now_s)

    def _forget_unlimited(self, reported: Container[str]) -> None:
        """Forget the devices without a power limit that the node no longer reports.

        Devices with a power limit are kept, because they may still have the ceilings that the node received.
        """
        for name in [
            name for name, device in self.devices.items() if device.row < 0 and name not in reported
        ]:
            del self.devices[name]

    def _read_curves(self, poll: NodePoll) -> None:
        """Parse the response curves of jobs in a report of the node's agent.

        Only curves that have changed since the last report are parsed. A curve may be malformed if the agent
        belongs to another release. Malformed curves are ignored.
        """
        raw = {job.job_id: job.curve for job in poll.jobs if job.curve is not None}
        curves = {}
        for job_id, data in raw.items():
            if self._raw_curves.get(job_id) == data and job_id in self.curves:
                curves[job_id] = self.curves[job_id]
                continue
            with contextlib.suppress(UsageError):
                curves[job_id] = ResponseCurve.from_json(data).plausible()
        self._raw_curves, self.curves = raw, curves

    def _learn_reserve(self, poll: NodePoll, now_s: float) -> None:
        if poll.node_watts is None:
            if poll.dram_watts is not None:
                self.reserve.update(poll.dram_watts, now_s)
            return
        watts = [device.watts for device in poll.devices]
        known = [one for one in watts if one is not None]
        if len(known) == len(watts):
            self.reserve.add(sum(known), max(0.0, poll.node_watts - sum(known)), now_s)

    @property
    def measured_watts(self) -> float | None:
        """Measured power of the node; None if it is unknown."""
        if self.poll is None:
            return None
        if self.poll.node_watts is not None:
            return self.poll.node_watts
        watts = [device.watts for device in self.poll.devices]
        known = [one for one in watts if one is not None]
        if not known or len(known) < len(watts):
            return None
        return sum(known) + (self.reserve.value or 0.0)

    @property
    def is_unmeasured(self) -> bool:
        """Whether the node reports neither power nor a power limit, as a virtual machine without counters.

        The value is False for the first polls, because sensors may not have returned a power yet.
        """
        return (
            self.poll is not None
            and self._polls >= _MIN_POLLS
            and self.poll.node_watts is None
            and not any(device.row >= 0 or device.max_watts for device in self.devices.values())
        )

    def restore(self, state: Mapping[str, Any], rows: Mapping[str, int], now_s: float) -> None:
        """Restore the devices of the node and the power of its other parts from a stored state.

        The restored values are used until the node reports.

        Args:
            state: the stored state. `devices` has lists of watts by device; the first value is the nameplate
                power.
            rows: index of each device in the arrays of ceilings (upper bounds of device power), by device
                name.
            now_s: time now.
        """
        for name, maximum in (("reserve_watts", self.reserve), ("unlimited_watts", self.unlimited)):
            watts = state.get(name)
            if watts is not None and is_number(watts) and watts >= 0:
                maximum.update(watts, now_s)
        devices: Mapping[str, Sequence[float]] = state["devices"]
        for name, (nameplate_watts, *_) in devices.items():
            report = DeviceReport(name, "", 0.0, float(nameplate_watts), None, None)
            self.devices[name] = BudgetDevice(self, report, rows.get(name, -1))

    def job_range(self) -> JobRange:
        """Return how much power above idle power jobs can add on the node.

        The result also contains the idle power and the minimum power limits of the node's devices.
        """
        packages, gpu, packages_idle, gpu_idle = 0.0, 0.0, 0.0, 0.0
        for device in self.devices.values():
            idle = device.draw.idle.value or 0.0
            added = max(0.0, device.max_watts - idle)
            if device.is_gpu:
                gpu, gpu_idle = max(gpu, added), max(gpu_idle, idle)
            else:
                packages, packages_idle = packages + added, packages_idle + idle
        cpus = [device for device in self.devices.values() if not device.is_gpu]
        gpus = [device for device in self.devices.values() if device.is_gpu]
        return JobRange(
            packages,
            gpu,
            packages_idle,
            gpu_idle,
            sum(one.min_watts for one in cpus) if cpus and all(one.row >= 0 for one in cpus) else None,
            max(one.min_watts for one in gpus) if gpus and all(one.row >= 0 for one in gpus) else None,
            _only_kind(cpus),
            _only_kind(gpus),
        )

    def rest_watts(self, limited_watts: float) -> float | None:
        """Return the power that budgets reserve for the node's parts without a power limit.

        None means that this power is not known yet.

        Args:
            limited_watts: power that the devices with a limit may draw.
        """
        may_be_measured = self.reserve.value is None and self._polls < _MIN_POLLS
        if self.unlimited.value is None or may_be_measured:
            return None
        return self.unlimited.value + self.reserve.watts_at(limited_watts + self.unlimited.value)

    @property
    def limited_watts(self) -> float:
        """Sum of the maximum power limits of all devices that have a power limit."""
        return sum(device.max_watts for device in self.devices.values() if device.row >= 0)


def _job_ids(poll: NodePoll) -> frozenset[int]:
    listed = (job_id for device in poll.devices for job_id in device.job_ids)
    return frozenset({*listed, *(job.job_id for job in poll.jobs)} - {UNKNOWN_JOB})


def _only_kind(devices: Sequence[BudgetDevice]) -> str:
    """Return the kind of device, such as a GPU, if all devices are of the same kind.

    The text is empty if the devices are of several kinds.
    """
    kinds = {device.report.kind for device in devices}
    return kinds.pop() if len(kinds) == 1 else ""
