"""The frequency drivers' state: what a write to a cpufreq file accepts, changes and shows afterwards.

Follows the kernel's cpufreq core (drivers/cpufreq/cpufreq.c: requests of minimum and maximum are kept as
asked, the policy in force is derived from them) and its drivers in the same folder: acpi-cpufreq.c,
intel_pstate.c (intel_pstate and intel_cpufreq), amd-pstate.c (amd-pstate, passive or guided, and
amd-pstate-epp) and cppc_cpufreq.c; documents: Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst,
amd-pstate.rst. No files and no model in here; refusals are OSError.
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
    """What was asked of one CPU; `saved_epp` is the preference to return to after governor performance."""

    cpu: int
    governor: str
    requested_min_khz: int
    requested_max_khz: int
    setspeed_khz: int
    epp: str | None
    saved_epp: str | None


class CpufreqState:
    """Frequency settings of all CPUs of a node; every CPU has a policy of its own."""

    def __init__(self, profile: CpufreqProfile, cpus: int, hwp: bool = False) -> None:
        """Set up as after boot.

        Args:
            profile: what the driver offers.
            cpus: logical CPUs.
            hwp: the processor has hardware P-states, so that Intel's driver has preferences in passive mode
                too (intel_pstate.c: intel_cpufreq.attr = hwp_cpufreq_attrs).
        """
        self.profile = profile
        self.driver = profile.driver
        self.hwp = hwp
        self.mode = "active" if self.active else "passive"
        # cppc_cpufreq.c: the core begins with boost off unless a driver says otherwise.
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
        """`intel`, `amd`, `acpi` or `cppc`: which files the driver has."""
        if self.driver.startswith("amd"):
            return "amd"
        return {"i": "intel", "a": "acpi", "c": "cppc"}[self.driver[0]]

    @property
    def active(self) -> bool:
        """Whether the firmware governs itself."""
        return self.driver in ACTIVE_DRIVERS

    @property
    def governors(self) -> tuple[str, ...]:
        """Governors that the present driver accepts, in the order the file lists them."""
        return ACTIVE_GOVERNORS if self.active else GENERIC_GOVERNORS

    @property
    def table_khz(self) -> tuple[int, ...]:
        """The frequency table of a table driver, falling; else empty."""
        return self.profile.available_khz if self.driver == "acpi-cpufreq" else ()

    @property
    def cpuinfo_max_khz(self) -> int:
        """What `cpuinfo_max_freq` shows; all but acpi-cpufreq lower it when boost is off."""
        if self.boost or self.family == "acpi":
            return self.profile.cpuinfo_max_khz
        return min(self.profile.base_khz, self.profile.cpuinfo_max_khz)

    def available_epp(self, policy: PolicySettings) -> str:
        """Return `energy_performance_available_preferences`.

        Under governor performance AMD's active driver offers nothing else (amd-pstate.c,
        show_energy_performance_available_preferences); Intel's always lists all.
        """
        if self.family == "amd" and policy.governor == "performance":
            return "performance"
        return " ".join(EPP_NAMES) + " "

    def limits_khz(self, policy: PolicySettings) -> tuple[int, int]:
        """Return (minimum, maximum) in force: requests within the hardware's range, minimum giving way."""
        floor, ceiling = self.profile.min_khz, self.cpuinfo_max_khz
        high = min(max(policy.requested_max_khz, floor), ceiling)
        low = min(max(policy.requested_min_khz, floor), ceiling)
        if self.table_khz:
            high = max((khz for khz in self.table_khz if khz <= high), default=min(self.table_khz))
            low = min((khz for khz in self.table_khz if khz >= low), default=high)
        return min(low, high), high

    def set_governor(self, policy: PolicySettings, word: str, current_khz: int) -> None:
        """Take `scaling_governor`; names are compared without regard to case.

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
        """Governor performance forces the preference; only Intel's driver gives the old one back."""
        if governor == "performance":
            policy.saved_epp, policy.epp = policy.epp, "performance"
        elif self.family == "intel":
            policy.epp = policy.saved_epp

    def request_min(self, policy: PolicySettings, khz: int) -> None:
        """Take `scaling_min_freq`."""
        policy.requested_min_khz = _request(khz)

    def request_max(self, policy: PolicySettings, khz: int) -> None:
        """Take `scaling_max_freq`."""
        policy.requested_max_khz = _request(khz)

    def set_speed(self, policy: PolicySettings, khz: int) -> None:
        """Take `scaling_setspeed`.

        Raises:
            OSError: EINVAL unless the governor is userspace.
        """
        if policy.governor != "userspace":
            refuse(errno.EINVAL)
        policy.setspeed_khz = khz

    def speed_khz(self, policy: PolicySettings) -> int | None:
        """Return what `scaling_setspeed` asks for within the limits, None unless governor userspace."""
        if policy.governor != "userspace":
            return None
        low, high = self.limits_khz(policy)
        wanted = min(max(policy.setspeed_khz, low), high)
        return min((khz for khz in self.table_khz if wanted <= khz <= high), default=wanted)

    def set_epp(self, policy: PolicySettings, word: str) -> None:
        """Take `energy_performance_preference`: a name, or with Intel's driver a number up to 255.

        Raises:
            OSError: EINVAL for anything else; EBUSY for any preference but performance while the active
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
        """Take `cpufreq/boost`, or the inverse of `no_turbo`.

        The former resets every maximum to what the hardware then offers, as kernels do that have no
        request of their own for boost (before 2026).
        """
        self.boost = enabled
        if self.family != "intel":
            for policy in self.policies:
                policy.requested_max_khz = self.cpuinfo_max_khz

    def set_perf_pct(self, low: int | None = None, high: int | None = None) -> None:
        """Take `intel_pstate/min_perf_pct` or `max_perf_pct`, each kept within range of the other."""
        if high is not None:
            self.max_perf_pct = min(max(high, self.min_perf_pct), 100)
        if low is not None:
            floor = max(1, self.profile.min_khz * 100 // self.profile.max_khz)
            self.min_perf_pct = min(max(low, floor), self.max_perf_pct)

    def switch_mode(self, mode: str) -> None:
        """Take `intel_pstate/status` or `amd_pstate/status`: another driver with fresh policies.

        Raises:
            OSError: EINVAL for an unknown mode, EBUSY for leaving the driver altogether.
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
        """Return what the silicon is asked to do for one CPU.

        The model knows the profile's driver only; after a switch of mode the governor is translated
        into the one of that driver that comes closest.
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
    """The core keeps requests as signed 32-bit numbers: the upper half is cut off, negatives refused."""
    value = khz & 0xFFFFFFFF
    if value > _MAX_REQUEST:
        refuse(errno.EINVAL)
    return value
