"""Emulated files /dev/cpu/N/msr with 64-bit registers. Only root has access.

The file offset is the register number.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

from slurm_energy_lab.tree.entries import CharacterDevice, Tree, refuse
from slurm_energy_lab.tree.rapl_registers import LIMIT_MASK, RaplRegisters

RAPL_POWER_UNIT = 0x606
PKG_POWER_LIMIT = 0x610
PKG_ENERGY_STATUS = 0x611
PKG_PERF_STATUS = 0x613
PKG_POWER_INFO = 0x614
DRAM_POWER_LIMIT = 0x618
DRAM_ENERGY_STATUS = 0x619
DRAM_PERF_STATUS = 0x61B
DRAM_POWER_INFO = 0x61C
PP0_ENERGY_STATUS = 0x639
PLATFORM_ENERGY_STATUS = 0x64D
AMD_RAPL_POWER_UNIT = 0xC0010299
AMD_CORE_ENERGY_STATUS = 0xC001029A
AMD_PKG_ENERGY_STATUS = 0xC001029B
_LOW_LOCK = 1 << 31

RegisterReading = Callable[[], int]


class MsrDevice(CharacterDevice):
    """The model-specific registers (MSRs) of one CPU. All CPUs of a package share these registers."""

    __slots__ = ("_registers", "_writers")

    def __init__(
        self, registers: dict[int, RegisterReading], writers: dict[int, Callable[[int], None]]
    ) -> None:
        super().__init__(0o600)
        self._registers = registers
        self._writers = writers

    def read_at(self, size: int, offset: int) -> bytes:
        """Return the value of the register with number `offset`.

        The value is repeated for every 8 bytes of `size`.

        Raises:
            OSError: EINVAL if `size` is not a multiple of 8, EIO for an unknown register.
        """
        if size % 8:
            refuse(errno.EINVAL)
        reading = self._registers.get(offset)
        if reading is None:
            refuse(errno.EIO)
        return struct.pack("<Q", reading()) * (size // 8)

    def write_at(self, data: bytes, offset: int, uid: int) -> int:
        """Write the register with number `offset` and return the number of bytes written.

        Raises:
            OSError: EINVAL if the size is not a multiple of 8, EIO if the access would fault on hardware.
        """
        if len(data) % 8:
            refuse(errno.EINVAL)
        writer = self._writers.get(offset)
        if writer is None:
            refuse(errno.EIO)
        for (value,) in struct.iter_unpack("<Q", data):
            writer(value)
        return len(data)


def add_msrs(tree: Tree, registers: RaplRegisters) -> None:
    """Add /dev/cpu/N/msr for every logical CPU to a file tree."""
    cpu = registers.realtime_model.profile.cpu
    for package in range(cpu.packages):
        device = _package_device(registers, package)
        for number in cpu.package_cpus(package):
            tree.add(f"/dev/cpu/{number}/msr", device)


def _package_device(registers: RaplRegisters, package: int) -> MsrDevice:
    if registers.realtime_model.profile.cpu.vendor == "AuthenticAMD":
        return MsrDevice(_amd_readings(registers, package), {})
    writers: dict[int, Callable[[int], None]] = {}
    if registers.limits and not registers.limits[package].locked:
        writers[PKG_POWER_LIMIT] = registers.limits[package].write
    return MsrDevice(_intel_readings(registers, package), writers)


def _unit_register(registers: RaplRegisters) -> int:
    rapl = registers.realtime_model.profile.rapl
    return rapl.power_unit_exponent | rapl.energy_unit_exponent << 8 | rapl.time_unit_exponent << 16


def _amd_readings(registers: RaplRegisters, package: int) -> dict[int, RegisterReading]:
    cores = registers.realtime_model.profile.cpu.cores_per_package
    units = _unit_register(registers)
    return {
        AMD_RAPL_POWER_UNIT: lambda: units,
        AMD_CORE_ENERGY_STATUS: lambda: registers.raw_energy(f"core[{package}]") // cores,
        AMD_PKG_ENERGY_STATUS: lambda: registers.raw_energy(f"cpu[{package}]"),
    }


def _intel_readings(registers: RaplRegisters, package: int) -> dict[int, RegisterReading]:
    rapl = registers.realtime_model.profile.rapl
    units = _unit_register(registers)
    readings: dict[int, RegisterReading] = {
        RAPL_POWER_UNIT: lambda: units,
        PKG_ENERGY_STATUS: lambda: registers.raw_energy(f"cpu[{package}]"),
        PKG_PERF_STATUS: lambda: registers.throttled_time_raw(package),
    }
    if registers.limits:
        info = _power_info(registers)
        readings[PKG_POWER_LIMIT] = lambda: registers.limits[package].value
        readings[PKG_POWER_INFO] = lambda: info
    if rapl.dram_energy_unit_exponent is not None:
        readings[DRAM_POWER_LIMIT] = lambda: _LOW_LOCK
        readings[DRAM_ENERGY_STATUS] = lambda: registers.raw_energy(f"dram[{package}]")
        readings[DRAM_PERF_STATUS] = lambda: 0
        readings[DRAM_POWER_INFO] = lambda: 0
    if rapl.core:
        readings[PP0_ENERGY_STATUS] = lambda: registers.raw_energy(f"core[{package}]")
    if rapl.psys:
        readings[PLATFORM_ENERGY_STATUS] = lambda: registers.raw_energy("node")
    return readings


def _power_info(registers: RaplRegisters) -> int:
    """Return the value of MSR 0x614: thermal design power and maximum limit in raw units of power."""
    unit_uw = registers.units.power_uw
    tdp = round(registers.realtime_model.profile.cpu.tdp_watts * 1e6) // unit_uw & LIMIT_MASK
    highest = max(constraint.max_watts for constraint in registers.limits[0].constraints)
    return tdp | (round(highest * 1e6) // unit_uw & LIMIT_MASK) << 32
