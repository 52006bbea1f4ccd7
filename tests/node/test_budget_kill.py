"""Test of kill -9 of senergyd under a power budget.

No power limit may exceed its ceiling, the upper bound that the budget sets. At the end, the original
settings must be restored.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from crashing_agent import HOOK, CrashingAgent

from slurm_energy.budget.messages import NodeDecision, NodePoll

SEED = int(os.environ.get("SENERGY_KILL_SEED", "20261122"))
ROUNDS = int(os.environ.get("SENERGY_KILL_ROUNDS", "15")) // 3
PATIENCE_S = 60.0
SAFE_WATTS, START_WATTS, LIMITS = 120.0, 160.0, (130.0, 180.0, 220.0)

pytestmark = [pytest.mark.node, pytest.mark.root, pytest.mark.timeout(300 + 20 * ROUNDS)]


class BudgetAgent(CrashingAgent):
    """A senergyd for tests, which receives power limits for its GPUs and packages from a controller.

    The test acts as the controller and decides the limits.
    """

    def gpu_watts(self) -> list[float]:
        """Return the power limits that are set in the emulated GPUs, in watts."""
        settings = self.settings()
        return [settings[f"gpu{index}+28"] / 1e3 for index in range(self.gpus())]

    def decide(self, number: int, gpu_watts: float, lease_s: float = 3600.0) -> None:
        """Let the fake controller answer the next polls of the agent with a power limit for each GPU.

        Args:
            number: number of the decision.
            gpu_watts: limit of each GPU.
            lease_s: seconds for which the decision is valid.
        """
        names = [f"gpu{index}" for index in range(self.gpus())]
        safe, start = dict.fromkeys(names, SAFE_WATTS), dict.fromkeys(names, START_WATTS)
        limits: dict[str, float | None] = dict.fromkeys(names, gpu_watts)
        self.controller.decision = NodeDecision(number, limits, safe, start, lease_s, 0.1)

    def wait_for_poll(self, fits: Callable[[NodePoll], bool], *, or_death: bool = False) -> bool:
        """Wait until senergyd sends a poll that `fits` accepts, and return True.

        If `or_death` is set, the method returns False as soon as senergyd has died.
        """
        deadline = time.monotonic() + PATIENCE_S
        self.controller.polls.clear()
        while not any(fits(poll) for poll in list(self.controller.polls)):
            if or_death and self.is_dead():
                self.deaths += 1
                return False
            assert time.monotonic() < deadline, self.log()[-2000:]
            time.sleep(0.01)
        return True


def gpu_ceilings(poll: NodePoll) -> list[float | None]:
    """Return the upper bounds of the power limits of a node's GPUs, in watts.

    A power budget sets these bounds. They are read from a report (poll) of the node.
    """
    return [device.ceiling_watts for device in poll.devices if device.name.startswith("gpu")]


@pytest.fixture(scope="module")
def agent(emulate: Callable[..., Any]) -> Iterator[BudgetAgent]:
    agent = BudgetAgent(emulate("xeon-4210-rtx6000"), '[budget]\nmode = "enforce"\n')
    try:
        yield agent.start()
    finally:
        agent.remove()


def test_kill_9_at_random_instants_never_raises_a_limit_above_the_ceilings(agent: BudgetAgent) -> None:
    chance = random.Random(SEED)
    before = agent.settings()
    number, current = 1, LIMITS[0]
    agent.decide(number, current)
    agent.wait_for_poll(lambda poll: poll.number == number)
    env = {**agent.env(1), "SPANK_ENERGY_POLICY": "cap", "SPANK_ENERGY_GPU_CAP": "150"}
    for turn in range(ROUNDS):
        agent.hook("end" if turn % 2 else "begin", {**env, "SLURM_JOB_ID": str(1 + turn // 2)})
        number, previous, current = number + 1, current, chance.choice(LIMITS)
        bound = max(previous, current, START_WATTS)
        agent.arm(chance.randint(1, 12))
        agent.decide(number, current)
        survived = agent.wait_for_poll(lambda poll: poll.number == number, or_death=True)  # noqa: B023
        if survived:
            agent.kill()
            agent.wait_dead()
        assert max(agent.gpu_watts()) <= bound, f"seed {SEED}, turn {turn}"
        agent.revive(dead=True)
        assert max(agent.gpu_watts()) <= bound, f"seed {SEED}, turn {turn}"
        agent.wait_for_poll(lambda poll: poll.number == number)  # noqa: B023
        assert max(agent.gpu_watts()) <= current
        polls = [poll for poll in agent.controller.polls if poll.number == number]
        assert all(d.ceiling_watts == current for d in polls[0].devices if d.name.startswith("gpu"))
    if ROUNDS % 2:
        agent.hook("end", {**env, "SLURM_JOB_ID": str(1 + (ROUNDS - 1) // 2)})
    agent.controller.decision = NodeDecision(0, {}, {}, {}, 30.0, 0.1)
    agent.come_to_rest()
    assert agent.settings() == before
    assert agent.journal() == []


def test_a_silent_controller_leads_to_the_safe_limits_also_across_kill_9(agent: BudgetAgent) -> None:
    before = agent.settings()
    agent.decide(7, 200.0, lease_s=2.0)
    agent.wait_for_poll(lambda poll: poll.number == 7)
    agent.controller.available.clear()
    agent.kill()
    agent.revive(dead=not agent.wait_dead())
    deadline = time.monotonic() + PATIENCE_S
    while max(agent.gpu_watts()) > SAFE_WATTS:
        assert time.monotonic() < deadline, agent.log()[-2000:]
        time.sleep(0.05)
    agent.wait_for_log("safe limits are in force")
    agent.decide(7, 200.0)  # a lease that does not end before the limits are read
    agent.controller.available.set()
    agent.wait_for_poll(lambda poll: poll.number == 7 and not poll.is_safe)
    assert max(agent.gpu_watts()) == 200.0
    agent.controller.decision = NodeDecision(0, {}, {}, {}, 30.0, 0.1)
    agent.come_to_rest()
    assert agent.settings() == before


def test_the_unit_lowers_the_ceilings_of_a_killed_agent_without_a_controller(agent: BudgetAgent) -> None:
    before = agent.settings()
    agent.decide(20, 200.0)
    agent.wait_for_poll(lambda poll: poll.number == 20)
    agent.kill()
    agent.wait_dead()
    assert max(agent.gpu_watts()) == 200.0
    done = agent.run_once("--safe-limits")
    assert (done.returncode, "gpu0: at most 120 W" in done.stdout) == (0, True), done.stderr
    assert agent.gpu_watts() == [SAFE_WATTS] * agent.gpus()
    agent.revive(dead=True)
    agent.wait_for_poll(lambda poll: poll.number == 20 and gpu_ceilings(poll) == [200.0] * agent.gpus())
    assert max(agent.gpu_watts()) == 200.0
    agent.controller.decision = NodeDecision(0, {}, {}, {}, 30.0, 0.1)
    agent.come_to_rest()
    assert agent.settings() == before


@pytest.mark.skipif(not HOOK.exists(), reason="the hook is not built")
def test_the_response_to_a_prolog_does_not_wait_for_the_controller(agent: BudgetAgent) -> None:
    agent.decide(8, 130.0)
    agent.wait_for_poll(lambda poll: poll.number == 8)
    refused = "no decision of the controller"
    times = agent.log().count(refused)
    agent.controller.available.clear()
    agent.wait_for_log(refused, times + 1)  # the answer to an earlier poll would lower the limits again
    env = {**agent.env(90), "SPANK_ENERGY_POLICY": "monitor"}
    assert agent.hook("begin", env, patient=True).returncode == 0
    assert agent.gpu_watts() == [START_WATTS] * agent.gpus()
    agent.hook("end", env, patient=True)
    agent.controller.available.set()
    agent.controller.decision = NodeDecision(0, {}, {}, {}, 30.0, 0.1)
    agent.come_to_rest()
