"""All energy sources of a node beyond one interface each: found, and reduced to those that count.

Knows which interfaces are worth opening on which node; the order of preference itself is in `preference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.devices.cpu import amd_energy, amd_hsmp, perf_energy, powercap
from slurm_energy.devices.driver import DeviceError, EnergyCounter, Knob, ThrottleSensor
from slurm_energy.devices.gpu import amd_smi, intel_gpu, nvml
from slurm_energy.devices.hardware import CpuPackage, GpuInfo
from slurm_energy.devices.node import dram_model, ipmi, pm_counters, power_meter
from slurm_energy.devices.power_sensor import IntegratedPowerCounter, PowerSensor
from slurm_energy.devices.source_priority import NO_SOURCE, NodePart, SourceSelection, select_sources
from slurm_energy.records import Quality

_AMD_GPU_DEVICE = Path("dev/kfd")
_NVIDIA_DEVICE = Path("dev/nvidiactl")


@dataclass(frozen=True, slots=True)
class NodePowerOptions:
    """What the site says about the node's own power.

    Attributes:
        source: name of a source in `preference.NODE_SOURCES`, `none`, or None for the best.
        excludes: parts known not to be in that source's figure.
        gauge: the BMC of a node that is reached over the network; None for one in the node or none.
        interval_s: seconds between readings of a BMC in the node.
    """

    source: str | None = None
    excludes: frozenset[NodePart] = frozenset()
    gauge: PowerSensor | None = None
    interval_s: float = ipmi.INTERVAL_S


@dataclass(slots=True)
class DiscoveredSources:
    """What `find_sources` found.

    Attributes:
        counters: of components; none counts what another one counts.
        node_counters: their sum, with the components that `selection.added_parts` names, is the node.
        selection: why these.
        packages, gpus, knobs, throttle_sensors: everything that can be set or watched.
        notes: oddities, one line each.
        closers: what to call at the end.
        unusable: interfaces whose devices are there and that cannot be used, with the reason.
    """

    counters: list[EnergyCounter] = field(default_factory=list)
    node_counters: list[EnergyCounter] = field(default_factory=list)
    selection: SourceSelection = field(default_factory=SourceSelection)
    packages: list[CpuPackage] = field(default_factory=list)
    gpus: list[GpuInfo] = field(default_factory=list)
    knobs: list[Knob] = field(default_factory=list)
    throttle_sensors: list[ThrottleSensor] = field(default_factory=list)
    max_dram_watts: float | None = None
    notes: list[str] = field(default_factory=list)
    closers: list[Callable[[], None]] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)


def find_sources(root: Path, meter: NodePowerOptions | None = None) -> DiscoveredSources:
    """Return the node's sources. Absent interfaces contribute nothing.

    Args:
        root: where /sys, /proc and /dev are found.
        meter: what the site says about the node's own power.
    """
    wanted = meter or NodePowerOptions()
    found = DiscoveredSources()
    everything = [*_processors(found, root), *_gpus(found, root), *pm_counters.discover(root)]
    everything += _node(found, root, wanted)
    if not any(counter.component == "dram" for counter in everything):
        everything += _modelled_dram(found, root)
    found.selection = select_sources(everything, wanted.source, wanted.excludes)
    by_key = {counter.key: counter for counter in everything}
    # In the order of discovery: packages, memory, GPUs.
    found.counters = [counter for key, counter in by_key.items() if key in found.selection.components]
    found.node_counters = [by_key[key] for key in found.selection.node]
    if found.max_dram_watts is None:
        found.max_dram_watts = _dram_watts(found.counters)
    if found.selection.missing_parts:
        lacks = ", ".join(sorted(found.selection.missing_parts))
        found.notes.append(f"nothing here measures {lacks} of the node: its figure is too low by that")
    for key, why in found.selection.excluded.items():
        by_key[key].close()
        found.notes.append(f"{key} is left out: {why}")
    return found


def _processors(found: DiscoveredSources, root: Path) -> list[EnergyCounter]:
    rapl = powercap.discover(root)
    sockets = amd_hsmp.discover(root)
    counters: list[EnergyCounter] = [*rapl.counters, *rapl.platform, *amd_energy.discover(root)]
    if not any(counter.component == "cpu" and _readable(counter) for counter in counters):
        events, refused = perf_energy.discover(root)
        found.notes += refused
        if events:
            counters = [*(counter for counter in counters if _readable(counter)), *events]
    found.knobs += [*rapl.knobs, *sockets.knobs]
    limited = [package for package in rapl.packages if package.limit_domains]
    found.packages += rapl.packages if limited or not sockets.packages else sockets.packages
    found.max_dram_watts = rapl.max_dram_watts
    found.notes += rapl.notes
    return [*counters, *map(IntegratedPowerCounter, sockets.gauges)]


def _gpus(found: DiscoveredSources, root: Path) -> list[EnergyCounter]:
    """Return the GPUs of one maker: with several, their numbers would mean different devices."""
    nvidia = nvml.discover()
    found.closers.append(nvidia.close)
    intel = intel_gpu.discover(root)
    found.gpus += nvidia.gpus
    found.knobs += nvidia.knobs
    found.throttle_sensors += nvidia.throttle_sensors
    found.notes += nvidia.notes
    if nvidia.gpus:
        return list(nvidia.counters)
    if nvidia.reason and (root / _NVIDIA_DEVICE).exists():
        found.unusable["NVML"] = nvidia.reason
        found.notes.append(f"NVML: {nvidia.reason}: NVIDIA GPUs are neither measured nor set")
    if (root / _AMD_GPU_DEVICE).exists():
        amd = amd_smi.discover()
        found.closers.append(amd.close)
        found.gpus += amd.gpus
        found.knobs += amd.knobs
        found.throttle_sensors += amd.throttle_sensors
        if amd.gpus:
            return list(amd.counters)
        found.unusable["AMD SMI"] = "the library finds no GPU, or is not installed"
        found.notes.append(
            "AMD GPUs are there, but AMD SMI is not: install amd-smi-lib and `pip install amdsmi`"
        )
    found.gpus += intel.gpus
    found.knobs += intel.knobs
    return list(intel.counters)


def _node(found: DiscoveredSources, root: Path, meter: NodePowerOptions) -> list[EnergyCounter]:
    meters = power_meter.discover(root)
    found.notes += meters.notes
    gauges = list(meters.gauges)
    if meter.gauge is not None:
        gauges.append(meter.gauge)
    elif meter.source in (None, "ipmi:dcmi") and (transport := ipmi.discover(root)) is not None:
        gauges.append(ipmi.power_sensor(transport, meter.interval_s))
    return [
        IntegratedPowerCounter(gauge)
        for gauge in gauges
        if meter.source != NO_SOURCE or gauge.component != "node"
    ]


def _modelled_dram(found: DiscoveredSources, root: Path) -> list[EnergyCounter]:
    model, why = dram_model.discover(root)
    if model is None:
        found.notes.append(why)
        return []
    return [IntegratedPowerCounter(model)]


def _dram_watts(counters: Iterable[EnergyCounter]) -> float | None:
    """Return the most that memory may draw where it is modelled."""
    modelled = [c.max_watts for c in counters if c.component == "dram" and c.quality == Quality.MODELLED]
    return sum(modelled) if modelled else None


def _readable(counter: EnergyCounter) -> bool:
    try:
        counter.read()
    except DeviceError:
        return False
    return True


def node_energy_uj(
    selection: SourceSelection, energy_uj: dict[str, int], components: Iterable[EnergyCounter]
) -> int | None:
    """Return the node's microjoules in an interval from those of its counters.

    Args:
        selection: which counters count.
        energy_uj: microjoules of the interval by counter key.
        components: the counters of components.

    Returns:
        None if there is no node source or one of its counters is not known.
    """
    adds = [c.key for c in components if c.component.partition("[")[0] in selection.added_parts]
    keys = [*selection.node, *adds]
    if not selection.node or any(key not in energy_uj for key in keys):
        return None
    return sum(energy_uj[key] for key in keys)
