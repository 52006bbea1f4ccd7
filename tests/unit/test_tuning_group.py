"""Tests of tuning a job on several nodes, which form a group.

All nodes must have the same operating point (hardware settings), although messages are lost and
agents are killed.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import UsageError
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.candidates import CpuHardware, GpuHardware
from slurm_energy.tuning.group.clock_offset import ClockOffset
from slurm_energy.tuning.group.coordinator import FROZEN, GroupCoordinator, GroupTimes
from slurm_energy.tuning.group.joint_search import (
    common_cpu,
    common_gpu,
    common_points,
    create_joint_search,
)
from slurm_energy.tuning.group.member import GroupMember
from slurm_energy.tuning.group.messages import GroupDecision, GroupPoll, NodeOffer
from slurm_energy.tuning.group.window_merge import merge_windows
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.progress_window import ProgressSource, ProgressWindow

pytestmark = pytest.mark.slow

POINTS = [UNTUNED, *(OperatingPoint(gpu_limit_watts=100.0 + 10 * number) for number in range(6))]
TIMES = GroupTimes()
MAX_DIFFERENCE_S = 1.0
CONTACT_S = 0.7
"""An agent is in contact if its polls complete at least this often."""


class ScriptedSearch:
    """Stand-in for a tuning search that requests another operating point after every measurement."""

    phase = "probe"

    def __init__(self) -> None:
        self.windows: list[ProgressWindow] = []

    @property
    def requested(self) -> OperatingPoint:
        return POINTS[len(self.windows) % len(POINTS)]

    def observe(self, window: ProgressWindow) -> None:
        assert window.point == self.requested
        self.windows.append(window)

    def summary(self) -> dict[str, Any]:
        return {"probes": len(self.windows)}


@dataclass
class Agent:
    """A simulated agent in a tuning group. If the agent dies, its operating point stays in force."""

    node: str
    offset_s: float
    member: GroupMember = field(default_factory=GroupMember)
    point: OperatingPoint = UNTUNED
    alive: bool = True
    silent_until_s: float = 0.0
    applied_s: float = 0.0
    contacts: list[float] = field(default_factory=list)
    chain: int = 0
    history: list[tuple[float, OperatingPoint]] = field(default_factory=lambda: [(0.0, UNTUNED)])

    def local(self, now_s: float) -> float:
        return now_s + self.offset_s


class Simulation:
    """Agents and a coordinator on a network with delays and losses.

    The coordinator's clock shows the true time.
    """

    def __init__(self, count: int, seed: int, loss: float, delay_s: float = 0.06) -> None:
        self.random = random.Random(seed)
        self.loss, self.delay_s = loss, delay_s
        self.search = ScriptedSearch()
        self.coordinator = self.new_coordinator("first", count)
        self.agents = [Agent(f"n{number}", self.random.uniform(-1e5, 1e5)) for number in range(count)]
        self.now_s = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for agent in self.agents:
            self.at(self.random.uniform(0, 1), lambda agent=agent: self.poll(agent))

    def new_coordinator(self, name: str, count: int) -> GroupCoordinator:
        return GroupCoordinator(name, count, lambda offers, refused: self.search, TIMES)

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), act))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        self.now_s = until_s

    def later(self, agent: Agent, time_s: float) -> None:
        """Schedule the next poll of a simulated agent at `time_s`.

        If the agent starts polling anew before `time_s`, the scheduled poll is dropped.
        """
        chain = agent.chain
        self.at(time_s, lambda: self.poll(agent) if agent.chain == chain else None)

    def poll(self, agent: Agent) -> None:
        if not agent.alive:
            return
        member, now_s = agent.member, self.now_s
        window = None
        if member.epoch >= 0 and now_s - agent.applied_s > 2.0:
            window = member.to_controller_time(
                ProgressWindow(
                    agent.point, agent.local(now_s), 1.0, 5.0, 0.01, 100.0, ProgressSource.REPORTED
                )
            )
        poll = GroupPoll(
            agent.node,
            1,
            0,
            len(self.agents),
            "edp",
            None,
            member.epoch,
            member.point,
            member.switch_at_s,
            NodeOffer(tuple(POINTS[1:])) if member.needs_offer else None,
            window,
        )
        poll = GroupPoll.from_json(json.loads(json.dumps(poll.to_json())))
        lost = now_s < agent.silent_until_s or self.random.random() < self.loss
        arrival_s = now_s + self.random.uniform(0.001, self.delay_s)
        if not lost:
            self.at(arrival_s, lambda: self.serve(agent, poll, now_s))
        timeout_s = now_s + 2.5 * self.delay_s if lost else None
        if timeout_s is not None:
            self.later(agent, timeout_s + min(member.poll_s, TIMES.busy_poll_s))

    def serve(self, agent: Agent, poll: GroupPoll, sent_s: float) -> None:
        decision = self.coordinator.poll(poll, self.now_s)
        decision = GroupDecision.from_json(json.loads(json.dumps(decision.to_json())))
        if self.random.random() < self.loss or self.now_s < agent.silent_until_s:
            self.later(agent, sent_s + 2.5 * self.delay_s + TIMES.busy_poll_s)
            return
        arrival_s = self.now_s + self.random.uniform(0.001, self.delay_s)
        self.at(arrival_s, lambda: self.receive(agent, decision, sent_s))

    def receive(self, agent: Agent, decision: GroupDecision, sent_s: float) -> None:
        if not agent.alive:
            return
        agent.contacts.append(self.now_s)
        agent.member.take(decision, agent.local(sent_s), agent.local(self.now_s))
        change_s = agent.member.change_at_s() - agent.offset_s
        if change_s < 1e9:
            self.at(max(change_s, self.now_s), lambda: self.change(agent))
        self.later(agent, self.now_s + agent.member.poll_s)

    def change(self, agent: Agent) -> None:
        if not agent.alive:
            return
        change = agent.member.due_change(agent.local(self.now_s) + 1e-6)
        if change is not None:
            agent.point, agent.applied_s = change.point, self.now_s
            agent.history.append((self.now_s, change.point))
            agent.member.applied(change, agent.local(self.now_s))
            undo_s = agent.member.change_at_s() - agent.offset_s
            if undo_s < 1e9:
                self.at(undo_s, lambda: self.change(agent))
            agent.chain += 1
            self.poll(agent)

    def die(self, agent: Agent) -> None:
        agent.alive = False

    def revive(self, agent: Agent) -> None:
        if not agent.alive:
            agent.alive, agent.member = True, GroupMember(-1, None)
            self.poll(agent)


def point_at(agent: Agent, time_s: float) -> OperatingPoint:
    return next(point for since_s, point in reversed(agent.history) if since_s <= time_s)


def in_contact(agent: Agent, start_s: float, end_s: float) -> bool:
    """Return whether an agent polled the coordinator without too long a gap during an interval."""
    times = [start_s, *(time_s for time_s in agent.contacts if start_s < time_s < end_s), end_s]
    before = any(start_s - CONTACT_S <= time_s <= start_s for time_s in agent.contacts)
    return before and all(later - earlier <= CONTACT_S for earlier, later in itertools.pairwise(times))


def differences(agents: list[Agent]) -> list[tuple[float, float, str, str]]:
    """Return the intervals longer than a second in which two agents had different operating points."""
    result = []
    for one, other in itertools.combinations(agents, 2):
        changes = sorted({time_s for agent in (one, other) for time_s, _ in agent.history})
        start_s: float | None = None
        for time_s in [*changes, 1e9]:
            same = time_s < 1e9 and point_at(one, time_s) == point_at(other, time_s)
            if same and start_s is not None:
                if time_s - start_s > MAX_DIFFERENCE_S:
                    result.append((start_s, time_s, one.node, other.node))
                start_s = None
            elif not same and start_s is None and time_s < 1e9:
                start_s = time_s
    return result


def test_all_nodes_follow_the_search_at_the_same_time() -> None:
    simulation = Simulation(4, seed=1, loss=0.0)
    simulation.run(120.0)
    assert len(simulation.search.windows) > 6
    histories = [[point for _, point in agent.history] for agent in simulation.agents]
    assert all(history == histories[0] for history in histories)
    for changes in zip(*(agent.history for agent in simulation.agents), strict=True):
        times = [time_s for time_s, _ in changes]
        assert max(times) - min(times) < 0.15


@examples(8)
@given(st.integers(2, 4), st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 0.2]), st.data())
def test_agents_in_contact_never_differ_for_more_than_a_second(
    count: int, seed: int, loss: float, data: st.DataObject
) -> None:
    simulation = Simulation(count, seed, loss)
    for agent in simulation.agents:
        for start_s in data.draw(st.lists(st.floats(2, 40), max_size=2)):
            length_s = data.draw(st.floats(0.1, 15))
            simulation.at(start_s, lambda a=agent, e=start_s + length_s: setattr(a, "silent_until_s", e))
    simulation.run(50.0)
    for start_s, end_s, *nodes in differences(simulation.agents):
        pair = [agent for agent in simulation.agents if agent.node in nodes]
        begin_s = start_s
        while begin_s + MAX_DIFFERENCE_S < end_s:
            whole = (begin_s, begin_s + MAX_DIFFERENCE_S)
            assert not all(in_contact(agent, *whole) for agent in pair), (start_s, end_s, nodes)
            begin_s += 0.05


@examples(8)
@given(st.integers(2, 4), st.integers(0, 10**6), st.floats(3, 30))
def test_the_node_of_an_agent_that_dies_keeps_the_point_of_the_others(
    count: int, seed: int, death_s: float
) -> None:
    simulation = Simulation(count, seed, loss=0.0)
    victim = simulation.agents[0]
    simulation.at(death_s, lambda: simulation.die(victim))
    simulation.run(death_s + 30)
    assume(not 0 <= death_s - victim.applied_s < 0.1)  # nobody can know whether the change was made
    changed = len(simulation.search.windows)
    assert differences(simulation.agents) == []
    assert len({agent.point for agent in simulation.agents}) == 1
    simulation.revive(victim)
    simulation.run(death_s + 60)
    assert len(simulation.search.windows) > changed
    assert differences(simulation.agents) == []


def test_a_missing_agent_freezes_the_group() -> None:
    simulation = Simulation(3, seed=5, loss=0.0)
    simulation.run(30.0)
    simulation.die(simulation.agents[1])
    simulation.run(45.0)
    before = [list(agent.history) for agent in simulation.agents]
    simulation.run(300.0)
    assert [agent.history for agent in simulation.agents] == before
    assert simulation.agents[0].member.phase == FROZEN


def test_agents_hold_their_point_without_the_controller() -> None:
    simulation = Simulation(3, seed=6, loss=0.0)
    simulation.run(31.0)
    for agent in simulation.agents:
        agent.silent_until_s = 200.0
    simulation.run(40.0)
    points = {agent.point for agent in simulation.agents}
    simulation.run(199.0)
    assert {agent.point for agent in simulation.agents} == points
    assert len(points) == 1


@examples(8)
@given(st.integers(0, 10**6), st.floats(5, 30))
def test_a_new_controller_continues_from_the_point_in_force(seed: int, restart_s: float) -> None:
    simulation = Simulation(3, seed, loss=0.0)

    def restart() -> None:
        simulation.search = ScriptedSearch()
        simulation.coordinator = simulation.new_coordinator("second", 3)

    simulation.at(restart_s, restart)
    simulation.run(restart_s + 40)
    assert differences(simulation.agents) == []
    assert len(simulation.search.windows) > 1


def test_the_end_on_one_node_ends_the_search() -> None:
    simulation = Simulation(2, seed=7, loss=0.0)
    simulation.run(30.0)
    coordinator = simulation.coordinator
    coordinator.poll(GroupPoll("n0", 1, 0, 2, "edp", is_leaving=True), simulation.now_s)
    simulation.die(simulation.agents[0])
    changed = len(simulation.search.windows)
    simulation.run(90.0)
    assert len(simulation.search.windows) == changed
    assert not coordinator.is_empty
    coordinator.poll(GroupPoll("n1", 1, 0, 2, "edp", is_leaving=True), simulation.now_s)
    assert coordinator.is_empty


def test_a_refused_knob_starts_a_new_search() -> None:
    calls: list[frozenset[str]] = []

    def create(offers: object, refused: frozenset[str]) -> ScriptedSearch:
        calls.append(refused)
        return ScriptedSearch()

    coordinator = GroupCoordinator("c", 2, create)
    offer = NodeOffer((POINTS[1],))
    for number in range(2):
        coordinator.poll(GroupPoll(f"n{number}", 1, 0, 2, "edp", epoch=0, point=UNTUNED, offer=offer), 0.0)
    coordinator.poll(GroupPoll("n0", 1, 0, 2, "edp", epoch=0, refused=("gpu_limit_watts",)), 1.0)
    assert calls == [frozenset(), frozenset({"gpu_limit_watts"})]


def test_the_slowest_node_sets_the_speed_of_the_job() -> None:
    fast = ProgressWindow(UNTUNED, 10.0, 4.0, 9.0, 0.02, 300.0, ProgressSource.REPORTED, 100.0, 60.0)
    slow = ProgressWindow(UNTUNED, 11.0, 5.0, 8.0, 0.01, 200.0, ProgressSource.REPORTED, 90.0, None)
    none = ProgressWindow(UNTUNED, 10.5, 6.0, 0.0, 1.0, 100.0, ProgressSource.NONE, None, 40.0)
    merged = merge_windows([fast, slow, none])
    assert (merged.units_per_s, merged.relative_error, merged.watts) == (8.0, 0.01, 600.0)
    assert (merged.start_s, merged.duration_s, merged.source) == (11.0, 4.0, ProgressSource.REPORTED)
    assert (merged.gpu_watts, merged.package_watts) == (95.0, 50.0)
    assert merge_windows([none, none]).source is ProgressSource.NONE


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1))
def test_the_offset_is_known_to_half_a_round_trip(offset_s: float, trips: list[tuple[float, float]]) -> None:
    clock, sent_s = ClockOffset(), 100.0
    for there_s, back_s in trips:
        clock.add(sent_s, sent_s + there_s + offset_s, sent_s + there_s + back_s)
        sent_s += 5.0
    assert clock.error_s is not None
    local_s = clock.to_local(sent_s + offset_s)
    assert local_s == pytest.approx(sent_s, abs=clock.error_s + 1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": 1},
        {"nodes": "2"},
        {"objective": "x"},
        {"epoch": -2},
        {"refused": ["x"]},
        {"refused": 3},
        {"other": 1},
        {"window": {"point": {}}},
        {"offer": {"candidates": [{}] * 1000}},
        {"offer": {"candidates": [], "gpu": {"count": -1}}},
        {"offer": {"candidates": [], "cpu": {"table_mhz": [1.0] * 1000}}},
        {"offer": {"candidates": [], "gpu": 3}},
        {"offer": []},
        {"switch_at_s": float("nan")},
        {"slowdown_limit": -0.1},
    ],
)
def test_a_malformed_poll_is_refused(change: dict[str, Any]) -> None:
    cpu = CpuHardware(2, 3000.0, 800.0, table_mhz=(3000.0, 2000.0))
    offer = NodeOffer((POINTS[1],), GpuHardware(4, 300.0, 100.0, 1980.0), cpu, start=POINTS[1], pinned=True)
    good = GroupPoll("n1", 5, 0, 2, "energy", 0.05, 3, POINTS[1], 12.5, offer)
    assert GroupPoll.from_json(json.loads(json.dumps(good.to_json()))) == good
    with pytest.raises(UsageError):
        GroupPoll.from_json(good.to_json() | change)


def test_an_offer_has_only_fields_of_processors_that_the_previous_release_knows() -> None:
    cpu = CpuHardware(2, 3000.0, 800.0, table_mhz=(3000.0, 2000.0), boosts=True)
    poll = GroupPoll("n1", 5, 0, 2, "energy", 0.05, 3, POINTS[1], 12.5, NodeOffer((POINTS[1],), cpu=cpu))
    sent = poll.to_json()["offer"]["cpu"]
    assert set(sent) <= {"packages", "max_mhz", "min_mhz", "base_mhz", "package_limit_watts", "table_mhz"}
    assert GroupPoll.from_json(json.loads(json.dumps(poll.to_json()))).offer is not None


def test_nodes_share_the_points_and_ranges_that_all_of_them_have() -> None:
    one = NodeOffer(tuple(POINTS[1:4]), GpuHardware(4, 300.0, 100.0, 1980.0), CpuHardware(2, 3000.0, 800.0))
    other = NodeOffer(tuple(POINTS[2:6]), GpuHardware(2, 250.0, 120.0), CpuHardware(1, 2800.0, 1000.0))
    assert common_points([one.candidates, other.candidates]) == tuple(POINTS[2:4])
    assert common_points([one.candidates], frozenset({"gpu_limit_watts"})) == ()
    assert common_gpu([one.gpu, other.gpu]) == GpuHardware(6, 250.0, 120.0)
    assert common_gpu([one.gpu, None]) is None
    assert common_cpu([one.cpu, other.cpu]) == CpuHardware(3, 2800.0, 1000.0)
    objective = Objective("edp", None)
    search = create_joint_search({"a": one, "b": other}, frozenset(), objective, 9)
    assert (search.requested, search.phase) == (UNTUNED, "reference")
    apart = NodeOffer((POINTS[6],), other.gpu)
    search = create_joint_search({"a": one, "b": apart}, frozenset(), objective, 9)
    assert (search.requested, search.summary()["chosen_source"]) == (UNTUNED, None)
    pinned = NodeOffer(one.candidates, one.gpu, start=POINTS[1], pinned=True)
    search = create_joint_search({"a": pinned, "b": pinned}, frozenset(), objective, 9)
    assert (search.requested, search.summary()["chosen_source"]) == (POINTS[1], "pinned")
