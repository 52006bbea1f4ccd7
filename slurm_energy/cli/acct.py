"""`senergy acct`: energy of jobs and steps. Options have the meaning of sacct's options of the same name."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from slurm_energy import __version__
from slurm_energy.cli import connection
from slurm_energy.cli.output import (
    add_field_options,
    add_parsable_options,
    emit,
    emit_json,
    emit_verbatim,
    note_scope,
)
from slurm_energy.errors import EXIT_OK, UsageError
from slurm_energy.quantities import shown
from slurm_energy.reports.time_spec import format_time, parse_time, start_of_day
from slurm_energy.slurm.hostlist import expand_hostlist

HELP = "energy of finished jobs, modelled on sacct"
FORMAT_VARIABLE = "SENERGY_ACCT_FORMAT"
MAX_JOBS = 5000
_BRACKETS = re.compile(r"(?P<base>\d+)_\[(?P<tasks>[0-9,-]+)\](?P<step>\.\w+)?", re.ASCII)

EPILOG = """\
Each job is one row, summed over its nodes, with its steps below it. Default window: from 00:00 today until
now; with -j, any time.

Figures include their unit: 17.60kJ. With -p, -P, --noconvert or --units each column has one unit, which its
header names, as in ConsumedEnergy(J), and the figures are plain numbers. A missing figure is printed as
"unknown", and as an empty cell with -p and -P; otherwise an empty cell means that the column does not apply.

times: HH:MM[:SS][AM|PM]  MMDD[YY][-HH:MM[:SS]]  MM/DD[/YY][-HH:MM[:SS]]  MM.DD[.YY][-HH:MM[:SS]]
       YYYY-MM-DD[THH:MM[:SS]]  today  midnight  noon  fika  teatime
       now[{+|-}COUNT[seconds|minutes|hours|days|weeks]]

environment:
  SENERGY_ACCT_FORMAT  default columns
  SLURM_TIME_FORMAT    standard, relative, or a strftime format
  SENERGY_CONFIG       configuration file

examples:
  senergy acct                                   my jobs of today
  senergy acct -j 12,15_3,20+0 -X                these jobs, without their steps
  senergy acct -S now-7days -o jobid,policy,elapsed,consumedenergy,edp%12
  senergy acct -a -r gpu -S 0101 --total         all users' jobs in partition gpu this year, with sums
  senergy acct -j 12 -nP -o ConsumedEnergyRaw    one number for a script
  senergy acct -S now-1days -s failed,timeout -o ALL -P   every field of jobs that failed
  senergy acct -j 12 --json                      all data, with nodes, settings and steps
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy acct`."""
    parser.epilog = EPILOG
    select = parser.add_argument_group("job selection")
    add_selection(select)
    select.add_argument(
        "-s", "--state", metavar="STATE,...", help="jobs in these states: completed or CD, failed or F, ..."
    )
    select.add_argument("--name", metavar="NAME,...", help="jobs of these names")
    select.add_argument("-X", "--allocations", action="store_true", help="jobs only, no steps")
    select.add_argument(
        "-D",
        "--duplicates",
        action="store_true",
        help="all runs of a requeued job instead of the last run only",
    )
    show = parser.add_argument_group("output")
    show.add_argument(
        "-o",
        "--format",
        metavar="FIELD[%WIDTH],...",
        action="append",
        help="columns; %%20 right-, %%-20 left-justified; ALL: all; see -e",
    )
    show.add_argument("-l", "--long", action="store_true", help="more columns")
    add_field_options(show)
    show.add_argument("-n", "--noheader", action="store_true", help="no header")
    add_parsable_options(show)
    show.add_argument(
        "--delimiter", metavar="TEXT", default="|", help="with -p or -P: delimiter instead of |"
    )
    show.add_argument("--units", metavar="[KMGTP]", help="one prefix for all figures; the headers name it")
    show.add_argument("--noconvert", action="store_true", help="plain numbers in J and W instead of 1.20kJ")
    show.add_argument("--total", action="store_true", help="add a line with the sums of energy")
    show.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document with all data; the other output options are ignored",
    )
    connection.add_config_option(parser)
    parser.add_argument(
        "-V", "--version", action="version", version=f"senergy {__version__}", help="print the version"
    )


def add_selection(select: argparse._ArgumentGroup) -> None:
    """Add the options that select jobs. `query` translates them into request parameters."""
    select.add_argument(
        "-j", "--jobs", metavar="JOB[.STEP],...", action="append", help="12, 12.batch, 12_3, 12_[1-4], 14+0"
    )
    select.add_argument(
        "-u", "--user", "--uid", metavar="USER,...", dest="user", help="jobs of these users or uids"
    )
    select.add_argument("-a", "--allusers", action="store_true", help="jobs of all users that you may see")
    select.add_argument(
        "-A",
        "--accounts",
        metavar="ACCOUNT,...",
        help="jobs in these accounts, of all users that you may see",
    )
    select.add_argument("-r", "--partition", metavar="PARTITION,...", help="jobs in these partitions")
    select.add_argument(
        "-N", "--nodelist", metavar="NODES", help="jobs that ran on any of these nodes: n[1-4],n7"
    )
    select.add_argument(
        "-S", "--starttime", metavar="TIME", help="jobs that ran after this time (default: 00:00 today)"
    )
    select.add_argument(
        "-E", "--endtime", metavar="TIME", help="jobs that ran before this time (default: now)"
    )


def run(args: argparse.Namespace) -> int:
    """Request the records from the controller and print them as a table or as a JSON document."""
    from slurm_energy.reports.fields import DEFAULT_FORMAT, FIELDS, LONG_FORMAT, Style
    from slurm_energy.reports.figure_format import DisplayUnits
    from slurm_energy.reports.job_filter import filter_jobs, job_states
    from slurm_energy.reports.table import TableLayout, field_lines, parse_format, table_lines
    from slurm_energy.reports.usage import AccountedRecord, summarise

    if args.helpformat:
        emit(field_lines(FIELDS, with_meaning=args.verbose))
        return EXIT_OK
    now = datetime.now()
    if args.format:
        columns = parse_format(",".join(args.format))
    elif args.long:
        columns = parse_format(LONG_FORMAT)
    elif os.environ.get(FORMAT_VARIABLE):
        columns = parse_format(os.environ[FORMAT_VARIABLE], f"${FORMAT_VARIABLE}")
    else:
        columns = parse_format(DEFAULT_FORMAT)
    make = Style.parsable if args.parsable else Style
    style = make(DisplayUnits.parse(args.units, args.noconvert), os.environ.get("SLURM_TIME_FORMAT", ""), now)
    states = job_states(args.state) if args.state else None
    parameters = query(args, now)
    answer = connection.connect(args).get("/v1/records", parameters)
    answers = (AccountedRecord.from_json(item) for item in answer.get("records", []))
    jobs = filter_jobs(summarise(answers, duplicates=args.duplicates), states, args.name)
    note_hidden(answer, parameters)
    if args.json:
        from slurm_energy.reports.json_view import document

        emit_json(document(jobs, scope=answer.get("scope")))
        return EXIT_OK
    rows = [row for job in jobs for row in (job, *job.steps)]
    layout = TableLayout(not args.noheader, args.delimiter if args.parsable else None, args.parsable == "p")
    # Values are already escaped. The delimiter is chosen by the user and may be a tab.
    (emit_verbatim if args.parsable else emit)(
        table_lines(rows, columns, style, layout, jobs if args.total else None)
    )
    return EXIT_OK


def query(args: argparse.Namespace, now: datetime) -> dict[str, str]:
    """Translate the options into parameters of the request `GET /v1/records`.

    Args:
        args: parsed options.
        now: current local time, for relative times.

    Raises:
        UsageError: a job id, node list or time is invalid, or the window ends before it starts.
    """
    jobs = job_ids(",".join(args.jobs)) if args.jobs else []
    start = parse_time(args.starttime, now, "--starttime") if args.starttime else None
    end = parse_time(args.endtime, now, "--endtime") if args.endtime else None
    if start is None and not jobs:
        start = start_of_day(now)
    if start is not None and (now.timestamp() if end is None else end) < start:
        until = now.timestamp() if end is None else end
        raise UsageError(
            f"--starttime: {format_time(start)} is after the end of the window, {format_time(until)}",
            todo="give an earlier -S or a later -E",
        )
    values = {
        "job": ",".join(jobs),
        "user": _users(args, bool(jobs)),
        "account": args.accounts or "",
        "partition": args.partition or "",
        "node": ",".join(expand_hostlist(args.nodelist, "--nodelist")) if args.nodelist else "",
        "start": "" if start is None else f"{start:.0f}",
        "end": "" if end is None else f"{end:.0f}",
        "steps": "0" if args.allocations else "1",
        "duplicates": "1" if args.duplicates else "0",
    }
    return {key: value for key, value in values.items() if value}


def _users(args: argparse.Namespace, has_jobs: bool) -> str:
    """Return the users whose jobs are requested, as a comma list; empty: all users.

    The default is the caller's own jobs, unless jobs or Slurm accounts are named or the caller is root.
    """
    if args.user:
        return str(args.user)
    if args.allusers or args.accounts or has_jobs or os.geteuid() == 0:
        return ""
    return str(os.geteuid())


def note_hidden(answer: Mapping[str, Any], parameters: Mapping[str, str]) -> None:
    """Print a note if the request covered jobs of other users and the controller left them out."""
    own = parameters.get("user") == str(os.geteuid()) or (
        "user" in parameters and answer.get("scope") == "own"
    )
    if not own and "job" not in parameters:
        note_scope(answer)


def job_ids(text: str, name: str = "--jobs") -> list[str]:
    """Split a list of job ids. `12_[1-3,7]` becomes one id per array task.

    Args:
        text: ids separated by commas.
        name: name of the option or argument, for the error message.

    Raises:
        UsageError: the text is not a list of ids, or has more than 5000 of them.
    """
    ids: list[str] = []
    for item in re.split(r",(?![^\[]*\])", text):
        if match := _BRACKETS.fullmatch(item.strip()):
            tasks = expand_hostlist(f"t[{match['tasks']}]", name)
            ids += [f"{match['base']}_{int(task[1:])}{match['step'] or ''}" for task in tasks]
        elif item.strip():
            ids.append(item.strip())
    for item in ids:
        if not re.fullmatch(r"\d{1,18}([_+]\d{1,18})?(\.\w{1,64})?", item, re.ASCII):
            raise UsageError(
                f"{name}: '{shown(item)}' is not a job id", todo="write 12, 12_3, 14+0 or 12.batch"
            )
    if not 0 < len(ids) <= MAX_JOBS:
        raise UsageError(f"{name}: {len(ids)} job ids", todo=f"give 1 to {MAX_JOBS}")
    return ids
