"""Simple agent that schedules jobs in a simulation, as a baseline for learned agents.

Its decisions are linear functions of features. The weights are fitted by the cross-entropy method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_energy.scheduling.queue import Floats
from slurm_energy.simulations.observation import CLUSTER_FEATURES, JOB_FEATURES, Observation


@dataclass(frozen=True, slots=True)
class LinearAgent:
    """Agent that computes a priority and a thrift for each job.

    A job with a higher priority starts earlier. Thrift, from 0 to 1, states how much the agent prefers
    low energy to a short run time. Both are logistic functions of weighted sums of features of the job
    and of the cluster.

    Attributes:
        weights: one row of weights for the priority and one row for the thrift, shape (2, features). The
            features of the job come first, then the features of the cluster.
    """

    weights: Floats

    @classmethod
    def size(cls, kinds: int) -> int:
        """Return the number of weights that an agent needs for a cluster with `kinds` kinds of nodes.

        The agent schedules jobs in a simulation. It weights features of the jobs and of the cluster.
        """
        return 2 * (len(JOB_FEATURES) + len(CLUSTER_FEATURES) + kinds)

    @classmethod
    def of(cls, vector: Floats) -> LinearAgent:
        """Return a linear scheduling agent with the given weights.

        Args:
            vector: the two rows of `weights`, one after the other.
        """
        return cls(vector.reshape(2, -1))

    def act(self, observation: Observation) -> NDArray[np.float32]:
        """Return the scheduling decision (action) for the observed state of a `SchedulingEnvironment`."""
        jobs, cluster = observation["jobs"], observation["cluster"]
        features = np.concatenate([jobs, np.tile(cluster, (len(jobs), 1))], axis=1)
        action: NDArray[np.float32] = (1 / (1 + np.exp(-features @ self.weights.T))).astype(np.float32)
        return action


def cross_entropy_search(
    cost: Callable[[Floats, Sequence[int]], float],
    size: int,
    *,
    seeds: Sequence[int],
    rounds: int = 15,
    population: int = 24,
    elite: int = 6,
    episodes: int = 3,
    random_seed: int = 0,
    progress: Callable[[int, float], None] = lambda done, best: None,
) -> Floats:
    """Search for a vector of low cost by the cross-entropy method.

    Each round draws vectors from a normal distribution, evaluates all of them on the same few workloads, and
    fits the distribution to the best vectors (the elite). The result is the mean of the elite of the last
    round.

    Args:
        cost: function that returns the cost of a vector. Its arguments are the vector and the seeds of the
            workloads.
        size: length of the vector.
        seeds: seeds of workloads for training.
        rounds: number of rounds.
        population: number of vectors per round.
        elite: number of vectors in the elite, to which the distribution is fitted.
        episodes: number of workloads on which each round evaluates its vectors.
        random_seed: seed of all random numbers.
        progress: function called after each round with the number and the lowest cost of the round.
    """
    random = np.random.default_rng(random_seed)
    mean, deviation = np.zeros(size), np.ones(size)
    for number in range(rounds):
        drawn = random.choice(np.asarray(seeds), min(episodes, len(seeds)), replace=False).tolist()
        vectors = mean + deviation * random.standard_normal((population, size))
        vectors[0] = mean
        costs = np.array([cost(vector, drawn) for vector in vectors])
        best = vectors[np.argsort(costs, kind="stable")[:elite]]
        mean = best.mean(axis=0)
        deviation = best.std(axis=0) + 0.2 / (1 + number)  # noise that falls keeps the search from stopping
        progress(number + 1, float(costs.min()))
    return mean
