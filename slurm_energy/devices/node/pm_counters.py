"""HPE Cray nodes: energy that the blade controller measures, in /sys/cray/pm_counters.

Each file contains a number and its unit, in newer versions also a time stamp, for example `598732067 J
1408036567538123 us`. All files are updated together about ten times a second. The file `freshness` counts the
updates. Values that are read while `freshness` does not change belong to the same update. The file `startup`
changes when the counters restart. The file `energy` is the energy of the whole node, including accelerators.
Source: HPE Cray EX, "Access the PM counters", and Slurm, src/plugins/acct_gather_energy/pm_counters.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from time import monotonic

from slurm_energy.devices.driver import DeviceError, EnergyCounter
from slurm_energy.devices.sysfs import read_error

_FOLDER = Path("sys/cray/pm_counters")
_ACCELERATOR = re.compile(r"accel(\d+)_energy")
_SINGLE_CPU = re.compile(r"cpu\d+_energy")
_MAX_WATTS = {"node": 30_000.0, "cpu": 2000.0, "dram": 1000.0, "gpu": 3000.0}
_ATTEMPTS = 5
_MAX_ROUND_AGE_S = 0.05  # shorter than an update of the counters
_NUMBER = re.compile(rb"\s*(\d+)")


class CounterFileGroup:
    """Counter files that are kept open and read together.

    Their numbers belong to one update if a sample reads them within `_MAX_ROUND_AGE_S`.

    One round reads all files, and each counter takes the number of its own file from this round. The next
    round begins when a counter requests its number for the second time, or when the round is older than
    `_MAX_ROUND_AGE_S`. Without the second rule, a counter that was not read in one sample would be one sample
    behind the others from then on.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        """Create the group.

        Args:
            folder: directory of the counter files.
            names: names of the files to read together.
        """
        self._folder = folder
        self._names = names
        self._descriptors: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._round_s = 0.0

    def next_number(self, name: str) -> int:
        """Return the number in one file of the group.

        All files are read together in a round. Each number of a round is returned once. If the number of
        this file has been returned already, or is too old, a new round reads all files.

        Raises:
            DeviceError: a file cannot be read, or updates are so frequent that no consistent round succeeds.
        """
        if name not in self._numbers or monotonic() - self._round_s > _MAX_ROUND_AGE_S:
            self._numbers = self._round()
            self._round_s = monotonic()  # slow reads of the files do not make the numbers old
        return self._numbers.pop(name)

    def close(self) -> None:
        """Close the counter files; the next call of `next_number` opens them again."""
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
    """Energy counter in one file of Cray pm_counters; it counts whole joules and does not wrap."""

    range_uj = None

    def __init__(self, group: CounterFileGroup, file: str, component: str) -> None:
        """Create the counter.

        Args:
            group: group of counter files that includes the file.
            file: name of the file, for example `cpu_energy`.
            component: component of an energy record that the file measures.
        """
        self.key = f"pm_counters:{file.removesuffix('_energy')}"
        self.component = component
        self.source = f"pm_counters:{'accel' if component.startswith('gpu') else component}"
        self.max_watts = _MAX_WATTS[component.partition("[")[0]]
        self._group, self._file = group, file

    def read(self) -> int:
        """Return the energy count in microjoules."""
        return self._group.next_number(self._file) * 1_000_000

    def close(self) -> None:
        """Close all files of the group."""
        self._group.close()


def discover(root: Path) -> list[EnergyCounter]:
    """Return the energy counters of a Cray node.

    The list is empty on a node without /sys/cray/pm_counters.
    """
    folder = root / _FOLDER
    try:
        files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith("energy"))
    except OSError:
        return []
    components = {file: component for file in files if (component := _component(file, files))}
    group = CounterFileGroup(folder, list(components))
    return [PmEnergyCounter(group, file, component) for file, component in components.items()]


def _component(file: str, files: list[str]) -> str | None:
    """Return the component that a file measures.

    Return None if the component is unknown, or if its energy is included in another file.

    Args:
        file: name of the file.
        files: names of all energy files of the node.
    """
    if match := _ACCELERATOR.fullmatch(file):
        return f"gpu[{int(match[1])}]"
    if _SINGLE_CPU.fullmatch(file):
        return None if "cpu_energy" in files else "cpu"
    return {"energy": "node", "cpu_energy": "cpu", "memory_energy": "dram"}.get(file)
