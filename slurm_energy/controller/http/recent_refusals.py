"""Memory of the reasons for which live reports of nodes were refused.

A live report states the present power of a node and the energy of its running jobs so far. The last reason
of each node is kept for a limited time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_AGE_S: Final = 900.0
"""An agent whose report is refused repeats it within ten minutes."""
_MAX_NODES: Final = 10_000


class RecentRefusals:
    """The reasons for which senergyctld refused the latest live reports, by node.

    A live report states the present power of a node and the energy of its running jobs so far.

    Args:
        clock: function that returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reasons: dict[str, tuple[float, str]] = {}

    def add(self, node: str, reason: str) -> None:
        """Store why a delivery of a node was refused.

        The oldest reason is dropped if there are too many.
        """
        self._reasons.pop(node, None)
        if len(self._reasons) >= _MAX_NODES:
            del self._reasons[next(iter(self._reasons))]
        self._reasons[node] = self._clock(), reason

    def forget(self, node: str) -> None:
        """Delete the stored reason for the refusal of a node's report.

        Call this method when a report of the node has been accepted.
        """
        self._reasons.pop(node, None)

    def recent(self) -> dict[str, str]:
        """Return the reasons of the last `MAX_AGE_S` seconds by node."""
        since_s = self._clock() - MAX_AGE_S
        return {node: reason for node, (time_s, reason) in self._reasons.items() if time_s >= since_s}
