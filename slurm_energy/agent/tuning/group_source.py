"""Source of the operating points of a job on several nodes.

The agent of each node uses this module. The coordinator in the controller chooses the points.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.group.member import GroupMember, PointChange
from slurm_energy.tuning.group.messages import GroupDecision, GroupPoll, NodeOffer
from slurm_energy.tuning.progress_window import ProgressWindow


class GroupSource:
    """This node as a member of a tuning group, which is the nodes on which one job is tuned together.

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
        """Operating point that this node must have for the joint tuning of the job's nodes.

        The coordinator of the nodes requests it. It is `UNTUNED` while the node does not know which
        operating point is in force.
        """
        return self._member.point or UNTUNED

    @property
    def phase(self) -> str:
        """Present phase of the search for the best settings of the job, for example `reference`.

        The nodes of the job are tuned together as a group and are all in the same phase. `probe` and `hold`
        are other phases.
        """
        return self._member.phase

    @property
    def poll_s(self) -> float:
        """Seconds until this node polls the coordinator of its tuning group again."""
        return self._member.poll_s

    def observe(self, window: ProgressWindow) -> None:
        """Store the result of a measurement window: the speed and power of the job in a time interval.

        The next state message (poll) to the controller will contain this result.
        """
        self._window = window

    def summary(self) -> dict[str, Any]:
        """Return the result of the search for the best settings of a job on several nodes.

        All nodes of the job take part in the search as a group. The result has the format of the key `tuning`
        in the energy record.
        """
        return dict(self._member.summary)

    def refuse(self, fields: Iterable[str]) -> None:
        """Record that this node cannot set some fields of `OperatingPoint`.

        The next message (poll) to the controller reports these fields.
        """
        self._refused.update(fields)

    def next_poll(self) -> GroupPoll:
        """Return the request (poll) that the agent sends to the coordinator now.

        The request contains the last measurement window, if it was measured at the present operating point.
        Each window is sent only once.
        """
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
        """Return the message (poll) by which this node leaves the tuning of a job on several nodes.

        The node sends this last poll to the job's coordinator when the job has ended on the node.
        """
        identity = self._identity
        return GroupPoll(
            *(identity.node, identity.job_id, identity.restart_count, identity.nodes, identity.objective),
            is_leaving=True,
        )

    def take(self, decision: GroupDecision, sent_s: float, received_s: float) -> None:
        """Accept a decision about operating points for this node.

        The decision comes from the coordinator that tunes the job on all its nodes. See `GroupMember.take`.
        """
        self._member.take(decision, sent_s, received_s)

    def change_at_s(self) -> float:
        """Return the time at which the agent must make the next agreed change of the operating point.

        The time is in seconds since boot. It is infinity if no change is agreed.
        """
        return self._member.change_at_s()

    def due_change(self, now_s: float) -> PointChange | None:
        """Return the change of the operating point that is due on this node; None if no change is due."""
        return self._member.due_change(now_s)

    def applied(self, change: PointChange, now_s: float) -> None:
        """Record that the node has changed its operating point as the coordinator decided."""
        self._member.applied(change, now_s)
        self._window = None
