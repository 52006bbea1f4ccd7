"""Command `senergy prio`: order of the queue, and the terms from which each score is computed.

The options have the same meaning as those of Slurm's sprio.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from slurm_energy import __version__
from slurm_energy.cli import connection
from slurm_energy.cli.output import add_field_options, emit, emit_fitted, emit_json, note_scope
from slurm_energy.cli.record_query import job_ids
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_OK, NotFoundError, UsageError

if TYPE_CHECKING:
    from slurm_energy.reports.acct.fields import Style

HELP = "order of the queue: place, score and prediction of each job, modelled on sprio"

EPILOG = """\
One row per pending job, in the order in which the jobs are to start. SITE is the site factor that
represents the place. SCORE is the score of the policy; jobs with lower scores start earlier. Each term of
the score has a column: its contribution in favour of the job if the policy adds weighted terms, else its
value; -n shows the value in all cases. The last columns are the predicted time, power and energy and the
source of the prediction.

With a JOBID: the details of this job, the reason for its place, and the jobs directly before and after it.

MISPRED is the factor by which recent jobs of the owner exceeded their predicted times. LOWBOUND is the lower
bound of the predicted time in the order: many short jobs cannot reduce the prediction of a long job below it.

Fields are named as --helpformat lists them, or by sprio's letters: i JOBID, r PARTITION, u USER, Y PRIORITY,
y NORMPRIO, S SITE, N NICE. The letters of Slurm's own factors have no column.

examples:
  senergy prio
  senergy prio 12                              the reason for the place of job 12
  senergy prio -l -u alice,bob                 with account, QOS, tier, nice, shape, reason
  senergy prio -p gpu --sort=-energy           highest predicted energy first
  senergy prio -w                              the policy and its weights
  senergy prio -h -o jobid%-10,place,edp -n    selected columns, without header
  senergy prio -o "%.15i %9r %Y" -S -y         sprio's notation, highest priority first
  senergy prio -P                              output for a script
  senergy prio --json
"""


def configure(parser: CommandParser) -> None:
    """Add the options to `senergy prio`. -h omits the header, as in sprio."""
    parser.epilog = EPILOG
    parser.dashed_values = ("-S", "--sort")
    parser.conflict_handler = "resolve"
    parser.add_argument("job", metavar="JOBID", nargs="?", help="show the details of this job")
    select = parser.add_argument_group("job selection")
    select.add_argument("-j", "--jobs", metavar="JOB,...", action="append", help="12, 12_3, 12_[1-4], 14+0")
    select.add_argument("-u", "--user", metavar="USER,...", help="jobs of these users")
    select.add_argument("-A", "--accounts", metavar="ACCOUNT,...", help="jobs in these accounts")
    select.add_argument("-p", "--partition", metavar="PARTITION,...", help="jobs in these partitions")
    show = parser.add_argument_group("output")
    show.add_argument("-l", "--long", action="store_true", help="more columns")
    show.add_argument("-n", "--norm", action="store_true", help="terms before weighting")
    show.add_argument("-w", "--weights", action="store_true", help="show only the policy and its weights")
    show.add_argument(
        "-o", "--format", metavar="FORMAT", help="columns: FIELD[%%WIDTH],... or sprio's %%.15i %%9r"
    )
    add_field_options(show, short=False)
    show.add_argument(
        "-S",
        "--sort",
        metavar="[-]FIELD,...",
        help="order of rows (default: place); descending: -energy",
    )
    show.add_argument("-h", "--noheader", action="store_true", help="no header, no notes")
    show.add_argument(
        "-P", "--parsable2", action="store_true", help="values separated by |, one unit per column"
    )
    show.add_argument("--json", action="store_true", help="print the controller's response as JSON")
    show.add_argument(
        "--state", action="store_true", help="with --json: also the input of the policy; for operators"
    )
    connection.add_config_option(parser)
    parser.add_argument(
        "-V", "--version", action="version", version=f"senergy {__version__}", help="print the version"
    )


def run(args: argparse.Namespace) -> int:
    """Print the queue as a table, the weights of the score, or the details of one job."""
    if args.helpformat:
        return _print_fields(args.verbose)
    answer = connection.connect(args).get("/v1/priority", query(args))
    jobs: list[Mapping[str, Any]] = answer.get("jobs") or []
    note_scope(answer)
    if args.job:
        _require(args.job, jobs, answer)
    if args.json:
        emit_json(answer)
        return EXIT_OK
    from slurm_energy.reports.acct.fields import Style
    from slurm_energy.reports.queue import queue_page
    from slurm_energy.reports.table import TableLayout

    make = Style.parsable if args.parsable2 else Style
    style = make(time_format=os.environ.get("SLURM_TIME_FORMAT", ""), now=datetime.now())
    if args.weights:
        lines = queue_page.weights_lines(answer)
    elif args.job:
        lines = _page(args.job, jobs, answer, style)
    else:
        rows = queue_page.sort(jobs, args.sort) if args.sort else jobs
        layout = TableLayout(not args.noheader, "|" if args.parsable2 else None, rule=False)
        options = {"columns": args.format, "long": args.long, "norm": args.norm}
        lines = queue_page.queue_lines(rows, style, layout=layout, **options)
    emit_fitted(lines, delimited=args.parsable2)
    if not args.noheader and not args.parsable2:
        requested_names = [
            [name for name in (text or "").split(",") if name] for text in (args.accounts, args.partition)
        ]
        emit_fitted(queue_page.absence_lines(jobs, *requested_names))
        emit_fitted(queue_page.note_lines(answer, time.time()))
    return EXIT_OK


def _print_fields(with_meaning: bool) -> int:
    from slurm_energy.reports.queue.queue_fields import FIELDS
    from slurm_energy.reports.table import field_lines

    emit(field_lines(FIELDS, with_meaning=with_meaning))
    return EXIT_OK


def query(args: argparse.Namespace) -> dict[str, str]:
    """Translate the options into parameters of `GET /v1/priority`.

    Raises:
        UsageError: an invalid job id, or JOBID together with -j.
    """
    if args.state and not args.json:
        raise UsageError("--state: it requires --json", todo="senergy prio --json --state")
    if args.job and args.jobs:
        raise UsageError(
            "JOBID and --jobs: give one of them", todo="senergy prio 12, or senergy prio -j 12,13"
        )
    job_ids_text, name = (args.jobs, "--jobs") if args.job is None else ([args.job], "JOBID")
    values = {
        "job": ",".join(job_ids(",".join(job_ids_text), name)) if job_ids_text else "",
        "user": args.user or "",
        "account": args.accounts or "",
        "partition": args.partition or "",
        "neighbours": "" if args.job is None else "1",
        "state": "1" if args.state else "",
    }
    return {key: value for key, value in values.items() if value}


def _require(job_id: str, jobs: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> None:
    if _rows_of(job_id, jobs):
        return
    off = answer.get("mode") == "off"
    reason = "priority.mode is off" if off else "it is not one of the pending jobs that you may see"
    raise NotFoundError(f"job {job_id}", reason, "squeue shows whether it is pending")


def _rows_of(job_id: str, jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the pending jobs that match a job id, from a list of the queue.

    The array id `12` matches the entry `12_[*]` and tasks such as `12_3`. The task id `12_4` matches
    `12_[*]` if the task has no entry of its own.
    """
    ids = job_ids(job_id)
    arrays = {f"{base}_[*]" for base, task, _ in (item.partition("_") for item in ids) if task}
    whole = [job for job in jobs if {str(job.get("job_id")), _base(job)} & {*ids}]
    tasks = [job for job in jobs if job.get("display_id") in ids]
    return whole or tasks or [job for job in jobs if job.get("display_id") in arrays]


def _base(job: Mapping[str, Any]) -> str:
    """Return the id of the array or heterogeneous job to which a job belongs.

    For any other job, return its own id.
    """
    return str(job.get("display_id")).split("_")[0].split("+")[0]


def _page(
    job_id: str, jobs: Sequence[Mapping[str, Any]], answer: Mapping[str, Any], style: Style
) -> list[str]:
    from slurm_energy.reports.queue.queue_page import job_lines

    lines: list[str] = []
    for job in _rows_of(job_id, jobs):
        positions = {(job.get("place") or 0) + step for step in (-1, 1)} if job.get("place") else set()
        neighbours = [other for other in jobs if other.get("place") in positions]
        lines += [*([""] if lines else []), *job_lines(job, neighbours, answer, style)]
    return lines
