"""The part of a node that a job has, and what of the hardware its settings may touch there. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from slurm_energy.devices.hardware import CpuPackage, NodeHardware

WAITING_FOR_CPUS = "CPU settings left alone: the job shares the node, and no step has told its CPUs yet"


@dataclass(frozen=True, slots=True)
class JobScope:
    """The part of the node that is the job's own.

    Attributes:
        whole_node: nobody else runs here, so that settings of all CPUs and packages are the job's.
        gpus: indices of the job's GPUs.
        gpu_job: the job asked Slurm for GPUs, so that they do its work and the CPUs only feed them.
        cpus: logical CPUs of a job that shares the node; None as long as they are not known.
    """

    whole_node: bool
    gpus: tuple[int, ...] = ()
    gpu_job: bool = False
    cpus: frozenset[int] | None = None

    @property
    def knows_cpus(self) -> bool:
        """Whether it is known which CPUs are the job's."""
        return self.whole_node or self.cpus is not None

    def fraction(self, package: CpuPackage, cpu_count: int) -> float:
        """Return the job's share of a package's CPUs; of the node's where the package's are not known."""
        if self.whole_node or self.cpus is None:
            return 1.0
        if not package.cpus:
            return len(self.cpus) / cpu_count if cpu_count else 1.0
        return len(self.cpus.intersection(package.cpus)) / len(package.cpus)


def job_hardware(hardware: NodeHardware, scope: JobScope) -> tuple[NodeHardware, tuple[str, ...]]:
    """Return the hardware that a job's settings may touch, and what a reader of the record should know.

    A job that shares the node touches the cpufreq policies whose CPUs are all its own, and the packages that
    it has CPUs on: its claims there count together with those of the other jobs.
    """
    if scope.whole_node or scope.cpus is None:
        return hardware, ()
    policies = tuple(policy for policy in hardware.policies if scope.cpus.issuperset(policy.cpus))
    packages = tuple(p for p in hardware.packages if scope.fraction(p, hardware.cpu_count) > 0)
    shared = {cpu for policy in hardware.policies if policy not in policies for cpu in policy.cpus}
    lost = scope.cpus & shared
    notes = (f"frequency of {len(lost)} CPUs left alone: it is that of others' CPUs too",) if lost else ()
    dram = hardware.max_dram_watts
    if dram is not None and hardware.cpu_count:
        dram *= len(scope.cpus) / hardware.cpu_count
    own = dataclasses.replace(hardware, policies=policies, packages=packages, max_dram_watts=dram)
    return own, notes
