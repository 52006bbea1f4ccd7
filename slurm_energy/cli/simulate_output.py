"""Writing of the output files of `senergy simulate`: results, plots and the HTML page.

The paths of the written files are printed on standard error.
"""

from __future__ import annotations

import argparse
import importlib.util
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli.output_files import check_writable, report_written, write_file
from slurm_energy.errors import UnavailableError, install_extra

if TYPE_CHECKING:
    from slurm_energy.simulator.campaigns.run_result import RunResult
    from slurm_energy.simulator.scenario import Scenario
    from slurm_energy.simulator.workloads.workload_generator import Predict

MAX_DETAILED = 12
"""Maximum number of variants of a sweep whose jobs and power are written and drawn."""
MAX_TABLES = 6
"""Maximum number of variants with a table each; more have one common table."""


def needs_one_table(results: list[tuple[Scenario, list[RunResult]]]) -> bool:
    """Return whether the results of all variants of a scenario are printed in one table.

    This is the case if there are many variants, or if several keys vary.
    """
    return len(results) > MAX_TABLES or len(results[0][0].point) > 1


def write_all(
    scenario: Scenario,
    results: list[tuple[Scenario, list[RunResult]]],
    args: argparse.Namespace,
    predict: Predict | None,
) -> list[dict[str, Any]]:
    """Write the result files and plots of all variants of a scenario.

    Files of jobs and power show the first seed of each policy. In a sweep with more than `MAX_DETAILED`
    variants only the totals are written.

    Returns:
        For each variant, the simulation results by policy. The list is empty if no output needs the results.
    """
    if not (args.out or args.html or args.plots):
        return []
    detailed = len(results) <= MAX_DETAILED
    outcomes = [_write_variant(v, runs, args, predict, detailed=detailed) for v, runs in results]
    if len(results) > 1 and args.out:
        from slurm_energy.simulator.campaigns.sweep_results import run_columns
        from slurm_energy.simulator.results import result_files

        path = args.out / f"sweep.{args.format}"
        result_files.write(run_columns(results), path, args.format)
        report_written(path, f"all {sum(len(runs) for _, runs in results)} simulations as rows")
    if len(results) > 1 and args.plots:
        from slurm_energy.simulator.campaigns.sweep_plots import sweep_figures

        _save(sweep_figures(scenario.sweep, results), args.plots)
    return outcomes if detailed else []


def _write_variant(
    scenario: Scenario,
    results: list[RunResult],
    args: argparse.Namespace,
    predict: Predict | None,
    *,
    detailed: bool,
) -> dict[str, Any]:
    from slurm_energy.simulator.campaigns.campaign import run as simulate
    from slurm_energy.simulator.campaigns.run_result import CampaignTask
    from slurm_energy.simulator.results import result_files as files

    outcomes = {
        name: simulate(scenario, CampaignTask(name, 0), predict)
        for name in (scenario.policy_names if detailed else ())
    }
    kinds = list(scenario.kinds)
    if args.out:
        folder = scenario.variant_folder(args.out)
        for name, outcome in outcomes.items():
            jobs, power = files.job_columns(outcome, kinds), files.power_columns(outcome)
            files.write(jobs, folder / f"jobs-{name}.{args.format}", args.format)
            files.write(power, folder / f"power-{name}.{args.format}", args.format)
        rows: dict[str, list[Any]] = {"policy": [r.policy for r in results]}
        rows["seed"] = [r.seed for r in results]
        rows |= {name: [r.summary.get(name) for r in results] for name in results[0].summary}
        files.write(rows, folder / f"summary.{args.format}", args.format)
        if detailed:
            report_written(folder, f"jobs, power and summary as {args.format}")
    if args.plots and detailed:
        _draw(scenario, results, outcomes, scenario.variant_folder(args.plots))
    return outcomes


def _draw(scenario: Scenario, results: list[RunResult], outcomes: dict[str, Any], folder: Path) -> None:
    from slurm_energy.simulator.results.plots import all_figures
    from slurm_energy.simulator.results.summary_table import means

    _save(all_figures(outcomes, means(results), scenario.budget()), folder)


def _save(figures: dict[str, Any], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png", dpi=110)
    except OSError as error:
        raise UnavailableError(f"{error.filename}", error.strerror or "cannot be written") from None
    report_written(folder, f"{len(figures)} plots")


def write_page(
    scenario: Scenario,
    results: list[tuple[Scenario, list[RunResult]]],
    outcomes: list[dict[str, Any]],
    path: Path,
) -> None:
    """Write one HTML page with all variants of a scenario.

    Args:
        scenario: the scenario with its axes.
        results: each variant with its results.
        outcomes: simulation results by variant and policy; an empty value means that the page shows the
            totals only.
        path: path of the HTML file.
    """
    from slurm_energy.reports import simulation_page, sweep_maps
    from slurm_energy.simulator.campaigns.sweep_results import maps, table_rows
    from slurm_energy.simulator.results.summary_table import means

    notes = list(dict.fromkeys(note for _, runs in results for run in runs for note in run.notes))
    seeds = scenario.schedule.seeds
    axes = scenario.sweep if needs_one_table(results) else ()
    sweep = sweep_maps.SweepSection(
        table_rows(results) if axes else [], [axis.title for axis in axes], maps(axes, results)
    )
    variants = [
        simulation_page.SimulationVariant(variant.label, means(runs), outcome, variant.budget(), seeds, notes)
        for (variant, runs), outcome in zip(results, outcomes, strict=False)
    ]
    policies = list(dict.fromkeys(run.policy for _, runs in results for run in runs))
    text = simulation_page.page(scenario.title, policies, seeds, variants, sweep, notes, datetime.now())
    write_file(path, text)
    report_written(path, "one page")


def check_outputs(args: argparse.Namespace) -> None:
    """Check before a long simulation that its plots can be drawn and its files written.

    Raises:
        UnavailableError: matplotlib is not installed, or a file or folder cannot be written.
    """
    if args.plots and importlib.util.find_spec("matplotlib") is None:
        raise UnavailableError("--plots", "matplotlib is not installed", install_extra("plots"))
    if args.format == "parquet" and args.out and importlib.util.find_spec("pyarrow") is None:
        raise UnavailableError("--format parquet", "pyarrow is not installed", install_extra("parquet"))
    if args.html:
        check_writable(args.html)
