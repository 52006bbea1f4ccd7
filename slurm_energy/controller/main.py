"""Command line of senergyctld. The daemon itself is in the module `daemon`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from slurm_energy import __version__, service_manager
from slurm_energy.command_line.guarded import guarded
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_OK, EnergyError, UsageError
from slurm_energy.garbage_collection import loading_modules
from slurm_energy.validation import DaemonRole, load_for_daemon

EPILOG = """examples:
  senergyctld                           with $SENERGY_CONFIG, else /etc/slurm/energy.toml
  senergyctld --config ./energy.toml    with another file
  senergyctld --check                   check configuration, policies and every page of the
                                        database, also while senergyctld runs, then end
  kill -HUP $(pgrep senergyctld)        read the configuration again; a bad file changes nothing
  kill -USR1 $(pgrep senergyctld)       log at level debug; USR2 ends it

exit codes: 0 ok, 1 failure or a damaged database, 2 bad usage, 3 configuration, 4 database, directory
or address unavailable, 7 already running (address or database in use)"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run senergyctld in the foreground until SIGTERM or SIGINT; return the exit code."""
    return guarded("senergyctld", lambda: _run_program(argv), is_daemon=True)


def _run_program(argv: Sequence[str] | None) -> int:
    try:
        arguments = argument_parser().parse_args(argv)
    except UsageError as error:
        return service_manager.report_failure("senergyctld", error)
    with loading_modules():
        from slurm_energy.controller import daemon  # imported after --help and --version: aiohttp is slow

    manager = service_manager.ServiceManager.from_environment()
    service_manager.start_log("senergyctld", arguments.log_level or "info")
    service_manager.ignore_level_signals()
    try:
        config = load_for_daemon(arguments.config, DaemonRole.CONTROLLER, logging.getLogger(__name__))
        service_manager.set_log_level(arguments.log_level or config.controller.log_level)
        if arguments.check:
            daemon.check(config)
            print(f"senergyctld: {config.path or 'defaults'}: ok")
        else:
            daemon.serve(config, arguments.config, manager, arguments.log_level)
    except EnergyError as error:
        return service_manager.report_failure("senergyctld", error)
    return EXIT_OK


def argument_parser() -> CommandParser:
    """Return the parser of the daemon's arguments."""
    parser = CommandParser(
        prog="senergyctld",
        description="Keep the energy records of a cluster and answer the senergy command.",
        epilog=EPILOG,
    )
    parser.add_argument("--config", metavar="FILE", help="configuration file")
    parser.add_argument("--check", action="store_true", help="check everything, serve nothing")
    parser.add_argument(
        "--log-level",
        choices=service_manager.LOG_LEVELS,
        help="least level that is logged (default: controller.log_level)",
    )
    parser.add_argument("--version", action="version", version=f"senergyctld {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
