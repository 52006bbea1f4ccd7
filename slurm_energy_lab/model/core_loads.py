"""Loads and frequency settings of a node's cores.

Cores with equal load and settings form a group.

The module only records which load is on which core. `cpu_physics` computes power and progress from the
groups of cores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from slurm_energy.errors import UsageError
from slurm_energy_lab.model.cpu_physics import CoreLoad
from slurm_energy_lab.model.cpufreq import check_request, default_request, target_khz
from slurm_energy_lab.model.job_integrals import Job
from slurm_energy_lab.model.kernel_run import KernelPart
from slurm_energy_lab.model.placement import check_cpu
from slurm_energy_lab.model.profile import NodeProfile
from slurm_energy_lab.model.requests import FrequencyRequest


@dataclass(frozen=True, slots=True)
class _RealLoad:
    """Load of real processes, whose work the model of the node does not compute.

    The processes are real programs of jobs, or other real processes of the node.

    Attributes:
        cpus: logical CPUs of the processes.
        cores: cores of these CPUs.
        packages: packages of these CPUs.
        share: busy share of each core, 0 to 1.
        job: Slurm's job id; None if the load belongs to no job.
    """

    cpus: Collection[int]
    cores: tuple[int, ...]
    packages: frozenset[int]
    share: float
    job: Job


class Cores:
    """Loads and frequency settings of every core of a node.

    The methods accept logical CPUs and return core numbers, unless stated otherwise.
    """

    def __init__(self, profile: NodeProfile) -> None:
        self._profile = profile
        self._cpu = profile.cpu
        self._cpufreq = profile.cpufreq
        default = default_request(profile.cpufreq)
        self._known = {default: default}
        self._requests = [default] * profile.cpu.cpus
        self._parts: list[tuple[KernelPart, ...]] = [()] * profile.cpu.cores
        self._real_keys: list[tuple[str, ...]] = [()] * profile.cpu.cores
        self._real_loads: dict[str, _RealLoad] = {}
        self._real_busy: dict[tuple[str, ...], float] = {}
        self._targets: dict[tuple[int, float], int] = {}
        self._hosts: Counter[int] = Counter()

    def _check(self, cpu: int) -> int:
        check_cpu(self._profile, cpu)
        return self._cpu.core_of(cpu)

    def cores_of(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """Return the cores of logical CPUs without duplicates, in rising order.

        Raises:
            UsageError: a CPU does not exist.
        """
        return tuple(sorted({self._check(cpu) for cpu in cpus}))

    def packages_of(self, cores: Iterable[int]) -> set[int]:
        """Return the package numbers of cores."""
        return {core // self._cpu.cores_per_package for core in cores}

    def request(self, cpu: int) -> FrequencyRequest:
        """Return the frequency settings of a logical CPU."""
        self._check(cpu)
        return self._requests[cpu]

    def set_request(self, cpu: int, request: FrequencyRequest) -> bool:
        """Store the frequency settings of a logical CPU.

        Return whether the settings of a busy core changed.
        """
        core = self._check(cpu)
        if request == self._requests[cpu]:
            return False
        if request not in self._known:
            check_request(self._cpufreq, request)
            self._known[request] = request
        self._requests[cpu] = self._known[request]
        return self._busy(core) > 0

    def requested_khz(self, cpu: int) -> int:
        """Return the frequency in kHz that a CPU's core requests: the maximum over its threads."""
        return self._requested_khz(self._check(cpu))

    def _requested_khz(self, core: int) -> int:
        busy = self._busy(core)
        return max(
            self._target_khz(self._requests[cpu], busy)
            for cpu in range(core, self._cpu.cpus, self._cpu.cores)
        )

    def _target_khz(self, request: FrequencyRequest, busy: float) -> int:
        """Return the clock frequency in kHz that the frequency governor selects for a core.

        The results are cached. The key of the cache contains the identity of the object `request`. Looking
        up an identity is faster than a comparison of all settings in `request`.
        """
        key = (id(request), busy)
        target = self._targets.get(key)
        if target is None:
            if len(self._targets) > 4096:
                self._targets.clear()
            target = self._targets[key] = target_khz(self._cpufreq, request, busy)
        return target

    def add_part(self, part: KernelPart, cores: Iterable[int]) -> None:
        """Assign a part of a compute kernel to cores. Cores are given by core number."""
        for core in cores:
            self._parts[core] = (*self._parts[core], part)

    def remove_part(self, part: KernelPart, cores: Iterable[int]) -> None:
        """Remove the work of a compute kernel from cores.

        Args:
            part: the work that no longer runs on the cores.
            cores: numbers of the cores.
        """
        for core in cores:
            self._parts[core] = tuple(other for other in self._parts[core] if other is not part)

    def add_host(self, cpu: int) -> None:
        """Register a thread that feeds a GPU. The thread keeps the core of `cpu` busy."""
        self._hosts[self._check(cpu)] += 1

    def remove_host(self, cpu: int) -> None:
        """Unregister a CPU thread that fed a GPU with work. The thread no longer keeps its core busy."""
        self._hosts[self._check(cpu)] -= 1

    def set_real_load(
        self, key: str, cpus: Collection[int], busy_cores: float, job: Job = None
    ) -> tuple[set[int], float]:
        """Set the load that real programs (outside the model) cause on cores of the emulated node.

        The load is distributed evenly over the cores of these programs.

        Args:
            key: name that identifies the load. A later call with the same name replaces the load.
            cpus: logical CPUs of the programs.
            busy_cores: number of busy cores; 0 removes the load.
            job: Slurm's job id; None if the load belongs to no job.

        Returns:
            (packages whose load changed, busy fraction of each core).

        Raises:
            UsageError: a CPU does not exist, or the number of busy cores is negative.
        """
        if not 0 <= busy_cores < math.inf:
            raise UsageError(f"real load '{key[:40]}': {busy_cores} busy cores are invalid")
        old = self._real_loads.get(key)
        new = self._real_load(cpus, busy_cores, job, old)
        if new == old:
            return set(), new.share if new else 0.0
        self._real_busy.clear()
        if new:
            self._real_loads[key] = new
        else:
            del self._real_loads[key]
        touched: set[int] = set()
        for load in filter(None, (old, new)):
            touched.update(load.packages)
        if (old.cores if old else ()) != (new.cores if new else ()):
            self._rename(key, old.cores if old else (), new.cores if new else ())
        return touched, new.share if new else 0.0

    def _real_load(
        self, cpus: Collection[int], busy_cores: float, job: Job, like: _RealLoad | None
    ) -> _RealLoad | None:
        """Return the load that programs outside the model put on CPUs; None if there is no such load.

        Args:
            cpus: CPUs on which the programs run.
            busy_cores: number of cores that the programs keep busy.
            job: Slurm job to which the programs belong.
            like: earlier load. If it is on the same CPUs, the result reuses its cores and packages.
        """
        if not busy_cores:
            return None
        if like and like.cpus is cpus:
            share = min(1.0, busy_cores / len(like.cores))
            return replace(like, share=share, job=job) if share else None
        cores = self.cores_of(cpus)
        share = min(1.0, busy_cores / len(cores)) if cores else 0.0
        return _RealLoad(cpus, cores, frozenset(self.packages_of(cores)), share, job) if share else None

    def _rename(self, key: str, old_cores: Iterable[int], new_cores: Iterable[int]) -> None:
        for core in old_cores:
            self._real_keys[core] = tuple(name for name in self._real_keys[core] if name != key)
        for core in new_cores:
            self._real_keys[core] = (*self._real_keys[core], key)

    def _real(self, core: int) -> float:
        """Return the share of a core's time that real programs use, at most 1.

        Real programs run outside the model, unlike the emulated compute kernels.
        """
        keys = self._real_keys[core]
        busy = self._real_busy.get(keys)
        if busy is None:
            busy = min(1.0, sum(self._real_loads[key].share for key in keys))
            self._real_busy[keys] = busy
        return busy

    def busy(self, cpu: int) -> float:
        """Return the busy share of a logical CPU's core, 0 to 1."""
        return self._busy(self._check(cpu))

    def _busy(self, core: int) -> float:
        return 1.0 if self._parts[core] or self._hosts[core] else self._real(core)

    def loads(self, package: int) -> list[CoreLoad]:
        """Return the busy cores of a package, grouped by equal settings and equal load."""
        per_package = self._cpu.cores_per_package
        groups: dict[tuple[int, tuple[KernelPart, ...], tuple[str, ...]], int] = {}
        for core in range(package * per_package, (package + 1) * per_package):
            parts, keys = self._parts[core], self._real_keys[core]
            if parts or keys:
                group = (self._requested_khz(core), parts, () if parts else keys)
                groups[group] = groups.get(group, 0) + 1
        return [
            CoreLoad(count, khz, parts, *self._real_shares(keys))
            for (khz, parts, keys), count in groups.items()
        ]

    def _real_shares(self, keys: tuple[str, ...]) -> tuple[float, tuple[tuple[Job, float], ...]]:
        """Return the busy share of a core under real loads, and the share of each job in it.

        A real load is the load of real processes, whose work the model of the node does not compute. The
        loads of a core together may exceed 1. The shares of the jobs are then scaled so that their sum is 1.

        `keys` names the real loads on the core.
        """
        wishes = [(load.job, load.share) for load in (self._real_loads[key] for key in keys)]
        total = sum(share for _, share in wishes)
        scale = min(1.0, total) / total if keys else 0.0
        return min(1.0, total), tuple((job, share * scale) for job, share in wishes)
