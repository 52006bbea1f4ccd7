"""`senergy workload`: contents of a workload file, and its load on a cluster."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli.output import emit_fitted, emit_json
from slurm_energy.errors import EXIT_OK, UnavailableError, UsageError, install_extra
from slurm_energy.quantities import format_duration

if TYPE_CHECKING:
    from slurm_energy.simulator.cluster import NodeKind
    from slurm_energy.simulator.inputs import WorkloadFormat
    from slurm_energy.simulator.scenario_schema import TraceSection

HELP = "jobs of a workload file: period, sizes, run times, load on a cluster, rejected rows"

EPILOG = """\
With --scenario the files are read as the scenario states ([workload] and [trace]), and the load on its
cluster is computed; without FILE, the files of the scenario are read. --units and --nodes describe a cluster
of equal nodes instead. Rejected rows are those that `senergy simulate` skips as well.

examples:
  senergy workload trace.swf
  senergy workload trace.swf --units 4096
  senergy workload --scenario my.toml --json
  sacct -aPX -o JobIDRaw,User,Submit,ElapsedRaw,TimelimitRaw,NNodes > jobs.txt; senergy workload jobs.txt
"""

_ROWS = {
    "units": ("size (units)", "number"),
    "time_s": ("run time", "time"),
    "time_limit_s": ("time limit", "time"),
    "time_per_limit": ("run time / limit", "ratio"),
    "interarrival_s": ("between submissions", "time"),
    "watts_per_unit": ("power (W/unit)", "number"),
    "unit_memory_gib": ("memory (GiB/unit)", "number"),
}
_MAX_CLUSTER = 1_000_000_000
_COLUMNS = ("min", "p25", "median", "mean", "p75", "p95", "max")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy workload`."""
    parser.epilog = EPILOG
    parser.add_argument("files", nargs="*", metavar="FILE", type=Path, help="workload files on one clock")
    parser.add_argument("--scenario", metavar="SCENARIO", help="TOML file, or name of a shipped scenario")
    parser.add_argument("--format", metavar="NAME", help="swf, csv, sacct, sacct-json or senergy")
    parser.add_argument("--units", metavar="N", type=int, help="units of a node of the cluster (default 1)")
    parser.add_argument("--nodes", metavar="N", type=int, help="nodes of the cluster (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the statistics of workload files."""
    try:
        from slurm_energy.simulator.inputs import read_workload
        from slurm_energy.simulator.workloads.workload_statistics import statistics
    except ImportError as error:
        raise UnavailableError(
            "senergy workload", f"needs {error.name}", install_extra("simulation")
        ) from None
    for flag in ("units", "nodes"):
        value = getattr(args, flag)
        if value is not None and not 1 <= value <= _MAX_CLUSTER:
            raise UsageError(f"--{flag}: {value} is not a number from 1 to {_MAX_CLUSTER}")
        if value is not None and args.scenario:
            raise UsageError(f"--{flag}", "is not possible together with --scenario, which has a cluster")
    files, how, kinds, selection = _inputs(args)
    loaded = read_workload(files, [kind.name for kind in kinds], how, selection=selection)
    table = statistics(loaded, kinds)
    if args.json:
        emit_json({"files": [str(path) for path in files], **table})
    else:
        emit_fitted(_lines(files, table))
    return EXIT_OK


def _inputs(
    args: argparse.Namespace,
) -> tuple[list[Path], WorkloadFormat, list[NodeKind], TraceSection | None]:
    """Return what the arguments of `senergy workload` select.

    The result has the workload files, their format, the kinds of nodes of the cluster, and the selection of
    jobs.
    """
    from slurm_energy.simulator import scenario as scenarios
    from slurm_energy.simulator.campaigns.campaign import format_of
    from slurm_energy.simulator.cluster import NodeKind
    from slurm_energy.simulator.inputs import WorkloadFormat

    if args.scenario:
        scenario = scenarios.read(args.scenario)
        files = args.files or scenario.workload_files()
        how, kinds, selection = format_of(scenario.workload), scenario.nodes(), scenario.trace
    else:
        files, how, selection = args.files, WorkloadFormat(), None
        has_cluster = args.units or args.nodes
        kinds = [NodeKind("node", args.nodes or 1, args.units or 1)] if has_cluster else []
    if not files:
        raise UsageError("senergy workload", "no file given", "a workload file, or --scenario with one")
    return files, replace(how, form=args.format or how.form), kinds, selection


def _lines(files: list[Path], table: dict[str, Any]) -> list[str]:
    period = table["period"]
    when = f"{period['begin']} to {period['end']}" if period["begin"] else "on the clock of the file"
    lines = [
        f"files:      {', '.join(map(str, files))}",
        f"jobs:       {table['jobs']}, and {table['rejected']} rejected rows",
        f"submitted:  within {format_duration(period['span_s'])}, {when}",
        f"users:      {table['users']}",
        f"work:       {table['unit_hours']:.1f} unit hours",
    ]
    if table["mean_demand_units"] is not None:
        mean, peak = table["mean_demand_units"], table["peak_demand_units"]
        lines.append(f"demand:     {mean:.1f} units on average, {peak} at once if no job waited")
    if table["outlasting_limit"]:
        lines.append(f"limits:     {table['outlasting_limit']} jobs run longer than their time limit")
    for name in ("partitions", "qos", "licenses"):
        if table[name]:
            more = f" and {len(table[name]) - 10} more" if len(table[name]) > 10 else ""
            lines.append(f"{name + ':':<11} {', '.join(table[name][:10])}{more}")
    return [*lines, *_cluster_lines(table["cluster"]), "", *_tables(table), *_problem_lines(table)]


def _cluster_lines(cluster: dict[str, Any] | None) -> list[str]:
    if cluster is None:
        return []
    load = cluster["offered_load"]
    shown = "unknown, all jobs are submitted at once" if load is None else f"{load:.3f}"
    lines = [f"load:       {shown} on {cluster['units']} units in {cluster['nodes']} nodes"]
    if cluster["too_large_jobs"]:
        lines.append(f"too large:  {cluster['too_large_jobs']} jobs are larger than the cluster")
    return lines


def _tables(table: dict[str, Any]) -> list[str]:
    from slurm_energy.simulator.results.summary_table import aligned

    rows = [["quantity", "jobs", *_COLUMNS]]
    for name, (label, unit) in _ROWS.items():
        values = table["quantities"][name]
        if values is not None:
            rows.append([label, str(values["count"]), *(_cell(values[column], unit) for column in _COLUMNS)])
    size_rows = [["units", "jobs", "jobs %", "work %"]]
    for entry in table["sizes"]:
        low, high = entry["min_units"], entry["max_units"]
        label = str(high) if low == high else f"{low}-{high}"
        shares = (f"{100 * entry['job_share']:.1f}", f"{100 * entry['work_share']:.1f}")
        size_rows.append([label, str(entry["jobs"]), *shares])
    users = [["user", "jobs", "work %"]]
    users += [[u["user"], str(u["jobs"]), f"{100 * u['work_share']:.1f}"] for u in table["busiest_users"]]
    return [*aligned(rows, left=1), "", *aligned(size_rows, left=1), "", *aligned(users, left=1)]


def _cell(value: float, unit: str) -> str:
    if unit == "time":
        return format_duration(value)
    return f"{value:.2f}" if unit == "ratio" else f"{value:g}" if value == int(value) else f"{value:.1f}"


def _problem_lines(table: dict[str, Any]) -> list[str]:
    """Return lines of text about problems in workload files.

    The lines list rejected and doubtful rows. Remarks on the selection of jobs follow.
    """
    lines = [
        f"{'rejected' if entry['rejected'] else 'used':<9} {entry['rows']:>7}  "
        f"{entry['file']}:{entry['line']}: {entry['problem']}"
        for entry in table["problems"]
    ]
    notes = [f"note: {remark}" for remark in table["remarks"]]
    return ["", *lines, *notes] if lines or notes else []
