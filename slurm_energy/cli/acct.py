"""`senergy acct`: energy of jobs and steps. Options and columns of sacct have the same meaning here."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from slurm_energy.cli import acct_options
from slurm_energy.cli.output import emit, emit_verbatim, note
from slurm_energy.errors import EXIT_OK, UsageError
from slurm_energy.garbage_collection import paused_collection

if TYPE_CHECKING:
    from slurm_energy.reports.acct.fields import Style
    from slurm_energy.reports.acct.rows import AcctRow
    from slurm_energy.reports.table import Column
    from slurm_energy.slurm.release import Release

HELP = "energy of jobs and steps, with the options of sacct"
FORMAT_VARIABLE = "SENERGY_ACCT_FORMAT"
_MAX_TIME_FORMAT_BYTES = 31  # sacct ignores longer formats
_USAGE = "Usage: senergy acct [options]\n\tUse --help for help"

EPILOG = """\
Rows, their order, states and times are those of sacct with the same options; energy comes from senergyctld.
Without slurmdbd the rows come from the energy records of finished jobs, and from the live reports of running
jobs unless -A, -E or --name is given; options that need Slurm's accounting are refused. Default window, as in
sacct: from 00:00 today until now; with -j, any time.

Figures include their unit: 17.60kJ. With -p, -P, --noconvert or --units each column has one unit, which its
header names, as in ConsumedEnergy(J), and the figures are plain numbers. A missing figure is printed as
"unknown", and as an empty cell with -p and -P; otherwise an empty cell means that the column does not apply.
ConsumedEnergy is the energy of the records; SlurmEnergy is ConsumedEnergy of sacct.

Not accepted: -B, --env-vars, -c, -f, --autocomplete, --helpreason, --helpstate.

times: HH:MM[:SS][AM|PM]  MMDD[YY][-HH:MM[:SS]]  MM/DD[/YY][-HH:MM[:SS]]  MM.DD[.YY][-HH:MM[:SS]]
       YYYY-MM-DD[THH:MM[:SS]]  today  midnight  noon  fika  teatime
       now[{+|-}COUNT[seconds|minutes|hours|days|weeks]]

environment:
  SENERGY_ACCT_FORMAT  default columns
  COLUMNS              width for the default columns (default: that of the terminal, else 80)
  SLURM_TIME_FORMAT    standard, relative, or a strftime format
  SLURM_BITSTR_LEN     maximum length of lists of array tasks (default 64)
  SACCT_FEDERATION, SACCT_LOCAL  as --federation and --local
  SENERGY_CONFIG       configuration file

examples:
  senergy acct                                   my jobs of today
  senergy acct -j 12,15_3,20+0 -X                these jobs, without their steps
  senergy acct -S now-7days -o jobid,policy,elapsed,consumedenergy,edp%12
  senergy acct -a -q long -S 0101 --total        all users' jobs with QOS long this year, with sums
  senergy acct -j 12 -nP -o ConsumedEnergyRaw    one number for a script
  senergy acct -S now-1days -s failed,timeout -o ALL -P   every field of jobs that failed
  senergy acct -j 12 --json                      all data, with nodes, settings and steps
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy acct`."""
    parser.epilog = EPILOG
    acct_options.add_row_options(parser)
    acct_options.add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Execute `senergy acct`: print jobs with their energy as a table or as one document."""
    if args.usage:
        emit_verbatim(_USAGE.splitlines())
        return EXIT_OK
    with paused_collection():  # with many jobs, collections take longer than the report itself
        return _report(args)


def _report(args: argparse.Namespace) -> int:
    from slurm_energy.cli import acct_query

    if args.json is not None or args.yaml is not None:
        from slurm_energy.cli.acct_document import print_document

        print_document(args)
        return EXIT_OK
    release = acct_query.installed_release()
    if args.helpformat:
        from slurm_energy.reports.acct.acct_fields import catalogue
        from slurm_energy.reports.table import field_lines

        emit(field_lines(catalogue(release), with_meaning=args.verbose))
        return EXIT_OK
    from slurm_energy.reports.acct.acct_row_fields import in_currency

    style = _style(args)
    columns = _columns(args, release)
    rows, release_of_rows = acct_query.read_rows(args, columns, release)
    if release_of_rows is None and release is not None:
        columns = _columns(args, None)
    _print_table(args, rows, in_currency(columns, rows), style)
    return EXIT_OK


def _columns(args: argparse.Namespace, release: Release | None) -> list[Column[AcctRow]]:
    from slurm_energy.reports.acct.acct_fields import (
        BRIEF_FORMAT,
        BRIEF_FORMAT_OF_RECORDS,
        LONG_FORMAT,
        default_columns,
        parse_format,
    )

    if args.format and args.long:
        raise UsageError("senergy acct", "--format and --long exclude each other", "give one of them")
    brief = BRIEF_FORMAT if release else BRIEF_FORMAT_OF_RECORDS
    named = [
        *(args.format or []),
        *([brief] if args.brief else []),
        *([LONG_FORMAT] if args.long else []),
    ]
    if named:
        return parse_format(",".join(named), release)
    if text := os.environ.get(FORMAT_VARIABLE):
        return parse_format(text, release, f"${FORMAT_VARIABLE}")
    width = None if args.parsable else shutil.get_terminal_size((80, 24)).columns
    return default_columns(release, width)


def _style(args: argparse.Namespace) -> Style:
    from slurm_energy.reports.acct.fields import Style
    from slurm_energy.reports.figure_format import DisplayUnits

    make = Style.parsable if args.parsable else Style
    time_format = os.environ.get("SLURM_TIME_FORMAT", "")
    if len(os.fsencode(time_format)) > _MAX_TIME_FORMAT_BYTES:
        time_format = ""
    return make(DisplayUnits.parse(args.units, args.noconvert), time_format, datetime.now())


def _print_table(
    args: argparse.Namespace, rows: Sequence[AcctRow], columns: list[Column[AcctRow]], style: Style
) -> None:
    from slurm_energy.reports.acct.acct_row_fields import incomplete_sums
    from slurm_energy.reports.table import TableLayout, table_lines

    layout = TableLayout(not args.noheader, args.delimiter if args.parsable else None, args.parsable == "p")
    jobs = [row for row in rows if not row.is_step] if args.total else None
    # Values are already escaped. The delimiter is chosen by the user and may be a tab.
    (emit_verbatim if args.parsable else emit)(table_lines(rows, columns, style, layout, jobs))
    if jobs and (counts := incomplete_sums(columns, jobs)):
        names = ", ".join(f"{name} ({count} of {len(jobs)} jobs)" for name, count in counts.items())
        note(f"the sums leave out jobs whose value is unknown: {names}")
