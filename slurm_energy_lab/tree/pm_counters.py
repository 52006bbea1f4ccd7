"""Emulated files of an HPE Cray node in /sys/cray/pm_counters.

On a real node, they contain measurements of the blade controller. All files are updated together ten times a
second. They contain whole joules or watts and a time stamp in microseconds. `freshness` counts the updates.
Source: HPE Cray EX, "Access the PM counters".
"""

from __future__ import annotations

from collections.abc import Callable

from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import File, Tree

FOLDER = "/sys/cray/pm_counters"
SCAN_HZ = 10
_NAMES = {"cpu": "cpu", "dram": "memory", "node": ""}


class PmCountersScan:
    """Values of all emulated pm_counters files (Cray's power counters) at their last update.

    All files show these values until the next update.
    """

    def __init__(self, realtime_model: RealtimeModel) -> None:
        self._realtime_model = realtime_model
        self._start_s = realtime_model.clock()
        self.freshness = -1
        self.stamp_us = 0
        self.joules: dict[str, float] = {}
        self.watts: dict[str, float] = {}
        self.refresh()

    def refresh(self) -> None:
        """Update the values if the next update is due."""
        due = int((self._realtime_model.clock() - self._start_s) * SCAN_HZ)
        if due <= self.freshness:
            return
        with self._realtime_model.now() as model:
            parts = [*_NAMES, *(f"gpu[{index}]" for index in range(self._realtime_model.profile.gpu_count))]
            self.joules = {part: model.energy_joules(part) for part in parts}
            self.watts = {part: model.power_watts(part) for part in parts}
            self.freshness, self.stamp_us = due, int(model.now_s * 1e6)


def add_pm_counters(tree: Tree, realtime_model: RealtimeModel) -> None:
    """Add Cray pm_counters to the file tree of an emulated node.

    There are counters of the node, its processors, its memory and its accelerators.
    """
    scan = PmCountersScan(realtime_model)
    for part in scan.joules:
        stem = _NAMES[part] if part in _NAMES else f"accel{part[4:-1]}"
        prefix = f"{stem}_" if stem else ""
        tree.add(f"{FOLDER}/{prefix}energy", File(_shown(scan, part, "J")))
        tree.add(f"{FOLDER}/{prefix}power", File(_shown(scan, part, "W")))
    tree.add(f"{FOLDER}/freshness", File(_counter(scan)))
    for name, value in {
        "generation": 1,
        "startup": scan.stamp_us,
        "version": 3,
        "raw_scan_hz": SCAN_HZ,
    }.items():
        tree.text(f"{FOLDER}/{name}", str(value))


def _shown(scan: PmCountersScan, part: str, unit: str) -> Callable[[], bytes]:
    def content() -> bytes:
        scan.refresh()
        value = int((scan.joules if unit == "J" else scan.watts)[part])
        return b"%d %s %d us\n" % (value, unit.encode(), scan.stamp_us)

    return content


def _counter(scan: PmCountersScan) -> Callable[[], bytes]:
    def content() -> bytes:
        scan.refresh()
        return b"%d\n" % scan.freshness

    return content
