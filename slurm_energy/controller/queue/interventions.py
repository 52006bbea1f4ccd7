"""Interventions on jobs in Slurm: changing the GPUs of pending jobs, and preempting running jobs.

A pending job may get another GPU shape (type and number of GPUs per node). The package `priority` decides
which jobs are changed. This module queries and changes these jobs in Slurm, and records each decision. The
module changes a limited number of jobs per cycle.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final, Protocol

from slurm_energy.accounting.decisions import REQUEUE, SHAPE, Decision
from slurm_energy.config import Config
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.policies.shapes import GpuShape
from slurm_energy.priority.interventions import PROTECTED_S, AssignedShape, InterventionState
from slurm_energy.priority.mixed_shapes import kinds_of
from slurm_energy.priority.offered_shapes import ShapeChoice, choice_reason, choose_shapes, offered_by
from slurm_energy.priority.preemption import (
    START_MARGIN_S,
    PreemptionPlan,
    PreemptionRules,
    at_risk_jobs,
    plan_preemptions,
)
from slurm_energy.priority.snapshot import Snapshot
from slurm_energy.scheduling import Policy
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.hostlist import expand_hostlist, fold_hostlist
from slurm_energy.slurm.queue import gpu_request
from slurm_energy.slurm.queue.job_update import UpdateResult
from slurm_energy.slurm.queue.node_resources import NodeResources, read_nodes
from slurm_energy.slurm.queue.running_jobs import non_preemptible_partitions, read_job_nodes
from slurm_energy.slurm.release import Release, release

MAX_SHAPES_PER_CYCLE: Final = 8
"""Maximum number of jobs whose shape one cycle changes: each costs slurmctld a query and perhaps a change."""
START_TIMEOUT_S: Final = 120.0
"""If a job does not start within this time in a shape that seems to fit, something else blocks the job."""
_BLOCKED_S: Final = 600.0
_LEFT_QUEUE_S: Final = 60.0
_SERVED_S: Final = 120.0
_MODES_MAX_AGE_S: Final = 3600.0
_INVALID_JOB_ID: Final = "Invalid job id"
log = logging.getLogger(__name__)


class JobChanger(Protocol):
    """Interface that changes jobs in Slurm, implemented by `slurm.queue.job_update.JobUpdater`."""

    def set_fields(self, job_id: int, fields: Mapping[str, str], uid: int, name: str = "") -> UpdateResult:
        """Set fields of a pending job with the rights of its owner. Return Slurm's response.

        Args:
            job_id: Slurm's job id.
            fields: values by field name, in the notation of `scontrol update`.
            uid: uid of the job's owner.
            name: job specification for scontrol; an empty value means the job id.
        """
        ...

    def requeue(self, names: Mapping[int, str]) -> UpdateResult:
        """Requeue jobs, and return Slurm's response.

        Args:
            names: job specifications in the notation of scontrol, by job id.
        """
        ...


class Interventions:
    """Executor of the interventions (changes of jobs) that follow from a snapshot of the queue.

    One thread makes all calls.

    Args:
        config: mode, permission to preempt, interval.
        changer: changes jobs in Slurm.
        run: runs Slurm commands for queries.
        state: record of earlier interventions. Each call updates this record.
        clock: returns Unix seconds.
    """

    def __init__(
        self,
        config: Config,
        changer: JobChanger,
        run: Runner,
        state: InterventionState,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._changer, self._run, self._state = config.priority, changer, run, state
        self._clock = clock
        self._nodes: list[NodeResources] | None = None
        self._nodes_read = False
        self._failures = RepeatedFailureLog(log, ignore_numbers=True)
        self._release: Release | None = None
        self._modes: tuple[float, frozenset[str]] = (float("-inf"), frozenset())

    def begin_cycle(self) -> None:
        """Start a cycle: discard the cached node resources, so that they are read again when needed."""
        self._nodes, self._nodes_read = None, False

    def nodes(self) -> list[NodeResources] | None:
        """Return the resources of the nodes, read at most once per cycle.

        The result is None if slurmctld did not answer.
        """
        if not self._nodes_read:
            self._nodes_read = True
            try:
                self._nodes = read_nodes(self._run)
                self._failures.clear("nodes")
            except UnavailableError as error:
                self._failures.report("nodes", str(error))
        return self._nodes

    def apply(self, snapshot: Snapshot, policy: Policy) -> None:
        """Carry out the interventions in Slurm that follow from a ranking of the queue.

        An intervention assigns a GPU type and number to a pending job, or preempts a running job. Each
        intervention is also added to `InterventionState.unsaved`.

        Args:
            snapshot: result of the priority cycle.
            policy: the scheduling policy of the snapshot. Jobs are preempted if the policy supports it and
                `priority.preempt` allows it.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        self._state.expire(self._clock(), snapshot.queue.job_id.tolist())
        self._restore_unrunnable(snapshot)
        changed_choices = (
            choice for choice in choose_shapes(snapshot, policy.rank) if self._differs(snapshot, choice)
        )
        for choice in islice(changed_choices, MAX_SHAPES_PER_CYCLE):
            self._assign(snapshot, choice)
        if policy.preempts and self._settings.preempt:
            self._preempt(snapshot)

    def _differs(self, snapshot: Snapshot, choice: ShapeChoice) -> bool:
        """Return whether the number and type of a job's GPUs (its shape) should be changed.

        A shape that cannot start is blocked for some time. This happens in two cases. A limit on generic
        resources prevents the start of the job in its present shape. Or the job could start in its present
        shape, but has not started within `START_TIMEOUT_S`.
        """
        assigned = self._assigned(snapshot, choice)
        now, startable_since = self._clock(), self._state.startable_since
        if self._state.left_queue.get(choice.job_id, now) > now:
            return False
        if assigned is None:
            return True
        limit = snapshot.queue.reason[int(snapshot.rows[choice.index])]
        if assigned.shape == choice.shape and "GRES" in limit:  # QOSMaxGRESPerUser and similar limits
            self._state.blocked_shapes[choice.job_id, choice.shape] = now + _BLOCKED_S
        elif assigned.shape != choice.shape or not choice.starts_now:
            startable_since.pop(choice.job_id, None)
        elif now - startable_since.setdefault(choice.job_id, now) > START_TIMEOUT_S:
            self._state.blocked_shapes[choice.job_id, choice.shape] = now + _BLOCKED_S
        return assigned.shape is not None and assigned.shape != choice.shape

    @staticmethod
    def _row(snapshot: Snapshot, job_id: int) -> int:
        return int((snapshot.queue.job_id == job_id).argmax())

    def _assigned(self, snapshot: Snapshot, choice: ShapeChoice) -> AssignedShape | None:
        restarts = int(snapshot.queue.restart_count[snapshot.rows[choice.index]])
        return self._state.assigned_to(choice.job_id, choice.submit_s, restarts)

    def _assign(self, snapshot: Snapshot, choice: ShapeChoice) -> None:
        """Change the number and type of a pending job's GPUs in Slurm to the chosen ones.

        Nothing is changed if the job is not pending any more.
        """
        now, assigned = self._clock(), self._assigned(snapshot, choice)
        request = self._query_job(choice.name)
        if not request.pending:  # queue.table does not show the start yet
            self._state.left_queue[choice.job_id] = now + _LEFT_QUEUE_S
            return
        excluded = assigned.excluded_nodes if assigned else request.excluded
        requested_gres = assigned.requested_gres if assigned else request.gres
        shape: GpuShape | None = choice.shape
        why = choice_reason(snapshot, choice)
        try:
            fields = self._fields(request, choice, excluded)
            outcome = UpdateResult((choice.job_id,))
            if fields:
                uid = int(snapshot.queue.uid[snapshot.rows[choice.index]])
                outcome = self._changer.set_fields(choice.job_id, fields, uid, choice.name)
            refusal = outcome.refused.get(choice.job_id)
        except UsageError as error:
            outcome, refusal = UpdateResult(), str(error)
        if refusal is not None:
            shape, why = None, refusal
        elif not outcome.done:  # the job started in its previous shape
            return
        log.info("job %d %s: %s", choice.job_id, f"gets {shape.text}" if shape else "keeps its shape", why)
        self._record(
            choice.job_id,
            AssignedShape(choice.submit_s, shape, now, requested_gres, excluded),
            choice.offered,
            why,
        )

    def _query_job(self, name: str) -> gpu_request.GpuRequest:
        """Return slurmctld's current data of a job. If the job no longer exists, `pending` is False."""
        try:
            return gpu_request.read_gpu_request(name, self._run)
        except UnavailableError as error:
            if _INVALID_JOB_ID not in str(error):
                raise  # without slurmctld every further query would run into its timeout
            return gpu_request.GpuRequest(pending=False)

    def _record(self, job_id: int, assigned: AssignedShape, offered: Sequence[GpuShape], why: str) -> None:
        self._state.assigned[job_id] = assigned
        details: dict[str, Any] = {
            "offered": [shape.text for shape in offered],
            "chosen": assigned.shape.text if assigned.shape else None,
            "requested_gres": assigned.requested_gres,
            "excluded_nodes": assigned.excluded_nodes,
        }
        self._state.unsaved.append(Decision(job_id, assigned.submit_s, assigned.since_s, SHAPE, why, details))

    def _fields(self, request: gpu_request.GpuRequest, choice: ShapeChoice, excluded: str) -> dict[str, str]:
        """Return the job fields to set in Slurm so that the job gets the chosen GPUs.

        The result is empty if the job already has these GPUs.

        Args:
            request: slurmctld's current data of the job.
            choice: the chosen GPU shape (number and type of GPUs).
            excluded: nodes that the owner of the job excluded, as a host list.
        """
        if self._release is None:
            self._release = release(self._run)
        nodes_read = self._nodes or ()
        kinds = kinds_of(choice.shape.gpu_kind, {kind for node in nodes_read for kind in node.gpus})
        others = (
            node.name
            for node in nodes_read
            if node.in_any(choice.partitions)
            and any(node.gpus.get(kind, 0) for kind in node.gpus if kind not in kinds)
        )
        gpu_kind = choice.shape.gpu_kind if len(kinds) == 1 else ""
        fields = gpu_request.scontrol_fields(
            request, gpu_kind, choice.shape.gpus, self._release, fold_hostlist(others), excluded
        )
        nodes = fields.get("ExcNodeList", request.excluded)
        same = fields["Gres"] == request.gres and gpu_request.same_nodes(nodes, request.excluded)
        return {} if same else fields

    def _restore_unrunnable(self, snapshot: Snapshot) -> None:
        """Restore the original GPU request of each job that Slurm cannot run with the assigned GPUs.

        senergyctld had assigned the job another number or type of GPUs (a shape). If Slurm cannot run the
        job, it holds the job with the reason BadConstraints until the job's request is changed again.
        """
        queue, now = snapshot.queue, self._clock()
        for row, word in enumerate(queue.reason if self._state.assigned else []):
            if word != "BadConstraints":
                continue
            job_id, submit_s = int(queue.job_id[row]), float(queue.submit_s[row])
            assigned = self._state.assigned_to(job_id, submit_s, int(queue.restart_count[row]))
            if assigned is None or assigned.shape is None or not assigned.requested_gres:
                continue
            fields = {"Gres": assigned.requested_gres, "ExcNodeList": assigned.excluded_nodes}
            try:
                uid = int(queue.uid[row])
                outcome = self._changer.set_fields(job_id, fields, uid, queue.scontrol_name(row))
            except UsageError:  # text of the owner; must not affect other jobs
                continue
            for refusal in outcome.refused.values():
                self._failures.report(f"job {job_id}", f"has a shape that Slurm cannot run: {refusal}")
            if not outcome.done:
                continue
            why = f"Slurm cannot run it with {assigned.shape.text}; its original request is restored"
            log.warning("job %d: %s", job_id, why)
            again = AssignedShape(submit_s, None, now, assigned.requested_gres, assigned.excluded_nodes)
            self._record(job_id, again, offered_by(queue, row), why)

    def _preempt(self, snapshot: Snapshot) -> None:
        state, now = self._state, self._clock()
        margin_s = START_MARGIN_S + self._settings.interval_s
        partitions = self._settings.partitions
        rules = PreemptionRules(
            margin_s,
            protected=state.protected_until,
            already_served=state.being_served,
            partitions=partitions,
        )
        if not at_risk_jobs(snapshot, rules):
            return
        nodes = self.nodes()
        if nodes is None:
            return
        if abs(now - self._modes[0]) > _MODES_MAX_AGE_S:
            self._modes = (now, non_preemptible_partitions(self._run))
        rules = replace(rules, protected_partitions=self._modes[1])
        for plan in plan_preemptions(snapshot, nodes, read_job_nodes(self._run), rules):
            if self._preemption_helps(snapshot, plan):
                self._requeue(snapshot, plan, now)
            else:
                state.being_served[plan.job_id] = now + _LEFT_QUEUE_S

    def _preemption_helps(self, snapshot: Snapshot, plan: PreemptionPlan) -> bool:
        """Return whether the planned preemption still helps the urgent job.

        Preemption helps if two conditions hold. The job is still pending in slurmctld, and the job may use
        all nodes that the preemption would free.

        The urgent job may have started, although the file `queue.table` does not show its start yet.
        """
        request = self._query_job(snapshot.queue.scontrol_name(self._row(snapshot, plan.job_id)))
        try:
            excluded = expand_hostlist(request.excluded) if request.excluded else []
        except UsageError:
            return False
        # Nodes that were excluded here for a shape are released with the next shape.
        ours = plan.job_id in self._state.assigned
        return request.pending and not request.pins_nodes and (ours or not {*excluded} & {*plan.nodes})

    def _requeue(self, snapshot: Snapshot, plan: PreemptionPlan, now: float) -> None:
        queue = snapshot.queue
        rows = {job_id: self._row(snapshot, job_id) for job_id in plan.victims}
        outcome = self._changer.requeue({job_id: queue.scontrol_name(row) for job_id, row in rows.items()})
        self._state.being_served[plan.job_id] = now + max(_SERVED_S, 2 * self._settings.interval_s)
        self._state.protected_until |= dict.fromkeys(outcome.refused, now + PROTECTED_S)
        for job_id, why in outcome.refused.items():
            log.warning("job %d cannot be preempted for job %d: %s", job_id, plan.job_id, why)
        for job_id in outcome.done:
            self._state.record_interruption(job_id, now)
            log.info("job %d is preempted for job %d: %s", job_id, plan.job_id, plan.why)
            details = {"for_job": plan.job_id, "lost_joules": plan.lost_joules}
            made = Decision(job_id, float(queue.submit_s[rows[job_id]]), now, REQUEUE, plan.why, details)
            self._state.unsaved.append(made)
