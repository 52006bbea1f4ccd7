"""Emulated powercap class: control types `intel-rapl` and `intel-rapl-mmio`, their zones and constraints.

The module follows drivers/powercap/powercap_sys.c and intel_rapl_common.c. Numbers are decimal. Every
rejection by the driver becomes ENODATA (constraints) or ENOSYS (enabled), and a failed energy reading becomes
EINVAL. In a package with several dies, each die has a zone such as `package-0-die-1` (rapl_add_package). All
dies of an AMD package show the register of their socket. Document: Documentation/power/powercap/powercap.rst.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from slurm_energy_lab.tree import kernel_parsers
from slurm_energy_lab.tree.entries import File, Store, Tree, refuse
from slurm_energy_lab.tree.rapl_registers import LimitRegister, RaplRegisters

DEVICES = "/sys/devices/virtual/powercap"
CLASS = "/sys/class/powercap"


@dataclass(frozen=True, slots=True)
class EmulatedZone:
    """One emulated powercap zone.

    Attributes:
        path: path below the directory of devices.
        name: content of the file `name`.
        domain: name of the energy counter in `RaplRegisters`.
        limits: register with the power limits of the zone; None if the zone has no limits.
        dram: whether the zone is the DRAM zone.
    """

    path: str
    name: str
    domain: str
    limits: LimitRegister | None = None
    dram: bool = False


def add_powercap(tree: Tree, registers: RaplRegisters) -> None:
    """Add the files of the kernel's powercap interface to a file tree.

    The files contain all zones of the profile. They belong to the control type `intel-rapl` and, if the
    profile has it, to `intel-rapl-mmio`.
    """
    rapl = registers.realtime_model.profile.rapl
    _add_control_type(tree, "intel-rapl")
    for zone in zones(registers):
        _add_zone(tree, registers, zone)
    if rapl.mmio:
        _add_control_type(tree, "intel-rapl-mmio")
        for package, limits in enumerate(registers.mmio_limits):
            path = f"intel-rapl-mmio/intel-rapl-mmio:{package:x}"
            _add_zone(tree, registers, EmulatedZone(path, f"package-{package}", f"cpu[{package}]", limits))


def zones(registers: RaplRegisters) -> list[EmulatedZone]:
    """Return the power zones below `intel-rapl`.

    The zone psys (the whole platform) follows the first package, so zone numbers are not package numbers.
    """
    profile = registers.realtime_model.profile
    made: list[EmulatedZone] = []
    number = 0
    dies = profile.rapl.dies or 1
    shares = f"/{dies}" if profile.cpu.vendor == "GenuineIntel" else ""
    for package, die in itertools.product(range(profile.cpu.packages), range(dies)):
        path = f"intel-rapl/intel-rapl:{number:x}"
        limits = registers.die_limits[package][die] if registers.die_limits else None
        name = f"package-{package}" + (f"-die-{die}" if dies > 1 else "")
        made.append(EmulatedZone(path, name, f"cpu[{package}]{shares if dies > 1 else ''}", limits))
        made += _subzones(path, package, registers, shares if dies > 1 else "")
        number += 1
        if number == 1 and profile.rapl.psys:
            made.append(EmulatedZone(f"intel-rapl/intel-rapl:{number:x}", "psys", "node"))
            number += 1
    return made


def _subzones(path: str, package: int, registers: RaplRegisters, share: str = "") -> list[EmulatedZone]:
    rapl = registers.realtime_model.profile.rapl
    names = ["core"] if rapl.core else []
    names += ["dram"] if rapl.dram_energy_unit_exponent is not None else []
    parent = path.rpartition("/")[2]
    return [
        EmulatedZone(
            f"{path}/{parent}:{index:x}",
            name,
            f"{name}[{package}]{share if name == 'dram' else ''}",
            dram=name == "dram",
        )
        for index, name in enumerate(names)
    ]


def _add_control_type(tree: Tree, name: str) -> None:
    base = f"{DEVICES}/{name}"
    tree.add(f"{base}/enabled", File(b"1\n", 0o644, _refuse_enabled))
    _add_class_links(tree, base)


def _add_class_links(tree: Tree, base: str) -> None:
    name = base.rpartition("/")[2]
    below = base.removeprefix("/sys/")
    tree.link(f"{CLASS}/{name}", f"../../{below}")
    tree.link(f"{base}/subsystem", "../" * below.count("/") + "../class/powercap")
    tree.add(f"{base}/uevent", File(b"", 0o644, lambda data: None))


def _refuse_enabled(data: bytes) -> None:
    kernel_parsers.boolean(data)
    refuse(errno.ENOSYS)


def _add_zone(tree: Tree, registers: RaplRegisters, zone: EmulatedZone) -> None:
    base = f"{DEVICES}/{zone.path}"
    _add_class_links(tree, base)
    tree.text(f"{base}/name", zone.name)
    tree.add(f"{base}/energy_uj", File(lambda: b"%d\n" % registers.energy_uj(zone.domain), mode=0o400))
    tree.text(f"{base}/max_energy_range_uj", str(registers.energy_range_uj(zone.domain)))
    limits = zone.limits
    if limits is None:
        tree.add(f"{base}/enabled", File(b"0\n", 0o644, _refuse_enabled))
        if zone.dram and registers.limits:
            _add_locked_dram_constraint(tree, base, registers)
        return
    tree.add(
        f"{base}/enabled",
        File(
            lambda: b"%d\n" % (limits.enabled() and not limits.locked),
            0o644,
            lambda data: _store_enabled(limits, data),
        ),
    )
    for number, constraint in enumerate(limits.constraints):
        _add_constraint(tree, f"{base}/constraint_{number}", limits, constraint.name)
        tree.text(f"{base}/constraint_{number}_max_power_uw", str(round(constraint.max_watts * 1e6)))


def _add_constraint(tree: Tree, stem: str, limits: LimitRegister, name: str) -> None:
    tree.text(f"{stem}_name", name)
    _add_number(
        tree,
        f"{stem}_power_limit_uw",
        lambda: limits.limit_uw(name),
        lambda data: _store_number(limits, data, lambda value: limits.set_limit_uw(name, value)),
    )
    _add_number(
        tree,
        f"{stem}_time_window_us",
        lambda: limits.window_us(name),
        lambda data: _store_number(limits, data, lambda value: limits.set_window_us(name, value)),
    )


def _add_locked_dram_constraint(tree: Tree, base: str, registers: RaplRegisters) -> None:
    """Add the powercap files of a DRAM power limit that the firmware has locked.

    The kernel calls a power limit a constraint. The firmware of servers usually locks the constraint of
    the DRAM. The constraint can be read. Every write is rejected.
    """
    stem = f"{base}/constraint_0"
    tree.text(f"{stem}_name", "long_term")
    tree.text(
        f"{stem}_max_power_uw", str(round(registers.realtime_model.profile.memory.idle_watts * 4) * 10**6)
    )
    _add_number(tree, f"{stem}_power_limit_uw", lambda: 0, _refuse_constraint)
    _add_number(tree, f"{stem}_time_window_us", lambda: registers.units.time_us, _refuse_constraint)


def _add_number(tree: Tree, path: str, show: Callable[[], int], store: Store) -> None:
    tree.add(path, File(lambda: b"%d\n" % show(), 0o644, store))


def _parse(data: bytes) -> int:
    try:
        return kernel_parsers.decimal_u64(data)
    except OSError:
        refuse(errno.EINVAL)


def _refuse_constraint(data: bytes) -> None:
    _parse(data)
    refuse(errno.ENODATA)


def _store_number(limits: LimitRegister, data: bytes, take: Callable[[int], None]) -> None:
    value = _parse(data)
    if limits.locked:
        refuse(errno.ENODATA)
    take(value)


def _store_enabled(limits: LimitRegister, data: bytes) -> None:
    enabled = kernel_parsers.boolean(data)
    if limits.locked:
        refuse(errno.ENOSYS)
    limits.set_enabled(enabled)
