"""`senergy policies`: the energy policies, their settings, permitted users and bounds."""

from __future__ import annotations

import argparse

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit, emit_json
from slurm_energy.errors import EXIT_OK

HELP = "energy policies and the bounds of their values"

EPILOG = """\
A policy is asked for with sbatch --energy-policy=NAME or #SBATCH --energy-policy=NAME. The list comes
from the controller, so it has the site's own policies too.

examples:
  senergy policies
  senergy policies --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy policies`."""
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print the controller's answer as JSON")
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    answer = connection.connect(args).get("/v1/policies")
    if args.json:
        emit_json(answer)
        return EXIT_OK
    from slurm_energy.reports.site_pages import policies_lines

    emit(policies_lines(answer))
    return EXIT_OK
