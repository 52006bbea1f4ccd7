"""What the queue engine does to jobs beside their place: shapes before they start, jobs that make way.

Who and what is decided in the priority room; here it is asked of Slurm, bounded, and written down.
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
from slurm_energy.controller.recurring import Recurring
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.policies.shapes import GpuShape
from slurm_energy.priority.engine import Snapshot
from slurm_energy.priority.interventions import SPARED_S, Given, InterventionState
from slurm_energy.priority.offered_shapes import Choice, choices, offer, reason
from slurm_energy.priority.preemption import MARGIN_S, Rescue, Rules, rescues, urgent_rows
from slurm_energy.scheduling import Policy
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.hostlist import expand_hostlist, fold_hostlist
from slurm_energy.slurm.queue import gpu_request
from slurm_energy.slurm.queue.job_update import UpdateResult
from slurm_energy.slurm.queue.node_resources import NodeResources, read_nodes
from slurm_energy.slurm.queue.running_jobs import non_preemptible_partitions, read_job_nodes
from slurm_energy.slurm.release import Release, release

MOST_SHAPES: Final = 8
"""Jobs whose shape one cycle looks at: each costs slurmctld a question and perhaps a change."""
DOUBT_AFTER_S: Final = 120.0
"""A job that did not start for so long in a shape that seemed to fit: something else is in its way."""
_DOUBTED_S: Final = 600.0
_LEFT_S: Final = 60.0
_WAITING_S: Final = 120.0
_MODES_KEPT_S: Final = 3600.0
_GONE: Final = "Invalid job id"
log = logging.getLogger("senergyctld")


class Changer(Protocol):
    """Changes jobs, see `slurm.queue.job_update.JobUpdater`."""

    def set_fields(self, job_id: int, fields: Mapping[str, str], uid: int, name: str = "") -> UpdateResult:
        """Change a pending job as its owner."""
        ...

    def requeue(self, names: Mapping[int, str]) -> UpdateResult:
        """Put running jobs back into the queue."""
        ...


class Interventions:
    """Acts on one snapshot after the other, all in one thread.

    Args:
        config: mode, policy's permission to preempt, interval.
        changer: how Slurm is asked for changes.
        run: how Slurm is asked questions.
        acted: what was done before; kept up to date.
        clock: Unix seconds.
    """

    def __init__(
        self,
        config: Config,
        changer: Changer,
        run: Runner,
        acted: InterventionState,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._changer, self._run, self._acted = config.priority, changer, run, acted
        self._clock = clock
        self._nodes: list[NodeResources] | None = None
        self._asked = False
        self._recurring = Recurring(log)
        self._release: Release | None = None
        self._modes: tuple[float, frozenset[str]] = (float("-inf"), frozenset())

    def begin(self) -> None:
        """Begin a cycle: what nodes have is asked anew, if anybody wants to know."""
        self._nodes, self._asked = None, False

    def nodes(self) -> list[NodeResources] | None:
        """Return what nodes have, asked at most once a cycle; None: slurmctld does not tell."""
        if not self._asked:
            self._asked = True
            try:
                self._nodes = read_nodes(self._run)
                self._recurring.works("nodes")
            except UnavailableError as error:
                self._recurring.failed("nodes", str(error))
        return self._nodes

    def act(self, snapshot: Snapshot, policy: Policy) -> None:
        """Change what is to be changed after a cycle; what was done is in `InterventionState.unsaved`.

        Args:
            snapshot: the cycle's outcome.
            policy: that made it. If it preempts and `priority.preempt` allows it, jobs make way.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        self._acted.forget(self._clock(), snapshot.queue.job_id.tolist())
        self._put_right(snapshot)
        wanted = (choice for choice in choices(snapshot, policy.rank) if self._differs(snapshot, choice))
        for choice in islice(wanted, MOST_SHAPES):
            self._give(snapshot, choice)
        if policy.preempts and self._settings.preempt:
            self._make_way(snapshot)

    def _differs(self, snapshot: Snapshot, choice: Choice) -> bool:
        """Return whether a job has another shape, as far as is known here; doubt one that does not help."""
        given = self._given(snapshot, choice)
        now, turns = self._clock(), self._acted.turns
        if self._acted.left.get(choice.job_id, now) > now:
            return False
        if given is None:
            return True
        limit = snapshot.queue.reason[int(snapshot.rows[choice.place])]
        if given.shape == choice.shape and "GRES" in limit:  # QOSMaxGRESPerUser and the like
            self._acted.doubts[choice.job_id, choice.shape] = now + _DOUBTED_S
        elif given.shape != choice.shape or not choice.turn:
            turns.pop(choice.job_id, None)
        elif now - turns.setdefault(choice.job_id, now) > DOUBT_AFTER_S:
            self._acted.doubts[choice.job_id, choice.shape] = now + _DOUBTED_S
        return given.shape is not None and given.shape != choice.shape

    @staticmethod
    def _row(snapshot: Snapshot, job_id: int) -> int:
        return int((snapshot.queue.job_id == job_id).argmax())

    def _given(self, snapshot: Snapshot, choice: Choice) -> Given | None:
        restarts = int(snapshot.queue.restart_count[snapshot.rows[choice.place]])
        return self._acted.given_to(choice.job_id, choice.submit_s, restarts)

    def _give(self, snapshot: Snapshot, choice: Choice) -> None:
        """Give a job its shape, if it still waits."""
        now, given = self._clock(), self._given(snapshot, choice)
        asked = self._ask(choice.name)
        if not asked.pending:  # queue.table does not tell yet
            self._acted.left[choice.job_id] = now + _LEFT_S
            return
        excluded = given.excluded if given else asked.excluded
        before = given.asked if given else asked.gres
        shape: GpuShape | None = choice.shape
        why = reason(snapshot, choice)
        try:
            fields = self._fields(asked, choice, excluded)
            outcome = UpdateResult((choice.job_id,))
            if fields:
                uid = int(snapshot.queue.uid[snapshot.rows[choice.place]])
                outcome = self._changer.set_fields(choice.job_id, fields, uid, choice.name)
            refusal = outcome.refused.get(choice.job_id)
        except UsageError as error:
            outcome, refusal = UpdateResult(), str(error)
        if refusal is not None:
            shape, why = None, refusal
        elif not outcome.done:  # it started in what it had
            return
        log.info("job %d %s: %s", choice.job_id, f"gets {shape.text}" if shape else "keeps its shape", why)
        self._note(choice.job_id, Given(choice.submit_s, shape, now, before, excluded), choice.offered, why)

    def _ask(self, name: str) -> gpu_request.GpuRequest:
        """Return what slurmctld says of a job now; one that is gone does not wait."""
        try:
            return gpu_request.read_gpu_request(name, self._run)
        except UnavailableError as error:
            if _GONE not in str(error):
                raise  # without slurmctld each further question would take until its time limit
            return gpu_request.GpuRequest(pending=False)

    def _note(self, job_id: int, given: Given, offered: Sequence[GpuShape], why: str) -> None:
        self._acted.given[job_id] = given
        details: dict[str, Any] = {
            "offered": [shape.text for shape in offered],
            "chosen": given.shape.text if given.shape else None,
            "asked": given.asked,
            "excluded": given.excluded,
        }
        self._acted.unsaved.append(Decision(job_id, given.submit_s, given.since_s, SHAPE, why, details))

    def _fields(self, asked: gpu_request.GpuRequest, choice: Choice, excluded: str) -> dict[str, str]:
        """Return what is to be changed; nothing where the job has this shape."""
        if self._release is None:
            self._release = release(self._run)
        kind = choice.shape.gpu_kind
        others = (
            node.name
            for node in self._nodes or ()
            if node.in_any(choice.partitions) and any(node.gpus.get(k, 0) for k in node.gpus if k != kind)
        )
        fields = gpu_request.scontrol_fields(
            asked, kind, choice.shape.gpus, self._release, fold_hostlist(others), excluded
        )
        nodes = fields.get("ExcNodeList", asked.excluded)
        same = fields["Gres"] == asked.gres and gpu_request.same_nodes(nodes, asked.excluded)
        return {} if same else fields

    def _put_right(self, snapshot: Snapshot) -> None:
        """Give jobs back what they asked for where Slurm cannot run them as they are now.

        It holds such a job, with the reason BadConstraints, until its request is changed again.
        """
        queue, now = snapshot.queue, self._clock()
        for row, word in enumerate(queue.reason if self._acted.given else []):
            if word != "BadConstraints":
                continue
            job_id, submit_s = int(queue.job_id[row]), float(queue.submit_s[row])
            given = self._acted.given_to(job_id, submit_s, int(queue.restart_count[row]))
            if given is None or given.shape is None or not given.asked:
                continue
            fields = {"Gres": given.asked, "ExcNodeList": given.excluded}
            try:
                uid = int(queue.uid[row])
                outcome = self._changer.set_fields(job_id, fields, uid, queue.name_of(row))
            except UsageError:  # its owner's words; the other jobs must not suffer from them
                continue
            for refusal in outcome.refused.values():
                self._recurring.failed(f"job {job_id}", f"has a shape that Slurm cannot run: {refusal}")
            if not outcome.done:
                continue
            why = f"Slurm cannot run it with {given.shape.text}; it has again what it asked for"
            log.warning("job %d: %s", job_id, why)
            again = Given(submit_s, None, now, given.asked, given.excluded)
            self._note(job_id, again, offer(queue, row), why)

    def _make_way(self, snapshot: Snapshot) -> None:
        acted, now = self._acted, self._clock()
        margin_s = MARGIN_S + self._settings.interval_s
        partitions = self._settings.partitions
        rules = Rules(margin_s, spared=acted.spared, waiting=acted.waiting, partitions=partitions)
        if not urgent_rows(snapshot, rules):
            return
        nodes = self.nodes()
        if nodes is None:
            return
        if abs(now - self._modes[0]) > _MODES_KEPT_S:
            self._modes = (now, non_preemptible_partitions(self._run))
        rules = replace(rules, spared_partitions=self._modes[1])
        for rescue in rescues(snapshot, nodes, read_job_nodes(self._run), rules):
            if self._helps(snapshot, rescue):
                self._requeue(snapshot, rescue, now)
            else:
                acted.waiting[rescue.job_id] = now + _LEFT_S

    def _helps(self, snapshot: Snapshot, rescue: Rescue) -> bool:
        """Return whether a job still waits, as queue.table may not tell yet, and may start on any node."""
        asked = self._ask(snapshot.queue.name_of(self._row(snapshot, rescue.job_id)))
        try:
            excluded = expand_hostlist(asked.excluded) if asked.excluded else []
        except UsageError:
            return False
        # What was excluded here, for the sake of a shape, is taken back with the next shape.
        ours = rescue.job_id in self._acted.given
        return asked.pending and not asked.places and (ours or not {*excluded} & {*rescue.nodes})

    def _requeue(self, snapshot: Snapshot, rescue: Rescue, now: float) -> None:
        queue = snapshot.queue
        rows = {job_id: self._row(snapshot, job_id) for job_id in rescue.victims}
        outcome = self._changer.requeue({job_id: queue.name_of(row) for job_id, row in rows.items()})
        self._acted.waiting[rescue.job_id] = now + max(_WAITING_S, 2 * self._settings.interval_s)
        self._acted.spared |= dict.fromkeys(outcome.refused, now + SPARED_S)
        for job_id, why in outcome.refused.items():
            log.warning("job %d cannot make way for job %d: %s", job_id, rescue.job_id, why)
        for job_id in outcome.done:
            self._acted.interrupted(job_id, now)
            log.info("job %d makes way for job %d: %s", job_id, rescue.job_id, rescue.why)
            details = {"for_job": rescue.job_id, "lost_joules": rescue.lost_joules}
            made = Decision(job_id, float(queue.submit_s[rows[job_id]]), now, REQUEUE, rescue.why, details)
            self._acted.unsaved.append(made)
