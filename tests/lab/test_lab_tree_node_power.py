"""Tests of the emulated HSMP chips, `pm_counters` and power meters of a node.

The tests also check that the drivers of slurm-energy read the values of the emulated devices.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from lab_bench import Bench

from slurm_energy.devices.cpu import amd_energy, amd_hsmp, powercap
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.node import pm_counters, smbios
from slurm_energy_lab.tree.entries import Directory, File, Link, Tree
from slurm_energy_lab.tree.node_tree import NodeOptions

CHIP = "/sys/devices/virtual/hwmon/hwmon1"
CRAY = "/sys/cray/pm_counters"
EPYC = "epyc-7513-a100"


def epyc() -> Bench:
    return Bench(EPYC, rapl__hsmp_max_watts=225.0)


def cray() -> Bench:
    return Bench(EPYC, NodeOptions("n1", pm_counters=True))


def busy(node: Bench) -> None:
    with node.realtime_model.modify() as model:
        model.set_real_load("test", range(64), 32.0)


def package_watts(node: Bench, seconds: float) -> float:
    with node.realtime_model.now() as model:
        before = model.energy_joules("cpu[0]")
    node.wait(seconds)
    with node.realtime_model.now() as model:
        return (model.energy_joules("cpu[0]") - before) / seconds


def plain(tree: Tree, root: Path, path: str = "/") -> Path:
    """Copy the current contents of an emulated file tree to regular files below `root`."""
    entry = tree.get(path)
    place = root / path.lstrip("/")
    if isinstance(entry, Directory):
        place.mkdir(parents=True, exist_ok=True)
        for name in entry.children:
            plain(tree, root, f"{path.rstrip('/')}/{name}")
    elif isinstance(entry, Link):
        place.symlink_to(entry.target)
    elif isinstance(entry, File):
        place.write_bytes(entry.render())
    return root


def meters(node: Bench, root: Path) -> Path:
    """Write the files of a node that describe counters and meters to `root`, and return `root`.

    All other files of the node are left out, because writing the files of all 128 CPUs would take seconds.
    """
    paths = [
        "/proc/cpuinfo",
        "/sys/class",
        "/sys/devices/virtual",
        "/sys/devices/system/node",
        "/sys/firmware",
    ]
    paths += [f"/sys/devices/system/cpu/cpu{number}/topology" for number in range(0, 64, 8)]
    for path in paths:
        if node.node.tree.get(path) is not None:
            (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            plain(node.node.tree, root, path)
    return root


def test_an_hsmp_limit_holds_the_socket_back() -> None:
    node = epyc()
    assert (node.read(f"{CHIP}/power1_cap"), node.read(f"{CHIP}/power1_cap_max")) == (
        "200000000",
        "225000000",
    )
    busy(node)
    assert package_watts(node, 5) > 130
    node.write(f"{CHIP}/power1_cap", "120000999")
    assert node.read(f"{CHIP}/power1_cap") == "120000000"
    package_watts(node, 5)
    assert package_watts(node, 5) == pytest.approx(120, rel=0.02)
    assert int(node.read(f"{CHIP}/power1_input")) == pytest.approx(120e6, rel=0.02)


def test_an_hsmp_limit_is_refused_or_kept_in_range() -> None:
    node = epyc()
    for text in ("-1", "much"):
        with pytest.raises(OSError) as caught:
            node.write(f"{CHIP}/power1_cap", text)
        assert caught.value.errno == errno.EINVAL
    node.write(f"{CHIP}/power1_cap", "999000000")
    assert node.read(f"{CHIP}/power1_cap") == "225000000"


def test_a_node_without_the_port_has_no_chip() -> None:
    assert Bench(EPYC).node.tree.get(CHIP) is None


def test_the_devices_find_the_emulated_sockets(tmp_path: Path) -> None:
    found = amd_hsmp.discover(plain(epyc().node.tree, tmp_path))
    assert [(p.name, p.limit_watts, p.max_limit_watts, p.interface) for p in found.packages] == [
        ("socket0", 200.0, 225.0, "hsmp")
    ]


def test_pm_counters_move_together_ten_times_a_second() -> None:
    node = cray()
    busy(node)
    first, stamp = node.read(f"{CRAY}/freshness"), node.read(f"{CRAY}/power").split()[2]
    node.wait(0.05)
    assert node.read(f"{CRAY}/freshness") == first
    assert node.read(f"{CRAY}/power").split()[2] == stamp
    node.wait(0.06)
    assert int(node.read(f"{CRAY}/freshness")) == int(first) + 1
    stamps = {
        node.read(f"{CRAY}/{name}").split()[2] for name in ("energy", "power", "cpu_energy", "accel3_energy")
    }
    assert len(stamps) == 1


def test_pm_counters_are_the_model_s_joules(tmp_path: Path) -> None:
    node = cray()
    busy(node)
    node.wait(100)
    with node.realtime_model.now() as model:
        truth = {name: model.energy_joules(name) for name in ("node", "cpu", "dram", "gpu[0]", "gpu[3]")}
    counters = {c.component: c for c in pm_counters.discover(plain(node.node.tree, tmp_path))}
    for name, joules in truth.items():
        assert counters[name].read() == int(joules) * 1_000_000
    counters["node"].close()
    assert node.read(f"{CRAY}/power").split()[1] == "W"


def joules(node: Bench, component: str) -> float:
    with node.realtime_model.now() as model:
        return model.energy_joules(component)


def test_dies_of_an_intel_package_have_zones_that_add_up(tmp_path: Path) -> None:
    """The powercap zones of the dies of an Intel package add up to the energy of the package.

    In the kernel, the zones of several dies have the names `package-%d-die-%d`. Source: kernel,
    intel_rapl_common.c, rapl_add_package.
    """
    node = Bench("xeon-8358", rapl__dies=2, rapl__psys=True)
    names = ("package-0-die-0", "package-0-die-1", "package-1-die-0", "package-1-die-1")
    before = {part: joules(node, part) for part in ("cpu", "dram")}
    first = powercap.discover(meters(node, tmp_path / "a"))
    node.wait(60)
    second = powercap.discover(meters(node, tmp_path / "b"))
    assert [package.name for package in second.packages] == list(names)
    assert [package.limit_watts for package in second.packages] == [125.0] * 4
    for part, total in before.items():
        pairs = zip(first.counters, second.counters, strict=True)
        moved = sum(b.read() - a.read() for a, b in pairs if a.component == part)
        assert moved / 1e6 == pytest.approx(joules(node, part) - total, rel=1e-3)
    topology = "/sys/devices/system/cpu/cpu{}/topology/{}"
    assert [node.read(topology.format(cpu, "die_id")) for cpu in (0, 15, 16, 31, 32)] == list("00110")
    assert node.read(topology.format(16, "die_cpus_list")) == "16-31,80-95"


def test_limits_of_dies_hold_their_package_to_the_sum() -> None:
    node = Bench("xeon-8358", rapl__dies=2)
    busy(node)
    free = package_watts(node, 5)
    for zone, watts in ((0, 50), (1, 70)):
        path = f"/sys/devices/virtual/powercap/intel-rapl/intel-rapl:{zone}/constraint_0_power_limit_uw"
        node.write(path, str(watts * 10**6))
    node.wait(10)
    assert package_watts(node, 5) == pytest.approx(120, rel=0.02)
    assert free > 130


def test_dies_of_an_amd_socket_show_its_register(tmp_path: Path) -> None:
    node = Bench(EPYC, rapl__dies=4)
    node.wait(10)
    found = powercap.discover(meters(node, tmp_path))
    assert [counter.key for counter in found.counters] == ["powercap:package-0-die-0"]
    assert len(found.notes) == 3


def test_amd_energy_shows_cores_and_nodes_where_powercap_does_not(tmp_path: Path) -> None:
    """The emulated driver amd_energy has counters for cores and sockets; powercap files are absent.

    The kernel's driver takes the number of NUMA nodes for the number of sockets: `sockets =
    num_possible_nodes()`. The processor in the test has four NUMA nodes and therefore four counters,
    although it is one package. slurm-energy must read the energy of the package once. Source: kernel,
    amd_energy.c.
    """
    node = Bench(EPYC, rapl__amd_energy=True, cpu__numa_nodes=4)
    node.wait(10)
    root = meters(node, tmp_path)
    assert not (root / "sys/class/powercap").exists()
    labels = [path.read_text() for path in (root / "sys/class/hwmon/hwmon8").glob("energy*_label")]
    assert sorted(labels)[-4:] == [f"Esocket{number}\n" for number in range(4)]
    (counter,) = amd_energy.discover(root)
    assert counter.read() / 1e6 == pytest.approx(joules(node, "cpu[0]"), rel=1e-6)
    assert node.entry("/sys/devices/virtual/hwmon/hwmon8/energy1_input").mode & 0o777 == 0o440
    devices = discover(root)
    assert [c.source for c in devices.counters if c.component == "cpu"] == ["hwmon:amd_energy"]
    devices.close()


def test_the_meters_of_grace_are_distinguished_by_label(tmp_path: Path) -> None:
    """The power meters of a Grace processor are distinguished by their label.

    A label names the part of the node that a meter measures. In the test, the node has neither powercap nor
    a power meter of the node, like nodes with Arm cores.
    """
    node = Bench("xeon-8358", other__power_meters="grace", rapl__amd_energy=True)
    for path in ("/sys/devices/virtual/hwmon/hwmon8", "/sys/class/hwmon/hwmon8"):
        node.node.tree.remove(path)
    devices = discover(meters(node, tmp_path))
    assert [c.key for c in devices.counters] == [f"power_meter:grace-grace{n}" for n in (0, 1)]
    assert [c.key for c in devices.node_counters] == [f"power_meter:grace-module{n}" for n in (0, 1)]
    base = "/sys/devices/virtual/hwmon/hwmon"
    rails = {
        node.read(f"{base}{n}/power1_oem_info"): int(node.read(f"{base}{n}/power1_average"))
        for n in range(16, 20)
    }
    with node.realtime_model.now() as model:
        socket = model.power_watts("cpu[0]") + model.power_watts("dram[0]")
    assert rails["Grace Power Socket 0"] == pytest.approx(socket * 1e6, rel=1e-6)
    assert rails["CPU Power Socket 0"] + rails["SysIO Power Socket 0"] < rails["Grace Power Socket 0"]
    assert rails["Module Power Socket 0"] >= rails["Grace Power Socket 0"]
    devices.close()


def test_a_node_can_have_no_meter(tmp_path: Path) -> None:
    node = Bench("xeon-8358", other__power_meters="none")
    devices = discover(meters(node, tmp_path))
    assert devices.node_counters == ()
    devices.close()


@pytest.mark.parametrize(("profile", "dimms"), [(EPYC, 8), ("xeon-8358", 16)])
def test_the_table_of_memory_modules_is_the_profile_s(tmp_path: Path, profile: str, dimms: int) -> None:
    """The emulated SMBIOS table lists the memory modules that the node's profile describes.

    According to DMTF DSP0134, the sum of the bytes of the entry point is 0 (modulo 256), and the entry point
    contains the length of the table.
    """
    node = Bench(profile, memory__dmi=True)
    memory = node.realtime_model.profile.memory
    root = meters(node, tmp_path)
    found = smbios.memory_modules(root)
    assert [module.size_bytes for module in found] == [memory.dimm_mb << 20] * dimms
    assert {module.memory_type for module in found} == {memory.kind}
    entry = (root / "sys/firmware/dmi/tables/smbios_entry_point").read_bytes()
    assert entry[:5] == b"_SM3_" and sum(entry) & 0xFF == 0
    assert int.from_bytes(entry[12:16], "little") == (root / "sys/firmware/dmi/tables/DMI").stat().st_size
