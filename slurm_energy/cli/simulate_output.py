"""Output files of `senergy simulate`: results, plots and the HTML page. Each is named on standard error."""

from __future__ import annotations

import argparse
import importlib.util
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli.output_files import check_writable, report_written, write_file
from slurm_energy.errors import UnavailableError, install_extra

if TYPE_CHECKING:
    from slurm_energy.simulator.campaign import RunResult
    from slurm_energy.simulator.scenario import Scenario
    from slurm_energy.simulator.workload_generator import Predict


def write_variant(
    scenario: Scenario,
    results: list[RunResult],
    args: argparse.Namespace,
    predict: Predict | None,
) -> dict[str, Any]:
    """Write result files and plots of one variant of a scenario.

    Files of jobs and power show the first seed of each policy.

    Returns:
        The simulation result of each policy; empty if no file is to be written.
    """
    if not (args.out or args.html or args.plots):
        return {}
    from slurm_energy.simulator import result_files as files
    from slurm_energy.simulator.campaign import CampaignTask
    from slurm_energy.simulator.campaign import run as simulate

    outcomes = {name: simulate(scenario, CampaignTask(name, 0), predict) for name in scenario.policy_names}
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
        report_written(folder, f"jobs, power and summary as {args.format}")
    if args.plots:
        _draw(scenario, results, outcomes, scenario.variant_folder(args.plots))
    return outcomes


def _draw(scenario: Scenario, results: list[RunResult], outcomes: dict[str, Any], folder: Path) -> None:
    from slurm_energy.simulator.plots import all_figures
    from slurm_energy.simulator.summary_table import means

    figures = all_figures(outcomes, means(results), scenario.budget())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(folder / f"{name}.png", dpi=110)
    except OSError as error:
        raise UnavailableError(f"{error.filename}", error.strerror or "cannot be written") from None
    report_written(folder, f"{len(figures)} plots")


def write_page(outputs: list[tuple[Scenario, list[RunResult], dict[str, Any]]], path: Path) -> None:
    """Write one HTML page with all variants of a scenario."""
    from slurm_energy.reports import simulation_page
    from slurm_energy.simulator.summary_table import means

    variants = [
        simulation_page.SimulationVariant(
            scenario.label,
            means(results),
            outcomes,
            scenario.budget(),
            scenario.schedule.seeds,
            list(dict.fromkeys(note for result in results for note in result.notes)),
        )
        for scenario, results, outcomes in outputs
    ]
    write_file(path, simulation_page.page(outputs[0][0].title, variants, datetime.now()))
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
