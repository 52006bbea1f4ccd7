"""Finds what a node has and puts it behind the interface. The only module that knows all interfaces."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.devices import sources
from slurm_energy.devices.cpu import cpufreq, topology
from slurm_energy.devices.cpu.topology import CpuTopology
from slurm_energy.devices.driver import DeviceError, EnergyCounter, Knob, ThrottleSensor
from slurm_energy.devices.hardware import CpufreqPolicy, CpuPackage, GpuInfo, NodeHardware, parse_range
from slurm_energy.devices.source_priority import SourceSelection
from slurm_energy.devices.sources import NodePowerOptions

_ZONE = re.compile(r"(?P<kind>package-|socket)(?P<number>\d+)(?:-die-(?P<die>\d+))?")


_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Everything found on a node.

    Attributes:
        hardware: description for decisions; limits as they were when it was made.
        counters: energy counters of components, none of which counts what another one counts.
        node_counters: energy counters of the whole node, see `selection`.
        selection: which counters count for what, and why others do not.
        knobs: what can be set, by key.
        throttle_sensors: sensors of throttling.
        notes: oddities, one line each.
        unusable: interfaces whose devices are there and that cannot be used, with the reason.
        closers: what to call at the end.
        root: where /sys, /proc and /dev were found.
    """

    hardware: NodeHardware
    counters: tuple[EnergyCounter, ...]
    knobs: Mapping[str, Knob]
    throttle_sensors: tuple[ThrottleSensor, ...]
    notes: tuple[str, ...] = ()
    closers: tuple[Callable[[], None], ...] = ()
    node_counters: tuple[EnergyCounter, ...] = ()
    selection: SourceSelection = field(default_factory=SourceSelection)
    root: Path = Path("/")
    unusable: Mapping[str, str] = field(default_factory=dict)

    def close(self) -> None:
        """Close descriptors and libraries."""
        for counter in (*self.counters, *self.node_counters):
            counter.close()
        for close in self.closers:
            close()

    def wait_for_readings(self, max_wait_s: float) -> None:
        """Wait for the first answers of meters that are asked in the background, at most `max_wait_s`."""
        deadline = time.monotonic() + max_wait_s
        while not all(map(_answers, self.node_counters)) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)

    def read(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the values in force of the named knobs; what cannot be read is left out."""
        values: dict[str, str] = {}
        for key in keys:
            try:
                values[key] = self.knobs[key].read()
            except (DeviceError, KeyError):
                continue
        return values


def discover(root: Path = Path("/"), meter: NodePowerOptions | None = None) -> NodeDevices:
    """Return the node's devices. Absent interfaces contribute nothing.

    Args:
        root: where /sys, /proc and /dev are found.
        meter: what the site says about the node's own power.
    """
    policies, cpu_knobs = cpufreq.discover(root)
    found = sources.find_sources(root, meter)
    cpus = topology.online_cpus(root)
    places = topology.read_topology(root, cpus)
    return NodeDevices(
        hardware=NodeHardware(
            cpu_model=topology.cpu_model(root),
            cpu_count=len(cpus),
            policies=tuple(policies),
            packages=tuple(_place(package, places) for package in found.packages),
            gpus=tuple(found.gpus),
            max_dram_watts=found.max_dram_watts,
            cores=places.cores,
        ),
        counters=tuple(found.counters),
        node_counters=tuple(found.node_counters),
        selection=found.selection,
        knobs={knob.key: knob for knob in [*found.knobs, *cpu_knobs]},
        throttle_sensors=(*topology.throttle_sensors(root, cpus), *found.throttle_sensors),
        notes=tuple(found.notes),
        closers=tuple(found.closers),
        root=root,
        unusable=dict(found.unusable),
    )


def _place(package: CpuPackage, places: CpuTopology) -> CpuPackage:
    """Return a package with its CPUs: zones have the kernel's numbers, HSMP's sockets the same order."""
    match = _ZONE.fullmatch(package.name)
    if match is None:
        return package
    number = int(match["number"])
    if match["kind"] == "socket":
        order = sorted(places.packages)
        cpus = places.packages[order[number]] if number < len(order) else frozenset()
    elif match["die"] is not None:
        cpus = places.dies.get((number, int(match["die"])), frozenset())
    else:
        cpus = places.packages.get(number, frozenset())
    return dataclasses.replace(package, cpus=tuple(sorted(cpus)))


def _answers(counter: EnergyCounter) -> bool:
    try:
        counter.read()
    except DeviceError:
        return False
    return True


def with_current_limits(hardware: NodeHardware, found: Mapping[str, str]) -> NodeHardware:
    """Return the hardware with the limits of `found` (values by knob key) as the ones in force."""
    return dataclasses.replace(
        hardware,
        policies=tuple(_policy(policy, found) for policy in hardware.policies),
        boost=found.get("cpufreq.boost[all]") == "1",
        packages=tuple(_package(package, found) for package in hardware.packages),
        gpus=tuple(_gpu(gpu, found) for gpu in hardware.gpus),
    )


def _policy(policy: CpufreqPolicy, found: Mapping[str, str]) -> CpufreqPolicy:
    text = found.get(f"cpufreq.frequency[{policy.name}]")
    return dataclasses.replace(policy, bounds_khz=parse_range(text)) if text else policy


def _package(package: CpuPackage, found: Mapping[str, str]) -> CpuPackage:
    limits = [
        int(text)
        for place in package.limit_domains
        if (text := found.get(f"{package.interface}.power_limit[{place}]"))
    ]
    return dataclasses.replace(package, limit_watts=min(limits) / 1e6) if limits else package


def _gpu(gpu: GpuInfo, found: Mapping[str, str]) -> GpuInfo:
    text = found.get(f"{gpu.interface}.power_limit[gpu{gpu.index}]")
    if not text or int(text) == 0:
        return gpu
    return dataclasses.replace(gpu, limit_watts=int(text) / (1e3 if gpu.interface == "nvml" else 1e6))
