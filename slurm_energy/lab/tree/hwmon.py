"""/sys/class/hwmon: the ACPI power meter of the whole node."""

from __future__ import annotations

from slurm_energy.lab.silicon import Silicon
from slurm_energy.lab.tree.entries import File, Tree

DEVICES = "/sys/devices/virtual/hwmon"
CLASS = "/sys/class/hwmon"
INTERVAL_S = 1.0


class PowerMeter:
    """Mean power of the node over the last whole interval; whoever keeps time calls `sample`."""

    def __init__(self, silicon: Silicon) -> None:
        self._silicon = silicon
        with silicon.now() as model:
            self._since_s = model.now_s
            self._energy_joules = model.energy_joules("node")
            self._watts = model.power_watts("node")

    def sample(self) -> None:
        """End an interval: what it averaged is shown until the next one ends."""
        with self._silicon.now() as model:
            now_s, energy_joules = model.now_s, model.energy_joules("node")
        if now_s > self._since_s:
            self._watts = (energy_joules - self._energy_joules) / (now_s - self._since_s)
            self._since_s, self._energy_joules = now_s, energy_joules

    def microwatts(self) -> int:
        """Return what `power1_average` shows."""
        return round(self._watts * 1e6)


def add_hwmon(tree: Tree, meter: PowerMeter) -> None:
    """Add the power meter as hwmon0."""
    base = f"{DEVICES}/hwmon0"
    tree.text(f"{base}/name", "power_meter")
    tree.add(f"{base}/power1_average", File(lambda: b"%d\n" % meter.microwatts()))
    tree.text(f"{base}/power1_average_interval", str(int(INTERVAL_S * 1000)))
    tree.text(f"{base}/power1_is_battery", "0")
    tree.text(f"{base}/power1_accuracy", "99%")
    tree.text(f"{base}/power1_oem_info", "node")
    tree.link(f"{CLASS}/hwmon0", "../../devices/virtual/hwmon/hwmon0")
    tree.link(f"{base}/subsystem", "../../../../class/hwmon")
