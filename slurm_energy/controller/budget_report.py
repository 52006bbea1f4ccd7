"""State of budgets, nodes and jobs after a decision, for status pages, the store and admission."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from slurm_energy.budget.group_response import time_ratios
from slurm_energy.controller.budget_cycle import CycleInputs, CycleOutcome, reserve_watts
from slurm_energy.controller.budget_facts import (
    BudgetCycle,
    BudgetedJobStatus,
    BudgetedNodeStatus,
    BudgetStatus,
)
from slurm_energy.scheduling.queue import Floats

ADMISSION_SLOWDOWN: Final = 0.25
"""Slowdown to which running jobs without a slowdown limit are lowered in order to start further jobs."""


def measured_watts(inputs: CycleInputs, outcome: CycleOutcome) -> tuple[Floats, Floats]:
    """Return measured and committed power under each budget, shape (b,) each.

    Nodes whose power is unknown count at their committed power in both.
    """
    table, cover = outcome.table, outcome.table.cover
    committed = outcome.fixed_watts + cover @ outcome.counted_watts
    silent = ~table.controlled
    watts = np.array([_device_watts(device.report.watts) for device in table.devices], np.float64)
    measured_device = np.where(silent | np.isnan(watts), outcome.counted_watts, watts)
    measured = outcome.fixed_watts + cover @ measured_device
    node_part = _measured_rest(inputs, outcome)
    return measured + outcome.node_cover @ node_part, committed


def _device_watts(watts: float | None) -> float:
    return math.nan if watts is None else watts


def _measured_rest(inputs: CycleInputs, outcome: CycleOutcome) -> Floats:
    """Return for each node the measured power of its other parts minus the power for which they count."""
    part = np.zeros(outcome.node_cover.shape[1])
    for index, node in enumerate(inputs.nodes[: len(part)]):
        poll = node.poll
        if poll is None or inputs.silent[index] or node.distrust or poll.node_watts is None:
            continue
        limited = [device.report.watts for device in node.devices.values() if device.row >= 0]
        if any(watts is None for watts in limited):
            continue
        rest = poll.node_watts - sum(watts for watts in limited if watts is not None)
        part[index] = rest - reserve_watts(inputs, node) - node.unlimited_watts()
    return part


def cycle_report(inputs: CycleInputs, outcome: CycleOutcome, poll_s: float) -> BudgetCycle:
    """Return the state of all budgets, jobs and nodes."""
    return BudgetCycle(
        time_s=inputs.now_s,
        budgets=_budgets(inputs, outcome),
        jobs=_jobs(inputs, outcome),
        nodes=_nodes(inputs, outcome),
        poll_s=poll_s,
    )


def _budgets(inputs: CycleInputs, outcome: CycleOutcome) -> tuple[BudgetStatus, ...]:
    table, groups = outcome.table, outcome.groups
    measured, committed = measured_watts(inputs, outcome)
    needed, floor = outcome.counted_watts.copy(), outcome.counted_watts.copy()
    needed[outcome.grouped] = needed_watts(outcome)[groups.of_device]
    floor[outcome.grouped] = groups.columns.floor_watts[groups.of_device]
    capped = np.zeros(len(table.devices))
    capped[outcome.grouped] = np.maximum(
        0.0, table.draw_watts[outcome.grouped] - outcome.counted_watts[outcome.grouped]
    )
    states = [_state(inputs, index) for index in range(len(inputs.nodes))]
    rows = []
    for row, budget in enumerate(inputs.budgets):
        cover = outcome.node_cover[row]
        chosen = [state for state, covered in zip(states, cover.tolist(), strict=True) if covered]
        free = float(outcome.usable_watts[row] + inputs.promised_watts[row])
        rows.append(
            BudgetStatus(
                name=budget.name,
                limit_watts=budget.limit_watts,
                measured_watts=float(measured[row]) if inputs.nodes else None,
                committed_watts=float(committed[row]),
                fixed_watts=float(outcome.fixed_watts[row]),
                capped_watts=float(table.cover[row] @ capped),
                headroom_watts=free - float(outcome.fixed_watts[row] + table.cover[row] @ needed),
                floor_watts=float(outcome.fixed_watts[row] + table.cover[row] @ floor),
                shortfall_watts=float(outcome.shares.shortfall_watts[row]),
                nodes=len(chosen),
                silent_nodes=chosen.count("silent"),
                distrusted_nodes=chosen.count("distrusted"),
            )
        )
    return tuple(rows)


def needed_watts(outcome: CycleOutcome) -> Floats:
    """Return the limit per device of each group to which it may be lowered in order to start further jobs.

    It is the lowest limit within the job's slowdown limit, or within `ADMISSION_SLOWDOWN` without one.
    """
    columns = outcome.groups.columns
    if not columns.count:
        return np.zeros(0)
    accepted = np.where(np.isnan(columns.slowdown_limit), ADMISSION_SLOWDOWN, columns.slowdown_limit)
    times = time_ratios(columns, columns.level_watts)
    fits = times <= 1.0 + accepted[:, None]
    first = np.where(fits.any(axis=1), np.argmax(fits, axis=1), columns.level_watts.shape[1] - 1)
    lowest = columns.level_watts[np.arange(columns.count), first]
    needed: Floats = np.clip(lowest, columns.floor_watts, columns.max_watts)
    return needed


def _jobs(inputs: CycleInputs, outcome: CycleOutcome) -> Mapping[int, BudgetedJobStatus]:
    table = outcome.table
    by_job: dict[int, list[int]] = {}
    for index, device in enumerate(table.devices):
        for job_id in device.report.job_ids:
            by_job.setdefault(job_id, []).append(index)
    group_of = {
        int(row): int(group) for row, group in zip(outcome.grouped, outcome.groups.of_device, strict=True)
    }
    return {job_id: _job(inputs, outcome, job_id, indices, group_of) for job_id, indices in by_job.items()}


def _job(
    inputs: CycleInputs, outcome: CycleOutcome, job_id: int, indices: list[int], group_of: Mapping[int, int]
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
    return BudgetedJobStatus(
        job_id=job_id,
        nodes=len({int(table.node[index]) for index in indices}),
        limits_watts=limits,
        measured_watts=sum(known) if len(known) == len(watts_of) else None,
        wanted_watts=wanted,
        committed_watts=committed,
        budget=budget if any(watts is not None for watts in limits.values()) else None,
        keeps_slowdown=keeps,
        has_slowdown_limit=has_limit,
        explanation=_sentence(inputs, job_id, limits, budget, wanted, keeps=keeps, has_limit=has_limit),
    )


def _sentence(
    inputs: CycleInputs,
    job_id: int,
    limits: Mapping[str, float | None],
    budget: str | None,
    wanted_watts: float,
    *,
    keeps: bool,
    has_limit: bool,
) -> str:
    bound = [f"{kind or 'device'} {watts:.0f} W" for kind, watts in limits.items() if watts is not None]
    if not bound or budget is None:
        return f"Job {job_id} needs no limit: its expected {wanted_watts:.0f} W fit under every budget."
    limit = next(one.limit_watts for one in inputs.budgets if one.name == budget)
    text = f"Budget '{budget}' ({limit:.0f} W) limits job {job_id} to {', '.join(bound)} per device"
    if has_limit:
        text += ", within its slowdown limit" if keeps else ", beyond its slowdown limit"
    return f"{text}, by the policy {inputs.settings.distribution}."


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
        state, reserve = _state(inputs, index), reserve_watts(inputs, node)
        rest = 0.0 if state == "off" else reserve + node.unlimited_watts()
        statuses[node.name] = BudgetedNodeStatus(
            node=node.name,
            state=state,
            reason=node.distrust,
            measured_watts=None if state in ("silent", "off") else node.measured_watts,
            committed_watts=float(counted[index]) + rest,
            max_watts=node.nameplate_watts(reserve),
            job_ids=node.job_ids,
            range=node.range_watts(),
        )
    return statuses
