"""Result of one cycle of the deferral loop, which plans the starts of deferrable jobs."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_energy.accounting.decisions import Decision
from slurm_energy.controller.deferral.jobs import DeferredJob
from slurm_energy.controller.deferral.suspended_jobs import SuspendedJob
from slurm_energy.scheduling.queue import Ints
from slurm_energy.slurm.queue.columns import QueueColumns


@dataclass(slots=True)
class DeferralCycle:
    """Result of one cycle in which senergyctld plans the deferral of jobs.

    Attributes:
        now_s: Unix seconds.
        queue: all jobs.
        leader: for each row of the queue, the row that represents its whole job array or heterogeneous job,
            see `scheduling_tables.leader_rows`.
        group: for each row of the queue, the id of its job, job array or heterogeneous job.
        wanted: jobs that should be held, the most important first.
        started: jobs that will be held for the first time. Store these jobs before they are held.
        deferrable: number of deferrable jobs.
        suspended: jobs to suspend. Store these jobs before they are suspended.
        not_suspended: suspensions that earlier cycles decided but that did not take place.
    """

    now_s: float
    queue: QueueColumns
    leader: Ints
    group: Ints
    wanted: list[DeferredJob] = field(default_factory=list)
    started: list[DeferredJob] = field(default_factory=list)
    deferrable: int = 0
    suspended: list[SuspendedJob] = field(default_factory=list)
    not_suspended: list[SuspendedJob] = field(default_factory=list)

    def decisions(self) -> list[Decision]:
        """Return the decisions of this cycle as entries of the audit trail.

        The caller stores the entries before it holds, suspends or releases any job.
        """
        made = [job.failure_decision(self.now_s) for job in self.not_suspended]
        made += [job.decision() for job in self.started]
        made += [job.decision() for job in self.suspended]
        return made
