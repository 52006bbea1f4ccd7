"""Table of the devices with a power limit, for a decision about power budgets.

The table also contains the power that each device contributes to the sum under a budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.controller.budgets.coverage import CoverSums, JobCover
from slurm_energy.controller.budgets.nodes import BudgetDevice
from slurm_energy.controller.budgets.state import CycleInputs
from slurm_energy.scheduling.queue import Bools, Floats, Ints

IDLE_MARGIN: Final = 1.05
"""Power at which an idle device counts, as a multiple of its highest recent idle power."""
START_TOLERANCE: Final = 1.01
"""Maximum ceiling at which an idle device counts at its idle power, as a multiple of its minimum limit."""


@dataclass(slots=True)
class CycleDevices:
    """The devices with a power limit, as columns of length n.

    Attributes:
        devices: objects with the last report of each device.
        row: index of the device in the arrays of power ceilings.
        node: index of the device's node.
        min_watts, max_watts: range of the power limit.
        draw_watts: expected power without a limit.
        watts: measured power; NaN means unknown.
        idle_watts: power that the budgets assume for the device while it is idle.
        start_watts: power that the device may draw at its lowest limit while a job starts; 0 means
            that no job starts.
        trusted: whether the reports of the device's node are plausible.
        controlled: whether the device's node reports and is trusted.
        busy: whether jobs use the device.
        off: whether Slurm has powered the device's node down.
        cover: whether each of b budgets counts the device, shape (b, n).
        sums: computes sums of device values under each budget.
    """

    devices: Sequence[BudgetDevice]
    row: Ints
    node: Ints
    min_watts: Floats
    max_watts: Floats
    draw_watts: Floats
    watts: Floats
    idle_watts: Floats
    start_watts: Floats
    trusted: Bools
    controlled: Bools
    busy: Bools
    off: Bools
    cover: Bools
    sums: CoverSums

    @property
    def is_free(self) -> Bools:
        """Mask of the devices whose power limits the controller may change in a decision, shape (n,)."""
        free: Bools = self.controlled & ~self.off
        return free


@dataclass(slots=True)
class DeviceCounting:
    """Power with which each of n devices is counted under a budget. Each column has n elements.

    Attributes:
        as_idle: whether the device is counted with its idle power.
        idle_watts: idle power of the devices for which `as_idle` is true; 0 for all other devices.
        still_watts: power with which a device is counted if decisions cannot change its limit; 0 for all
            other devices.
    """

    as_idle: Bools
    idle_watts: Floats
    still_watts: Floats

    def counted_watts(self, table: CycleDevices, reserved_watts: Floats) -> Floats:
        """Return the power that each device takes from a budget in the calculation of a decision.

        Args:
            table: the devices.
            reserved_watts: ceilings (upper bounds of device power) in force.
        """
        # No device keeps a ceiling below its lowest reachable limit.
        reachable = np.maximum(reserved_watts, table.min_watts)
        of_others = np.where(table.is_free, reachable, self.still_watts)
        counted: Floats = np.where(self.as_idle, self.idle_watts, of_others)
        return counted


def device_table(inputs: CycleInputs, nodes_covered: Bools, jobs_covered: JobCover) -> CycleDevices:
    """Return a table of all devices with a power limit, for one decision about the power budgets.

    There are b budgets.

    Args:
        inputs: state of the engine.
        nodes_covered: for each budget and node, whether the budget includes the power of the whole node,
            shape (b, number of nodes).
        jobs_covered: for each job, the budgets that include the power of the job.
    """
    devices = [device for node in inputs.nodes for device in node.devices.values() if device.row >= 0]
    node = np.array([device.node.index for device in devices], np.int64)
    ids = [device.report.job_ids for device in devices]
    off = np.array([inputs.is_off(one.name) for one in inputs.nodes], np.bool_)
    trusted = np.array([not one.distrust for one in inputs.nodes], np.bool_)
    cover = jobs_covered.of_sets(ids) | nodes_covered[:, node]
    minimum = np.array([device.min_watts for device in devices], np.float64)
    maximum = np.array([device.max_watts for device in devices], np.float64)
    return CycleDevices(
        devices=devices,
        row=np.array([device.row for device in devices], np.int64),
        node=node,
        min_watts=minimum,
        max_watts=maximum,
        draw_watts=np.array([_expected_watts(device, inputs) for device in devices], np.float64),
        watts=np.array([math.nan if (w := d.report.watts) is None else w for d in devices], np.float64),
        idle_watts=np.array([_idle_watts(device) for device in devices], np.float64),
        start_watts=np.array([device.start_watts for device in devices], np.float64),
        trusted=trusted[node],
        controlled=(trusted & ~inputs.silent)[node],
        busy=np.array([bool(one) for one in ids], np.bool_),
        off=off[node],
        cover=cover,
        sums=CoverSums(cover),
    )


def device_counting(inputs: CycleInputs, table: CycleDevices) -> DeviceCounting:
    """Return the power that the budgets must count for each device before new limits are decided.

    This power follows from the power limits that are in force.
    """
    reserved = inputs.commitment.reserved_watts[table.row]
    as_idle = _counts_as_idle(inputs, table, reserved)
    held = np.where(table.trusted, reserved, np.maximum(table.max_watts, reserved))
    return DeviceCounting(
        as_idle,
        np.where(as_idle, table.idle_watts, 0.0),
        np.where(table.off | table.controlled, 0.0, held),
    )


def _counts_as_idle(inputs: CycleInputs, table: CycleDevices, reserved_watts: Floats) -> Bools:
    """Return which devices count with only their idle power in the sums under power budgets.

    A device counts in this way if two conditions hold. The device is idle. Its ceiling (upper bound of
    its power limit) is at the minimum, so that a job on this device can only start at the minimum limit.
    If the settings do not allow this, the result contains no device.
    """
    if not inputs.settings.counts_idle:
        return np.zeros(len(table.devices), np.bool_)
    is_low = reserved_watts <= table.min_watts * START_TOLERANCE
    result: Bools = table.is_free & ~table.busy & is_low
    return result


def _expected_watts(device: BudgetDevice, inputs: CycleInputs) -> float:
    """Return the expected power of a device.

    If the job on the device requests a power limit, the result is at most this limit.
    """
    if not device.report.job_ids:
        return device.min_watts
    predicted: float | None = None
    for job_id in device.report.job_ids:
        job = inputs.jobs.get(job_id)
        watts = job.draw_watts.get(device.report.kind) if job is not None and job.draw_watts else None
        if watts is None:
            predicted = None
            break
        predicted = watts if predicted is None else max(predicted, watts)
    expected = device.draw.expected_watts(device.max_watts, predicted, inputs.now_s)
    return max(min(expected, device.requested_watts), device.min_watts)


def _idle_watts(device: BudgetDevice) -> float:
    idle = device.draw.idle.value
    return device.min_watts if idle is None else min(IDLE_MARGIN * idle, device.max_watts)
