"""Discovery of a node's energy sources, and selection of the sources whose energy is recorded.

This module decides which interfaces are opened on which node. The priority of sources is in the module
`source_priority`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.devices.cpu import amd_energy, amd_hsmp, perf_energy, powercap
from slurm_energy.devices.driver import ActivitySensor, EnergyCounter, Knob, ThrottleSensor, is_readable
from slurm_energy.devices.gpu import amd_smi, intel_gpu, nvml
from slurm_energy.devices.hardware import CpuPackage, GpuInfo
from slurm_energy.devices.node import dram_model, ipmi, pm_counters, power_meter
from slurm_energy.devices.power_sensor import IntegratedPowerCounter, PowerSensor
from slurm_energy.devices.signal_sensor import SignalSensor
from slurm_energy.devices.source_priority import NO_SOURCE, NodePart, SourceSelection, select_sources
from slurm_energy.records import Quality

_AMD_GPU_DEVICE = Path("dev/kfd")
_NVIDIA_DEVICE = Path("dev/nvidiactl")


@dataclass(frozen=True, slots=True)
class NodePowerOptions:
    """The site's options for the power of the whole node.

    Attributes:
        source: name of a source in `source_priority.NODE_SOURCES`; `none` means to record no energy of the
            node; None means to use the best available source.
        excludes: parts of the node whose power is not included in the readings of `source`.
        sensor: sensor of a BMC that is reached over the network. None means that the BMC is read from inside
            the node, or the node has no BMC.
        interval_s: seconds between readings of a BMC that is read from inside the node.
    """

    source: str | None = None
    excludes: frozenset[NodePart] = frozenset()
    sensor: PowerSensor | None = None
    interval_s: float = ipmi.INTERVAL_S


@dataclass(slots=True)
class DiscoveredSources:
    """Result of `find_sources`.

    Attributes:
        counters: counters of components; no counter includes the energy of another one.
        node_counters: counters that measure the node. The node's energy is the sum of these counters plus the
            energy of the components in `selection.added_parts`.
        selection: which counters are recorded, and why others are excluded.
        packages, gpus, knobs, throttle_sensors, activity_sensors, signal_sensors: processor packages and GPUs
            of the node, and its knobs and sensors.
        max_dram_watts: maximum power of all memory; None if unknown.
        notes: peculiarities of this node, one line each.
        closers: functions to call when the devices are no longer needed.
        unusable: reasons why interfaces whose devices exist cannot be used, by name of the interface.
    """

    counters: list[EnergyCounter] = field(default_factory=list)
    node_counters: list[EnergyCounter] = field(default_factory=list)
    selection: SourceSelection = field(default_factory=SourceSelection)
    packages: list[CpuPackage] = field(default_factory=list)
    gpus: list[GpuInfo] = field(default_factory=list)
    knobs: list[Knob] = field(default_factory=list)
    throttle_sensors: list[ThrottleSensor] = field(default_factory=list)
    activity_sensors: list[ActivitySensor] = field(default_factory=list)
    signal_sensors: list[SignalSensor] = field(default_factory=list)
    max_dram_watts: float | None = None
    notes: list[str] = field(default_factory=list)
    closers: list[Callable[[], None]] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)


def find_sources(root: Path, node_power: NodePowerOptions | None = None) -> DiscoveredSources:
    """Find the node's energy sources and select the sources to record.

    Hardware interfaces that the node lacks yield no sources.

    Args:
        root: directory that contains /sys, /proc and /dev.
        node_power: the site's options for the power of the whole node; None for the defaults.
    """
    options = node_power or NodePowerOptions()
    sources = DiscoveredSources()
    all_counters = [*_processors(sources, root), *_gpus(sources, root), *pm_counters.discover(root)]
    all_counters += _node(sources, root, options)
    all_counters = _without_unreadable_sources(sources, all_counters)
    if not any(counter.component == "dram" for counter in all_counters):
        all_counters += _modelled_dram(sources, root)
    sources.selection = select_sources(all_counters, options.source, options.excludes)
    by_key = {counter.key: counter for counter in all_counters}
    # This keeps the order of discovery: packages, memory, GPUs.
    sources.counters = [counter for key, counter in by_key.items() if key in sources.selection.components]
    sources.node_counters = [by_key[key] for key in sources.selection.node]
    if sources.max_dram_watts is None:
        sources.max_dram_watts = _modelled_dram_watts(sources.counters)
    if sources.selection.missing_parts:
        missing = ", ".join(sorted(sources.selection.missing_parts))
        sources.notes.append(f"no sensor measures {missing} of the node: its figure is too low by that power")
    for key, why in sources.selection.excluded.items():
        _exclude(sources, by_key[key], why)
    return sources


def _exclude(sources: DiscoveredSources, counter: EnergyCounter, why: str) -> None:
    """Close a counter and add a note with the reason to `sources`."""
    counter.close()
    sources.notes.append(f"{counter.key} is excluded: {why}")


def _processors(sources: DiscoveredSources, root: Path) -> list[EnergyCounter]:
    rapl = powercap.discover(root)
    sockets = amd_hsmp.discover(root)
    counters: list[EnergyCounter] = [*rapl.counters, *rapl.platform, *amd_energy.discover(root)]
    if not any(counter.component == "cpu" and is_readable(counter) for counter in counters):
        events, refused = perf_energy.discover(root)
        sources.notes += refused
        if events:
            counters = [*(counter for counter in counters if is_readable(counter)), *events]
    sources.knobs += [*rapl.knobs, *sockets.knobs]
    limited = [package for package in rapl.packages if package.limit_domains]
    sources.packages += rapl.packages if limited or not sockets.packages else sockets.packages
    sources.max_dram_watts = rapl.max_dram_watts
    sources.notes += rapl.notes
    return [*counters, *map(IntegratedPowerCounter, sockets.sensors)]


def _without_unreadable_sources(
    sources: DiscoveredSources, counters: list[EnergyCounter]
) -> list[EnergyCounter]:
    """Remove the sources of processors and memory of which no counter can be read.

    A source stays if the component has no source that can be read. Each removed counter is closed, and a note
    is added to `sources`.
    """
    unreadable: set[str] = set()
    for component in ("cpu", "dram"):
        own = [counter for counter in counters if counter.component == component]
        names = {counter.source for counter in own}
        readable = {counter.source for counter in own if is_readable(counter)} if len(names) > 1 else names
        if readable:
            unreadable |= {counter.key for counter in own if counter.source not in readable}
    for counter in counters:
        if counter.key in unreadable:
            _exclude(sources, counter, "it cannot be read")
    return [counter for counter in counters if counter.key not in unreadable]


def _gpus(sources: DiscoveredSources, root: Path) -> list[EnergyCounter]:
    """Find the GPUs of one vendor, add their devices to `sources`, and return their energy counters.

    Only the first vendor with a GPU is used, in the order NVIDIA, AMD, Intel, because GPUs of several vendors
    would have the same indices.
    """
    nvidia = nvml.discover()
    sources.closers.append(nvidia.close)
    intel = intel_gpu.discover(root)
    sources.gpus += nvidia.gpus
    sources.knobs += nvidia.knobs
    sources.throttle_sensors += nvidia.throttle_sensors
    sources.activity_sensors += nvidia.activity_sensors
    sources.signal_sensors += nvidia.signal_sensors
    sources.notes += nvidia.notes
    if nvidia.gpus:
        return list(nvidia.counters)
    if nvidia.reason and (root / _NVIDIA_DEVICE).exists():
        sources.unusable["NVML"] = nvidia.reason
        sources.notes.append(f"NVML: {nvidia.reason}: NVIDIA GPUs are neither measured nor set")
    if (root / _AMD_GPU_DEVICE).exists():
        amd = amd_smi.discover()
        sources.closers.append(amd.close)
        sources.gpus += amd.gpus
        sources.knobs += amd.knobs
        sources.throttle_sensors += amd.throttle_sensors
        sources.signal_sensors += amd.signal_sensors
        if amd.gpus:
            return list(amd.counters)
        sources.unusable["AMD SMI"] = "the library finds no GPU or is not installed"
        sources.notes.append(
            "AMD GPUs are present, but AMD SMI is not: install amd-smi-lib and `pip install amdsmi`"
        )
    sources.gpus += intel.gpus
    sources.knobs += intel.knobs
    return list(intel.counters)


def _node(sources: DiscoveredSources, root: Path, options: NodePowerOptions) -> list[EnergyCounter]:
    meters = power_meter.discover(root)
    sources.notes += meters.notes
    sensors = list(meters.sensors)
    if options.sensor is not None:
        sensors.append(options.sensor)
    elif options.source in (None, "ipmi:dcmi") and (transport := ipmi.discover(root)) is not None:
        sensors.append(ipmi.power_sensor(transport, options.interval_s))
    return [
        IntegratedPowerCounter(sensor)
        for sensor in sensors
        if options.source != NO_SOURCE or sensor.component != "node"
    ]


def _modelled_dram(sources: DiscoveredSources, root: Path) -> list[EnergyCounter]:
    model, why = dram_model.discover(root)
    if model is None:
        sources.notes.append(why)
        return []
    return [IntegratedPowerCounter(model)]


def _modelled_dram_watts(counters: Iterable[EnergyCounter]) -> float | None:
    """Return the maximum power of all memory in watts according to the memory power model.

    Return None if the power of memory is not modelled.
    """
    modelled = [c.max_watts for c in counters if c.component == "dram" and c.quality == Quality.MODELLED]
    return sum(modelled) if modelled else None


def node_energy_uj(
    selection: SourceSelection, energy_uj: dict[str, int], components: Iterable[EnergyCounter]
) -> int | None:
    """Return the energy of the whole node in an interval.

    It is the sum of the counters of the whole node, and of the components that these counters do not
    include.

    Args:
        selection: counters that are recorded for the node, and the components whose energy must be added.
        energy_uj: microjoules of the interval by key of the counter.
        components: counters of components.

    Returns:
        Microjoules; None if the node has no source for the whole node, or the energy of one of its counters
        is unknown.
    """
    adds = [c.key for c in components if c.component.partition("[")[0] in selection.added_parts]
    keys = [*selection.node, *adds]
    if not selection.node or any(key not in energy_uj for key in keys):
        return None
    return sum(energy_uj[key] for key in keys)
