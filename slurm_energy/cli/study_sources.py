"""Options of `senergy study` that name the source of the data.

The data come from files, or from senergyctld and sacct of the running cluster.
"""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection
from slurm_energy.errors import UsageError

if TYPE_CHECKING:
    from slurm_energy.study.data.jobs_file import LoadedJobs
    from slurm_energy.study.data.kpis import EnergySeries
    from slurm_energy.study.data.source_data import StudySources


_EARLIER_S = 7 * 86400.0
"""Time before a deployment in which jobs that run or wait at its begin may have been submitted."""


def add_options(parser: argparse.ArgumentParser, start: str = "now-35days") -> None:
    """Add the options that name the data.

    Args:
        parser: parser of a subcommand.
        start: default of --starttime, as the help states it.
    """
    data = parser.add_argument_group("data (default: senergyctld and sacct)")
    data.add_argument(
        "--jobs",
        metavar="FILE",
        type=Path,
        action="append",
        help="CSV file, or output of sacct -P; may be repeated",
    )
    data.add_argument(
        "--column",
        metavar="OURS=THEIRS",
        action="append",
        default=[],
        help="name of a column in the CSV file, as submit_s=Submitted",
    )
    data.add_argument(
        "--energy", metavar="FILE", type=Path, help="energy of all nodes: CSV with start_s, end_s, joules"
    )
    data.add_argument("-S", "--starttime", metavar="TIME", help=f"default: {start}")
    data.add_argument("-E", "--endtime", metavar="TIME", help="default: now")
    connection.add_config_option(parser)


def sources(args: argparse.Namespace, timezone: str, deployed_s: float | None = None) -> StudySources:
    """Return the sources of jobs and energy for an energy study, as the options name them.

    Args:
        args: parsed options.
        timezone: time zone of times that files state without a zone.
        deployed_s: start of the deployment in Unix seconds. The data begin a week before the deployment.
            With None, the data begin 35 days ago.

    Raises:
        UsageError: an option is malformed, --column or --energy is given without --jobs, or a time is given
            with --jobs.
    """
    from slurm_energy.study.data.source_data import StudySources

    renamed = dict(_column(text) for text in args.column)
    if not args.jobs:
        for name in ("column", "energy"):
            if getattr(args, name):
                raise UsageError(f"--{name}", "given without --jobs", "give both, or neither")
        window = _window(args, deployed_s)
        # A relative time means a different window on each day. Work on the window of another day must not be
        # continued.
        options = {"start": args.starttime, "end": args.endtime, "day": datetime.now().date().isoformat()}
        return StudySources(lambda: _site(args, *window), {}, options)
    for name in ("starttime", "endtime"):
        if getattr(args, name):
            todo = "leave it out: [scope] begin and end of the objective select days of a file"
            raise UsageError(f"--{name}", "given with --jobs", todo)
    files = {str(path): path for path in args.jobs}
    if args.energy is not None:
        files["energy"] = args.energy
    return StudySources(lambda: _files(args, renamed, timezone), files, {"columns": renamed})


def _site(args: argparse.Namespace, start_s: float, end_s: float) -> tuple[LoadedJobs, EnergySeries | None]:
    from slurm_energy.study.data.site_data import read_site

    data = read_site(connection.connect(args), start_s, end_s)
    return data.jobs, data.energy


def _files(
    args: argparse.Namespace, renamed: dict[str, str], timezone: str
) -> tuple[LoadedJobs, EnergySeries | None]:
    from slurm_energy.study.data.energy_file import read_energy
    from slurm_energy.study.data.jobs_file import LoadedJobs, read_jobs
    from slurm_energy.study.data.jobs_table import concatenated, without_repeated

    loaded = [read_jobs(path, renamed, timezone) for path in args.jobs]
    jobs = concatenated([one.jobs for one in loaded])
    notes = [note for one in loaded for note in one.notes]
    if len(loaded) > 1:
        unique = without_repeated(jobs)
        if left_out := jobs.count - unique.count:
            notes.append(f"{left_out} rows left out: the files overlap and state the same run of a job again")
        jobs = unique
    return LoadedJobs(jobs, notes), None if args.energy is None else read_energy(args.energy)


def _window(args: argparse.Namespace, deployed_s: float | None) -> tuple[float, float]:
    from slurm_energy.reports.time_spec import parse_time

    now = datetime.now()
    end = parse_time(args.endtime or "now", now, "--endtime")
    if deployed_s is not None and not args.starttime:
        start = deployed_s - _EARLIER_S
    else:
        start = parse_time(args.starttime or "now-35days", now, "--starttime")
    if end <= start:
        raise UsageError("--endtime", "is not after --starttime", "give a later time")
    return start, end


def _column(text: str) -> tuple[str, Any]:
    own, equals, name = text.partition("=")
    if not equals or not own or not name:
        raise UsageError(f"--column {text[:40]}", "is not OURS=THEIRS", "such as submit_s=Submitted")
    return own, name
