"""Tuning groups: each job on several nodes has one coordinator, which the agents of these nodes poll."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.config import Config
from slurm_energy.controller.http.node_hosts import Sender
from slurm_energy.controller.tuning.advisor import TuningAdvisor
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.tuning.group.coordinator import DEFAULT_TIMES, GroupCoordinator, GroupSearch
from slurm_energy.tuning.group.joint_search import create_joint_search
from slurm_energy.tuning.group.messages import GroupPoll, NodeOffer
from slurm_energy.tuning.objective import Objective

MAX_GROUPS: Final = 1000
MAX_GROUP_NODES: Final = 64
"""Larger jobs stay untuned, because a poll takes senergyctld about 3 ms."""
_BUSY_S_PER_NODE: Final = 0.006
"""Interval of polls during a change divided by the number of nodes: half of a processor for a large job."""
_FORGOTTEN_S: Final = 300.0
_CHECKED_S: Final = 60.0
"""Time for which a successful check that a node runs a job remains valid."""

Key = tuple[int, int]


@dataclass(slots=True)
class _Group:
    """A job on several nodes and the coordinator that tunes the job on all these nodes.

    Only one request of an agent at a time may use the coordinator.

    Attributes:
        coordinator: coordinator that decides about the settings of the job on all its nodes.
        created_s: time at which the group was created, in monotonic seconds.
        checked_s: time of the last successful check that a node runs the job, in monotonic seconds. The keys
            are (node, address of the sender).
    """

    coordinator: GroupCoordinator
    created_s: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    checked_s: dict[tuple[str, Sender], float] = field(default_factory=dict)


class TuningGroups:
    """The tuning groups of senergyctld: one group for each running job on several nodes.

    Args:
        config: function that returns the current configuration.
        advisor: object that verifies that a job runs on the node of an agent; None means that the messages
            of an agent are accepted for any node.
        clock: function that returns monotonic seconds.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        advisor: TuningAdvisor | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._advisor, self._clock = config, advisor, clock
        self._groups: dict[Key, _Group] = {}

    async def poll(self, data: Any, sender: Sender) -> dict[str, Any]:
        """Return the decision for one node of a job, see `tuning.group.messages`.

        Args:
            data: the poll of the node's agent as parsed JSON.
            sender: addresses of the agent's host.

        Raises:
            ForbiddenError: the sender or the job does not run on the node.
            NotFoundError: Slurm does not run the job.
            UnavailableError: Slurm does not answer, or too many jobs are tuned.
            UsageError: the poll is malformed, or the job has too many nodes.
        """
        poll = GroupPoll.from_json(data)
        if poll.nodes > MAX_GROUP_NODES:
            raise UsageError(
                f"job {poll.job_id}", f"has more than {MAX_GROUP_NODES} nodes", "it stays untuned"
            )
        await self._check(poll, sender)
        group = self._group_of(poll)
        group.checked_s.setdefault((poll.node, sender), self._clock())
        async with group.lock:
            decision = await asyncio.to_thread(lambda: group.coordinator.poll(poll, self._clock()))
        if group.coordinator.is_empty:
            self._groups.pop((poll.job_id, poll.restart_count), None)
        return decision.to_json()

    async def _check(self, poll: GroupPoll, sender: Sender) -> None:
        """Check that the job runs on the node whose agent sent the request (poll).

        A request that fails this check changes no state.
        """
        if self._advisor is None:
            return
        group = self._groups.get((poll.job_id, poll.restart_count))
        checked_s = {} if group is None else group.checked_s
        if self._clock() - checked_s.get((poll.node, sender), -math.inf) < _CHECKED_S:
            return
        checked_s.pop((poll.node, sender), None)
        job = await self._advisor.verified_job(poll.node, poll.job_id, poll.restart_count, sender)
        if len(job.nodes) != poll.nodes:
            raise UsageError(f"job {poll.job_id}", f"has {len(job.nodes)} nodes, not {poll.nodes}")

    def _group_of(self, poll: GroupPoll) -> _Group:
        key = poll.job_id, poll.restart_count
        group = self._groups.get(key)
        if group is None:
            self._forget()
            if len(self._groups) >= MAX_GROUPS:
                raise UnavailableError("tuning", f"{MAX_GROUPS} jobs on several nodes are tuned already")
            busy_poll_s = max(DEFAULT_TIMES.busy_poll_s, _BUSY_S_PER_NODE * poll.nodes)
            times = dataclasses.replace(DEFAULT_TIMES, busy_poll_s=busy_poll_s)
            coordinator = GroupCoordinator(uuid.uuid4().hex, poll.nodes, self._search_factory(poll), times)
            group = self._groups[key] = _Group(coordinator, self._clock())
        elif poll.nodes != group.coordinator.nodes:
            raise UsageError(f"job {poll.job_id}", f"has another number of nodes than {poll.nodes}")
        return group

    def _search_factory(
        self, poll: GroupPoll
    ) -> Callable[[Mapping[str, NodeOffer], frozenset[str]], GroupSearch]:
        objective = Objective(poll.objective, poll.slowdown_limit)

        def create(offers: Mapping[str, NodeOffer], refused: frozenset[str]) -> GroupSearch:
            return create_joint_search(offers, refused, objective, self._config().tuning.max_probes)

        return create

    def _forget(self) -> None:
        """Remove each group of nodes that tuned a job together and whose agents are silent.

        A group is removed if its agents have sent no request for a long time.
        """
        now_s = self._clock()
        for key, group in list(self._groups.items()):
            if now_s - max(group.coordinator.last_poll_s, group.created_s) > _FORGOTTEN_S:
                del self._groups[key]


def read_poll(body: bytes) -> Any:
    """Parse the JSON body of a request with which an agent polls its tuning group.

    Raises:
        UsageError: the body is not JSON.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UsageError("body", f"not JSON: {shown(str(error), 80)}") from None
