"""Queue of the future events of a simulation, ordered by time.

The module also contains the simulated clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any


class EventKind(IntEnum):
    """Kinds of simulated events.

    Events of equal time run in the numeric order of their kinds. This order frees resources before other
    events request them.
    """

    END = 0
    NODE = 1
    WORK = 2
    ARRIVAL = 3
    BUDGET = 4
    DEFERRAL = 5
    PASS = 6
    CONTROL = 7


class EventQueue:
    """Priority queue of events. Events of equal time and kind run in the order in which they were added.

    Attributes:
        now_s: simulated time in seconds; the engine advances it.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, EventKind, int, Callable[..., None], Any]] = []
        self._count = 0

    @property
    def next_s(self) -> float:
        """Return the time of the next event in seconds; infinity if no event is left."""
        return self._heap[0][0] if self._heap else math.inf

    def add(self, time_s: float, kind: EventKind, act: Callable[..., None], argument: object) -> None:
        """Schedule the call `act(argument)` at the simulated time `time_s`.

        A call at the time infinity is not stored, because it would never happen.
        """
        if not math.isinf(time_s):
            self._count += 1
            heapq.heappush(self._heap, (time_s, kind, self._count, act, argument))

    def run_next(self) -> None:
        """Remove the next event from the queue and run it."""
        _, _, _, act, argument = heapq.heappop(self._heap)
        act(argument)
