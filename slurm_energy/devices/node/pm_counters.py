"""HPE Cray nodes: energy that the blade controller measures, in /sys/cray/pm_counters.

Each file contains a number and its unit, in newer versions also a time stamp, for example
`598732067 J 1408036567538123 us`. All files are updated together about ten times a second. `freshness`
counts the updates, so a group of files is consistent if it is the same before and after. `startup` changes
when the counters restart. `energy` is the whole node, including accelerators. Source: HPE Cray EX, "Access
the PM counters", and Slurm, src/plugins/acct_gather_energy/pm_counters.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from slurm_energy.devices.driver import DeviceError, EnergyCounter
from slurm_energy.devices.sysfs import read_error

_FOLDER = Path("sys/cray/pm_counters")
_ACCELERATOR = re.compile(r"accel(\d+)_energy")
_SINGLE_CPU = re.compile(r"cpu\d+_energy")
_MAX_WATTS = {"node": 30_000.0, "cpu": 2000.0, "dram": 1000.0, "gpu": 3000.0}
_ATTEMPTS = 5
_NUMBER = re.compile(rb"\s*(\d+)")


class CounterFileGroup:
    """The counter files, which stay open and are read together.

    Each counter of the group reads its own number. The files are read again when a counter reads for the
    second time, so that the numbers of one round belong together.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        """Create the group.

        Args:
            folder: the directory.
            names: files to read together.
        """
        self._folder = folder
        self._names = names
        self._descriptors: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def next_number(self, name: str) -> int:
        """Return the number of a file, from a round that has not returned this file's number before.

        Raises:
            DeviceError: a file cannot be read, or updates are too frequent to read a consistent round.
        """
        if name not in self._numbers:
            self._numbers = self._round()
        return self._numbers.pop(name)

    def close(self) -> None:
        """Close the files; the next round opens them again."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._numbers.clear()

    def _round(self) -> dict[str, int]:
        try:
            for _ in range(_ATTEMPTS):
                before = self._read("freshness")
                numbers = {name: self._read(name) for name in self._names}
                if self._read("freshness") == before:
                    return numbers
        except OSError as error:
            self.close()
            raise read_error(self._folder, error) from None
        raise DeviceError(str(self._folder), "counters change while they are read")

    def _read(self, name: str) -> int:
        if name not in self._descriptors:
            self._descriptors[name] = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        match = _NUMBER.match(os.pread(self._descriptors[name], 128, 0))
        if match is None:
            raise DeviceError(str(self._folder / name), "not a number")
        return int(match[1])


class PmEnergyCounter(EnergyCounter):
    """One energy file; it counts whole joules and does not wrap."""

    range_uj = None

    def __init__(self, group: CounterFileGroup, file: str, component: str) -> None:
        """Create the counter of one file of the group."""
        self.key = f"pm_counters:{file.removesuffix('_energy')}"
        self.component = component
        self.source = f"pm_counters:{'accel' if component.startswith('gpu') else component}"
        self.max_watts = _MAX_WATTS[component.partition("[")[0]]
        self._group, self._file = group, file

    def read(self) -> int:
        """Return microjoules."""
        return self._group.next_number(self._file) * 1_000_000

    def close(self) -> None:
        """Close the group."""
        self._group.close()


def discover(root: Path) -> list[EnergyCounter]:
    """Return the node's counters; empty on other machines."""
    folder = root / _FOLDER
    try:
        files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith("energy"))
    except OSError:
        return []
    components = {file: component for file in files if (component := _component(file, files))}
    group = CounterFileGroup(folder, list(components))
    return [PmEnergyCounter(group, file, component) for file, component in components.items()]


def _component(file: str, files: list[str]) -> str | None:
    """Return the component of a file; None for a file whose energy another file includes."""
    if match := _ACCELERATOR.fullmatch(file):
        return f"gpu[{int(match[1])}]"
    if _SINGLE_CPU.fullmatch(file):
        return None if "cpu_energy" in files else "cpu"
    return {"energy": "node", "cpu_energy": "cpu", "memory_energy": "dram"}.get(file)
