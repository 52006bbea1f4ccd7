"""`senergy budget`: show limits, power and history of power budgets, and change their limits.

The command also shows planned changes, and explains the effect of budgets on jobs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import (
    add_field_options,
    add_parsable_options,
    emit,
    emit_fitted,
    emit_json,
    note,
    note_scope,
    output_glyphs,
)
from slurm_energy.cli.output_files import check_writable, write_file
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_OK, NotFoundError, UsageError
from slurm_energy.protocol import budget_requests
from slurm_energy.protocol.budget_requests import HistoryQuery, LimitChange, StatusQuery
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion

HELP = "power budgets: limits, power under them, changes, history, and why a job is limited"

EPILOG = """\
A budget limits the power of the cluster, or of a partition, nodes, an account, a user or a QOS. Limits come
from [[budgets]] in the configuration. `set` changes a limit at once and until further notice, or until
--until; only operators (controller.operators) may do so. `set --configured` returns to the configured limit.

Measured is the measured power, committed the power that cannot be exceeded at the limits in force, and capped
the power that the limits take from devices.

times: as in senergy acct, for example now+2hours, 18:00, 2026-12-24T08:00

examples:
  senergy budget show
  senergy budget show site --nodes --jobs
  senergy budget show -o budget,limit,headroom,nextlimit,nextstep -P
  senergy budget set site 250kW --until now+2hours --reason 'grid operator called'
  senergy budget set site --configured
  senergy budget plan --hours 48
  senergy budget history -S now-7days
  senergy budget history site --png site.png --html site.html
  senergy budget explain 12
  senergy budget explain 12_3 --json
"""


def configure(parser: CommandParser) -> None:
    """Add the actions and their options to `senergy budget`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|set|plan|history|explain")
    _configure_show(actions.add_parser("show", help="limits and power under each budget now"))
    _configure_set(actions.add_parser("set", help="change the limit of a budget at once"))
    plan = actions.add_parser("plan", help="coming steps of the limits")
    plan.add_argument("budgets", metavar="BUDGET", nargs="*", help="these budgets (default: all)")
    plan.add_argument(
        "--hours",
        metavar="N",
        type=float,
        default=budget_requests.DEFAULT_PLAN_HOURS,
        help=f"how far ahead, up to {budget_requests.MAX_PLAN_HOURS:.0f} (default 24)",
    )
    _configure_history(actions.add_parser("history", help="power over time, and all changes"))
    explain = actions.add_parser("explain", help="why a job is limited or waits")
    explain.add_argument("job_id", metavar="JOBID", help="12, or 12_3 for a task of an array")
    for action in actions.choices.values():
        action.add_argument("--json", action="store_true", help="print the controller's response as JSON")
        connection.add_config_option(action)


def _configure_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("budgets", metavar="BUDGET", nargs="*", help="these budgets (default: all)")
    parser.add_argument("--nodes", action="store_true", help="also the nodes")
    parser.add_argument("--jobs", action="store_true", help="also the running jobs")
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--format", metavar="FIELD[%WIDTH],...", help="columns; %%-20 left-justified")
    add_field_options(output)
    output.add_argument("-n", "--noheader", action="store_true", help="no header, no notes")
    add_parsable_options(output)


def _configure_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("budget", metavar="BUDGET", help="name of the budget")
    parser.add_argument("watts", metavar="WATTS", nargs="?", help="limit, such as 250000, 250kW or 1.2MW")
    parser.add_argument("--configured", action="store_true", help="return to the configured limit")
    parser.add_argument("--until", metavar="TIME", help="return to the configured limit at this time")
    parser.add_argument("--reason", metavar="TEXT", default="", help="reason, for the audit trail")


def _configure_history(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("budget", metavar="BUDGET", nargs="?", help="this budget (default: all)")
    parser.add_argument(
        "-S", "--starttime", metavar="TIME", default="now-24hours", help="default: now-24hours"
    )
    parser.add_argument("-E", "--endtime", metavar="TIME", default="now", help="default: now")
    parser.add_argument("--changes", action="store_true", help="the changes only")
    parser.add_argument(
        "--png", metavar="FILE", type=Path, help="write a PNG plot instead (needs matplotlib)"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write an HTML page instead")
    parser.add_argument(
        "--points",
        metavar="N",
        type=int,
        default=budget_requests.DEFAULT_POINTS,
        help=f"points per budget, up to {budget_requests.MAX_POINTS} "
        f"(default {budget_requests.DEFAULT_POINTS})",
    )
    parser.add_argument(
        "--ascii", action="store_true", help="ASCII characters only, the default on terminals without UTF-8"
    )


def run(args: argparse.Namespace) -> int:
    """Send the request to the controller and print the response."""
    actions = {"show": _show, "set": _set, "plan": _plan, "history": _history, "explain": _explain}
    actions[args.action](args)
    return EXIT_OK


def _show(args: argparse.Namespace) -> None:
    from slurm_energy.reports.budgets import budget_table
    from slurm_energy.reports.table import TableLayout, check_columns, field_lines

    if args.helpformat:
        emit(field_lines(budget_table.BUDGET_FIELDS, with_meaning=args.verbose))
        return
    check_columns(budget_table.BUDGET_FIELDS, args.format, "--format", budget_table.LISTING)
    response = _status(args, StatusQuery(nodes=args.nodes, jobs=args.jobs))
    if args.jobs:
        note_scope(response)
    if args.json:
        emit_json(response)
        return
    layout = TableLayout(not args.noheader, "|" if args.parsable else None, args.parsable == "p")
    delimited = bool(args.parsable)
    plain = args.noheader or delimited
    if not plain:
        emit_fitted([budget_table.headline(response), ""])
    emit_fitted(budget_table.budget_lines(response, layout, args.format), delimited=delimited)
    if args.nodes:
        emit_fitted(["", *budget_table.node_lines(response.get("nodes") or [], layout)], delimited=delimited)
    if args.jobs:
        emit_fitted(["", *budget_table.job_lines(response.get("jobs") or [], layout)], delimited=delimited)
    if not plain:
        emit_fitted(["note: " + line for line in budget_table.notes(response)])


def _plan(args: argparse.Namespace) -> None:
    if not 0 <= args.hours <= budget_requests.MAX_PLAN_HOURS:
        limit = f"{budget_requests.MAX_PLAN_HOURS:.0f}"
        raise UsageError(f"--hours {args.hours:g}", f"must be from 0 to {limit}")
    response = _status(args, StatusQuery(plan_hours=args.hours))
    if args.json:
        emit_json(response)
        return
    from slurm_energy.reports.budgets import budget_table

    emit_fitted(budget_table.plan_lines(response))


def _status(args: argparse.Namespace, query: StatusQuery) -> dict[str, Any]:
    """Return the state of the requested budgets.

    Raises:
        NotFoundError: no budget is configured, or a requested name is not the name of a budget.
    """
    response = connection.connect(args).get(budget_requests.STATUS_PATH, query.parameters())
    rows = response.get("budgets") or []
    names = [str(row.get("name")) for row in rows]
    if not names:
        why = "none is configured" if response.get("mode") != "off" else "budget.mode is 'off'"
        raise NotFoundError("power budgets", why, "see docs/budgets.md")
    _refuse_unknown(args.budgets, names)
    chosen = [row for row in rows if not args.budgets or row.get("name") in args.budgets]
    return {**response, "budgets": chosen}


def _refuse_unknown(requested: Sequence[str], names: Sequence[str]) -> None:
    for name in requested:
        if name not in names:
            todo = suggestion(name, names) or f"there are {', '.join(names)}"
            raise NotFoundError(f"budget {shown(name)}", "there is no budget of this name", todo)


def _set(args: argparse.Namespace) -> None:
    from slurm_energy.quantities import parse_watts

    if args.configured == (args.watts is not None):
        why = "given together with WATTS" if args.configured else "no limit given"
        raise UsageError("senergy budget set", why, "give WATTS, or --configured")
    if args.configured and args.until:
        raise UsageError("--until", "given together with --configured", "give one of the two")
    watts = None if args.configured else parse_watts(args.watts, "WATTS")
    change = LimitChange(args.budget, watts, _end(args.until), args.reason)
    body = LimitChange.from_json(change.to_json()).to_json()
    response = connection.connect(args).post(budget_requests.SET_PATH, body)
    if response.get("warning"):
        note(str(response["warning"]))
    if args.json:
        emit_json(response)
        return
    from slurm_energy.reports.budgets import budget_table

    emit_fitted([budget_table.change_line(response)])


def _end(text: str | None) -> float | None:
    """Return the Unix time at which a limit set by an operator ends; None without an end.

    Raises:
        UsageError: the text is not a time, or the time is in the past.
    """
    if text is None:
        return None
    from slurm_energy.reports.time_spec import parse_time

    end = parse_time(text, datetime.now(), "--until")
    if end <= time.time():
        raise UsageError(f"--until {shown(text)}", "is in the past", "write such as now+2hours")
    return end


def _history(args: argparse.Namespace) -> None:
    from slurm_energy.reports.time_spec import parse_time

    now = datetime.now()
    begin, end = parse_time(args.starttime, now, "-S"), parse_time(args.endtime, now, "-E")
    if args.endtime.lower() == "now":
        end = now.timestamp()  # parse_time truncates, so that the last changes would be missing
    if end <= begin:
        raise UsageError("-E", "is not after -S", "give other times")
    if not 1 <= args.points <= budget_requests.MAX_POINTS:
        raise UsageError(f"--points {args.points}", f"must be from 1 to {budget_requests.MAX_POINTS}")
    for path in filter(None, (args.png, args.html)):
        check_writable(path)
    query = HistoryQuery(begin, end, args.budget, args.points)
    response = connection.connect(args).get(budget_requests.HISTORY_PATH, query.parameters())
    if args.png:
        from slurm_energy.reports.plots.budget_png import write_png

        write_png(response, begin, end, args.png)
    if args.html:
        from slurm_energy.reports.budgets.page import page

        write_file(args.html, page(response, begin, end, now=now))
    if args.json:
        emit_json(response)
    elif not (args.png or args.html):
        from slurm_energy.reports.budgets.history import change_lines, history_lines

        glyphs = output_glyphs(ascii_only=args.ascii)
        changes = change_lines(response.get("changes") or []) or ["no changes in this time"]
        emit(changes if args.changes else history_lines(response, begin, end, glyphs))


def _explain(args: argparse.Namespace) -> None:
    job_id = budget_requests.explain_job_id({"job_id": args.job_id})
    response = connection.connect(args).get(budget_requests.EXPLAIN_PATH, {"job_id": job_id})
    if args.json:
        emit_json(response)
        return
    from slurm_energy.reports.budgets import budget_table

    emit_fitted(budget_table.explanation_lines(response))
