"""`senergy quota`: quotas of energy, cost or carbon by Slurm account.

The command shows how much of each quota is used, and changes quotas.
"""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import (
    add_field_options,
    add_parsable_options,
    emit,
    emit_fitted,
    emit_json,
    note,
)
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_OK, NotFoundError, UsageError
from slurm_energy.quantities import shown

HELP = "allowances of energy, cost or carbon by account, their use, and changes"

EPILOG = """\
A quota grants an account, or one of its users, an amount of energy, money or emissions per month, quarter or
year, or for a fixed time. Accounts below it count too. Over the warning level pending jobs go after those of
others, over the hold level they are held (quota.hold) or go last. `senergy prio` states the quota
that demotes a job. See docs/carbon-and-price.md.

Energy is that of the computers; cost and emissions include the PUE.

AMOUNT has a unit, which tells what is limited: 500kWh, 2MWh, 36MJ; 200EUR; 50kg, 1.5t (CO2e).
Only operators (controller.operators) may change quotas. Users see those of their accounts.

examples:
  senergy quota show
  senergy quota show physics -o account,user,used,left,end
  senergy quota set physics 500kWh
  senergy quota set physics 200EUR --period quarter --warn 80 --hold 100 --reason 'grant 4711'
  senergy quota set physics 20kg --user bob
  senergy quota set physics 3MWh --start 2026-07-01 --end 2026-07-15 --hold 100
  senergy quota remove physics --resource cost --period quarter
  senergy quota changes
"""

_CALENDAR = ("month", "quarter", "year")
_RESOURCES = ("energy", "cost", "carbon")


def configure(parser: CommandParser) -> None:
    """Add the actions and their options to `senergy quota`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|set|remove|changes")
    show = actions.add_parser("show", help="quotas and their use in the current period")
    show.add_argument("accounts", metavar="ACCOUNT", nargs="*", help="these accounts (default: all)")
    output = show.add_argument_group("output")
    output.add_argument("-o", "--format", metavar="FIELD[%WIDTH],...", help="columns; %%-20 left-justified")
    add_field_options(output)
    output.add_argument("-n", "--noheader", action="store_true", help="no header, no notes")
    add_parsable_options(output)
    _configure_set(actions.add_parser("set", help="set a quota in place of an earlier one (operators only)"))
    remove = actions.add_parser("remove", help="remove a quota (operators only)")
    remove.add_argument("account", metavar="ACCOUNT", help="account")
    remove.add_argument("--user", metavar="USER", default="", help="quota of this user in the account")
    remove.add_argument("--resource", choices=_RESOURCES, default="energy", help="default: energy")
    remove.add_argument("--period", choices=(*_CALENDAR, "custom"), default="month", help="default: month")
    actions.add_parser("changes", help="audit trail of the last 400 days")
    for action in actions.choices.values():
        action.add_argument("--json", action="store_true", help="print the controller's response as JSON")
        connection.add_config_option(action)


def _configure_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("account", metavar="ACCOUNT", help="account")
    parser.add_argument("amount", metavar="AMOUNT", help="such as 500kWh, 200EUR or 50kg")
    parser.add_argument("--user", metavar="USER", default="", help="of this user in the account")
    parser.add_argument("--period", choices=_CALENDAR, help="default: month")
    parser.add_argument("--start", metavar="TIME", help="a fixed time instead of a calendar period")
    parser.add_argument("--end", metavar="TIME", help="end of the fixed time")
    parser.add_argument(
        "--warn", metavar="PERCENT", default="80", help="warning level, or none (default: 80)"
    )
    parser.add_argument(
        "--hold", metavar="PERCENT", default="none", help="hold level, or none (default: none)"
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="reason, for the audit trail")


def run(args: argparse.Namespace) -> int:
    """Run the action of `senergy quota` that the user requested, and return the exit code."""
    actions = {"show": _show, "set": _set, "remove": _remove, "changes": _changes}
    actions[args.action](args)
    return EXIT_OK


def _show(args: argparse.Namespace) -> None:
    from slurm_energy.protocol.quota_requests import QUOTA_PATH
    from slurm_energy.reports.queue import quota_table
    from slurm_energy.reports.table import TableLayout, check_columns, field_lines

    if args.helpformat:
        emit(field_lines(quota_table.QUOTA_FIELDS, with_meaning=args.verbose))
        return
    check_columns(quota_table.QUOTA_FIELDS, args.format, "-o", quota_table.LISTING)
    answer = connection.connect(args).get(QUOTA_PATH, {})
    rows: list[dict[str, Any]] = answer.get("quotas") or []
    for account in args.accounts:
        if account not in {row["account"] for row in rows}:
            why = "has no quota" if answer.get("scope") == "all" else "has no quota that you may see"
            raise NotFoundError(f"account {shown(account)}", why, "list all: senergy quota show")
    rows = [row for row in rows if not args.accounts or row["account"] in args.accounts]
    if args.json:
        emit_json({**answer, "quotas": rows})
        return
    layout = TableLayout(not args.noheader, "|" if args.parsable else None, args.parsable == "p")
    plain = args.noheader or args.parsable
    if not rows and not plain:
        note("no quotas" if answer.get("scope") == "all" else "no quotas of your accounts")
    emit_fitted(quota_table.quota_lines(rows, layout, args.format), delimited=bool(args.parsable))
    for line in () if plain else quota_table.quota_notes(answer, rows):
        note(line)


def _set(args: argparse.Namespace) -> None:
    from slurm_energy.protocol.quota_requests import SET_PATH, QuotaKey, QuotaOrder, parse_amount
    from slurm_energy.reports.time_spec import parse_time

    amount = parse_amount(args.amount)
    if (args.start is None) != (args.end is None):
        raise UsageError("--start and --end", "only one of them is given", "give both, or --period")
    if args.start is not None and args.period is not None:
        raise UsageError("--period", "given together with --start and --end", "give one of the two")
    now = datetime.now()
    start = None if args.start is None else parse_time(args.start, now, "--start")
    end = None if args.end is None else parse_time(args.end, now, "--end")
    period = "custom" if start is not None else args.period or "month"
    order = QuotaOrder(
        QuotaKey(args.account, args.user, amount.resource, period),
        amount.amount,
        amount.unit,
        _percent(args.warn, "--warn"),
        _percent(args.hold, "--hold"),
        start,
        end,
        args.reason,
    )
    answer = connection.connect(args).post(SET_PATH, QuotaOrder.from_json(order.to_json()).to_json())
    _print_answer(args, answer)


def _remove(args: argparse.Namespace) -> None:
    from slurm_energy.protocol.quota_requests import REMOVE_PATH, QuotaKey

    key = QuotaKey(args.account, args.user, args.resource, args.period)
    body = QuotaKey.from_json(key.to_json()).to_json()
    _print_answer(args, connection.connect(args).post(REMOVE_PATH, body))


def _changes(args: argparse.Namespace) -> None:
    from slurm_energy.protocol.quota_requests import CHANGES_PATH
    from slurm_energy.reports.queue.quota_table import change_lines

    answer = connection.connect(args).get(CHANGES_PATH, {})
    if args.json:
        emit_json(answer)
        return
    emit_fitted(change_lines(answer.get("changes") or []) if answer.get("changes") else ["no changes"])


def _print_answer(args: argparse.Namespace, answer: dict[str, Any]) -> None:
    if args.json:
        emit_json(answer)
    else:
        emit_fitted([str(answer.get("text"))])


def _percent(text: str, name: str) -> float | None:
    from slurm_energy.quantities import parse_percent

    return None if text == "none" else parse_percent(text, name)
