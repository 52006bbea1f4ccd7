"""One decision of the budget engine: power under each budget, groups, and ceilings of all devices.

Pure functions on the state of the engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.budget.ceilings import CeilingBudget
from slurm_energy.budget.distribution import distribute
from slurm_energy.budget.lowering_order import DistributionPolicy
from slurm_energy.budget.power_groups import BudgetColumns, PowerShares
from slurm_energy.budget.safe_limits import safe_limits
from slurm_energy.controller.budget_coverage import job_cover, node_cover
from slurm_energy.controller.budget_facts import BudgetInForce
from slurm_energy.controller.budget_groups import DeviceGroups, MergedJobReport, build_groups
from slurm_energy.controller.budget_nodes import BudgetDevice
from slurm_energy.controller.budget_rest import fixed_watts, node_rest
from slurm_energy.controller.budget_state import CycleInputs
from slurm_energy.scheduling.queue import Bools, Floats, Ints

IDLE_MARGIN: Final = 1.05
"""Power for which an idle device counts, divided by its highest recent idle power."""
START_TOLERANCE: Final = 1.01
"""Ceiling up to which an idle device counts at its idle power, divided by the limit with which jobs start."""


@dataclass(slots=True)
class CycleDevices:
    """The devices with a power limit, as columns of length n.

    Attributes:
        devices: the devices.
        row: row in the ceilings.
        node: index of the node.
        min_watts, max_watts: range of the power limit.
        draw_watts: expected power without a limit.
        watts: measured power; NaN: unknown.
        idle_watts: power for which the device counts while it is idle.
        controlled: the node reports and is trusted.
        busy: jobs use the device.
        off: Slurm has powered the node down.
        cover: whether a budget counts the device, shape (b, n).
    """

    devices: Sequence[BudgetDevice]
    row: Ints
    node: Ints
    min_watts: Floats
    max_watts: Floats
    draw_watts: Floats
    watts: Floats
    idle_watts: Floats
    controlled: Bools
    busy: Bools
    off: Bools
    cover: Bools


@dataclass(slots=True)
class CycleOutcome:
    """Result of a decision, as columns.

    Attributes:
        table: the devices.
        groups: groups of the controlled devices with jobs.
        grouped: rows of `table` that are in groups, in the order of `groups.of_device`.
        members: number of devices of each group under each budget, shape (b, number of groups).
        shares: result of the distribution.
        rest_watts: power of each node that no limit controls, shape (number of nodes,).
        node_cover: whether a budget counts a whole node, shape (b, number of nodes).
        counted_watts: power for which each device counts after the decision, shape (n,).
        measured_watts: measured power under each budget; unknown power counts as committed. Shape (b,).
        fixed_watts: power under each budget that no limit controls, shape (b,).
        usable_watts: limit of each budget without margin, promises and correction, shape (b,).
        promised_watts: power that is kept free for starts of jobs, shape (b,).
        needs_no_limit: whether all devices under the budget may have their maximum, shape (b,).
        safe_watts: limit that each device may have if the controller is silent, shape (n,).
    """

    table: CycleDevices
    groups: DeviceGroups
    grouped: Ints
    members: Ints
    shares: PowerShares
    rest_watts: Floats
    node_cover: Bools
    counted_watts: Floats
    measured_watts: Floats
    fixed_watts: Floats
    usable_watts: Floats
    promised_watts: Floats
    needs_no_limit: Bools
    safe_watts: Floats

    @property
    def committed_watts(self) -> Floats:
        """Power under each budget that cannot be exceeded at the ceilings in force, shape (b,)."""
        total: Floats = self.fixed_watts + self.table.cover @ self.counted_watts
        return total


def run_cycle(inputs: CycleInputs, reports: Mapping[int, MergedJobReport]) -> CycleOutcome:
    """Distribute the power of all budgets and grant ceilings.

    Args:
        inputs: state of the engine; the ceilings in `commitment` are changed.
        reports: reports of the nodes by job id.
    """
    nodes_covered = node_cover(inputs.budgets, [node.name for node in inputs.nodes], inputs.slurm_nodes)
    table = device_table(inputs, nodes_covered)
    reserved = inputs.commitment.reserved_watts[table.row]
    counts_as_idle = _counts_as_idle(inputs, table)
    held_still = np.where(_is_distrusted(inputs, table), np.maximum(table.max_watts, reserved), reserved)
    still = np.where(table.off, 0.0, np.where(table.controlled, 0.0, held_still))
    idle = np.where(counts_as_idle, table.idle_watts, 0.0)
    rest_of_nodes = node_rest(inputs)
    rest = fixed_watts(inputs, nodes_covered, rest_of_nodes)
    fixed = rest + table.cover @ (still + idle)
    free_device = table.controlled & ~table.off
    counted = np.where(counts_as_idle, table.idle_watts, np.where(free_device, reserved, still))
    measured = _measured_watts(inputs, table, nodes_covered, counted, rest_of_nodes) + rest
    margin = 1.0 - inputs.settings.margin_percent / 100.0
    usable = np.array([budget.limit_watts for budget in inputs.budgets], np.float64) * margin
    # Jobs start at the minimum limits, so that more than that need not be kept free for them.
    starts = table.cover @ np.where(counts_as_idle, np.maximum(0.0, table.min_watts - table.idle_watts), 0.0)
    promised = np.minimum(np.maximum(0.0, inputs.promised_watts), starts)
    names = [budget.name for budget in inputs.budgets]
    usable = (
        usable - promised - inputs.excess.update(names, measured, rest + table.cover @ counted, inputs.now_s)
    )
    all_watts = rest + table.cover @ (still + np.where(free_device, table.max_watts, 0.0))
    needs_no_limit: Bools = all_watts <= usable
    grouped = np.flatnonzero(free_device & table.busy)
    groups = build_groups(
        [table.devices[index] for index in grouped.tolist()],
        table.draw_watts[grouped],
        _floor_percent(inputs.budgets, table.cover[:, grouped]),
        inputs.jobs,
        reports,
    )
    waiting = free_device & ~table.busy & ~counts_as_idle  # idle devices that count at their ceilings
    members = _members(table.cover[:, grouped], groups)
    columns = BudgetColumns(usable, fixed + table.cover @ np.where(waiting, table.min_watts, 0.0), members)
    shares = distribute(groups.columns, columns, DistributionPolicy(inputs.settings.distribution))
    target = _targets(inputs, table, grouped, groups, shares, needs_no_limit)
    if inputs.settings.enforces:
        ceilings = _ceiling_budgets(table.row, table.cover & free_device & ~counts_as_idle, usable - fixed)
        inputs.commitment.grant(target, ceilings, inputs.now_s)
        reserved = inputs.commitment.reserved_watts[table.row]
    else:
        reserved = np.where(free_device, target[table.row], reserved)
    counted = np.where(counts_as_idle, table.idle_watts, np.where(free_device, reserved, still))
    lowest = np.array([budget.lowest_watts for budget in inputs.budgets], np.float64) * margin
    safe = safe_limits(
        np.where(free_device, table.min_watts, counted),
        np.where(free_device, np.maximum(reserved, table.min_watts), counted),
        _ceiling_budgets(
            np.arange(len(table.devices)), table.cover & ~counts_as_idle, lowest - rest - table.cover @ idle
        ),
    )
    return CycleOutcome(
        table=table,
        groups=groups,
        grouped=grouped,
        members=members,
        shares=shares,
        rest_watts=rest_of_nodes,
        node_cover=nodes_covered,
        counted_watts=counted,
        measured_watts=measured,
        fixed_watts=rest,
        usable_watts=usable,
        promised_watts=promised,
        needs_no_limit=needs_no_limit,
        safe_watts=safe,
    )


def _ceiling_budgets(rows: Ints, members: Bools, available_watts: Floats) -> list[CeilingBudget]:
    """Return the budgets with a limit over ceilings: their rows, and the power for them.

    Args:
        rows: row of each device in the ceilings, shape (n,).
        members: devices that count at their ceilings under each budget, shape (b, n).
        available_watts: power that each budget has for them, shape (b,).
    """
    return [
        CeilingBudget(rows[under], watts)
        for under, watts in zip(members, available_watts.tolist(), strict=True)
        if math.isfinite(watts)
    ]


def _measured_watts(
    inputs: CycleInputs, table: CycleDevices, nodes_covered: Bools, counted: Floats, rest: Floats
) -> Floats:
    """Return the measured power under each budget less the fixed power, shape (b,).

    Devices whose power is unknown count at `counted`. The measured power of whole nodes replaces that for
    which their other parts count.
    """
    is_known = table.controlled & ~np.isnan(table.watts)
    watts = np.where(is_known, table.watts, counted)
    total = np.asarray(table.cover @ watts, np.float64)
    count = len(inputs.nodes)
    if not count:
        return total
    of_devices = np.bincount(table.node, weights=watts, minlength=count)
    unknown = np.bincount(table.node, weights=(~is_known).astype(np.float64), minlength=count)
    of_node = np.array(
        [math.nan if n.poll is None or n.poll.node_watts is None else n.poll.node_watts for n in inputs.nodes]
    )
    difference = np.where((unknown == 0) & ~np.isnan(of_node), of_node - of_devices - rest, 0.0)
    result: Floats = total + nodes_covered @ difference
    return result


def device_table(inputs: CycleInputs, nodes_covered: Bools) -> CycleDevices:
    """Return the devices with a power limit as columns."""
    devices = [device for node in inputs.nodes for device in node.devices.values() if device.row >= 0]
    node = np.array([device.node.index for device in devices], np.int64)
    ids = [device.report.job_ids for device in devices]
    off = np.array([inputs.is_off(one.name) for one in inputs.nodes], np.bool_)
    trusted = np.array([not one.distrust for one in inputs.nodes], np.bool_)
    by_ids = job_cover(inputs.budgets, ids, inputs.jobs)
    cover = np.array([by_ids[one] for one in ids], np.bool_).reshape(len(devices), len(inputs.budgets)).T
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
        controlled=(trusted & ~inputs.silent)[node],
        busy=np.array([bool(one) for one in ids], np.bool_),
        off=off[node],
        cover=cover | nodes_covered[:, node],
    )


def _is_distrusted(inputs: CycleInputs, table: CycleDevices) -> Bools:
    distrusted = np.array([bool(node.distrust) for node in inputs.nodes], np.bool_)
    result: Bools = distrusted[table.node]
    return result


def _counts_as_idle(inputs: CycleInputs, table: CycleDevices) -> Bools:
    """Return whether a device counts at its idle power: idle, and jobs cannot start above its minimum."""
    if not inputs.settings.counts_idle:
        return np.zeros(len(table.devices), np.bool_)
    reserved = inputs.commitment.reserved_watts[table.row]
    is_low = reserved <= table.min_watts * START_TOLERANCE
    result: Bools = table.controlled & ~table.off & ~table.busy & is_low
    return result


def _expected_watts(device: BudgetDevice, inputs: CycleInputs) -> float:
    """Return the expected power of a device: its draw, at most the limit that its job itself requests."""
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


def _floor_percent(budgets: Sequence[BudgetInForce], cover: Bools) -> Floats:
    """Return the largest floor of the budgets over each device."""
    percent = np.array([budget.floor_percent for budget in budgets], np.float64)
    floors: Floats = np.max(np.where(cover, percent[:, None], 0.0), axis=0, initial=0.0)
    return floors


def _members(cover: Bools, groups: DeviceGroups) -> Ints:
    count = groups.columns.count
    rows = [np.bincount(groups.of_device[row], minlength=count) for row in cover]
    return np.array(rows, np.int64).reshape(len(cover), count)


def _targets(
    inputs: CycleInputs,
    table: CycleDevices,
    grouped: Ints,
    groups: DeviceGroups,
    shares: PowerShares,
    needs_no_limit: Bools,
) -> Floats:
    """Return the wanted ceiling by row of the ceilings. Devices of silent nodes keep theirs."""
    commitment = inputs.commitment
    target = np.minimum(commitment.granted_watts, commitment.held_watts)
    limited = (table.cover & ~needs_no_limit[:, None]).any(axis=0)
    own = np.where(limited, table.min_watts, table.max_watts)
    limits = shares.limit_watts[groups.of_device]
    own[grouped] = np.where(np.isnan(limits), table.max_watts[grouped], limits)
    changes = table.controlled & ~table.off
    target[table.row[changes]] = own[changes]
    return target
