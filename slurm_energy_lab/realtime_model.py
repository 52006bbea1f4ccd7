"""Node model in real time, with a clock, a lock and notification of changes.

Threads access the node model only within `with realtime_model.now() as model:`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slurm_energy_lab.model import NodeModel, NodeProfile

Clock = Callable[[], float]


class RealtimeModel:
    """Model of an emulated node that runs in real time.

    The time of the model follows the monotonic clock of the machine. `unix_s` converts this time to Unix
    time.
    """

    def __init__(self, profile: NodeProfile, clock: Clock = time.monotonic) -> None:
        self.profile = profile
        self.clock = clock
        self._model = NodeModel(profile, clock())
        self._lock = threading.Lock()
        self._change_event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @contextmanager
    def now(self) -> Iterator[NodeModel]:
        """Context manager that locks the node model, advances its time to now, and yields the model."""
        with self._lock:
            self._model.advance(self.clock())
            yield self._model

    def unix_s(self, moment_s: float) -> float:
        """Return the Unix seconds of a time of the model's clock."""
        return time.time() - (self.clock() - moment_s)

    @contextmanager
    def modify(self) -> Iterator[NodeModel]:
        """Context manager that locks and yields the node model for a change of settings.

        At the end of the block, the thread that waits for the model's next event is woken up.
        """
        with self.now() as model:
            yield model
        os.eventfd_write(self._change_event_fd, 1)

    @property
    def change_event_fd(self) -> int:
        """File descriptor that becomes readable when the settings of the node model have changed.

        A thread that waits for the next event of the model is woken up in this way. `clear_change_event`
        makes the file descriptor unreadable again.
        """
        return self._change_event_fd

    def clear_change_event(self) -> None:
        """Make the file descriptor `change_event_fd` unreadable until the next change of the model."""
        try:
            os.eventfd_read(self._change_event_fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close the file descriptor by which the model signals changes (`change_event_fd`)."""
        os.close(self._change_event_fd)


class SteppedCounter:
    """A counter that the hardware updates only at intervals.

    Reads between two updates return the old value.
    """

    __slots__ = ("_due_s", "_interval_s", "_read", "_value")

    def __init__(self, read: Callable[[NodeModel], int], interval_s: float) -> None:
        """Create a counter.

        Args:
            read: function that returns the exact value from a node model at the model's current time.
            interval_s: minimum seconds between two updates.
        """
        self._read = read
        self._interval_s = interval_s
        self._due_s = float("-inf")
        self._value = 0

    def value(self, model: NodeModel) -> int:
        """Return the value that the hardware shows at the model's current time."""
        if model.now_s >= self._due_s:
            self._value = self._read(model)
            self._due_s = model.now_s + self._interval_s
        return self._value
