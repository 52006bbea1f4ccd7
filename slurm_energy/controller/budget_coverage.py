"""Which nodes, jobs and devices are under which budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from slurm_energy.controller.budget_facts import (
    BudgetedJob,
    BudgetedNode,
    BudgetInForce,
    BudgetScope,
    ScopeKind,
)
from slurm_energy.scheduling.queue import Bools

_JOB_NAME: Mapping[ScopeKind, Callable[[BudgetedJob], str]] = {
    ScopeKind.ACCOUNT: lambda job: job.account,
    ScopeKind.USER: lambda job: job.user,
    ScopeKind.QOS: lambda job: job.qos,
}


def covers_node(scope: BudgetScope, name: str, node: BudgetedNode | None) -> bool:
    """Return whether a budget counts the power of a whole node.

    A node whose partitions are unknown counts under every budget of a partition.

    Args:
        scope: scope of the budget.
        name: name of the node.
        node: the node in Slurm's configuration; None: not known yet.
    """
    if scope.kind is ScopeKind.CLUSTER:
        return True
    if scope.kind is ScopeKind.NODES:
        return name in scope.names
    if scope.kind is ScopeKind.PARTITION:
        return node is None or not scope.names.isdisjoint(node.partitions)
    return False


def covers_job(scope: BudgetScope, job: BudgetedJob | None) -> bool:
    """Return whether a budget of jobs counts a job; False for a job that Slurm has not reported yet."""
    name_of = _JOB_NAME.get(scope.kind)
    return name_of is not None and job is not None and name_of(job) in scope.names


def node_cover(
    budgets: Sequence[BudgetInForce], names: Sequence[str], nodes: Mapping[str, BudgetedNode]
) -> Bools:
    """Return for each budget and node whether the budget counts the node, shape (b, number of names)."""
    cover: Bools = np.zeros((len(budgets), len(names)), np.bool_)
    for row, budget in enumerate(budgets):
        if budget.scope.covers_nodes:
            cover[row] = [covers_node(budget.scope, name, nodes.get(name)) for name in names]
    return cover


def job_cover(
    budgets: Sequence[BudgetInForce], job_ids: Iterable[tuple[int, ...]], jobs: Mapping[int, BudgetedJob]
) -> Mapping[tuple[int, ...], Bools]:
    """Return for each set of jobs which budgets of jobs count at least one of them, shape (b,) each."""
    by_job: dict[int, Bools] = {}
    cover: dict[tuple[int, ...], Bools] = {}
    for ids in set(job_ids):
        covered: Bools = np.zeros(len(budgets), np.bool_)
        for job_id in ids:
            if job_id not in by_job:
                job = jobs.get(job_id)
                by_job[job_id] = np.array([covers_job(b.scope, job) for b in budgets], np.bool_)
            covered |= by_job[job_id]
        cover[ids] = covered
    return cover
