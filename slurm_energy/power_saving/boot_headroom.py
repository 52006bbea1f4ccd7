"""Power that budgets leave for nodes that boot before they are needed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(slots=True)
class BootHeadroom:
    """Power that booting nodes may add under one power budget of nodes.

    Attributes:
        watts: power that is left under the budget.
        partition: partition whose nodes the budget limits; None means nodes of any partition.
        nodes: names of the nodes that the budget limits; None means all nodes of `partition`.
    """

    watts: float
    partition: str | None = None
    nodes: frozenset[str] | None = None

    def covers(self, node: str, partitions: Collection[str]) -> bool:
        """Return whether the budget limits a node in the given partitions."""
        return self.partition in (None, *partitions) and (self.nodes is None or node in self.nodes)
