"""The --config option and the connection to the controller, shared by the subcommands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_energy.config import Config
    from slurm_energy.protocol.controller_client import ControllerClient


def add_config_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --config to a parser."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="configuration file (default: $SENERGY_CONFIG, else /etc/slurm/energy.toml)",
    )


def configuration(args: argparse.Namespace) -> Config:
    """Read the configuration file named by --config.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    from slurm_energy.config import load

    return load(args.config)


def connect(
    args: argparse.Namespace, *, total_timeout_s: float | None = None, max_response_bytes: int | None = None
) -> ControllerClient:
    """Return a client of the configured controller. The client connects on its first request.

    Args:
        args: parsed options.
        total_timeout_s: maximum duration of a request in seconds; None means that only single network
            operations have a time limit.
        max_response_bytes: maximum size of a response; None means the limit of the client.

    Raises:
        ConfigError, UsageError: the configuration is invalid.
    """
    from slurm_energy.protocol.controller_client import MAX_RESPONSE_BYTES, ControllerClient

    cluster = configuration(args).cluster
    return ControllerClient(
        cluster.controller_url,
        cluster.munge_socket,
        controller_users=cluster.controller_users,
        total_timeout_s=total_timeout_s,
        max_response_bytes=max_response_bytes or MAX_RESPONSE_BYTES,
    )
