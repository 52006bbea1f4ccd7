"""`senergy share`: energy used and shares of accounts and users; options mean the same as those of sshare."""

from __future__ import annotations

import argparse
import os
import pwd
import time
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy import __version__
from slurm_energy.cli import connection
from slurm_energy.cli.output import add_field_options, add_parsable_options, emit, emit_json, note_scope
from slurm_energy.errors import EXIT_OK, NotFoundError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion

HELP = "energy used and shares of accounts and users, in sshare's manner"

EPILOG = """\
Accounts with their users below them. RawShares and NormShares are Slurm's; energy is that of jobs, running
ones included, and fades with priority.half_life_s. EnergyShare is the part of everybody's energy, Had the
energy per share (with equal shares it is the energy), FairShare 2^(-energy share / norm shares): 1 for one
who had nothing, 0.5 for one who had just the share. Policies that are fair to users go by these.

As in sshare you see accounts and yourself; -a shows all users, to operators.

examples:
  senergy share
  senergy share -a -A physics
  senergy share -a -l                   with GPU hours
  senergy share -u alice,bob -P         for a script
  senergy share -n -o user,energykwh,fairshare%12
  senergy share --json
"""

_SPELT = "is it spelt right? senergy share -a shows what there is"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy share`. As in sshare, -h omits the header."""
    parser.epilog = EPILOG
    parser.conflict_handler = "resolve"
    show = parser.add_argument_group("what to show")
    show.add_argument("-a", "--all", action="store_true", help="all users")
    show.add_argument("-u", "--users", metavar="USER,...", help="these users")
    show.add_argument("-U", "--Users", dest="users_only", action="store_true", help="no rows of accounts")
    show.add_argument("-A", "--accounts", metavar="ACCOUNT,...", help="these accounts")
    show.add_argument("-l", "--long", action="store_true", help="also Had and GPU hours")
    show.add_argument("-o", "--format", metavar="FIELD[%WIDTH],...", help="columns; %%-20 left-justified")
    add_field_options(show)
    show.add_argument("-n", "-h", "--noheader", action="store_true", help="no names of columns, no notes")
    add_parsable_options(show)
    show.add_argument("--json", action="store_true", help="print the controller's answer as JSON")
    connection.add_config_option(parser)
    parser.add_argument(
        "-V", "--version", action="version", version=f"senergy {__version__}", help="print the version"
    )


def run(args: argparse.Namespace) -> int:
    """Print the tree."""
    from slurm_energy.reports import share_page
    from slurm_energy.reports.table import TableLayout, field_lines

    if args.helpformat:
        emit(field_lines(share_page.FIELDS, with_meaning=args.verbose))
        return EXIT_OK
    answer = connection.connect(args).get("/v1/shares")
    note_scope(answer)
    if args.json:
        emit_json(answer)
        return EXIT_OK

    told = answer.get("rows") or []
    accounts, named = (_names(text) for text in (args.accounts, args.users))
    users = named or (None if args.all else [_me()])
    if told:
        _refuse_unknown(told, accounts or [], named or [])
    rows = share_page.chosen(told, accounts=accounts, users=users, users_only=args.users_only)
    layout = TableLayout(not args.noheader, "|" if args.parsable else None, args.parsable == "p")
    emit(share_page.lines(rows, layout, columns=args.format, long=args.long))
    if not args.noheader and not args.parsable:
        emit(share_page.notes(answer, time.time()))
    return EXIT_OK


def _names(text: str | None) -> list[str] | None:
    """Split a comma list. Return None if the option is absent."""
    return [name for name in (text or "").split(",") if name] or None


def _refuse_unknown(told: Sequence[Mapping[str, Any]], accounts: Sequence[str], users: Sequence[str]) -> None:
    """Refuse accounts missing from the answer, and users missing from the answer and unknown to this host.

    Raises:
        NotFoundError: names the account or user.
    """
    for name in accounts:
        if not any(row["account"] == name for row in told):
            close = suggestion(name, sorted({str(row["account"]) for row in told}))
            why = "it has neither shares nor used energy"
            raise NotFoundError(f"account {shown(name)}", why, close or _SPELT)
    for name in users:
        if not any(row.get("user") == name for row in told) and not _known_here(name):
            why = "this host does not know the user, who has neither shares nor used energy"
            close = suggestion(name, sorted({str(row["user"]) for row in told if row.get("user")}))
            raise NotFoundError(f"user {shown(name)}", why, close or _SPELT)


def _known_here(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except (KeyError, ValueError):
        return user.isdecimal()
    return True


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
