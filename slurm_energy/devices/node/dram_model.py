"""Model of the power of memory, for nodes that do not measure this power.

The quality of the values is always `modelled`.

Source: thesis, Eq. 4.1 and 4.2. A table gives the power of each memory module (DIMM) by its size. The sum
over all modules is multiplied by a factor that depends on the share of memory in use. Memory on the package
of a processor or GPU (HBM) is measured together with that package and is not part of the model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.node.smbios import MemoryModule, memory_modules
from slurm_energy.devices.power_sensor import PowerReading, PowerSensor, boottime_s
from slurm_energy.devices.sysfs import error_reason
from slurm_energy.records import Quality

MODULE_WATTS = ((16, 4.0), (32, 5.0), (64, 6.0), (128, 8.0), (256, 10.0))
"""Pairs (size in GiB, watts): power of a memory module up to this size. Source: thesis, 4.2.2."""
USAGE_FACTORS = ((0.05, 0.30), (0.15, 0.60), (0.25, 0.70), (0.50, 0.75), (1.00, 0.80))
"""Pairs (bound, factor): factor for a share of memory in use below the bound. The last two bounds are
inclusive. Source: thesis, 4.2.2.
"""
_GIB = 1 << 30
_MEMINFO_BYTES = 512


def module_watts(size_bytes: int) -> float:
    """Return the base power in watts of a memory module (DIMM).

    The base power comes from a table. If the size of the module lies between two sizes of the table, the
    larger one applies. For a module above the largest size of the table, the power of the largest size is
    scaled by the ratio of the sizes.
    """
    size_gib = size_bytes / _GIB
    for bound_gib, watts in MODULE_WATTS:
        if size_gib <= bound_gib:
            return watts
    largest_gib, watts = MODULE_WATTS[-1]
    return watts * size_gib / largest_gib


def usage_factor(used_share: float) -> float:
    """Return by how much the base power of memory is scaled when a given share of it is in use.

    The factor is the value of a table (thesis, 4.2.2). It grows with the used share.

    Args:
        used_share: share of memory in use, 0 to 1.
    """
    for bound, factor in USAGE_FACTORS[:3]:
        if used_share < bound:
            return factor
    return USAGE_FACTORS[3][1] if used_share <= USAGE_FACTORS[3][0] else USAGE_FACTORS[4][1]


def model_watts(sizes_bytes: Sequence[int], used_share: float) -> float:
    """Return the power of all memory modules together in watts (thesis, Eq. 4.1, module by module).

    Args:
        sizes_bytes: size of each module.
        used_share: share of memory in use, 0 to 1.
    """
    return sum(module_watts(size) for size in sizes_bytes) * usage_factor(used_share)


def used_share(meminfo: bytes) -> float:
    """Return the share of memory in use, 0 to 1: 1 - MemAvailable / MemTotal.

    Args:
        meminfo: content of /proc/meminfo.

    Raises:
        ValueError: the line MemTotal or the line MemAvailable is missing.
    """
    values: dict[bytes, int] = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(b":")
        if name in (b"MemTotal", b"MemAvailable"):
            values[name] = int(rest.split()[0])
    if len(values) < 2 or values[b"MemTotal"] <= 0:
        raise ValueError("MemTotal or MemAvailable is missing")
    return min(1.0, max(0.0, 1 - values[b"MemAvailable"] / values[b"MemTotal"]))


class DramPowerModel(PowerSensor):
    """Sensor that estimates the power of the node's DRAM with a model.

    The inputs of the model are the sizes of the memory modules and the current memory use.
    """

    key = "dram_model"
    component = "dram"
    source = "model:dram"
    interval_s = 1.0
    quality = Quality.MODELLED

    def __init__(self, sizes_bytes: Sequence[int], meminfo: Path) -> None:
        """Create the sensor.

        Args:
            sizes_bytes: size of each memory module.
            meminfo: path of /proc/meminfo.
        """
        self._sizes = tuple(sizes_bytes)
        self.max_watts = model_watts(self._sizes, 1.0)
        self._path = meminfo
        self._descriptor: int | None = None

    def read(self) -> PowerReading:
        """Return the modelled power at this moment."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            share = used_share(os.pread(self._descriptor, _MEMINFO_BYTES, 0))
        except OSError as error:
            self.close()
            raise DeviceError(str(self._path), error_reason(error)) from None
        except (ValueError, IndexError) as error:
            raise DeviceError(str(self._path), str(error)) from None
        return PowerReading(boottime_s(), model_watts(self._sizes, share))

    def close(self) -> None:
        """Close the file /proc/meminfo, from which the model estimates the power of the memory."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def discover(root: Path) -> tuple[DramPowerModel | None, str]:
    """Return the model that estimates the power of this node's memory, and an empty text.

    If a model is not possible, return None and the reason.
    """
    modules = memory_modules(root)
    if not modules:
        return None, "dram model: the firmware's table of memory modules is absent or unreadable"
    counted = [module for module in modules if not _on_package(module)]
    sizes = [module.size_bytes for module in counted if module.size_bytes]
    if len(sizes) < len(counted) or not sizes:
        return None, "dram model: the firmware does not report the size of every memory module"
    return DramPowerModel(sizes, root / "proc/meminfo"), ""


def _on_package(module: MemoryModule) -> bool:
    return module.memory_type.startswith("HBM")
