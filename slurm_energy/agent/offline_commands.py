"""Commands of senergyd that do not start the agent: --check, --restore, --safe-limits, --mount-resctrl."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from slurm_energy.agent.budget.device_ceilings import lower_to_safe_limits
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.config import Config, this_node
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.cpu.resctrl import mount_if_offered
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.node.power_options import node_power_options
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, EXIT_UNAVAILABLE


def check(config: Config) -> int:
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


def restore(config: Config) -> int:
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


def lower_ceilings(config: Config) -> int:
    """Lower the power limits of this node's devices after senergyd has ended.

    Without senergyd, no process adapts the limits to the power budget. The limits are therefore lowered to
    the safe limits, which the last decision of the controller contains. The systemd unit calls this function
    whenever senergyd has ended, also after a crash or kill -9.

    Return the exit code.
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


def mount_resctrl(config: Config) -> int:
    """Mount the resctrl file system if `agent.resctrl` is `mount`, and return the exit code.

    The systemd unit calls this function outside the limits of the service before it starts senergyd. Within
    these limits the kernel refuses a mount.

    Raises:
        DeviceError: the kernel refused.
    """
    if config.agent.resctrl == "mount":
        mount_if_offered(Path("/"))
    return EXIT_OK
