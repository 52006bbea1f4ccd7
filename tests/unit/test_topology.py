"""Conversion of Slurm's core numbers to logical CPUs.

The layouts are those of real machines. The order of the cores must equal the order that hwloc
itself determines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hardware_tree import Tree
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.devices.cpu.topology import CpuTopology, cpus_of_cores, read_topology, slurm_order
from slurm_energy.devices.discovery import discover

Place = tuple[int, int]
"""Package and core of a CPU."""


def even_odd(cpu: int) -> Place:
    """Return the package number and the core number of a logical CPU of an example node.

    The node has two packages of 4 cores with 2 threads each. Even CPUs are on the first package, odd CPUs on
    the second. The second threads of the cores have the numbers from 8 on.
    """
    return cpu % 2, cpu % 8 // 2


def blocks(cpu: int) -> Place:
    """Return (package, core) of a logical CPU on an example node with 16 logical CPUs.

    The node has two packages of 4 cores with 2 hardware threads per core. CPUs 0 to 7 are the first threads
    of the cores, package by package. CPUs 8 to 15 are the second threads.
    """
    return cpu % 8 // 4, cpu % 4


def neighbours(cpu: int) -> Place:
    """CPU topology of two packages with 4 cores each, in which the threads of a core are neighbours.

    POWER and some Arm processors number their CPUs in this way.
    """
    return cpu // 8, cpu % 8 // 2


LAYOUTS: dict[str, tuple[Callable[[int], Place], dict[int, tuple[int, ...]]]] = {
    "even and odd": (even_odd, {0: (0, 8), 1: (2, 10), 4: (1, 9), 7: (7, 15)}),
    "blocks": (blocks, {0: (0, 8), 1: (1, 9), 4: (4, 12), 7: (7, 15)}),
    "neighbours": (neighbours, {0: (0, 1), 1: (2, 3), 4: (8, 9), 7: (14, 15)}),
}


def written(cpus: set[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


def build(
    root: Path, place: Callable[[int], Place], count: int = 16, offline: set[int] | None = None
) -> Tree:
    """Write emulated files in /sys that describe the topology of `count` CPUs, as the kernel would."""
    tree, gone = Tree(root).cpus(count), offline or set()
    online = set(range(count)) - gone
    tree.put("sys/devices/system/cpu/online", written(online))
    tree.put("sys/devices/system/cpu/possible", f"0-{count - 1}")
    tree.put("sys/devices/system/cpu/present", f"0-{count - 1}")
    for cpu in range(count):
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        if cpu:
            tree.put(f"{folder}/online", int(cpu in online))
        if cpu in gone:
            continue
        package, core = place(cpu)
        sets = {
            "thread_siblings": {other for other in online if place(other) == (package, core)},
            "core_siblings": {other for other in online if place(other)[0] == package},
        }
        for name, cpus in sets.items():
            mask = f"{sum(1 << other for other in cpus):08x}"
            tree.put(f"{folder}/topology/{name}", mask)
            tree.put(f"{folder}/topology/{name}_list", written(cpus))
        tree.put(f"{folder}/topology/physical_package_id", package)
        tree.put(f"{folder}/topology/core_id", core)
    return tree


def numa(tree: Tree, *nodes: set[int]) -> Tree:
    tree.put("sys/devices/system/node/online", f"0-{len(nodes) - 1}")
    for number, cpus in enumerate(nodes):
        folder = f"sys/devices/system/node/node{number}"
        tree.put(f"{folder}/cpulist", written(cpus))
        tree.put(f"{folder}/cpumap", f"{sum(1 << cpu for cpu in cpus):08x}")
        tree.put(f"{folder}/meminfo", f"Node {number} MemTotal: 1048576 kB")
        distances = " ".join("10" if other == number else "20" for other in range(len(nodes)))
        tree.put(f"{folder}/distance", distances)
    return tree


def topology(tree: Tree) -> CpuTopology:
    hardware = discover(tree.root).hardware
    found = read_topology(tree.root, tuple(cpu for core in hardware.cores for cpu in core))
    assert found.cores == hardware.cores
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cores_are_counted_package_by_package(tmp_path: Path, layout: str) -> None:
    place, expected = LAYOUTS[layout]
    found = topology(build(tmp_path, place))
    assert {number: found.cores[number] for number in expected} == expected
    assert found.packages[1] == {cpu for cpu in range(16) if place(cpu)[0] == 1}


def test_numa_nodes_inside_a_package_come_before_the_order_of_cpus(tmp_path: Path) -> None:
    # Sub-NUMA clustering: the nodes of one package take CPUs in turn.
    tree = numa(build(tmp_path, lambda cpu: (cpu // 8, cpu), 16), *[set(range(n, 16, 4)) for n in range(4)])
    assert topology(tree).cores[:4] == ((0,), (4,), (1,), (5,))


HWLOC = shutil.which("lstopo-no-graphics")


def hwloc_order(root: Path) -> list[tuple[int, ...]]:
    """Return the CPUs of each core in hwloc's logical order.

    hwloc ignores all caches except level 3, as Slurm does.
    """
    caches = [f"--filter=l{level}cache:none" for level in (1, 2, 4, 5)]
    argv = [str(HWLOC), *[part for cache in caches for part in cache.split("=")], "--of", "xml", "-"]
    env = {
        **os.environ,
        "HWLOC_FSROOT": str(root),
        "HWLOC_COMPONENTS": "linux,stop",
        "HWLOC_HIDE_ERRORS": "2",
    }
    xml = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60).stdout
    cores: list[list[int]] = []
    for kind, number in re.findall(r'<object type="(Core|PU)" os_index="(\d+)"', xml):
        if kind == "Core":
            cores.append([])
        else:
            cores[-1].append(int(number))
    return [tuple(sorted(core)) for core in cores]


def caches(tree: Tree, size: int, count: int = 16) -> Tree:
    """Add level-3 caches of CPUs to an emulated file tree.

    CPUs share a cache if their numbers are equal modulo `size`.
    """
    for cpu in range(count):
        folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index3"
        cpus = {other for other in range(count) if other % size == cpu % size}
        values = {"level": 3, "type": "Unified", "size": "16384K", "shared_cpu_list": written(cpus)}
        values["shared_cpu_map"] = f"{sum(1 << other for other in cpus):08x}"
        for name, value in values.items():
            tree.put(f"{folder}/{name}", value)
    return tree


TREES: dict[str, Callable[[Path], Tree]] = {
    **{name: lambda root, place=place: build(root, place) for name, (place, _) in LAYOUTS.items()},
    "sub-NUMA": lambda root: numa(
        build(root, lambda cpu: (cpu // 8, cpu)),
        {0, 1, 4, 5},
        {2, 3, 6, 7},
        {8, 11, 13, 15},
        {9, 10, 12, 14},
    ),
    "caches in turn": lambda root: caches(build(root, lambda cpu: (0, cpu % 8)), 4),
    "caches in NUMA nodes": lambda root: caches(
        numa(build(root, lambda cpu: (0, cpu % 8)), {0, 2, 4, 6, 8, 10, 12, 14}, {1, 3, 5, 7, 9, 11, 13, 15}),
        4,
    ),
    "one package online": lambda root: build(root, blocks, offline=set(range(4, 8)) | set(range(12, 16))),
}


@pytest.mark.skipif(HWLOC is None, reason="hwloc is not installed")
@pytest.mark.parametrize("name", TREES)
def test_the_order_is_hwloc_s(tmp_path: Path, name: str) -> None:
    tree = TREES[name](tmp_path)
    assert list(topology(tree).cores) == hwloc_order(tmp_path)


def test_a_job_s_cores_with_all_their_threads() -> None:
    cores = tuple((cpu, cpu + 8) for cpu in (0, 2, 4, 6, 1, 3, 5, 7))
    assert cpus_of_cores("0-1,4", cores, 6) == (0, 1, 2, 8, 9, 10)
    assert cpus_of_cores("0-7", cores, 16) == tuple(range(16))


@pytest.mark.parametrize(
    ("text", "count", "why"),
    [
        ("0-1", 2, "slurm.conf counts threads as cores, or leaves them out"),
        ("0-1", None, "the hook does not report the CPUs"),
        ("8", 2, "more cores than the kernel knows"),
        ("", 0, "nothing"),
        ("0-99999999999", 16, "not a core"),
        ("x", 2, "not a list"),
    ],
)
def test_a_list_that_does_not_fit_is_not_trusted(text: str, count: int | None, why: str) -> None:
    assert cpus_of_cores(text, tuple((cpu, cpu + 8) for cpu in range(8)), count) is None, why


def test_hybrid_processors_and_gaps_are_not_trusted(tmp_path: Path) -> None:
    hybrid = ((0, 1), (2, 3), (4,), (5,))  # two fast cores with two threads, two slow ones
    assert cpus_of_cores("0-1", hybrid, 4) is None
    offline = topology(build(tmp_path, blocks, offline={1, 9})).cores
    assert offline[1] == (2, 10)
    assert cpus_of_cores("0-1", offline, 4) is None
    assert cpus_of_cores("0", (), 1) is None


@given(st.permutations(range(24)), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3]))
def test_every_cpu_is_in_one_core_and_packages_stay_together(
    cpus: list[int], threads: int, packages: int
) -> None:
    cores = [frozenset(cpus[at : at + threads]) for at in range(0, 24, threads)]
    size = len(cores) // packages
    groups = [frozenset().union(*cores[at : at + size]) for at in range(0, size * packages, size)]
    order = slurm_order(cores, groups)
    assert sorted(cpu for core in order for cpu in core) == list(range(24))
    for group in groups:
        places = [number for number, core in enumerate(order) if set(core) <= group]
        assert places == list(range(places[0], places[0] + len(places)))
