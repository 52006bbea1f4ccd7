"""The options and the connection to the controller that subcommands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_energy.config import Config
    from slurm_energy.protocol.controller_client import ControllerClient


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
