"""Campaigns, which simulate a scenario many times in parallel.

A campaign runs one simulation for each policy and seed, and stores the results in a cache.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.scheduling import check_weights, load_file, policy
from slurm_energy.scheduling.policy_guard import forget_calls, observed_calls
from slurm_energy.scheduling.registry import Policy
from slurm_energy.signals import SignalName
from slurm_energy.simulator import engine
from slurm_energy.simulator.campaigns.input_notes import input_notes
from slurm_energy.simulator.campaigns.result_cache import ResultCache
from slurm_energy.simulator.campaigns.run_result import CampaignTask, RunResult
from slurm_energy.simulator.campaigns.workload_parts import part_notes, part_of_workload
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.deferral.deferral_schema import mark_jobs, missing_file, signal_feed, split_policy
from slurm_energy.simulator.deferral.signal_costs import signal_costs
from slurm_energy.simulator.inputs import LoadedWorkload, WorkloadFormat, read_workload
from slurm_energy.simulator.kernels import column_engine, fast_path
from slurm_energy.simulator.power.step_function import integral_of_product, read_steps
from slurm_energy.simulator.results.run_notes import series_notes
from slurm_energy.simulator.results.simulation_result import SimulationResult
from slurm_energy.simulator.scenario import Scenario
from slurm_energy.simulator.scenario_schema import WorkloadSection
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.sites.site_simulation import simulate_sites
from slurm_energy.simulator.workloads.fitting_shapes import keep_fitting_shapes
from slurm_energy.simulator.workloads.offered_load import with_load
from slurm_energy.simulator.workloads.workload import Workload
from slurm_energy.simulator.workloads.workload_generator import Predict, generate
from slurm_energy.worker_processes import end_with_parent, process_pool

_JOULES_PER_MWH, _JOULES_PER_KWH = 3.6e9, 3.6e6


def tasks(scenario: Scenario) -> list[CampaignTask]:
    """Return the simulations of a campaign: one for each pair of a policy and a seed.

    The order is by policy, then by seed.
    """
    seeds = range(scenario.schedule.seeds)
    return [CampaignTask(name, seed) for name in scenario.policy_names for seed in seeds]


def workload_of(
    scenario: Scenario, seed: int, predict: Predict | None
) -> tuple[Workload, LoadedWorkload | None]:
    """Return the jobs that one repetition of a scenario simulates.

    Args:
        scenario: the scenario.
        seed: seed of the random numbers of this repetition. If the scenario uses only a part of a workload
            file, the seed also selects the part: it is the number of the part.
        predict: function of the predictor (oracle) for jobs that train models. It may be None if the
            scenario has no models.

    Returns:
        Two values: the jobs, and the loaded workload file together with the problems found in it.
        The second value is None if the scenario names no workload file.
    """
    section = scenario.workload
    loaded = _load(scenario, seed) if scenario.workload_files() else None
    if loaded is not None and not scenario.models:
        jobs = part_of_workload(loaded.workload, section.part_jobs, seed)
    else:
        assert predict is not None
        trace = None if loaded is None else part_of_workload(loaded.workload, section.part_jobs, seed)
        jobs = generate(scenario, seed, predict, trace)
    if section.load:
        jobs = with_load(jobs, np.array([kind.nodes * kind.units for kind in scenario.nodes()]), section.load)
    return jobs, loaded


def _load(scenario: Scenario, seed: int) -> LoadedWorkload:
    kinds, how = list(scenario.kinds), format_of(scenario.workload)
    return read_workload(scenario.workload_files(), kinds, how, selection=scenario.trace, seed=seed)


def format_of(section: WorkloadSection) -> WorkloadFormat:
    """Return the format of a scenario's workload files."""
    return WorkloadFormat(
        form=section.format,
        renamed=section.columns,
        watts_per_unit=section.watts_per_unit,
        units=section.sacct_units,
        time_scale=section.time_scale,
        appended=section.append,
        max_rows=section.max_rows,
    )


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """Input of one simulation.

    Attributes:
        workload: the jobs.
        settings: settings of the engine.
        policy: scheduling policy.
        placement: name of the placement policy; empty if the scenario has one site.
        notes: remarks on the workload files and on keys without effect.
    """

    workload: Workload
    settings: ScheduleSettings
    policy: Policy
    placement: str
    notes: list[str]


def prepare(scenario: Scenario, task: CampaignTask, predict: Predict | None = None) -> PreparedRun:
    """Return the input of the simulation that `run` would run with the same arguments."""
    work, loaded = workload_of(scenario, task.seed, predict)
    name, _, placement = task.policy.partition("@")
    ranking, deferral = split_policy(name)
    settings, chosen = scenario.settings(task.seed, deferral), policy(ranking)
    work = mark_jobs(work, scenario.deferral, task.seed)
    if not placement:
        work = keep_fitting_shapes(work, scenario.nodes())
    if placement and settings.deferral:
        raise UsageError(
            f"policy {shown(task.policy)}", "jobs of several sites cannot be deferred", "use +off"
        )
    if settings.deferral and (lacking := missing_file(settings.deferral.policy.name, scenario.signals)):
        raise UsageError(f"policy {shown(task.policy)}", f"needs {lacking} in [signals]")
    if chosen.built_in:
        check_weights(settings.options.weights)
    notes = input_notes(scenario, work, loaded)
    if loaded is not None:
        notes += part_notes(loaded.workload.count, scenario.workload.part_jobs, task.seed)
    return PreparedRun(work, settings, chosen, placement, notes)


def run(scenario: Scenario, task: CampaignTask, predict: Predict | None = None) -> SimulationResult:
    """Simulate one policy of a scenario with one seed.

    Args:
        scenario: the scenario.
        task: the policy and the seed.
        predict: function of the predictor (oracle) for jobs that train models. It may be None if the
            scenario has no models.

    Raises:
        EnergyError: a file or a name in the scenario is wrong.
    """
    prepared = prepare(scenario, task, predict)
    chosen, placement = prepared.policy, prepared.placement
    forget_calls(chosen.name)

    def simulate(work: Workload, kinds: Sequence[NodeKind], until_s: float | None = None) -> SimulationResult:
        settings = prepared.settings if until_s is None else replace(prepared.settings, horizon_s=until_s)
        if fast_path.supports(work, kinds, chosen, settings):
            return fast_path.simulate(work, kinds, settings)
        pays = column_engine.pays(work.count * len(tasks(scenario)))
        if pays and column_engine.supports(work, kinds, chosen, settings):
            return column_engine.simulate(work, kinds, chosen, settings)
        return engine.simulate(work, kinds, chosen, settings)

    if placement:
        outcome = simulate_sites(scenario, prepared.workload, placement, task.seed, simulate)
    else:
        outcome = simulate(prepared.workload, scenario.nodes())
    calls = observed_calls(chosen.name).notes(chosen.name)
    series = series_notes(scenario, outcome.end_s)
    return replace(outcome, notes=[*prepared.notes, *outcome.notes, *series, *calls])


def summary(scenario: Scenario, outcome: SimulationResult) -> dict[str, Any]:
    """Return the totals of a simulation by name. Cost and carbon are included if their series are given."""
    totals: dict[str, Any] = outcome.summary() | outcome.site_totals
    times, watts = outcome.power
    totals |= _signal_totals(scenario, outcome)
    if scenario.power.price_file:
        price = read_steps(scenario.beside(scenario.power.price_file), "price")
        totals["cost"] = integral_of_product(times, watts, price) / _JOULES_PER_MWH
    if scenario.power.carbon_file:
        carbon = read_steps(scenario.beside(scenario.power.carbon_file), "gco2_per_kwh")
        totals["carbon_kg"] = integral_of_product(times, watts, carbon) / _JOULES_PER_KWH / 1e3
    return totals


def _signal_totals(scenario: Scenario, outcome: SimulationResult) -> dict[str, Any]:
    """Return the cost and the emissions of a simulation, computed from the series of `[signals]`.

    The series are the price and the carbon intensity. A value is None if its series is unknown for a part
    of the time.
    """
    feed = signal_feed(scenario.signals, str(scenario.path), scenario.beside)
    totals: dict[str, Any] = {}
    for signal, cluster, jobs, factor in (
        (SignalName.PRICE, "cost", "job_cost", 1.0),
        (SignalName.CARBON, "carbon_kg", "job_carbon_kg", 1e-3),
    ):
        costs = signal_costs(outcome, feed, signal)
        if costs is not None:
            for name, value in ((cluster, costs.cluster), (jobs, float(np.sum(costs.jobs)))):
                totals[name] = None if math.isnan(value) else value * factor
    return totals


def campaign(
    scenario: Scenario,
    tasks: Sequence[CampaignTask],
    predict: Predict | None = None,
    *,
    jobs: int | None = None,
    folder: Path | None = None,
    policy_file: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[RunResult]:
    """Run all simulations of a campaign that have no stored result.

    Args:
        scenario: the scenario.
        tasks: policies and seeds to simulate.
        predict: function that predicts the jobs that train models. The function must be importable by name,
            because worker processes import it. None if the scenario has no models.
        jobs: number of parallel processes; None means one process per core.
        folder: folder of the `ResultCache`. If None, results are not stored.
        policy_file: Python file with scheduling policies that the user has written. Every process loads the
            file. None if there are no such policies.
        progress: function called with the number of finished and of all simulations.

    Returns:
        One result per task, in the order of the tasks.
    """
    cache = ResultCache(folder, scenario, policy_file)
    entries = [(scenario, task, cache) for task in tasks]
    return _run_missing(entries, predict, jobs or os.cpu_count() or 1, policy_file, progress)


def sweep(
    variants: Sequence[Scenario],
    predict: Predict | None = None,
    *,
    jobs: int | None = None,
    folder: Path | None = None,
    policy_file: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[RunResult]]:
    """Simulate all variants of a scenario with all their policies and seeds.

    All simulations share one pool of processes.

    Args:
        variants: the variants, as `sweeps.variants` returns them.
        predict: function of the predictor (oracle) for jobs that train models, as for `campaign`.
        jobs: number of parallel processes; None means one process per core.
        policy_file: Python file with a site's own policies; None if the site has none.
        progress: function called with the number of finished simulations and the number of all simulations.
        folder: output folder, in which each variant has its own `ResultCache`. If None, results are not
            stored.

    Returns:
        The results of each variant.
    """
    entries = []
    for variant in variants:
        cache = ResultCache(variant.variant_folder(folder) if folder else None, variant, policy_file)
        entries += [(variant, task, cache) for task in tasks(variant)]
    results = iter(_run_missing(entries, predict, jobs or os.cpu_count() or 1, policy_file, progress))
    return [list(islice(results, len(tasks(variant)))) for variant in variants]


def _run_missing(
    entries: Sequence[tuple[Scenario, CampaignTask, ResultCache]],
    predict: Predict | None,
    jobs: int,
    policy_file: Path | None,
    progress: Callable[[int, int], None],
) -> list[RunResult]:
    """Run the simulations of a campaign that have no stored result, and return all results.

    An entry describes one simulation: the scenario, the task (policy and seed), and the cache in which
    the result is stored. The results are in the order of the entries. A result in the cache is used
    without a new simulation.
    """
    results = [cache.recall(task) for _, task, cache in entries]
    missing = [index for index, result in enumerate(results) if result is None]
    done = len(entries) - len(missing)
    progress(done, len(entries))
    pairs = [entries[index][:2] for index in missing]
    for position, result in _run_all(pairs, predict, jobs, policy_file):
        index = missing[position]
        entries[index][2].keep(result)
        results[index] = result
        done += 1
        progress(done, len(entries))
    return [result for result in results if result is not None]


def _run_all(
    pairs: Sequence[tuple[Scenario, CampaignTask]],
    predict: Predict | None,
    jobs: int,
    policy_file: Path | None,
) -> Iterator[tuple[int, RunResult]]:
    """Simulate each pair of a scenario and a task. Yield the position of the pair and the result.

    Results are yielded in the order in which the simulations finish.
    """
    if jobs == 1 or len(pairs) < 2:
        for position, (scenario, task) in enumerate(pairs):
            yield position, _one(scenario, task, predict)
        return
    with process_pool(min(jobs, len(pairs)), "--jobs", initializer=_prepare, initargs=(policy_file,)) as pool:
        waiting = {pool.submit(_one, *pair, predict): position for position, pair in enumerate(pairs)}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an error, the others need not run


def _prepare(policy_file: Path | None) -> None:
    end_with_parent()
    if policy_file:
        load_file(policy_file)


def _one(scenario: Scenario, task: CampaignTask, predict: Predict | None) -> RunResult:
    outcome = run(scenario, task, predict)
    return RunResult(task.policy, task.seed, summary(scenario, outcome), outcome.notes)
