"""`senergy doctor`: report the devices and daemons of this host, and the effect and remedy of each fault."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit, emit_json
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK
from slurm_energy.protocol import agent_socket

if TYPE_CHECKING:
    from slurm_energy.config import Config

HELP = "devices and daemons of this host, the cost of each fault, and its remedy"

EPILOG = """\
Checks every hardware interface, the agent, munge, the controller, the configuration, the clock, and the files
named in slurm.conf, plugstack.conf and job_submit.lua. It changes nothing and runs no Slurm command. It takes
a second or two, because counters are read over half a second to show their power. slurm.conf decides whether
this host is a compute node, the controller or a login node; checks for other roles are skipped. Run it as
root: only root can read counters and limits. Exit code for monitoring: 0: all checks passed, 1: a check is
degraded or failed. An `absent` device is not a failure.

examples:
  senergy doctor
  senergy doctor --json
  senergy doctor --quiet            for monitoring: prints nothing and exits with 0 if all checks passed
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy doctor`."""
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print all findings as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print only degraded and failed checks")
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Inspect the host and print the report. The exit code states whether the host is healthy."""
    from slurm_energy.doctor import diagnosis, report
    from slurm_energy.doctor.inspection import inspect

    findings = inspect(args.config, _ask_agent, _ask_controller)
    checks = diagnosis.diagnose(findings)
    code = EXIT_OK if diagnosis.is_healthy(checks) else EXIT_FAILURE
    if args.json:
        emit_json(report.document(findings, checks))
    elif args.quiet:
        emit(report.faults(checks))
    else:
        emit(report.lines(findings, checks))
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
