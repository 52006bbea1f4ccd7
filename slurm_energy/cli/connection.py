"""How subcommands reach the daemons: the configuration they share, the controller, this node's agent."""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.errors import UnavailableError

if TYPE_CHECKING:
    from slurm_energy.config import Config
    from slurm_energy.protocol.controller_client import ControllerClient

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
    from slurm_energy.protocol.controller_client import ControllerClient

    cluster = configuration(args).cluster
    return ControllerClient(
        cluster.controller_url, cluster.munge_socket, controller_users=cluster.controller_users
    )


def ask_agent(path: Path, message: dict[str, Any]) -> dict[str, Any]:
    """Send one message to this node's senergyd and return its answer; root goes by its own door.

    Raises:
        UnavailableError: nobody answers at `path`, or the answer is not the contract's.
    """
    try:
        with _connected(path) as connection:
            connection.sendall(json.dumps(message).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer = json.loads(stream.readline(_LONGEST_ANSWER_BYTES))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnavailableError(f"agent {path}", reason, "is senergyd running on this node?") from None
    if not isinstance(answer, dict):
        raise UnavailableError(f"agent {path}", "it did not answer with a JSON object")
    return answer


def _connected(path: Path) -> socket.socket:
    """Connect to the agent, waiting for a place in its queue if many others do.

    Raises:
        OSError: nobody answers at `path`.
    """
    from slurm_energy.config.value_checks import ROOT_SOCKET_SUFFIX

    door = [path.with_name(path.name + ROOT_SOCKET_SUFFIX)] if os.geteuid() == 0 else []
    for place in (*door, path):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # With a time-out of Python's own, a full queue would be an error at once.
        seconds = struct.pack("@ll", int(AGENT_TIMEOUT_S), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        try:
            connection.connect(str(place))
        except OSError:
            connection.close()
            if place == path:
                raise
        else:
            connection.settimeout(AGENT_TIMEOUT_S)
            return connection
    raise AssertionError("unreachable")
