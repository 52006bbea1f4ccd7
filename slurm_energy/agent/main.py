"""Command line of senergyd, the node agent.

Every error is reported in one line and with a documented exit code.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from slurm_energy import __version__, service_manager
from slurm_energy.command_line.guarded import guarded
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.errors import EXIT_OK, EnergyError, UsageError
from slurm_energy.garbage_collection import loading_modules

_EPILOG = """examples:
  senergyd                             serve with /etc/slurm/energy.toml
  senergyd --config ./energy.toml      serve with another file
  senergyd --check                     check the configuration, list the devices, and exit
  senergyd --restore                   restore settings left by a lost agent, and exit
  senergyd --safe-limits               lower a stopped agent's power ceilings to its safe limits, and exit
  senergyd --mount-resctrl             mount resctrl if agent.resctrl = "mount", and exit

signals: TERM stops and leaves the settings of running jobs in place; HUP reloads the configuration;
USR1 logs at level debug, USR2 at the configured level again.

exit codes: 0 ok, 1 failure or something not restored, 2 bad usage, 3 configuration, 4 directory, socket or
devices unavailable, 5 forbidden, 7 already running"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run senergyd with the given arguments and return its exit code.

    By default the arguments of the process are used.
    """
    return guarded("senergyd", lambda: _run_program(argv), is_daemon=True)


def _run_program(argv: Sequence[str] | None) -> int:
    try:
        arguments = argument_parser().parse_args(argv)
    except UsageError as error:
        return service_manager.report_failure("senergyd", error)
    # Imported after --help and --version, because the imports take most of the time of these options.
    with loading_modules():
        from slurm_energy.agent import daemon, offline_commands

    manager = service_manager.ServiceManager.from_environment()
    service_manager.start_log("senergyd", arguments.log_level or "info")
    service_manager.ignore_level_signals()
    try:
        file_config = daemon.load_config(arguments.config)
        config = file_config.for_this_node()
        service_manager.set_log_level(arguments.log_level or config.agent.log_level)
        if arguments.check:
            return offline_commands.check(config)
        if arguments.restore:
            return offline_commands.restore(config)
        if arguments.safe_limits:
            return offline_commands.lower_ceilings(config)
        if arguments.mount_resctrl:
            return offline_commands.mount_resctrl(config)
        agent = daemon.AgentDaemon(file_config, arguments.config, manager, arguments.log_level)
        asyncio.run(agent.run())
    except EnergyError as error:
        return service_manager.report_failure("senergyd", error)
    return EXIT_OK


def argument_parser() -> CommandParser:
    """Return the parser of the daemon's arguments."""
    parser = CommandParser(
        prog="senergyd",
        description="The node agent of slurm-energy: applies energy policies and measures jobs. Needs root.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--config", metavar="FILE", help="configuration, else $SENERGY_CONFIG, else /etc/slurm/energy.toml"
    )
    parser.add_argument(
        "--log-level",
        choices=service_manager.LOG_LEVELS,
        help="minimum level to log (default: agent.log_level)",
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="check configuration and devices, and exit")
    only.add_argument("--restore", action="store_true", help="restore journaled settings, and exit")
    only.add_argument(
        "--safe-limits",
        action="store_true",
        help="lower the ceilings of a power budget to the safe limits of the last decision, and exit",
    )
    only.add_argument(
        "--mount-resctrl",
        action="store_true",
        help='mount /sys/fs/resctrl if agent.resctrl = "mount" and it is not mounted, and exit',
    )
    parser.add_argument("--version", action="version", version=f"senergyd {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
