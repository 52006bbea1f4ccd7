"""Ceilings of a node's packages and GPUs: the upper bounds that a power budget sets on their power limits.

The settings manager writes and journals the ceilings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from slurm_energy.agent.budget.lease_file import LeaseFile
from slurm_energy.agent.budget.limited_devices import LimitedDevice, ceiling_watts, limited_devices
from slurm_energy.config import Config
from slurm_energy.control.settings_manager import SettingsManager
from slurm_energy.devices.discovery import NodeDevices

LEASE_FILE = "budget.json"
"""Name of the file with the lease in the state directory."""
MAX_WINDOW_S: Final = 0.1
"""Maximum averaging window, in seconds, of the ceilings of packages. A job that starts on an idle package may
exceed the ceiling within this window, by up to the whole range of the limit. In the lab a window of 1 s let
a job exceed the ceiling for 0.2 s."""


class DeviceCeilings:
    """Ceilings of the devices of a node: upper bounds that power budgets set for power limits.

    Args:
        devices: devices of the node.
        settings: writes ceilings and journals the original values.
        config: returns the current configuration.

    Attributes:
        limited: packages and GPUs by name, with the ranges of their power limits, as `find` read them last.
    """

    def __init__(self, devices: NodeDevices, settings: SettingsManager, config: Callable[[], Config]) -> None:
        self._devices, self._settings, self._config = devices, settings, config
        self.limited: dict[str, LimitedDevice] = {}

    def find(self) -> None:
        """Read the devices of the node and the ranges of their power limits into `limited`."""
        found = limited_devices(self._devices, self._settings.journal)
        self.limited = {device.name: device for device in found}

    def watts(self, name: str) -> float | None:
        """Return the ceiling of a device in watts; None if the device has no ceiling.

        The ceiling is the upper bound that power budgets set on the device's power limit.
        """
        device = self.limited.get(name)
        return None if device is None else ceiling_watts(device, self._settings.journal)

    def lower(self, watts: Mapping[str, float]) -> bool:
        """Lower the ceilings (upper bounds of power) of devices; return whether the journal was written.

        A device whose present ceiling is already lower keeps this ceiling.
        """
        current = {name: self.watts(name) for name in watts if name in self.limited}
        return self.set(
            {
                name: min(watts[name], math.inf if ceiling is None else ceiling)
                for name, ceiling in current.items()
            }
        )

    def set(self, watts: Mapping[str, float | None]) -> bool:
        """Set or lift the ceilings of devices. A ceiling is a power limit that a power budget sets.

        Return whether the journal could be written.

        Args:
            watts: ceiling by name of the device; None lifts the ceiling of that device.
        """
        ceilings: dict[str, str | None] = {}
        window_s = min(self._config().agent.set_rapl_time_window_s, MAX_WINDOW_S)
        for name, limit in watts.items():
            device = self.limited[name]
            settings = device.settings(device.max_watts or 0.0 if limit is None else limit, window_s)
            present = [setting for setting in settings if setting.key in self._devices.knobs]
            ceilings |= {setting.key: None if limit is None else setting.value for setting in present}
        return self._settings.set_ceilings(ceilings) if ceilings else True

    def keep(self) -> None:
        """Restore the ceilings that other programs have overwritten.

        A ceiling is the upper bound that a power budget sets for a device's power limit. It is written again
        on each device on which another program has set a higher power limit.
        """
        entries = self._settings.journal.entries
        ceilings = {key: entry.ceiling for key, entry in entries.items() if entry.ceiling is not None}
        if ceilings:
            self._settings.set_ceilings(ceilings)


def lower_to_safe_limits(
    devices: NodeDevices, settings: SettingsManager, folder: Path, config: Config
) -> Mapping[str, float]:
    """Lower the power limits of a node to the safe limits, after the agent has stopped.

    The safe limits belong to the controller's last decision. A node keeps them when it has no contact to the
    controller. Without this call, the hardware would keep the higher limits (ceilings) of the last decision,
    even when the limit of the budget falls. The stored lease and the decision number remain, so that the
    next agent continues from them.

    Args:
        devices: devices of the node.
        settings: writes ceilings and journals the original values.
        folder: state directory of the agent. This process must have locked the directory.
        config: the configuration.

    Returns:
        The ceilings that are now in force, in watts by device; empty if no decision is stored.
    """
    lease = LeaseFile(folder / LEASE_FILE).load()
    if lease is None:
        return {}
    ceilings = DeviceCeilings(devices, settings, lambda: config)
    ceilings.find()
    ceilings.lower(lease.decision.safe_watts)
    watts = {name: ceilings.watts(name) for name in lease.decision.safe_watts}
    return {name: ceiling for name, ceiling in watts.items() if ceiling is not None}
