"""Tests of ceilings: upper bounds that power budgets set for the power limits of devices.

The sum of the ceilings never exceeds a budget. This holds if messages are delayed or lost, and after
restarts.
"""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.budget.ceilings import CeilingBudget, CeilingCommitment, raise_ratios
from slurm_energy.budget.messages import DeviceReport, NodePoll

MAX_WATTS = 300.0
MIN_WATTS = 50.0
DEVICES = ("package-0", "gpu0")


@dataclass
class FakeNode:
    """A node whose agent applies decisions in order, as the agent of a real node does."""

    name: str
    boot: int = 0
    number: int = 0
    ceilings: dict[str, float] = field(default_factory=dict)

    @property
    def watts(self) -> float:
        return sum(self.ceilings.get(name, MAX_WATTS) for name in DEVICES)

    def poll(self) -> NodePoll:
        devices = tuple(
            DeviceReport(
                name,
                "kind",
                MIN_WATTS,
                MAX_WATTS,
                self.ceilings.get(name, MAX_WATTS),
                None,
                (),
                self.ceilings.get(name),
            )
            for name in DEVICES
        )
        return NodePoll(self.name, f"boot-{self.boot}", self.number, devices, None, None)

    def apply(self, number: int, ceilings: dict[str, float]) -> None:
        if number:
            self.number, self.ceilings = number, dict(ceilings)


@dataclass
class Cluster:
    """A controller and its nodes, for tests of power budgets.

    The test controls the order, the delay and the loss of every message between them.
    """

    nodes: list[FakeNode]
    commitment: CeilingCommitment = field(default_factory=CeilingCommitment)
    stored: dict[str, object] = field(default_factory=dict)
    late: list[NodePoll] = field(default_factory=list)
    now_s: float = 0.0
    limit_watts: float = np.inf

    def __post_init__(self) -> None:
        for node in self.nodes:
            self.commitment.register(node.name, dict.fromkeys(DEVICES, MAX_WATTS))

    def exchange(self, node: FakeNode, *, loses_response: bool = False) -> None:
        poll = node.poll()
        self.commitment.report(poll)
        decision = self.commitment.decision(node.name)
        if not loses_response:
            node.apply(*decision)

    def grant(self, target_watts: float) -> None:
        rows = np.arange(self.commitment.count)
        self.now_s += 1
        self.commitment.grant(
            np.full(len(rows), target_watts), [CeilingBudget(rows, self.limit_watts)], self.now_s
        )
        self.store()

    def store(self) -> None:
        self.stored.update(json.loads(json.dumps(self.commitment.unsaved())))

    def restart_controller(self) -> None:
        self.commitment = CeilingCommitment()
        assert self.commitment.restore(self.stored) == []
        for node in self.nodes:
            self.commitment.register(node.name, dict.fromkeys(DEVICES, MAX_WATTS))
        self.commitment.await_reports(self.now_s + 3)

    @property
    def watts(self) -> float:
        return sum(node.watts for node in self.nodes)


NODE_EVENTS = ("lose", "late", "repeat", "reboot", "safe", "kill", "partial", "lift")


@given(st.integers(0, 10**9))
@examples(60)
def test_real_ceilings_never_exceed_what_the_controller_counts(seed: int) -> None:
    """Check that the limits of the nodes never permit more power than the controller assumes.

    The test draws random events of the controller and of the nodes. After each event, the power that the
    ceilings (upper bounds of power limits) of the nodes permit must not exceed the power that the controller
    has reserved.
    """
    draw = random.Random(seed)
    cluster = Cluster([FakeNode(f"n{i}") for i in range(2)])
    for _ in range(80):
        kind = draw.choices(("exchange", "grant", "limit", "restart", "node"), (8, 6, 1, 1, 4))[0]
        if kind == "grant":
            reserved = float(cluster.commitment.reserved_watts.sum())
            cluster.grant(draw.choice([60.0, 200.0, 300.0]))
            after = float(cluster.commitment.reserved_watts.sum())
            assert after <= max(cluster.limit_watts, float(cluster.commitment.held_watts.sum())) + 1e-6
            assert after <= max(cluster.limit_watts, reserved) + 1e-6
        elif kind == "limit":
            cluster.limit_watts = draw.choice([np.inf, 900.0, 500.0])
        elif kind == "restart":
            cluster.restart_controller()
        else:
            name = kind if kind == "exchange" else draw.choice(NODE_EVENTS)
            _node_event(cluster, draw.choice(cluster.nodes), name)
        assert cluster.watts <= float(cluster.commitment.reserved_watts.sum()) + 1e-6


def _node_event(cluster: Cluster, node: FakeNode, kind: str) -> None:
    commitment = cluster.commitment
    if kind == "exchange":
        cluster.late.append(node.poll())
        cluster.exchange(node)
    elif kind == "lose":
        cluster.exchange(node, loses_response=True)
    elif kind == "late" and cluster.late:
        cluster.commitment.report(cluster.late.pop(0))
    elif kind == "repeat" and cluster.late:
        cluster.commitment.report(cluster.late[-1])
    elif kind == "reboot":
        # The agent sets the stored safe limits before jobs start.
        node.boot, node.number = node.boot + 1, 0
        node.ceilings = dict.fromkeys(DEVICES, min(MIN_WATTS, *node.ceilings.values(), MAX_WATTS))
    elif kind == "kill":
        # The agent lost its last decision; the hardware and the agent's journal keep the ceilings.
        node.number = 0
    elif kind == "partial":
        # Only the first device took its ceiling, so the agent does not confirm the decision.
        commitment.report(node.poll())
        _, ceilings = commitment.decision(node.name)
        node.ceilings |= {DEVICES[0]: ceilings[DEVICES[0]]}
    elif kind == "lift":
        commitment.report(node.poll())
        commitment.release(node.name)
        cluster.store()
        node.number, node.ceilings = 0, {}
    elif kind == "safe":
        node.ceilings = {name: min(watts, 100.0) for name, watts in node.ceilings.items()}


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40), st.integers(350, 1700))
@examples(100)
def test_all_nodes_reach_their_ceilings_once_messages_arrive(
    losses: list[tuple[int, bool]], limit: int
) -> None:
    cluster = Cluster([FakeNode(f"n{i}") for i in range(3)], limit_watts=float(limit))
    for index, lost in losses:
        cluster.grant(limit / 6)
        cluster.exchange(cluster.nodes[index], loses_response=lost)
    for _ in range(3):
        cluster.grant(limit / 6)
        for node in cluster.nodes:
            cluster.exchange(node)
    assert cluster.watts <= limit + 1e-6
    assert cluster.watts >= limit * 0.98 - 6


def test_a_raise_waits_until_another_node_confirms_its_lower_ceiling() -> None:
    first, second = FakeNode("a"), FakeNode("b")
    cluster = Cluster([first, second], limit_watts=800.0)
    for _ in range(3):
        cluster.grant(200.0)
        cluster.exchange(first)
        cluster.exchange(second)
    assert (first.watts, second.watts) == (400.0, 400.0)
    rows = [list(cluster.commitment.rows(name).values()) for name in ("a", "b")]
    target = np.zeros(4)
    target[rows[0]], target[rows[1]] = 100.0, 300.0
    budgets = [CeilingBudget(np.arange(4), 800.0)]
    cluster.commitment.grant(target, budgets, 10.0)
    cluster.exchange(second)
    assert second.watts == 400.0
    cluster.exchange(first)
    assert first.watts == 200.0
    cluster.commitment.grant(target, budgets, 11.0)
    cluster.exchange(second)
    assert second.watts == 400.0, "the first node has not confirmed yet"
    cluster.exchange(first)
    cluster.commitment.grant(target, budgets, 12.0)
    cluster.exchange(second)
    assert second.watts == 600.0


def test_after_a_restart_nothing_is_raised_before_all_nodes_reported_or_the_time_is_over() -> None:
    cluster = Cluster([FakeNode("a"), FakeNode("b")], limit_watts=1200.0)
    for _ in range(3):
        cluster.grant(100.0)
        for node in cluster.nodes:
            cluster.exchange(node)
    cluster.restart_controller()
    cluster.exchange(cluster.nodes[0])
    cluster.grant(300.0)
    assert cluster.commitment.granted_watts.max() == 100.0
    assert cluster.commitment.awaited == {"b"}
    for _ in range(4):
        cluster.grant(300.0)
    assert cluster.commitment.granted_watts.max() == 300.0


def test_an_unknown_decision_counts_at_nameplate_until_ours_is_confirmed() -> None:
    node = FakeNode("a", number=17, ceilings=dict.fromkeys(DEVICES, 60.0))
    cluster = Cluster([node], limit_watts=400.0)
    cluster.commitment.report(node.poll())
    cluster.commitment.report(node.poll())
    assert cluster.commitment.held_watts.sum() == 600.0
    cluster.grant(100.0)
    cluster.exchange(node)
    cluster.exchange(node)
    assert cluster.commitment.held_watts.sum() == 200.0


def test_a_node_without_ceilings_counts_at_nameplate() -> None:
    node = FakeNode("a")
    commitment = CeilingCommitment()
    report = node.poll()
    commitment.report(dataclasses.replace(report, devices=report.devices))
    assert commitment.held_watts.sum() == 600.0


def test_a_limit_above_the_ceiling_counts() -> None:
    node = FakeNode("a", ceilings=dict.fromkeys(DEVICES, 100.0))
    poll = node.poll()
    above = dataclasses.replace(poll.devices[0], limit_watts=250.0)
    commitment = CeilingCommitment()
    commitment.report(dataclasses.replace(poll, devices=(above, poll.devices[1])))
    assert commitment.held_watts.tolist() == [250.0, 100.0]


def test_small_changes_are_not_made_unless_the_budget_needs_them() -> None:
    cluster = Cluster([FakeNode("a")], limit_watts=1000.0)
    cluster.grant(200.0)
    cluster.exchange(cluster.nodes[0])
    before = cluster.commitment.decision("a")
    cluster.grant(199.0)
    assert cluster.commitment.decision("a") == before
    cluster.limit_watts = 399.0
    cluster.grant(199.5)
    assert sum(cluster.commitment.decision("a")[1].values()) == 399.0


def test_idle_devices_count_at_their_idle_power() -> None:
    commitment = CeilingCommitment()
    commitment.report(FakeNode("a", ceilings={"package-0": 100.0, "gpu0": 50.0}).poll())
    commitment.grant(
        np.array([250.0, 50.0]),
        [CeilingBudget(np.arange(2), 270.0)],
        0.0,
        np.array([np.nan, 20.0]),
    )
    assert commitment.granted_watts.tolist() == [250.0, 50.0]


def test_damaged_states_are_named_and_their_nodes_unknown() -> None:
    commitment = CeilingCommitment()
    damaged = {
        "a": {},
        "b": None,
        "c": {"boot_id": "x", "earlier_boots": [], "number": 1, "devices": {"g": 1}},
    }
    assert commitment.restore(damaged) == ["a", "b", "c"]
    assert commitment.count == 0


def test_a_forgotten_node_counts_nothing() -> None:
    cluster = Cluster([FakeNode("a"), FakeNode("b")])
    cluster.commitment.forget("a")
    assert cluster.commitment.reserved_watts.sum() == 600.0
    assert cluster.commitment.rows("a") == {}
    assert cluster.commitment.decision("a") == (0, {})


@given(
    st.lists(st.tuples(st.floats(0, 500), st.floats(0, 500)), min_size=1, max_size=12),
    st.lists(st.tuples(st.sets(st.integers(0, 11)), st.floats(0, 3000)), max_size=4),
)
@examples(150)
def test_raises_fit_under_every_budget(
    rows: list[tuple[float, float]], budgets: list[tuple[set[int], float]]
) -> None:
    raises, base = np.array(rows).T
    columns = [
        CeilingBudget(np.array(sorted(r for r in members if r < len(rows)), np.int64), watts)
        for members, watts in budgets
    ]
    part = raise_ratios(raises, base, columns)
    assert np.all((part >= 0) & (part <= 1))
    for budget in columns:
        used = float(base[budget.rows].sum())
        after = used + float((part * raises)[budget.rows].sum())
        assert after <= max(used, budget.available_watts) + 1e-6


def test_raises_that_were_not_stored_are_withdrawn_even_if_they_are_small() -> None:
    cluster = Cluster([FakeNode("a")], limit_watts=1000.0)
    for watts in (200.0, 200.0):
        cluster.grant(watts)
        cluster.exchange(cluster.nodes[0])
    cluster.exchange(cluster.nodes[0])
    cluster.grant(202.5)
    cluster.commitment.withdraw_raises()
    assert cluster.commitment.granted_watts.tolist() == [200.0, 200.0]
    cluster.exchange(cluster.nodes[0])
    assert cluster.watts == 400.0


def test_a_node_without_a_budget_counts_at_nameplate_at_once() -> None:
    cluster = Cluster([FakeNode("a")], limit_watts=400.0)
    for _ in range(2):
        cluster.grant(100.0)
        cluster.exchange(cluster.nodes[0])
    cluster.exchange(cluster.nodes[0])
    assert cluster.commitment.held_watts.sum() == 200.0
    cluster.commitment.release("a")
    assert cluster.commitment.held_watts.sum() == 600.0


def test_decisions_that_no_node_confirms_keep_counting() -> None:
    cluster = Cluster([FakeNode("a")])
    for watts in (100.0, 290.0, *range(280, 100, -15)):
        cluster.grant(float(watts))
        cluster.exchange(cluster.nodes[0], loses_response=watts != 100.0)
    cluster.exchange(cluster.nodes[0], loses_response=True)
    assert cluster.commitment.held_watts.tolist() == [290.0, 290.0]
