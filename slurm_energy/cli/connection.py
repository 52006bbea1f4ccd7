"""How subcommands reach the daemons: the configuration they share, the controller, this node's agent."""

from __future__ import annotations

import argparse
import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.errors import UnavailableError

if TYPE_CHECKING:
    from slurm_energy.accounting.client import ControllerClient
    from slurm_energy.config import Config

AGENT_TIMEOUT_S = 2.0
_LONGEST_ANSWER_BYTES = 1 << 20


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """Add --config, which every command that needs the configuration has."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="configuration file (default: $SENERGY_CONFIG, else /etc/slurm/energy.toml)",
    )


def configuration(args: argparse.Namespace) -> Config:
    """Read the configuration that --config names.

    Raises:
        ConfigError: it cannot be read or is wrong.
    """
    from slurm_energy.config import load

    return load(args.config)


def connect(args: argparse.Namespace) -> ControllerClient:
    """Return a client of the controller that the configuration names; connects on the first request.

    Raises:
        ConfigError, UsageError: the configuration is wrong.
    """
    from slurm_energy.accounting.client import ControllerClient

    cluster = configuration(args).cluster
    return ControllerClient(cluster.controller_url, cluster.munge_socket)


def ask_agent(path: Path, message: dict[str, Any]) -> dict[str, Any]:
    """Send one message to this node's senergyd and return its answer.

    Raises:
        UnavailableError: nobody answers at `path`, or the answer is not the contract's.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(AGENT_TIMEOUT_S)
            connection.connect(str(path))
            connection.sendall(json.dumps(message).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer = json.loads(stream.readline(_LONGEST_ANSWER_BYTES))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnavailableError(f"agent {path}", reason, "is senergyd running on this node?") from None
    if not isinstance(answer, dict):
        raise UnavailableError(f"agent {path}", "it did not answer with a JSON object")
    return answer
