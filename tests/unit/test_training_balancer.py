"""Test how the training balancer divides the samples among ranks by measured time and power.

The tests cover the convergence of the shares, power caps, pauses of ranks, and unknown power.
"""

from __future__ import annotations

import random

import pytest

from slurm_energy.training.balancer import Balancer, RankWindow
from slurm_energy.training.shares import ExchangeCost

STEPS = 4
FREE = ExchangeCost()


class SimulatedRanks:
    """Simulated ranks of a distributed training whose speed and power are given.

    The measurement windows of the ranks have random noise.

    Args:
        sample_s: seconds per sample of each rank.
        fixed_s: seconds of a step on each rank besides the samples.
        exchange: true cost of the exchange of gradients.
        watts: idle and busy power of each rank; None: unknown.
    """

    def __init__(self, sample_s, fixed_s=0.0, exchange=FREE, watts=None, seed=1):
        self.sample_s, self.fixed_s, self.exchange, self.watts = list(sample_s), fixed_s, exchange, watts
        self._random = random.Random(seed)

    def windows(self, samples):
        noise = [1 + self._random.uniform(-0.02, 0.02) for _ in samples]
        busy = [
            (self.fixed_s + cost * count) * factor if count else 0.0
            for cost, count, factor in zip(self.sample_s, samples, noise, strict=True)
        ]
        step_s = max(busy) + self.exchange.seconds(sum(map(bool, samples)))
        return [self._window(rank, samples[rank], busy[rank], step_s) for rank in range(len(samples))]

    def _window(self, rank, samples, busy_s, step_s):
        joules = None
        if self.watts:
            idle, busy = self.watts[rank]
            joules = STEPS * (idle * (step_s - busy_s) + busy * busy_s)
        return RankWindow(samples, busy_s, step_s, step_s * STEPS, STEPS, joules)


def balancer(ranks, batch=190, goal="time", idle=None, exchange=FREE, max_slowdown=0.1):
    return Balancer(ranks, batch, goal, max_slowdown, exchange, idle or [None] * ranks)


def run(balance, ranks, windows):
    return [balance.add(ranks.windows(balance.samples)) for _ in range(windows)]


@pytest.mark.parametrize("seed", range(5))
def test_shares_converge_to_the_speeds_and_then_stay(seed):
    ranks = SimulatedRanks([0.01, 0.01 / 0.6, 0.01 / 0.3], fixed_s=0.02, seed=seed)
    balance = balancer(3)
    run(balance, ranks, 6)
    step_s = max(0.02 + cost * count for cost, count in zip(ranks.sample_s, balance.samples, strict=True))
    assert step_s <= 1.06 * 1.02
    assert sum(run(balance, ranks, 30)) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_a_capped_rank_is_rebalanced_within_20_steps(seed):
    ranks = SimulatedRanks([0.01, 0.01 / 0.6, 0.01 / 0.3], seed=seed)
    balance = balancer(3)
    run(balance, ranks, 8)
    ranks.sample_s[0] *= 2
    run(balance, ranks, 20 // STEPS)
    assert balance.changes >= 1
    step_s = max(cost * count for cost, count in zip(ranks.sample_s, balance.samples, strict=True))
    assert step_s <= 1.08 * 190 / sum(1 / cost for cost in ranks.sample_s)


@pytest.mark.parametrize(("message_s", "active"), [(0.0, 3), (0.15, 2), (0.5, 1)])
def test_ranks_pause_where_the_exchange_costs_more_than_it_saves(message_s, active):
    exchange = ExchangeCost(message_s=message_s)
    balance = balancer(3, exchange=exchange)
    run(balance, SimulatedRanks([0.01, 0.01 / 0.6, 0.01 / 0.3], exchange=exchange), 8)
    assert sum(map(bool, balance.samples)) == active


def test_an_exchange_that_the_computation_hides_pauses_no_rank():
    balance = balancer(3, exchange=ExchangeCost(message_s=0.15))
    run(balance, SimulatedRanks([0.01, 0.01 / 0.6, 0.01 / 0.3]), 12)
    assert balance.exchange.message_s == pytest.approx(0.015)


def test_measured_power_decides_with_a_goal_of_energy():
    watts = [(100.0, 300.0), (100.0, 900.0)]
    idle = [100.0, 100.0]
    for goal, active in (("time", 2), ("energy", 1)):
        balance = balancer(2, 110, goal, idle=idle, max_slowdown=0.15)
        run(balance, SimulatedRanks([0.01, 0.1], watts=watts), 6)
        assert sum(map(bool, balance.samples)) == active
        costs = balance.costs()
        assert costs is not None
        assert [cost.busy_watts for cost in costs] == pytest.approx([300, 900], rel=0.05)


def test_unknown_power_is_named_and_the_shares_follow_the_time():
    balance = balancer(2, 110, "edp", idle=[100.0, None])
    run(balance, SimulatedRanks([0.01, 0.1]), 6)
    assert balance.unmeasured == (1,)
    assert balance.samples == pytest.approx((100, 10), abs=3)


def test_a_checkpoint_holds_for_the_same_ranks_only():
    ranks, balance = SimulatedRanks([0.01, 0.03]), balancer(2)
    run(balance, ranks, 5)
    same, fewer = balancer(2), balancer(1)
    same.restore(balance.to_json())
    fewer.restore(balance.to_json())
    assert same.samples == balance.samples != (95, 95)
    assert fewer.samples == (190,)
