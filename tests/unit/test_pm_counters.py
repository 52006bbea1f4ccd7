"""Tests of reading HPE Cray pm_counters.

The counters are emulated by plain files with the layout of HPE Cray EX and XC systems. Sources: GEOPM's
CNLIOGroup (docs/source/geopm_pio_cnl.7.rst) and Slurm's acct_gather_energy/pm_counters for the file names
and the form `NUMBER UNIT`; HPE's "Access the PM counters" for the file `freshness`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hardware_tree import Tree

from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.node import pm_counters

FOLDER = "sys/cray/pm_counters"
STAMP = "1408036567538123 us"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


class Seconds:
    """Stand-in for the monotonic clock, which only a test advances."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    seconds = Seconds()
    monkeypatch.setattr(pm_counters, "monotonic", seconds)
    return seconds


def blade(tree: Tree, **joules: int) -> Tree:
    values = {"energy": 598732067, "cpu_energy": 200, "memory_energy": 58869289, **joules}
    for name, energy in values.items():
        tree.put(f"{FOLDER}/{name}", f"{energy} J {STAMP}")
    for name in ("power", "cpu_power", "memory_power"):
        tree.put(f"{FOLDER}/{name}", f"85 W {STAMP}")
    for name, value in {"freshness": 100, "generation": 3, "startup": 1408036000, "version": 3}.items():
        tree.put(f"{FOLDER}/{name}", value)
    tree.put(f"{FOLDER}/raw_scan_hz", 10)
    return tree


def test_each_file_is_a_component_and_energy_is_the_node(tree: Tree) -> None:
    counters = pm_counters.discover(blade(tree, accel0_energy=7, accel12_energy=8).root)
    assert {(c.component, c.source, c.read()) for c in counters} == {
        ("node", "pm_counters:node", 598732067_000000),
        ("cpu", "pm_counters:cpu", 200_000000),
        ("dram", "pm_counters:dram", 58869289_000000),
        ("gpu[0]", "pm_counters:accel", 7_000000),
        ("gpu[12]", "pm_counters:accel", 8_000000),
    }
    counters[0].close()


def test_older_files_have_no_time_stamp(tree: Tree) -> None:
    blade(tree).put(f"{FOLDER}/energy", "123 J")
    node = next(c for c in pm_counters.discover(tree.root) if c.component == "node")
    assert node.read() == 123_000000
    node.close()


def test_single_processors_do_not_count_beside_their_sum(tree: Tree) -> None:
    blade(tree, cpu0_energy=90, cpu1_energy=110)
    assert [c.key for c in pm_counters.discover(tree.root) if c.component == "cpu"] == ["pm_counters:cpu"]
    (tree.root / FOLDER / "cpu_energy").unlink()
    keys = [c.key for c in pm_counters.discover(tree.root) if c.component == "cpu"]
    assert keys == ["pm_counters:cpu0", "pm_counters:cpu1"]


class Updating:
    """Stand-in for the reader of the pm_counters files, which changes the files between two reads.

    senergyd reads the file `freshness` before and after the energy files, to detect a change in between. The
    stand-in changes the files before each of the first `times` reads of `energy`, so the two values of
    `freshness` differ.
    """

    def __init__(self, tree: Tree, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.tree, self.left, self.energy = tree, times, 1000
        self.read = pm_counters.CounterFileGroup._read
        monkeypatch.setattr(pm_counters.CounterFileGroup, "_read", self)

    def __get__(self, group: object, kind: object = None) -> object:
        return lambda name: self.spied(group, name)

    def spied(self, group: pm_counters.CounterFileGroup, name: str) -> int:
        if name == "energy" and self.left:
            self.left -= 1
            self.energy += 10
            self.tree.put(f"{FOLDER}/freshness", self.energy)
            self.tree.put(f"{FOLDER}/energy", f"{self.energy} J")
            self.tree.put(f"{FOLDER}/cpu_energy", f"{self.energy // 2} J")
        return self.read(group, name)


def counters_by_component(tree: Tree) -> dict[str, pm_counters.EnergyCounter]:
    return {c.component: c for c in pm_counters.discover(tree.root)}


def test_a_round_interrupted_by_an_update_is_repeated(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = counters_by_component(blade(tree))
    updating = Updating(tree, monkeypatch, times=2)
    assert (counters["node"].read(), counters["cpu"].read()) == (1020_000000, 510_000000)
    assert updating.left == 0


def test_counters_that_change_constantly_are_not_read(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = counters_by_component(blade(tree))
    Updating(tree, monkeypatch, times=1000)
    with pytest.raises(DeviceError, match="change while they are read"):
        counters["node"].read()


def test_all_counters_of_a_sampling_round_come_from_one_reading(tree: Tree) -> None:
    counters = counters_by_component(blade(tree, energy=100, cpu_energy=50))
    assert counters["node"].read() == 100_000000
    blade(tree, energy=200, cpu_energy=70)
    assert counters["cpu"].read() == 50_000000  # of the same round as the node's 100 J
    assert counters["node"].read() == 200_000000
    assert counters["cpu"].read() == 70_000000


def test_slow_reads_do_not_divide_a_round(
    tree: Tree, clock: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = pm_counters.CounterFileGroup._read

    def read_slowly(group: pm_counters.CounterFileGroup, name: str) -> int:
        clock.now += 0.03
        return read(group, name)

    monkeypatch.setattr(pm_counters.CounterFileGroup, "_read", read_slowly)
    counters = counters_by_component(blade(tree, energy=100, cpu_energy=50))
    assert counters["node"].read() == 100_000000
    blade(tree, energy=200, cpu_energy=70)
    assert counters["cpu"].read() == 50_000000


def test_a_counter_left_out_of_one_round_is_not_behind_afterwards(tree: Tree, clock: Seconds) -> None:
    counters = counters_by_component(blade(tree, energy=100, cpu_energy=50))
    assert counters["node"].read() == 100_000000  # as senergyd does at its start
    clock.now += 1.0
    blade(tree, energy=200, cpu_energy=70)
    assert counters["cpu"].read() == 70_000000
    assert counters["node"].read() == 200_000000


def test_files_that_disappear_and_return_are_reopened(tree: Tree) -> None:
    counters = counters_by_component(blade(tree))
    counters["node"].read()
    (tree.root / FOLDER / "energy").write_text("")
    with pytest.raises(DeviceError, match="not a number"):
        counters["node"].read()
    blade(tree, energy=5)
    assert counters["node"].read() == 5_000000
    counters["node"].close()


def test_on_a_cray_the_node_is_measured_and_its_accelerators_are_in_it(tree: Tree) -> None:
    devices = discover(blade(tree.two_packages(), accel0_energy=7).root)
    assert [c.key for c in devices.node_counters] == ["pm_counters:energy"]
    assert {c.source for c in devices.counters} == {"powercap:intel-rapl", "pm_counters:accel"}
    assert (devices.selection.added_parts, devices.selection.missing_parts) == (frozenset(), frozenset())
    devices.close()
