"""Tests of the files of an emulated node that describe its fixed hardware.

They describe the CPU topology, NUMA, cpuinfo and hwmon.
"""

from __future__ import annotations

import re

import pytest
from lab_bench import Bench

from slurm_energy_lab.model import profile_names
from slurm_energy_lab.tree.entries import Directory, Link

CPU = "/sys/devices/system/cpu"


@pytest.fixture(scope="module", params=profile_names())
def node(request) -> Bench:
    return Bench(request.param)


def test_every_cpu_is_there(node):
    count = node.realtime_model.profile.cpu.cpus
    for name in ("online", "possible", "present"):
        assert node.read(f"{CPU}/{name}") == f"0-{count - 1}"
    directory = node.node.tree.get(CPU)
    assert isinstance(directory, Directory)
    assert {name for name in directory.children if re.fullmatch(r"cpu\d+", name)} == {
        f"cpu{i}" for i in range(count)
    }


def test_sibling_masks_and_lists_agree(node):
    cpu = node.realtime_model.profile.cpu
    for number in (0, cpu.cpus - 1):
        for name in ("thread_siblings", "core_cpus", "core_siblings", "package_cpus", "die_cpus"):
            base = f"{CPU}/cpu{number}/topology/{name}"
            mask = int(node.read(base).replace(",", ""), 16)
            listed = set()
            for part in node.read(f"{base}_list").split(","):
                first, _, last = part.partition("-")
                listed |= set(range(int(first), int(last or first) + 1))
            assert listed == {bit for bit in range(cpu.cpus) if mask >> bit & 1}
            assert number in listed


def test_caches_cover_each_cpu_once_per_level(node):
    cpu = node.realtime_model.profile.cpu
    for index, cache in enumerate(cpu.caches):
        maps = {node.read(f"{CPU}/cpu{i}/cache/index{index}/shared_cpu_map") for i in range(cpu.cpus)}
        total = sum(int(text.replace(",", ""), 16).bit_count() for text in maps)
        assert total == cpu.cpus
        assert len(maps) == cpu.cores // cache.shared_cores


def test_cpuinfo_names_every_processor_once(node):
    cpu = node.realtime_model.profile.cpu
    text = node.read("/proc/cpuinfo")
    assert re.findall(r"^processor\t: (\d+)$", text, re.M) == [str(i) for i in range(cpu.cpus)]
    packages = re.findall(r"^physical id\t: (\d+)$", text, re.M)
    assert packages == [str(cpu.package_of(i)) for i in range(cpu.cpus)]
    cores = set(zip(packages, re.findall(r"^core id\t\t: (\d+)$", text, re.M), strict=True))
    assert len(cores) == cpu.cores
    assert text.count(cpu.model_name) == cpu.cpus
    apics = re.findall(r"^apicid\t\t: (\d+)$", text, re.M)
    assert len(set(apics)) == cpu.cpus


def test_links_lead_somewhere(node):
    tree = node.node.tree
    paths = ["/"]
    links = 0
    while paths:
        path = paths.pop()
        entry = tree.get(path)
        if isinstance(entry, Directory):
            paths += [f"{path.rstrip('/')}/{name}" for name in entry.children]
        elif isinstance(entry, Link):
            links += 1
            parts = path.split("/")[1:-1] + entry.target.split("/")
            clean: list[str] = []
            for part in parts:
                clean = clean[:-1] if part == ".." else [*clean, part]
            assert isinstance(tree.get("/" + "/".join(clean)), Directory), (path, entry.target)
    assert links > 4


def test_power_meter_averages_over_its_interval(node):
    path = "/sys/class/hwmon/hwmon0"
    link = node.node.tree.get(path)
    assert isinstance(link, Link)
    base = "/sys/devices/virtual/hwmon/hwmon0"
    assert node.read(f"{base}/name") == "power_meter"
    node.wait(1)
    node.node.meter.sample()
    with node.realtime_model.now() as model:
        assert int(node.read(f"{base}/power1_average")) == pytest.approx(
            model.power_watts("node") * 1e6, rel=1e-6
        )
