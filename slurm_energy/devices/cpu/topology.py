"""Processors of the node.

The module reads the model, the online CPUs, the packages, and the cores in the order in which Slurm numbers
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.devices.driver import DeviceError, ThrottleSensor
from slurm_energy.devices.sysfs import CounterFile, parse_cpu_list, read_number, read_optional

_CPU = Path("sys/devices/system/cpu")
_NUMA = Path("sys/devices/system/node")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """Logical CPUs of the node's cores, packages and dies.

    All attributes are empty if the kernel does not report the topology.

    Attributes:
        cores: logical CPUs of each core; the position in the tuple is Slurm's number of the core.
        packages: logical CPUs by physical package number.
        dies: logical CPUs by (package number, die number).
    """

    cores: tuple[tuple[int, ...], ...] = ()
    packages: Mapping[int, frozenset[int]] = field(default_factory=dict)
    dies: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict)


def read_topology(root: Path, cpus: Iterable[int]) -> CpuTopology:
    """Read the topology of the given CPUs, which must be online."""
    online = frozenset(cpus)
    cores: list[frozenset[int]] = []
    packages: dict[int, frozenset[int]] = {}
    dies: dict[tuple[int, int], frozenset[int]] = {}
    assigned: set[int] = set()
    for cpu in sorted(online):
        if cpu in assigned:
            continue
        folder = root / _CPU / f"cpu{cpu}/topology"
        core = (_cpus(folder / "thread_siblings_list") & online) | {cpu}
        package, die = read_number(folder / "physical_package_id"), read_number(folder / "die_id") or 0
        if package is None:
            return CpuTopology()
        cores.append(core)
        assigned |= core
        packages[package] = packages.get(package, frozenset()) | core
        dies[package, die] = dies.get((package, die), frozenset()) | core
    groups = [*packages.values(), *dies.values(), *_numa_nodes(root), *_last_level_caches(root, cores)]
    return CpuTopology(slurm_order(cores, groups), packages, dies)


def slurm_order(
    cores: Iterable[frozenset[int]], groups: Iterable[frozenset[int]]
) -> tuple[tuple[int, ...], ...]:
    """Return cores in the order of Slurm's core numbers.

    Each core lists its CPUs in ascending order.

    Slurm numbers cores as hwloc does: depth first through the tree of packages, NUMA nodes and shared
    caches, with siblings ordered by their lowest CPU. Source: Slurm 22.05 to 26.05,
    src/slurmd/common/xcpuinfo.c, xcpuinfo_hwloc_topo_get (`block_map`); hwloc, "Indexes and Sets": logical
    indexes.

    Args:
        cores: CPUs of each core.
        groups: sets of the CPUs of each package, die, NUMA node and cache, in any order. Any two sets are
            either nested or disjoint.
    """
    ordered_groups = sorted(set(groups), key=lambda group: (-len(group), min(group, default=0)))

    def tree_path(core: frozenset[int]) -> tuple[int, ...]:
        return (*(min(group) for group in ordered_groups if group and core <= group), min(core))

    return tuple(tuple(sorted(core)) for core in sorted(cores, key=tree_path))


def cpus_of_cores(text: str, cores: Sequence[tuple[int, ...]], count: int | None) -> tuple[int, ...] | None:
    """Return the logical CPUs of Slurm core numbers; None if the conversion cannot be trusted.

    A wrong result would change the CPUs of other jobs, so three conditions must hold. Slurm's count of the
    job's CPUs must equal the number of threads of the cores; otherwise slurm.conf describes the node
    differently from the kernel, and the numbers mean other cores. All cores must have the same number of
    threads, because Slurm omits the slow cores of hybrid processors. The CPU numbers must have no gaps,
    because Slurm's own table is wrong where CPUs are offline.

    Args:
        text: list of core numbers in the form of SPANK's S_JOB_ALLOC_CORES, for example `0-3,8`.
        cores: `CpuTopology.cores`.
        count: number of CPUs that the job has on the node according to Slurm; None if unknown.
    """
    numbers = _core_numbers(text, len(cores))
    total = sum(len(core) for core in cores)
    alike = len({len(core) for core in cores}) == 1 and max(map(max, cores)) < total
    if not numbers or not alike:
        return None
    cpus = sorted(cpu for number in numbers for cpu in cores[number])
    return tuple(cpus) if len(cpus) == count else None


def _core_numbers(text: str, count: int) -> set[int]:
    """Parse a list of core numbers such as `0-3,8`.

    Args:
        text: the list of core numbers.
        count: number of cores; every number must be smaller.

    Returns:
        The numbers; empty if the text is no list of core numbers.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) >= count:
            return set()
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return numbers


def _cpus(path: Path) -> frozenset[int]:
    try:
        return frozenset(parse_cpu_list(read_optional(path) or ""))
    except ValueError:
        return frozenset()


def _numa_nodes(root: Path) -> list[frozenset[int]]:
    return [_cpus(path) for path in sorted((root / _NUMA).glob("node[0-9]*/cpulist"))]


def _last_level_caches(root: Path, cores: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """Return the CPUs that share each level-3 cache.

    Other cache levels do not matter, because Slurm makes hwloc ignore them.
    """
    caches: list[frozenset[int]] = []
    covered: set[int] = set()
    for core in cores:
        folder = root / _CPU / f"cpu{min(core)}/cache/index3"
        if min(core) not in covered and read_number(folder / "level") == 3:
            caches.append(_cpus(folder / "shared_cpu_list"))
            covered |= caches[-1]
    return caches


def cpu_model(root: Path) -> str:
    """Return the model name in /proc/cpuinfo, or an empty text if the file contains none."""
    text = read_optional(root / "proc/cpuinfo") or ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return ""


def online_cpus(root: Path) -> tuple[int, ...]:
    """Return the logical CPUs that are online; empty if the kernel does not report them."""
    text = read_optional(root / _CPU / "online") or ""
    try:
        return parse_cpu_list(text)
    except ValueError:
        return ()


class CpuThermalThrottle(ThrottleSensor):
    """Sensor of throttling by heat.

    The sensor reads package_throttle_total_time_ms, which Linux 5.9 and later provide.
    """

    component = "cpu"

    def __init__(self, files: list[CounterFile]) -> None:
        self._files = files
        self._last_ms = [file.read() for file in files]

    def throttled_s(self, interval_s: float) -> float:
        """Return the seconds of throttling since the last call, the maximum over all packages.

        Args:
            interval_s: seconds since the last call; the result is at most this value.
        """
        now_ms = [file.read() for file in self._files]
        moved = [now - last for now, last in zip(now_ms, self._last_ms, strict=True)]
        self._last_ms = now_ms
        return min(max(0.0, max(moved) / 1000), interval_s)


def throttle_sensors(root: Path, cpus: tuple[int, ...]) -> list[ThrottleSensor]:
    """Return a list with the sensor for thermal throttling of the node's CPU packages.

    The one sensor covers all packages. The list is empty if the kernel does not count thermal throttling.
    """
    files: dict[int, CounterFile] = {}
    for cpu in cpus:
        folder = root / _CPU / f"cpu{cpu}"
        path = folder / "thermal_throttle/package_throttle_total_time_ms"
        if cpu == cpus[0] and not path.exists():
            return []
        package = read_number(folder / "topology/physical_package_id") or 0
        if package not in files and path.exists():
            files[package] = CounterFile(path)
    try:
        return [CpuThermalThrottle(list(files.values()))] if files else []
    except DeviceError:
        return []
