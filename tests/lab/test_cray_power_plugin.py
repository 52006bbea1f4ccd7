"""Tests of the model of Slurm's plugin power/cray_aries, which serves as a baseline.

The expected results were computed by hand from the source of the plugin.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slurm_energy_lab.model import load_profile
from slurm_energy_lab.virtual_cluster.cluster import BareNode
from slurm_energy_lab.virtual_cluster.workload import ClusterJob
from slurm_energy_lab.virtual_node import ModelClock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from cray_power_plugin import CrayPlugin, PluginNode, rebalance

NOW_S = 10_000.0


def node(cap: int, current: int, job_age_s: float = 1e9, low: int = 100, high: int = 500) -> PluginNode:
    return PluginNode(low, high, cap, current, NOW_S - job_age_s)


def caps(limit_watts: int, *nodes: PluginNode) -> list[int]:
    rebalance(nodes, limit_watts, NOW_S)
    return [item.new_cap_watts for item in nodes]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (node(400, 200), 300),  # half of the slack of 200 W
        (node(300, 150, low=250, high=300), 275),  # half of the range of 50 W is less than half of the slack
        (node(120, 60), 100),  # not below the minimum
        (node(333, 298), 316),  # 333 * 90 / 100 is 299; 35 W of slack are halved to 17 W
        (node(333, 299), 333),  # the thresholds are whole watts
        (node(400, 370), 400),  # between 360 W and 380 W
        (node(400, 380), 400),
        (node(400, 381), 480),  # at most a fifth of the range of 400 W more
        (node(480, 480), 500),  # at most the maximum
        (node(0, 300), 100),  # without a cap: a fifth of the range is below the minimum
        (node(300, 0), 380),  # without a measured power
        (node(200, 20, job_age_s=300.0), 500),  # a job of the last 300 s: an even share of the rest
        (node(200, 20, job_age_s=301.0), 110),
    ],
)
def test_a_node_alone(before: PluginNode, after: int) -> None:
    assert caps(10_000, before) == [after]


def test_the_rest_is_divided_in_the_order_of_the_nodes() -> None:
    small, large = node(100, 100, 0.0, high=200), node(100, 100, 0.0, high=900)
    assert caps(1000, small, large) == [200, 800]  # the first one leaves its rest to the next one
    assert caps(1000, large, small) == [500, 200]  # 300 W stay unused


def test_an_even_cut_makes_room_for_a_lower_limit_and_for_nodes_that_need_more() -> None:
    assert caps(700, node(400, 370), node(400, 370)) == [350, 350]
    assert caps(450, node(400, 370), node(300, 300)) == [350, 100]


def test_no_room_is_kept_for_the_nodes_of_recent_jobs() -> None:
    assert caps(450, node(400, 370), node(300, 300, 0.0)) == [400, 100]  # 50 W above the limit


def test_the_unsigned_subtraction_wraps_around() -> None:
    """The Cray plugin computes a huge remaining power, because an unsigned subtraction wraps around.

    The plugin lowers three nodes from 400 W, each by 200 / 3 = 66 W. Their sum of 1002 W exceeds the limit
    by 2 W. The remaining power therefore becomes nearly 2^32 W.
    """
    assert caps(1000, *(node(400, 370) for _ in range(3)), node(100, 100, 0.0)) == [334, 334, 334, 500]


def test_rounds_take_place_every_30_s_and_see_jobs_and_limits_only_then() -> None:
    clock = ModelClock()
    models = {name: BareNode(load_profile("xeon-4210-rtx6000"), clock).model for name in ("gpu1", "gpu2")}
    start_s, limits = clock.now_s, [4000.0]
    plugin = CrayPlugin(models, lambda _: limits[-1])
    lowest, highest = plugin.nodes["gpu1"].min_watts, plugin.nodes["gpu1"].max_watts

    def caps_at(seconds: float) -> list[int]:
        clock.now_s = start_s + seconds
        plugin.tick(clock.now_s)
        return [item.cap_watts for item in plugin.nodes.values()]

    assert caps_at(0.0) == [lowest, lowest]  # that of an idle cluster
    plugin.job_starts(ClusterJob(1, 0.0, "gpu", "gemm", 1, 60.0, 600.0), ["gpu1"])
    assert caps_at(14.9) == [lowest, lowest]
    assert caps_at(15.0) == [highest, lowest]
    limits.append(lowest + lowest + 50.0)
    assert caps_at(44.9) == [highest, lowest]
    assert caps_at(45.0) == [lowest + 50, lowest]
