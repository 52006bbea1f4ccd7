"""State of one node of a job that is tuned on several nodes together (a tuning group).

The module also determines when this node changes its operating point (hardware settings).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.group.clock_offset import ClockOffset
from slurm_energy.tuning.group.messages import GroupDecision
from slurm_energy.tuning.progress_window import ProgressWindow

_MAX_SILENCE_S: Final = 0.8
"""Age of the last decision from which a node makes no decided change, because other nodes undo the change."""
_CONFIRM_S: Final = 0.6
"""Time after a change in which a decision must arrive. Otherwise all nodes undo the change."""


@dataclass(frozen=True, slots=True)
class PointChange:
    """A change of the operating point (hardware settings) that this node has to make.

    It consists of the number of the change and the new operating point.
    """

    epoch: int
    point: OperatingPoint


class GroupMember:
    """State of one node of a job on several nodes, whose operating points are tuned together.

    A coordinator tells the nodes when to change to which operating point. The node asks the coordinator
    periodically (polls it). Without contact to the coordinator the node keeps its operating point. If the
    contact is lost shortly before a change, the node does not make the change. If the contact is lost
    shortly after a change, the node undoes the change. In both cases, the coordinator makes the other nodes
    undo the change too. Local times are seconds since boot on the node.

    Attributes:
        epoch: number of the last change that the node has applied; -1 means unknown.
        point: operating point in force; None means unknown.
        phase: current phase of the group's search.
        summary: result of the search, in the form of the job record's key `tuning`.
        needs_offer: whether the next poll must list the operating points that the node supports.
        poll_s: seconds until the next poll.
    """

    def __init__(self, epoch: int = 0, point: OperatingPoint | None = UNTUNED) -> None:
        self.epoch, self.point = epoch, point
        self.phase = "gathering"
        self.summary: dict[str, Any] = {}
        self.needs_offer = True
        self.poll_s = 1.0
        self._offset = ClockOffset()
        self._coordinator: str | None = None
        self._due: PointChange | None = None
        self._next: PointChange | None = None
        self._switch_at_s: float | None = None
        self._go = False
        self._heard_s = -math.inf
        self._before: PointChange | None = None
        self._undo_at_s = math.inf

    @property
    def switch_at_s(self) -> float | None:
        """Time of the next change that this node has stored, on the controller's clock.

        None means that no change is stored.
        """
        return self._switch_at_s

    def take(self, decision: GroupDecision, sent_s: float, received_s: float) -> None:
        """Process a decision of the coordinator of a job on several nodes.

        Args:
            decision: decision of the coordinator for this node.
            sent_s: local time at which the request for the decision (poll) was sent.
            received_s: local time at which the decision arrived.
        """
        if decision.coordinator != self._coordinator:
            if self._next is not None and self._go:
                self._heard_s = received_s
                return  # the other nodes make the decided change, which the new coordinator does not know
            self._coordinator = decision.coordinator
            self._offset.reset()
            self._cancel()
        self._offset.add(sent_s, decision.time_s, received_s)
        self._heard_s, self._undo_at_s = received_s, math.inf
        self.phase, self.poll_s = decision.phase, decision.poll_s
        self.summary, self.needs_offer = dict(decision.summary), decision.needs_offer
        if decision.epoch > self.epoch:
            self._due = PointChange(decision.epoch, decision.point)
        is_old = decision.epoch < self.epoch  # this node changed its point while the decision was on its way
        if decision.next_point is None or decision.switch_at_s is None or is_old:
            self._cancel()
        else:
            self._next = PointChange(decision.epoch + 1, decision.next_point)
            self._switch_at_s, self._go = decision.switch_at_s, decision.go

    def change_at_s(self) -> float:
        """Return the earliest time at which `due_change` may return a change of the operating point.

        The time is on the clock of this node. It is minus infinity if a change is due already, and infinity
        if no change is stored.
        """
        if self._due is not None:
            return -math.inf
        if self._next is None or not self._go or self._switch_at_s is None:
            return self._undo_at_s
        at_s = self._offset.to_local(self._switch_at_s)
        return math.inf if at_s is None else at_s

    def due_change(self, now_s: float) -> PointChange | None:
        """Return the change that the node has to apply at the local time `now_s`.

        Return None if no change is due.
        """
        if self._due is not None:
            return self._due
        if now_s < self.change_at_s():
            return None
        if self._next is None or not self._go:
            return self._before
        if now_s - self._heard_s <= _MAX_SILENCE_S:
            return self._next
        self._cancel()
        return None

    def applied(self, change: PointChange, now_s: float) -> None:
        """Record that the node has applied a change of the operating point at the local time `now_s`."""
        self._undo_at_s = math.inf
        if change == self._next and self.point is not None:
            self._before, self._undo_at_s = PointChange(self.epoch, self.point), now_s + _CONFIRM_S
        self.epoch, self.point = change.epoch, change.point
        self._due = None
        if self._next is not None and self._next.epoch <= change.epoch:
            self._cancel()

    def to_controller_time(self, window: ProgressWindow) -> ProgressWindow | None:
        """Return a measurement window whose start is converted to the controller's clock.

        Return None before the first contact with the controller.
        """
        start_s = self._offset.to_controller(window.start_s)
        return None if start_s is None else replace(window, start_s=start_s)

    def _cancel(self) -> None:
        self._next, self._switch_at_s, self._go = None, None, False
