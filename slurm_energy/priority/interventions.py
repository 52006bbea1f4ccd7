"""Record of the interventions on jobs, for later cycles of the priority engine. Plain data.

Interventions are the assignment of a GPU shape (kind and number of GPUs) and preemption.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from slurm_energy.accounting.decisions import REQUEUE, SHAPE, Decision
from slurm_energy.errors import UsageError
from slurm_energy.policies.shapes import GpuShape, parse_shapes

K = TypeVar("K")
PROTECTED_S: Final = 1800.0
"""Seconds for which a preempted job, or a job that Slurm refused to requeue, is not selected again. Each
further preemption of the job doubles this time.
"""
MAX_PROTECTED_S: Final = 30 * 86400.0
ABSENCE_LIMIT_S: Final = 86400.0
"""Seconds that a job may be absent from the queue (completing or suspended) before its entries expire."""


@dataclass(frozen=True, slots=True)
class AssignedShape:
    """A GPU shape (kind and number of GPUs) that senergyctld assigned to a job.

    Attributes:
        submit_s: submission time of the job, Unix seconds.
        shape: the GPU shape that the job has now; None means that the job has its original request.
        since_s: time of the assignment, Unix seconds.
        requested_gres: generic resources of the original request, in the syntax of scontrol.
        excluded_nodes: nodes that the job's owner excluded in the original request.
    """

    submit_s: float
    shape: GpuShape | None
    since_s: float
    requested_gres: str = ""
    excluded_nodes: str = ""


@dataclass(slots=True)
class InterventionState:
    """State about the interventions made so far.

    The state is kept between cycles and across reloads of the configuration. When senergyctld starts, the
    state is loaded from the database.

    Attributes:
        loaded: whether interventions from before this process were read from the database.
        assigned: assigned GPU shapes by job id.
        blocked_shapes: by job id and GPU shape, the Unix second until which the shape counts as not fitting.
        protected_until: by job id, the Unix second until which the job must not be preempted.
        left_queue: jobs that were no longer in the queue when Slurm was queried about them. Maps the id of
            each job to the Unix second before which Slurm is not queried about the job again.
        being_served: jobs with deadlines for which other jobs were preempted. Maps the id of each job to the
            Unix second until which the job has time to start.
        startable_since: by job id, the Unix second since which the job could start in its current GPU shape.
        interruptions: number of preemptions by job id.
        unsaved: interventions that are not yet in the database.
    """

    loaded: bool = False
    assigned: dict[int, AssignedShape] = field(default_factory=dict)
    blocked_shapes: dict[tuple[int, GpuShape], float] = field(default_factory=dict)
    protected_until: dict[int, float] = field(default_factory=dict)
    left_queue: dict[int, float] = field(default_factory=dict)
    being_served: dict[int, float] = field(default_factory=dict)
    startable_since: dict[int, float] = field(default_factory=dict)
    interruptions: dict[int, int] = field(default_factory=dict)
    unsaved: list[Decision] = field(default_factory=list)
    _last_seen: dict[int, float] = field(default_factory=dict)
    _now_s: float = 0.0

    def load(self, made: Iterable[Decision]) -> None:
        """Load the changes to jobs (interventions) that were made before this process started.

        The changes are requeues, and new GPU requests of pending jobs.
        """
        self.loaded = True
        for one in made:
            if one.kind == REQUEUE:
                self.record_interruption(one.job_id, one.time)
            elif one.kind == SHAPE:
                requested_gres, excluded_nodes = (
                    str(one.details.get(key) or "") for key in ("requested_gres", "excluded_nodes")
                )
                shape = _shape(one.details.get("chosen"))
                self.assigned[one.job_id] = AssignedShape(
                    one.submit, shape, one.time, requested_gres, excluded_nodes
                )

    def record_interruption(self, job_id: int, now_s: float) -> None:
        """Record that a job was preempted, and protect the job from further preemption for some time.

        Preemption selects the jobs that waste the least energy. A job that has just restarted would waste the
        least, so the same job would be selected again and again without protection.
        """
        times = self.interruptions[job_id] = self.interruptions.get(job_id, 0) + 1
        self.protected_until[job_id] = now_s + min(PROTECTED_S * 2.0 ** min(times - 1, 30), MAX_PROTECTED_S)

    def assigned_to(self, job_id: int, submit_s: float, restarts: int) -> AssignedShape | None:
        """Return the GPU shape (type and number of GPUs) that senergyctld has assigned to a job.

        Return None if the job has no assigned shape. None is also returned if the shape belongs to an older
        job with the same id. The submission time tells the two jobs apart. A requeued job gets a new
        submission time from Slurm, so for a restarted job the time is not compared.

        Args:
            job_id: Slurm's job id.
            submit_s: submission time of the job, Unix seconds.
            restarts: number of restarts of the job.
        """
        assigned = self.assigned.get(job_id)
        same = assigned is not None and (abs(assigned.submit_s - submit_s) < 1.5 or restarts > 0)
        return assigned if same else None

    def keeps_request(self, job_id: int, submit_s: float, restarts: int) -> bool:
        """Return whether senergyctld must leave the GPU request of a job unchanged.

        This is the case after senergyctld has changed the number or type of the job's GPUs once and has then
        restored the original request. The job is identified by its id, submission time (Unix seconds) and
        number of restarts.
        """
        assigned = self.assigned_to(job_id, submit_s, restarts)
        return assigned is not None and assigned.shape is None

    def expire(self, now_s: float, jobs: Iterable[int]) -> None:
        """Remove expired entries, and the entries of jobs that have long been absent from the queue.

        A requeued job is absent from the queue (`jobs`) while its previous run completes. A job therefore
        counts as gone only after `ABSENCE_LIMIT_S`.
        """
        back_s, self._now_s = max(0.0, self._now_s - now_s), now_s
        _drop(self.blocked_shapes, now_s, back_s)
        for until in (self.protected_until, self.left_queue, self.being_served):
            _drop(until, now_s, back_s)
        tracked = self.assigned.keys() | self.interruptions.keys()
        if tracked:
            present = set(jobs)
            self._last_seen = {
                job: now_s if job in present else self._last_seen.get(job, now_s) for job in tracked
            }
            self.startable_since = {
                job: since for job, since in self.startable_since.items() if job in present
            }
            for job in [job for job, seen_s in self._last_seen.items() if now_s - seen_s > ABSENCE_LIMIT_S]:
                self.assigned.pop(job, None)
                self.interruptions.pop(job, None)


def _drop(until: dict[K, float], now_s: float, back_s: float) -> None:
    """Remove the entries that have expired.

    `until` contains the Unix second at which each entry expires. If the clock was set back by `back_s`
    seconds, the remaining entries are moved back by the same time.
    """
    for key, end in list(until.items()):
        until[key] = end - back_s
        if end - back_s <= now_s:
            del until[key]


def _shape(text: object) -> GpuShape | None:
    try:
        shapes = parse_shapes(text) if isinstance(text, str) else ()
    except UsageError:
        return None
    return shapes[0] if shapes else None
