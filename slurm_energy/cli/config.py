"""`senergy config`: check the configuration file, show what is in force, write an example."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_energy.cli import connection
from slurm_energy.cli.printing import emit, emit_verbatim
from slurm_energy.errors import EXIT_OK

HELP = "check, show or write an example of the configuration"

EPILOG = """\
examples:
  senergy config check                            is /etc/slurm/energy.toml right?
  senergy config check new.toml                   is this file right?
  senergy config show                             every key with the value in force
  senergy config example > /etc/slurm/energy.toml start from here: all keys, commented out
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy config`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="check|show|example")
    check = actions.add_parser("check", help="say whether the file is right, else name file, line and key")
    show = actions.add_parser("show", help="print every key with the value in force")
    for action in (check, show):
        action.add_argument("file", nargs="?", type=Path, metavar="FILE", help="instead of --config")
        connection.add_config_option(action)
    example = actions.add_parser("example", help="print an example with all keys at their defaults")
    example.add_argument(
        "--reference", action="store_true", help="print the reference page (Markdown) instead"
    )


def run(args: argparse.Namespace) -> int:
    """Do what the action says."""
    from slurm_energy.config import document

    if args.action == "example":
        emit_verbatim((document.reference() if args.reference else document.example()).splitlines())
        return EXIT_OK
    args.config = args.file or args.config
    config = connection.configuration(args)
    if args.action == "show":
        origin = config.path or "built-in defaults; there is no file"
        emit_verbatim([f"# In force: {origin}", *document.example(config).splitlines()[2:]])
        return EXIT_OK
    from slurm_energy.policies import check_policies

    check_policies(config)
    emit([f"{config.path or 'no configuration file: the defaults'}: ok"])
    return EXIT_OK
