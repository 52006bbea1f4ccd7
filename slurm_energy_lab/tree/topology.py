"""Emulated files below /sys/devices/system/{cpu,node} whose content does not depend on the load.

The files describe the CPU numbers, the topology, the caches and the NUMA nodes.
"""

from __future__ import annotations

import errno

from slurm_energy_lab.model import CacheLevel, CpuProfile, NodeProfile
from slurm_energy_lab.tree import kernel_parsers
from slurm_energy_lab.tree.cpu_lists import format_list, format_mask
from slurm_energy_lab.tree.entries import File, Tree, refuse

CPU_ROOT = "/sys/devices/system/cpu"
NODE_ROOT = "/sys/devices/system/node"
LINE_BYTES = 64


def add_topology(tree: Tree, profile: NodeProfile) -> None:
    """Add files to a file tree: CPU numbers, topology and caches of each CPU, and the NUMA nodes."""
    cpu = profile.cpu
    _add_cpu_numbers(tree, cpu)
    for number in range(cpu.cpus):
        base = f"{CPU_ROOT}/cpu{number}"
        if number:
            tree.add(f"{base}/online", File(b"1\n", 0o644, _store_online))
        _add_cpu_topology(tree, f"{base}/topology", cpu, number, profile.rapl.dies or 1)
        for index, cache in enumerate(cpu.caches):
            _add_cache(tree, f"{base}/cache/index{index}", cpu, cache, number)
        tree.link(f"{base}/node{cpu.numa_node_of(number)}", f"../../node/node{cpu.numa_node_of(number)}")
    _add_numa(tree, profile)


def _store_online(data: bytes) -> None:
    if not kernel_parsers.boolean(data):
        refuse(errno.EBUSY)


def _add_cpu_numbers(tree: Tree, cpu: CpuProfile) -> None:
    everything = format_list(range(cpu.cpus))
    for name in ("online", "possible", "present"):
        tree.text(f"{CPU_ROOT}/{name}", everything)
    for name in ("offline", "isolated", "nohz_full"):
        tree.text(f"{CPU_ROOT}/{name}", "")
    tree.text(f"{CPU_ROOT}/kernel_max", "8191")
    threaded = cpu.threads_per_core > 1
    tree.text(f"{CPU_ROOT}/smt/active", "1" if threaded else "0")
    tree.text(f"{CPU_ROOT}/smt/control", "on" if threaded else "notsupported")


def _add_cpu_topology(tree: Tree, base: str, cpu: CpuProfile, number: int, dies: int) -> None:
    package = cpu.package_of(number)
    die = _die_of(cpu, number, dies)
    threads, whole = cpu.siblings(number), cpu.package_cpus(package)
    sets = {
        "thread_siblings": threads,
        "core_cpus": threads,
        "core_siblings": whole,
        "package_cpus": whole,
        "die_cpus": tuple(other for other in whole if _die_of(cpu, other, dies) == die),
    }
    for name, cpus in sets.items():
        tree.text(f"{base}/{name}", format_mask(cpus, cpu.cpus))
        tree.text(f"{base}/{name}_list", format_list(cpus))
    tree.text(f"{base}/physical_package_id", str(package))
    tree.text(f"{base}/die_id", str(die))
    tree.text(f"{base}/core_id", str(cpu.core_of(number) % cpu.cores_per_package))


def _die_of(cpu: CpuProfile, number: int, dies: int) -> int:
    """Return the number of the die of a CPU within its package.

    The cores of a package are divided evenly among its dies, in ascending order.
    """
    return cpu.core_of(number) % cpu.cores_per_package * dies // cpu.cores_per_package


def _sharers(cpu: CpuProfile, cache: CacheLevel, number: int) -> list[int]:
    """Return the logical CPUs that share an instance of a cache with the CPU `number`, including this CPU."""
    in_package = cpu.core_of(number) % cpu.cores_per_package
    first = cpu.package_of(number) * cpu.cores_per_package + in_package - in_package % cache.shared_cores
    last = min(first + cache.shared_cores, (cpu.package_of(number) + 1) * cpu.cores_per_package)
    return [sibling for core in range(first, last) for sibling in cpu.siblings(core)]


def _add_cache(tree: Tree, base: str, cpu: CpuProfile, cache: CacheLevel, number: int) -> None:
    cpus = _sharers(cpu, cache, number)
    values = {
        "level": cache.level,
        "type": cache.kind,
        "size": f"{cache.size_kib}K",
        "ways_of_associativity": cache.ways,
        "coherency_line_size": LINE_BYTES,
        "physical_line_partition": 1,
        "number_of_sets": cache.size_kib * 1024 // (cache.ways * LINE_BYTES),
        "id": min(cpus) // cache.shared_cores,
        "shared_cpu_map": format_mask(cpus, cpu.cpus),
        "shared_cpu_list": format_list(cpus),
    }
    for name, value in values.items():
        tree.text(f"{base}/{name}", str(value))


def _add_numa(tree: Tree, profile: NodeProfile) -> None:
    cpu = profile.cpu
    nodes = range(cpu.numa_nodes)
    for name in ("online", "possible", "has_cpu", "has_memory", "has_normal_memory"):
        tree.text(f"{NODE_ROOT}/{name}", format_list(nodes))
    for node in nodes:
        base = f"{NODE_ROOT}/node{node}"
        cpus = [number for number in range(cpu.cpus) if cpu.numa_node_of(number) == node]
        tree.text(f"{base}/cpulist", format_list(cpus))
        tree.text(f"{base}/cpumap", format_mask(cpus, cpu.cpus))
        tree.text(f"{base}/distance", " ".join("10" if other == node else "20" for other in nodes))
        tree.text(f"{base}/meminfo", _meminfo(node, profile.memory.total_mb * 1024 // cpu.numa_nodes))
        tree.text(f"{base}/numastat", "\n".join(f"{name} 0" for name in _NUMASTAT))
        for number in cpus:
            tree.link(f"{base}/cpu{number}", f"../../cpu/cpu{number}")


_NUMASTAT = ("numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node")


def _meminfo(node: int, total_kb: int) -> str:
    free_kb = total_kb * 95 // 100
    rows = {"MemTotal": total_kb, "MemFree": free_kb, "MemUsed": total_kb - free_kb}
    return "\n".join(f"Node {node} {name + ':':<15} {value:>8} kB" for name, value in rows.items())
