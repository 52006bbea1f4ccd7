"""One decision of the budget engine, which sets power limits such that budgets are kept.

The decision determines the power under each budget, the groups of devices, and the ceilings (highest power
limits) of all devices. The functions read the engine's state and do no I/O.
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
from slurm_energy.controller.budgets.coverage import CoverSums, JobCover, node_cover
from slurm_energy.controller.budgets.facts import BudgetInForce
from slurm_energy.controller.budgets.groups import DeviceGroups, MergedJobReport, build_groups
from slurm_energy.controller.budgets.rest import RestPower
from slurm_energy.controller.budgets.state import CycleInputs
from slurm_energy.controller.budgets.table import CycleDevices, DeviceCounting, device_counting, device_table
from slurm_energy.scheduling.queue import Bools, Floats, Ints

_DISTRIBUTIONS: Final = 2
"""Maximum number of distributions per decision. The first one changes the power of parts without a limit."""
_MIN_RISE_WATTS: Final = 1.0
_MAX_OVER_CEILING: Final = 1.02
"""Measured power divided by the ceiling above which a device counts as exceeding it."""


@dataclass(slots=True)
class CycleOutcome:
    """Result of a decision, as columns, for b budgets and the n devices in `table`.

    Attributes:
        table: the devices with a power limit.
        groups: groups of the devices that run jobs and that the controller can limit. The devices of a group
            get the same limit.
        grouped: indices in `table` of the devices that belong to a group, in the order of
            `groups.of_device`.
        members: number of devices of each group under each budget, shape (b, number of groups).
        shares: result of distributing the power among the groups. The result contains the limit of each
            group, and the budget that determines this limit.
        rest_watts: power of those parts of each node that have no power limit, shape (number of nodes,).
        node_cover: whether a budget includes the power of a whole node, shape (b, number of nodes).
        counted_watts: power that each device contributes to its budgets after the decision, shape (n,).
        measured_watts: measured power under each budget; unknown power counts as committed. Shape (b,).
        fixed_watts: power under each budget that no power limit of a device controls, shape (b,).
        usable_watts: limit of each budget minus the margin, the promised power and `CycleInputs.excess`,
            shape (b,).
        promised_watts: power that each budget keeps free for starts of jobs, shape (b,).
        needs_no_limit: whether all devices under a budget may have their maximum limit, shape (b,).
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
        """Maximum power of the nodes under each budget, shape (b,).

        The maximum holds for the present ceilings, i.e. the upper bounds of device power.
        """
        total: Floats = self.fixed_watts + self.table.sums.total(self.counted_watts)
        return total


def run_cycle(inputs: CycleInputs, reports: Mapping[int, MergedJobReport]) -> CycleOutcome:
    """Decide about power once: distribute the power of all budgets to the devices.

    Each device gets an upper bound (ceiling) of its power limit.

    Args:
        inputs: state of the engine; the ceilings in `commitment` are changed.
        reports: reports of the nodes by job id.
    """
    nodes_covered = node_cover(inputs.budgets, [node.name for node in inputs.nodes], inputs.slurm_nodes)
    jobs_covered = JobCover(inputs.budgets, inputs.jobs)
    table = device_table(inputs, nodes_covered, jobs_covered)
    counting = device_counting(inputs, table)
    rest = RestPower(inputs, table, nodes_covered, jobs_covered)
    counted = counting.counted_watts(table, inputs.commitment.reserved_watts[table.row])
    of_nodes = rest.of_nodes(counted)
    fixed = rest.fixed_watts(of_nodes)
    measured = _measured_watts(inputs, table, nodes_covered, counted, of_nodes) + fixed
    promised = _promised_watts(inputs, table, counting)
    excess = inputs.excess.update(
        [budget.name for budget in inputs.budgets], measured, fixed + table.sums.total(counted), inputs.now_s
    )
    limits = np.array([budget.limit_watts for budget in inputs.budgets], np.float64)
    usable = limits * _margin(inputs) - promised - excess
    usable = usable - _start_watts(inputs, table, counting, usable - fixed, limits)
    needs_no_limit = _needs_no_limit(table, counting, rest, fixed, usable)
    grouped = np.flatnonzero(table.is_free & table.busy)
    groups = _groups(inputs, table, grouped, reports)
    members = _members(table.cover[:, grouped], groups)
    waiting = table.sums.total(counting.still_watts + counting.idle_watts) + _waiting_watts(table, counting)
    for _ in range(_DISTRIBUTIONS):
        columns = BudgetColumns(usable, fixed + waiting, members)
        shares = distribute(groups.columns, columns, DistributionPolicy(inputs.settings.distribution))
        target = _targets(inputs, table, grouped, groups, shares, needs_no_limit)
        planned = counting.counted_watts(
            table, np.maximum(target, inputs.commitment.reserved_watts)[table.row]
        )
        raised = np.maximum(of_nodes, rest.of_nodes(planned))
        if not np.any(raised > of_nodes + _MIN_RISE_WATTS):
            break
        of_nodes, fixed = raised, rest.fixed_watts(raised)
    still = fixed + table.sums.total(counting.still_watts + counting.idle_watts)
    reserved = _grant(inputs, table, counting, target, usable - still)
    return CycleOutcome(
        table=table,
        groups=groups,
        grouped=grouped,
        members=members,
        shares=shares,
        rest_watts=of_nodes,
        node_cover=nodes_covered,
        counted_watts=counting.counted_watts(table, reserved),
        measured_watts=measured,
        fixed_watts=fixed,
        usable_watts=usable,
        promised_watts=promised,
        needs_no_limit=needs_no_limit,
        safe_watts=_safe_watts(inputs, table, counting, reserved, fixed),
    )


def _margin(inputs: CycleInputs) -> float:
    """Return the fraction of each budget that may be distributed: 1 minus the configured margin."""
    return 1.0 - inputs.settings.margin_percent / 100.0


def _promised_watts(inputs: CycleInputs, table: CycleDevices, counting: DeviceCounting) -> Floats:
    """Return, for each budget, the power that is kept free for jobs that will start, shape (b,).

    Jobs start at the minimum power limits of their devices. Power above these limits is therefore not
    kept free. The result includes the power that the other parts of the nodes add when jobs start.
    """
    slopes = np.array([node.reserve.slope for node in inputs.nodes], np.float64)
    started = np.maximum(table.min_watts, table.start_watts)
    added = np.maximum(0.0, started - table.idle_watts) * (1.0 + slopes[table.node])
    starts = table.sums.total(np.where(counting.as_idle, added, 0.0))
    promised: Floats = np.minimum(np.maximum(0.0, inputs.promised_watts), starts)
    return promised


def _start_watts(
    inputs: CycleInputs, table: CycleDevices, counting: DeviceCounting, available: Floats, limits: Floats
) -> Floats:
    """Return the power that each budget keeps free for starting jobs, shape (b,).

    While a job starts, its devices may draw more power than their lowest limits permit. The safety margin
    of the budget's limit covers a part of this additional power. The rest is kept free. But a budget
    keeps free at most what is left when all devices have their lowest limits.

    Args:
        inputs: state of the engine.
        table: the n devices with a power limit.
        counting: power that each device contributes to its budgets.
        available: power that each budget has for its devices, shape (b,).
        limits: limit of each budget, shape (b,).
    """
    lowest = table.min_watts + _floor_percent(inputs.budgets, table.cover) / 100.0 * np.where(
        table.busy, table.max_watts - table.min_watts, 0.0
    )
    counted = counting.counted_watts(table, lowest)
    reserved = np.maximum(inputs.commitment.reserved_watts[table.row], table.min_watts)
    is_counted = table.is_free & ~counting.as_idle
    above = np.where(is_counted, np.maximum(0.0, table.start_watts - reserved), 0.0)
    slopes = np.array([node.reserve.slope for node in inputs.nodes], np.float64)
    above = above * (1.0 + slopes[table.node])
    margin = np.where(np.isfinite(limits), limits * (1.0 - _margin(inputs)), 0.0)
    wanted = np.maximum(0.0, table.sums.total(above) - margin)
    kept: Floats = np.minimum(wanted, np.maximum(0.0, available - table.sums.total(counted)))
    return kept


def _needs_no_limit(
    table: CycleDevices, counting: DeviceCounting, rest: RestPower, fixed: Floats, usable: Floats
) -> Bools:
    """Return for each power budget whether all its devices may have their maximum limit.

    The shape of the result is (b,) for b budgets.

    Args:
        table: the n devices with a power limit.
        counting: power that each device contributes to a budget.
        rest: power of all parts of the nodes that have no power limit.
        fixed: power of the parts without a power limit under each budget, shape (b,). It applies to the
            upper bounds of power limits (ceilings) that are in force.
        usable: power that each budget distributes, shape (b,).
    """
    highest = counting.still_watts + np.where(table.is_free, table.max_watts, 0.0)
    devices = table.sums.total(highest)
    fits: Bools = fixed + devices <= usable
    if fits.any():  # other parts draw more at the maximum; in large clusters their power takes long to sum
        fits = rest.fixed_watts(rest.of_nodes(highest)) + devices <= usable
    return fits


def _waiting_watts(table: CycleDevices, counting: DeviceCounting) -> Floats:
    """Return the sum of the minimum power limits of idle devices, for each of the b budgets.

    The sum includes only idle devices that contribute their power limit to the budget. It excludes idle
    devices that contribute their idle power. The shape is (b,).
    """
    waiting = table.is_free & ~table.busy & ~counting.as_idle
    return table.sums.total(np.where(waiting, table.min_watts, 0.0))


def _groups(
    inputs: CycleInputs, table: CycleDevices, grouped: Ints, reports: Mapping[int, MergedJobReport]
) -> DeviceGroups:
    return build_groups(
        [table.devices[index] for index in grouped.tolist()],
        table.draw_watts[grouped],
        _floor_percent(inputs.budgets, table.cover[:, grouped]),
        inputs.jobs,
        reports,
    )


def _grant(
    inputs: CycleInputs, table: CycleDevices, counting: DeviceCounting, target: Floats, available: Floats
) -> Floats:
    """Set the requested power limits (ceilings) of devices as far as the budgets permit.

    The function returns the power that is now reserved for each device, shape (n,).

    Args:
        inputs: state of the engine; the ceilings in `commitment` are changed if budgets are enforced.
        table: the devices.
        counting: how much power each device uses of its budgets, and which devices count as idle.
        target: requested ceilings, in the order of the rows of `commitment`.
        available: power that each budget has for ceilings, shape (b,).
    """
    commitment, rows = inputs.commitment, table.row
    if not inputs.settings.enforces:
        return np.where(table.is_free, target[rows], commitment.reserved_watts[rows])
    members = table.cover & table.is_free & ~counting.as_idle
    lowest = np.zeros(commitment.count)
    lowest[rows] = np.where(table.is_free, _lowest_watts(table, commitment.reserved_watts[rows]), 0.0)
    commitment.grant(target, _ceiling_budgets(rows, members, available), inputs.now_s, lowest)
    reserved: Floats = commitment.reserved_watts[rows]
    return reserved


def _lowest_watts(table: CycleDevices, reserved: Floats) -> Floats:
    """Return the power that each device may draw although its ceiling is lower, shape (n,).

    A ceiling is a power limit that a budget sets for a device. There are two reasons: a device cannot keep a
    ceiling below its minimum limit, and a device may exceed a ceiling for some time after the ceiling was
    lowered. The power above the ceiling is not free for other devices.
    """
    exceeds = table.watts > np.maximum(_MAX_OVER_CEILING * reserved, reserved + _MIN_RISE_WATTS)
    drawn = np.where(exceeds, np.minimum(table.watts, table.max_watts), 0.0)
    lowest: Floats = np.maximum(table.min_watts, drawn)
    return lowest


def _safe_watts(
    inputs: CycleInputs, table: CycleDevices, counting: DeviceCounting, reserved: Floats, fixed: Floats
) -> Floats:
    """Return the limit to which each device goes back if the controller is silent, shape (n,).

    With these limits, the power stays within the lowest limit of each budget.
    """
    counted = counting.counted_watts(table, reserved)
    lowest = np.array([budget.lowest_watts for budget in inputs.budgets], np.float64) * _margin(inputs)
    available = lowest - fixed - table.sums.total(counting.idle_watts)
    rows = np.arange(len(table.devices))
    return safe_limits(
        np.where(table.is_free, table.min_watts, counted),
        np.where(table.is_free, np.maximum(reserved, table.min_watts), counted),
        _ceiling_budgets(rows, table.cover & ~counting.as_idle, available),
    )


def _ceiling_budgets(rows: Ints, members: Bools, available_watts: Floats) -> list[CeilingBudget]:
    """Return the budgets that restrict the ceilings (upper bounds of power limits) of devices.

    A returned budget states which devices count under it, and the power that is available for these
    devices together. A budget with unlimited power is left out.

    Args:
        rows: index of each device in the arrays of ceilings, shape (n,).
        members: for each of b budgets, whether a device is counted under the budget with the power of its
            ceiling, shape (b, n).
        available_watts: power that each budget has for these devices, shape (b,).
    """
    return [
        CeilingBudget(rows[under], watts)
        for under, watts in zip(members, available_watts.tolist(), strict=True)
        if math.isfinite(watts)
    ]


def _measured_watts(
    inputs: CycleInputs, table: CycleDevices, nodes_covered: Bools, counted: Floats, rest: Floats
) -> Floats:
    """Return the power under each of b budgets, measured as far as possible, shape (b,).

    The fixed power of each budget is left out. If the power of a device is unknown, the device counts
    with its value in `counted`. For the other parts of a node, the power in `rest` is assumed and not
    included in the result. If the power of a whole node and of all its devices is measured, the other
    parts are corrected: the result then includes the difference between their measured and their assumed
    power.
    """
    is_known = table.controlled & ~np.isnan(table.watts)
    watts = np.where(is_known, table.watts, counted)
    total = table.sums.total(watts)
    count = len(inputs.nodes)
    if not count:
        return total
    of_devices = np.bincount(table.node, weights=watts, minlength=count)
    unknown = np.bincount(table.node, weights=(~is_known).astype(np.float64), minlength=count)
    of_node = np.array(
        [math.nan if n.poll is None or n.poll.node_watts is None else n.poll.node_watts for n in inputs.nodes]
    )
    difference = np.where((unknown == 0) & ~np.isnan(of_node), of_node - of_devices - rest, 0.0)
    return total + CoverSums(nodes_covered).total(difference)


def _floor_percent(budgets: Sequence[BudgetInForce], cover: Bools) -> Floats:
    """Return the lowest permitted power limit of each device, in percent of its range.

    Each budget has a value `floor_percent`. The result for a device is the highest of the values of the
    budgets that include the power of the device. The result is 0 if there is no such budget.
    """
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
    """Return the power limit (ceiling) that the controller wants for each device.

    The results are in the order of the devices' columns in `table`. Devices of silent nodes keep their
    ceilings.
    """
    commitment = inputs.commitment
    target = np.minimum(commitment.granted_watts, commitment.held_watts)
    limited = (table.cover & ~needs_no_limit[:, None]).any(axis=0)
    own = np.where(limited, table.min_watts, table.max_watts)
    limits = shares.limit_watts[groups.of_device]
    own[grouped] = np.where(np.isnan(limits), table.max_watts[grouped], limits)
    target[table.row[table.is_free]] = own[table.is_free]
    return target
