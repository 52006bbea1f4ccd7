"""`senergy prio`: order of the queue and terms of each score; options mean the same as those of sprio."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from slurm_energy import __version__
from slurm_energy.cli import connection
from slurm_energy.cli.acct import job_ids
from slurm_energy.cli.output import add_field_options, emit, emit_json, note_scope
from slurm_energy.cli.parser import CommandParser
from slurm_energy.errors import EXIT_OK, NotFoundError, UsageError

if TYPE_CHECKING:
    from slurm_energy.reports.fields import Style

HELP = "the order of the queue: each job's place, score and prediction, in sprio's manner"

EPILOG = """\
A row for each pending job, first to start first. SITE is the site factor that stands for the place; SCORE
is the policy's, the lower the earlier. Then a column for each term of the score: what it contributes in the
job's favour where the policy adds up weighted terms, else its value; -n shows values everywhere. Then what
the job is expected to take, and where the prediction comes from.

With a JOBID: that job alone, why it stands where it stands, and the jobs just before and after it.

MISPRED is the factor by which the jobs of the owner outran their predictions, and LOWBOUND the least time
that counts for the order: jobs that cost little cannot push the prediction of a long job below it.

Fields are named as --helpformat lists them, or by sprio's letters: i JOBID, r PARTITION, u USER, Y PRIORITY,
y NORMPRIO, S SITE, N NICE. Letters of Slurm's own factors have no column here.

examples:
  senergy prio
  senergy prio 12                              why job 12 stands where it stands
  senergy prio -l -u alice,bob                 with account, QOS, tier, nice, shape, reason
  senergy prio -p gpu --sort=-energy           the highest predicted energy first
  senergy prio -w                              the policy and its weights
  senergy prio -h -o jobid%-10,place,edp -n    columns of one's own, without header
  senergy prio -o "%.15i %9r %Y" -S -y         as sprio has them: formats of letters, highest priority first
  senergy prio -P                              for a script
  senergy prio --json
"""


def configure(parser: CommandParser) -> None:
    """Add the options to `senergy prio`. As in sprio, -h omits the header."""
    parser.epilog = EPILOG
    parser.dashed_values = ("-S", "--sort")
    parser.conflict_handler = "resolve"
    parser.add_argument("job", metavar="JOBID", nargs="?", help="explain this job")
    select = parser.add_argument_group("which jobs")
    select.add_argument("-j", "--jobs", metavar="JOB,...", action="append", help="12, 12_3, 12_[1-4], 14+0")
    select.add_argument("-u", "--user", metavar="USER,...", help="jobs of these users")
    select.add_argument("-A", "--accounts", metavar="ACCOUNT,...", help="jobs under these accounts")
    select.add_argument("-p", "--partition", metavar="PARTITION,...", help="jobs in these partitions")
    show = parser.add_argument_group("what to show of them")
    show.add_argument("-l", "--long", action="store_true", help="more columns")
    show.add_argument("-n", "--norm", action="store_true", help="terms before they are weighted")
    show.add_argument("-w", "--weights", action="store_true", help="only the policy and its weights")
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
    show.add_argument("-h", "--noheader", action="store_true", help="no names of columns, no notes")
    show.add_argument("-P", "--parsable2", action="store_true", help="values between |, each in one unit")
    show.add_argument("--json", action="store_true", help="print the controller's answer as JSON")
    show.add_argument(
        "--state", action="store_true", help="with --json: also what the policy was given; for operators"
    )
    connection.add_config_option(parser)
    parser.add_argument(
        "-V", "--version", action="version", version=f"senergy {__version__}", help="print the version"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table, the weights or the page of one job."""
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
    from slurm_energy.reports import queue_page
    from slurm_energy.reports.fields import Style
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
    emit(lines)
    if not args.noheader and not args.parsable2:
        asked = [
            [name for name in (text or "").split(",") if name] for text in (args.accounts, args.partition)
        ]
        emit(queue_page.absence_lines(jobs, *asked))
        emit(queue_page.note_lines(answer, time.time()))
    return EXIT_OK


def _print_fields(with_meaning: bool) -> int:
    from slurm_energy.reports.queue_fields import FIELDS
    from slurm_energy.reports.table import field_lines

    emit(field_lines(FIELDS, with_meaning=with_meaning))
    return EXIT_OK


def query(args: argparse.Namespace) -> dict[str, str]:
    """Translate the options into parameters of `GET /v1/priority`.

    Raises:
        UsageError: an invalid job id, or JOBID together with -j.
    """
    if args.state and not args.json:
        raise UsageError("--state: it is for --json", todo="senergy prio --json --state")
    if args.job and args.jobs:
        raise UsageError(
            "JOBID and --jobs: give one of them", todo="senergy prio 12, or senergy prio -j 12,13"
        )
    wanted, name = (args.jobs, "--jobs") if args.job is None else ([args.job], "JOBID")
    values = {
        "job": ",".join(job_ids(",".join(wanted), name)) if wanted else "",
        "user": args.user or "",
        "account": args.accounts or "",
        "partition": args.partition or "",
        "neighbours": "" if args.job is None else "1",
        "state": "1" if args.state else "",
    }
    return {key: value for key, value in values.items() if value}


def _require(wanted: str, jobs: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> None:
    if _named(wanted, jobs):
        return
    off = answer.get("mode") == "off"
    why = "priority.mode is off" if off else "it is not among the pending jobs that you may see"
    raise NotFoundError(f"job {wanted}", why, "squeue tells whether it is pending")


def _named(wanted: str, jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of a job id: array `12` matches the row `12_[*]` and tasks such as `12_3`.

    `12_4` matches `12_[*]` if it has no row of its own.
    """
    ids = job_ids(wanted)
    arrays = {f"{base}_[*]" for base, task, _ in (one.partition("_") for one in ids) if task}
    whole = [job for job in jobs if {str(job.get("job_id")), _base(job)} & {*ids}]
    tasks = [job for job in jobs if job.get("display_id") in ids]
    return whole or tasks or [job for job in jobs if job.get("display_id") in arrays]


def _base(job: Mapping[str, Any]) -> str:
    """Return the id of the array or heterogeneous job that a job belongs to, else its own id."""
    return str(job.get("display_id")).split("_")[0].split("+")[0]


def _page(
    wanted: str, jobs: Sequence[Mapping[str, Any]], answer: Mapping[str, Any], style: Style
) -> list[str]:
    from slurm_energy.reports.queue_page import job_lines

    lines: list[str] = []
    for job in _named(wanted, jobs):
        places = {(job.get("place") or 0) + step for step in (-1, 1)} if job.get("place") else set()
        near = [other for other in jobs if other.get("place") in places]
        lines += [*([""] if lines else []), *job_lines(job, near, answer, style)]
    return lines
