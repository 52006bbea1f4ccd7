"""Coordinator of the nodes of one tuned job.

All nodes change their operating point together, or none does. A change has three steps. First, the
coordinator announces the new point and the time of the change. Second, each agent stores both and confirms
them with its next request (poll). Third, the coordinator decides shortly before the announced time. If every
agent has confirmed the change and is in contact, the change takes place. Otherwise it is postponed.

After a change, an agent may fail to report the new point soon, for example because it died. The other agents
then return to the previous point. Therefore the points of nodes differ for less than a second. A node whose
agent is absent keeps the same point as all other nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.group.messages import GroupDecision, GroupPoll, NodeOffer
from slurm_energy.tuning.group.window_merge import merge_windows
from slurm_energy.tuning.progress_window import ProgressWindow

GATHERING = "gathering"
FROZEN = "frozen"
HOLD, STATIC = "hold", "static"
_MAX_SEARCHES = 8


class GroupSearch(Protocol):
    """Interface of a search for the operating point of a job on all of its nodes.

    `TuningSearch` is an example.
    """

    @property
    def requested(self) -> OperatingPoint:
        """Operating point that the job should have now."""

    @property
    def phase(self) -> str:
        """Current phase of the search for the best operating point of a job on several nodes."""

    def observe(self, window: ProgressWindow) -> None:
        """Update the search with the progress of the whole job (all its nodes) in a time window."""

    def summary(self) -> dict[str, Any]:
        """Return the result of the search so far, in the form of the job record's key `tuning`."""


SearchFactory = Callable[[Mapping[str, NodeOffer], frozenset[str]], GroupSearch]
"""Returns a new search, from the offers by node and the fields of `OperatingPoint` that have no effect."""


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """Times in seconds for changes of the operating point of all nodes of a job.

    A coordinator announces a change to the agents of the nodes. Shortly before the change it decides whether
    the change takes place. Each agent asks (polls) the coordinator periodically.

    Attributes:
        lead_s: time from the announcement of a change to the change.
        guard_s: time before the change from which the coordinator may decide.
        last_call_s: time before the change until which the coordinator may decide. A change without a
            decision is postponed.
        contact_s: maximum age of an agent's last poll while the agent counts as in contact.
        confirm_s: time after the change within which every agent must report the new point.
        missing_s: age of an agent's last poll from which the agent counts as missing. The operating point of
            all nodes is then frozen.
        poll_s: interval of polls without a change while the search measures points.
        hold_poll_s: interval of polls without a change while the point is held.
        busy_poll_s: interval of polls during a change.
    """

    lead_s: float = 4.0
    guard_s: float = 1.75
    last_call_s: float = 0.75
    contact_s: float = 1.0
    confirm_s: float = 0.45
    missing_s: float = 5.0
    poll_s: float = 1.0
    hold_poll_s: float = 2.0
    busy_poll_s: float = 0.2


DEFAULT_TIMES = GroupTimes()


@dataclass(slots=True)
class _Member:
    """State of one node of a tuned job, according to the last report of the node's agent.

    Attributes:
        polled_s: time of the last report (poll).
        epoch: number of the last change of settings that the node has applied; -1 means unknown.
        switch_at_s: time of the next change, which the agent has stored.
        offer: operating points (settings) that the node supports; None means not received yet.
        window: measurement at the current operating point that has not been merged with those of the
            other nodes yet; None means that there is none.
    """

    polled_s: float
    epoch: int = -1
    switch_at_s: float | None = None
    offer: NodeOffer | None = None
    window: ProgressWindow | None = None


@dataclass(slots=True)
class _Switch:
    """A change of the operating point that has not been completed on all nodes yet.

    Attributes:
        epoch: number of the change.
        point: operating point after the change.
        at_s: time of the change.
        go: whether the coordinator has decided that the change takes place.
    """

    epoch: int
    point: OperatingPoint
    at_s: float
    go: bool = False


@dataclass(slots=True)
class _State:
    """Operating point in force in a group of nodes, and the number of the change that set it."""

    epoch: int = 0
    point: OperatingPoint = field(default_factory=lambda: UNTUNED)


class GroupCoordinator:
    """Coordinator that lets all nodes of one job change their operating point together.

    The coordinator acts only when an agent polls.

    Args:
        name: random name of this coordinator.
        nodes: number of nodes of the job.
        create_search: function that creates the search for the best operating point. It is called when all
            nodes have joined.
        times: durations that govern a change of the operating point and the polls of the agents.
    """

    def __init__(
        self, name: str, nodes: int, create_search: SearchFactory, times: GroupTimes = DEFAULT_TIMES
    ) -> None:
        self.nodes = nodes
        self._name, self._create_search, self._times = name, create_search, times
        self._members: dict[str, _Member] = {}
        self._state = _State()
        self._switch: _Switch | None = None
        self._search: GroupSearch | None = None
        self._summary: dict[str, Any] = {}
        self._refused: frozenset[str] = frozenset()
        self._searches = 0
        self._is_ending = False
        self._returned_s = -math.inf

    @property
    def last_poll_s(self) -> float:
        """Time of the latest poll (request of an agent); minus infinity if there was none."""
        return max((member.polled_s for member in self._members.values()), default=-math.inf)

    @property
    def is_empty(self) -> bool:
        """Whether the job has ended on all nodes whose agents had joined the group."""
        return self._is_ending and not self._members

    def poll(self, poll: GroupPoll, now_s: float) -> GroupDecision:
        """Process the report of one node of a tuned job, and return the decision for the node's agent.

        The decision states which operating point the node must have, or when the point changes.

        Args:
            poll: report of the agent about the state of the node.
            now_s: time on the controller's clock in seconds.
        """
        if poll.is_leaving:
            self._is_ending = True
            self._members.pop(poll.node, None)
            return self._decision(_Member(now_s), now_s)
        member = self._members.get(poll.node)
        if member is None:
            if len(self._members) >= self.nodes:
                return self._decision(_Member(now_s), now_s)
            member = self._members[poll.node] = _Member(now_s)
        self._update(member, poll, now_s)
        self._advance(now_s)
        return self._decision(member, now_s)

    def _adopt(self, poll: GroupPoll) -> None:
        """Adopt the operating point (set of hardware settings) that is in force on the nodes of the job.

        This is necessary, for example, after a restart of the controller, which has lost its state.
        """
        if poll.point is not None and poll.epoch > self._state.epoch and self._switch is None:
            self._state = _State(poll.epoch, poll.point)
            for member in self._members.values():
                member.window = None

    def _update(self, member: _Member, poll: GroupPoll, now_s: float) -> None:
        self._adopt(poll)
        member.polled_s = now_s
        member.epoch, member.switch_at_s = poll.epoch, poll.switch_at_s
        member.offer = poll.offer or member.offer
        window, state = poll.window, self._state
        if window is not None and (poll.epoch, window.point) == (state.epoch, state.point):
            member.window = window
        if not set(poll.refused) <= self._refused:
            self._refused |= set(poll.refused)
            self._search = None

    def _advance(self, now_s: float) -> None:
        """Perform all actions of the search for an operating point that are due at a time.

        Examples are the start of the search, and the announcement, decision and end of a change of the
        operating point.
        """
        self._start_search()
        self._finish_switch(now_s)
        self._decide_switch(now_s)
        self._observe()
        self._announce_switch(now_s)

    def _start_search(self) -> None:
        offers = {node: member.offer for node, member in self._members.items() if member.offer is not None}
        if self._search is None and len(offers) == self.nodes and self._searches < _MAX_SEARCHES:
            self._searches += 1
            self._search = self._create_search(offers, self._refused)
            self._summary = self._search.summary()

    def _finish_switch(self, now_s: float) -> None:
        """Finish a change of the operating point of a job on several nodes.

        If the agents of all nodes have reported the change, it is complete. If they have not reported it in
        time, it is undone.
        """
        switch = self._switch
        if switch is None or not switch.go or now_s < switch.at_s:
            return
        if all(member.epoch == switch.epoch for member in self._members.values()):
            self._state, self._switch = _State(switch.epoch, switch.point), None
        elif now_s >= switch.at_s + self._times.confirm_s:
            self._state, self._switch = _State(switch.epoch + 1, self._state.point), None
            self._returned_s = now_s
        else:
            return
        for member in self._members.values():
            member.window = None

    def _decide_switch(self, now_s: float) -> None:
        switch, times = self._switch, self._times
        if switch is None or switch.go or now_s < switch.at_s - times.guard_s:
            return
        agreed = all(member.switch_at_s == switch.at_s for member in self._members.values())
        is_unwanted = self._search is None or switch.point != self._search.requested or self._is_ending
        if is_unwanted or not self._are_heard(now_s, times.missing_s):
            self._switch = None
        elif now_s > switch.at_s - times.last_call_s:
            switch.at_s = now_s + times.lead_s
        elif agreed and self._is_complete and self._are_heard(now_s, times.contact_s):
            switch.go = True

    def _observe(self) -> None:
        """Merge the measurement windows of all nodes, once each node has delivered one.

        All windows were measured at the current operating point.
        """
        windows = [member.window for member in self._members.values() if member.window is not None]
        if self._search is None or self._switch is not None or len(windows) < self.nodes:
            return
        if self._search.requested != self._state.point:
            return  # the change has not been announced yet, or the agents continue after a restart
        for member in self._members.values():
            member.window = None
        self._search.observe(merge_windows(windows))
        self._summary = self._search.summary()

    def _announce_switch(self, now_s: float) -> None:
        times = self._times
        if self._switch is not None or self._search is None or self._is_ending:
            return
        applied = all(member.epoch == self._state.epoch for member in self._members.values())
        if self._search.requested == self._state.point or not (applied and self._is_complete):
            return
        if self._are_heard(now_s, times.missing_s) and now_s >= self._returned_s + times.missing_s:
            point = self._search.requested
            self._switch = _Switch(self._state.epoch + 1, point, now_s + times.lead_s)

    @property
    def _is_complete(self) -> bool:
        return len(self._members) == self.nodes

    def _are_heard(self, now_s: float, age_s: float) -> bool:
        """Return whether every agent has polled in the last `age_s` seconds."""
        return all(now_s - member.polled_s <= age_s for member in self._members.values())

    def _decision(self, member: _Member, now_s: float) -> GroupDecision:
        state, switch, times = self._state, self._switch, self._times
        if switch is not None and switch.go and now_s >= switch.at_s:
            state, switch = _State(switch.epoch, switch.point), None
        is_busy = self._switch is not None or any(
            (other.epoch != state.epoch or (state.epoch > 0 and not self._is_complete))
            and now_s - other.polled_s <= times.missing_s
            for other in self._members.values()
        )
        return GroupDecision(
            coordinator=self._name,
            time_s=now_s,
            epoch=state.epoch,
            point=state.point,
            next_point=None if switch is None else switch.point,
            switch_at_s=None if switch is None else switch.at_s,
            go=switch is not None and switch.go,
            phase=self._phase(now_s),
            poll_s=times.busy_poll_s if is_busy else self._quiet_poll_s,
            needs_offer=member.offer is None,
            summary=self._summary,
        )

    @property
    def _quiet_poll_s(self) -> float:
        is_held = self._search is None or self._search.phase in (HOLD, STATIC)
        return self._times.hold_poll_s if is_held and self._is_complete else self._times.poll_s

    def _phase(self, now_s: float) -> str:
        if not self._is_complete or self._search is None:
            return GATHERING
        if not self._are_heard(now_s, self._times.missing_s):
            return FROZEN
        return str(self._search.phase)
