"""`senergy timeline`: a job as a Chrome trace for Perfetto, and as an HTML page."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.cli import connection
from slurm_energy.cli.record_query import job_ids
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_OK, EnergyError, NotFoundError, UsageError

if TYPE_CHECKING:
    from slurm_energy.cli.timeline_sources import CollectedSources

EVENTS_VARIABLE = "SENERGY_EVENTS_DIR"

HELP = "events, power, signals and findings of a job over time, for Perfetto or as a page"

EPILOG = """\
Writes a Chrome trace, which ui.perfetto.dev, chrome://tracing and other viewers open: lanes by node,
process, GPU and phase, counter tracks of power, clocks and utilisation, and findings as markers.
Events come from the event files that a program wrote with SENERGY_EVENTS_DIR, and from traces of the PyTorch
profiler or other tools in the Chrome format. A job without them is shown with its power and signals.

TIME is a time as sacct reads it, or +DURATION since the start of the job, for example +90s, +10m or +1:30:00.

examples:
  senergy timeline 12                          timeline-12.json.gz from power, signals and findings
  senergy timeline 12 events/                  also the event files in a directory
  senergy timeline 12 events/ trace.json.gz    also a trace of the PyTorch profiler
  senergy timeline 12 events/ --html 12.html   a page of limited size instead, for a quick look
  senergy timeline 12 events/ --from +10m --to +12m --ranks 0-7
  senergy timeline 12 events/ --offline        only the files, without senergyctld
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy timeline` to a parser.

    Options may stand before, between and after the arguments JOBID and PATH.
    """
    parser.epilog = EPILOG
    if isinstance(parser, CommandParser):
        parser.intermixed = True
    parser.add_argument("job", metavar="JOBID", help="12, 12_3 or 14+0")
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        type=Path,
        help=f"event file, profiler trace, or a directory of them (default: ${EVENTS_VARIABLE})",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="trace, compressed if the name ends in .gz (default: timeline-JOBID.json.gz)",
    )
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page instead; with -o also the trace"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument("--from", dest="from_time", metavar="TIME", help="start (default: of the job)")
    parser.add_argument("--to", dest="to_time", metavar="TIME", help="end (default: of the job)")
    parser.add_argument("--ranks", metavar="LIST", help="only these ranks: 0-7,12")
    parser.add_argument("--offline", action="store_true", help="only the files, without senergyctld")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run `senergy timeline`: collect the data of one job and write its timeline."""
    ids = job_ids(args.job, "JOBID")
    if len(ids) != 1 or "." in ids[0]:
        raise UsageError(f"JOBID: '{args.job[:40]}' is not one job", todo="write 12, 12_3 or 14+0")
    trace = args.output or (None if args.html else Path(f"timeline-{ids[0]}.json.gz"))
    for path in (trace, args.html):
        if path and path.exists() and not args.force:
            raise EnergyError(str(path), "exists already", "name another file, or use --force")
    if trace and args.html and trace.absolute() == args.html.absolute():
        raise UsageError("--html and -o", "they name the same file", "name two files")
    from slurm_energy.cli.timeline_output import write_timeline
    from slurm_energy.cli.timeline_sources import collect

    sources = collect(args, ids[0], args.paths or _default_paths())
    _check_any(args, sources)
    write_timeline(args, ids[0], sources, trace)
    return EXIT_OK


def _default_paths() -> list[Path]:
    folder = os.environ.get(EVENTS_VARIABLE)
    return [Path(folder)] if folder and Path(folder).is_dir() else []


def _check_any(args: argparse.Namespace, sources: CollectedSources) -> None:
    if sources.is_empty:
        todo = "name its event files or profiler traces"
        if sources.is_running:
            why = "it runs, and neither its power nor its signals are known so far"
            raise NotFoundError(f"job {args.job}", why, f"try again after the first interval, or {todo}")
        raise NotFoundError(f"job {args.job}", "nothing about its time is known", todo)
