"""Tests of the Gymnasium environment for schedulers that learn.

The tests check the conventions of gymnasium, the rewards, the actions, and the baseline agent.
"""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from slurm_energy import simulations
from slurm_energy.errors import UsageError
from slurm_energy.simulations.episode_cost import EpisodeCost
from slurm_energy.simulations.linear_agent import LinearAgent, cross_entropy_search

gymnasium = pytest.importorskip("gymnasium", reason="the extra gym is not installed")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from slurm_energy.simulations.environment import ID, SchedulingEnvironment  # noqa: E402

VALUES = {"workload.hours": 1.0, "schedule.discipline": "easy", "schedule.interval_s": 0.0}


@pytest.fixture(scope="module")
def scenario():
    return simulations.read("training").with_values(VALUES)


def episode(environment, act, seed):
    """Return the rewards of one episode and the information of its last step."""
    observation, _ = environment.reset(options={"workload_seed": seed})
    rewards, done, information = [], False, {}
    while not done:
        assert environment.observation_space.contains(observation)
        observation, reward, done, truncated, information = environment.step(act(observation))
        assert not truncated
        rewards.append(reward)
    return rewards, information


@pytest.mark.parametrize("discipline", ["easy", "packing"])
def test_gymnasiums_checker_accepts_the_environment(scenario, discipline):
    changed = scenario.with_values({"schedule.discipline": discipline})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*render modes.*")
        check_env(SchedulingEnvironment(changed, visible_jobs=3))
    made = gymnasium.make(ID, scenario=scenario, visible_jobs=2)
    assert made.reset(seed=3)[0]["jobs"].shape == (2, 10)


def test_rewards_sum_to_minus_the_cost_of_the_schedule(scenario):
    environment = SchedulingEnvironment(scenario, visible_jobs=4, delay_weight=2.0)
    rewards, information = episode(environment, lambda _: np.full((4, 2), 0.5, np.float32), 5)
    assert sum(rewards) == pytest.approx(-information["cost"])
    assert information["summary"]["completed"] > 0 and max(rewards) <= 0
    with pytest.raises(UsageError, match="has ended"):
        environment.step(environment.action_space.sample())


@pytest.mark.parametrize(("thrift", "policy"), [(0.0, "sjf"), (0.5, "zeus")])
def test_an_action_can_imitate_a_policy(scenario, thrift, policy):
    """An agent of the Gymnasium environment can reproduce the schedule of a scheduling policy.

    If the agent's actions rank the jobs as the policy ranks them, energy and cost of the schedule are the
    same as with the policy.
    """
    session, environment = scenario.session(policy, 7), SchedulingEnvironment(scenario, visible_jobs=200)
    environment.reset(options={"workload_seed": 7})
    done, information = False, {}
    while not done:
        ranking, queue = session.policy_ranking(), session.queue
        order = ranking.order(queue.jobs.job_id)
        visible = np.lexsort((queue.jobs.job_id, queue.jobs.submit_s))
        place = np.empty(len(order))
        place[order] = np.arange(len(order))
        action = np.full((200, 2), thrift)
        action[: len(order), 0] = 1 - place[visible] / 200
        *_, done, _, information = environment.step(action)
        session.step()
    assert information["summary"]["energy_kwh"] == session.result.summary()["energy_kwh"]
    cost = EpisodeCost.of(session.workload, 1.0)
    result = session.result
    assert information["cost"] == cost.total(result.energy_joules, result.accounts, result.end_s)


def test_episodes_are_repeatable_and_drawn_from_the_seeds(scenario):
    environment = SchedulingEnvironment(scenario, seeds=[3, 4], visible_jobs=2)
    drawn = [environment.reset(seed=1 if number == 0 else None)[1]["workload_seed"] for number in range(8)]
    assert set(drawn) == {3, 4}
    again = [environment.reset(seed=1 if number == 0 else None)[1]["workload_seed"] for number in range(8)]
    assert drawn == again


def test_the_search_lowers_the_cost_of_the_baseline_agent():
    vector = cross_entropy_search(lambda v, _: float(np.sum((v - 1.5) ** 2)), 4, seeds=[1], rounds=25)
    np.testing.assert_allclose(vector, 1.5, atol=0.2)
    agent = LinearAgent.of(np.zeros(LinearAgent.size(2)))
    observation = {"jobs": np.ones((3, 10), np.float32), "cluster": np.ones(5, np.float32)}
    np.testing.assert_allclose(agent.act(observation), 0.5)


def test_the_example_of_the_page_runs(scenario):
    page = (Path(__file__).resolve().parents[2] / "docs/python-api.md").read_text()
    section = page.partition("## An environment")[2]
    (text,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    names = {"scenario": scenario}
    exec(text, names)
    assert names["done"] and names["information"]["cost"] > 0


def test_gymnasium_is_imported_only_with_the_environment():
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from slurm_energy import simulations\n"
        "try:\n    import slurm_energy.simulations.environment\n"
        "except Exception as error:\n    sys.exit(type(error).__name__ + ': ' + str(error))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.startswith("UnavailableError: the environment: gymnasium is not installed")
