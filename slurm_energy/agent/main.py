"""Command line of senergyd, the node agent.

Every error is reported in one line and with a documented exit code.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

from slurm_energy import __version__, service_manager
from slurm_energy.agent.budget.device_ceilings import lower_to_safe_limits
from slurm_energy.agent.daemon import AgentDaemon, load_config
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.command_line.guarded import guarded
from slurm_energy.command_line.parser import CommandParser
from slurm_energy.config import Config, this_node
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.node.power_options import node_power_options
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, EXIT_UNAVAILABLE, EnergyError, UsageError

_EPILOG = """examples:
  senergyd                             serve with /etc/slurm/energy.toml
  senergyd --config ./energy.toml      serve with another file
  senergyd --check                     check the configuration, list the devices, and exit
  senergyd --restore                   restore settings left by a lost agent, and exit
  senergyd --safe-limits               lower a stopped agent's power ceilings to its safe limits, and exit

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
    manager = service_manager.ServiceManager.from_environment()
    service_manager.start_log("senergyd", arguments.log_level or "info")
    service_manager.ignore_level_signals()
    try:
        file_config = load_config(arguments.config)
        config = file_config.for_this_node()
        service_manager.set_log_level(arguments.log_level or config.agent.log_level)
        if arguments.check:
            return _check(config)
        if arguments.restore:
            return _restore(config)
        if arguments.safe_limits:
            return _lower_to_safe_limits(config)
        asyncio.run(_run(file_config, arguments, manager))
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
    parser.add_argument("--version", action="version", version=f"senergyd {__version__}")
    return parser


async def _run(
    config: Config, arguments: argparse.Namespace, manager: service_manager.ServiceManager
) -> None:
    await AgentDaemon(config, arguments.config, manager, arguments.log_level).run()


def _check(config: Config) -> int:
    """Print the configuration and the node's devices, and return the exit code.

    The exit code reports a failure if the node has nothing to measure or set.
    """
    devices = discover(node_power=node_power_options(config.node_power, this_node()))
    hardware = devices.hardware
    print(f"configuration: {config.path or 'defaults'}")
    print(f"processor: {hardware.cpu_model or 'unknown'}, {hardware.cpu_count} CPUs online")
    for gpu in hardware.gpus:
        print(f"gpu {gpu.index}: {gpu.name}")
    for counter in devices.counters:
        print(f"counter: {counter.key} -> {counter.component} ({counter.quality})")
    for counter in devices.node_counters:
        print(f"node counter: {counter.key}")
    for name, count in Counter(knob.name for knob in devices.knobs.values()).items():
        print(f"knob: {name} x {count}")
    for note in devices.notes:
        print(f"note: {note}")
    devices.close()
    if devices.counters or devices.knobs:
        return EXIT_OK
    print("senergyd: error: this node has no device to measure or set", file=sys.stderr)
    return EXIT_UNAVAILABLE


def _restore(config: Config) -> int:
    """Restore every setting in the settings journal and return the exit code.

    Settings of running jobs are restored too. The ceilings of a power budget stay while the configuration
    enforces budgets.
    """
    state = StateDirectory(config.agent.state_dir)
    devices = discover()
    settings = SettingsManager(devices, state.journal)
    results = settings.repair(running=())
    if config.budget.mode != "enforce":
        results += settings.lift_ceilings()
    devices.close()
    state.close()
    for result in results:
        print(f"{result.key}: {result.note or 'restored'}")
    if not results:
        print("nothing to restore")
    if state.journal.entries and config.budget.mode == "enforce":
        print('ceilings of the power budget stay; budget.mode = "off" lifts them')
    return EXIT_OK if all(result.done for result in results) else EXIT_FAILURE


def _lower_to_safe_limits(config: Config) -> int:
    """Lower the ceilings of a power budget to the safe limits of the last decision.

    Return the exit code.

    The systemd unit calls this whenever senergyd has ended, also after a crash or kill -9.
    """
    if config.budget.mode != "enforce":
        print("no power budget is enforced")
        return EXIT_OK
    state = StateDirectory(config.agent.state_dir)
    devices = discover()
    settings = SettingsManager(devices, state.journal)
    ceilings = lower_to_safe_limits(devices, settings, state.folder, config)
    devices.close()
    state.close()
    for name, watts in ceilings.items():
        print(f"{name}: at most {watts:g} W")
    if not ceilings:
        print("no decision of the controller is stored")
    return EXIT_FAILURE if state.journal.write_error else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
