"""Tests of the agent's client for jobs that are tuned on several nodes together.

The client polls the coordinator of these nodes (the tuning group), changes operating points at the agreed
times, and reports the end of a job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from slurm_energy.agent.tuning.group_client import GroupClient
from slurm_energy.agent.tuning.group_source import GroupSource
from slurm_energy.config import ClusterConfig
from slurm_energy.errors import UnavailableError
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.group.coordinator import GroupCoordinator, GroupTimes
from slurm_energy.tuning.group.messages import GroupDecision, GroupPoll, NodeOffer

KEY = (5, 0)
POINTS = [UNTUNED, OperatingPoint(gpu_limit_watts=200.0), OperatingPoint(gpu_limit_watts=150.0)]
TIMES = GroupTimes(lead_s=1.2, guard_s=0.8, last_call_s=0.3, poll_s=0.1, hold_poll_s=0.1, busy_poll_s=0.05)
DEADLINE_S = 60.0


class SteppingSearch:
    """Stand-in for the search for operating points.

    The test determines when it requests the next point.
    """

    phase = "probe"

    def __init__(self) -> None:
        self.requested = UNTUNED

    def observe(self, window: object) -> None:
        raise AssertionError("no window was sent")

    def summary(self) -> dict[str, Any]:
        return {"probes": 1}


class FakeTuners:
    """Fake of the object that tunes the jobs of a node, with one job on several nodes.

    The fake records the changes of the operating point (hardware settings).
    """

    def __init__(self, node: str) -> None:
        identity = GroupPoll(node, *KEY, nodes=2, objective="edp")
        self.source = GroupSource(identity, NodeOffer(tuple(POINTS[1:])))
        self.groups, self.has_group_work = frozenset({KEY}), True
        self.changes: list[tuple[float, OperatingPoint]] = []
        self._left: list[GroupPoll] = []

    def group_poll(self, key: object) -> GroupPoll | None:
        return self.source.next_poll() if key in self.groups else None

    def group_decided(self, _: object, decision: GroupDecision, sent_s: float, received_s: float) -> float:
        self.source.take(decision, sent_s, received_s)
        return self.source.poll_s

    def group_change_at_s(self, _: object) -> float:
        return self.source.change_at_s()

    def change_group_point(self, _: object) -> bool:
        now_s = time.monotonic()
        change = self.source.due_change(now_s)
        if change is None:
            return False
        self.changes.append((now_s, change.point))
        self.source.applied(change, now_s)
        return True

    def left_groups(self) -> list[GroupPoll]:
        left, self._left = self._left, []
        return left

    def finish(self) -> None:
        self.groups = frozenset()
        self._left = [self.source.last_poll()]


class Client(GroupClient):
    """A client whose requests reach a coordinator in this process."""

    def __init__(self, tuners: FakeTuners, serve: Callable[[GroupPoll], GroupDecision]) -> None:
        async def work(function: Callable[..., Any], *arguments: Any) -> Any:
            return function(*arguments)

        super().__init__(tuners, ClusterConfig, work, time.monotonic)  # type: ignore[arg-type]
        self._serve_poll = serve

    async def _post(self, poll: GroupPoll) -> dict[str, Any]:
        return self._serve_poll(GroupPoll.from_json(poll.to_json())).to_json()


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


@pytest.mark.slow
def test_two_agents_follow_the_coordinator_until_the_job_ends() -> None:
    search, away = SteppingSearch(), False
    coordinator = GroupCoordinator("c", 2, lambda offers, refused: search, TIMES)

    def serve(poll: GroupPoll) -> GroupDecision:
        if away:
            raise UnavailableError("senergyctld", "is away")
        return coordinator.poll(poll, time.monotonic())

    async def test() -> None:
        nonlocal away
        nodes = [FakeTuners("n1"), FakeTuners("n2")]
        tasks = [asyncio.create_task(Client(node, serve).run()) for node in nodes]
        for point in POINTS[1:]:
            search.requested = point
            await until(lambda point=point: all(node.source.requested == point for node in nodes))
        away = True
        await asyncio.sleep(0.5)
        assert [node.source.requested for node in nodes] == [POINTS[2]] * 2
        away = False
        search.requested = POINTS[1]
        await until(lambda: all(node.source.requested == POINTS[1] for node in nodes))
        assert nodes[0].source.summary() == {"probes": 1}
        for node in nodes:
            node.finish()
        await until(lambda: coordinator.is_empty)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(test)
