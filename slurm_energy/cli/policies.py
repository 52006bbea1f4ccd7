"""`senergy policies`: the energy policies, their settings, permitted users and bounds."""

from __future__ import annotations

import argparse

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit_fitted, emit_json
from slurm_energy.errors import EXIT_OK

HELP = "energy policies, their users, and the bounds of their values"

EPILOG = """\
Request a policy with sbatch --energy-policy=NAME or #SBATCH --energy-policy=NAME. The list comes from the
controller and includes the policies of the site.

examples:
  senergy policies
  senergy policies --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy policies`."""
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print the controller's response as JSON")
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Request the energy policies from the controller and print them."""
    answer = connection.connect(args).get("/v1/policies")
    if args.json:
        emit_json(answer)
        return EXIT_OK
    from slurm_energy.reports.site_pages import policies_lines

    emit_fitted(policies_lines(answer))
    return EXIT_OK
