"""CPU frequency: governor, bounds, energy_performance_preference and boost, for every cpufreq driver.

Source: kernel, Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst and amd-pstate.rst.
The two bounds are one knob, because the permitted order of their writes depends on both.
"""

from __future__ import annotations

import re
from pathlib import Path

from slurm_energy.devices.driver import DeviceError, Knob, WriteStage
from slurm_energy.devices.hardware import CpufreqPolicy
from slurm_energy.devices.settings import parse_range
from slurm_energy.devices.sysfs import parse_cpu_list, read_number, read_optional, read_text, write_text

_CPU = Path("sys/devices/system/cpu")
_POLICY = re.compile(r"policy(\d+)")
_ROUNDING_KHZ = 50_000
_PREFERENCES = ("default", "performance", "balance_performance", "balance_power", "power")
UNSUPPORTED = "<unsupported>"


class _FileKnob(Knob):
    """A knob that is one word in one file."""

    def __init__(self, domain: str, path: Path, dependents: tuple[str, ...] = ()) -> None:
        super().__init__(domain, dependents)
        self.path = path

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def read(self) -> str:
        return read_text(self.path)

    def write(self, value: str) -> None:
        write_text(self.path, value)


class CpufreqGovernor(_FileKnob):
    """scaling_governor of one policy; active drivers change the preference together with it."""

    name = "cpufreq.governor"
    stage = WriteStage.GOVERNOR

    def dependents_at(self, current: str) -> tuple[str, ...]:
        """Return the dependent knobs; leaving the userspace governor also loses the speed that was set."""
        return (
            (*self.dependents, f"{UserspaceSpeed.name}[{self.domain}]")
            if current == "userspace"
            else self.dependents
        )


class EnergyPerformancePreference(_FileKnob):
    """energy_performance_preference of one policy."""

    name = "cpufreq.epp"
    stage = WriteStage.PREFERENCE


class UserspaceSpeed(_FileKnob):
    """scaling_setspeed; it is effective, and readable as a number, only under the userspace governor."""

    name = "cpufreq.setspeed"
    stage = WriteStage.SETSPEED

    def write(self, value: str) -> None:
        """Set the speed in kHz; outside the userspace governor there is nothing to set."""
        if value != UNSUPPORTED:
            super().write(value)


class CpufreqBoost(_FileKnob):
    """Switch for frequencies above the base frequency, for all CPUs: `1` allows them, `0` forbids them."""

    name = "cpufreq.boost"
    stage = WriteStage.BOOST

    def __init__(self, path: Path, inverted: bool, dependents: tuple[str, ...]) -> None:
        super().__init__("all", path, dependents)
        self.inverted = inverted

    def read(self) -> str:
        """Return `1` if boost is allowed, `0` if not."""
        value = super().read()
        return {"0": "1", "1": "0"}.get(value, value) if self.inverted else value

    def write(self, value: str) -> None:
        """Allow (`1`) or forbid (`0`) boost."""
        super().write({"0": "1", "1": "0"}[value] if self.inverted else value)


class CpufreqRange(Knob):
    """scaling_min_freq and scaling_max_freq of one policy, as `LOW-HIGH` in kHz."""

    name = "cpufreq.frequency"
    stage = WriteStage.FREQUENCY

    def __init__(self, domain: str, folder: Path) -> None:
        super().__init__(domain)
        self._low = folder / "scaling_min_freq"
        self._high = folder / "scaling_max_freq"

    def files(self) -> tuple[Path, ...]:
        """Return the files of both bounds."""
        return self._low, self._high

    def read(self) -> str:
        """Return both bounds in kHz."""
        low, high = read_text(self._low), read_text(self._high)
        if not (low.isdecimal() and high.isdecimal()):
            raise DeviceError(str(self._low.parent), f"frequency bounds '{low}' and '{high}'")
        return f"{low}-{high}"

    def write(self, value: str) -> None:
        """Write both bounds; minimum <= maximum holds at every moment, as kernels before 5.3 require."""
        low, high = parse_range(value)
        try:
            low_now, high_now = parse_range(self.read())
        except DeviceError:
            low_now, high_now = 0, 0
        parts = [(self._low, low, low_now), (self._high, high, high_now)]
        for path, requested_khz, current_khz in parts if low <= high_now else reversed(parts):
            if requested_khz != current_khz:
                write_text(path, str(requested_khz))

    def is_equivalent(self, requested: str, actual: str) -> bool:
        """Return whether both bounds agree up to rounding; drivers round to steps of up to 100 MHz."""
        (low, high), (low_now, high_now) = parse_range(requested), parse_range(actual)
        return abs(low - low_now) <= _ROUNDING_KHZ and abs(high - high_now) <= _ROUNDING_KHZ

    def satisfies(self, requested: str, actual: str) -> bool:
        """Return whether the upper bound holds: table drivers round it to a frequency of their table."""
        return parse_range(actual)[1] <= parse_range(requested)[1] + _ROUNDING_KHZ

    def format_value(self, value: str) -> str:
        """Return the bounds in MHz."""
        low, high = parse_range(value)
        return f"{low / 1000:g}-{high / 1000:g} MHz"


def discover(root: Path) -> tuple[list[CpufreqPolicy], list[Knob]]:
    """Return the node's policies with their current bounds, and their knobs; both empty without cpufreq."""
    folder = root / _CPU / "cpufreq"
    try:
        names = [entry.name for entry in folder.iterdir() if _POLICY.fullmatch(entry.name)]
    except OSError:
        return [], []
    policies: list[CpufreqPolicy] = []
    knobs: list[Knob] = []
    for name in sorted(names, key=lambda text: int(text[6:])):
        try:
            policies.append(_policy(folder / name))
        except (DeviceError, ValueError):
            continue  # all CPUs of the policy are offline
        knobs += _policy_knobs(folder / name)
    return policies, _boost(root, [knob.key for knob in knobs if knob.name == CpufreqRange.name]) + knobs


def _policy(folder: Path) -> CpufreqPolicy:
    return CpufreqPolicy(
        name=folder.name,
        cpus=parse_cpu_list(read_text(folder / "affected_cpus")),
        driver=read_optional(folder / "scaling_driver") or "",
        governors=tuple((read_optional(folder / "scaling_available_governors") or "").split()),
        preferences=_preferences(folder),
        hardware_range_khz=(
            int(read_text(folder / "cpuinfo_min_freq")),
            int(read_text(folder / "cpuinfo_max_freq")),
        ),
        bounds_khz=(
            int(read_text(folder / "scaling_min_freq")),
            int(read_text(folder / "scaling_max_freq")),
        ),
        available_khz=tuple(
            int(text) for text in (read_optional(folder / "scaling_available_frequencies") or "").split()
        ),
    )


def _preferences(folder: Path) -> tuple[str, ...]:
    """Return the preferences that the driver supports.

    Under the performance governor AMD's active driver lists only that preference; under powersave it lists
    all of them. Source: kernel, drivers/cpufreq/amd-pstate.c.
    """
    preferences = tuple((read_optional(folder / "energy_performance_available_preferences") or "").split())
    if preferences == ("performance",) and read_optional(folder / "scaling_governor") == "performance":
        return _PREFERENCES
    return preferences


def _policy_knobs(folder: Path) -> list[Knob]:
    knobs: list[Knob] = [CpufreqRange(folder.name, folder)]
    affected: list[str] = []
    epp = folder / "energy_performance_preference"
    if read_optional(epp) is not None:
        knobs.append(EnergyPerformancePreference(folder.name, epp))
        affected.append(knobs[-1].key)
    if read_optional(folder / "scaling_setspeed") is not None:
        knobs.append(UserspaceSpeed(folder.name, folder / "scaling_setspeed"))
    if read_optional(folder / "scaling_governor") is not None:
        knobs.append(CpufreqGovernor(folder.name, folder / "scaling_governor", tuple(affected)))
    return knobs


def _boost(root: Path, ranges: list[str]) -> list[Knob]:
    for path, inverted in (("cpufreq/boost", False), ("intel_pstate/no_turbo", True)):
        if read_number(root / _CPU / path) is not None:
            return [CpufreqBoost(root / _CPU / path, inverted, tuple(ranges))]
    return []
