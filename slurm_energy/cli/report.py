"""`senergy report`: energy, CPU time, emissions and cost over time, in the grammar and layout of sreport."""

from __future__ import annotations

import argparse
import os
import pwd
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy import __version__
from slurm_energy.cli import connection
from slurm_energy.cli.output import (
    add_parsable_options,
    emit_fitted,
    emit_json,
    emit_verbatim,
    note,
    note_scope,
)
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_OK, UsageError
from slurm_energy.quantities import shown
from slurm_energy.reports.time_spec import format_time, parse_time
from slurm_energy.safe_text import encodable
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.spelling import suggestion_or_list

if TYPE_CHECKING:
    from slurm_energy.protocol.usage_requests import UsageRequest
    from slurm_energy.reports.utilization.columns import Tres
    from slurm_energy.reports.utilization.grammar import ReportRequest
    from slurm_energy.reports.utilization.lines import Line, SortOrder
    from slurm_energy.reports.utilization.table import CellStyle
    from slurm_energy.reports.utilization.units import ReportUnits
    from slurm_energy.reports.utilization.usage import UsageDocument

HELP = "energy, emissions and cost by account, user, policy and time, modelled on sreport"

EPILOG = """\
reports (any abbreviation that sreport accepts):
  cluster Utilization               energy of jobs, idle and unattributed energy, and their total
  cluster AccountUtilizationByUser  accounts with their users; sums on each level of the hierarchy
  cluster UserUtilizationByAccount  users by account, those with the most CPU time first
  cluster AccountUtilizationByQOS   accounts by quality of service
  cluster UtilizationByPartition, UtilizationByPolicy, UtilizationByTag, UtilizationByGpuKind
  job SizesByAccount                by number of CPUs
  job DeferralSavings               cost and emissions of deferred jobs, and what they would have been at once
  user TopUsage                     the users with the most usage

conditions:
  start=TIME end=TIME    window (default: yesterday); times as in senergy acct
  interval=hour|day|week|month   one block of lines per interval
  format=FIELD[%WIDTH],...       columns; %20 right-, %-20 left-justified
  accounts= users= partitions= nodes= clusters= all_clusters
  tree                   indent the accounts of AccountUtilizationByUser
  group topcount=N       TopUsage: add up a user's accounts; number of users
  grouping=N,... | grouping=individual, flatview acctasparent printjobcount   SizesByAccount
  jobsonly               no lines for idle and unattributed energy and the total of the meters

Energy is spread over the time in which it was used; sreport books the energy of a job into its last hour,
and prints joules divided by 60 unless -t says otherwise. Idle energy and energy that belongs to no job are
lines of their own, which only operators see, so that the lines add up to the meters.

examples:
  senergy report cluster AccountUtilizationByUser start=2026-11-01 end=2026-12-01 tree
  senergy report cluster Utilization start=now-7days interval=day
  senergy report -t MWh user TopUsage topcount=5 group
  senergy report -s energy cluster UserUtilizationByAccount accounts=physics
  senergy report -T cpu,gres/gpu,energy,co2e,cost cluster AccountUtilizationByUser
  senergy report -t Seconds -T energy cluster AccountUtilizationByUser   joules, as sreport
  senergy report cluster UtilizationByPolicy start=1101 --csv > policies.csv
  senergy report -T cpu job SizesByAccount grouping=16,64,256
  senergy report job DeferralSavings start=now-30days end=now   what --energy-slack has saved
  senergy report --html physics.html accounts=physics start=1101 end=1201   a month of an account
  senergy report --html site start=now-30days   pages of the cluster, its accounts and users
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy report`.

    Options may stand before, between and after the positional words of the report.
    """
    parser.epilog = EPILOG
    if isinstance(parser, CommandParser):
        parser.intermixed = True
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="type of report, report, and conditions; see below"
    )
    select = parser.add_argument_group("selection")
    select.add_argument(
        "-a", "--all_clusters", action="store_true", help="all clusters of the controller's database"
    )
    select.add_argument(
        "-M", "--cluster", "--clusters", dest="clusters", metavar="NAME,...", help="these clusters"
    )
    show = parser.add_argument_group("output")
    show.add_argument(
        "-t",
        metavar="UNIT[,UNIT]",
        dest="units",
        help="Seconds, Minutes (default), Hours, Percent, SecPer, MinPer, HourPer for CPU time; J, kJ, MJ, "
        "Wh, kWh (default), MWh for energy; Seconds alone also means J, Hours alone Wh",
    )
    show.add_argument(
        "-T",
        "--tres",
        metavar="NAME,...",
        help="cpu, gres/gpu, energy, co2e, cost, energy/cpu, energy/dram, energy/gpu, energy/other or ALL: "
        "one line for each",
    )
    show.add_argument("-s", "--sort", metavar="ORDER", help="Name, Time (CPU time) or Energy")
    show.add_argument("-n", "--noheader", action="store_true", help="no title, header and notes")
    show.add_argument("-Q", "--quiet", action="store_true", help="no notes")
    add_parsable_options(show)
    show.add_argument("--csv", action="store_true", help="CSV without formulas, for spreadsheets")
    show.add_argument("--json", action="store_true", help="one JSON object with all amounts in base units")
    show.add_argument(
        "--html",
        metavar="PATH",
        type=Path,
        help="write pages instead of a report: with accounts=NAME or users=NAME one file, otherwise a "
        "directory with pages of all accounts and users (default: the last 30 days, by day)",
    )
    connection.add_config_option(parser)
    parser.add_argument(
        "-V", "--version", action="version", version=f"senergy {__version__}", help="print the version"
    )


def run(args: argparse.Namespace) -> int:
    """Request the usage from the controller and print the report."""
    from slurm_energy.reports.utilization import lines as report
    from slurm_energy.reports.utilization.columns import parse_tres, report_columns
    from slurm_energy.reports.utilization.grammar import ReportKind, parse_report
    from slurm_energy.reports.utilization.page import json_document
    from slurm_energy.reports.utilization.units import ReportUnits
    from slurm_energy.reports.utilization.usage import UsageDocument

    if args.html:
        return _write_pages(args)
    request = parse_report(args.words)
    if request.kind is ReportKind.DEFERRAL_SAVINGS:
        from slurm_energy.cli import report_savings

        return report_savings.run(args, request, *report_window(request, datetime.now()))
    units = ReportUnits.parse(args.units) if args.units is not None else ReportUnits()
    tres = parse_tres(args.tres) if args.tres is not None else ()
    _check(request, tres)
    if request.kind is ReportKind.SIZES_BY_ACCOUNT:
        tres = tres or parse_tres("energy")
    sort = _sort_order(args.sort)
    report_columns(request, None, with_tres=bool(args.tres))  # errors before the request
    asked = _usage_request(args, request, datetime.now())
    client = connection.connect(args)
    document = UsageDocument.from_json(client.get("/v1/usage", asked.parameters()))
    with_meter = not tres or any(not one.is_time for one in tres)
    lines = report.report_lines(request, document, sort, with_meter=with_meter)
    notes = _notes(request, document, lines)
    if args.json:
        classes = report.size_classes(request, document)
        emit_json(json_document(request, document, lines, classes, notes))
    else:
        style = _style(args, units, document)
        _print(args, request, document, lines, tres, style)
        if not args.noheader and not args.quiet:
            for text in notes:
                note(text)
    if not args.quiet:
        note_scope(document.data)
    return EXIT_OK


def _write_pages(args: argparse.Namespace) -> int:
    """Execute `senergy report --html`: write the report as HTML pages.

    All positional words of the command line are conditions of the report. None of them is the name of a
    report, as it would be without --html.
    """
    from slurm_energy.cli import report_pages
    from slurm_energy.reports.utilization.grammar import parse_report

    report_pages.check_words(args.words)
    defaults = [word for word in _PAGE_DEFAULTS if not any(map(word.startswith, _keys(args.words)))]
    request = parse_report(["cluster", "AccountUtilizationByUser", *args.words, *defaults])
    asked = _usage_request(args, request, datetime.now())
    return report_pages.write_pages(args, asked, request.accounts, request.users)


_PAGE_DEFAULTS = ("start=now-30days", "interval=day")


def _keys(words: Sequence[str]) -> list[str]:
    return [f"{word.partition('=')[0].lower()}=" for word in words]


def _print(
    args: argparse.Namespace,
    request: ReportRequest,
    document: UsageDocument,
    lines: Sequence[Line],
    tres: Sequence[Tres],
    style: CellStyle,
) -> None:
    from slurm_energy.reports.utilization import lines as report
    from slurm_energy.reports.utilization import page
    from slurm_energy.reports.utilization.columns import report_columns
    from slurm_energy.reports.utilization.grammar import ReportKind
    from slurm_energy.reports.utilization.table import report_table, size_table

    columns = report_columns(request, document, with_tres=bool(args.tres))
    if request.kind is ReportKind.SIZES_BY_ACCOUNT:
        classes = report.size_classes(request, document)
        quantity = None if request.job_count else tres[0]
        table = size_table(lines, columns, document.intervals, classes, quantity, style)
    else:
        table = report_table(lines, columns, document.intervals, tres, style, tree=request.tree)
    header = not args.noheader
    if args.csv:
        text = page.csv_text(table, header=header)
        sys.stdout.write(encodable(text, sys.stdout.encoding))
    elif args.parsable:
        emit_verbatim(page.delimited_lines(table, header=header, trailing=args.parsable == "p"))
    else:
        title = page.title_lines(request, document, tres, style) if header else []
        emit_fitted([*title, *page.text_lines(table, header=header)])


def _check(request: ReportRequest, tres: Sequence[Tres]) -> None:
    """Refuse a combination of report and quantity that `senergy report` cannot show.

    Raises:
        UsageError: the report cannot show the quantity; the message gives the reason.
    """
    from slurm_energy.reports.utilization.grammar import ReportKind

    if request.kind is ReportKind.SIZES_BY_ACCOUNT and len(tres) > 1:
        raise UsageError("-T", "SizesByAccount shows one quantity", "run one report for each quantity")
    if request.kind is ReportKind.UTILIZATION and any(one.is_time for one in tres):
        why = "the time for which nodes were idle, down or planned is known to sreport only"
        raise UsageError("-T: Utilization has no CPU or GPU time", why, "run sreport cluster Utilization")
    if request.job_count and request.nodes:
        raise UsageError(
            "nodes=: no number of jobs", "jobs are not counted by node", "leave out printjobcount"
        )


def _sort_order(text: str | None) -> SortOrder | None:
    from slurm_energy.reports.utilization.lines import SortOrder

    if text is None:
        return None
    for order in SortOrder:
        if text and order.lower().startswith(text.lower()):
            return order
    todo = suggestion_or_list(text, [*SortOrder])
    raise UsageError(f"-s: '{shown(text)}' is not an order", todo=todo)


def report_window(request: ReportRequest, now: datetime) -> tuple[float, float]:
    """Return start and end of the window of a report in Unix seconds; yesterday by default.

    Raises:
        UsageError: a time is invalid, or the window ends before it starts.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    start = (midnight - timedelta(days=1)).timestamp()
    end = midnight.timestamp()
    if request.start:
        start = parse_time(request.start, now, "start=")
    if request.end:
        end = min(parse_time(request.end, now, "end="), now.timestamp())
    elif start >= end:
        end = now.timestamp()
    if not 0 <= start < end:
        raise UsageError(
            f"start=: {format_time(start)} is not before the end of the window, {format_time(end)}",
            todo="write an earlier start= or a later end=",
        )
    return start, end


def _usage_request(args: argparse.Namespace, request: ReportRequest, now: datetime) -> UsageRequest:
    """Return the query of a report.

    Raises:
        UsageError: a time is invalid, the window ends before it starts, or has too many intervals.
    """
    from slurm_energy.protocol.usage_requests import UsageRequest
    from slurm_energy.reports.utilization.intervals import interval_edges
    from slurm_energy.reports.utilization.lines import dimensions

    start, end = report_window(request, now)
    clusters = (*(args.clusters.split(",") if args.clusters else ()), *request.clusters)
    return UsageRequest(
        interval_edges(start, end, request.interval),
        dimensions(request),
        tuple(name for name in clusters if name),
        args.all_clusters or request.all_clusters,
        tuple(expand_hostlist(request.nodes, "nodes=")) if request.nodes else (),
        request.job_count or any(name.lower().partition("%")[0] in _JOBS for name in request.fields),
    )


_JOBS = ("j", "jo", "job", "jobs")


def _style(args: argparse.Namespace, units: ReportUnits, document: UsageDocument) -> CellStyle:
    from slurm_energy.reports.utilization.table import CellStyle

    form = os.environ.get("SLURM_TIME_FORMAT", "")
    now = datetime.now()
    return CellStyle(
        units,
        bool(args.parsable or args.csv),
        document.currency,
        lambda moment: format_time(moment, form, now),
        _proper_name,
    )


def _proper_name(user: str) -> str:
    """Return the real name of a user; empty if this host does not know the user."""
    try:
        return pwd.getpwnam(user).pw_gecos.partition(",")[0]
    except (KeyError, ValueError):
        return ""


def _notes(request: ReportRequest, document: UsageDocument, lines: Sequence[Line]) -> list[str]:
    from slurm_energy.reports.utilization.grammar import ReportKind

    notes = list(document.notes)
    if not lines or not any(row.amounts.energy_uj for row in document.rows):
        notes.append("no energy was delivered in this window")
    if not document.meter_visible and request.kind not in (
        ReportKind.SIZES_BY_ACCOUNT,
        ReportKind.TOP_USAGE,
    ):
        notes.append(
            "idle and unattributed energy and the total of the meters are hidden: only operators see them "
            "(controller.operators, controller.public_meter)"
        )
    if request.nodes:
        notes.append("CPU time is not known by node")
    sized = [line for line in lines if request.kind is ReportKind.SIZES_BY_ACCOUNT]
    if any((line.amounts.energy_uj or 0) > sum(part.energy_uj or 0 for part in line.parts) for line in sized):
        notes.append("energy of jobs whose number of CPUs is unknown is in no class of sizes")
    basis = document.data.get("basis")
    return [*notes, *([str(basis)] if basis else [])]
