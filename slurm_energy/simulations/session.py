"""Simulation that stops each time the scheduler examines the queue (scheduling pass).

At each stop, a learning agent or a user can inspect the state and choose the order of the jobs.
"""

from __future__ import annotations

from slurm_energy.errors import UsageError
from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Options, Ranking, fault
from slurm_energy.simulator.campaigns.campaign import prepare
from slurm_energy.simulator.campaigns.run_result import CampaignTask
from slurm_energy.simulator.engine import Simulation
from slurm_energy.simulator.results.simulation_result import SimulationResult
from slurm_energy.simulator.scenario import Scenario
from slurm_energy.simulator.simulation_state import SimulationState
from slurm_energy.simulator.workloads.workload import Workload
from slurm_energy.simulator.workloads.workload_generator import Predict


class SimulationSession:
    """Simulation that runs from one scheduling pass to the next.

    Args:
        scenario: the scenario. It must describe a single site.
        policy: policy that ranks the jobs if the caller gives no ranking. The policy also determines whether
            jobs are preempted and whether the budget is kept.
        seed: seed of the random numbers.
        predict: function that predicts run time and power of the jobs that train models; None if the
            scenario has no models.

    Attributes:
        queue: pending jobs of the current pass; None if the simulation has ended.
        result: result of the simulation; None if the simulation has not ended.
        options: options of the policies.
        workload: the jobs.

    Raises:
        EnergyError: the scenario or the policy is wrong.
    """

    def __init__(
        self, scenario: Scenario, policy: str, seed: int = 0, predict: Predict | None = None
    ) -> None:
        if scenario.sites:
            raise UsageError(f"{scenario.path}", "a session simulates one site", "use SimulatedScenario.run")
        prepared = prepare(scenario, CampaignTask(policy, seed), predict)
        self._policy = prepared.policy
        self.options: Options = prepared.settings.options
        self._simulation = Simulation(prepared.workload, scenario.nodes(), prepared.policy, prepared.settings)
        self._steps = self._simulation.steps()
        self.workload: Workload = prepared.workload
        self.queue: Queue | None = None
        self.result: SimulationResult | None = None
        try:
            self.queue = next(self._steps)
        except StopIteration as end:
            self.result = end.value

    def state(self) -> SimulationState:
        """Return the current state of the cluster and of the jobs."""
        return self._simulation.state()

    def policy_ranking(self) -> Ranking:
        """Return the ranking of the current queue by the policy of the session.

        Raises:
            UsageError: the simulation has ended, or the policy failed.
        """
        if self.queue is None:
            raise UsageError("the simulation has ended", todo="begin a new session")
        return self._policy.rank(self.queue, self.options)

    def step(self, ranking: Ranking | None = None) -> Queue | None:
        """Start the jobs that may start under a ranking, and simulate until the next scheduling pass.

        In a scheduling pass, the scheduler examines the queue.

        Args:
            ranking: ranking of `queue`; None uses the ranking by the policy.

        Returns:
            The queue of the next pass; None if the simulation has ended.

        Raises:
            UsageError: the simulation has ended, or the ranking does not fit the queue.
        """
        if self.queue is None:
            raise UsageError("the simulation has ended", todo="begin a new session")
        if ranking is None:
            ranking = self.policy_ranking()
        elif wrong := fault(ranking, self.queue):
            raise UsageError("the ranking", wrong, "see Ranking in slurm_energy.scheduling")
        try:
            self.queue = self._steps.send(ranking)
        except StopIteration as end:
            self.queue, self.result = None, end.value
        return self.queue
