"""Test that an emulated node obeys the controller's decisions about its power.

The true power of the GPUs must follow the decisions while jobs run, after senergyd is killed with SIGKILL,
and after the lease of the last decision has expired.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_energy.budget.messages import NodeDecision
from slurm_energy_lab.virtual_node import VirtualNode

GPU_W, SAFE_GPU_W, START_GPU_W = 400.0, 300.0, 700.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[VirtualNode]:
    made = VirtualNode(tmp_path, "xeon-h100", budget_mode="enforce")
    yield made
    made.close()


def decision(node: VirtualNode, number: int, gpu_watts: float) -> NodeDecision:
    limits: dict[str, float] = {}
    safe: dict[str, float] = {}
    for device in node.manager.poll_budget().devices:
        if device.min_watts is not None and device.max_watts is not None:
            is_gpu = device.name.startswith("gpu")
            limits[device.name] = gpu_watts if is_gpu else device.max_watts
            safe[device.name] = SAFE_GPU_W if is_gpu else device.min_watts
    return NodeDecision(number, dict(limits), safe, dict.fromkeys(limits, START_GPU_W), 10.0, 1.0)


def gpu_watts(node: VirtualNode, seconds: float) -> float:
    """Let `seconds` pass on the node, and return the highest mean power of a GPU in this time.

    The mean power of each GPU is computed from its true energy.
    """
    before = node.energy_joules()
    node.wait(seconds)
    after = node.energy_joules()
    return max((after[name] - before[name]) / seconds for name in after if name.startswith("gpu["))


@pytest.mark.slow
def test_the_true_power_follows_decisions_kills_and_the_lease(node: VirtualNode) -> None:
    node.begin(1)
    node.submit("gemm", "gpu", 600.0, 1)
    node.wait(5.0)
    free_watts = gpu_watts(node, 2.0)
    assert free_watts > GPU_W
    node.manager.budget.apply(decision(node, 1, GPU_W))
    assert gpu_watts(node, 2.0) <= 1.02 * GPU_W
    poll = node.manager.poll_budget()
    gpu = next(device for device in poll.devices if device.name == "gpu0")
    assert (poll.number, gpu.ceiling_watts, gpu.job_ids) == (1, GPU_W, (1,))
    node.kill_agent()
    node.clock.now_s += 3.0
    node.start_agent()
    assert gpu_watts(node, 2.0) <= 1.02 * GPU_W
    node.wait(10.0)
    assert node.manager.poll_budget().is_safe
    assert gpu_watts(node, 2.0) <= 1.02 * SAFE_GPU_W
    node.manager.budget.apply(NodeDecision(0, {}, {}, {}, 10.0, 1.0))
    assert gpu_watts(node, 2.0) >= 0.98 * free_watts
