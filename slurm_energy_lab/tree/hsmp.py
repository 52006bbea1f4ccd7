"""Emulated files in /sys/class/hwmon: one `amd_hsmp_hwmon` chip per socket, with power and power limit.

The module follows drivers/platform/x86/amd/hsmp/hwmon.c and hwmon.c. Values are decimal microwatts, a
negative value is rejected with EINVAL, and the firmware receives whole milliwatts. Assumption: the firmware
lowers a limit above its maximum to the maximum.
"""

from __future__ import annotations

import errno

from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree import kernel_parsers
from slurm_energy_lab.tree.entries import File, Tree, refuse
from slurm_energy_lab.tree.hwmon import CLASS, DEVICES

_FIRST_CHIP = 1
_UW_PER_MW = 1000
_INTERFACE, _CONSTRAINT, _WINDOW_S = "hsmp", "long_term", 0.1


class HsmpSocket:
    """AMD's host system management port (HSMP) of one socket."""

    def __init__(self, realtime_model: RealtimeModel, package: int) -> None:
        profile = realtime_model.profile
        self._realtime_model = realtime_model
        self._package = package
        self.max_mw = round((profile.rapl.hsmp_max_watts or 0.0) * 1000)
        self._limit_mw = min(round(profile.cpu.tdp_watts * 1000), self.max_mw)
        self._push()

    def power_uw(self) -> int:
        """Return the value of `power1_input`, in microwatts."""
        with self._realtime_model.now() as model:
            return int(model.power_watts(f"cpu[{self._package}]") * 1000) * _UW_PER_MW

    def limit_uw(self) -> int:
        """Return the value of `power1_cap`, in microwatts."""
        return self._limit_mw * _UW_PER_MW

    def store_limit(self, data: bytes) -> None:
        """Process a write to `power1_cap`."""
        if data.lstrip().startswith(b"-"):
            refuse(errno.EINVAL)
        self._limit_mw = min(kernel_parsers.decimal_u64(data) // _UW_PER_MW, self.max_mw)
        self._push()

    def _push(self) -> None:
        with self._realtime_model.modify() as model:
            watts = self._limit_mw / 1000
            model.set_package_limit(self._package, _CONSTRAINT, watts, _WINDOW_S, watts > 0, _INTERFACE)


def add_hsmp(tree: Tree, realtime_model: RealtimeModel) -> None:
    """Add one hwmon chip of AMD's HSMP driver per socket to a file tree.

    The chips have the numbers after the chip of the power meter.
    """
    for package in range(realtime_model.profile.cpu.packages):
        socket, name = HsmpSocket(realtime_model, package), f"hwmon{_FIRST_CHIP + package}"
        _add_chip(tree, f"{DEVICES}/{name}", socket)
        tree.link(f"{CLASS}/{name}", f"../../devices/virtual/hwmon/{name}")


def _add_chip(tree: Tree, base: str, socket: HsmpSocket) -> None:
    tree.text(f"{base}/name", "amd_hsmp_hwmon")
    tree.add(f"{base}/power1_input", File(lambda: b"%d\n" % socket.power_uw()))
    tree.add(f"{base}/power1_cap", File(lambda: b"%d\n" % socket.limit_uw(), 0o644, socket.store_limit))
    tree.text(f"{base}/power1_cap_max", str(socket.max_mw * _UW_PER_MW))
    tree.link(f"{base}/subsystem", "../../../../class/hwmon")
