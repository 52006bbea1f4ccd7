"""JSON objects of the responses about power budgets, from decisions and stored values."""

from __future__ import annotations

import math
from collections.abc import Callable

from slurm_energy.accounting.budgets import BudgetChange, BudgetSample, LimitOverride
from slurm_energy.controller.budgets.facts import BudgetCycle, BudgetedJobStatus, BudgetedNodeStatus
from slurm_energy.protocol.budget_responses import (
    BudgetChangeObject,
    BudgetNodeObject,
    BudgetSeriesObject,
    LimitOverrideObject,
)


def budget_sentences(cycle: BudgetCycle, job: BudgetedJobStatus) -> list[str]:
    """Return a sentence about each budget that covers a job."""
    sentences = []
    for status in cycle.budgets:
        if status.name not in job.budgets:
            continue
        if not math.isfinite(status.limit_watts):
            sentences.append(f"budget '{status.name}' has no limit now")
            continue
        lacking = f", {status.shortfall_watts:.0f} W too much" if status.shortfall_watts > 0 else ""
        sentences.append(
            f"budget '{status.name}' has a limit of {status.limit_watts:.0f} W, of which "
            f"{status.committed_watts:.0f} W are committed and {max(0.0, status.headroom_watts):.0f} W are "
            f"left for further jobs{lacking}"
        )
    return sentences


def node_objects(cycle: BudgetCycle, is_visible: Callable[[int], bool]) -> list[BudgetNodeObject]:
    """Return the nodes of a budget decision as JSON objects.

    The objects name only jobs that the caller may see.
    """
    return [_node(status, is_visible) for _, status in sorted(cycle.nodes.items())]


def _node(status: BudgetedNodeStatus, is_visible: Callable[[int], bool]) -> BudgetNodeObject:
    return {
        "node": status.node,
        "state": status.state,
        "reason": status.reason,
        "measured_watts": status.measured_watts,
        "committed_watts": status.committed_watts,
        "max_watts": status.max_watts,
        "job_ids": [job_id for job_id in sorted(status.job_ids) if is_visible(job_id)],
    }


def override_object(override: LimitOverride) -> LimitOverrideObject:
    """Return a live limit (a budget limit that an operator has set) as a JSON object."""
    return {
        "watts": override.watts,
        "until_unix_s": override.end,
        "by": override.actor,
        "since_unix_s": override.time,
        "reason": override.reason,
    }


def series_object(name: str, samples: list[BudgetSample]) -> BudgetSeriesObject:
    """Return samples of the power under a budget as a JSON object with one list per quantity."""
    return {
        "budget": name,
        "unix_s": [sample.time for sample in samples],
        "span_s": [sample.span_s for sample in samples],
        "limit_watts": [sample.limit_watts for sample in samples],
        "measured_watts": [sample.measured_watts for sample in samples],
        "max_measured_watts": [sample.max_measured_watts for sample in samples],
        "committed_watts": [sample.committed_watts for sample in samples],
        "capped_watts": [sample.capped_watts for sample in samples],
        "over_s": [sample.over_s for sample in samples],
    }


def change_object(change: BudgetChange) -> BudgetChangeObject:
    """Return an event of the audit trail as a JSON object."""
    return {
        "unix_s": change.time,
        "budget": change.budget,
        "by": change.actor,
        "kind": change.kind,
        "text": change.why,
    }


def finite(watts: float) -> float | None:
    """Return a limit as a value for JSON. An infinite limit means no limit and becomes None."""
    return watts if math.isfinite(watts) else None
