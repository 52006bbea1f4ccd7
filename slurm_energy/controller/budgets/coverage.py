"""Assignment of nodes, jobs and devices to the power budgets that count their power.

The module also computes, for each budget, the sum of a value over its nodes or devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from slurm_energy.controller.budgets.facts import (
    BudgetedJob,
    BudgetedNode,
    BudgetInForce,
    BudgetScope,
    ScopeKind,
)
from slurm_energy.scheduling.queue import Bools, Floats, Ints

_Owner = tuple[str, str, str]
"""Account, user and QOS of a job."""
_OWNER_KINDS: Final = {ScopeKind.ACCOUNT: 0, ScopeKind.USER: 1, ScopeKind.QOS: 2}
"""Index in `_Owner` of the name by which a budget of this kind selects jobs."""


def node_cover(
    budgets: Sequence[BudgetInForce], names: Sequence[str], nodes: Mapping[str, BudgetedNode]
) -> Bools:
    """Return which nodes each budget counts, as booleans of shape (b, number of names).

    A budget of a partition also counts every node whose partitions are unknown.

    Args:
        budgets: the b budgets in force.
        names: names of the nodes.
        nodes: nodes in Slurm's configuration by name.
    """
    cover: Bools = np.zeros((len(budgets), len(names)), np.bool_)
    partitions = [nodes[name].partitions if name in nodes else None for name in names]
    different = set(partitions)
    for row, scope in enumerate(budget.scope for budget in budgets):
        if scope.kind is ScopeKind.CLUSTER:
            cover[row] = True
        elif scope.kind is ScopeKind.NODES:
            cover[row] = [name in scope.names for name in names]
        elif scope.kind is ScopeKind.PARTITION:
            counts = {one: one is None or not scope.names.isdisjoint(one) for one in different}
            cover[row] = [counts[one] for one in partitions]
    return cover


class JobCover:
    """Assignment of jobs to the power budgets that include their power.

    A job's account, user and QOS determine its budgets. The assignment is therefore computed only once for
    all jobs that agree in these three attributes. A budget that limits certain nodes has no jobs.

    Args:
        budgets: the b budgets in force.
        jobs: running jobs by id. A job that Slurm has not reported yet belongs to no budget.
    """

    def __init__(self, budgets: Sequence[BudgetInForce], jobs: Mapping[int, BudgetedJob]) -> None:
        self._scopes = [budget.scope for budget in budgets]
        self._jobs = jobs
        self._covers: list[Bools] = []
        self._index_of_owner: dict[_Owner | None, int] = {}
        self._index_of_ids: dict[tuple[int, ...], int] = {}

    def of_sets(self, sets: Iterable[tuple[int, ...]]) -> Bools:
        """Return, for each budget and each set of jobs, whether the budget applies to a job of the set.

        A budget applies to a job if it includes the power of the job. The result has the shape (b, number of
        sets) for b budgets.
        """
        indices = [self._set_index(ids) for ids in sets]
        return np.ascontiguousarray(self._table()[indices].T)

    def counts(self, sets: Sequence[Collection[int]]) -> Ints:
        """Return how many jobs of each given set are under each budget.

        The result has shape (number of sets, number of budgets).
        """
        total: Ints = np.zeros((len(sets), len(self._scopes)), np.int64)
        indices = [self._job_index(job_id) for ids in sets for job_id in ids]
        set_of = np.repeat(np.arange(len(sets)), np.array([len(ids) for ids in sets], np.int64))
        np.add.at(total, set_of, self._table()[indices])
        return total

    def _table(self) -> Bools:
        """Return which budgets apply to the jobs of each combination of account, user and QOS.

        A budget applies to a job if it includes the power of the job. The combinations are those that have
        occurred. The result is an array of booleans of shape (number of combinations, b), for b budgets.
        """
        return np.array(self._covers, np.bool_).reshape(len(self._covers), len(self._scopes))

    def _job_index(self, job_id: int) -> int:
        job = self._jobs.get(job_id)
        owner = None if job is None else (job.account, job.user, job.qos)
        index = self._index_of_owner.get(owner)
        if index is None:
            index = self._index_of_owner[owner] = len(self._covers)
            self._covers.append(np.array([_covers_owner(scope, owner) for scope in self._scopes], np.bool_))
        return index

    def _set_index(self, ids: tuple[int, ...]) -> int:
        index = self._index_of_ids.get(ids)
        if index is None:
            index = self._index_of_ids[ids] = self._add_set(ids)
        return index

    def _add_set(self, ids: tuple[int, ...]) -> int:
        if len(ids) == 1:
            return self._job_index(ids[0])
        cover: Bools = np.zeros(len(self._scopes), np.bool_)
        for job_id in ids:
            cover |= self._covers[self._job_index(job_id)]
        self._covers.append(cover)
        return len(self._covers) - 1


def _covers_owner(scope: BudgetScope, owner: _Owner | None) -> bool:
    """Return whether a budget that limits jobs covers the jobs with a given account, user and QOS."""
    return owner is not None and scope.kind in _OWNER_KINDS and owner[_OWNER_KINDS[scope.kind]] in scope.names


class CoverSums:
    """Computes, for each of b budgets, sums over the nodes or devices under the budget.

    There are n nodes or devices in total.

    Args:
        cover: whether each budget counts each node or device, shape (b, n).
    """

    def __init__(self, cover: Bools) -> None:
        # A product of booleans and floats would convert the booleans at each call, and would not use BLAS.
        self._weights = np.ascontiguousarray(cover, np.float64)

    def total(self, values: Floats) -> Floats:
        """Return, for each budget, the sum of the given values over the nodes or devices under it.

        The result has shape (b,).
        """
        sums: Floats = self._weights @ values
        return sums
