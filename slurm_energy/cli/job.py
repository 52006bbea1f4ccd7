"""`senergy job`: the energy label of a job on the terminal, as JSON, as PNG or as an HTML page."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit, emit_fitted, emit_json, note, output_glyphs
from slurm_energy.cli.output_files import write_file
from slurm_energy.cli.record_query import job_ids
from slurm_energy.errors import EXIT_OK, EnergyError, NotFoundError, UnavailableError, UsageError
from slurm_energy.protocol import agent_socket

if TYPE_CHECKING:
    from slurm_energy.reports.usage import JobUsage

_MARGIN, _MIN_MARGIN_S = 0.02, 5.0
"""Time shown before and after the jobs: a fraction of their total time, at least some seconds."""

HELP = "energy label of a job, or a comparison of several jobs"

EPILOG = """\
Shows the requested and applied settings, the energy of each component with its source, power over time, and
settings to try next. Several jobs with --html are compared on one page, for example runs of the same work
under different policies. Jobs count as the same work if they ran on the same nodes with the same
--energy-model, else the same tag, else the same name.

examples:
  senergy job 12                         label of job 12
  senergy job 12_3 --html label.html     the label as a self-contained page
  senergy job 12 13 14 --html cmp.html   three runs compared
  senergy job 12 13 --html a.html --budget site   also the power under a budget
  senergy job 12 --png power.png         power over time (needs matplotlib)
  senergy job 12 --json                  all figures, see docs/reference/json.md
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy job`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "jobs", metavar="JOBID", nargs="+", help="12, 12_3 or 14+0; several jobs are shown in succession"
    )
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write an HTML page instead; several jobs are compared"
    )
    parser.add_argument(
        "--png", metavar="FILE", type=Path, help="write a PNG plot of power over time instead"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    parser.add_argument(
        "--ascii", action="store_true", help="ASCII characters only, the default on terminals without UTF-8"
    )
    parser.add_argument("--title", metavar="TEXT", default="", help="with --html: heading of the page")
    parser.add_argument(
        "--note",
        metavar="TEXT",
        action="append",
        default=[],
        help="with --html: remark at the top of the page; may be repeated",
    )
    parser.add_argument(
        "--budget",
        metavar="NAME",
        help="with --html: also the power under this budget while the jobs ran",
    )
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Fetch the records of the jobs and show their labels in the requested form."""
    ids = job_ids(",".join(args.jobs), "JOBID")
    if (args.title or args.note or args.budget) and not args.html:
        raise UsageError("--title, --note, --budget", "they require --html", "add --html FILE")
    if any("." in job_id for job_id in ids):
        raise UsageError("senergy job", "it shows jobs, not steps", "senergy acct -j 12.batch shows a step")
    decisions_by_job: dict[int, list[dict[str, Any]]] = {}
    jobs: list[JobUsage] = []
    scopes: list[str | None] = []
    for job_id in dict.fromkeys(ids):
        try:
            jobs += _fetch(args, job_id, decisions_by_job, scopes)
        except NotFoundError as error:
            if len(ids) == 1 and _is_text(args) and (_still_running(args, job_id) or _deferred(args, job_id)):
                return EXIT_OK
            raise _explained(args, job_id, error) from None
    if args.json:
        from slurm_energy.reports.labels.json_view import document

        emit_json(document(jobs, decisions_by_job, scopes[-1]))
    if args.html:
        from slurm_energy.reports.labels.job_page import page

        budgets = _budget_cards(args, jobs) if args.budget else ()
        config = connection.configuration(args)
        write_file(args.html, page(jobs, args.title, args.note, datetime.now(), config, budgets))
    if args.png:
        from slurm_energy.reports.plots.png import write_png

        if len(jobs) > 1:
            raise UsageError("--png", f"it shows one job, not {len(jobs)}", "use --html to compare")
        write_png(jobs[0], args.png)
    if _is_text(args):
        _print_labels(args, jobs, decisions_by_job)
    return EXIT_OK


def _is_text(args: argparse.Namespace) -> bool:
    """Return whether the command prints text, and neither prints JSON nor writes a file."""
    return not (args.json or args.html or args.png)


def _fetch(
    args: argparse.Namespace,
    job_id: str,
    decisions_by_job: dict[int, list[dict[str, Any]]],
    scopes: list[str | None],
) -> list[JobUsage]:
    """Return the last run of each job that `job_id` selects. The id of an array selects all its tasks.

    Args:
        args: parsed options.
        job_id: the id as the user wrote it.
        decisions_by_job: output; the changes that the queue engine made to each job are added here.
        scopes: output; the field `scope` of the controller's response is appended here.
    """
    from slurm_energy.reports.summary import last_runs
    from slurm_energy.reports.usage import AccountedRecord, summarise

    answer = connection.connect(args).get(f"/v1/jobs/{job_id}", {"duplicates": "1"})
    scopes.append(answer.get("scope"))
    if unnamed := answer.get("unnamed_jobs"):
        note(f"job {job_id}: {unnamed} other jobs affected by the queue engine are not named")
    records = map(AccountedRecord.from_json, answer.get("records", []))
    jobs = last_runs(summarise(records, duplicates=True))
    if not jobs:
        raise NotFoundError(f"job {job_id}", "it has no energy record")
    for decision in answer.get("decisions", []):
        decisions_by_job.setdefault(int(decision["job_id"]), []).append(decision)
    return jobs


def _budget_cards(args: argparse.Namespace, jobs: Sequence[JobUsage]) -> list[dict[str, Any]]:
    """Return charts of the power under the budget `args.budget` while the jobs ran."""
    from slurm_energy.protocol.budget_requests import HISTORY_PATH, HistoryQuery
    from slurm_energy.reports.budgets.page import budget_cards

    begin, end = min(job.start for job in jobs), max(job.end for job in jobs)
    margin_s = max(_MIN_MARGIN_S, _MARGIN * (end - begin))
    begin, end = begin - margin_s, end + margin_s
    query = HistoryQuery(begin, end, args.budget)
    return budget_cards(connection.connect(args).get(HISTORY_PATH, query.parameters()), begin, end)


def _print_labels(
    args: argparse.Namespace, jobs: Sequence[JobUsage], decisions_by_job: dict[int, list[dict[str, Any]]]
) -> None:
    from slurm_energy.reports.acct.fields import Style
    from slurm_energy.reports.labels.terminal_label import label

    glyphs = output_glyphs(ascii_only=args.ascii)
    config = connection.configuration(args)
    style = Style(time_format=os.environ.get("SLURM_TIME_FORMAT", ""), now=datetime.now())
    for number, job in enumerate(jobs):
        if number:
            emit([""])
        decisions = decisions_by_job.get(job.first.job_id, ())
        emit_fitted(label(job, glyphs, style, job.earlier_runs, decisions, config))


def _explained(args: argparse.Namespace, job_id: str, error: NotFoundError) -> NotFoundError:
    """Return a copy of the error with the job's state in Slurm and under the power budgets.

    If Slurm does not answer, the error is returned unchanged.
    """
    from slurm_energy.slurm.job_state import PENDING, RUNNING, read_job_state

    subject, state = f"job {job_id}", read_job_state(job_id)
    if state is None:
        return error
    if not state:
        return NotFoundError(
            subject, "it is unknown to Slurm and has no energy record", "senergy acct lists your jobs"
        )
    if state in PENDING:
        why = f"it has not started ({state}){_budget_clause(args, job_id)}"
        return NotFoundError(subject, why, "its energy record arrives when it ends")
    if state in RUNNING:
        todo = (
            "run senergy job on its node for its energy so far"
            if _is_text(args)
            else "its energy record arrives when it ends"
        )
        return NotFoundError(subject, f"it has not ended ({state}){_budget_clause(args, job_id)}", todo)
    reason = f"it ended ({state}) without an energy record so far"
    return NotFoundError(subject, reason, "see senergy status")


def _still_running(args: argparse.Namespace, job_id: str) -> bool:
    """Print the energy that a job running on this node has used so far.

    Return whether the node runs the job. If the node does not run the job, nothing is printed.
    """
    if not job_id.isdecimal():
        return False
    from slurm_energy.reports.figure_format import with_unit

    path = connection.configuration(args).for_this_node().agent.socket
    try:
        answer = agent_socket.ask_agent(path, {"op": "energy", "job_id": int(job_id)})
    except UnavailableError:
        return False
    parts = answer.get("components")
    if not answer.get("ok") or not isinstance(parts, dict):
        return False
    energies = ", ".join(f"{name} {with_unit(joules, 'J')}" for name, joules in parts.items())
    emit([f"Job {job_id} is still running; energy so far on this node: {energies or 'nothing measured'}."])
    if sentence := _budget_sentence(args, job_id):
        emit([sentence])
    return True


def _deferred(args: argparse.Namespace, job_id: str) -> bool:
    """Print until when and why a pending job is deferred.

    Return False, without output, if the job is not deferred.
    """
    from slurm_energy.reports.acct.fields import Style
    from slurm_energy.reports.queue.deferral_text import deferral_lines

    try:
        jobs = connection.connect(args).get("/v1/priority", {"job": job_id}).get("jobs") or []
    except EnergyError:
        return False
    style = Style(time_format=os.environ.get("SLURM_TIME_FORMAT", ""), now=datetime.now())
    lines = list(dict.fromkeys(line for job in jobs for line in deferral_lines(job, style)))
    if not lines:
        return False
    emit_fitted(
        [f"Job {job_id} has not started. senergy prio {job_id} shows its place in the queue.", *lines]
    )
    return True


def _budget_clause(args: argparse.Namespace, job_id: str) -> str:
    """Return what the power budgets decided about a job, as text for the end of a sentence.

    The text is empty if no decision concerns the job.
    """
    sentence = _budget_sentence(args, job_id)
    return f"; {sentence.removesuffix('.')}" if sentence else ""


def _budget_sentence(args: argparse.Namespace, job_id: str) -> str:
    """Return the decision of power budgets about a job that has not ended, in one sentence.

    The text is empty if no budget concerns the job, or senergyctld does not answer.
    """
    from slurm_energy.protocol.budget_requests import EXPLAIN_PATH

    try:
        answer = connection.connect(args).get(EXPLAIN_PATH, {"job_id": job_id})
    except EnergyError:
        return ""
    return str(answer.get("explanation") or "") if answer.get("budget") else ""
