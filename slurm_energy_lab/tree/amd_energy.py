"""Emulated files in /sys/class/hwmon: AMD's energy counters as shown by the kernel driver amd_energy.

Kernels had this driver before powercap supported AMD. The module follows drivers/hwmon/amd_energy.c (upstream
until Linux 5.12) and Documentation/hwmon/amd_energy.rst. There is one channel for each core (`EcoreNNN`),
followed by one channel for each NUMA node. The channel of a NUMA node is called `EsocketN`, although it shows
the register of the package to which the NUMA node belongs. Values are microjoules, unwrapped by the driver.
The mode is 0440.
"""

from __future__ import annotations

from collections.abc import Callable

from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import File, Tree
from slurm_energy_lab.tree.hwmon import CLASS, DEVICES

_CHIP = "hwmon8"


def add_amd_energy(tree: Tree, realtime_model: RealtimeModel) -> None:
    """Add the files of the kernel driver amd_energy to the file tree of an emulated node.

    The node has a single chip of this driver.
    """
    base, cpu = f"{DEVICES}/{_CHIP}", realtime_model.profile.cpu
    tree.text(f"{base}/name", "amd_energy")
    for core in range(cpu.cores):
        package = core // cpu.cores_per_package
        _add_channel(
            tree, base, core + 1, f"Ecore{core:03d}", _joules(realtime_model, package, cpu.cores_per_package)
        )
    for node in range(cpu.numa_nodes):
        first = next(number for number in range(cpu.cpus) if cpu.numa_node_of(number) == node)
        channel = cpu.cores + node + 1
        _add_channel(tree, base, channel, f"Esocket{node}", _joules(realtime_model, cpu.package_of(first), 1))
    tree.link(f"{CLASS}/{_CHIP}", f"../../devices/virtual/hwmon/{_CHIP}")
    tree.link(f"{base}/subsystem", "../../../../class/hwmon")


def _add_channel(tree: Tree, base: str, channel: int, label: str, joules: Callable[[], float]) -> None:
    tree.text(f"{base}/energy{channel}_label", label)
    tree.add(f"{base}/energy{channel}_input", File(lambda: b"%d\n" % int(joules() * 1e6), 0o440))


def _joules(realtime_model: RealtimeModel, package: int, parts: int) -> Callable[[], float]:
    """Return a function that returns an equal part of a package's energy in joules.

    Args:
        realtime_model: model of the node.
        package: number of the package.
        parts: number of parts into which the energy is divided.
    """

    def read() -> float:
        with realtime_model.now() as model:
            return model.energy_joules(f"cpu[{package}]") / parts

    return read
