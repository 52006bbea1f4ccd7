"""Plan of settings: turns the validated energy flags of a job into the hardware settings for one node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from slurm_energy.config import Config, SitePolicy
from slurm_energy.devices.hardware import CpufreqPolicy, CpuPackage, GpuInfo, NodeHardware
from slurm_energy.devices.settings import (
    Setting,
    boost_off_setting,
    epp_setting,
    frequency_range_setting,
    governor_setting,
    gpu_clocks_setting,
    gpu_limit_settings,
    package_limit_settings,
)
from slurm_energy.policies import edp_table
from slurm_energy.policies.caps import LimitRange, split_cap
from slurm_energy.policies.catalogue import MONITOR, catalogue
from slurm_energy.policies.flags import PolicyRequest
from slurm_energy.policies.scope import WAITING_FOR_CPUS, JobScope, job_hardware

_MIN_PACKAGE_FRACTION = 0.3
"""Lowest limit of a package as a fraction of its highest, where the hardware names no lowest limit. Below it
the clocks are at their minimum, and a lower limit has no effect."""
_BASE_FREQUENCY_TOLERANCE = 1.05
_LOAD_GOVERNORS = ("schedutil", "ondemand", "conservative")


@dataclass(frozen=True, slots=True)
class SettingsPlan:
    """The settings of a job on one node.

    Attributes:
        policy: name of the energy policy.
        settings: one setting per knob. The order has no meaning; the knobs determine the order of the writes.
        cap_watts: power cap of the node in watts; None for no cap.
        gpu_cap_watts: power cap of each GPU in watts; None for no cap.
        notes: remarks for the energy record, one line each.
    """

    policy: str
    settings: tuple[Setting, ...] = ()
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _CpuTarget:
    low_khz: int
    high_khz: int
    governor: str | None = None
    preference: str | None = None


@dataclass(slots=True)
class _Targets:
    """Values that the planning steps choose; `_gpu_settings` and `_cpu_settings` turn them into settings."""

    cpus: dict[str, _CpuTarget]
    packages: dict[str, float] = field(default_factory=dict)
    gpus: dict[int, float] = field(default_factory=dict)
    clocks: dict[int, tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    no_boost: bool = False

    def limit_package(self, name: str, watts: float) -> None:
        self.packages[name] = min(watts, self.packages.get(name, watts))

    def limit_gpu(self, index: int, watts: float) -> None:
        self.gpus[index] = min(watts, self.gpus.get(index, watts))


def make_plan(
    request: PolicyRequest, hardware: NodeHardware, config: Config, scope: JobScope
) -> SettingsPlan:
    """Return the settings that a job's request yields on this node.

    No power limit is set above the limit in force before the job. Nothing outside the job's part of the node
    is changed.

    Args:
        request: validated flags, see `validate_flags`.
        hardware: hardware of the node with the limits in force before the job.
        config: site policies, EDP table and RAPL averaging window.
        scope: part of the node that is allocated to the job.
    """
    info = catalogue(config).get(request.policy)
    if info is None:
        note = f"policy '{request.policy}' is not in the configuration: nothing changed"
        return SettingsPlan(MONITOR, notes=(note,))
    if info.changes_nothing:
        return SettingsPlan(info.name)
    site = config.policies.get(info.name, SitePolicy())
    hardware, notes = job_hardware(hardware, scope)
    targets = _Targets({p.name: _CpuTarget(*p.bounds_khz) for p in hardware.policies}, notes=list(notes))
    gpus = [gpu for gpu in hardware.gpus if gpu.index in scope.gpus]
    if info.base == "edp":
        _edp(targets, hardware, gpus, config, request.model, scope.gpu_job)
    else:
        _base(info.base, targets, hardware)
    _site_values(site, targets, hardware)
    cap, gpu_cap = request.cap_watts or site.cap_watts, request.gpu_cap_watts or site.gpu_cap_watts
    if gpu_cap is not None:
        _gpu_caps(targets, gpus, gpu_cap)
        if not gpus:
            targets.notes.append(f"cap of {gpu_cap:g} W per GPU not set: the job has no GPU on this node")
    if cap is not None and scope.knows_cpus:
        _node_cap(targets, hardware, gpus, cap, scope)
    settings = list(_gpu_settings(targets, gpus))
    cpu_settings = list(_cpu_settings(targets, hardware, config.agent.set_rapl_time_window_s))
    if scope.knows_cpus:
        settings += cpu_settings
    elif cpu_settings or cap is not None:
        targets.notes.append(WAITING_FOR_CPUS)
    return SettingsPlan(info.name, tuple(settings), cap, gpu_cap, tuple(targets.notes))


def _base(base: str, targets: _Targets, hardware: NodeHardware) -> None:
    for policy in hardware.policies:
        target = targets.cpus[policy.name]
        if base == "performance":
            _performance(target, policy)
        elif base == "powersave":
            _powersave(target, policy)
        elif base == "balanced":
            _balanced(target, policy)
    if base in ("performance", "powersave", "balanced") and not (hardware.policies or targets.notes):
        targets.notes.append("this node has no cpufreq: CPU frequency not changed")


def _performance(target: _CpuTarget, policy: CpufreqPolicy) -> None:
    target.governor = _offered(policy, "performance")
    target.preference = "performance" if "performance" in policy.preferences else None
    target.high_khz = policy.hardware_range_khz[1]


def _powersave(target: _CpuTarget, policy: CpufreqPolicy) -> None:
    target.governor = _offered(policy, "powersave")
    target.low_khz = policy.hardware_range_khz[0]
    if target.governor and policy.powersave_is_static:
        return
    # In active mode the governor does not hold the lowest frequency, so the upper bound has to.
    target.high_khz = policy.hardware_range_khz[0]
    target.preference = "power" if "power" in policy.preferences else None


def _balanced(target: _CpuTarget, policy: CpufreqPolicy) -> None:
    if policy.powersave_is_static:
        target.governor = _offered(policy, *_LOAD_GOVERNORS)
    else:
        target.governor = _offered(policy, "powersave")
    target.preference = "balance_performance" if "balance_performance" in policy.preferences else None


def _offered(policy: CpufreqPolicy, *names: str) -> str | None:
    return next((name for name in names if name in policy.governors), None)


def _edp(
    targets: _Targets,
    hardware: NodeHardware,
    gpus: list[GpuInfo],
    config: Config,
    model: str | None,
    gpu_job: bool,
) -> None:
    """Add the values of the EDP table to the targets.

    The CPU values in the table were measured with the work on CPUs. They are therefore not used for a GPU job
    whose GPU has an entry in the table.

    Args:
        targets: targets to change.
        hardware: hardware of the node.
        gpus: GPUs of the job.
        config: configuration with the site's entries.
        model: name of the workload; None if the job gave none.
        gpu_job: whether the job requested GPUs.
    """
    has_gpu_entry = _edp_gpus(targets, gpus, hardware.cpu_model, config, model)
    if gpu_job and has_gpu_entry:
        targets.notes.append("the job computes on GPUs: CPU not changed")
    else:
        _edp_cpus(targets, hardware, config, model)


def _edp_cpus(targets: _Targets, hardware: NodeHardware, config: Config, model: str | None) -> None:
    gpu_names = [gpu.name for gpu in hardware.gpus]
    entry = edp_table.cpu_entry(config, hardware.cpu_model, gpu_names, model)
    if entry is None:
        targets.notes.append(f"no EDP entry for CPU '{hardware.cpu_model}': CPU not changed")
        return
    if entry.max_frequency_mhz is not None:
        _bound_frequency(targets, hardware, entry.max_frequency_mhz)
    if entry.package_cap_watts is not None:
        for package in hardware.packages:
            _cap_package(targets, package, entry.package_cap_watts)


def _bound_frequency(targets: _Targets, hardware: NodeHardware, max_frequency_mhz: float) -> None:
    """Set the upper frequency bound; switch boost off if the bound excludes only boost frequencies.

    In a driver with a frequency table the highest entry of the table stands for all boost frequencies. A
    bound inside the boost range can therefore not be enforced.

    Args:
        targets: targets to change.
        hardware: hardware of the node.
        max_frequency_mhz: the bound.
    """
    for policy in hardware.policies:
        target = targets.cpus[policy.name]
        bound_khz = max(policy.hardware_range_khz[0], round(max_frequency_mhz * 1000))
        base_khz = max(policy.available_khz, default=0)
        if (
            hardware.boost
            and policy.driver == "acpi-cpufreq"
            and base_khz <= bound_khz <= base_khz * _BASE_FREQUENCY_TOLERANCE
        ):
            targets.no_boost = True
        target.high_khz = min(target.high_khz, bound_khz)
        target.low_khz = min(target.low_khz, target.high_khz)


def _edp_gpus(
    targets: _Targets, gpus: Iterable[GpuInfo], cpu_model: str, config: Config, model: str | None
) -> bool:
    has_entry = False
    for gpu in gpus:
        entry = edp_table.gpu_entry(config, cpu_model, gpu.name, model)
        if entry is None:
            targets.notes.append(f"no EDP entry for GPU {gpu.index} '{gpu.name}': GPU not changed")
            continue
        has_entry = True
        if entry.gpu_cap_watts is not None:
            _gpu_caps(targets, [gpu], entry.gpu_cap_watts)
        if entry.gpu_clock_mhz is not None and gpu.clocks_mhz is not None:
            low, high = gpu.clocks_mhz
            targets.clocks[gpu.index] = (low, max(low, min(high, round(entry.gpu_clock_mhz))))
    return has_entry


def _site_values(site: SitePolicy, targets: _Targets, hardware: NodeHardware) -> None:
    for policy in hardware.policies:
        target = targets.cpus[policy.name]
        if site.governor is not None and site.governor in policy.governors:
            target.governor = site.governor
        if site.epp is not None and site.epp in policy.preferences:
            target.preference = site.epp
    if site.max_frequency_mhz is not None:
        _bound_frequency(targets, hardware, site.max_frequency_mhz)


def _gpu_caps(targets: _Targets, gpus: Iterable[GpuInfo], cap_watts: float) -> None:
    for gpu in gpus:
        if gpu.limit_watts is None:
            targets.notes.append(f"GPU {gpu.index} has no power limit")
            continue
        if gpu.min_limit_watts is not None and cap_watts < gpu.min_limit_watts:
            targets.notes.append(f"GPU {gpu.index}: the lowest limit is {gpu.min_limit_watts:g} W")
        targets.limit_gpu(gpu.index, max(cap_watts, gpu.min_limit_watts or 0.0))


def _node_cap(
    targets: _Targets, hardware: NodeHardware, gpus: list[GpuInfo], cap_watts: float, scope: JobScope
) -> None:
    """Divide the node's power cap, less the maximum power of memory, among packages and the job's GPUs.

    If a job shares a package, only the part of the package that belongs to the job's CPUs takes part in the
    division. The limit that is set gives all CPUs of the package as much power as those of the job.

    Args:
        targets: targets to change.
        hardware: hardware that the job may change.
        gpus: GPUs of the job.
        cap_watts: power cap of the node.
        scope: part of the node that is allocated to the job.
    """
    job_share = {package.name: scope.fraction(package, hardware.cpu_count) for package in hardware.packages}
    parts = [
        LimitRange(part.name, part.min_watts * job_share[part.name], part.max_watts * job_share[part.name])
        for package in hardware.packages
        if (part := _limit_range(package)) is not None
    ]
    if len(parts) < len(hardware.packages):
        targets.notes.append("package power cannot be limited on this node: the cap does not cover it")
    for gpu in gpus:
        if gpu.limit_watts is not None:
            max_watts = min(gpu.limit_watts, targets.gpus.get(gpu.index, gpu.limit_watts))
            parts.append(LimitRange(f"gpu{gpu.index}", min(gpu.min_limit_watts or 0.0, max_watts), max_watts))
    if not parts:
        targets.notes.append("no power on this node can be limited: the cap has no effect")
        return
    remaining = cap_watts - (hardware.max_dram_watts or 0.0)
    minimum = sum(part.min_watts for part in parts)
    if remaining < minimum:
        reachable = minimum + (hardware.max_dram_watts or 0.0)
        targets.notes.append(f"cap {cap_watts:g} W: the lowest that the limits reach is {reachable:g} W")
    limits = split_cap(remaining, parts)
    for package in hardware.packages:
        if package.name in limits:
            _cap_package(targets, package, limits[package.name] / job_share[package.name])
    for gpu in gpus:
        if f"gpu{gpu.index}" in limits:
            targets.limit_gpu(gpu.index, limits[f"gpu{gpu.index}"])


def _limit_range(package: CpuPackage) -> LimitRange | None:
    max_watts = package.limit_watts or package.max_limit_watts
    if not package.limit_domains or max_watts is None:
        return None
    # A limit far above the design power means "none"; the division then starts from the design power.
    max_watts = min(max_watts, package.max_limit_watts) if package.max_limit_watts else max_watts
    min_watts = package.min_limit_watts or _MIN_PACKAGE_FRACTION * max_watts
    return LimitRange(package.name, min(min_watts, max_watts), max_watts)


def _cap_package(targets: _Targets, package: CpuPackage, watts: float) -> None:
    part = _limit_range(package)
    if part is not None:
        targets.limit_package(package.name, max(watts, part.min_watts))


def _gpu_settings(targets: _Targets, gpus: Iterable[GpuInfo]) -> Iterable[Setting]:
    for gpu in gpus:
        watts = targets.gpus.get(gpu.index)
        if watts is not None and gpu.limit_watts is not None and watts < gpu.limit_watts:
            yield from gpu_limit_settings(gpu.index, watts, gpu.interface)
        if gpu.index in targets.clocks:
            yield gpu_clocks_setting(gpu.index, *targets.clocks[gpu.index])


def _cpu_settings(targets: _Targets, hardware: NodeHardware, window_s: float) -> Iterable[Setting]:
    if targets.no_boost:
        yield boost_off_setting()
    for policy in hardware.policies:
        target = targets.cpus[policy.name]
        if target.governor is not None:
            yield governor_setting(policy.name, target.governor)
        if target.preference is not None:
            yield epp_setting(policy.name, target.preference)
        if (target.low_khz, target.high_khz) != policy.bounds_khz:
            yield frequency_range_setting(policy.name, target.low_khz, target.high_khz)
    for package in hardware.packages:
        watts = targets.packages.get(package.name)
        if watts is not None and (package.limit_watts is None or watts < package.limit_watts):
            for domain in package.limit_domains:
                yield from package_limit_settings(package.interface, domain, watts, window_s)
