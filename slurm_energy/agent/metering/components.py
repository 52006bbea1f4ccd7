"""Pure functions that return the hardware components of a job and their energy for the job's record.

The ledger of the node divides the energy among jobs; docs/attribution.md states the rule.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass

from slurm_energy.agent.metering.attribution import OTHER
from slurm_energy.agent.metering.job_meter import JobMeter
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.devices.hardware import GpuInfo
from slurm_energy.records import ComponentEnergy, Quality
from slurm_energy.slurm.hook_environment import JobContext

_MIN_NOTED_S = 0.05


@dataclass(frozen=True, slots=True)
class JobComponent:
    """A hardware component whose energy is recorded for a job.

    Attributes:
        component: name of the component in the record.
        source: measurement interfaces, joined by "+".
        quality: quality of the component's counter: whether it is measured or modelled.
        known: False if it is unknown whether the job uses the component.
    """

    component: str
    source: str
    quality: str = Quality.MEASURED
    known: bool = True


def has_whole_node(context: JobContext, cpu_count: int) -> bool:
    """Return whether a job has the whole node.

    A job has the whole node if Slurm reports the job as exclusive, or if all `cpu_count` logical CPUs of the
    node are allocated to the job.
    """
    return context.exclusive or (context.cpus is not None and context.cpus >= cpu_count > 0)


def job_gpus(context: JobContext, gpus: Iterable[GpuInfo], has_all: bool) -> tuple[int, ...]:
    """Return the indices of the GPUs that a job has.

    `GpuInfo.slurm_numbers` states how Slurm numbers GPUs. If Slurm names no GPUs, a job with all CPUs or an
    exclusive job has all GPUs. On a node with MIG, Slurm numbers MIG instances instead of GPUs. On a node
    with MIG, a job with all CPUs or an exclusive job has all GPUs. For other jobs on this node the result is
    empty (see `is_on_unknown_gpus`).

    Args:
        context: the job as the hook describes it.
        gpus: the GPUs of the node.
        has_all: whether the job has all CPUs of the node or is exclusive, and no job beside it has GPUs that
            Slurm names.
    """
    present = list(gpus)
    if context.gpus is None or has_assumed_gpus(context, present):
        return tuple(gpu.index for gpu in present) if has_all else ()
    return tuple(gpu.index for gpu in present if not gpu.slurm_numbers.isdisjoint(context.gpus))


def has_assumed_gpus(context: JobContext, gpus: Iterable[GpuInfo]) -> bool:
    """Return whether Slurm does not name the GPUs of a job, so that all or none are assumed."""
    return context.gpus is None or any(gpu.partitioned for gpu in gpus)


def is_on_unknown_gpus(context: JobContext, gpus: Iterable[GpuInfo], has_all: bool) -> bool:
    """Return whether a job has MIG instances on unknown GPUs of the node.

    `has_all` states whether the job has all CPUs of the node or is exclusive.
    """
    return bool(context.gpus) and not has_all and any(gpu.partitioned for gpu in gpus)


def job_components(
    devices: NodeDevices, whole_node: bool, gpus: tuple[int, ...], unknown_gpus: bool
) -> tuple[JobComponent, ...]:
    """Return the components whose energy is recorded for a job.

    Args:
        devices: the node's hardware.
        whole_node: whether the job has the whole node, and so all its GPUs.
        gpus: indices of the job's GPUs.
        unknown_gpus: whether it is unknown which GPUs the job uses. If so, every GPU is listed with
            `known=False`.
    """
    by_name: dict[str, JobComponent] = {}
    own = {f"gpu[{index}]" for index in gpus}
    for counter in devices.counters:
        name = counter.component
        is_gpu = name.startswith("gpu")
        if is_gpu and not (whole_node or unknown_gpus or name in own):
            continue
        part = JobComponent(name, counter.source, counter.quality, not (is_gpu and unknown_gpus))
        by_name[name] = _joined(by_name.get(name), part)
    guessed = any(counter.quality == Quality.MODELLED for counter in devices.counters)
    for counter in devices.node_counters:  # `other` is a difference, so its quality is that of the components
        quality = Quality.MODELLED if guessed else counter.quality
        by_name[OTHER] = _joined(by_name.get(OTHER), JobComponent(OTHER, counter.source, quality))
    return tuple(by_name.values())


def component_energies(
    listed: Iterable[JobComponent], meter: JobMeter, *, whole_node: bool, partial: Container[str] = ()
) -> tuple[ComponentEnergy, ...]:
    """Return the energy of each component for a job's record.

    Args:
        listed: the components whose energy is recorded for the job.
        meter: the job's energy by component.
        whole_node: whether the job had the whole node. If so, and if the node has a node meter, the record
            also gets `node`, the sum of all components.
        partial: components to mark as partial although they were measured, for example because other jobs
            used them too.
    """
    energies = []
    for part in listed:
        energy_uj = meter.energy_uj.get(part.component)
        joules = None if energy_uj is None else energy_uj / 1e6
        quality = _quality(part, meter, part.component in partial or energy_uj is None)
        energies.append(ComponentEnergy(part.component, joules, part.source, quality))
    if whole_node and OTHER in meter.energy_uj:
        source = next(part.source for part in energies if part.name == OTHER)
        uncertain = OTHER in partial or OTHER in meter.component_uncertain_s
        total = math.fsum(part.energy_joules for part in energies if part.energy_joules is not None)
        quality = Quality.PARTIAL if uncertain else Quality.MEASURED
        energies.append(ComponentEnergy("node", total, source, quality))
    return tuple(energies)


def division_notes(meter: JobMeter) -> tuple[str, ...]:
    """Return notes about how the dynamic energy of shared components was divided among jobs.

    Each note names the quantity by which the energy was divided. If the quantity for a component changed
    during the job, the note states for how many seconds each quantity was used.
    """
    by_component: dict[str, dict[str, float]] = {}
    for key, seconds in meter.divided_s.items():
        component, _, quantity = key.partition(":")
        by_component.setdefault(component, {})[quantity] = seconds
    by_text: dict[str, list[str]] = {}
    for component, lengths_s in by_component.items():
        parts = {name: s for name, s in lengths_s.items() if s >= _MIN_NOTED_S} or lengths_s
        texts = [name if len(parts) == 1 else f"{name} for {parts[name]:.1f} s" for name in sorted(parts)]
        by_text.setdefault(" and by ".join(texts), []).append(component)
    return tuple(
        f"dynamic energy of {' and '.join(sorted(names))} divided by {text}"
        for text, names in by_text.items()
    )


def joules(meter: JobMeter) -> dict[str, float]:
    """Return the energy in joules that a job has used so far, by component.

    Components with unknown energy are absent.
    """
    return {name: energy_uj / 1e6 for name, energy_uj in meter.energy_uj.items()}


def _joined(one: JobComponent | None, other: JobComponent) -> JobComponent:
    if one is None:
        return other
    sources = dict.fromkeys([*one.source.split("+"), other.source])
    quality = Quality.MODELLED if Quality.MODELLED in (one.quality, other.quality) else one.quality
    return JobComponent(one.component, "+".join(sources), quality, one.known)


def _quality(part: JobComponent, meter: JobMeter, partial: bool) -> Quality:
    if partial or meter.component_uncertain_s.get(part.component):
        return Quality.PARTIAL
    assumed = part.quality == Quality.MODELLED or meter.assumed_s.get(part.component)
    return Quality.MODELLED if assumed else Quality.MEASURED
