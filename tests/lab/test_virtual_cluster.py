"""Tests of the virtual cluster: its jobs, its hardware and its queue.

The module also tests the methods with which the benchmark of power budgets compares slurm-energy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slurm_energy_lab.model import NodeModel, load_profile
from slurm_energy_lab.virtual_cluster.cluster import BareNode, VirtualCluster, seconds_above
from slurm_energy_lab.virtual_cluster.job_queue import JobRelease, start_jobs
from slurm_energy_lab.virtual_cluster.workload import (
    ClusterJob,
    JobMix,
    draw_jobs,
    draw_profiles,
    has_package_limits,
    nameplate_watts,
)
from slurm_energy_lab.virtual_node import ModelClock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from budget_baselines import CrayBalancer, EqualCaps, equal_caps, node_range, set_cap

PROFILES = {"cpu": load_profile("xeon-8358"), "gpu": load_profile("xeon-4210-rtx6000")}


def job(job_id: int, nodes: int = 1, limit_s: float = 600.0, partition: str = "cpu") -> ClusterJob:
    return ClusterJob(job_id, 0.0, partition, "gemm", nodes, 60.0, limit_s)


def started(queue: list[ClusterJob], free: int, releases: list[JobRelease]) -> list[int]:
    nodes = {"cpu": [f"cpu{index}" for index in range(free)]}
    return [item.job_id for item in start_jobs(queue, nodes, releases, 0.0, lambda *_: True)]


def test_a_seed_determines_jobs_and_hardware() -> None:
    nodes = {"cpu": 4, "gpu": 4}
    jobs = draw_jobs(3, nodes, JobMix())
    assert jobs == draw_jobs(3, nodes, JobMix())
    assert jobs != draw_jobs(4, nodes, JobMix())
    assert [item.submit_s for item in jobs] == sorted(item.submit_s for item in jobs)
    names = draw_profiles(3)
    assert names == draw_profiles(3)
    assert all(has_package_limits(load_profile(name)) for name in names)


def test_a_job_passes_the_first_one_only_without_delaying_it() -> None:
    running = [JobRelease(500.0, ("cpu8", "cpu9"))]
    assert started([job(1, nodes=3), job(2, limit_s=400.0)], 1, running) == [2]
    assert started([job(1, nodes=3), job(2, limit_s=600.0)], 1, running) == []
    assert started([job(1, nodes=2), job(2, limit_s=600.0)], 1, running) == [2]


def test_a_capped_node_keeps_its_cap_and_its_range_is_reached() -> None:
    profile = PROFILES["gpu"]
    for cap in (node_range(profile).min_watts, 1500.0, node_range(profile).max_watts):
        clock = ModelClock()
        node = BareNode(profile, clock)
        with node.model.modify() as state:
            set_cap(state, cap)
        node.submit("gemm", "gpu", 600.0, 1)
        node.submit("gemm", "cpu", 600.0, 1)
        clock.now_s += 10.0
        with node.model.now() as state:
            assert state.power_watts("node") <= cap
        node.close()


@pytest.mark.parametrize("method", [EqualCaps, CrayBalancer])
def test_a_baseline_keeps_the_limit_of_a_busy_cluster(method: type[EqualCaps | CrayBalancer]) -> None:
    clock = ModelClock()
    nodes = {f"{kind}{index}": BareNode(PROFILES[kind], clock) for kind in PROFILES for index in range(2)}
    total = 2 * sum(nameplate_watts(profile) for profile in PROFILES.values())

    def limit_watts(now_s: float) -> float:
        return total * (0.8 if now_s < 1040.0 else 0.65)

    models = {name: node.model for name, node in nodes.items()}
    jobs = [job(index, partition=kind) for index, kind in enumerate(("cpu", "cpu", "gpu", "gpu"), 1)]
    result = VirtualCluster(clock, nodes, jobs).run(90.0, method(models, limit_watts))
    limits = [limit_watts(1000.05 + index * 0.1) for index in range(len(result.watts))]
    # The power limit of a package holds for a running average: its power exceeds it for part of a second.
    assert seconds_above(result.watts, limits) <= 1.0
    assert max(result.watts[450:]) < 0.65 * total
    assert 0 < result.work <= sum(item.work for item in jobs)
    assert result.joules == pytest.approx(sum(result.watts) * 0.1)
    for node in nodes.values():
        node.close()


def test_equal_caps_add_up_to_the_limit() -> None:
    clock = ModelClock()
    models = {f"{kind}1": BareNode(PROFILES[kind], clock).model for kind in PROFILES}
    assert sum(equal_caps(models, 2000.0).values()) == pytest.approx(2000.0)


def test_the_cray_algorithm_takes_half_of_the_slack_and_gives_recent_jobs_even_shares() -> None:
    clock = ModelClock()
    models = {name: BareNode(PROFILES["gpu"], clock).model for name in ("gpu1", "gpu2")}
    balancer = CrayBalancer(models, lambda _: 4000.0)
    balancer.tick(clock.now_s)  # without caps both count as nodes that need more
    assert balancer.caps == {"gpu1": 2000.0, "gpu2": 2000.0}
    balancer.job_starts(job(1, partition="gpu"), ["gpu2"])
    clock.now_s += 30.0
    balancer.tick(clock.now_s)
    item, idle = node_range(PROFILES["gpu"]), NodeModel(PROFILES["gpu"]).power_watts("node")
    cut = min(0.5 * (item.max_watts - item.min_watts), (2000.0 - idle) / 2)
    assert balancer.caps["gpu1"] == pytest.approx(max(item.min_watts, 2000.0 - cut))
    assert balancer.caps["gpu2"] == pytest.approx(min(item.max_watts, 4000.0 - balancer.caps["gpu1"]))
