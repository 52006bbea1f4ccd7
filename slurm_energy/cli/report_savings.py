"""`senergy report job DeferralSavings`: savings of deferral compared with running each job at once."""

from __future__ import annotations

import argparse
import math
import sys
from datetime import datetime
from typing import TYPE_CHECKING

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit_fitted, emit_json, emit_verbatim, note, note_scope
from slurm_energy.errors import EXIT_OK, UsageError
from slurm_energy.reports.time_spec import start_of_day
from slurm_energy.safe_text import encodable

if TYPE_CHECKING:
    from slurm_energy.reports.utilization.grammar import ReportRequest

_FLAGS = {"-t": "units", "-T": "tres", "-s": "sort", "-M": "clusters", "-a": "all_clusters"}


def run(args: argparse.Namespace, request: ReportRequest, start: float, end: float) -> int:
    """Run the report `DeferralSavings`: request savings by deferral from the controller, print them.

    Args:
        args: options of the command.
        request: conditions on the jobs.
        start: start of the window in which the jobs ended, Unix seconds.
        end: end of that window.

    Raises:
        UsageError: an option has no meaning for this report.
    """
    from slurm_energy.protocol.deferral_requests import SAVINGS_PATH, SavingsRequest
    from slurm_energy.reports.utilization import deferral_savings, page

    for flag, name in _FLAGS.items():
        if getattr(args, name):
            raise UsageError(f"{flag}: no meaning for DeferralSavings", todo=f"leave out {flag}")
    asked = SavingsRequest(
        math.floor(start), math.ceil(end), request.accounts, request.users, request.partitions
    )
    document = connection.connect(args).get(SAVINGS_PATH, asked.parameters())
    header = not args.noheader
    if args.json:
        emit_json(deferral_savings.savings_document(document))
    else:
        table = deferral_savings.savings_table(document, exact=bool(args.parsable or args.csv))
        if args.csv:
            text = page.csv_text(table, header=header)
            sys.stdout.write(encodable(text, sys.stdout.encoding))
        elif args.parsable:
            emit_verbatim(page.delimited_lines(table, header=header, trailing=args.parsable == "p"))
        else:
            emit_fitted(page.text_lines(table, header=header))
        if header and not args.quiet:
            excludes_today = not request.end and end <= start_of_day(datetime.now())
            for text in deferral_savings.savings_notes(document, excludes_today=excludes_today):
                note(text)
    if not args.quiet:
        note_scope(document)
    return EXIT_OK
