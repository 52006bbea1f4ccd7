"""Source of operating points for a job on several nodes. The controller's coordinator chooses the points."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.group.member import GroupMember, PointChange
from slurm_energy.tuning.group.messages import GroupDecision, GroupPoll, NodeOffer
from slurm_energy.tuning.progress_window import ProgressWindow


class GroupSource:
    """This node as a member of the tuning group of one job: the nodes on which the job is tuned together.

    All methods run in the worker thread.

    Args:
        identity: a poll without state. Every poll of this node is a copy of `identity` to which the present
            state is added.
        offer: operating points that this node can apply.
        knows_point: whether the operating point in force is known. This point is unknown after a restart of
            the agent.
    """

    def __init__(self, identity: GroupPoll, offer: NodeOffer, *, knows_point: bool = True) -> None:
        self._identity, self._offer = identity, offer
        self._member = GroupMember() if knows_point else GroupMember(-1, None)
        self._window: ProgressWindow | None = None
        self._refused: set[str] = set()

    @property
    def requested(self) -> OperatingPoint:
        """Requested operating point of this node; `UNTUNED` while the point in force is unknown."""
        return self._member.point or UNTUNED

    @property
    def phase(self) -> str:
        """Current phase of the group's search, for example `reference`, `probe` or `hold`."""
        return self._member.phase

    @property
    def poll_s(self) -> float:
        """Seconds until the next poll."""
        return self._member.poll_s

    def observe(self, window: ProgressWindow) -> None:
        """Store a measured window for the next poll."""
        self._window = window

    def summary(self) -> dict[str, Any]:
        """Return the result of the group's search in the format of the record's key `tuning`."""
        return dict(self._member.summary)

    def refuse(self, fields: Iterable[str]) -> None:
        """Report fields of `OperatingPoint` that have no effect on this node."""
        self._refused.update(fields)

    def next_poll(self) -> GroupPoll:
        """Return the poll that the agent sends now. Each window is sent only once."""
        member, window = self._member, None
        if self._window is not None and self._window.point == member.point:
            window = member.to_controller_time(self._window)
        self._window = None
        identity = self._identity
        return GroupPoll(
            node=identity.node,
            job_id=identity.job_id,
            restart_count=identity.restart_count,
            nodes=identity.nodes,
            objective=identity.objective,
            slowdown_limit=identity.slowdown_limit,
            epoch=member.epoch,
            point=member.point,
            switch_at_s=member.switch_at_s,
            offer=self._offer if member.needs_offer else None,
            window=window,
            refused=tuple(sorted(self._refused)),
        )

    def last_poll(self) -> GroupPoll:
        """Return the poll that reports the end of the job on this node."""
        identity = self._identity
        return GroupPoll(
            *(identity.node, identity.job_id, identity.restart_count, identity.nodes, identity.objective),
            is_leaving=True,
        )

    def take(self, decision: GroupDecision, sent_s: float, received_s: float) -> None:
        """Take a decision of the coordinator about operating points into account, see `GroupMember.take`."""
        self._member.take(decision, sent_s, received_s)

    def change_at_s(self) -> float:
        """Return the time in seconds since boot at which a change may be due; infinity if none is agreed."""
        return self._member.change_at_s()

    def due_change(self, now_s: float) -> PointChange | None:
        """Return the change of the operating point that is due on this node; None if no change is due."""
        return self._member.due_change(now_s)

    def applied(self, change: PointChange, now_s: float) -> None:
        """Record that the node has made a change."""
        self._member.applied(change, now_s)
        self._window = None
