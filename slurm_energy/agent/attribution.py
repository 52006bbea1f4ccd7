"""Which part of the node's energy is a job's, by a stated rule. Pure functions.

A job with the whole node gets all of it, idle parts included. A job that shares the node gets its own GPUs
in full, and packages and memory by its share of the CPUs, marked `partial`: what each job really caused is
not measured yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_energy.agent.meter import Meter
from slurm_energy.devices.hardware import Gpu
from slurm_energy.devices.interface import EnergyCounter
from slurm_energy.records import ComponentEnergy, Quality
from slurm_energy.slurm.hookenv import JobContext


@dataclass(frozen=True, slots=True)
class Share:
    """A job's share of one counter.

    Attributes:
        key: the counter.
        component: component of the record.
        source: interface for the record.
        factor: 1 for all of it, less for a part, 0 if the part is not known.
        quality: of the counter itself.
    """

    key: str
    component: str
    source: str
    factor: float
    quality: str = Quality.MEASURED


def has_whole_node(context: JobContext, cpu_count: int) -> bool:
    """Return whether a job has the node for itself: Slurm says so, or all CPUs are its own."""
    return context.exclusive or (context.cpus is not None and context.cpus >= cpu_count > 0)


def job_gpus(context: JobContext, gpus: Iterable[Gpu], whole_node: bool) -> tuple[int, ...]:
    """Return the indices of the job's GPUs.

    Slurm counts device files. A job with the whole node whose GPUs Slurm does not name has all of them.
    """
    present = list(gpus)
    if context.gpus is None:
        return tuple(gpu.index for gpu in present) if whole_node else ()
    return tuple(g.index for g in present if (g.index if g.minor is None else g.minor) in context.gpus)


def shares(
    context: JobContext,
    counters: Iterable[EnergyCounter],
    whole_node: bool,
    gpus: tuple[int, ...],
    cpu_count: int,
) -> tuple[Share, ...]:
    """Return the job's share of every counter that counts for it at all."""
    known = context.cpus is not None and cpu_count > 0
    part = 1.0 if whole_node else min(1.0, (context.cpus or 0) / cpu_count) if known else 0.0
    own = {f"gpu[{index}]" for index in gpus}
    found = []
    for counter in counters:
        is_gpu = counter.component.startswith("gpu")
        if is_gpu and not whole_node and counter.component not in own:
            continue
        found.append(
            Share(counter.key, counter.component, counter.source, 1.0 if is_gpu else part, counter.quality)
        )
    return tuple(found)


def joules(parts: Iterable[Share], energy_uj: Mapping[str, int]) -> dict[str, float]:
    """Return joules by component; a component with an unknown part is left out."""
    total: dict[str, float] = {}
    unknown: set[str] = set()
    for share in parts:
        if share.key in energy_uj and share.factor > 0:
            total[share.component] = (
                total.get(share.component, 0.0) + energy_uj[share.key] * share.factor / 1e6
            )
        else:
            unknown.add(share.component)
    return {name: energy for name, energy in total.items() if name not in unknown}


def components(
    parts: Iterable[Share], meter: Meter, partial: Iterable[str] = ()
) -> tuple[ComponentEnergy, ...]:
    """Return a record's components from what a meter added up.

    Args:
        parts: the job's shares.
        meter: energy by counter.
        partial: components to mark although they were measured, because others used them too.
    """
    listed = list(parts)
    known = joules(listed, meter.energy_uj)
    found = []
    for name in dict.fromkeys(share.component for share in listed):
        own = [share for share in listed if share.component == name]
        exact = all(share.factor == 1.0 and share.key not in meter.uncertain for share in own)
        quality = Quality.MEASURED if exact and name not in partial else Quality.PARTIAL
        if any(share.quality == Quality.MODELLED for share in own):
            quality = Quality.MODELLED
        source = "+".join(dict.fromkeys(share.source for share in own))
        found.append(ComponentEnergy(name, known.get(name), source, quality))
    return tuple(found)
