"""Assignment of the jobs in the queue to the power budgets that will count them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol, TypeVar

from slurm_energy.slurm.queue.columns import QueueColumns

Key = TypeVar("Key", bound=Hashable)


class CoveringBudget(Protocol):
    """Interface of a power budget that covers certain jobs."""

    def covers(self, user: str, account: str, partition: str, qos: str) -> bool:
        """Return whether the power of jobs with these attributes counts under this budget.

        The attributes are user, account, partition and QOS.
        """
        ...


def covering_budgets(
    queue: QueueColumns, budgets: Mapping[Key, CoveringBudget]
) -> Callable[[int], tuple[Key, ...]]:
    """Return a function that returns the keys of the budgets that cover the job in a row of the queue.

    Many jobs agree in user, account, partition and QOS. Their budgets are determined only once.

    Args:
        queue: the jobs.
        budgets: budgets by key, for example by name.
    """

    @functools.cache
    def keys(*attributes: str) -> tuple[Key, ...]:
        return tuple(key for key, budget in budgets.items() if budget.covers(*attributes))

    def keys_of(row: int) -> tuple[Key, ...]:
        return keys(queue.user[row], queue.account[row], queue.partition[row], queue.qos[row])

    return keys_of
