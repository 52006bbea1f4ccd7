"""Tests of simplified agents for the benchmark of power budgets.

These agents read the node model directly instead of emulated files. Their reports and actions must equal
those of senergyd.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_energy.budget.messages import NodeDecision, NodePoll
from slurm_energy_lab.model import load_profile
from slurm_energy_lab.virtual_node import ModelClock, VirtualNode

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from budget_cluster import agent
from budget_direct import DirectNode

PROFILE = "xeon-4210-rtx6000"


def facts(poll: NodePoll) -> list[tuple[object, ...]]:
    return [
        (one.name, one.kind, one.min_watts, one.max_watts, one.limit_watts, one.job_ids, one.ceiling_watts)
        for one in poll.devices
    ]


def watts(poll: NodePoll) -> list[float]:
    return [poll.node_watts or 0.0, *(one.watts or 0.0 for one in poll.devices)]


def test_both_agents_report_and_do_the_same(tmp_path: Path) -> None:
    clock = ModelClock()
    nodes: list[VirtualNode | DirectNode] = [agent(tmp_path, "gpu1", PROFILE, clock)]
    nodes.append(DirectNode("gpu1", load_profile(PROFILE), clock))
    names = [one.name for one in nodes[0].poll_budget().devices]
    lowest = {one.name: one.min_watts or 0.0 for one in nodes[0].poll_budget().devices}
    start = {name: 2.0 * lowest[name] for name in names}  # whole units of the hardware

    def decide(number: int, share: float) -> None:
        limits: dict[str, float | None] = {name: round(share * lowest[name], 3) for name in names}
        for node in nodes:
            node.manager.budget.apply(NodeDecision(number, limits, {}, start, 30.0, 1.0), clock.now_s)

    def polls() -> list[NodePoll]:
        for _ in range(3):
            clock.now_s += 1.0
            for node in nodes:
                node.sample()
        return [node.poll_budget() for node in nodes]

    steps: list[Callable[[], object]] = [
        lambda: decide(1, 1.0),
        lambda: [node.begin(7) or node.submit("gemm", "gpu", 60.0, 7) for node in nodes],
        lambda: decide(2, 3.0),
        lambda: [node.end(7) for node in nodes],
    ]
    for step in steps:
        step()
        real, direct = polls()
        assert facts(real) == facts(direct)
        assert real.number == direct.number
        assert watts(real) == pytest.approx(watts(direct), rel=0.03, abs=2.0)
    for node in nodes:
        node.close()
