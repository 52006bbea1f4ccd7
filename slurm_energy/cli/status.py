"""`senergy status`: state of the controller and of the agent on this node."""

from __future__ import annotations

import argparse
import time
from typing import Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit_fitted, emit_json
from slurm_energy.errors import EXIT_OK, EnergyError, UnavailableError
from slurm_energy.protocol import agent_socket

HELP = "state of the controller and of the agent on this node"

EPILOG = """\
Login nodes have no agent, which is reported and is not an error. Exit code 4 if the controller is
unreachable.

examples:
  senergy status
  senergy status --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy status`."""
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print both responses as one JSON object")
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Execute `senergy status`: query both daemons and print their states.

    The exit code is not 0 if the controller does not answer.
    """
    from slurm_energy.reports.status_text import agent_lines, controller_lines

    config = connection.configuration(args).for_this_node()
    code = EXIT_OK
    controller: dict[str, Any] | str
    agent: dict[str, Any] | str
    try:
        controller = connection.connect(args).get("/v1/status")
    except EnergyError as error:
        controller, code = str(error), error.exit_code
    try:
        agent = agent_socket.ask_agent(config.agent.socket, {"op": "status"})
    except UnavailableError as error:
        agent = error.why
    if args.json:
        emit_json({"controller": _as_json(controller), "agent": _as_json(agent)})
        return code
    emit_fitted(controller_lines(str(config.cluster.controller_url), controller, time.time()))
    emit_fitted(agent_lines(str(config.agent.socket), agent))
    return code


def _as_json(answer: dict[str, Any] | str) -> dict[str, Any]:
    return {"error": answer} if isinstance(answer, str) else answer
