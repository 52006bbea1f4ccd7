"""Command-line options of `senergy acct`.

They are the options of sacct, from the table `slurm.sacct_options`, and a few more.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from slurm_energy import __version__
from slurm_energy.cli import connection
from slurm_energy.cli.output import add_field_options, add_parsable_options
from slurm_energy.errors import UsageError
from slurm_energy.slurm.release import Release
from slurm_energy.slurm.sacct_options import REFUSED, ROWS, SACCT_OPTIONS, SacctOption, options_with

_OF_RECORDS = (
    *("allusers", "accounts", "allocations", "duplicates", "endtime", "jobs", "name", "nodelist"),
    *("partition", "starttime", "state", "user", "local"),
)
"""Keys of the options that need no slurmdbd."""


def add_row_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select rows of the output.

    Options of sacct that senergy refuses are also added, but do not appear in the help.
    """
    select = parser.add_argument_group("row selection, as in sacct")
    for option in options_with(ROWS):
        details: dict[str, Any] = {"dest": option.key, "help": _help(option)}
        if option.optional:
            details |= {"nargs": "?", "const": "yes", "metavar": option.value.strip("[]")}
        elif option.value:
            details |= {"action": "append", "metavar": option.value}
        else:
            details |= {"action": "store_true"}
        select.add_argument(*option.names, **details)
    for option in options_with(REFUSED):
        parser.add_argument(
            *option.names,
            dest=argparse.SUPPRESS,
            action=_refusing(option),
            nargs=None if option.value else 0,
            help=argparse.SUPPRESS,
        )


def _help(option: SacctOption) -> str:
    since = f" (Slurm {option.since[0]}.{option.since[1]:02d})" if option.since > (22, 5) else ""
    return option.doc + since


def _refusing(option: SacctOption) -> type[argparse.Action]:
    class RefusedOption(argparse.Action):
        """Action of argparse that raises an error for an option of sacct that has no meaning here."""

        def __call__(self, *_: object, **__: object) -> None:
            raise UsageError(f"senergy acct: {'/'.join(option.names)}", "is not an option here", option.doc)

    return RefusedOption


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that decide how rows are printed."""
    show = parser.add_argument_group("output")
    show.add_argument(
        *("-o", "--format", "--fields"),
        metavar="FIELD[%WIDTH],...",
        action="append",
        dest="format",
        help="columns; %%20 right-, %%-20 left-justified; ALL: all; see -e",
    )
    show.add_argument(
        "-b", "--brief", action="store_true", help="columns JobID, State, ExitCode and ConsumedEnergy"
    )
    show.add_argument("-l", "--long", action="store_true", help="more columns")
    add_field_options(
        show,
        more_names=("--help-fields",),
        verbose="print what is queried; with --helpformat: the meaning of the fields",
    )
    show.add_argument("-n", "--noheader", action="store_true", help="no header")
    add_parsable_options(show)
    show.add_argument(
        "--delimiter", metavar="TEXT", default="|", help="with -p or -P: delimiter instead of |"
    )
    show.add_argument("--units", metavar="[KMGTP]", help="one prefix for all figures; the headers name it")
    show.add_argument("--noconvert", action="store_true", help="plain numbers in J and W instead of 1.20kJ")
    show.add_argument("--total", action="store_true", help="add a line with the sums of energy")
    for name in ("json", "yaml"):
        show.add_argument(
            f"--{name}",
            nargs="?",
            const="",
            metavar="PARSER",
            help=f"print one {name.upper()} document in the shape of sacct --{name}, with an object `energy` "
            "in each job and step; PARSER as in sacct (Slurm 23.11)",
        )
    connection.add_config_option(parser)
    show.add_argument("-U", "--usage", action="store_true", help="print a short usage")
    show.add_argument(
        "-V", "--version", action="version", version=f"senergy {__version__}", help="print the version"
    )


def sacct_arguments(args: argparse.Namespace, release: Release) -> list[str]:
    """Return the options for sacct that select jobs and steps and set the units, one argument each.

    Raises:
        UsageError: the installed release lacks an option.
    """
    arguments: list[str] = []
    for option, value in _given(args):
        option.check(release)
        values = value if isinstance(value, list) else [value]
        if option.key == "jobs":
            values = [_with_array_tasks(item) for item in values]
        arguments += [option.long_name if item is True else f"{option.long_name}={item}" for item in values]
    if args.units:
        arguments.append(f"--units={args.units}")
    return [*arguments, "--noconvert"] if args.noconvert else arguments


def _with_array_tasks(text: str) -> str:
    if "[" not in text:
        return text
    from slurm_energy.cli.record_query import expand_array_tasks

    return ",".join(expand_array_tasks(text))


def record_selection(args: argparse.Namespace, why: str) -> argparse.Namespace:
    """Return the options of `senergy acct` for a query of energy records.

    The records are queried if Slurm's accounting does not supply the rows. The options have the form of
    `record_query.query`.

    Args:
        args: parsed options.
        why: reason why Slurm's accounting does not supply the rows, for the error message.

    Raises:
        UsageError: an option needs Slurm's accounting.
    """
    for option, _ in _given(args):
        if option.key not in _OF_RECORDS:
            raise UsageError(f"senergy acct: {option.long_name}", f"needs Slurm's accounting ({why})")
    joined = {
        option.key: ",".join(value)
        for option, value in _given(args)
        if isinstance(value, list) and option.key != "jobs"
    }
    return argparse.Namespace(**(vars(args) | joined))


def _given(args: argparse.Namespace) -> Iterator[tuple[SacctOption, Any]]:
    for option in SACCT_OPTIONS:
        value = getattr(args, option.key, None)
        if option.treatment == ROWS and value not in (None, False):
            yield option, value
