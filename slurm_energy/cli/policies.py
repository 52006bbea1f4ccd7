"""`senergy policies`: the energy policies, and the copy of the policy file on this host."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit, emit_fitted, emit_json
from slurm_energy.errors import EXIT_OK

HELP = "energy policies, their users, and the bounds of their values"

EPILOG = """\
Request a policy with sbatch --energy-policy=NAME or #SBATCH --energy-policy=NAME. The list comes from the
controller and includes the policies of the site.

fetch copies the policy file of the controller to this host, so that sbatch, srun and salloc check the flags
at submission. The timer of `senergy template render senergy-policies.timer` runs it on login nodes; senergyd
does the same on compute nodes. A copy that the controller has not confirmed for 15 minutes is not used. Exit
code 4: the controller does not answer; the copy stays as it is.

examples:
  senergy policies
  senergy policies --json
  senergy policies fetch
"""
_TIMEOUT_S: Final = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy policies`."""
    parser.epilog = EPILOG
    parser.add_argument("action", nargs="?", choices=("list", "fetch"), default="list", help="default: list")
    parser.add_argument("--json", action="store_true", help="print the response or the copy's state as JSON")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="fetch: the copy (default: beside agent.socket)",
    )
    connection.add_config_option(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Request the energy policies from the controller and print them, or copy the policy file."""
    if args.action == "fetch":
        return _fetch(args)
    if args.output is not None:
        args.usage_error("--output has an effect only with fetch")
    answer = connection.connect(args).get("/v1/policies")
    if args.json:
        emit_json(answer)
        return EXIT_OK
    from slurm_energy.reports.status_text import policies_lines

    emit_fitted(policies_lines(answer))
    return EXIT_OK


def _fetch(args: argparse.Namespace) -> int:
    """Update the copy of the policy file and print its state."""
    from slurm_energy.policies.policy_copy import copy_path, update_copy
    from slurm_energy.protocol.policy_file_requests import (
        MAX_RESPONSE_BYTES,
        POLICY_FILE_PATH,
        PublishedPolicies,
    )

    path = args.output or copy_path(connection.configuration(args).agent.socket)
    client = connection.connect(args, total_timeout_s=_TIMEOUT_S, max_response_bytes=MAX_RESPONSE_BYTES)
    copy = update_copy(path.absolute(), lambda: PublishedPolicies.from_json(client.get(POLICY_FILE_PATH)))
    names = [line.split()[1] for line in copy.policies.text.splitlines() if line.startswith("policy ")]
    if args.json:
        emit_json(
            {
                "path": str(path),
                "policies": names,
                "issued": copy.policies.issued,
                "fresh_until": copy.fresh_until,
            }
        )
        return EXIT_OK
    minutes = (copy.fresh_until - time.time()) / 60
    emit([f"{path}: {len(names)} policies, used for {minutes:.0f} min unless it is updated"])
    return EXIT_OK
