"""Tests of energy and power devices that the kernel shows under hwmon.

The devices are plain files in the layout of the kernel drivers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hardware_tree import Tree

from slurm_energy.agent.metering.components import job_gpus
from slurm_energy.devices import hwmon
from slurm_energy.devices.cpu import amd_energy, amd_hsmp
from slurm_energy.devices.discovery import discover, with_current_limits
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.gpu import intel_gpu
from slurm_energy.devices.hardware import NodeHardware
from slurm_energy.devices.node import power_meter
from slurm_energy.devices.power_sensor import PowerReading
from slurm_energy.devices.settings import Setting, gpu_limit_settings, package_limit_settings
from slurm_energy.slurm.hook_environment import job_context


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def chip(
    tree: Tree, number: int, device: str, name: str, values: dict[str, object], inside: str = ""
) -> None:
    """Add the directory hwmonNUMBER as a child of a device.

    If `inside` is set, the attribute files are in the directory of the device, as with older
    drivers.
    """
    folder = f"sys/devices/{device}/hwmon/hwmon{number}"
    place = f"sys/devices/{device}" if inside else folder
    for attribute, value in {"name": name, **values}.items():
        tree.put(f"{place}/{attribute}", value)
    (tree.root / folder).mkdir(parents=True, exist_ok=True)
    (tree.root / folder / "device").symlink_to("../..")
    link = tree.root / f"sys/class/hwmon/hwmon{number}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"../../devices/{device}/hwmon/hwmon{number}")


def meter(tree: Tree, number: int, info: str, microwatts: int, **more: object) -> None:
    """Add an ACPI power meter to a file tree.

    The attributes are in the directory `device`, because hwmon_device_register() attaches them to
    the ACPI device.
    """
    values = {"power1_average": microwatts, "power1_average_interval": 50, "power1_is_battery": 0}
    values |= {"power1_oem_info": info, "power1_model_number": "", "power1_serial_number": ""}
    chip(tree, number, f"LNXSYSTM:00/ACPI000D:{number:02x}", "power_meter", values | more, inside="device")


def hsmp(tree: Tree, number: int, device: str, limit_uw: int = 225_000_000) -> None:
    values = {"power1_input": 92_123_000, "power1_cap": limit_uw, "power1_cap_max": 240_000_000}
    chip(tree, number, f"platform/{device}", "amd_hsmp_hwmon", values)


def test_hsmp_sockets_are_in_the_order_of_their_devices_not_of_hwmon_numbers(tree: Tree) -> None:
    hsmp(tree, 9, "AMDI0097:00", limit_uw=200_000_000)
    hsmp(tree, 2, "AMDI0097:01", limit_uw=225_000_000)
    found = amd_hsmp.discover(tree.root)
    assert [(p.name, p.limit_watts, p.max_limit_watts) for p in found.packages] == [
        ("socket0", 200.0, 240.0),
        ("socket1", 225.0, 240.0),
    ]
    assert [(knob.key, knob.read()) for knob in found.knobs] == [
        ("hsmp.power_limit[socket0]", "200000000"),
        ("hsmp.power_limit[socket1]", "225000000"),
    ]
    reading = found.sensors[0].read()
    assert isinstance(reading, PowerReading) and reading.watts == 92.123


def test_hsmp_platform_device_has_both_sockets_below_it(tree: Tree) -> None:
    for number in (3, 11):
        hsmp(tree, number, "amd_hsmp", limit_uw=number * 10**7)
    assert [p.limit_watts for p in amd_hsmp.discover(tree.root).packages] == [30.0, 110.0]


def test_hsmp_limit_is_written_in_microwatts_and_read_back_with_the_firmware_s_rounding(tree: Tree) -> None:
    hsmp(tree, 0, "AMDI0097:00")
    knob = amd_hsmp.discover(tree.root).knobs[0]
    knob.write("180000500")
    assert tree.get("sys/class/hwmon/hwmon0/power1_cap") == "180000500"
    assert knob.is_equivalent("180000500", "180000000")
    assert not knob.is_equivalent("180000000", "240000000")
    assert knob.format_value("180000000") == "180 W"


def test_hsmp_takes_the_limits_that_amd_s_powercap_zones_lack(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0")
    hsmp(tree, 0, "AMDI0097:00", limit_uw=200_000_000)
    devices = discover(tree.root)
    assert [c.source for c in devices.counters] == ["powercap:intel-rapl"]  # energy beats HSMP's power
    package = devices.hardware.packages[0]
    assert (package.interface, package.limit_domains, package.limit_watts) == (
        "hsmp",
        ("socket0",),
        200.0,
    )
    settings = package_limit_settings(package.interface, package.limit_domains[0], 150.0, 1.0)
    assert settings == (Setting("hsmp.power_limit[socket0]", "150000000"),)
    assert settings[0].key in devices.knobs
    now = with_current_limits(devices.hardware, {settings[0].key: "150000000"})
    assert now.packages[0].limit_watts == 150.0
    devices.close()


def test_powercap_zones_that_cannot_be_read_give_way_to_the_next_source(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0")
    (tree.root / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("")
    hsmp(tree, 0, "AMDI0097:00")
    devices = discover(tree.root)
    assert [c.source for c in devices.counters] == ["hsmp:power"]
    assert "powercap:package-0 is excluded: it cannot be read" in devices.notes
    devices.close()
    energies(tree, sockets=1)
    devices = discover(tree.root)
    assert [c.source for c in devices.counters] == ["hwmon:amd_energy"]
    devices.close()


def test_powercap_zones_that_cannot_be_read_stay_without_another_source(tree: Tree) -> None:
    tree.zone("intel-rapl:0", "package-0")
    (tree.root / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("")
    devices = discover(tree.root)
    assert [c.source for c in devices.counters] == ["powercap:intel-rapl"]
    devices.close()


def test_intel_s_packages_keep_their_powercap_limits_beside_hsmp(tree: Tree) -> None:
    hsmp(tree, 0, "AMDI0097:00")
    assert discover(tree.two_packages().root).hardware.packages[0].interface == "powercap"


def energies(tree: Tree, sockets: int, cores: int = 2) -> None:
    values: dict[str, object] = {}
    for core in range(cores):
        values |= {f"energy{core + 1}_label": f"Ecore{core:03d}", f"energy{core + 1}_input": 5}
    for socket in range(sockets):
        channel = cores + socket + 1
        values |= {f"energy{channel}_label": f"Esocket{socket}", f"energy{channel}_input": 1000 + socket}
    chip(tree, 4, "platform/amd_energy.0", "amd_energy", values)


def numa(tree: Tree, nodes: int, sockets: int) -> None:
    for node in range(nodes):
        tree.put(f"sys/devices/system/node/node{node}/cpulist", f"{4 * node}-{4 * node + 3}")
        topology = f"sys/devices/system/cpu/cpu{4 * node}/topology"
        tree.put(f"{topology}/physical_package_id", node * sockets // nodes)


def test_amd_energy_counts_sockets_and_not_cores(tree: Tree) -> None:
    numa(tree, 2, 2)
    energies(tree, sockets=2)
    counters = amd_energy.discover(tree.root)
    assert [(c.key, c.component, c.read()) for c in counters] == [
        ("amd_energy:socket0", "cpu", 1000),
        ("amd_energy:socket1", "cpu", 1001),
    ]


def test_amd_energy_with_four_numa_nodes_per_socket_is_not_counted_four_times(tree: Tree) -> None:
    """The energy of an AMD socket with four NUMA nodes counts once, not four times.

    The driver makes one Esocket entry per NUMA node: `sockets = num_possible_nodes()`.
    """
    numa(tree, 8, 2)
    energies(tree, sockets=8)
    assert [c.read() for c in amd_energy.discover(tree.root)] == [1000, 1004]


def test_amd_energy_of_a_driver_that_counts_sockets_is_used_whole(tree: Tree) -> None:
    numa(tree, 8, 2)
    energies(tree, sockets=2)
    assert [c.read() for c in amd_energy.discover(tree.root)] == [1000, 1001]


def test_amd_energy_without_numa_information_is_used_whole(tree: Tree) -> None:
    energies(tree, sockets=2)
    assert len(amd_energy.discover(tree.root)) == 2


def test_one_acpi_meter_without_a_label_is_the_node_and_polled_in_a_thread(tree: Tree) -> None:
    meter(tree, 0, "", 437_000_000, power1_average_interval=2000)
    (sensor,) = power_meter.discover(tree.root).sensors
    assert (sensor.component, sensor.source, sensor.interval_s) == ("node", "power_meter:acpi", 2.0)
    sensor.close()


def test_several_acpi_meters_without_a_label_are_excluded(tree: Tree) -> None:
    meter(tree, 0, "", 437_000_000)
    meter(tree, 1, "PSU 2", 210_000_000)
    found = power_meter.discover(tree.root)
    assert found.sensors == []
    assert found.notes == ["power_meter: 2 meters without a label: which one measures the node is unknown"]


def test_a_battery_is_not_a_meter_of_the_node(tree: Tree) -> None:
    meter(tree, 0, "", 5_000_000, power1_is_battery=1)
    assert power_meter.discover(tree.root).sensors == []


def grace(tree: Tree, module: bool = True) -> None:
    """Create the power meters of a Grace Hopper node as emulated files.

    The names of the meters are those in its ACPI tables (`OEM Information` of _PMC).
    """
    labels = {"Grace Power Socket 0": 120, "CPU Power Socket 0": 70, "SysIO Power Socket 0": 20}
    labels |= {"Module Power Socket 0": 500} if module else {}
    for number, (label, watts) in enumerate(labels.items()):
        meter(tree, number, label, watts * 10**6)


def test_grace_meters_are_distinguished_and_never_added_up(tree: Tree) -> None:
    grace(tree)
    devices = discover(tree.root)
    assert [(c.key, c.component) for c in devices.counters] == [("power_meter:grace-grace0", "cpu")]
    assert [c.key for c in devices.node_counters] == ["power_meter:grace-module0"]
    assert devices.selection.missing_parts == {"rest"}
    assert devices.selection.excluded == {
        "power_meter:grace-cpu0": "cpu is counted by power_meter:grace-grace",
        "power_meter:grace-sysio0": "cpu is counted by power_meter:grace-grace",
    }
    devices.close()


def test_a_reading_that_the_firmware_lacks_is_no_power(tree: Tree) -> None:
    """A meter of NVIDIA Grace without telemetry raises an error instead of reporting a power.

    Without telemetry, the method _PMM of Grace returns 0xFFFFFFFF (milliwatts). The driver scales this value
    up.
    """
    grace(tree, module=False)
    sensor = power_meter.discover(tree.root).sensors[0]
    assert sensor.read().watts == 120.0
    (tree.root / "sys/devices/LNXSYSTM:00/ACPI000D:00/power1_average").write_text(f"{0xFFFFFFFF * 1000}\n")
    with pytest.raises(DeviceError, match="not a possible power of this component"):
        sensor.read()
    sensor.close()


def xe(tree: Tree, number: int, address: str, values: dict[str, object]) -> None:
    chip(tree, number, f"pci0000:00/{address}", "xe", values)


def test_intel_gpus_count_the_card_not_its_package(tree: Tree) -> None:
    card = {"energy1_input": 111, "energy1_label": "card", "energy2_input": 99, "energy2_label": "pkg"}
    card |= {"power1_max": 300_000_000, "power1_rated_max": 300_000_000, "power2_max": 290_000_000}
    xe(tree, 7, "0000:4d:00.0", card)
    xe(tree, 3, "0000:9a:00.0", {"energy2_input": 55, "power2_max": 0, "power2_rated_max": 150_000_000})
    found = intel_gpu.discover(tree.root)
    assert [(c.component, c.read(), c.source) for c in found.counters] == [
        ("gpu[0]", 111, "hwmon:xe"),
        ("gpu[1]", 55, "hwmon:xe"),
    ]
    assert {c.unread_range_uj for c in found.counters} == {262_144_000_000}  # 32 bits of 61 uJ
    assert [knob.read() for knob in found.knobs] == ["300000000", "0"]
    assert [gpu.limit_watts for gpu in found.gpus] == [300.0, 150.0]  # 0: the limit is switched off


def test_an_intel_limit_of_zero_means_no_limit(tree: Tree) -> None:
    xe(tree, 0, "0000:4d:00.0", {"energy1_input": 1, "power1_max": 0, "power1_rated_max": 300_000_000})
    knob = intel_gpu.discover(tree.root).knobs[0]
    assert (knob.format_value("0"), knob.format_value("150000000")) == ("none", "150 W")
    assert (
        knob.is_equivalent("0", "0")
        and not knob.is_equivalent("0", "125000")
        and not knob.is_equivalent("125000", "0")
    )
    assert knob.is_equivalent("150000000", "150125000")


def test_slurm_numbers_intel_gpus_from_0(tree: Tree) -> None:
    """Slurm numbers GPUs by their positions in gres.conf, not by the numbers of their files.

    The graphics of the BMC is card0. The GPUs are card1 and card2, and renderD128 and renderD129.
    """
    for number, address in enumerate(("0000:4d:00.0", "0000:9a:00.0")):
        xe(tree, number, address, {"energy1_input": 1, "power1_max": 300_000_000})
        for file in (f"card{number + 1}", f"renderD{number + 128}"):
            tree.put(f"sys/devices/pci0000:00/{address}/drm/{file}/dev", "226:0")
    gpus = intel_gpu.discover(tree.root).gpus
    for text, indices in {"0": (0,), "1": (1,), "0-1": (0, 1), "2": (), "128": ()}.items():
        context = job_context({"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": text})
        assert job_gpus(context, gpus, has_all=False) == indices


def test_the_tiles_of_an_i915_card_do_not_count(tree: Tree) -> None:
    chip(tree, 0, "pci0000:00/0000:4d:00.0", "i915", {"energy1_input": 10})
    chip(tree, 1, "pci0000:00/0000:4d:00.0/gt0", "i915_gt0", {"energy1_input": 6})
    assert [c.key for c in intel_gpu.discover(tree.root).counters] == ["i915:gpu0"]


def test_the_limit_of_a_gpu_is_written_through_its_own_interface(tree: Tree) -> None:
    xe(tree, 0, "0000:4d:00.0", {"energy1_input": 1, "power1_max": 300_000_000})
    devices = discover(tree.root)
    (gpu,) = devices.hardware.gpus
    (setting,) = gpu_limit_settings(gpu.index, 200.0, gpu.interface)
    assert setting == Setting("intel_gpu.power_limit[gpu0]", "200000000")
    assert setting.key in devices.knobs
    assert with_current_limits(devices.hardware, {setting.key: "200000000"}).gpus[0].limit_watts == 200.0
    assert with_current_limits(devices.hardware, {setting.key: "0"}).gpus[0].limit_watts == 300.0


def test_absent_hwmon_has_no_devices(tmp_path: Path) -> None:
    assert hwmon.find_chips(tmp_path, "xe") == []
    assert discover(tmp_path).hardware == NodeHardware("", 0)
