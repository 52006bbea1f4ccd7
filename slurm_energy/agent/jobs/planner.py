"""Start of a job in the agent: creation of its session and of its plan of hardware settings.

A session is the state that the agent stores about a job. The data come from the environment of
Slurm's prolog of the job.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy.agent.jobs.node_sharing import NodeOccupation
from slurm_energy.agent.jobs.sessions import CLOSING, Session
from slurm_energy.agent.metering import components
from slurm_energy.agent.metering.job_meter import JobMeter, PowerMonitor
from slurm_energy.config import Config
from slurm_energy.control.arbitration import JobAllocation
from slurm_energy.control.journal import SettingsJournal
from slurm_energy.devices.cpu.topology import cpus_of_cores
from slurm_energy.devices.discovery import NodeDevices, with_current_limits
from slurm_energy.devices.hardware import NodeHardware
from slurm_energy.errors import EnergyError
from slurm_energy.policies import (
    WAITING_FOR_CPUS,
    JobScope,
    PolicyRequest,
    SettingsPlan,
    catalogue,
    make_plan,
    validate_flags,
)
from slurm_energy.policies.shapes import MAX_SHAPES_CHARS
from slurm_energy.quantities import shown
from slurm_energy.records import JobDevice
from slurm_energy.slurm.hook_environment import JobContext

_FLAG_NAMES = {
    "ENERGY_POLICY": "policy",
    "ENERGY_CAP": "cap_watts",
    "ENERGY_GPU_CAP": "gpu_cap_watts",
    "ENERGY_SLOWDOWN": "slowdown",
    "ENERGY_TUNING": "tuning",
    "ENERGY_CPU_FREQ": "cpu_freq",
    "ENERGY_GPU_CLOCK": "gpu_clock",
    "ENERGY_POWER_PROFILE": "power_profile",
    "ENERGY_MODEL": "model",
    "ENERGY_TAG": "tag",
    "ENERGY_ALTERNATIVES": "alternatives",
    "ENERGY_SLACK": "slack",
    "ENERGY_CHECKPOINTABLE": "checkpointable",
    "ENERGY_SIGNALS": "signals",
}
_BOUNDED = {
    "cap_watts": ("cap_watts", 1.0, "W"),
    "gpu_cap_watts": ("gpu_cap_watts", 1.0, "W"),
    "slowdown_limit": ("slowdown_percent", 100.0, "%"),
    "cpu_max_mhz": ("cpu_freq_mhz", 1.0, "MHz"),
    "gpu_clock_mhz": ("gpu_clock_mhz", 1.0, "MHz"),
}
"""Fields of a policy request, each with the key of its bounds, the factor to their unit, and this unit."""
_UNMEASURED = "senergyd did not run during the job: no setting was applied, and its energy is unknown"
_MIN_WINDOW_S = 1.0
_MAX_PRODUCT_LENGTH = 128
_BOOST = "cpufreq.boost[all]"
_LIMIT_KINDS = (
    "cpufreq.boost",
    "cpufreq.frequency",
    "powercap.power_limit",
    "hsmp.power_limit",
    "nvml.power_limit",
    "amdsmi.power_limit",
    "intel_gpu.power_limit",
)


def new_session(
    context: JobContext,
    occupation: NodeOccupation,
    node: str,
    devices: NodeDevices,
    config: Config,
    started: tuple[float, float],
) -> Session:
    """Return the session of a job that starts.

    Args:
        context: the job as the hook describes it.
        occupation: relation of the job to the other jobs of the node, see `NodeOccupation`.
        node: Slurm's name of this node.
        devices: the node's hardware.
        config: the configuration.
        started: start of the job in Unix seconds, and the same instant in seconds since boot.
    """
    hardware = devices.hardware
    whole = occupation.whole_node
    gpus = components.job_gpus(context, hardware.gpus, occupation.may_have_all_gpus)
    unknown = components.is_on_unknown_gpus(context, hardware.gpus, occupation.has_all)
    notes = [] if whole else [_shared_note(context.cpus, hardware.cpu_count)]
    return Session(
        job_id=context.job_id,
        restart_count=context.restart_count,
        uid=context.uid,
        user=context.user,
        partition=context.partition,
        cluster=context.cluster or config.cluster.name,
        node=node,
        sluid=context.sluid,
        cpus=context.cpus,
        node_count=context.node_count,
        boot_id="",
        start_unix=started[0],
        whole_node=whole,
        gpus=gpus,
        gpu_job=bool(context.gpus),
        gpus_assumed=components.has_assumed_gpus(context, hardware.gpus),
        devices=_devices(hardware, gpus),
        job_components=components.job_components(devices, whole, gpus, unknown),
        meter=JobMeter(started[1]),
        power_monitor=PowerMonitor(max(_MIN_WINDOW_S, 1 / config.agent.sampling_hz)),
        notes=[*notes, _INSTANCES] if unknown else notes,
    )


def _devices(hardware: NodeHardware, gpus: Sequence[int]) -> tuple[JobDevice, ...]:
    """Return the job's processor and GPUs for its energy record."""
    devices = [JobDevice("cpu", _product(hardware.cpu_model))] if hardware.cpu_model else []
    for gpu in hardware.gpus:
        if gpu.index in gpus:
            limits = (None, None) if gpu.limit_watts is None else (gpu.min_limit_watts, gpu.limit_watts)
            devices.append(JobDevice(f"gpu[{gpu.index}]", _product(gpu.name), *limits))
    return tuple(devices)


def _product(name: str) -> str:
    return shown(name, _MAX_PRODUCT_LENGTH)


def mark_unmeasured(
    session: Session, flags: Mapping[str, str], config: Config, boot_id: str, end_unix: float
) -> None:
    """Mark a job that was never measured as ended; its record then contains no energy.

    The record id is computed from job, node and boot. A repeated call for the same job therefore gives the
    same id.

    Args:
        session: session (state on this node) of the job.
        flags: the job's energy flags.
        config: the configuration.
        boot_id: identifier of the current boot.
        end_unix: Unix time of the job's end in seconds.
    """
    session.notes = [_UNMEASURED]
    session.requested = _requested_flags(flags)
    try:
        request = validate_flags(flags, config, session.user, session.partition)
    except EnergyError as error:
        request = _fallback(session, config)
        session.note(f"{shown(str(error), 200)}; the policy is '{request.policy}'")
    session.policy, session.model, session.tag = request.policy, request.model, request.tag
    session.boot_id, session.end_unix, session.phase = boot_id, end_unix, CLOSING
    session.job_components = ()
    identity = f"{session.cluster}/{session.node}/{boot_id}/{session.owner}"
    session.record_id = uuid.uuid5(uuid.NAMESPACE_URL, identity).hex


def parse_request(session: Session, flags: Mapping[str, str], config: Config) -> PolicyRequest:
    """Validate a job's energy flags, store them in its session and return the request.

    job_submit has validated the flags before. An invalid flag never stops a job: the job runs under the
    default energy policy, and its record states why the flag was ignored.
    """
    session.requested = _requested_flags(flags)
    try:
        request = validate_flags(flags, config, session.user, session.partition)
    except EnergyError as error:
        request = _fallback(session, config)
        session.note(f"{shown(str(error), 200)}; ran under '{request.policy}'")
    session.model, session.tag = request.model, request.tag
    return _within_bounds(session, request, config)


def _within_bounds(session: Session, request: PolicyRequest, config: Config) -> PolicyRequest:
    """Return a request limited to the bounds of this node.

    These bounds may be narrower than the bounds that applied at submission.
    """
    limited: dict[str, Any] = {}
    for name, (key, unit, unit_name) in _BOUNDED.items():
        value, (low, high) = getattr(request, name), getattr(config.bounds, key)
        if value is not None and not low <= value * unit <= high:
            limited[name] = min(max(value * unit, low), high) / unit
            session.note(
                f"bounds.{key} of this node: {limited[name] * unit:g} {unit_name} instead of {value * unit:g}"
            )
    return dataclasses.replace(request, **limited) if limited else request


def _requested_flags(flags: Mapping[str, str]) -> dict[str, str]:
    return {
        _FLAG_NAMES[name]: shown(text, _shown_max(name))
        for name, text in flags.items()
        if name in _FLAG_NAMES and text
    }


def _shown_max(name: str) -> int:
    return MAX_SHAPES_CHARS if name == "ENERGY_ALTERNATIVES" else 64


def _fallback(session: Session, config: Config) -> PolicyRequest:
    try:
        return validate_flags({}, config, session.user, session.partition)
    except EnergyError:
        return PolicyRequest()


def learn_cpus(session: Session, job_cores: str | None, hardware: NodeHardware) -> bool:
    """Store which CPUs a job on a shared node has.

    The CPUs are computed from the cores that a Slurm step reports.

    Args:
        session: session of the job, in which the CPUs are stored.
        job_cores: list of the job's cores in Slurm's numbering; None if the step reports no cores.
        hardware: the node's hardware.

    Returns:
        True if the CPUs became known, so that the job's settings have to be planned again.
    """
    if session.whole_node or session.cpu_list is not None or job_cores is None:
        return False
    session.cpu_list = cpus_of_cores(job_cores, hardware.cores, session.cpus)
    if session.cpu_list is None:
        session.note(
            "Slurm's core numbers do not match the kernel's topology of this node: CPU settings unchanged"
        )
    return session.cpu_list is not None


def request_again(session: Session, config: Config) -> PolicyRequest:
    """Return the policy request of a running job with its present caps.

    A new settings plan is made from this request.
    """
    caps = session.power_monitor.cap_watts, session.power_monitor.gpu_cap_watts
    policy = session.policy if caps == (None, None) else capping_policy(session.policy, config)
    flags = {name: session.requested.get(key, "") for name, key in _FLAG_NAMES.items()}
    try:
        request = validate_flags(flags, config, session.user, session.partition)
    except EnergyError:  # the job runs under its fallback policy
        request = _fallback(session, config)
    return dataclasses.replace(
        request, policy=policy, cap_watts=caps[0], gpu_cap_watts=caps[1], model=session.model
    )


_INSTANCES = "Slurm does not report the GPUs of the job's MIG instances: its GPU energy is unknown"


def allocation(session: Session, hardware: NodeHardware) -> JobAllocation:
    """Return the CPUs and GPUs to which a job's settings apply."""
    cpus = None if session.cpu_list is None else frozenset(session.cpu_list)
    return JobAllocation(cpus, frozenset(_gpus_to_set(session, hardware)))


def _gpus_to_set(session: Session, hardware: NodeHardware) -> tuple[int, ...]:
    """Return the indices of the GPUs to which a job's settings apply.

    On GPUs with MIG Slurm numbers the instances, and no hook reports the GPU of an instance. A job with any
    MIG instance may therefore use every GPU.
    """
    if session.whole_node or not any(gpu.partitioned for gpu in hardware.gpus):
        return session.gpus
    return tuple(gpu.index for gpu in hardware.gpus) if session.gpu_job else ()


def plan(
    session: Session, request: PolicyRequest, devices: NodeDevices, journal: SettingsJournal, config: Config
) -> tuple[SettingsPlan, dict[str, str]]:
    """Return the settings plan of a job.

    The plan never exceeds the limits that were in force before any job changed them.

    Args:
        session: session (state on this node) of the job.
        request: the energy policy and the caps that the job requests.
        devices: the node's hardware.
        journal: the original values of settings that jobs have changed.
        config: the configuration.

    Returns:
        The plan, and the current values, by key, of the knobs that were read for the plan.
    """
    info = catalogue(config).get(request.policy)
    hardware = devices.hardware
    values: dict[str, str] = {}
    if info is not None and not info.changes_nothing:
        hardware, values = limits_before_jobs(devices, journal)
    scope = job_scope(session, hardware)
    made = make_plan(request, hardware, config, scope)
    if WAITING_FOR_CPUS in session.notes and WAITING_FOR_CPUS not in made.notes:
        session.notes.remove(WAITING_FOR_CPUS)
        session.note(
            f"CPU settings in force {session.meter.elapsed_s:.1f} s after the begin, from the first step on"
        )
    return made, values


def limits_before_jobs(devices: NodeDevices, journal: SettingsJournal) -> tuple[NodeHardware, dict[str, str]]:
    """Return the hardware of the node with the power limits that were in force before any job.

    The second result contains the present limits. It has an entry for each writable limit (knob) that no
    job has changed.
    """
    keys = [key for key, knob in devices.knobs.items() if knob.name in _LIMIT_KINDS]
    originals = {key: entry.original for key, entry in journal.entries.items() if key in keys}
    values = devices.read(key for key in keys if key not in originals)
    return with_current_limits(devices.hardware, values | originals), values


def with_original_limits(devices: NodeDevices, journal: SettingsJournal) -> NodeDevices:
    """Return the devices with the power limits that were in force before the agent changed them.

    A restarted agent discovers the devices with the power limits that jobs and power budgets have set.
    Without this function these limits would count as the original limits of the devices.
    """
    originals = {key: entry.original for key, entry in journal.entries.items() if ".power_limit[" in key}
    hardware = devices.hardware
    values = {_BOOST: "1" if hardware.boost else "0"} | originals
    return dataclasses.replace(devices, hardware=with_current_limits(hardware, values))


def job_scope(session: Session, hardware: NodeHardware) -> JobScope:
    """Return the part of the node to which a job's settings apply."""
    cpus = None if session.cpu_list is None else frozenset(session.cpu_list)
    return JobScope(session.whole_node, _gpus_to_set(session, hardware), session.gpu_job, cpus)


def capping_policy(name: str, config: Config) -> str:
    """Return the energy policy that enforces a cap: `name` itself, or `cap` if `name` changes no settings."""
    info = catalogue(config).get(name)
    return "cap" if info is None or info.changes_nothing else name


def caps_note(cap_watts: float | None, gpu_cap_watts: float | None) -> str:
    """Return the note for a job's record that states the new caps in watts.

    A cap of None stands for no cap.
    """
    caps = {"node": cap_watts, "GPU": gpu_cap_watts}
    texts = [f"{name} {watts:g} W" for name, watts in caps.items() if watts is not None]
    return "caps changed while running: " + (", ".join(texts) or "none")


def _shared_note(cpus: int | None, cpu_count: int) -> str:
    """Return the note in a job's record about the division of the idle node's energy.

    The note is for a job on a shared node. `cpus` is the number of the job's CPUs (None if unknown).
    `cpu_count` is the number of the node's CPUs.
    """
    rule = "the job shares the node: it is charged energy of the idle node by allocated CPUs"
    return f"{rule} ({cpus} of {cpu_count})" if cpus is not None else f"{rule}, which are unknown"
