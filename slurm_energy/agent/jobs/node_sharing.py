"""Decision whether a job that begins has the whole node, and which earlier jobs cannot run beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slurm_energy.agent.jobs.sessions import Session
from slurm_energy.agent.jobs.stale_jobs import living_jobs
from slurm_energy.agent.metering.components import has_whole_node
from slurm_energy.devices.cpu.topology import online_cpus
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.slurm.hook_environment import JobContext


@dataclass(frozen=True, slots=True)
class NodeOccupation:
    """Relation of a job that begins to the other jobs of the node.

    Attributes:
        has_all: whether the job has all CPUs of the node or is exclusive.
        stale: earlier jobs that cannot run beside the job and have no living slurmstepd process. Their epilog
            did not run.
        beside: earlier jobs that have a living slurmstepd process, although they and the job need the same
            CPUs. Slurm runs both, for example in an oversubscribed partition.
    """

    has_all: bool
    stale: tuple[Session, ...] = ()
    beside: tuple[Session, ...] = ()

    @property
    def whole_node(self) -> bool:
        """Whether the job has the node to itself."""
        return self.has_all and not self.beside

    @property
    def may_have_all_gpus(self) -> bool:
        """Whether the job is assumed to have all GPUs if Slurm names none.

        A job without named GPUs has none if Slurm names the GPUs of another job that runs beside it.
        """
        return self.has_all and not any(one.gpus and not one.gpus_assumed for one in self.beside)


def node_occupation(context: JobContext, sessions: Iterable[Session], devices: NodeDevices) -> NodeOccupation:
    """Return the relation of a job that begins to the running jobs.

    Args:
        context: the job as the prolog describes it.
        sessions: sessions of the running jobs.
        devices: the node's hardware.
    """
    has_all = has_whole_node(context, _cpu_count(devices))
    conflicting = [
        session for session in sessions if has_all or session.whole_node or session.job_id == context.job_id
    ]
    living = living_jobs(devices.root) - {context.job_id} if conflicting else frozenset()
    return NodeOccupation(
        has_all,
        tuple(session for session in conflicting if session.job_id not in living),
        tuple(session for session in conflicting if session.job_id in living),
    )


def _cpu_count(devices: NodeDevices) -> int:
    """Return the number of the node's CPUs, including CPUs that went online after senergyd started."""
    return max(len(online_cpus(devices.root)), devices.hardware.cpu_count)
