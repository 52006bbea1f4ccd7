"""`senergy experiment`: energy, throughput and completion times of the jobs of a time window."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection, record_query
from slurm_energy.cli.output import add_parsable_options, emit_fitted, emit_json
from slurm_energy.errors import EXIT_OK

if TYPE_CHECKING:
    from slurm_energy.protocol.controller_client import ControllerClient
    from slurm_energy.reports.summary import WholeJob

HELP = "throughput, completion times, energy and EDP of the jobs of a time window"
_JOBS_AT_ONCE = 1000
GROUPS = ("cluster", "account", "user", "partition", "policy", "gpu", "tag", "model")

EPILOG = """\
Jobs that ended in the window, one row per group. Default window: from 00:00 today until now; with -j, any
time. A requeued job is one job and includes the energy of its earlier runs. Energy is the energy of jobs,
without idle nodes.

Jobs/h and Makespan run from the first submission of a group's jobs to their last end. JCT is the time from
submission to end, Wait the time from submission to first start, both of completed jobs. EDP is energy times
mean JCT. Terms and definitions are those of senergy simulate, whose job_kwh and job_edp_js exclude idle
nodes too.

--by gpu groups by the requested GPU type, which Slurm's accounting contains if AccountingStorageTRES in
slurm.conf names it (gres/gpu:a100); otherwise the type is "any".

times: as in senergy acct, for example now-7days, 1120, 2026-11-20T08:00

examples:
  senergy experiment                                      my jobs of today
  senergy experiment -a -S now-7days --by account         all users, by account
  senergy experiment -a --by policy --tag exp1            jobs with --energy-tag=exp1
  senergy experiment -a --by tag --tag 'run-*'            one row per tag
  senergy experiment -a -S 2026-10-01 -E 2026-11-01 --by gpu -P   by kind of GPU, for a script
  senergy experiment -a --by user --json --png users.png
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy experiment`."""
    parser.epilog = EPILOG
    select = parser.add_argument_group("job selection")
    record_query.add_selection(select)
    select.add_argument(
        "--tag", metavar="TAG,...", help="jobs with these --energy-tag texts; * and ? are wildcards"
    )
    show = parser.add_argument_group("output")
    show.add_argument(
        "--by",
        metavar="GROUP",
        choices=GROUPS,
        default="cluster",
        help="criterion of the groups: " + ", ".join(GROUPS),
    )
    show.add_argument("-n", "--noheader", action="store_true", help="no title, header and notes")
    add_parsable_options(show)
    show.add_argument(
        "--png",
        metavar="FILE",
        type=Path,
        help="also write a PNG chart of energy, throughput, JCT and EDP by group",
    )
    show.add_argument("--json", action="store_true", help="print one JSON object")
    connection.add_config_option(parser)
    parser.set_defaults(allocations=True, duplicates=True)


def run(args: argparse.Namespace) -> int:
    """Request the records from the controller, compute the totals and print the report."""
    query = record_query.query(args, datetime.now())
    controller = connection.connect(args)
    answer = controller.get("/v1/records", query)
    record_query.note_hidden(answer, query)
    records = answer.get("records", [])
    records += _earlier_runs(controller, query, records)
    from slurm_energy.reports import summary_page
    from slurm_energy.reports.summary import grouped, totals, whole_jobs
    from slurm_energy.reports.usage import AccountedRecord, summarise

    answers = (AccountedRecord.from_json(item) for item in records)
    start, end = (float(query[key]) if key in query else None for key in ("start", "end"))
    jobs = _filter_jobs(whole_jobs(summarise(answers, duplicates=True)), start, end, args.tag)
    report = summary_page.Report(start, end, args.by, grouped(jobs, args.by), totals(jobs))
    if args.png:
        from slurm_energy.reports.plots.summary_png import write_png

        write_png(report, args.png)
    if args.json:
        emit_json(summary_page.document(report) | {"scope": answer.get("scope")})
    else:
        delimiter, trailing = "|" if args.parsable else None, args.parsable == "p"
        lines = summary_page.lines(report, header=not args.noheader, delimiter=delimiter, trailing=trailing)
        emit_fitted(lines, delimited=bool(delimiter))
    return EXIT_OK


def _earlier_runs(
    controller: ControllerClient, query: Mapping[str, str], records: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the records of the earlier runs of requeued jobs, from before the time window.

    A job is included if it has a record in the window but its first run ended earlier. The earlier records
    are needed because the report counts the energy of all runs of a job.

    Args:
        controller: client of the controller.
        query: parameters of the request for the window.
        records: records in the window.
    """
    if "start" not in query:
        return []
    record_ids = {record["record_id"] for record in records}
    started = {record["job_id"] for record in records if not record.get("restart_count")}
    jobs = sorted({record["job_id"] for record in records} - started)
    earlier: list[dict[str, Any]] = []
    for first in range(0, len(jobs), _JOBS_AT_ONCE):
        job_ids = jobs[first : first + _JOBS_AT_ONCE]
        before = {key: value for key, value in query.items() if key != "start"}
        before |= {"end": query["start"], "job": ",".join(map(str, job_ids))}
        earlier += controller.get("/v1/records", before).get("records", [])
    return [
        record for record in earlier if record["job_id"] in jobs and record["record_id"] not in record_ids
    ]


def _filter_jobs(
    jobs: Iterable[WholeJob], start: float | None, end: float | None, tags: str | None
) -> list[WholeJob]:
    """Return the jobs that ended between `start` and `end` and have one of the tags."""
    patterns = tags.split(",") if tags else None

    def is_selected(job: WholeJob) -> bool:
        in_time = (start is None or job.end >= start) and (end is None or job.end < end)
        tag = job.last.first.tag or ""
        return in_time and (patterns is None or (bool(tag) and any(fnmatchcase(tag, p) for p in patterns)))

    return [job for job in jobs if is_selected(job)]
