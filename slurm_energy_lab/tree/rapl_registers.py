"""RAPL registers of a node: energy counters and limit registers. Powercap files and MSRs share them.

This module holds raw values and units. The modules `powercap` and `msr` provide the values as files.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from slurm_energy_lab.model import Constraint, NodeModel, NodeProfile
from slurm_energy_lab.realtime_model import RealtimeModel, SteppedCounter

COUNTER_MASK = 0xFFFFFFFF
COUNTER_INTERVAL_S = 0.001
LIMIT_MASK = 0x7FFF
WINDOW_MASK = 0x7F
INTEL_SERVER_DRAM_UNIT_NJ = 15_300
"""Fixed DRAM energy unit that the kernel uses on Intel servers instead of 2**-16 J."""

_SHIFTS = {"long_term": 0, "short_term": 32}
_ENABLE_BIT, _CLAMP_BIT, _WINDOW_SHIFT, _LOCK_BIT = 15, 16, 17, 63


@dataclass(frozen=True, slots=True)
class RaplUnits:
    """Units of the raw register values, as integers as in the Linux driver.

    Attributes:
        power_uw: microwatts per unit of power.
        energy_nj: nanojoules per count of an energy counter.
        dram_energy_nj: nanojoules per count of the DRAM energy counter.
        time_us: microseconds per unit of time.
    """

    power_uw: int
    energy_nj: int
    dram_energy_nj: int
    time_us: int

    @classmethod
    def of(cls, profile: NodeProfile) -> RaplUnits:
        """Return the register units of the processor that a node profile describes."""
        rapl = profile.rapl
        dram = rapl.dram_energy_unit_exponent
        dram_nj = 10**9 >> (rapl.energy_unit_exponent if dram is None else dram)
        if dram == 16 and profile.cpu.vendor == "GenuineIntel":
            dram_nj = INTEL_SERVER_DRAM_UNIT_NJ
        return cls(
            power_uw=10**6 >> rapl.power_unit_exponent,
            energy_nj=10**9 >> rapl.energy_unit_exponent,
            dram_energy_nj=dram_nj,
            time_us=10**6 >> rapl.time_unit_exponent,
        )


def window_to_raw(window_us: int, time_unit_us: int) -> int:
    """Return the 7-bit field of a RAPL register that encodes a time window.

    The field encodes a time of 2^Y (1 + Z/4) time units, with Y in the low five bits and Z in the upper two
    bits. The time is rounded down, as in the kernel.

    Args:
        window_us: the time window in microseconds.
        time_unit_us: the register's unit of time in microseconds.
    """
    if window_us < time_unit_us:
        return 0
    steps = window_us // time_unit_us
    exponent = steps.bit_length() - 1
    if exponent > 0x1F:
        return WINDOW_MASK
    fraction = 4 * (steps - (1 << exponent)) >> exponent
    return exponent | (fraction & 3) << 5


def window_from_raw(raw: int, time_unit_us: int) -> int:
    """Return the time window in microseconds that a 7-bit field represents.

    `time_unit_us` is the unit of time in microseconds.
    """
    exponent, fraction = raw & 0x1F, raw >> 5 & 3
    return (1 << exponent) * (4 + fraction) * time_unit_us // 4


class LimitRegister:
    """Power limit register of a package or of one die (MSR 0x610, or its mmio counterpart).

    A write changes the limits of the node model. If each die of a package has a register, the limit of the
    package is the sum of the limits of its dies.
    """

    def __init__(
        self, realtime_model: RealtimeModel, package: int, interface: str, locked: bool, dies: int = 1
    ) -> None:
        """Set the register to its value after power-on.

        Args:
            realtime_model: the node's model.
            package: number of the package.
            interface: `msr` or `mmio`.
            locked: whether the firmware has locked the register.
            dies: number of registers among which the package's limits are divided.
        """
        self.package_registers = [self]
        self._realtime_model = realtime_model
        self._package = package
        self._interface = interface
        self._units = RaplUnits.of(realtime_model.profile)
        self.constraints: tuple[Constraint, ...] = realtime_model.profile.rapl.constraints
        self.value = int(locked) << _LOCK_BIT
        for constraint in self.constraints:
            shift = _SHIFTS[constraint.name]
            window = window_to_raw(round(constraint.window_s * 1e6), self._units.time_us)
            raw = round(constraint.limit_watts / dies * 1e6) // self._units.power_uw & LIMIT_MASK
            fields = raw | window << _WINDOW_SHIFT | int(constraint.enabled) * 3 << _ENABLE_BIT
            self.value |= fields << shift
        self._push()

    @property
    def locked(self) -> bool:
        """Whether the firmware has locked the register until the next reset."""
        return bool(self.value >> _LOCK_BIT & 1)

    def limit_uw(self, name: str) -> int:
        """Return the limit of a constraint, `long_term` or `short_term`, in microwatts."""
        return self._field(name, 0, LIMIT_MASK) * self._units.power_uw

    def set_limit_uw(self, name: str, limit_uw: int) -> None:
        """Set the limit of a constraint.

        The limit is rounded down to the unit of power and silently truncated to 15 bits.
        """
        self._set_field(name, 0, LIMIT_MASK, limit_uw // self._units.power_uw)

    def window_us(self, name: str) -> int:
        """Return the averaging time of a power limit in microseconds.

        `name` is the RAPL constraint, `long_term` or `short_term`.
        """
        return window_from_raw(self._field(name, _WINDOW_SHIFT, WINDOW_MASK), self._units.time_us)

    def set_window_us(self, name: str, window_us: int) -> None:
        """Set the averaging window of a power limit (RAPL constraint), in microseconds.

        The window is rounded down to a value that the register can represent.
        """
        raw = window_to_raw(window_us, self._units.time_us)
        self._set_field(name, _WINDOW_SHIFT, WINDOW_MASK, raw)

    def enabled(self, name: str = "long_term") -> bool:
        """Return whether one of the power limits (constraints) of the emulated register is enabled."""
        return bool(self._field(name, _ENABLE_BIT, 1))

    def set_enabled(self, enabled: bool) -> None:
        """Enable or disable the long-term limit together with its clamping bit."""
        self._set_field("long_term", _ENABLE_BIT, 3, 3 if enabled else 0)

    def write(self, value: int) -> None:
        """Replace the value of an emulated RAPL limit register, as a write to the real MSR does."""
        self.value = value & (1 << 64) - 1
        self._push()

    def _field(self, name: str, offset: int, mask: int) -> int:
        return self.value >> _SHIFTS[name] + offset & mask

    def _set_field(self, name: str, offset: int, mask: int, raw: int) -> None:
        shift = _SHIFTS[name] + offset
        self.value = self.value & ~(mask << shift) | (raw & mask) << shift
        self._push()

    def _push(self) -> None:
        """Pass the limits to the node model.

        A limit that is disabled or 0 has no effect.
        """
        with self._realtime_model.modify() as model:
            for constraint in self.constraints:
                name = constraint.name
                watts = sum(register.limit_uw(name) for register in self.package_registers) / 1e6
                window_s = min(register.window_us(name) for register in self.package_registers) / 1e6
                enabled = all(register.enabled(name) for register in self.package_registers) and watts > 0
                model.set_package_limit(self._package, name, watts, window_s, enabled, self._interface)


def die_registers(
    realtime_model: RealtimeModel, package: int, interface: str, locked: bool, dies: int
) -> list[LimitRegister]:
    """Return the limit registers of a package, one per die.

    Args:
        realtime_model: the node's model.
        package: number of the package.
        interface: `msr` or `mmio`.
        locked: whether the firmware has locked the registers.
        dies: number of dies of the package.
    """
    registers = [LimitRegister(realtime_model, package, interface, locked, dies) for _ in range(dies)]
    for register in registers:
        register.package_registers = registers
        register.write(register.value)
    return registers


class RaplRegisters:
    """Energy counters and limit registers of all packages of a node."""

    def __init__(
        self,
        realtime_model: RealtimeModel,
        energy_offset_joules: float = 0.0,
        locked: bool = False,
        range_joules: float | None = None,
    ) -> None:
        """Set all emulated RAPL registers to their values after power-on.

        Args:
            realtime_model: the node's model.
            energy_offset_joules: initial value of every counter.
            locked: whether the firmware has locked the package limits.
            range_joules: energy after which the counters wrap. The unit of the counters is then rounded to
                whole nanojoules. None means the range that follows from the profile's units.
        """
        self.realtime_model = realtime_model
        self.units = RaplUnits.of(realtime_model.profile)
        if range_joules is not None:
            unit_nj = max(1, round(range_joules * 1e9 / (COUNTER_MASK + 1)))
            self.units = dataclasses.replace(self.units, energy_nj=unit_nj, dram_energy_nj=unit_nj)
        self._offset_joules = energy_offset_joules
        self._start_s = realtime_model.clock()
        self._counters: dict[str, SteppedCounter] = {}
        profile = realtime_model.profile
        packages = range(profile.cpu.packages) if profile.rapl.constraints else ()
        dies = profile.rapl.dies or 1
        self.die_limits = [
            die_registers(realtime_model, package, "msr", locked, dies) for package in packages
        ]
        self.limits = [registers[0] for registers in self.die_limits]
        self.mmio_limits = [
            LimitRegister(realtime_model, package, "mmio", locked)
            for package in packages
            if profile.rapl.mmio
        ]

    def raw_energy(self, domain: str) -> int:
        """Return the value of an emulated 32-bit RAPL energy counter.

        The domain is `cpu[i]`, `dram[i]`, `core[i]` or `node` (psys). `cpu[0]/2` is the counter of one of
        the two dies of package 0. Both dies use the same energy.
        """
        counter = self._counters.get(domain)
        if counter is None:
            unit_j = (self.units.dram_energy_nj if domain[0] == "d" else self.units.energy_nj) * 1e-9
            counter = SteppedCounter(
                lambda model: int((self._offset_joules + self._joules(model, domain)) / unit_j),
                COUNTER_INTERVAL_S,
            )
            self._counters[domain] = counter
        with self.realtime_model.now() as model:
            return counter.value(model) & COUNTER_MASK

    def energy_uj(self, domain: str) -> int:
        """Return the value of `energy_uj`, in microjoules, for a domain."""
        return self.raw_energy(domain) * self._unit_nj(domain) // 1000

    def energy_range_uj(self, domain: str) -> int:
        """Return the maximum value of an emulated RAPL counter (`max_energy_range_uj`) in microjoules.

        `domain` is the domain that the counter measures.
        """
        return COUNTER_MASK * self._unit_nj(domain) // 1000

    def throttled_time_raw(self, package: int) -> int:
        """Return the time for which limits throttled a package, in raw units of time (MSR 0x613)."""
        with self.realtime_model.now() as model:
            return int(model.package_throttled_s(package) * 1e6 / self.units.time_us) & COUNTER_MASK

    def _unit_nj(self, domain: str) -> int:
        return self.units.dram_energy_nj if domain[0] == "d" else self.units.energy_nj

    def _joules(self, model: NodeModel, domain: str) -> float:
        """Return the energy of a RAPL domain in joules.

        The emulated energy of the cores of package i (`core[i]`) is the energy of the package minus the
        energy that the package would use in deep sleep.
        """
        if not domain.startswith("core"):
            part, _, dies = domain.partition("/")
            return model.energy_joules(part) / int(dies or 1)
        idle_joules = self.realtime_model.profile.cpu.idle_watts * (model.now_s - self._start_s)
        return max(0.0, model.energy_joules(f"cpu{domain[4:]}") - idle_joules)
