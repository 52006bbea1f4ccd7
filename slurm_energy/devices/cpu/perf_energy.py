"""RAPL energy through the perf subsystem, for nodes whose powercap tree is absent or unreadable.

The PMU `power` counts the energy of a package or die for all processes. One event is opened on each CPU in
its `cpumask`. A count has 64 bits in units of the event's `scale` (2^-32 J), so it does not wrap. The count
starts when the event is opened. Opening an event requires CAP_PERFMON or perf_event_paranoid <= 0. Source:
kernel, arch/x86/events/rapl.c and include/uapi/linux/perf_event.h; man 2 perf_event_open.

AMD processors have one counter per socket. In some kernels (6.9 to 6.12), `cpumask` nevertheless has one CPU
per die, for example 12 CPUs on a socket of Zen 4. If Intel's PMU belongs to the powercap driver, `cpumask`
has all CPUs of each package since Linux 7.0. Source: kernel, drivers/powercap/intel_rapl_common.c.
"""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

from slurm_energy.devices.cpu.perf_event import open_event, read_count
from slurm_energy.devices.cpu.powercap import is_amd
from slurm_energy.devices.driver import DeviceError, EnergyCounter
from slurm_energy.devices.sysfs import error_reason, parse_cpu_list, read_number, read_optional

_PMU = Path("sys/bus/event_source/devices/power")
_CPU = Path("sys/devices/system/cpu")
_EVENTS = {"energy-pkg": "cpu", "energy-ram": "dram"}
_MAX_WATTS = {"cpu": 1000.0, "dram": 250.0}


class PerfEnergyCounter(EnergyCounter):
    """Counter of one energy event on one CPU.

    The constructor opens the event, because the count starts when the event is opened.
    """

    range_uj = None

    def __init__(self, event: str, pmu_type: int, config: int, cpu: int, microjoules: Fraction) -> None:
        """Open the perf event that counts energy.

        Args:
            event: name, for example `energy-pkg`.
            pmu_type: the kernel's type number of the PMU.
            config: number of the event within the PMU.
            cpu: logical CPU on which the event is opened.
            microjoules: energy of one unit of the count in microjoules.

        Raises:
            DeviceError: the kernel refused the event.
        """
        self.component = _EVENTS[event]
        self.key = f"perf:{event}@cpu{cpu}"
        self.source = "perf:power"
        self.max_watts = _MAX_WATTS[self.component]
        self._microjoules = microjoules
        try:
            self._descriptor = open_event(pmu_type, config, cpu)
        except OSError as error:
            raise DeviceError(self.key, error_reason(error)) from None

    def read(self) -> int:
        """Return the energy since the event was opened, in microjoules."""
        try:
            return int(read_count(self._descriptor) * self._microjoules)
        except OSError as error:
            raise DeviceError(self.key, error_reason(error)) from None

    def close(self) -> None:
        """Close the perf event, which ends its count."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def energy_events(root: Path) -> list[tuple[str, int, Fraction]]:
    """Return the RAPL energy events of the node as (name, number of the event, microjoules per count)."""
    events = []
    for name in _EVENTS:
        text = read_optional(root / _PMU / "events" / name) or ""
        scale = read_optional(root / _PMU / "events" / f"{name}.scale") or ""
        unit = read_optional(root / _PMU / "events" / f"{name}.unit")
        try:
            config = int(text.removeprefix("event="), 0)
            microjoules = Fraction(scale) * 1_000_000
        except ValueError:
            continue
        if text.startswith("event=") and unit == "Joules" and microjoules > 0:
            events.append((name, config, microjoules))
    return events


def discover(root: Path) -> tuple[list[EnergyCounter], list[str]]:
    """Open the energy events of processors and memory.

    The events are opened on each CPU in the PMU's `cpumask`.

    Returns:
        (counters, notes on events that the kernel refused and on repeated counters).
    """
    pmu_type = read_number(root / _PMU / "type")
    try:
        cpus = parse_cpu_list(read_optional(root / _PMU / "cpumask") or "")
    except ValueError:
        cpus = ()
    counters: list[EnergyCounter] = []
    cpus, notes = _without_repeated_counters(root, cpus)
    for name, config, microjoules in energy_events(root) if pmu_type is not None else []:
        for cpu in cpus:
            try:
                counters.append(PerfEnergyCounter(name, pmu_type or 0, config, cpu, microjoules))
            except DeviceError as error:
                notes.append(f"perf: {error.what} cannot be opened: {error.why}")
    return counters, notes


def _without_repeated_counters(root: Path, cpus: tuple[int, ...]) -> tuple[tuple[int, ...], list[str]]:
    """Remove the CPUs whose events repeat the energy counter of another CPU.

    On AMD processors, and if a die has several CPUs in `cpus`, only the first CPU of each package remains.
    Otherwise each die has a counter of its own.

    Returns:
        (remaining CPUs, a note if CPUs were removed). If the topology of a CPU is unknown, none is removed.
    """
    amd = is_amd(root)
    first: dict[int, int] = {}
    dies: set[tuple[int, int]] = set()
    for cpu in cpus:
        folder = root / _CPU / f"cpu{cpu}/topology"
        package, die = read_number(folder / "physical_package_id"), read_number(folder / "die_id")
        if package is None or (die is None and not amd):
            return cpus, []
        first.setdefault(package, cpu)
        dies.add((package, die or 0))
    left_out = len(cpus) - len(first)
    if left_out == 0 or (not amd and len(dies) == len(cpus)):
        return cpus, []
    return tuple(first.values()), [f"perf: {left_out} CPUs repeat their socket's counter and are excluded"]
