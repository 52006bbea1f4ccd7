"""The part of a node that is allocated to a job.

The module also determines the hardware that the job's settings may change.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from slurm_energy.devices.hardware import CpuPackage, NodeHardware

WAITING_FOR_CPUS = "CPU settings not applied: the job shares the node, and no step has reported its CPUs yet"


@dataclass(frozen=True, slots=True)
class JobScope:
    """The part of a node that is allocated to a job.

    Attributes:
        whole_node: whether no other job runs on the node, so that the job may change the settings of all CPUs
            and packages.
        gpus: indices of the job's GPUs.
        gpu_job: whether the job requested GPUs from Slurm. The GPUs then do the work of the job, and the CPUs
            only supply the GPUs with data.
        cpus: logical CPUs of a job that shares the node; None while the CPUs are unknown.
    """

    whole_node: bool
    gpus: tuple[int, ...] = ()
    gpu_job: bool = False
    cpus: frozenset[int] | None = None

    @property
    def knows_cpus(self) -> bool:
        """Whether the CPUs whose settings the job may change are known."""
        return self.whole_node or self.cpus is not None

    def fraction(self, package: CpuPackage, cpu_count: int) -> float:
        """Return the fraction (0 to 1) of a package's CPUs that belong to the job.

        Return 1 if the job's CPUs are unknown. If the CPUs of the package are unknown, return the job's
        fraction of the node's CPUs.

        Args:
            package: a processor package of the node.
            cpu_count: number of CPUs of the node.
        """
        if self.whole_node or self.cpus is None:
            return 1.0
        if not package.cpus:
            return len(self.cpus) / cpu_count if cpu_count else 1.0
        return len(self.cpus.intersection(package.cpus)) / len(package.cpus)


def job_hardware(hardware: NodeHardware, scope: JobScope) -> tuple[NodeHardware, tuple[str, ...]]:
    """Return the hardware whose settings a job may change, and notes for the energy record.

    A job that shares the node may change only two kinds of hardware:

    - the cpufreq policies (groups of CPUs with a common frequency) whose CPUs all belong to the
      job;
    - the packages on which the job has CPUs. On these packages, the settings that the job
      requests are merged with the settings that other jobs request.

    The maximum power of memory is multiplied by the job's fraction of the node's CPUs.
    """
    if scope.whole_node or scope.cpus is None:
        return hardware, ()
    policies = tuple(policy for policy in hardware.policies if scope.cpus.issuperset(policy.cpus))
    packages = tuple(p for p in hardware.packages if scope.fraction(p, hardware.cpu_count) > 0)
    shared = {cpu for policy in hardware.policies if policy not in policies for cpu in policy.cpus}
    unchanged = scope.cpus & shared
    notes = (
        (f"frequency of {len(unchanged)} CPUs not changed: CPUs of other jobs share it",) if unchanged else ()
    )
    dram_watts = hardware.max_dram_watts
    if dram_watts is not None and hardware.cpu_count:
        dram_watts *= len(scope.cpus) / hardware.cpu_count
    own = dataclasses.replace(hardware, policies=policies, packages=packages, max_dram_watts=dram_watts)
    return own, notes
