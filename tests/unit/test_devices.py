"""Test the discovery of devices and the reading and writing of single knobs.

A knob is a hardware setting, such as a power limit. The emulated node consists of plain files.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hardware_tree import KERNEL_RANGE_UJ, Tree

from slurm_energy.devices.cpu import cpufreq, powercap
from slurm_energy.devices.cpu.powercap import counter_range_uj
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import DeviceError, DeviceGoneError
from slurm_energy.devices.gpu import nvml


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


class FakeLibrary:
    """A partial stand-in for nvidia-ml-py, as far as the tests need it.

    `loaded` states whether the driver is loaded. `fallen` contains the UUIDs of GPUs that have
    fallen off the bus.
    """

    NVML_ERROR_UNINITIALIZED, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_GPU_IS_LOST = 1, 9, 15
    NVML_ERROR_NOT_SUPPORTED = 3

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self) -> None:
        self.limit = 400_000
        self.uuids = ["GPU-a", "GPU-b"]
        self.loaded, self.usable = True, True
        self.fallen: set[str] = set()
        self.opened = 1

    def nvmlInit(self) -> None:
        self.opened += 1
        if not self.loaded:
            raise self.NVMLError(self.NVML_ERROR_DRIVER_NOT_LOADED)
        self.usable = True

    def nvmlShutdown(self) -> None:
        self.usable = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self._checked(self.uuids[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return self._checked(uuid)

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def __getattr__(self, name: str) -> Any:
        def refuse(handle: str, *_: Any) -> None:
            self._checked(handle)
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)

        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)
        return refuse

    def _checked(self, handle: str) -> str:
        if not self.usable:
            raise self.NVMLError(self.NVML_ERROR_UNINITIALIZED)
        if handle in self.fallen:
            raise self.NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return handle

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return {"GPU-a": 1234, "GPU-b": 777}[self._checked(handle)]

    def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:
        self._checked(handle)
        return self.limit

    def nvmlDeviceSetPowerManagementLimit(self, handle: object, limit: int) -> None:
        if limit > 400_000:
            raise self.NVMLError(2)
        self.limit = limit


def nvml_counters(library: FakeLibrary, now: list[float]) -> list[nvml.NvmlEnergyCounter]:
    opened = nvml.NvmlLibrary(library, lambda: now[0])
    assert opened.find_gpus() == 2
    return [
        nvml.NvmlEnergyCounter(opened, nvml.GpuInfo(index, 0, "A100", 400.0, 100.0, 400.0, None))
        for index in range(2)
    ]


def settled(counter: nvml.NvmlEnergyCounter) -> int:
    """Read an energy counter repeatedly until the NVML library has been opened again.

    The function returns the value of the counter.
    """
    deadline = time.time() + 60
    while time.time() < deadline:
        try:
            return counter.read()
        except DeviceGoneError as error:
            if "opened again" not in str(error):
                raise
            time.sleep(0.01)
    raise AssertionError("still being opened")


def test_nvml_is_reopened_after_a_driver_reload_without_blocking() -> None:
    library, now = FakeLibrary(), [1000.0]
    counter, other = nvml_counters(library, now)
    assert counter.read() == 1_234_000
    library.usable = library.loaded = False
    with pytest.raises(DeviceGoneError):
        counter.read()
    with pytest.raises(DeviceGoneError):
        settled(counter)
    for _ in range(100):  # no storm of attempts
        with pytest.raises(DeviceGoneError):
            settled(other)
    assert library.opened == 2
    library.loaded = True
    now[0] += 5.1
    with pytest.raises(DeviceGoneError):
        counter.read()
    assert (settled(counter), settled(other)) == (1_234_000, 777_000)
    assert library.opened == 3


def test_a_gpu_that_falls_off_the_bus_does_not_affect_the_others() -> None:
    library, now = FakeLibrary(), [1000.0]
    counter, other = nvml_counters(library, now)
    assert (counter.read(), other.read()) == (1_234_000, 777_000)
    library.fallen = {"GPU-a"}
    library.uuids = ["GPU-b"]  # indices move
    for _ in range(10):
        with pytest.raises(DeviceGoneError):
            counter.read()
        assert other.read() == 777_000
        now[0] += 6
    assert library.opened == 1
    library.fallen, library.uuids = set(), ["GPU-b", "GPU-a"]
    assert counter.read() == 1_234_000


@pytest.mark.parametrize("lost", ["GPU-a", "GPU-b"])
def test_a_gpu_that_is_lost_at_the_start_does_not_affect_the_others(
    monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    library, now = FakeLibrary(), [1000.0]
    library.fallen = {lost}
    monkeypatch.setattr(nvml.NvmlLibrary, "open", lambda: nvml.NvmlLibrary(library, lambda: now[0]))
    devices = nvml.discover()
    other = 1 - library.uuids.index(lost)
    assert [gpu.index for gpu in devices.gpus] == [0, 1]
    assert [counter.key for counter in devices.counters] == [f"nvml:gpu{other}"]
    assert [knob.key for knob in devices.knobs] == [f"nvml.power_limit[gpu{other}]"]
    for _ in range(10):  # the lost GPU is tried again
        for sensor in devices.signal_sensors:
            with contextlib.suppress(DeviceError):
                sensor.read(now[0])
        assert devices.counters[0].read() > 0
        now[0] += 6
    assert library.opened == 1
    devices.close()


def test_a_lost_gpu_does_not_close_a_driver_that_was_loaded_again_slowly() -> None:
    library, now = FakeLibrary(), [1000.0]
    counter, other = nvml_counters(library, now)
    library.usable, library.fallen = False, {"GPU-a"}
    with pytest.raises(DeviceGoneError):
        counter.read()
    now[0] += 30
    with pytest.raises(DeviceGoneError, match="error 15"):
        settled(counter)
    assert (settled(other), library.opened) == (777_000, 2)


def test_a_gpu_limit_out_of_range_is_refused() -> None:
    knob = nvml.NvmlPowerLimit(nvml.NvmlLibrary(FakeLibrary()), 0)
    knob.write("300000")
    assert (knob.read(), knob.format_value(knob.read())) == ("300000", "300 W")
    with pytest.raises(DeviceError, match="error 2"):
        knob.write("500000")
