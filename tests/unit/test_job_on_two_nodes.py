"""Tests of a job that is tuned on two nodes together.

The agents of both nodes follow the decisions of one coordinator. The tests also kill an agent and start it
again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_job_manager import Node, env

import slurm_energy.tuning.search  # noqa: F401 - loaded before virtual seconds pass
from slurm_energy.agent.sockets.messages import ProgressMessage
from slurm_energy.config import AgentConfig, Config
from slurm_energy.controller.http.node_hosts import Sender
from slurm_energy.controller.tuning.groups import MAX_GROUP_NODES, TuningGroups
from slurm_energy.errors import ForbiddenError, UsageError
from slurm_energy.slurm.queue.running_jobs import AllocatedJob
from slurm_energy.tuning.group.messages import GroupDecision, GroupPoll

pytestmark = pytest.mark.slow

HIGHEST_KHZ = 3_400_000
STEP_S = 0.5
KEY = (5, 0)


class JobNode:
    """One node of a job that runs on two nodes.

    The job's program is memory-bound. The slowest node sets the speed of the program on all nodes.
    """

    def __init__(self, node: Node, name: str) -> None:
        self.node, self.name = node, name
        self.alive = True
        self.begin = env(cpus="4(x2)", policy="energy") | {
            "SLURMD_NODENAME": name,
            "SLURM_NODELIST": "n[1-2]",
        }
        node.manager.begin(self.begin)

    @property
    def clock_share(self) -> float:
        bounds = [int(self.node.tree.policy(number, "scaling_max_freq")) for number in range(4)]
        return min(bounds) / HIGHEST_KHZ

    @property
    def tuners(self) -> Any:
        return self.node.manager.tuners


class JobOnTwoNodes:
    """A tuned job on two nodes for tests, with its coordinator and a simulated clock.

    The test advances the clock.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = [JobNode(node, f"n{number}") for number, node in enumerate(nodes, 1)]
        self.now_s = 0.0
        self.groups = TuningGroups(Config, None, lambda: self.now_s)
        self.loop = asyncio.Runner()
        self.units = 0.0
        self.differences: list[float] = []
        self.shares: list[float] = []

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self._step()

    def _step(self) -> None:
        self.now_s += STEP_S
        shares = {one.clock_share for one in self.nodes}
        self.differences.append(self.now_s if len(shares) > 1 else 0.0)
        self.shares.append(min(shares))
        self.units += STEP_S * 2.0 / (0.95 + 0.05 / min(shares))
        for one in self.nodes:
            if one.alive:
                one.node.use(STEP_S, cpu_watts=60.0 + 140.0 * one.clock_share**2)
                if one.name == "n1":  # as in most programs, only one rank reports
                    message = ProgressMessage(5, "0", self.units, False, None, one.node.clock.now)
                    one.node.manager.progress.receive(message)
                self._poll(one)

    def _poll(self, one: JobNode) -> None:
        if KEY not in one.tuners.groups:
            return
        poll = one.tuners.group_poll(KEY)
        answer = self.send(poll)
        now_s = one.node.clock.now
        one.tuners.group_decided(KEY, GroupDecision.from_json(answer), now_s, now_s)
        if one.tuners.group_change_at_s(KEY) <= now_s and one.tuners.change_group_point(KEY):
            poll = one.tuners.group_poll(KEY)
            one.tuners.group_decided(KEY, GroupDecision.from_json(self.send(poll)), now_s, now_s)

    def send(self, poll: GroupPoll) -> dict[str, Any]:
        data = json.loads(json.dumps(poll.to_json()))
        return json.loads(json.dumps(self.loop.run(self.groups.poll(data, Sender()))))

    @property
    def longest_difference_s(self) -> float:
        longest = current = 0.0
        for time_s in self.differences:
            current = current + STEP_S if time_s else 0.0
            longest = max(longest, current)
        return longest


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobOnTwoNodes]:
    config = Config(agent=AgentConfig(sampling_hz=1.0))
    nodes = [Node(tmp_path / name, config) for name in ("n1", "n2")]
    made = JobOnTwoNodes(nodes)
    yield made
    made.loop.close()
    for node in nodes:
        node.die()


def finish(one: JobNode) -> dict[str, Any]:
    one.node.manager.end(env(cpus="4(x2)") | {"SLURMD_NODENAME": one.name})
    assert one.node.tree.snapshot() == one.node.original
    assert not one.node.state.journal.entries
    (record,) = (record for record in one.node.records() if record.step is None)
    assert record.tuning is not None
    return record.tuning


def test_both_nodes_change_together_and_are_restored(job: JobOnTwoNodes) -> None:
    job.run(12)
    assert job.shares[-1] == 1.0  # untuned until all nodes have a reference
    job.run(120)
    assert job.nodes[0].clock_share == job.nodes[1].clock_share < 0.8
    assert job.longest_difference_s <= 1.0
    assert len(set(job.shares)) > 2
    records = [finish(one) for one in job.nodes]
    assert records[0]["chosen"] == records[1]["chosen"]
    assert [record["progress"] for record in records] == ["reported", "reported"]
    left = [one.tuners.left_groups() for one in job.nodes]
    assert [poll.is_leaving for polls in left for poll in polls] == [True, True]
    for polls in left:
        job.send(polls[0])
    assert not any(one.tuners.has_group_work for one in job.nodes)


@pytest.mark.slow
def test_an_agent_that_is_killed_does_not_disturb_the_other_and_returns(job: JobOnTwoNodes) -> None:
    job.run(90)
    first, second = job.nodes
    second.alive = False
    second.node.die()
    job.run(10)
    shares = [one.clock_share for one in job.nodes]
    assert shares[0] == shares[1]
    job.run(15)
    assert [one.clock_share for one in job.nodes] == shares  # frozen at the current point
    second.node.clock.now = first.node.clock.now
    second.node.manager = second.node.start()
    assert second.clock_share == shares[1]  # the settings stay until the group tells the point
    second.alive = True
    job.run(60)
    assert job.longest_difference_s <= 1.0
    assert first.clock_share == second.clock_share < 0.8
    for one in job.nodes:
        finish(one)


@pytest.mark.slow
def test_the_end_on_one_node_leaves_the_other_as_it_is(job: JobOnTwoNodes) -> None:
    job.run(90)
    first, second = job.nodes
    share = first.clock_share
    finish(second)
    second.alive = False
    (poll,) = second.tuners.left_groups()
    job.send(poll)
    job.run(20)
    assert first.clock_share == share
    finish(first)


class FakeAdvisor:
    """Stand-in for senergyctld's adviser of the agents, which knows one job on two nodes."""

    def __init__(self) -> None:
        self.checks = 0

    async def verified_job(self, node: str, job_id: int, restart_count: int, sender: Sender) -> AllocatedJob:
        self.checks += 1
        if node not in ("n1", "n2"):
            raise ForbiddenError(f"job {job_id}", f"it does not run on node {node}")
        return AllocatedJob(job_id, 1001, restart_count, "cpu", "n[1-2]", {})


def poll_of(node: str = "n1", nodes: int = 2, job_id: int = 5) -> dict[str, Any]:
    return GroupPoll(node, job_id, 0, nodes, "edp", epoch=0).to_json()


def groups_with(advisor: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    groups = TuningGroups(Config, advisor, lambda: 100.0)
    return lambda data: asyncio.run(groups.poll(data, Sender("192.0.2.1")))


def test_an_agent_speaks_only_for_a_node_of_the_job() -> None:
    advisor = FakeAdvisor()
    poll = groups_with(advisor)
    assert poll(poll_of())["needs_offer"] is True
    poll(poll_of())
    assert advisor.checks == 1  # not again for every poll
    with pytest.raises(ForbiddenError, match="does not run on node n3"):
        poll(poll_of("n3"))
    with pytest.raises(UsageError, match="number of nodes"):
        poll(poll_of("n1", nodes=3))
    with pytest.raises(UsageError, match="has 2 nodes, not 3"):
        groups_with(advisor)(poll_of(nodes=3))
    with pytest.raises(UsageError, match="it stays untuned"):
        poll(poll_of(nodes=MAX_GROUP_NODES + 1))
    with pytest.raises(UsageError, match="poll of a tuning group"):
        poll({"node": 3})


def test_groups_whose_agents_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[TuningGroups.__module__]
    monkeypatch.setattr(module, "MAX_GROUPS", 2)
    now_s = 0.0
    groups = TuningGroups(Config, None, lambda: now_s)
    for job_id in (1, 2):
        asyncio.run(groups.poll(poll_of(job_id=job_id), Sender()))
    with pytest.raises(Exception, match="are tuned already"):
        asyncio.run(groups.poll(poll_of(job_id=3), Sender()))
    now_s = 1000.0
    asyncio.run(groups.poll(poll_of(job_id=3), Sender()))
