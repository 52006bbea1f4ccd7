"""A scenario that can be simulated from Python, and its results as data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.frames.typed_frame import pandas_module
from slurm_energy.simulations.session import SimulationSession
from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator.campaigns import campaign, sweeps
from slurm_energy.simulator.campaigns.run_result import CampaignTask
from slurm_energy.simulator.campaigns.sweep_axes import axes_of_table
from slurm_energy.simulator.campaigns.sweep_results import run_columns
from slurm_energy.simulator.results.result_files import job_columns, power_columns
from slurm_energy.simulator.results.simulation_result import SimulationResult
from slurm_energy.simulator.scenario import Scenario
from slurm_energy.simulator.workloads.workload import Workload
from slurm_energy.simulator.workloads.workload_generator import Predict


@dataclass(frozen=True)
class SimulatedSchedule:
    """Result of one simulation.

    Attributes:
        policy, seed: name of the simulated policy, and seed of the random numbers.
        result: result with all columns, see `SimulationResult`.
        summary: totals by name, as in `senergy simulate --json`.
        notes: remarks for the user.
        kinds: names of the kinds of nodes.
    """

    policy: str
    seed: int
    result: SimulationResult
    summary: dict[str, Any]
    notes: list[str]
    kinds: tuple[str, ...]

    @property
    def jobs(self) -> Any:
        """Return a data frame with a row per job, as in jobs-POLICY.csv of `senergy simulate --out`."""
        return pandas_module().DataFrame(job_columns(self.result, self.kinds))

    @property
    def power(self) -> Any:
        """Return a data frame of times in seconds, with the watts of the cluster from each time on."""
        return pandas_module().DataFrame(power_columns(self.result))


class SimulatedScenario:
    """A scenario for simulations from Python.

    Args:
        scenario: contents of a scenario file.

    Attributes:
        scenario: contents of the scenario file.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def with_values(self, values: Mapping[str, Any]) -> SimulatedScenario:
        """Return a copy of the scenario with new values of keys, such as `{"workload.load": 0.8}`.

        Raises:
            ConfigError: a key is unknown, or a value is not allowed.
        """
        return SimulatedScenario(replace(sweeps.with_values(self.scenario, dict(values)), label="", point=()))

    def workload(self, seed: int = 0) -> Workload:
        """Return the jobs for one seed as columns."""
        return campaign.workload_of(self.scenario, seed, self._predict())[0]

    def run(self, policy: str, seed: int = 0) -> SimulatedSchedule:
        """Simulate one policy with one seed.

        Raises:
            EnergyError: the policy is unknown, or a file of the scenario is wrong.
        """
        result = campaign.run(self.scenario, CampaignTask(policy, seed), self._predict())
        totals = campaign.summary(self.scenario, result)
        return SimulatedSchedule(policy, seed, result, totals, result.notes, tuple(self.scenario.kinds))

    def compare(
        self,
        policies: Sequence[str] = (),
        seeds: Iterable[int] = (0,),
        *,
        processes: int = 1,
        policy_file: str | Path | None = None,
    ) -> Any:
        """Return the totals of several simulations as a data frame with a row per policy and seed.

        The arguments are those of `sweep`.
        """
        return self.sweep({}, policies, seeds, processes=processes, policy_file=policy_file)

    def sweep(
        self,
        axes: Mapping[str, Sequence[Any] | str],
        policies: Sequence[str] = (),
        seeds: Iterable[int] = (0,),
        *,
        processes: int = 1,
        policy_file: str | Path | None = None,
    ) -> Any:
        """Return the totals for every combination of values. The data frame has one row per simulation.

        Args:
            axes: maps each scenario key that varies to its values, as in `{"workload.load": [0.5, 0.8]}`. A
                range such as `"0.5:1:0.1"` may replace the list. One entry may name several keys, separated
                by commas. Their values then change together. The value of such an entry is a list of lists.
                Each inner list has one value per key, and is one point of the sweep.
            policies: names of policies; empty means the policies of the scenario.
            seeds: seeds of the random numbers.
            processes: number of parallel processes. With more than one process, a site's own policies must be
                in `policy_file`. Policies that the caller has registered are unknown in the other processes.
            policy_file: Python file with a site's own policies; None if the site has no policies of its own.

        Raises:
            EnergyError: a key, value, policy or file is wrong, or there are more than 10,000 simulations.
        """
        pandas = pandas_module()
        try:
            sweep_axes = axes_of_table({key: _listed(values) for key, values in axes.items()})
        except ValueError as error:
            raise UsageError("sweep", str(error), 'such as {"workload.load": [0.5, 0.8]}') from None
        schedule = self.scenario.schedule
        if policies:
            schedule = replace(schedule, policies=list(policies))
        numbers = list(seeds)
        base = replace(
            self.scenario, schedule=replace(schedule, seeds=max(1, len(numbers))), sweep=sweep_axes
        )
        variants = sweeps.variants(base)
        results = []
        for variant in variants:
            tasks = [CampaignTask(name, seed) for name in variant.policy_names for seed in numbers]
            results.append(
                campaign.campaign(
                    variant,
                    tasks,
                    self._predict(),
                    jobs=processes,
                    policy_file=None if policy_file is None else Path(policy_file),
                )
            )
        return pandas.DataFrame(run_columns(list(zip(variants, results, strict=True))))

    def session(self, policy: str = "fcfs", seed: int = 0) -> SimulationSession:
        """Return a simulation that stops at each scheduling pass.

        Args:
            policy: policy that ranks the jobs if the caller gives no ranking.
            seed: seed of the random numbers.
        """
        return SimulationSession(self.scenario, policy, seed, self._predict())

    def _predict(self) -> Predict | None:
        """Return the predictor (oracle) for jobs that train models.

        The result is None if no job of the scenario trains a model.
        """
        if not self.scenario.models:
            return None
        from slurm_energy.simulator.model_predictions import predict

        return predict


def _listed(values: Sequence[Any] | str) -> Any:
    return values if isinstance(values, str) else list(values)


def read(name: str | Path) -> SimulatedScenario:
    """Return a scenario from a file, or a shipped scenario.

    Args:
        name: path of a TOML file, or name of a shipped scenario.

    Raises:
        ConfigError: the file is unreadable or invalid.
    """
    return SimulatedScenario(scenarios.read(str(name)))


def parse(text: str, folder: str | Path = ".") -> SimulatedScenario:
    """Return the scenario that a text describes.

    Args:
        text: TOML text.
        folder: folder to which paths in the text are relative.

    Raises:
        ConfigError: the text is invalid.
    """
    return SimulatedScenario(scenarios.parse(text, Path(folder) / "scenario.toml"))
