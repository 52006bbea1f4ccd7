"""Deferral policy `cedla`: minimises the total cost of all deferrable jobs together.

The policy plans in slots of 15 minutes. Source: CE-DLA, as described in "Multi-Layer Profiling Systems for
Adaptive Machine Learning Training Optimization", section 3.3: c = sum_k sum_h e_k(h) W(h), with the energy
e_k(h) of node k in slot h and the price W(h).

Here the energy of jobs replaces the energy of nodes: each job draws its predicted power while it runs.
Placing a job is a soft constraint: a job without room costs a penalty. The policy is called again in each
slot, which gives a rolling horizon.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from slurm_energy.deferral.assignment import assign
from slurm_energy.deferral.planning import (
    NONE,
    immediate_plan,
    place,
    plan_of,
    start_table,
)
from slurm_energy.deferral.registry import register
from slurm_energy.deferral.slot_fit import SlotFit, reserve_urgent
from slurm_energy.deferral.tables import DeferralOptions, DeferralPlan, DeferralQueue, DeferralReason
from slurm_energy.deferral.window_costs import cost_curve
from slurm_energy.signals import SignalName


@register("cedla")
def cedla(queue: DeferralQueue, options: DeferralOptions) -> DeferralPlan:
    """Minimise the cost of all deferrable jobs together by integer programming (CE-DLA)."""
    curve = cost_curve(queue.signals, SignalName.PRICE)
    if curve is None:
        return immediate_plan(queue, DeferralReason.NO_FORECAST, SignalName.PRICE)
    table = start_table(queue, curve, options)
    score = table.score(options)
    fit = SlotFit(table.starts_s, queue.capacity)
    reserve_urgent(queue, table.starts_s, fit)
    if fit.limited:
        slots = assign(queue, table, score, fit, options)
    else:
        slots = place(queue, table, score, fit, np.arange(len(table.rows)))
    plan = plan_of(queue, table, slots, SignalName.PRICE)
    if options.soft:
        return plan
    rejected = np.zeros(queue.count, np.bool_)
    rejected[table.rows[slots == NONE]] = True
    return dataclasses.replace(plan, rejected=rejected)
