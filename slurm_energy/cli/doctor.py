"""`senergy doctor`: report the devices and daemons of this host, and the effect and remedy of each fault."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection
from slurm_energy.cli.doctor_cluster import DEFAULT_WAIT_S, run_cluster
from slurm_energy.cli.output import emit, emit_fitted, emit_json
from slurm_energy.command_line import colour
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, UsageError
from slurm_energy.protocol import agent_socket
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from slurm_energy.config import Config

HELP = "devices and daemons of this host or of all nodes, the cost of each fault, and its remedy"

_MAX_WAIT_S = 86400

EPILOG = """\
Checks every hardware interface, the agent, munge, the controller, the configuration, the clock, and the files
named in slurm.conf, plugstack.conf and job_submit.lua. It changes nothing and runs no Slurm command. It takes
a second or two, because counters are read over half a second to show their power. slurm.conf decides whether
this host is a compute node, the controller or a login node; checks for other roles are skipped. Run it as
root: only root can read counters and limits. Exit code for monitoring: 0: all checks passed, 1: a check is
degraded or failed. An `absent` device is not a failure.

--cluster checks all nodes with one query to the controller, which knows the live reports of the agents and
the states of the nodes in Slurm. Nodes with equal findings are one line. With --wait the command waits until
all nodes that Slurm expects to be up report, and then runs a job of 3 s on one idle node. Exit codes: 0: all
checks passed, 1: a check is degraded or failed, 4: the controller does not answer, or with --wait not all
expected nodes report in time.

examples:
  senergy doctor
  senergy doctor --json
  senergy doctor --quiet            for monitoring: prints nothing and exits with 0 if all checks passed
  senergy doctor --cluster
  senergy doctor --cluster -w gpu[1-8] --json
  senergy doctor --cluster --wait=300
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy doctor`."""
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print all findings as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="print only degraded and failed checks")
    connection.add_config_option(parser)
    cluster = parser.add_argument_group("the whole cluster")
    cluster.add_argument("--cluster", action="store_true", help="check all nodes instead of this host")
    cluster.add_argument(
        "-w", "--nodelist", metavar="NODES", help="with --cluster: only these nodes, as in n[1-8],login"
    )
    cluster.add_argument(
        "--wait",
        metavar="SECONDS",
        nargs="?",
        type=wait_seconds,
        const=DEFAULT_WAIT_S,
        help=f"with --cluster: wait for all expected nodes (default: {DEFAULT_WAIT_S:g}), then run a job",
    )
    cluster.add_argument("--no-job", action="store_true", help="with --wait: run no job")


def wait_seconds(text: str) -> float:
    """Return the value of --wait in seconds.

    Raises:
        argparse.ArgumentTypeError: not a number from 0 to a day.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MAX_WAIT_S:
        raise argparse.ArgumentTypeError(
            f"'{shown(text)}' is not a number of seconds from 0 to {_MAX_WAIT_S}"
        )
    return seconds


def run(args: argparse.Namespace) -> int:
    """Inspect the host or the cluster and print the report. The exit code states the result."""
    if args.cluster:
        return run_cluster(args)
    for option, value in (("--nodelist", args.nodelist), ("--wait", args.wait), ("--no-job", args.no_job)):
        if value not in (None, False):
            raise UsageError(
                f"senergy doctor: {option}", "checks of this host have no such option", "add --cluster"
            )
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
        emit_fitted(report.lines(findings, checks), styles=colour.STATE_STYLES)
    return code


def _ask_agent(config: Config) -> Mapping[str, Any]:
    return agent_socket.ask_agent(config.for_this_node().agent.socket, {"op": "status"})


def _ask_controller(config: Config) -> Mapping[str, Any]:
    from slurm_energy.protocol.controller_client import ControllerClient

    cluster = config.cluster
    client = ControllerClient(
        *(cluster.controller_url, cluster.munge_socket, 3.0, cluster.controller_users), total_timeout_s=10.0
    )
    return client.get("/v1/status")
