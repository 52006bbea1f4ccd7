"""Test the discovery of devices and the reading and writing of single knobs.

A knob is a hardware setting, such as a power limit. The emulated node consists of plain files.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hardware_tree import KERNEL_RANGE_UJ, Tree

from slurm_energy.devices.cpu import cpufreq, powercap
from slurm_energy.devices.cpu.powercap import counter_range_uj
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import DeviceError, DeviceGoneError


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_node_without_interfaces_has_no_devices(tree: Tree) -> None:
    devices = discover(tree.root)
    assert (devices.counters, devices.knobs, devices.throttle_sensors) == ((), {}, ())
    assert (devices.hardware.cpu_count, devices.hardware.cpu_model) == (0, "")


def test_zones_are_identified_by_name_and_inner_zones_do_not_count(tree: Tree) -> None:
    devices = discover(tree.cpus(4).two_packages().root)
    assert [(c.key, c.component) for c in devices.counters] == [
        ("powercap:dram@package-0", "dram"),
        ("powercap:dram@package-1", "dram"),
        ("powercap:package-0", "cpu"),
        ("powercap:package-1", "cpu"),
    ]
    assert [package.name for package in devices.hardware.packages] == ["package-0", "package-1"]


def test_the_memory_mapped_twin_is_counted_once_and_limited_too(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0", limit_watts=200)
    tree.zone("intel-rapl-mmio:0", "package-0", limit_watts=180)
    devices = discover(tree.root)
    assert [c.source for c in devices.counters] == ["powercap:intel-rapl"]
    assert devices.hardware.packages[0].limit_domains == ("package-0", "package-0:mmio")
    assert devices.knobs["powercap.power_limit[package-0:mmio]"].read() == "180000000"


def test_a_package_of_the_twin_alone_is_counted(tree: Tree) -> None:
    tree.zone("intel-rapl-mmio:0", "package-0", limit_watts=180)
    assert [c.source for c in discover(tree.root).counters] == ["powercap:intel-rapl-mmio"]


def test_psys_counts_for_the_node_and_for_no_component(tree: Tree) -> None:
    devices = discover(tree.two_packages().zone("intel-rapl:2", "psys", energy_uj=7).root)
    assert len(devices.counters) == 4
    (node,) = devices.node_counters
    assert (node.key, node.source, node.read()) == ("powercap:psys", "powercap:psys", 7)
    devices.close()


def test_dies_of_a_package_are_packages(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0-die-0").zone("intel-rapl:1", "package-0-die-1")
    assert [c.component for c in discover(tree.root).counters] == ["cpu", "cpu"]


def test_dies_of_an_amd_socket_repeat_its_counter(tree: Tree) -> None:
    """The energy counter of an AMD socket is read only once, although each die shows it.

    Older kernels show the socket's counter once per die; see arch/x86/events/rapl.c on its scope.
    """
    tree.put("proc/cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\n")
    for number in range(4):
        tree.zone(f"intel-rapl:{number}", f"package-{number // 2}-die-{number % 2}")
        tree.zone(f"intel-rapl:{number}:0", "core")
    devices = discover(tree.root)
    assert [c.key for c in devices.counters] == ["powercap:package-0-die-0", "powercap:package-1-die-0"]
    assert sum("repeats its socket's counter" in note for note in devices.notes) == 2
    devices.close()


def test_a_zone_without_limit_has_no_knob(tree: Tree) -> None:
    devices = discover(tree.zone("intel-rapl:0", "package-0").root)
    assert devices.hardware.packages[0].limit_domains == ()
    assert not devices.knobs


def test_the_range_of_a_counter_is_one_unit_more_than_its_highest_value() -> None:
    assert counter_range_uj(KERNEL_RANGE_UJ) == KERNEL_RANGE_UJ + 61
    assert counter_range_uj(65712999613) == 65712999613 + 15  # AMD and DRAM: 15.3 uJ
    assert counter_range_uj(100_000_000) == 100_000_001


def test_a_counter_stays_open_and_follows_the_file(tree: Tree) -> None:
    file = (
        tree.zone("intel-rapl:0", "package-0", energy_uj=5).root / "sys/class/powercap/intel-rapl:0/energy_uj"
    )
    counter = discover(tree.root).counters[0]
    assert counter.read() == 5
    assert tree.open_files() == 1
    file.write_text("17\n")
    assert counter.read() == 17
    assert tree.open_files() == 1
    counter.close()
    assert tree.open_files() == 0


def test_a_counter_that_fails_is_opened_again_but_not_at_every_read(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("slurm_energy.devices.sysfs.time.monotonic", lambda: now[0])
    file = tree.zone("intel-rapl:0", "package-0").root / "sys/class/powercap/intel-rapl:0/energy_uj"
    counter = discover(tree.root).counters[0]
    file.write_text("")
    with pytest.raises(DeviceError, match="not a number"):
        counter.read()
    file.unlink()
    with pytest.raises(DeviceGoneError, match="No such file"):
        counter.read()
    file.write_text("23\n")
    now[0] += 0.9
    with pytest.raises(DeviceGoneError, match="No such file"):
        counter.read()
    now[0] += 0.2
    assert counter.read() == 23
    counter.close()


def test_policies_come_in_order_of_number_with_their_cpus(tree: Tree) -> None:
    hardware = discover(tree.cpus(12).cpufreq(12, "intel_pstate", "powersave").root).hardware
    assert [policy.name for policy in hardware.policies][-2:] == ["policy10", "policy11"]
    first = hardware.policies[0]
    assert (first.cpus, first.driver, first.powersave_is_static) == ((0,), "intel_pstate", False)
    assert (first.hardware_range_khz, first.bounds_khz) == ((800000, 3400000), (800000, 3400000))


def test_amd_s_preferences_are_known_under_governor_performance_too(tree: Tree) -> None:
    """The energy preferences of AMD's driver are known also under the governor `performance`.

    Under this governor, the driver's file lists `performance` alone. Source: kernel, amd-pstate.c.
    """
    tree.cpufreq(2, "amd-pstate-epp", "performance")
    for number in range(2):
        folder = f"sys/devices/system/cpu/cpufreq/policy{number}"
        tree.put(f"{folder}/energy_performance_available_preferences", "performance")
    (policy, _), _ = cpufreq.discover(tree.root)
    assert "power" in policy.preferences and "balance_performance" in policy.preferences


@pytest.mark.parametrize("path", ["cpufreq/boost", "intel_pstate/no_turbo"])
def test_boost_reads_the_same_under_both_names(tree: Tree, path: str) -> None:
    tree.cpufreq(1).put(f"sys/devices/system/cpu/{path}", 1)
    boost = discover(tree.root).knobs["cpufreq.boost[all]"]
    inverted = path.endswith("no_turbo")
    assert boost.read() == ("0" if inverted else "1")
    boost.write("0")
    assert tree.get(f"sys/devices/system/cpu/{path}") == ("1" if inverted else "0")
    assert boost.dependents_at("1") == ("cpufreq.frequency[policy0]",)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("800000-3400000", "800000-800000"),
        ("800000-1000000", "2000000-3000000"),
        ("3000000-3400000", "800000-900000"),
    ],
)
def test_bounds_are_written_so_that_they_never_cross(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    knob = discover(tree.cpufreq(1).root).knobs["cpufreq.frequency[policy0]"]
    knob.write(before)
    values: list[str] = []
    write = os.write

    def spy(descriptor: int, data: bytes) -> int:
        count = write(descriptor, data)
        values.append(knob.read())
        return count

    monkeypatch.setattr(os, "write", spy)
    knob.write(after)
    monkeypatch.undo()
    assert knob.read() == after
    assert all(int(low) <= int(high) for low, high in (text.split("-") for text in values))


def test_readings_within_the_hardware_s_rounding_are_accepted(tree: Tree) -> None:
    knobs = discover(tree.two_packages().root).knobs
    limit = knobs["powercap.power_limit[package-0]"]
    assert limit.is_equivalent("150000000", "150125000")
    assert not limit.is_equivalent("150000000", "151000000")
    window = knobs["powercap.time_window[package-0]"]
    assert window.is_equivalent("1000000", "976562")
    assert not window.is_equivalent("1000000", "27983872")
    assert (limit.format_value("150500000"), window.format_value("976562")) == ("150.5 W", "0.976562 s")


def test_the_driver_s_refusal_is_explained(tree: Tree) -> None:
    knob = discover(tree.two_packages().root).knobs["powercap.enabled[package-0]"]
    (tree.root / "sys/class/powercap/intel-rapl:1/enabled").unlink()
    with pytest.raises(DeviceError, match="No such file"):
        knob.write("1")


def test_max_watts_has_headroom_over_the_design_power(tree: Tree) -> None:
    counters = {c.key: c for c in powercap.discover(tree.two_packages().root).counters}
    assert counters["powercap:package-0"].max_watts == 375
    assert counters["powercap:dram@package-0"].max_watts == 250


def test_memory_that_both_providers_list_counts_once_in_its_maximum_power(tree: Tree) -> None:
    for provider in ("intel-rapl", "intel-rapl-mmio"):
        tree.zone(f"{provider}:0", "package-0", limit_watts=250)
        tree.zone(f"{provider}:0:0", "dram", limit_watts=40)
        tree.put(f"sys/class/powercap/{provider}:0:0/constraint_0_max_power_uw", 40_000_000)
    assert powercap.discover(tree.root).max_dram_watts == 40


def test_unlimited_firmware_limits_do_not_bound_the_power_by_the_design_power(tree: Tree) -> None:
    # Firmware of desktop boards states the limits as 4095.875 W; the processor exceeds its design power.
    tree.zone("intel-rapl:0", "package-0", limit_watts=4095.875)
    tree.put("sys/class/powercap/intel-rapl:0/constraint_0_max_power_uw", 125_000_000)
    (counter,) = powercap.discover(tree.root).counters
    assert counter.max_watts == 1000


def test_a_low_limit_does_not_bound_the_power_of_a_package_without_design_power(tree: Tree) -> None:
    # The limit may be that of a job with a cap, if senergyd is restarted during the job.
    tree.zone("intel-rapl:0", "package-0", limit_watts=75)
    (tree.root / "sys/class/powercap/intel-rapl:0/constraint_0_max_power_uw").unlink()
    (counter,) = powercap.discover(tree.root).counters
    assert counter.max_watts == 1000
