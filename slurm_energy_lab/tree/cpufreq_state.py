"""Model of the kernel's cpufreq drivers: accepted writes, their effect, and the file contents.

The module follows the kernel's cpufreq core and its drivers. The core (drivers/cpufreq/cpufreq.c) stores the
requested minimum and maximum unchanged and derives the policy in force from them. The drivers in the same
directory are acpi-cpufreq.c, intel_pstate.c (intel_pstate and intel_cpufreq), amd-pstate.c (amd-pstate,
passive or guided, and amd-pstate-epp) and cppc_cpufreq.c. The kernel documents the drivers in
Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst and amd-pstate.rst.

This module accesses neither files nor the node model. A rejected write raises OSError.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from slurm_energy_lab.model import CpufreqProfile, FrequencyRequest
from slurm_energy_lab.tree.entries import refuse

ACTIVE_DRIVERS = ("intel_pstate", "amd-pstate-epp")
GENERIC_GOVERNORS = ("conservative", "ondemand", "userspace", "powersave", "performance", "schedutil")
ACTIVE_GOVERNORS = ("performance", "powersave")
EPP_NAMES = ("default", "performance", "balance_performance", "balance_power", "power")
INTEL_EPP_VALUES = {"performance": 0, "balance_performance": 128, "balance_power": 192, "power": 255}
MODES = {
    "intel": {"active": "intel_pstate", "passive": "intel_cpufreq"},
    "amd": {"active": "amd-pstate-epp", "passive": "amd-pstate", "guided": "amd-pstate"},
}
_MAX_REQUEST = 2**31 - 1


@dataclass(slots=True)
class PolicySettings:
    """Requested frequency settings of one emulated cpufreq policy, which belongs to one CPU.

    Attributes:
        cpu: number of the logical CPU.
        governor: name of the governor.
        requested_min_khz: last value written to `scaling_min_freq`.
        requested_max_khz: last value written to `scaling_max_freq`.
        setspeed_khz: last value written to `scaling_setspeed`.
        epp: energy performance preference; None if the driver has none.
        saved_epp: energy performance preference that is restored when another governor replaces the governor
            performance.
    """

    cpu: int
    governor: str
    requested_min_khz: int
    requested_max_khz: int
    setspeed_khz: int
    epp: str | None
    saved_epp: str | None


class CpufreqState:
    """Frequency settings of all CPUs of a node.

    Every CPU has its own cpufreq policy.
    """

    def __init__(self, profile: CpufreqProfile, cpus: int, hwp: bool = False) -> None:
        """Set the state after boot.

        Args:
            profile: properties of the driver.
            cpus: number of logical CPUs.
            hwp: whether the processor has hardware P-states. If it has, Intel's driver has energy performance
                preferences in passive mode too (intel_pstate.c: intel_cpufreq.attr = hwp_cpufreq_attrs).
        """
        self.profile = profile
        self.driver = profile.driver
        self.hwp = hwp
        self.mode = "active" if self.active else "passive"
        # cppc_cpufreq.c: the core starts with boost off unless a driver enables it.
        self.boost = self.family != "cppc"
        self.max_perf_pct = 100
        self.min_perf_pct = max(1, profile.min_khz * 100 // profile.max_khz)
        self.policies = [self._initial_policy(cpu, profile.governor, profile.epp) for cpu in range(cpus)]

    def _initial_policy(self, cpu: int, governor: str, epp: str | None) -> PolicySettings:
        low, high = self.profile.min_khz, self.cpuinfo_max_khz
        if epp is None and self.family == "intel" and self.hwp:
            epp = "balance_performance"
        forced = self.active and governor == "performance" and epp is not None
        return PolicySettings(
            cpu, governor, low, high, self.profile.base_khz, "performance" if forced else epp, epp
        )

    @property
    def family(self) -> str:
        """Driver family `intel`, `amd`, `acpi` or `cppc`, which determines the set of cpufreq files."""
        if self.driver.startswith("amd"):
            return "amd"
        return {"i": "intel", "a": "acpi", "c": "cppc"}[self.driver[0]]

    @property
    def active(self) -> bool:
        """Whether the driver leaves the selection of the frequency to the firmware."""
        return self.driver in ACTIVE_DRIVERS

    @property
    def governors(self) -> tuple[str, ...]:
        """Governors that the current driver accepts, in the order of `scaling_available_governors`."""
        return ACTIVE_GOVERNORS if self.active else GENERIC_GOVERNORS

    @property
    def table_khz(self) -> tuple[int, ...]:
        """Descending frequency table of acpi-cpufreq; empty for other drivers."""
        return self.profile.available_khz if self.driver == "acpi-cpufreq" else ()

    @property
    def cpuinfo_max_khz(self) -> int:
        """Value of `cpuinfo_max_freq`.

        All drivers except acpi-cpufreq lower this value when boost is off.
        """
        if self.boost or self.family == "acpi":
            return self.profile.cpuinfo_max_khz
        return min(self.profile.base_khz, self.profile.cpuinfo_max_khz)

    def available_epp(self, policy: PolicySettings) -> str:
        """Return the content of `energy_performance_available_preferences`.

        With the governor performance, AMD's active driver offers only `performance` (amd-pstate.c,
        show_energy_performance_available_preferences). Intel's driver always lists all preferences.
        """
        if self.family == "amd" and policy.governor == "performance":
            return "performance"
        return " ".join(EPP_NAMES) + " "

    def limits_khz(self, policy: PolicySettings) -> tuple[int, int]:
        """Return the minimum and maximum frequency in kHz that are in force.

        Both requested frequencies are clamped to the hardware's range. If the minimum then exceeds the
        maximum, the minimum is lowered.
        """
        floor, ceiling = self.profile.min_khz, self.cpuinfo_max_khz
        high = min(max(policy.requested_max_khz, floor), ceiling)
        low = min(max(policy.requested_min_khz, floor), ceiling)
        if self.table_khz:
            high = max((khz for khz in self.table_khz if khz <= high), default=min(self.table_khz))
            low = min((khz for khz in self.table_khz if khz >= low), default=high)
        return min(low, high), high

    def set_governor(self, policy: PolicySettings, word: str, current_khz: int) -> None:
        """Process a write to `scaling_governor`.

        Governor names are case-insensitive.

        Args:
            policy: settings of the CPU.
            word: the written name.
            current_khz: current frequency of the CPU. The governor userspace keeps this frequency at first.

        Raises:
            OSError: EINVAL for a governor that the driver does not have.
        """
        name = word.lower()
        if name not in self.governors:
            refuse(errno.EINVAL)
        if name == "userspace" and policy.governor != "userspace":
            policy.setspeed_khz = current_khz
        if self.active and name != policy.governor:
            self._follow_governor_with_epp(policy, name)
        policy.governor = name

    def _follow_governor_with_epp(self, policy: PolicySettings, governor: str) -> None:
        """Update the energy performance preference after a change of the governor.

        Governor performance sets the preference to `performance`. When another governor replaces this
        governor, only Intel's driver restores the previous preference.
        """
        if governor == "performance":
            policy.saved_epp, policy.epp = policy.epp, "performance"
        elif self.family == "intel":
            policy.epp = policy.saved_epp

    def request_min(self, policy: PolicySettings, khz: int) -> None:
        """Process a write to `scaling_min_freq`.

        Raises:
            OSError: EINVAL for a negative value.
        """
        policy.requested_min_khz = _request(khz)

    def request_max(self, policy: PolicySettings, khz: int) -> None:
        """Process a write to `scaling_max_freq`.

        Raises:
            OSError: EINVAL for a negative value.
        """
        policy.requested_max_khz = _request(khz)

    def set_speed(self, policy: PolicySettings, khz: int) -> None:
        """Process a write to `scaling_setspeed`.

        Raises:
            OSError: EINVAL unless the governor is userspace.
        """
        if policy.governor != "userspace":
            refuse(errno.EINVAL)
        policy.setspeed_khz = khz

    def speed_khz(self, policy: PolicySettings) -> int | None:
        """Return the frequency in kHz that `scaling_setspeed` requested.

        The frequency is clamped to the limits in force.

        The result is None unless the governor is userspace.
        """
        if policy.governor != "userspace":
            return None
        low, high = self.limits_khz(policy)
        clamped = min(max(policy.setspeed_khz, low), high)
        return min((khz for khz in self.table_khz if clamped <= khz <= high), default=clamped)

    def set_epp(self, policy: PolicySettings, word: str) -> None:
        """Process a write to `energy_performance_preference`.

        Args:
            policy: settings of the CPU.
            word: the written text. It is a name, or for Intel's driver also a number from 0 to 255.

        Raises:
            OSError: EINVAL for any other text. EBUSY for any preference except performance while the active
                driver's governor is performance.
        """
        name = self.profile.epp if word == "default" else word
        if name not in EPP_NAMES:
            name = self._raw_epp(word)
        if self.active and policy.governor == "performance" and name != "performance":
            refuse(errno.EBUSY)
        policy.epp = name

    def _raw_epp(self, word: str) -> str:
        if self.family != "intel" or not word.isascii() or not word.isdigit() or int(word) > 255:
            refuse(errno.EINVAL)
        named = {value: name for name, value in INTEL_EPP_VALUES.items()}
        return named.get(int(word), str(int(word)))

    def set_boost(self, enabled: bool) -> None:
        """Process a write to `cpufreq/boost`, or of the inverse value to `intel_pstate/no_turbo`.

        A write to `boost` resets every requested maximum frequency to the hardware's maximum. Real kernels
        before 2026 do the same, because they have no separate frequency request for boost.
        """
        self.boost = enabled
        if self.family != "intel":
            for policy in self.policies:
                policy.requested_max_khz = self.cpuinfo_max_khz

    def set_perf_pct(self, low: int | None = None, high: int | None = None) -> None:
        """Process a write to `intel_pstate/min_perf_pct` or `max_perf_pct`.

        Each of the two values is clamped by the other.

        Args:
            low: minimum in percent; None leaves it unchanged.
            high: maximum in percent; None leaves it unchanged.
        """
        if high is not None:
            self.max_perf_pct = min(max(high, self.min_perf_pct), 100)
        if low is not None:
            floor = max(1, self.profile.min_khz * 100 // self.profile.max_khz)
            self.min_perf_pct = min(max(low, floor), self.max_perf_pct)

    def switch_mode(self, mode: str) -> None:
        """Process a write to `intel_pstate/status` or `amd_pstate/status`.

        The driver is switched, and all settings are reset.

        Raises:
            OSError: EINVAL for an unknown mode, EBUSY for a mode that unloads the driver.
        """
        if mode in ("off", "disable"):
            refuse(errno.EBUSY)
        driver = MODES.get(self.family, {}).get(mode)
        if driver is None:
            refuse(errno.EINVAL)
        if mode == self.mode:
            return
        self.mode, self.driver = mode, driver
        governor = self.profile.governor if driver == self.profile.driver else _default_governor(driver)
        epp = (self.profile.epp or "balance_performance") if self.active else None
        self.policies = [self._initial_policy(policy.cpu, governor, epp) for policy in self.policies]

    def request(self, policy: PolicySettings) -> FrequencyRequest:
        """Convert the frequency settings of one CPU to the input of the node model.

        The node model supports only the frequency driver that the profile of the node names. If the driver's
        mode was switched, the governor is translated to the closest governor of this driver.
        """
        low, high = self.limits_khz(policy)
        if self.family == "intel":
            ceiling = self.profile.max_khz * self.max_perf_pct // 100
            high = max(min(high, ceiling), self.profile.min_khz)
            low = min(max(low, self.profile.max_khz * self.min_perf_pct // 100), high)
        speed = self.speed_khz(policy)
        governor, epp = policy.governor, policy.epp
        if self.driver != self.profile.driver and governor not in self.profile.governors:
            if governor == "userspace":
                low = high = speed or low
            governor, epp, speed = "powersave", epp or "balance_performance", None
        elif self.active and not _is_active(self.profile.driver) and governor == "powersave":
            governor = "schedutil"
        elif not self.active and _is_active(self.profile.driver) and governor == "powersave":
            high = low
        return FrequencyRequest(governor, low, high, speed, epp, self.boost)


def _is_active(driver: str) -> bool:
    return driver in ACTIVE_DRIVERS


def _default_governor(driver: str) -> str:
    return "powersave" if driver in ACTIVE_DRIVERS else "schedutil"


def _request(khz: int) -> int:
    """Return a requested frequency as the kernel's cpufreq core would store it.

    The value in kHz is truncated to 32 bits.

    Raises:
        OSError: EINVAL if the value is negative.
    """
    value = khz & 0xFFFFFFFF
    if value > _MAX_REQUEST:
        refuse(errno.EINVAL)
    return value
