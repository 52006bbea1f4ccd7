"""`senergy report`: energy, throughput and completion times of a cluster's jobs, modelled on sreport."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import acct, connection
from slurm_energy.cli.output import add_parsable_options, emit, emit_json
from slurm_energy.errors import EXIT_OK

if TYPE_CHECKING:
    from slurm_energy.protocol.controller_client import ControllerClient
    from slurm_energy.reports.summary import WholeJob

HELP = "energy, throughput and completion times of a cluster's jobs, in sreport's manner"
_JOBS_AT_ONCE = 1000
GROUPS = ("cluster", "account", "user", "partition", "policy", "gpu", "tag", "model")

EPILOG = """\
Jobs that ended in the window, one row for each group. Default window: from 00:00 today until now; with -j,
all times. A requeued job is one job; the energy of its earlier runs counts. Energy is that of jobs: what idle
nodes used is not in it.

Jobs/h and Makespan run from the first submission of a group's jobs to their last end. JCT is the time from
submission to end, Wait that to the first start, both of completed jobs. EDP is energy times mean JCT. The
words and definitions are those of senergy simulate, whose job_kwh and job_edp_js leave out idle nodes too.

--by gpu goes by the type that a job asked for, which Slurm's accounting knows if AccountingStorageTRES in
slurm.conf names it (gres/gpu:a100); else "any".

times: as senergy acct has them, for example now-7days, 1120, 2026-11-20T08:00

examples:
  senergy report                                  my jobs of today
  senergy report -a -S now-7days --by account     everybody's, by account
  senergy report -a --by policy --tag exp1        jobs with --energy-tag=exp1
  senergy report -a --by tag --tag 'run-*'        runs side by side
  senergy report -a -S 2026-10-01 -E 2026-11-01 --by gpu -P   by kind of GPU, for a script
  senergy report -a --by user --json --png users.png
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy report`."""
    parser.epilog = EPILOG
    select = parser.add_argument_group("which jobs")
    acct.add_selection(select)
    select.add_argument("--tag", metavar="TAG,...", help="jobs with these --energy-tag texts; * and ? match")
    show = parser.add_argument_group("what to show of them")
    show.add_argument("--by", metavar="GROUP", choices=GROUPS, default="cluster", help=", ".join(GROUPS))
    show.add_argument("-n", "--noheader", action="store_true", help="no title, names and notes")
    add_parsable_options(show)
    show.add_argument(
        "--png", metavar="FILE", type=Path, help="also draw energy, throughput, JCT and EDP of the groups"
    )
    show.add_argument("--json", action="store_true", help="print one JSON object")
    connection.add_config_option(parser)
    parser.set_defaults(allocations=True, duplicates=True)


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    query = acct.query(args, datetime.now())
    controller = connection.connect(args)
    answer = controller.get("/v1/records", query)
    acct.note_hidden(answer, query)
    records = answer.get("records", [])
    records += _earlier_runs(controller, query, records)
    from slurm_energy.reports import summary_page
    from slurm_energy.reports.summary import grouped, totals, whole_jobs
    from slurm_energy.reports.usage import AccountedRecord, summarise

    answers = (AccountedRecord.from_json(item) for item in records)
    start, end = (float(query[key]) if key in query else None for key in ("start", "end"))
    jobs = _chosen(whole_jobs(summarise(answers, duplicates=True)), start, end, args.tag)
    report = summary_page.Report(start, end, args.by, grouped(jobs, args.by), totals(jobs))
    if args.png:
        from slurm_energy.reports.summary_png import write_png

        write_png(report, args.png)
    if args.json:
        emit_json(summary_page.document(report) | {"scope": answer.get("scope")})
    else:
        delimiter, trailing = "|" if args.parsable else None, args.parsable == "p"
        emit(summary_page.lines(report, header=not args.noheader, delimiter=delimiter, trailing=trailing))
    return EXIT_OK


def _earlier_runs(
    controller: ControllerClient, query: Mapping[str, str], records: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the records of requeued jobs from before the window, whose energy counts too."""
    if "start" not in query:
        return []
    known = {record["record_id"] for record in records}
    begun = {record["job_id"] for record in records if not record.get("restart_count")}
    jobs = sorted({record["job_id"] for record in records} - begun)
    found: list[dict[str, Any]] = []
    for at in range(0, len(jobs), _JOBS_AT_ONCE):
        wanted = jobs[at : at + _JOBS_AT_ONCE]
        before = {key: value for key, value in query.items() if key != "start"}
        before |= {"end": query["start"], "job": ",".join(map(str, wanted))}
        found += controller.get("/v1/records", before).get("records", [])
    return [record for record in found if record["job_id"] in jobs and record["record_id"] not in known]


def _chosen(
    jobs: Iterable[WholeJob], start: float | None, end: float | None, tags: str | None
) -> list[WholeJob]:
    """Return the jobs that ended in the window and have one of the tags."""
    patterns = tags.split(",") if tags else None

    def wanted(job: WholeJob) -> bool:
        in_time = (start is None or job.end >= start) and (end is None or job.end < end)
        tag = job.last.first.tag or ""
        return in_time and (patterns is None or (bool(tag) and any(fnmatchcase(tag, p) for p in patterns)))

    return [job for job in jobs if wanted(job)]
