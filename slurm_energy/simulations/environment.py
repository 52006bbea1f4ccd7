"""Gymnasium environment in which a learning agent schedules jobs. Requires the extra `gym`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import UnavailableError, UsageError, install_extra
from slurm_energy.simulations.episode_cost import EpisodeCost
from slurm_energy.simulations.observation import (
    CLUSTER_FEATURES,
    JOB_FEATURES,
    MAX_VALUE,
    Observation,
    observe,
    ranking_of,
)
from slurm_energy.simulations.session import SimulationSession
from slurm_energy.simulations.simulated_scenario import SimulatedScenario, read

try:
    import gymnasium
except ImportError:
    raise UnavailableError("the environment", "gymnasium is not installed", install_extra("gym")) from None

ID: Final = "SlurmEnergy/Schedule-v0"


class SchedulingEnvironment(gymnasium.Env):
    """Environment that schedules one workload per episode. Each step is one scheduling pass.

    `observation.observe` describes the observation, and `observation.ranking_of` the action. The reward of a
    step is minus the cost that arises until the next pass (see `EpisodeCost`). The sum of all rewards of an
    episode is therefore minus the cost of the schedule.

    Args:
        scenario: the scenario, or its name.
        seeds: seeds of the workloads. Each episode draws one of these seeds.
        visible_jobs: number of pending jobs that the learning agent sees and ranks.
        policy: scheduling policy that ranks all other pending jobs.
        delay_weight: weight of the jobs' time, relative to energy, in the cost.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - the name and type are gymnasium's

    def __init__(
        self,
        scenario: SimulatedScenario | str = "training",
        *,
        seeds: Sequence[int] = tuple(range(1000)),
        visible_jobs: int = 16,
        policy: str = "zeus",
        delay_weight: float = 1.0,
    ) -> None:
        if visible_jobs < 1 or not seeds:
            raise UsageError("the environment", "needs at least one visible job and one seed")
        self._scenario = read(scenario) if isinstance(scenario, str) else scenario
        self._seeds = [int(seed) for seed in seeds]
        self._visible_jobs, self._policy, self._delay_weight = visible_jobs, policy, delay_weight
        kinds = self._scenario.scenario.nodes()
        self._max_watts = max(1.0, sum(kind.nodes * kind.idle_watts for kind in kinds))
        box = gymnasium.spaces.Box
        jobs = (visible_jobs, len(JOB_FEATURES))
        self.observation_space = gymnasium.spaces.Dict(
            {
                "jobs": box(-MAX_VALUE, MAX_VALUE, jobs, np.float32),
                "cluster": box(-MAX_VALUE, MAX_VALUE, (len(CLUSTER_FEATURES) + len(kinds),), np.float32),
            }
        )
        self.action_space = box(0.0, 1.0, (visible_jobs, 2), np.float32)
        self._session: SimulationSession | None = None
        self._cost = EpisodeCost.nothing()
        self._paid = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode (simulated schedule) of the Gymnasium environment.

        Return the first observation and the information dict of gymnasium.

        Args:
            seed: seed of the random numbers that draw workloads. None continues with the current random
                numbers.
            options: `{"workload_seed": N}` selects the workload. With None, the workload is drawn from
                `seeds`.
        """
        super().reset(seed=seed)
        drawn = int(self._seeds[int(self.np_random.integers(len(self._seeds)))])
        workload_seed = int((options or {}).get("workload_seed", drawn))
        self._session = session = self._scenario.session(self._policy, workload_seed)
        self._cost = EpisodeCost.of(session.workload, self._delay_weight)
        self._paid = 0.0
        return self._observation(session), {"workload_seed": workload_seed}

    def step(self, action: NDArray[np.floating]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Rank the pending jobs, simulate until the scheduler runs again, and return the new state.

        The result is that of `step` in gymnasium: observation, reward, two flags for the end of the episode,
        and additional information. At the end of the episode, the additional information contains the totals
        of the simulation as `summary` and the cost as `cost`.
        """
        session = self._session
        if session is None or session.queue is None:
            raise UsageError("the episode has ended", todo="call reset()")
        rest = session.policy_ranking()
        session.step(ranking_of(session.queue, action, session.options, rest))
        cost = self._cost_so_far(session)
        reward, self._paid = self._paid - cost, cost
        info: dict[str, Any] = {}
        if session.result is not None:
            info = {"summary": session.result.summary(), "cost": cost}
        return self._observation(session), reward, session.queue is None, False, info

    def _cost_so_far(self, session: SimulationSession) -> float:
        if session.result is not None:
            result = session.result
            return self._cost.total(result.energy_joules, result.accounts, result.end_s)
        state = session.state()
        return self._cost.total(state.energy_joules, state.accounts, state.now_s)

    def _observation(self, session: SimulationSession) -> Observation:
        if session.queue is None:
            return {name: np.zeros(space.shape, np.float32) for name, space in self.observation_space.items()}
        return observe(session.queue, session.state(), self._visible_jobs, self._max_watts)


gymnasium.register(id=ID, entry_point=SchedulingEnvironment)
