"""The command `senergy share`, which prints used energy and shares of accounts and users.

Its options have the same meaning as the options of sshare.
"""

from __future__ import annotations

import argparse
import os
import pwd
import time
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy import __version__
from slurm_energy.cli import connection
from slurm_energy.cli.output import (
    add_field_options,
    add_parsable_options,
    emit,
    emit_fitted,
    emit_json,
    note_scope,
)
from slurm_energy.errors import EXIT_OK, NotFoundError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion

HELP = "shares and used energy of accounts and users, modelled on sshare"

EPILOG = """\
Accounts with their users below them. RawShares and NormShares are Slurm's. Energy is the energy of jobs,
including running jobs, and decays with priority.half_life_s. EnergyShare is the fraction of all energy.
UsagePerShare is energy relative to the share; with equal shares it is the energy itself.
FairShare is 2^(-energy share / norm shares): 1 without usage, 0.5 if usage equals the share. Policies that
are fair to users use these values.

As in sshare you see the accounts and yourself; operators see all users with -a.

examples:
  senergy share
  senergy share -a -A physics
  senergy share -a -l                   with GPU hours
  senergy share -u alice,bob -P         output for a script
  senergy share -n -o user,energykwh,fairshare%12
  senergy share --json
"""

_TODO = "check the spelling; senergy share -a lists all names"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy share`. -h omits the header, as in sshare."""
    parser.epilog = EPILOG
    parser.conflict_handler = "resolve"
    show = parser.add_argument_group("output")
    show.add_argument("-a", "--all", action="store_true", help="all users")
    show.add_argument("-u", "--users", metavar="USER,...", help="these users")
    show.add_argument(
        "-U", "--Users", dest="users_only", action="store_true", help="users only, without rows of accounts"
    )
    show.add_argument("-A", "--accounts", metavar="ACCOUNT,...", help="these accounts")
    show.add_argument("-l", "--long", action="store_true", help="also UsagePerShare and GPU hours")
    show.add_argument("-o", "--format", metavar="FIELD[%WIDTH],...", help="columns; %%-20 left-justified")
    add_field_options(show)
    show.add_argument("-n", "-h", "--noheader", action="store_true", help="no header, no notes")
    add_parsable_options(show)
    show.add_argument("--json", action="store_true", help="print the controller's response as JSON")
    connection.add_config_option(parser)
    parser.add_argument(
        "-V", "--version", action="version", version=f"senergy {__version__}", help="print the version"
    )


def run(args: argparse.Namespace) -> int:
    """Print the tree of Slurm accounts and users."""
    from slurm_energy.reports.queue import share_page
    from slurm_energy.reports.table import TableLayout, check_columns, field_lines

    if args.helpformat:
        emit(field_lines(share_page.FIELDS, with_meaning=args.verbose))
        return EXIT_OK
    check_columns(share_page.FIELDS, args.format, "--format", share_page.LISTING)
    answer = connection.connect(args).get("/v1/shares")
    note_scope(answer)
    if args.json:
        emit_json(answer)
        return EXIT_OK

    rows_of_answer = answer.get("rows") or []
    accounts, user_names = (_names(text) for text in (args.accounts, args.users))
    users = user_names or (None if args.all else [_me()])
    if rows_of_answer:
        _refuse_unknown(rows_of_answer, accounts or [], user_names or [])
    rows = share_page.select_rows(rows_of_answer, accounts=accounts, users=users, users_only=args.users_only)
    layout = TableLayout(not args.noheader, "|" if args.parsable else None, args.parsable == "p")
    lines = share_page.lines(rows, layout, columns=args.format, long=args.long)
    emit_fitted(lines, delimited=bool(args.parsable))
    if not args.noheader and not args.parsable:
        emit_fitted(share_page.notes(answer, time.time()))
    return EXIT_OK


def _names(text: str | None) -> list[str] | None:
    """Split a comma-separated list of names. Return None if the option was not given."""
    return [name for name in (text or "").split(",") if name] or None


def _refuse_unknown(
    rows_of_answer: Sequence[Mapping[str, Any]], accounts: Sequence[str], users: Sequence[str]
) -> None:
    """Raise an error if a requested account or user does not exist.

    The function uses a table of accounts and users with shares or used energy. An account that is not in
    the table does not exist. A user who is not in the table does not exist if this host does not know the
    user either.

    Raises:
        NotFoundError: an account or user does not exist. The message contains the name.
    """
    for name in accounts:
        if not any(row["account"] == name for row in rows_of_answer):
            hint = suggestion(name, sorted({str(row["account"]) for row in rows_of_answer}))
            reason = "it has neither shares nor used energy"
            raise NotFoundError(f"account {shown(name)}", reason, hint or _TODO)
    for name in users:
        if not any(row.get("user") == name for row in rows_of_answer) and not _exists_locally(name):
            reason = "the user is unknown on this host and has neither shares nor used energy"
            hint = suggestion(name, sorted({str(row["user"]) for row in rows_of_answer if row.get("user")}))
            raise NotFoundError(f"user {shown(name)}", reason, hint or _TODO)


def _exists_locally(user: str) -> bool:
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
