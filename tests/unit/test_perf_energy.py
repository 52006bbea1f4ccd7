"""Tests of the reading of energy from the perf subsystem of the kernel.

The tests cover the discovery of the energy events, the energy per count, and the system call that opens an
event.
"""

from __future__ import annotations

import os
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hardware_tree import Tree

from slurm_energy.devices.cpu import perf_energy
from slurm_energy.devices.cpu.perf_energy import PerfEnergyCounter
from slurm_energy.devices.cpu.perf_event import open_event, read_count
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import DeviceError

SCALE = "2.3283064365386962890625e-10"
PERF_TYPE_SOFTWARE = 1
PERF_COUNT_SW_CPU_CLOCK = 0


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def pmu(tree: Tree, kind: int = 32, cpus: str = "0,32") -> Tree:
    folder = "sys/bus/event_source/devices/power"
    tree.put(f"{folder}/type", kind)
    tree.put(f"{folder}/cpumask", cpus)
    for name, code in {"energy-cores": 1, "energy-pkg": 2, "energy-ram": 3, "energy-psys": 5}.items():
        tree.put(f"{folder}/events/{name}", f"event=0x{code:02x}")
        tree.put(f"{folder}/events/{name}.unit", "Joules")
        tree.put(f"{folder}/events/{name}.scale", SCALE)
    return tree


class Kernel:
    """Stand-in for the kernel: answers perf_event_open with pipes that contain one count each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int = 0, refuse: int = 0) -> None:
        self.opened: list[tuple[int, int, int]] = []
        self.count, self.refuse = count, refuse
        monkeypatch.setattr(perf_energy, "open_event", self.open_event)

    def open_event(self, kind: int, config: int, cpu: int) -> int:
        if self.refuse:
            raise OSError(self.refuse, os.strerror(self.refuse))
        self.opened.append((kind, config, cpu))
        reader, writer = os.pipe()
        os.write(writer, self.count.to_bytes(8, "little"))
        os.close(writer)
        return reader


def test_a_count_is_exactly_two_to_the_minus_32_joules(tree: Tree) -> None:
    worth = {name: microjoules for name, _, microjoules in perf_energy.energy_events(pmu(tree).root)}
    assert worth == {"energy-pkg": Fraction(10**6, 2**32), "energy-ram": Fraction(10**6, 2**32)}


def test_packages_and_memory_are_counted_on_each_cpu_of_the_mask(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(monkeypatch, count=2**32 * 1000 + 2**31)
    counters, notes = perf_energy.discover(pmu(tree).root)
    assert kernel.opened == [(32, 2, 0), (32, 2, 32), (32, 3, 0), (32, 3, 32)]
    assert [(c.key, c.component) for c in counters[:3]] == [
        ("perf:energy-pkg@cpu0", "cpu"),
        ("perf:energy-pkg@cpu32", "cpu"),
        ("perf:energy-ram@cpu0", "dram"),
    ]
    assert counters[0].read() == 1_000_500_000
    assert notes == []
    for counter in counters:
        counter.close()


def test_the_dies_of_an_amd_socket_are_counted_once(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some kernels show one CPU per die of an AMD socket, although all of them read the socket's counter.

    Source: kernel, "perf/x86/rapl: Fix the energy-pkg event for AMD CPUs" (before: `0,8,16,...,88` on one
    socket with 12 dies).
    """
    kernel = Kernel(monkeypatch)
    pmu(tree, cpus="0,8,16,64,72").cores(128, packages=2)
    tree.put("proc/cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\n")
    counters, notes = perf_energy.discover(tree.root)
    assert [cpu for _, config, cpu in kernel.opened if config == 2] == [0, 64]
    assert notes == ["perf: 3 CPUs repeat their socket's counter and are excluded"]
    for counter in counters:
        counter.close()


def test_the_dies_of_an_intel_package_have_counters_of_their_own(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(monkeypatch)
    pmu(tree, cpus="0,8").cores(16, packages=1)
    tree.put("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\n")
    for cpu in range(16):
        tree.put(f"sys/devices/system/cpu/cpu{cpu}/topology/die_id", cpu // 8)
    counters, _ = perf_energy.discover(tree.root)
    assert [cpu for _, config, cpu in kernel.opened if config == 2] == [0, 8]
    for counter in counters:
        counter.close()


@pytest.mark.parametrize("dies", [1, 2])
def test_a_package_of_which_all_cpus_are_in_the_mask_is_counted_once(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, dies: int
) -> None:
    """Since Linux 7.0, the powercap driver shows all CPUs of each Intel package, which read one counter.

    Source: kernel, "powercap: intel_rapl: Expose all package CPUs in PMU cpumask".
    """
    kernel = Kernel(monkeypatch)
    pmu(tree, cpus="0-15").cores(16, packages=2)
    tree.put("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\n")
    for cpu in range(16):
        tree.put(f"sys/devices/system/cpu/cpu{cpu}/topology/die_id", cpu % 8 * dies // 8)
    counters, notes = perf_energy.discover(tree.root)
    assert [cpu for _, config, cpu in kernel.opened if config == 2] == [0, 8]
    assert notes == ["perf: 14 CPUs repeat their socket's counter and are excluded"]
    for counter in counters:
        counter.close()


def test_an_event_in_another_unit_is_not_energy(tree: Tree) -> None:
    pmu(tree).put("sys/bus/event_source/devices/power/events/energy-pkg.unit", "Volts")
    assert [name for name, _, _ in perf_energy.energy_events(tree.root)] == ["energy-ram"]


@pytest.mark.parametrize("text", ["", "event=zwei", "umask=2", "event=0x02,umask=1"])
def test_an_event_of_unknown_form_is_skipped(tree: Tree, text: str) -> None:
    pmu(tree).put("sys/bus/event_source/devices/power/events/energy-pkg", text)
    assert [name for name, _, _ in perf_energy.energy_events(tree.root)] == ["energy-ram"]


def test_refused_events_are_reported_and_leak_nothing(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel(monkeypatch, refuse=13)
    counters, notes = perf_energy.discover(pmu(tree).root)
    assert counters == []
    assert "perf:energy-pkg@cpu0 cannot be opened: Permission denied" in notes[0]


def test_perf_is_used_only_where_powercap_is_unreadable(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch)
    discover(pmu(tree).two_packages().root).close()
    assert kernel.opened == []
    for file in tree.root.glob("sys/class/powercap/*/energy_uj"):
        file.unlink()
    devices = discover(tree.root)
    assert {c.source for c in devices.counters} == {"perf:power"}
    devices.close()


def test_the_system_call_counts() -> None:
    """`open_event` makes the real system call, and the opened event counts.

    The test opens the kernel's software CPU clock. A rising count shows that the system call number,
    structure and flags agree with the kernel.
    """
    try:
        descriptor = open_event(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, 0)
    except PermissionError:
        pytest.skip("perf events need root here")
    try:
        assert os.get_inheritable(descriptor) is False
        before = read_count(descriptor)
        time.sleep(0.02)
        assert read_count(descriptor) - before > 10_000_000  # nanoseconds
    finally:
        os.close(descriptor)


def test_the_kernel_s_refusal_is_explained() -> None:
    with pytest.raises(OSError):
        open_event(PERF_TYPE_SOFTWARE, 999, 0)
    with pytest.raises(DeviceError, match="perf:energy-pkg@cpu0"):
        PerfEnergyCounter("energy-pkg", PERF_TYPE_SOFTWARE, 999, 0, Fraction(1))
