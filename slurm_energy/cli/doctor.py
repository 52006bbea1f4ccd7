"""`senergy doctor`: what this node has, what it lacks, what that costs and what fixes it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection
from slurm_energy.cli.printing import emit, emit_json
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK
from slurm_energy.protocol import agent_socket

if TYPE_CHECKING:
    from slurm_energy.config import Config

HELP = "what this host has, what it lacks, what that costs and what fixes it"

EPILOG = """\
Looks at every hardware interface, the agent, munge, the controller, the configuration, the files that
slurm.conf, plugstack.conf and job_submit.lua name, and the clock. Changes nothing and runs no Slurm command;
takes a second or two, since counters are watched for half a second to show their power. slurm.conf says
whether this host is a compute node, the controller or a login node; what is not needed there is not checked.
Run it as root: counters and limits are root's. Exit code for monitoring: 0 nothing to do, 1 something is
degraded or failed. What a host simply does not have (`absent`) is no failure.

examples:
  senergy doctor
  senergy doctor --json
  senergy doctor --quiet            for monitoring: nothing is printed and the code is 0 if all is well
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy doctor`."""
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print everything found as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print only what is degraded or failed")
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Inspect the node, print the report; the exit code says whether it is healthy."""
    from slurm_energy.doctor import diagnosis, report
    from slurm_energy.doctor.inspection import inspect

    found = inspect(args.config, _ask_agent, _ask_controller)
    checks = diagnosis.diagnose(found)
    code = EXIT_OK if diagnosis.is_healthy(checks) else EXIT_FAILURE
    if args.json:
        emit_json(report.document(found, checks))
    elif args.quiet:
        emit(report.faults(checks))
    else:
        emit(report.lines(found, checks))
    return code


def _ask_agent(config: Config) -> Mapping[str, Any]:
    return agent_socket.ask_agent(config.agent.socket, {"op": "status"})


def _ask_controller(config: Config) -> Mapping[str, Any]:
    from slurm_energy.protocol.controller_client import ControllerClient

    cluster = config.cluster
    client = ControllerClient(
        *(cluster.controller_url, cluster.munge_socket, 3.0, cluster.controller_users), total_timeout_s=10.0
    )
    return client.get("/v1/status")
