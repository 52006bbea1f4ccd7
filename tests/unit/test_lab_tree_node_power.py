"""HSMP chips and pm_counters of an emulated node, as the drivers show them, and read by the devices."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from lab_silicon import Bench

from slurm_energy.devices import amd_hsmp, pm_counters
from slurm_energy.lab.tree.build import Firmware
from slurm_energy.lab.tree.entries import Directory, File, Link, Tree

CHIP = "/sys/devices/virtual/hwmon/hwmon1"
CRAY = "/sys/cray/pm_counters"
EPYC = "epyc-7513-a100"


def epyc() -> Bench:
    return Bench(EPYC, rapl__hsmp_max_watts=225.0)


def cray() -> Bench:
    return Bench(EPYC, Firmware("n1", pm_counters=True))


def busy(node: Bench) -> None:
    with node.silicon.changing() as model:
        model.set_real_load("test", range(64), 32.0)


def package_watts(node: Bench, seconds: float) -> float:
    with node.silicon.now() as model:
        before = model.energy_joules("cpu[0]")
    node.wait(seconds)
    with node.silicon.now() as model:
        return (model.energy_joules("cpu[0]") - before) / seconds


def plain(tree: Tree, root: Path, path: str = "/") -> Path:
    """Write the tree's present state as plain files."""
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
    assert [(p.name, p.found_watts, p.most_watts, p.interface) for p in found.packages] == [
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
    with node.silicon.now() as model:
        truth = {name: model.energy_joules(name) for name in ("node", "cpu", "dram", "gpu[0]", "gpu[3]")}
    counters = {c.component: c for c in pm_counters.discover(plain(node.node.tree, tmp_path))}
    for name, joules in truth.items():
        assert counters[name].read() == int(joules) * 1_000_000
    counters["node"].close()
    assert node.read(f"{CRAY}/power").split()[1] == "W"
