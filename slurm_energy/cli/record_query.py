"""Options that select energy records, as in sacct.

The module also translates the options into the parameters of the request for the records.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from slurm_energy.cli.output import note_scope
from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.reports.time_spec import format_time, parse_time, start_of_day
from slurm_energy.slurm.hostlist import expand_hostlist

MAX_JOBS = 5000
_BRACKETS = re.compile(r"(?P<base>\d+)_\[(?P<tasks>[0-9,-]+)\](?P<step>\.\w+)?", re.ASCII)


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


def query(args: argparse.Namespace, now: datetime) -> dict[str, str]:
    """Translate the options of a command into parameters of the request `GET /v1/records`.

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
    """Return the users whose jobs are requested, as a comma-separated list; empty means all users.

    Without an option for users, an ordinary user requests only the user's own jobs. All users are
    requested in three cases: the caller is root, jobs are named, or Slurm accounts are named.
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
    ids = expand_array_tasks(text, name)
    for item in ids:
        if not re.fullmatch(r"\d{1,18}([_+]\d{1,18})?(\.\w{1,64})?", item, re.ASCII):
            raise UsageError(
                f"{name}: '{shown(item)}' is not a job id", todo="write 12, 12_3, 14+0 or 12.batch"
            )
    if not 0 < len(ids) <= MAX_JOBS:
        raise UsageError(f"{name}: {len(ids)} job ids", todo=f"give 1 to {MAX_JOBS}")
    return ids


def expand_array_tasks(text: str, name: str = "--jobs") -> list[str]:
    """Split a list of job ids. Replace `12_[1-3,7]` by one id per array task, because sacct does not do so.

    Other items are not checked.
    """
    ids: list[str] = []
    for item in re.split(r",(?![^\[]*\])", text):
        if match := _BRACKETS.fullmatch(item.strip()):
            tasks = expand_hostlist(f"t[{match['tasks']}]", name)
            ids += [f"{match['base']}_{int(task[1:])}{match['step'] or ''}" for task in tasks]
        elif item.strip():
            ids.append(item.strip())
    return ids
