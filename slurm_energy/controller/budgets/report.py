"""Report on power budgets after a decision of the controller.

The report contains the state of all budgets, nodes and jobs. Status pages, the database and the admission of
jobs use the report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from slurm_energy.budget.explanation import DecisionExplainer
from slurm_energy.budget.lowering_order import DistributionPolicy
from slurm_energy.budget.power_groups import BudgetColumns
from slurm_energy.budget.reachable_limits import HOST_SHARE
from slurm_energy.budget.work_price import headroom_at_prices
from slurm_energy.controller.budgets.cycle import CycleOutcome
from slurm_energy.controller.budgets.facts import (
    BudgetCycle,
    BudgetedJobStatus,
    BudgetedNodeStatus,
    BudgetStatus,
)
from slurm_energy.controller.budgets.polls import UNKNOWN_JOB
from slurm_energy.controller.budgets.state import CycleInputs
from slurm_energy.scheduling.queue import Bools, Floats


def cycle_report(inputs: CycleInputs, outcome: CycleOutcome, poll_s: float) -> BudgetCycle:
    """Return the state of all budgets, jobs and nodes."""
    return BudgetCycle(
        inputs.now_s,
        _budgets(inputs, outcome),
        poll_s,
        jobs=lambda: _jobs(inputs, outcome),
        nodes=lambda: _nodes(inputs, outcome),
    )


def _budgets(inputs: CycleInputs, outcome: CycleOutcome) -> tuple[BudgetStatus, ...]:
    table, groups = outcome.table, outcome.groups
    committed = outcome.committed_watts
    unlimited_idle = _unlimited_idle_watts(outcome)
    headroom, floor = _headroom_at_prices(outcome) + unlimited_idle[:, None], outcome.counted_watts.copy()
    floor[outcome.grouped] = groups.columns.floor_watts[groups.of_device]
    retained = np.zeros_like(headroom)
    is_limited = np.isfinite(headroom[:, -1])
    retained[is_limited] = headroom[is_limited, -1:] - headroom[is_limited]
    lowest = _lowest_power_watts(outcome) - unlimited_idle
    usable = outcome.usable_watts + outcome.promised_watts
    reachable, free = usable - lowest, usable - (committed - unlimited_idle)
    capped = np.zeros(len(table.devices))
    capped[outcome.grouped] = np.maximum(
        0.0, table.draw_watts[outcome.grouped] - outcome.counted_watts[outcome.grouped]
    )
    idle = np.where(table.is_free, table.idle_watts, outcome.counted_watts)
    states = np.array([_state(inputs, index) for index in range(len(inputs.nodes))], np.str_)
    covered = {
        state: (outcome.node_cover & (states == state)).sum(axis=1) for state in ("silent", "distrusted")
    }
    unmeasured = np.array([node.is_unmeasured for node in inputs.nodes], np.bool_) & (states == "reporting")
    unmeasured_nodes = (outcome.node_cover & unmeasured).sum(axis=1)
    capped, floor, idle = (table.sums.total(watts) for watts in (capped, floor, idle))
    rows = []
    for row, budget in enumerate(inputs.budgets):
        idle_watts, covers_nodes = float(outcome.fixed_watts[row] + idle[row]), budget.scope.covers_nodes
        rows.append(
            BudgetStatus(
                name=budget.name,
                limit_watts=budget.limit_watts,
                measured_watts=float(outcome.measured_watts[row]) if inputs.nodes else None,
                committed_watts=float(committed[row]),
                fixed_watts=float(outcome.fixed_watts[row]),
                capped_watts=float(capped[row]),
                headroom_watts=float(headroom[row, -1]),
                unlimited_idle_watts=float(unlimited_idle[row]),
                reachable_headroom_watts=float(reachable[row]),
                lowest_limit_watts=float(lowest[row]) / (1.0 - inputs.settings.margin_percent / 100.0),
                free_watts=float(free[row]),
                retained_watts=tuple(retained[row].tolist()),
                floor_watts=float(outcome.fixed_watts[row] + floor[row]),
                idle_watts=idle_watts if covers_nodes else budget.constant_watts,
                running_idle_watts=0.0 if covers_nodes else idle_watts - budget.constant_watts,
                shortfall_watts=float(outcome.shares.shortfall_watts[row]),
                nodes=int(outcome.node_cover[row].sum()),
                silent_nodes=int(covered["silent"][row]),
                distrusted_nodes=int(covered["distrusted"][row]),
                unmeasured_nodes=int(unmeasured_nodes[row]),
            )
        )
    return tuple(rows)


def _headroom_at_prices(outcome: CycleOutcome) -> Floats:
    """Return the power above idle that new jobs may add under each budget, at each price of power.

    The price of power is the work per second and watt that running jobs must reach to keep their power. Jobs
    that do not reach it are expected to give up power. The result has shape (number of budgets, number of
    prices).
    """
    table = outcome.table
    ungrouped = np.ones(len(table.devices), np.bool_)
    ungrouped[outcome.grouped] = False
    fixed_watts = outcome.fixed_watts + table.sums.total(np.where(ungrouped, outcome.counted_watts, 0.0))
    free_watts = outcome.usable_watts + outcome.promised_watts
    budgets = BudgetColumns(free_watts, fixed_watts, outcome.members)
    return headroom_at_prices(outcome.groups.columns, budgets)


def _unlimited_idle_watts(outcome: CycleOutcome) -> Floats:
    """Return the power above idle that idle devices count under budgets that need no limit, shape (b,).

    If a budget lets all devices have their maximum limit, idle devices also have and count this limit. Their
    power above idle is free for jobs that start on these devices. Under any other budget the result is 0,
    because the power of idle devices with such a limit is free only after their limit has been lowered.
    """
    table = outcome.table
    above_idle = np.maximum(0.0, outcome.counted_watts - table.idle_watts)
    of_idle = table.sums.total(np.where(table.is_free & ~table.busy, above_idle, 0.0))
    return np.where(outcome.needs_no_limit, of_idle, 0.0)


def _feeds_gpus(outcome: CycleOutcome) -> Bools:
    """Return which devices are CPU packages of jobs that also use GPUs.

    The result has one element per device that belongs to a group of devices of the budget decision.
    """
    devices = [outcome.table.devices[row] for row in outcome.grouped.tolist()]
    with_gpus = {device.report.job_ids for device in devices if device.is_gpu}
    return np.array([not one.is_gpu and one.report.job_ids in with_gpus for one in devices], np.bool_)


def _lowest_power_watts(outcome: CycleOutcome) -> Floats:
    """Return the power under each budget if all running jobs have their lowest limits.

    The shape of the result is (b,) for b budgets. The power of some devices at their lowest limit is
    unknown. Such a device counts with its expected power. If it is a processor package that feeds GPUs,
    it counts with at most half of its maximum power limit.
    """
    table = outcome.table
    counted = outcome.counted_watts.copy()
    busy = outcome.grouped
    reachable = np.array([table.devices[row].reachable_watts for row in busy.tolist()], np.float64)
    floors = outcome.groups.columns.floor_watts[outcome.groups.of_device]
    measured = outcome.groups.lowest_watts[outcome.groups.of_device]
    reachable = np.where(np.isnan(measured), reachable, np.minimum(reachable, measured))
    expected = table.draw_watts[busy]
    hosts = _feeds_gpus(outcome)
    expected[hosts] = np.minimum(expected[hosts], HOST_SHARE * table.max_watts[busy][hosts])
    counted[busy] = np.maximum(floors, np.minimum(reachable, expected))
    total: Floats = outcome.fixed_watts + table.sums.total(counted)
    return total


def _jobs(inputs: CycleInputs, outcome: CycleOutcome) -> Mapping[int, BudgetedJobStatus]:
    table = outcome.table
    by_job: dict[int, list[int]] = {}
    for index, device in enumerate(table.devices):
        for job_id in set(device.report.job_ids) - {UNKNOWN_JOB}:
            by_job.setdefault(job_id, []).append(index)
    group_of = {
        int(row): int(group) for row, group in zip(outcome.grouped, outcome.groups.of_device, strict=True)
    }
    explainer = DecisionExplainer(
        outcome.groups.columns,
        outcome.shares,
        [one.name for one in inputs.budgets],
        DistributionPolicy(inputs.settings.distribution),
    )
    return {
        job_id: _job(inputs, outcome, job_id, indices, group_of, explainer)
        for job_id, indices in by_job.items()
    }


def _job(
    inputs: CycleInputs,
    outcome: CycleOutcome,
    job_id: int,
    indices: list[int],
    group_of: Mapping[int, int],
    explainer: DecisionExplainer,
) -> BudgetedJobStatus:
    table, shares = outcome.table, outcome.shares
    groups = sorted({group_of[index] for index in indices if index in group_of})
    limits: dict[str, float | None] = {}
    for group in groups:
        watts = float(shares.limit_watts[group])
        is_bound = not math.isnan(watts) and watts < float(outcome.groups.columns.max_watts[group])
        limits[outcome.groups.kinds[group]] = watts if is_bound else None
    binding = [int(shares.binding[group]) for group in groups if shares.binding[group] >= 0]
    watts_of = [table.devices[index].report.watts for index in indices]
    known = [watts for watts in watts_of if watts is not None]
    wanted = float(table.draw_watts[indices].sum())
    committed = float(outcome.counted_watts[indices].sum())
    keeps = all(bool(shares.keeps_slowdown[group]) for group in groups)
    has_limit = any(not math.isnan(float(outcome.groups.columns.slowdown_limit[group])) for group in groups)
    budget = inputs.budgets[binding[0]].name if binding else None
    covering = np.flatnonzero(table.cover[:, indices].any(axis=1)).tolist()
    return BudgetedJobStatus(
        job_id=job_id,
        nodes=len({int(table.node[index]) for index in indices}),
        limits_watts=limits,
        measured_watts=sum(known) if len(known) == len(watts_of) else None,
        wanted_watts=wanted,
        committed_watts=committed,
        budget=budget if any(watts is not None for watts in limits.values()) else None,
        budgets=tuple(inputs.budgets[row].name for row in covering),
        keeps_slowdown=keeps,
        has_slowdown_limit=has_limit,
        explanation=explainer.job(
            np.array(groups, np.int64), [outcome.groups.kinds[group] or "devices" for group in groups]
        ),
    )


def _state(inputs: CycleInputs, index: int) -> str:
    node = inputs.nodes[index]
    facts = inputs.slurm_nodes.get(node.name)
    if facts is not None and facts.is_off:
        return "off"
    if inputs.silent[index]:
        return "silent"
    if node.distrust:
        return "distrusted"
    return "safe" if node.poll is not None and node.poll.is_safe else "reporting"


def _nodes(inputs: CycleInputs, outcome: CycleOutcome) -> Mapping[str, BudgetedNodeStatus]:
    counted = np.bincount(outcome.table.node, weights=outcome.counted_watts, minlength=len(inputs.nodes))
    statuses = {}
    for index, node in enumerate(inputs.nodes):
        state, rest = _state(inputs, index), float(outcome.rest_watts[index])
        statuses[node.name] = BudgetedNodeStatus(
            node=node.name,
            state=state,
            reason=node.distrust,
            measured_watts=None if state in ("silent", "off") else node.measured_watts,
            committed_watts=float(counted[index]) + rest,
            max_watts=rest + node.limited_watts,
            job_ids=node.job_ids,
            job_range=node.job_range(),
        )
    return statuses
