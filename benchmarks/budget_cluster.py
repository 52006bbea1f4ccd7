"""Emulated nodes and power budget that the benchmark `budget_lab.py` uses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from budget_direct import DirectNode
from lab_runs import memory_folder

from slurm_energy_lab.model import NodeProfile, load_profile
from slurm_energy_lab.virtual_cluster.workload import nameplate_watts
from slurm_energy_lab.virtual_node import ModelClock, VirtualNode

STEPS = ((0.0, 0.60), (600.0, 0.45), (1200.0, 0.80))
"""Time in seconds, and the budget from then on as a share of the sum of the thermal design powers."""
NODES = {"cpu": 4, "gpu": 4}


def node_names() -> list[str]:
    """Return the names of the nodes."""
    return [f"{partition}{index + 1}" for partition, count in NODES.items() for index in range(count)]


def lab_agents(
    stack: ExitStack, profiles: dict[str, str], clock: ModelClock, *, direct: bool
) -> dict[str, VirtualNode]:
    """Return nodes with agents, by name. The nodes are closed when `stack` is closed."""
    if direct:
        agents: dict[str, Any] = {
            name: DirectNode(name, load_profile(profiles[name[:3]]), clock) for name in node_names()
        }
    else:
        folder = stack.enter_context(memory_folder())
        agents = {name: agent(folder, name, profiles[name[:3]], clock) for name in node_names()}
    for made in agents.values():
        stack.callback(made.close)
    return agents


def agent(folder: Path, name: str, profile: str, clock: ModelClock) -> VirtualNode:
    """Return a virtual node with an agent that enforces power budgets."""
    own = folder / name
    own.mkdir()
    return VirtualNode(
        own, profile, sampling_hz=1.0, node_meter=True, budget_mode="enforce", name=name, clock=clock
    )


def budget_of(profiles: dict[str, NodeProfile], start_s: float) -> Callable[[float], float]:
    """Return a function that maps the time of the model in seconds to the power budget in watts."""
    total = sum(count * nameplate_watts(profiles[partition]) for partition, count in NODES.items())

    def limit_watts(now_s: float) -> float:
        # Steps are at whole seconds; sums of tenths are not exact.
        return total * next(
            share for step_s, share in reversed(STEPS) if now_s - start_s >= step_s - 1e-6 or not step_s
        )

    return limit_watts
