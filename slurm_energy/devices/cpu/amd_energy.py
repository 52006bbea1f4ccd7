"""Energy of AMD sockets through the hwmon driver amd_energy, for kernels without powercap zones for AMD.

The labels of the channels are EcoreNNN and EsocketN. The driver makes one Esocket channel per NUMA node, so
that a socket with several NUMA nodes shows the same register several times. Source: kernel (until 5.12),
drivers/hwmon/amd_energy.c and Documentation/hwmon/amd_energy.rst.
"""

from __future__ import annotations

import re
from pathlib import Path

from slurm_energy.devices.driver import EnergyCounter
from slurm_energy.devices.hwmon import HwmonChip, find_chips
from slurm_energy.devices.sysfs import CounterFile, parse_cpu_list, read_number, read_optional

_NAME = "amd_energy"
_SOCKET = re.compile(r"Esocket(\d+)")
_MAX_WATTS = 1000.0


class AmdEnergyCounter(EnergyCounter):
    """Energy counter of a socket. The file energyN_input stays open between readings.

    The driver unwraps the register.

    The driver multiplies register units by 10^6. This product overflows at 2^64, which corresponds to an
    energy of 281 MJ. The overflow looks like a reset of the counter and makes the energy of one interval
    uncertain.
    """

    range_uj = None
    component = "cpu"
    source = "hwmon:amd_energy"
    max_watts = _MAX_WATTS

    def __init__(self, socket: int, path: Path) -> None:
        self.key = f"amd_energy:socket{socket}"
        self._file = CounterFile(path)

    def read(self) -> int:
        """Return the energy count in microjoules."""
        return self._file.read()

    def close(self) -> None:
        """Close the counter's energyN_input file."""
        self._file.close()


def discover(root: Path) -> list[EnergyCounter]:
    """Return one energy counter for each CPU socket that the driver amd_energy shows.

    The list is empty on a node without this driver.
    """
    packages = _package_by_node(root)
    counters: list[EnergyCounter] = []
    for chip in find_chips(root, _NAME):
        entries = _entries(chip)
        if len(entries) > len(set(packages.values())) > 0:
            # The driver made one entry per NUMA node: keep the first entry of each package.
            first = {package: node for node, package in reversed(packages.items())}
            entries = [(number, path) for number, path in entries if number in first.values()]
        counters += [AmdEnergyCounter(len(counters) + index, path) for index, (_, path) in enumerate(entries)]
    return counters


def _entries(chip: HwmonChip) -> list[tuple[int, Path]]:
    """Return the socket energy channels (Esocket) of a hwmon chip, sorted by socket.

    Each channel is a pair of the socket number in the label and the energyN_input file.
    """
    entries = []
    for channel in chip.channels("energy", "input"):
        match = _SOCKET.fullmatch(chip.text(f"energy{channel}_label"))
        path = chip.file(f"energy{channel}_input")
        if match and path:
            entries.append((int(match[1]), path))
    return sorted(entries)


def _package_by_node(root: Path) -> dict[int, int]:
    """Map each NUMA node to its package number, in ascending order of the nodes.

    The mapping is empty if the packages are unknown.
    """
    folder = root / "sys/devices/system/node"
    packages: dict[int, int] = {}
    for node in sorted(int(path.name[4:]) for path in folder.glob("node[0-9]*")):
        try:
            cpus = parse_cpu_list(read_optional(folder / f"node{node}/cpulist") or "")
        except ValueError:
            continue
        if not cpus:
            continue
        topology = root / f"sys/devices/system/cpu/cpu{cpus[0]}/topology"
        if (package := read_number(topology / "physical_package_id")) is not None:
            packages[node] = package
    return packages
