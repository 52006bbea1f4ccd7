"""Discovery of a node's devices, with all drivers behind the common base classes."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.devices import sources
from slurm_energy.devices.cpu import cpufreq, topology
from slurm_energy.devices.cpu.processor_signals import CpuBusySensor
from slurm_energy.devices.cpu.resctrl import MonitoringFiles
from slurm_energy.devices.cpu.topology import CpuTopology
from slurm_energy.devices.driver import (
    ActivitySensor,
    DeviceError,
    EnergyCounter,
    Knob,
    ThrottleSensor,
    is_readable,
)
from slurm_energy.devices.hardware import CpufreqPolicy, CpuPackage, GpuInfo, NodeHardware
from slurm_energy.devices.node import network_signals
from slurm_energy.devices.settings import parse_range
from slurm_energy.devices.signal_sensor import SignalSensor
from slurm_energy.devices.source_priority import SourceSelection
from slurm_energy.devices.sources import NodePowerOptions

_ZONE = re.compile(r"(?P<unit>package-|socket)(?P<number>\d+)(?:-die-(?P<die>\d+))?")


_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """All devices of a node.

    Attributes:
        hardware: description of the hardware, with the limits at the time of discovery.
        counters: energy counters of components; no counter includes the energy of another one.
        node_counters: energy counters of the whole node; `selection.node` names those that are recorded.
        selection: counters recorded for each component, and the reasons why others are excluded.
        knobs: knobs (values of the hardware that can be set) by `Knob.key`.
        throttle_sensors: sensors of throttling.
        activity_sensors: sensors of the work that GPUs do.
        signal_sensors: sensors of signals of the node: GPUs, network, CPUs.
        notes: peculiarities of this node, one line each.
        unusable: reasons why interfaces whose devices exist cannot be used, by name of the interface.
        closers: functions that `close` calls, for example to close a library.
        root: directory that contains /sys, /proc and /dev.
        monitoring: monitoring groups that divide energy among jobs; None if they are not used.
    """

    hardware: NodeHardware
    counters: tuple[EnergyCounter, ...]
    knobs: Mapping[str, Knob]
    throttle_sensors: tuple[ThrottleSensor, ...]
    notes: tuple[str, ...] = ()
    closers: tuple[Callable[[], None], ...] = ()
    node_counters: tuple[EnergyCounter, ...] = ()
    selection: SourceSelection = field(default_factory=SourceSelection)
    activity_sensors: tuple[ActivitySensor, ...] = ()
    signal_sensors: tuple[SignalSensor, ...] = ()
    root: Path = Path("/")
    unusable: Mapping[str, str] = field(default_factory=dict)
    monitoring: MonitoringFiles | None = None

    def close(self) -> None:
        """Close all counters and sensors, and the vendor libraries of the GPUs."""
        for counter in (*self.counters, *self.node_counters):
            counter.close()
        for sensor in self.signal_sensors:
            sensor.close()
        for close in self.closers:
            close()

    def wait_for_readings(self, max_wait_s: float) -> None:
        """Wait until every counter of the whole node can be read, but at most `max_wait_s` seconds.

        Sensors that are polled in threads have no reading before their first measurement is complete.
        """
        deadline = time.monotonic() + max_wait_s
        while not all(map(is_readable, self.node_counters)) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)

    def read(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the current values of hardware settings (knobs), by key of the knob.

        Args:
            keys: keys of the knobs to read.

        Returns:
            Values as text in the unit of each knob. Knobs that are absent or cannot be read are omitted.
        """
        values: dict[str, str] = {}
        for key in keys:
            try:
                values[key] = self.knobs[key].read()
            except (DeviceError, KeyError):
                continue
        return values


def discover(root: Path = Path("/"), node_power: NodePowerOptions | None = None) -> NodeDevices:
    """Return the node's devices. An interface that the node lacks adds no devices.

    Args:
        root: directory that contains /sys, /proc and /dev.
        node_power: the site's options for the power of the whole node; None for the defaults.
    """
    policies, cpu_knobs = cpufreq.discover(root)
    node_sources = sources.find_sources(root, node_power)
    cpus = topology.online_cpus(root)
    cpu_topology = topology.read_topology(root, cpus)
    return NodeDevices(
        hardware=NodeHardware(
            cpu_model=topology.cpu_model(root),
            cpu_count=len(cpus),
            policies=tuple(policies),
            packages=tuple(_with_cpus(package, cpu_topology) for package in node_sources.packages),
            gpus=tuple(node_sources.gpus),
            max_dram_watts=node_sources.max_dram_watts,
            cores=cpu_topology.cores,
        ),
        counters=tuple(node_sources.counters),
        node_counters=tuple(node_sources.node_counters),
        selection=node_sources.selection,
        knobs={knob.key: knob for knob in [*node_sources.knobs, *cpu_knobs]},
        throttle_sensors=(*topology.throttle_sensors(root, cpus), *node_sources.throttle_sensors),
        activity_sensors=tuple(node_sources.activity_sensors),
        signal_sensors=(
            *node_sources.signal_sensors,
            *network_signals.discover(root),
            CpuBusySensor(root),
        ),
        notes=tuple(node_sources.notes),
        closers=tuple(node_sources.closers),
        root=root,
        unusable=dict(node_sources.unusable),
    )


def _with_cpus(package: CpuPackage, cpu_topology: CpuTopology) -> CpuPackage:
    """Return a copy of `package` in which `cpus` lists its logical CPUs.

    The CPUs are found by the name of the package. RAPL zones carry the kernel's package numbers. The sockets
    of HSMP are in the order of the kernel's packages, but have no package numbers. If the name matches
    neither form, the package is returned unchanged.
    """
    match = _ZONE.fullmatch(package.name)
    if match is None:
        return package
    number = int(match["number"])
    if match["unit"] == "socket":
        order = sorted(cpu_topology.packages)
        cpus = cpu_topology.packages[order[number]] if number < len(order) else frozenset()
    elif match["die"] is not None:
        cpus = cpu_topology.dies.get((number, int(match["die"])), frozenset())
    else:
        cpus = cpu_topology.packages.get(number, frozenset())
    return dataclasses.replace(package, cpus=tuple(sorted(cpus)))


def with_current_limits(hardware: NodeHardware, values: Mapping[str, str]) -> NodeHardware:
    """Return a copy of `hardware` with the limits that are in force now.

    They replace the limits that were in force when the hardware was discovered.

    Args:
        hardware: description of the node.
        values: current values by key of the setting, as `NodeDevices.read` returns them. Limits that are
            missing here keep their value; a missing `cpufreq.boost[all]` counts as switched off.
    """
    return dataclasses.replace(
        hardware,
        policies=tuple(_policy(policy, values) for policy in hardware.policies),
        boost=values.get("cpufreq.boost[all]") == "1",
        packages=tuple(_package(package, values) for package in hardware.packages),
        gpus=tuple(_gpu(gpu, values) for gpu in hardware.gpus),
    )


def _policy(policy: CpufreqPolicy, values: Mapping[str, str]) -> CpufreqPolicy:
    text = values.get(f"cpufreq.frequency[{policy.name}]")
    return dataclasses.replace(policy, bounds_khz=parse_range(text)) if text else policy


def _package(package: CpuPackage, values: Mapping[str, str]) -> CpuPackage:
    limits = [
        int(text)
        for place in package.limit_domains
        if (text := values.get(f"{package.interface}.power_limit[{place}]"))
    ]
    return dataclasses.replace(package, limit_watts=min(limits) / 1e6) if limits else package


def _gpu(gpu: GpuInfo, values: Mapping[str, str]) -> GpuInfo:
    text = values.get(f"{gpu.interface}.power_limit[gpu{gpu.index}]")
    if not text or int(text) == 0:
        return gpu
    return dataclasses.replace(gpu, limit_watts=int(text) / (1e3 if gpu.interface == "nvml" else 1e6))
