"""Plan of settings: turns the validated energy flags of a job into the hardware settings for one node."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.config import Config, SitePolicy
from slurm_energy.devices.hardware import CpufreqPolicy, NodeHardware
from slurm_energy.devices.settings import Setting
from slurm_energy.policies.caps import LimitRange, split_cap
from slurm_energy.policies.catalogue import MONITOR, PolicyInfo, catalogue
from slurm_energy.policies.flags import PolicyRequest
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.policies.scope import WAITING_FOR_CPUS, JobScope, job_hardware
from slurm_energy.policies.starting_point import starting_point
from slurm_energy.policies.targets import CpuTarget, Targets, limit_range

_LOAD_GOVERNORS = ("schedutil", "ondemand", "conservative")


@dataclass(frozen=True, slots=True)
class SettingsPlan:
    """The settings of a job on one node.

    Attributes:
        policy: name of the energy policy.
        settings: one value per setting (knob) of the hardware. The order of this list has no meaning; the
            knobs determine the order of the writes.
        cap_watts: power cap of the node in watts; None for no cap.
        gpu_cap_watts: power cap of each GPU in watts; None for no cap.
        notes: remarks for the energy record, one line each.
    """

    policy: str
    settings: tuple[Setting, ...] = ()
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None
    notes: tuple[str, ...] = ()


def make_plan(
    request: PolicyRequest,
    hardware: NodeHardware,
    config: Config,
    scope: JobScope,
    point: OperatingPoint = UNTUNED,
) -> SettingsPlan:
    """Return the hardware settings that a job gets on this node.

    No power limit is set above the limit in force before the job. Nothing outside the job's part of the node
    is changed. The plan contains the settings that the site and the job's flags fix.

    Some policies have an objective (`PolicyInfo.objective`), which is a quantity that tuning minimises. With
    such a policy, the plan contains further settings, which depend on the tuning mode of the job:

    - If the tuning mode is `off`, the further settings are known good settings for the device. They are
      called the starting point, see `starting_point`.
    - In all other tuning modes, the further settings are the operating point (argument `point`). An operating
      point is a set of hardware settings that tuning has chosen.

    Args:
        request: validated flags, see `validate_flags`.
        hardware: hardware of the node with the limits in force before the job.
        config: site policies, starting points and RAPL averaging window.
        scope: part of the node that is allocated to the job.
        point: operating point that tuning requests. Where the flags or the site also limit a knob, the lower
            limit applies.
    """
    info = catalogue(config).get(request.policy)
    if info is None:
        note = f"policy '{request.policy}' is not in the configuration: nothing changed"
        return SettingsPlan(MONITOR, notes=(note,))
    if info.changes_nothing:
        return SettingsPlan(info.name)
    site = config.policies.get(info.name, SitePolicy())
    own_hardware, notes = job_hardware(hardware, scope)
    gpus = [gpu for gpu in hardware.gpus if gpu.index in scope.gpus]
    targets = Targets(own_hardware, gpus, notes=list(notes))
    _base(info.base, targets)
    if info.objective is not None and request.tuning_mode == "off":
        _untuned_objective(targets, info, request, hardware, config, scope)
    _site_values(site, targets)
    _explicit_values(request, targets)
    cap, gpu_cap = request.cap_watts or site.cap_watts, request.gpu_cap_watts or site.gpu_cap_watts
    if gpu_cap is not None:
        targets.cap_gpus(gpus, gpu_cap)
        if not gpus:
            targets.notes.append(f"cap of {gpu_cap:g} W per GPU not set: the job has no GPU on this node")
    if cap is not None and scope.knows_cpus:
        _node_cap(targets, cap, scope)
    notes_before_point = tuple(targets.notes)
    _apply_point(targets, point, config)
    settings = list(targets.gpu_settings())
    cpu_settings = list(targets.cpu_settings(config.agent.set_rapl_time_window_s))
    if scope.knows_cpus:
        settings += cpu_settings
    elif cpu_settings or cap is not None:
        notes_before_point += (WAITING_FOR_CPUS,)
    return SettingsPlan(info.name, tuple(settings), cap, gpu_cap, notes_before_point)


def point_settings(
    point: OperatingPoint,
    hardware: NodeHardware,
    scope: JobScope,
    config: Config,
    request: PolicyRequest | None = None,
) -> tuple[Setting, ...]:
    """Return the settings that an operating point yields on this node.

    Each value is clamped to the range of the device and to the bounds of the site. No power limit is above
    the limit in force before the job. A setting that the node lacks is left out.

    Args:
        point: operating point (values of the settings) that tuning requests.
        hardware: hardware of the node with the limits in force before the job.
        scope: part of the node that is allocated to the job.
        config: bounds of the site and RAPL averaging window.
        request: validated flags of the job, whose fixed settings are included in the result; None means to
            return the settings of the point alone.
    """
    if request is not None:
        return make_plan(request, hardware, config, scope, point).settings
    own_hardware, _ = job_hardware(hardware, scope)
    targets = Targets(own_hardware, [gpu for gpu in hardware.gpus if gpu.index in scope.gpus])
    _apply_point(targets, point, config)
    settings = list(targets.gpu_settings())
    if scope.knows_cpus:
        settings += targets.cpu_settings(config.agent.set_rapl_time_window_s)
    return tuple(settings)


def _apply_point(targets: Targets, point: OperatingPoint, config: Config) -> None:
    """Add an operating point that tuning has chosen to the target values of the job's settings.

    The lower bounds of the site apply to the operating point. The upper bounds do not apply, because they
    restrict only the values that users may request. A job without flags may run above the upper bounds, so
    these bounds would only slow a tuned job down.
    """
    bounds = config.bounds
    if point.gpu_limit_watts is not None:
        for gpu in targets.gpus:
            if gpu.limit_watts is not None:
                # A GPU whose own limit is below the bound, such as an L4, would otherwise never be tuned.
                low = bounds.gpu_cap_watts[0] if bounds.gpu_cap_watts[0] < gpu.limit_watts else 0.0
                targets.cap_gpus([gpu], max(point.gpu_limit_watts, low))
    if point.gpu_clock_mhz is not None:
        targets.bound_gpu_clocks(targets.gpus, max(point.gpu_clock_mhz, bounds.gpu_clock_mhz[0]))
    if point.gpu_power_profile is not None:
        targets.select_power_profile(targets.gpus, point.gpu_power_profile)
    if point.package_limit_watts is not None:
        for package in targets.hardware.packages:
            targets.cap_package(package, point.package_limit_watts)
    if point.cpu_max_mhz is not None:
        targets.bound_frequency(max(point.cpu_max_mhz, bounds.cpu_freq_mhz[0]))
    if point.cpu_epp is not None:
        targets.set_preference(point.cpu_epp)
    if point.boost is False and targets.hardware.boost:
        targets.no_boost = True


def _base(base: str, targets: Targets) -> None:
    hardware = targets.hardware
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


def _performance(target: CpuTarget, policy: CpufreqPolicy) -> None:
    target.governor = _offered(policy, "performance")
    target.preference = "performance" if "performance" in policy.preferences else None
    target.high_khz = policy.hardware_range_khz[1]


def _powersave(target: CpuTarget, policy: CpufreqPolicy) -> None:
    target.governor = _offered(policy, "powersave")
    target.low_khz = policy.hardware_range_khz[0]
    if target.governor and policy.powersave_is_static:
        return
    # In active mode the governor does not keep the lowest frequency. Therefore the upper bound enforces it.
    target.high_khz = policy.hardware_range_khz[0]
    target.preference = "power" if "power" in policy.preferences else None


def _balanced(target: CpuTarget, policy: CpufreqPolicy) -> None:
    if policy.powersave_is_static:
        target.governor = _offered(policy, *_LOAD_GOVERNORS)
    else:
        target.governor = _offered(policy, "powersave")
    target.preference = "balance_performance" if "balance_performance" in policy.preferences else None


def _offered(policy: CpufreqPolicy, *names: str) -> str | None:
    return next((name for name in names if name in policy.governors), None)


def _untuned_objective(
    targets: Targets,
    info: PolicyInfo,
    request: PolicyRequest,
    hardware: NodeHardware,
    config: Config,
    scope: JobScope,
) -> None:
    """Apply known good settings to a job that requests tuning but is not tuned.

    The known settings are the starting point of tuning for the job's program and hardware. They are added
    to the planned settings of the job (`targets`). In two cases no setting is added, but only a note: if
    no good settings are known, or if the job has a slowdown limit.
    """
    start = starting_point(info.objective or "", request.model, hardware, scope, config)
    if start is None:
        why = "no setting is known for this program and hardware"
        targets.notes.append(f"policy {info.name} without tuning changes nothing: {why}")
    elif request.slowdown_limit is not None:
        why = "without tuning the slowdown limit cannot be kept"
        targets.notes.append(f"policy {info.name} changes nothing: {why}")
    else:
        _apply_point(targets, start.point, config)
        targets.notes.append(f"{start.point}: {start.text}")


def _site_values(site: SitePolicy, targets: Targets) -> None:
    for policy in targets.hardware.policies:
        if site.governor is not None and site.governor in policy.governors:
            targets.cpus[policy.name].governor = site.governor
    if site.epp is not None:
        targets.set_preference(site.epp)
    if site.max_frequency_mhz is not None:
        targets.bound_frequency(site.max_frequency_mhz)


def _explicit_values(request: PolicyRequest, targets: Targets) -> None:
    """Add the values that a user requested by options to the targets (planned hardware settings).

    The options are --energy-cpu-freq, --energy-gpu-clock and --energy-power-profile.
    """
    if request.cpu_max_mhz is not None:
        targets.bound_frequency(request.cpu_max_mhz)
        if not targets.hardware.policies:
            targets.notes.append("--energy-cpu-freq not set: the job may not change the frequency of a CPU")
    if request.gpu_clock_mhz is not None:
        targets.bound_gpu_clocks(targets.gpus, request.gpu_clock_mhz)
    if request.gpu_power_profile is not None:
        targets.select_power_profile(targets.gpus, request.gpu_power_profile)
    given = {"--energy-gpu-clock": request.gpu_clock_mhz, "--energy-power-profile": request.gpu_power_profile}
    for flag, value in given.items():
        if value is not None and not targets.gpus:
            targets.notes.append(f"{flag} not set: the job has no GPU on this node")


def _node_cap(targets: Targets, cap_watts: float, scope: JobScope) -> None:
    """Divide the node's power cap among the CPU packages and the GPUs of a job.

    The maximum power of memory is subtracted from the cap first.

    The job may share a package with other jobs. Then only the part of the package that belongs to the job's
    CPUs takes part in the division. The power limit of the package is raised, so that its other CPUs get the
    same power per CPU as the CPUs of the job.

    Args:
        targets: targets to change.
        cap_watts: power cap of the node.
        scope: part of the node that is allocated to the job.
    """
    hardware, gpus = targets.hardware, targets.gpus
    job_share = {package.name: scope.fraction(package, hardware.cpu_count) for package in hardware.packages}
    parts = [
        LimitRange(part.name, part.min_watts * job_share[part.name], part.max_watts * job_share[part.name])
        for package in hardware.packages
        if (part := limit_range(package)) is not None
    ]
    if len(parts) < len(hardware.packages):
        targets.notes.append("package power cannot be limited on this node: the cap does not cover it")
    for gpu in gpus:
        if gpu.limit_watts is not None:
            max_watts = min(gpu.limit_watts, targets.gpu_limits.get(gpu.index, gpu.limit_watts))
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
            targets.cap_package(package, limits[package.name] / job_share[package.name])
    for gpu in gpus:
        if f"gpu{gpu.index}" in limits:
            targets.limit_gpu(gpu.index, limits[f"gpu{gpu.index}"])
