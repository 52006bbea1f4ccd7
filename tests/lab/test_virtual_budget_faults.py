"""Tests of power budgets on an emulated cluster with faults.

The true power, computed 10 times per second, must stay below the limit. The test uses the real job managers
of the agents and the real engine of the controller. Jobs arrive faster than they end. The power of the parts
without a limit is configured, because the engine would learn this power only after a delay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from slurm_energy.controller.budgets.facts import EngineSettings
from slurm_energy_lab.model import NodeProfile, load_profile
from slurm_energy_lab.virtual_cluster.budgeted_cluster import (
    BudgetController,
    BudgetedCluster,
    slurm_nodes,
)
from slurm_energy_lab.virtual_cluster.cluster import TICK_S, VirtualCluster
from slurm_energy_lab.virtual_cluster.faults import ClusterFault, FaultKind, FaultyCluster, draw_faults
from slurm_energy_lab.virtual_cluster.workload import (
    JobMix,
    draw_jobs,
    draw_profiles,
    idle_watts,
    max_other_watts,
    nameplate_watts,
    partition_of,
)
from slurm_energy_lab.virtual_node import ModelClock, VirtualNode

NODES = {"cpu": 4, "gpu": 4}
SHARES = (0.6, 0.45, 0.6, 0.8, 0.45, 0.6, 0.45)
PART_S = 100.0
_SENSORS = (FaultKind.SENSOR_ZERO, FaultKind.SENSOR_TENFOLD)


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def accepts(cpu: NodeProfile, gpu: NodeProfile) -> bool:
    """Return whether a cluster can stay below the lowest power budget that the test sets.

    The cluster has one CPU node and one GPU node. The function compares the budget with the power of the
    cluster at the lowest power limit of all GPUs.
    """
    assert gpu.gpu is not None
    lowest = idle_watts(gpu) + gpu.gpu.count * (gpu.gpu.min_limit_watts - gpu.gpu.idle_watts)
    lowest += gpu.cpu.packages * gpu.cpu.tdp_watts + nameplate_watts(cpu) + idle_watts(cpu)
    return lowest < min(SHARES) * (nameplate_watts(cpu) + nameplate_watts(gpu))


def limit_of(total_watts: float, start_s: float) -> Callable[[float], float]:
    return lambda now_s: total_watts * SHARES[min(len(SHARES) - 1, int((now_s - start_s + 1e-6) // PART_S))]


def run(
    tmp_path: Path, seed: int, faults: Callable[[float], list[ClusterFault]], seconds: float
) -> tuple[list[float], dict[str, set[str]], int]:
    """Simulate a cluster under a power budget while faults occur.

    Return three results: the power divided by the limit every 0.1 s, the states that each node went through,
    and the number of ended jobs.
    """
    profiles = dict(zip(NODES, draw_profiles(seed, accepts), strict=True))
    total = sum(count * nameplate_watts(load_profile(profiles[kind])) for kind, count in NODES.items())
    clock = ModelClock()
    limit_watts = limit_of(total, clock.now_s)
    states: dict[str, set[str]] = {}
    with ExitStack() as stack:
        nodes = {}
        for kind, count in NODES.items():
            for name in (f"{kind}{index + 1}" for index in range(count)):
                (tmp_path / name).mkdir()
                options = {"node_meter": True, "budget_mode": "enforce", "name": name, "clock": clock}
                nodes[name] = VirtualNode(tmp_path / name, profiles[kind], 1.0, **options)
                stack.callback(nodes[name].close)
        reserves = {name: max_other_watts(load_profile(profiles[partition_of(name)])) for name in nodes}
        controller = BudgetController(limit_watts, slurm_nodes(list(nodes), reserves), EngineSettings())

        def note(_: float) -> None:
            for name, status in (controller.cycle.nodes if controller.cycle else {}).items():
                states.setdefault(name, set()).add(status.state)

        budgeted = BudgetedCluster(nodes, clock, controller, None)
        manager = FaultyCluster(budgeted, faults(clock.now_s), note)
        start_s = clock.now_s
        jobs = draw_jobs(seed, NODES, JobMix(duration_s=seconds, load=1.3, max_seconds=180.0))
        result = VirtualCluster(clock, nodes, jobs).run(seconds, manager)
        for link in budgeted.links.values():
            assert link.is_running
            assert link.is_connected
    shares = [
        watts / limit_watts(start_s + (index + 0.5) * TICK_S) for index, watts in enumerate(result.watts)
    ]
    return shares, states, len(result.ended)


@pytest.mark.slow
def test_the_limit_holds_while_the_controller_is_killed_at_a_fall(tmp_path: Path, quiet: None) -> None:
    def faults(start_s: float) -> list[ClusterFault]:
        return [
            ClusterFault(FaultKind.SENSOR_TENFOLD, start_s + 40.0, start_s + 60.0, ("gpu1",)),
            ClusterFault(FaultKind.CONTROLLER, start_s + 93.0, start_s + 130.0, ()),
            ClusterFault(FaultKind.AGENTS, start_s + 150.0, start_s + 154.0, ("cpu1", "gpu2", "gpu3")),
        ]

    shares, states, ended = run(tmp_path, 1, faults, 180.0)
    assert max(shares) <= 1.0
    assert "distrusted" in states["gpu1"]
    assert all("distrusted" not in states[name] for name in ("cpu2", "gpu4"))
    assert "safe" in states["cpu2"]
    assert ended


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 13))
def test_the_limit_holds_under_random_faults_at_every_step(tmp_path: Path, quiet: None, seed: int) -> None:
    chosen: list[ClusterFault] = []

    def faults(start_s: float) -> list[ClusterFault]:
        names = [f"{kind}{index + 1}" for kind, count in NODES.items() for index in range(count)]
        chosen.extend(draw_faults(seed, names, [start_s + PART_S * part for part in range(1, len(SHARES))]))
        return chosen

    shares, states, ended = run(tmp_path, seed, faults, PART_S * len(SHARES))
    above = [index * TICK_S for index, share in enumerate(shares) if share > 1.0]
    assert not [second for second in above if second % PART_S >= 5.0 or second < PART_S]
    for fault in chosen:
        if fault.kind in _SENSORS and fault.end_s - fault.begin_s > 20.0:
            assert all("distrusted" in states[name] for name in fault.nodes)
    assert ended
