"""Campaigns, which simulate a scenario many times in parallel.

A campaign runs one simulation for each policy and seed, and stores the results in a cache.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy import __version__
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.quantities import shown
from slurm_energy.scheduling import check_weights, load_file, policy
from slurm_energy.scheduling.policy_guard import forget_calls, observed_calls
from slurm_energy.scheduling.registry import Policy
from slurm_energy.signals import SignalName
from slurm_energy.simulator import engine
from slurm_energy.simulator.campaigns.input_notes import input_notes
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
from slurm_energy.simulator.workloads.workload import REQUEST_COLUMNS, SHAPE_COLUMNS, Workload
from slurm_energy.simulator.workloads.workload_generator import Predict, generate
from slurm_energy.worker_processes import end_with_parent, process_pool

_JOB_COLUMNS = (
    *("job_id", "user", "time_limit_s", "slack_s", "checkpointable", "compute_share"),
    *REQUEST_COLUMNS,
)
_JOULES_PER_MWH, _JOULES_PER_KWH = 3.6e9, 3.6e6


@dataclass(frozen=True, slots=True)
class CampaignTask:
    """One simulation of a campaign (the same scenario with several policies and seeds).

    It is given by the name of a scheduling policy and a seed of the random numbers.
    """

    policy: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the file that stores this simulation's result, without the suffix."""
        return f"{self.policy}-{self.seed}"


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of one simulation: totals over all jobs. It contains no data of single jobs.

    Attributes:
        policy: name of the scheduling policy.
        seed: seed of the random numbers.
        summary: totals by name, as `summary` returns them.
        notes: remarks for the user.
    """

    policy: str
    seed: int
    summary: dict[str, Any]
    notes: list[str]


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
        jobs = _part(loaded.workload, section.part_jobs, seed)
    else:
        assert predict is not None
        trace = None if loaded is None else _part(loaded.workload, section.part_jobs, seed)
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
        notes += _part_notes(loaded.workload.count, scenario.workload.part_jobs, task.seed)
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


class ResultCache:
    """Cache of simulation results in a folder, so that an interrupted campaign can resume.

    Without a folder the cache stores nothing. A stored result is valid only for the same release of
    slurm-energy, the same scenario text, the same policy file, and input files of the same size and
    modification time.

    Raises:
        UnavailableError: the folder cannot be created, or a result cannot be written.
    """

    def __init__(self, folder: Path | None, scenario: Scenario, policy_file: Path | None = None) -> None:
        self._folder = folder / "runs" if folder else None
        files = [_file_state(path) for path in (*scenario.input_files(), policy_file) if path is not None]
        text = json.dumps([__version__, asdict(scenario.workload), scenario.text, files])
        self._digest = hashlib.sha256(text.encode()).hexdigest()
        if self._folder:
            with _reported_as_unavailable(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)

    def recall(self, task: CampaignTask) -> RunResult | None:
        """Return the stored result of a task; None if no valid result is stored."""
        if self._folder is None:
            return None
        try:
            data = json.loads((self._folder / f"{task.name}.json").read_bytes())
            return RunResult(**data["result"]) if data["digest"] == self._digest else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, result: RunResult) -> None:
        """Store the result of one simulation atomically; without a folder do nothing."""
        if self._folder is None:
            return
        path = self._folder / f"{result.policy}-{result.seed}.json"
        aside = path.with_suffix(".new")
        with _reported_as_unavailable(path):
            aside.write_text(json.dumps({"digest": self._digest, "result": asdict(result)}))
            aside.replace(path)


@contextmanager
def _reported_as_unavailable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(str(path), error.strerror or str(error), "name a writable folder") from None


def _file_state(path: Path) -> list[Any]:
    """Return the path, size and modification time of a file; only the path if the file cannot be read.

    The path is absolute, because the tasks of a job array get absolute paths instead of the user's.
    """
    name = str(path.absolute())
    try:
        state = path.stat()
    except OSError:
        return [name]
    return [name, state.st_size, state.st_mtime_ns]


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


def _part(work: Workload, jobs: int, seed: int) -> Workload:
    """Return part number `seed` of a workload file, with `jobs` jobs per part.

    Parts are numbered from 0. After the number of the last part, the numbers start again at the first part.
    Times are shifted so that the part starts at 0. If `jobs` is 0 or not below the number of jobs, the whole
    workload is returned.
    """
    if not jobs or jobs >= work.count:
        return work
    start = (seed % (work.count // jobs)) * jobs
    rows, shapes = slice(start, start + jobs), slice(int(work.first[start]), int(work.first[start + jobs]))
    begin_s = work.submit_s[start]
    cut: dict[str, Any] = {name: getattr(work, name)[rows] for name in _JOB_COLUMNS}
    cut |= {name: getattr(work, name)[rows] - begin_s for name in ("submit_s", "deadline_s")}
    cut |= {name: getattr(work, name)[shapes] for name in SHAPE_COLUMNS}
    cut["first"] = work.first[start : start + jobs + 1] - work.first[start]
    return replace(work, names=work.names[rows], **cut)


def _part_notes(count: int, jobs: int, seed: int) -> list[str]:
    """Return remarks on repeated parts of a workload file and on jobs in no part.

    A seed beyond the number of parts repeats a part. The seed of the last part states how many jobs follow.

    Args:
        count: number of jobs in the file.
        jobs: number of jobs per part; 0 means that the file is not divided.
        seed: seed of the simulation.
    """
    if not jobs:
        return []
    parts = max(1, count // jobs)
    omitted = count - parts * jobs
    if seed >= parts:
        return [f"workload.part_jobs: seeds from {parts} on repeat jobs of earlier seeds (jobs: {count})"]
    if seed == parts - 1 and omitted > 0:
        return [f"workload.part_jobs: last jobs of the file that are in no part: {omitted} of {count}"]
    return []
