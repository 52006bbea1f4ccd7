"""Processors of the node: model, CPUs online, cores in the order in which Slurm counts them, packages.

Counts only; power is elsewhere.
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
    """Which logical CPUs are together. Everything is empty where the kernel does not tell.

    Attributes:
        cores: logical CPUs of every core; the position is Slurm's number of the core.
        packages: logical CPUs by physical package number.
        dies: logical CPUs by package and die number.
    """

    cores: tuple[tuple[int, ...], ...] = ()
    packages: Mapping[int, frozenset[int]] = field(default_factory=dict)
    dies: Mapping[tuple[int, int], frozenset[int]] = field(default_factory=dict)


def read_topology(root: Path, cpus: Iterable[int]) -> CpuTopology:
    """Read where the given CPUs, those online, sit."""
    online = frozenset(cpus)
    cores: list[frozenset[int]] = []
    packages: dict[int, frozenset[int]] = {}
    dies: dict[tuple[int, int], frozenset[int]] = {}
    seen: set[int] = set()
    for cpu in sorted(online):
        if cpu in seen:
            continue
        folder = root / _CPU / f"cpu{cpu}/topology"
        core = (_cpus(folder / "thread_siblings_list") & online) | {cpu}
        package, die = read_number(folder / "physical_package_id"), read_number(folder / "die_id") or 0
        if package is None:
            return CpuTopology()
        cores.append(core)
        seen |= core
        packages[package] = packages.get(package, frozenset()) | core
        dies[package, die] = dies.get((package, die), frozenset()) | core
    groups = [*packages.values(), *dies.values(), *_numa_nodes(root), *_last_level_caches(root, cores)]
    return CpuTopology(slurm_order(cores, groups), packages, dies)


def slurm_order(
    cores: Iterable[frozenset[int]], groups: Iterable[frozenset[int]]
) -> tuple[tuple[int, ...], ...]:
    """Return cores in the order of Slurm's core numbers, each with its CPUs in ascending order.

    Slurm numbers cores as hwloc does: the tree of packages, NUMA nodes and shared caches is walked depth
    first, siblings by their lowest CPU. Source: Slurm 22.05 to 26.05, src/slurmd/common/xcpuinfo.c,
    xcpuinfo_hwloc_topo_get (`block_map`); hwloc, "Indexes and Sets": logical indexes.

    Args:
        cores: CPUs of each core.
        groups: CPUs of each package, die, NUMA node and cache; nested or apart, in any order.
    """
    known = sorted(set(groups), key=lambda group: (-len(group), min(group, default=0)))

    def way(core: frozenset[int]) -> tuple[int, ...]:
        return (*(min(group) for group in known if group and core <= group), min(core))

    return tuple(tuple(sorted(core)) for core in sorted(cores, key=way))


def cpus_of_cores(text: str, cores: Sequence[tuple[int, ...]], count: int | None) -> tuple[int, ...] | None:
    """Return the logical CPUs of a list of Slurm's core numbers, e.g. `0-3,8`; None if it cannot be trusted.

    A wrong answer would change other jobs' CPUs, so everything has to fit: Slurm's count of the job's CPUs
    must be that of the cores with all their threads (a node that slurm.conf describes otherwise than the
    kernel numbers something else), cores must be alike (Slurm leaves slow ones of hybrid processors out)
    and CPUs must be numbered without gaps (Slurm's own table fails where some are offline).

    Args:
        text: the list, as SPANK's S_JOB_ALLOC_CORES has it.
        cores: `CpuTopology.cores`.
        count: CPUs that the job has on the node as Slurm counts; None if not known.
    """
    numbers = _core_numbers(text, len(cores))
    total = sum(len(core) for core in cores)
    alike = len({len(core) for core in cores}) == 1 and max(map(max, cores)) < total
    if not numbers or not alike:
        return None
    cpus = sorted(cpu for number in numbers for cpu in cores[number])
    return tuple(cpus) if len(cpus) == count else None


def _core_numbers(text: str, most: int) -> set[int]:
    """Read a list of core numbers below `most`; empty if it is not one."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) >= most:
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
    """Return the CPUs around each level-3 cache; Slurm has hwloc leave out all other levels."""
    found: list[frozenset[int]] = []
    covered: set[int] = set()
    for core in cores:
        folder = root / _CPU / f"cpu{min(core)}/cache/index3"
        if min(core) not in covered and read_number(folder / "level") == 3:
            found.append(_cpus(folder / "shared_cpu_list"))
            covered |= found[-1]
    return found


def cpu_model(root: Path) -> str:
    """Return the model name of /proc/cpuinfo, empty if it has none."""
    text = read_optional(root / "proc/cpuinfo") or ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return ""


def online_cpus(root: Path) -> tuple[int, ...]:
    """Return the logical CPUs that are online, empty if the kernel does not tell."""
    text = read_optional(root / _CPU / "online") or ""
    try:
        return parse_cpu_list(text)
    except ValueError:
        return ()


class CpuThermalThrottle(ThrottleSensor):
    """Time that processor packages were throttled by heat: package_throttle_total_time_ms, kernel 5.9 on."""

    component = "cpu"

    def __init__(self, files: list[CounterFile]) -> None:
        self._files = files
        self._last_ms = [file.read() for file in files]

    def throttled_s(self, interval_s: float) -> float:
        """Return the time of the package that was throttled longest."""
        now_ms = [file.read() for file in self._files]
        moved = [now - last for now, last in zip(now_ms, self._last_ms, strict=True)]
        self._last_ms = now_ms
        return min(max(0.0, max(moved) / 1000), interval_s)


def throttle_sensors(root: Path, cpus: tuple[int, ...]) -> list[ThrottleSensor]:
    """Return the thermal sensor of the node's packages; none where the kernel has no such count."""
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
