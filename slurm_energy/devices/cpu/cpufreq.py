"""Frequency settings of CPUs for every cpufreq driver.

The settings are the governor, the frequency bounds, energy_performance_preference and boost. The lower and
the upper bound form one setting (knob), because the permitted order of their writes depends on both.

Source: kernel, Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst and amd-pstate.rst.
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
    """A hardware setting (knob) whose value is one word in one sysfs file."""

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
    """Knob for the file `scaling_governor` of one cpufreq policy (group of CPUs).

    When the governor changes, intel_pstate and amd-pstate in active mode also change
    energy_performance_preference.
    """

    name = "cpufreq.governor"
    stage = WriteStage.GOVERNOR

    def dependents_at(self, current: str) -> tuple[str, ...]:
        """Return the keys of the settings (knobs) that may change when the governor is written.

        If the current governor is `userspace`, the keys include `cpufreq.setspeed`, because the configured
        speed is lost when another governor is selected.
        """
        return (
            (*self.dependents, f"{UserspaceSpeed.name}[{self.domain}]")
            if current == "userspace"
            else self.dependents
        )


class EnergyPerformancePreference(_FileKnob):
    """Hardware setting (knob) `energy_performance_preference` of one cpufreq policy."""

    name = "cpufreq.epp"
    stage = WriteStage.PREFERENCE

    def satisfies(self, requested: str, actual: str) -> bool:
        """Return whether the driver holds the requested preference.

        After `default` is written, drivers show the name or the number of their default.
        """
        return requested in ("default", actual)


class UserspaceSpeed(_FileKnob):
    """scaling_setspeed of one cpufreq policy, in kHz.

    The file has an effect, and is readable as a number, only while the governor is `userspace`.
    """

    name = "cpufreq.setspeed"
    stage = WriteStage.SETSPEED

    def write(self, value: str) -> None:
        """Set the speed in kHz.

        Do nothing for `<unsupported>`, which the kernel reports under other governors.
        """
        if value != UNSUPPORTED:
            super().write(value)


class CpufreqBoost(_FileKnob):
    """Switch for frequencies above the base frequency on all CPUs: `1` allows them, `0` forbids them.

    Args:
        path: file of the switch.
        inverted: whether `1` in the file forbids boost, as in intel_pstate's no_turbo.
        dependents: keys of the frequency range settings. A write to the switch may change these ranges.
    """

    name = "cpufreq.boost"
    stage = WriteStage.BOOST

    def __init__(self, path: Path, inverted: bool, dependents: tuple[str, ...]) -> None:
        super().__init__("all", path, dependents)
        self.inverted = inverted

    def read(self) -> str:
        """Return `1` if frequencies above the base frequency are allowed, `0` if not."""
        value = super().read()
        return {"0": "1", "1": "0"}.get(value, value) if self.inverted else value

    def write(self, value: str) -> None:
        """Allow (`1`) or forbid (`0`) frequencies above the base frequency."""
        super().write({"0": "1", "1": "0"}[value] if self.inverted else value)


class CpufreqRange(Knob):
    """The range from scaling_min_freq to scaling_max_freq of one cpufreq policy, as `LOW-HIGH` in kHz."""

    name = "cpufreq.frequency"
    stage = WriteStage.FREQUENCY

    def __init__(self, domain: str, folder: Path) -> None:
        super().__init__(domain)
        self._low = folder / "scaling_min_freq"
        self._high = folder / "scaling_max_freq"

    def files(self) -> tuple[Path, ...]:
        """Return the files of both bounds: scaling_min_freq and scaling_max_freq."""
        return self._low, self._high

    def read(self) -> str:
        """Return the lower and the upper frequency bound as `LOW-HIGH` in kHz."""
        low, high = read_text(self._low), read_text(self._high)
        if not (low.isdecimal() and high.isdecimal()):
            raise DeviceError(str(self._low.parent), f"frequency bounds '{low}' and '{high}'")
        return f"{low}-{high}"

    def write(self, value: str) -> None:
        """Write both bounds, given as `LOW-HIGH` in kHz.

        The order of the two writes keeps minimum <= maximum at every moment, as kernels before 5.3 require.
        """
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
        """Return whether both bounds agree within 50 MHz.

        Drivers round to steps of up to 100 MHz.
        """
        (low, high), (low_now, high_now) = parse_range(requested), parse_range(actual)
        return abs(low - low_now) <= _ROUNDING_KHZ and abs(high - high_now) <= _ROUNDING_KHZ

    def satisfies(self, requested: str, actual: str) -> bool:
        """Return whether the actual upper frequency bound is at most 50 MHz above the requested bound.

        Drivers with a frequency table round the bound to a frequency in the table.
        """
        return parse_range(actual)[1] <= parse_range(requested)[1] + _ROUNDING_KHZ

    def format_value(self, value: str) -> str:
        """Convert a range from kHz to text in MHz."""
        low, high = parse_range(value)
        return f"{low / 1000:g}-{high / 1000:g} MHz"


def discover(root: Path) -> tuple[list[CpufreqPolicy], list[Knob]]:
    """Return the node's cpufreq policies with their current bounds, and their hardware settings.

    The settings (knobs) are a separate list. It includes the switch for boost. Both lists are empty on a
    node without cpufreq.
    """
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
    """Return the energy preferences that the cpufreq driver supports.

    AMD's active driver lists only `performance` under the performance governor, and all preferences under
    the powersave governor. If the performance governor is set and only `performance` is listed, this
    function therefore returns all preferences. Source: kernel, drivers/cpufreq/amd-pstate.c.
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
