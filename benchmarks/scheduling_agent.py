"""Train the baseline agent of the Gymnasium environment, and compare it with scheduling policies.

python benchmarks/scheduling_agent.py [--rounds 15] [--held-out 30] [--json FILE] [--weights FILE]

The agent is trained on workloads 0 to 999 of a scenario. The agent and the policies are evaluated on other
workloads, with numbers from 10000 on. The benchmark prints the cost, the energy and the mean completion time
in percent of the policy fcfs, with 95 % confidence intervals. The cost is the sum of two ratios. The first
ratio is the energy of the cluster relative to the least energy of the jobs. The second ratio is the time of
the jobs in the system relative to their shortest run times.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy import simulations
from slurm_energy.simulations.environment import SchedulingEnvironment
from slurm_energy.simulations.episode_cost import EpisodeCost
from slurm_energy.simulations.linear_agent import LinearAgent, cross_entropy_search

VALUES = {
    "workload.hours": 3.0,
    "schedule.discipline": "easy",
    "schedule.interval_s": 0.0,
    "schedule.horizon_hours": 0.0,
}
POLICIES = ("fcfs", "sjf", "zeus", "blend", "metis")
FIRST_HELD_OUT = 10_000
Row = tuple[float, float, float]


def of_agent(environment: SchedulingEnvironment, agent: LinearAgent, seed: int) -> Row:
    """Let the trained reinforcement learning agent schedule one workload.

    Return the cost, the energy in kWh, and the mean completion time.
    """
    observation, _ = environment.reset(options={"workload_seed": seed})
    done = False
    information: dict[str, Any] = {}
    while not done:
        observation, _, done, _, information = environment.step(agent.act(observation))
    totals = information["summary"]
    return information["cost"], totals["energy_kwh"], totals["mean_jct_s"]


def of_policy(scenario: simulations.SimulatedScenario, policy: str, seed: int, delay_weight: float) -> Row:
    """Simulate one workload under a scheduling policy and return three figures.

    The figures are the cost (a weighted sum of relative energy and relative delay), the energy in kWh, and
    the mean completion time.
    """
    run = scenario.run(policy, seed)
    cost = EpisodeCost.of(run.result.workload, delay_weight)
    total = cost.total(run.result.energy_joules, run.result.accounts, run.result.end_s)
    return total, run.summary["energy_kwh"], run.summary["mean_jct_s"]


def trained(
    scenario: simulations.SimulatedScenario, rounds: int, delay_weight: float
) -> tuple[LinearAgent, float]:
    """Train a scheduling agent on the scenario. Return the agent and the seconds of CPU time."""
    environment = SchedulingEnvironment(scenario, delay_weight=delay_weight)

    def cost(vector: np.ndarray, seeds: Sequence[int]) -> float:
        agent = LinearAgent.of(vector)
        return float(np.mean([of_agent(environment, agent, seed)[0] for seed in seeds]))

    def progress(done: int, best: float) -> None:
        print(f"round {done} of {rounds}: lowest cost {best:.4f}", file=sys.stderr, flush=True)

    begin = time.process_time()
    size = LinearAgent.size(len(scenario.scenario.kinds))
    vector = cross_entropy_search(cost, size, seeds=range(1000), rounds=rounds, progress=progress)
    return LinearAgent.of(vector), time.process_time() - begin


def relative(rows: np.ndarray, reference: np.ndarray) -> list[tuple[float, float]]:
    """Return the mean change of each metric relative to a reference policy, in percent.

    Each mean comes with the half-width of its 95 % confidence interval. In both arrays, a row is one
    workload and a column is one metric. Equal rows belong to the same workload.
    """
    percent = 100 * (rows / reference - 1)
    half = 1.96 * percent.std(axis=0, ddof=1) / np.sqrt(len(percent))
    return list(zip(percent.mean(axis=0).tolist(), half.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--held-out", type=int, default=30)
    parser.add_argument("--delay-weight", type=float, default=1.0)
    parser.add_argument("--scenario", default="training")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--weights", type=Path, help="file to which the weights of the agent are written")
    args = parser.parse_args()
    scenario = simulations.read(args.scenario).with_values(VALUES)
    agent, seconds = trained(scenario, args.rounds, args.delay_weight)
    print(f"trained in {seconds:.0f} s of processor time, {args.rounds} rounds")
    if args.weights:
        args.weights.write_text(json.dumps(agent.weights.tolist()))
    seeds = range(FIRST_HELD_OUT, FIRST_HELD_OUT + args.held_out)
    environment = SchedulingEnvironment(scenario, delay_weight=args.delay_weight)
    table = {
        name: np.array([of_policy(scenario, name, seed, args.delay_weight) for seed in seeds])
        for name in POLICIES
    }
    table["agent"] = np.array([of_agent(environment, agent, seed) for seed in seeds])
    print("| | cost | energy | mean completion time |\n|---|---|---|---|")
    results = {}
    for name, rows in table.items():
        results[name] = relative(rows, table["fcfs"])
        cells = [f"{mean:+.1f}±{half:.1f} %" for mean, half in results[name]]
        print(f"| {name} | {' | '.join(cells)} |")
    against_zeus = relative(table["agent"], table["zeus"])
    print("agent against zeus:", ", ".join(f"{mean:+.1f}±{half:.1f} %" for mean, half in against_zeus))
    if args.json:
        args.json.write_text(json.dumps({"against_fcfs": results, "agent_against_zeus": against_zeus}))


if __name__ == "__main__":
    main()
