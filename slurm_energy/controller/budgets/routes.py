"""HTTP routes of senergyctld for power budgets.

They serve the polls of nodes, the state and the history of budgets, changes of limits by operators, and
explanations for single jobs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from slurm_energy.accounting import budgets
from slurm_energy.accounting.budgets import BudgetChange, LimitOverride
from slurm_energy.config import Config
from slurm_energy.controller.budgets.facts import (
    BudgetCycle,
    BudgetedJobStatus,
    BudgetStatus,
)
from slurm_energy.controller.budgets.loop import OFF, BudgetLoop
from slurm_energy.controller.budgets.objects import (
    budget_sentences,
    change_object,
    finite,
    node_objects,
    override_object,
    series_object,
)
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.node_hosts import NodeHosts, Sender, check_sender
from slurm_energy.controller.records.store import Store
from slurm_energy.errors import ForbiddenError, NotFoundError, UnavailableError, UsageError
from slurm_energy.protocol.budget_requests import HistoryQuery, LimitChange, StatusQuery, explain_job_id
from slurm_energy.protocol.budget_responses import (
    BudgetExplanationResponse,
    BudgetHistoryResponse,
    BudgetJobObject,
    BudgetNodeObject,
    BudgetObject,
    BudgetSetResponse,
    BudgetStatusResponse,
)
from slurm_energy.quantities import shown
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.queue.job_lookup import QueuedJob, find_queued_job
from slurm_energy.slurm.queue.running_jobs import AllocatedJob
from slurm_energy.spelling import suggestion

MIN_OVERRIDE_S: Final = 1.0


class BudgetRoutes:
    """Handlers of the routes about budgets. The caller has been identified.

    Args:
        config: returns the current configuration.
        loop: the budgets; None means that this controller has no budgets.
        store: the database.
        hosts: addresses of nodes; None means that any agent may speak for any node.
        run: runs squeue to look up a job.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        loop: BudgetLoop | None,
        store: Store,
        hosts: NodeHosts | None,
        run: Runner = run_command,
    ) -> None:
        self._config, self._loop, self._store, self._hosts, self._run = config, loop, store, hosts, run

    async def poll(self, data: Any, sender: Sender) -> dict[str, Any]:
        """Return the decision for a node, see `budget.messages`.

        Raises:
            ForbiddenError: the sender does not run on the node.
            NotFoundError: Slurm does not know the node.
            UnavailableError: this controller has no budgets.
            UsageError: the poll is malformed.
        """
        loop = self._required()
        node = data.get("node") if isinstance(data, dict) else None
        if isinstance(node, str):
            await check_sender(self._hosts, node, sender, self._config().controller.record_hosts)
        return await loop.poll(data)

    async def show(self, query: Mapping[str, str], rights: Rights) -> BudgetStatusResponse:
        """Return the response to `GET /v1/budget`. Everyone may see the budgets and the power of nodes."""
        request, loop, now = StatusQuery.from_query(query), self._required(), time.time()
        settings = self._config().budget
        cycle = loop.cycle
        states = {status.name: status for status in cycle.budgets} if cycle is not None else {}
        names = loop.parts.limits.names if loop.parts is not None else ()
        visible = self._visible_jobs(rights)
        nodes: list[BudgetNodeObject] = []
        jobs: list[BudgetJobObject] = []
        if request.nodes:
            nodes = await loop.report(lambda one: node_objects(one, visible)) or []
        if request.jobs:
            jobs = await loop.report(lambda one: self._jobs(one, visible)) or []
        return {
            "unix_s": now,
            "mode": settings.mode if names else OFF,
            "distribution": settings.distribution,
            "admission": settings.admission,
            "period_s": settings.period_s,
            "decided_unix_s": loop.decided_unix_s,
            "scope": rights.scope,
            "budgets": [self._budget(name, states.get(name), now, request.plan_hours) for name in names],
            "nodes": nodes,
            "jobs": jobs,
        }

    async def set(self, body: Mapping[str, Any], rights: Rights) -> BudgetSetResponse:
        """Set or remove a live limit, which is a limit of a budget that an operator sets.

        After the removal, the configured limit applies again.

        Raises:
            ForbiddenError: the caller is no operator.
            NotFoundError: no budget has this name, or the budget has no live limit to remove.
            UsageError: the limit is below the idle power of the budget, or the end of the live limit has
                passed.
        """
        if not rights.everything:
            raise ForbiddenError("limits of budgets", "only operators set them", "see controller.operators")
        change, loop, now = LimitChange.from_json(body), self._required(), time.time()
        parts = loop.parts
        names = parts.limits.names if parts is not None else ()
        if parts is None or change.budget not in names:
            todo = suggestion(change.budget, names) or "see senergy budget show"
            raise NotFoundError(f"budget '{shown(change.budget)}'", "there is no budget of this name", todo)
        if change.until_unix_s is not None and change.until_unix_s < now + MIN_OVERRIDE_S:
            raise UsageError("until_unix_s", "is in the past", "give a later time")
        status = (
            next((s for s in loop.cycle.budgets if s.name == change.budget), None) if loop.cycle else None
        )
        previous = parts.limits.source(change.budget).limit_at(now)
        actor = rights.name or str(rights.uid)
        if change.watts is None:
            if parts.limits.override(change.budget, now) is None:
                raise NotFoundError(f"budget '{change.budget}'", "has no live limit", "nothing to remove")
            watts, override, kind = parts.limits.configured_watts(change.budget, now), None, "clear"
        else:
            _refuse_too_low(change.budget, change.watts, status)
            watts, kind = change.watts, "set"
            override = LimitOverride(
                *(change.budget, change.watts, change.until_unix_s, actor, now), reason=change.reason
            )
        why = _change_text(change, previous, watts)
        details = {"watts": finite(watts), "previous_watts": finite(previous), "until": change.until_unix_s}
        await loop.set_override(override, BudgetChange(now, change.budget, actor, kind, why, details))
        return {
            "budget": change.budget,
            "limit_watts": finite(watts),
            "previous_watts": finite(previous),
            "until_unix_s": change.until_unix_s,
            "warning": _warning(watts, status),
        }

    async def history(self, query: Mapping[str, str], _: Rights) -> BudgetHistoryResponse:
        """Return the response to `GET /v1/budget/history`.

        Raises:
            NotFoundError: no budget has this name.
        """
        request, cluster = HistoryQuery.from_query(query), self._config().cluster.name
        begin, end = request.begin_unix_s, request.end_unix_s
        stored = await self._store.read(budgets.names, cluster)
        configured = [table.name for table in self._config().budgets]
        names = [*configured, *(name for name in stored if name not in configured)]
        if request.budget is not None:
            if request.budget not in names:
                todo = suggestion(request.budget, names)
                raise NotFoundError(f"budget '{shown(request.budget)}'", "is not known", todo)
            names = [request.budget]
        series = []
        for name in names:
            found = await self._store.read(budgets.samples, cluster, name, begin, end, request.points)
            if found or name in configured:
                series.append(series_object(name, found))
        changes = await self._store.read(budgets.changes, cluster, begin, end)
        listed = [one for one in changes if one.budget is None or one.budget in names]
        return {"series": series, "changes": [change_object(one) for one in listed]}

    async def explain(self, query: Mapping[str, str], rights: Rights) -> BudgetExplanationResponse:
        """Return the response to `GET /v1/budget/explain`: how power budgets limit or delay a job.

        Raises:
            ForbiddenError: the job belongs to another user.
            NotFoundError: the job is not in Slurm's queue.
            UnavailableError: Slurm does not answer.
        """
        text, loop = explain_job_id(query), self._required()
        job = await asyncio.to_thread(find_queued_job, text, self._run)
        if not (rights.everything or job.uid == rights.uid or job.account in rights.accounts):
            raise ForbiddenError(f"job {text}", "it belongs to another user", "ask an operator")
        status = await loop.report(lambda cycle: cycle.jobs.get(job.job_id))
        details = (
            budget_sentences(loop.cycle, status) if loop.cycle is not None and status is not None else []
        )
        return self._explanation(job, status, details, loop)

    def _explanation(
        self, job: QueuedJob, status: BudgetedJobStatus | None, details: list[str], loop: BudgetLoop
    ) -> BudgetExplanationResponse:
        report = loop.parts.admission_report if loop.parts is not None else None
        watts = report.watts.get(job.job_id) if report is not None else None
        waiting = report.waiting.get(job.job_id) if report is not None else None
        state, sentence = "unknown", f"no decision has been made about job {job.job_id} yet"
        if loop.parts is None:
            sentence = "no power budget is in force"
        elif status is not None:
            state, sentence = "running", status.explanation
        elif job.is_pending:
            state, sentence = "pending", waiting or f"no power budget delays job {job.job_id}"
        return {
            "job_id": job.job_id,
            "state": state,
            "budget": status.budget if status is not None else _delaying_budget(loop, waiting),
            "explanation": sentence,
            "details": details,
            "wanted_watts": status.wanted_watts if status is not None else watts,
            "committed_watts": status.committed_watts if status is not None else None,
            "license_watts": watts,
            "keeps_slowdown": status.keeps_slowdown
            if status is not None and status.has_slowdown_limit
            else None,
            "decided_unix_s": loop.decided_unix_s,
        }

    def _required(self) -> BudgetLoop:
        if self._loop is None:
            raise UnavailableError("power budgets", "this controller has none")
        return self._loop

    def _visible_jobs(self, rights: Rights) -> Callable[[int], bool]:
        """Return a function that says, by job id, whether the caller may see a running job."""
        if rights.everything:
            return lambda _: True
        allocated = self._allocated()

        def is_visible(job_id: int) -> bool:
            job = allocated.get(job_id)
            return job is not None and (job.uid == rights.uid or job.account in rights.accounts)

        return is_visible

    def _allocated(self) -> Mapping[int, AllocatedJob]:
        parts = self._loop.parts if self._loop is not None else None
        return parts.inputs.allocated if parts is not None else {}

    def _budget(self, name: str, status: BudgetStatus | None, now: float, hours: float) -> BudgetObject:
        parts = self._required().parts
        assert parts is not None  # there are names only with parts
        limits, table = parts.limits, parts.limits.table(name)
        override = limits.override(name, now)
        scope, value = table.scope
        return {
            "name": name,
            "scope": scope,
            "scope_value": value,
            "source": "set" if override is not None else table.sources[0],
            "problem": limits.problem(name, now),
            "limit_watts": finite(limits.source(name).limit_at(now)),
            "configured_watts": finite(limits.configured_watts(name, now)),
            "override": None if override is None else override_object(override),
            "measured_watts": status.measured_watts if status is not None else None,
            "committed_watts": status.committed_watts if status is not None else None,
            "fixed_watts": status.fixed_watts if status is not None else None,
            "capped_watts": status.capped_watts if status is not None else None,
            "headroom_watts": finite(status.headroom_watts) if status is not None else None,
            "idle_watts": status.idle_watts if status is not None else None,
            "floor_watts": status.floor_watts if status is not None else None,
            "shortfall_watts": status.shortfall_watts if status is not None else 0.0,
            "nodes": status.nodes if status is not None else 0,
            "silent_nodes": status.silent_nodes if status is not None else 0,
            "distrusted_nodes": status.distrusted_nodes if status is not None else 0,
            "unmeasured_nodes": status.unmeasured_nodes if status is not None else 0,
            "held_jobs": len(parts.admission_report.waiting) if scope == "cluster" else None,
            "plan": [
                {"unix_s": step.unix_s, "watts": finite(step.watts)}
                for step in limits.steps(name, now, hours)
            ],
        }

    def _jobs(self, cycle: BudgetCycle, is_visible: Callable[[int], bool]) -> list[BudgetJobObject]:
        parts = self._required().parts
        known = parts.inputs.jobs if parts is not None else {}
        rows: list[BudgetJobObject] = []
        for job_id, status in sorted(cycle.jobs.items()):
            if not is_visible(job_id):
                continue
            job = known.get(job_id)
            rows.append(
                {
                    "job_id": job_id,
                    "user": job.user if job is not None else "",
                    "partition": job.partition if job is not None else "",
                    "nodes": status.nodes,
                    "measured_watts": status.measured_watts,
                    "committed_watts": status.committed_watts,
                    "wanted_watts": status.wanted_watts,
                    "budget": status.budget,
                    "keeps_slowdown": status.keeps_slowdown if status.has_slowdown_limit else None,
                    "explanation": status.explanation,
                }
            )
        return rows


def _delaying_budget(loop: BudgetLoop, waiting: str | None) -> str | None:
    """Return the name of the budget that delays the start of a pending job.

    The result is the budget that the text `waiting` names, or else the first budget of the whole cluster. It
    is None if the job does not wait for power.
    """
    if not waiting or loop.parts is None:
        return None
    limits = loop.parts.limits
    named = (name for name in limits.names if f"budget '{name}'" in waiting)
    return next(named, next((name for name in limits.names if limits.table(name).cluster), None))


def _refuse_too_low(name: str, watts: float, status: BudgetStatus | None) -> None:
    if status is not None and watts < status.idle_watts:
        why = f"{watts:.0f} W is below the {status.idle_watts:.0f} W that it draws without any job"
        raise UsageError(f"budget '{name}'", why, f"set {math.ceil(status.idle_watts)} W or more")


def _warning(watts: float, status: BudgetStatus | None) -> str:
    if status is None or watts >= status.floor_watts:
        return ""
    lacking = status.floor_watts - watts
    return (
        f"running jobs keep {status.floor_watts:.0f} W at their floors, {lacking:.0f} W more than the limit; "
        "no job starts until enough of them have ended"
    )


def _change_text(change: LimitChange, previous: float, watts: float) -> str:
    action = "limit set" if change.watts is not None else "configured limit again"
    text = f"{action}: {_watts_text(watts)} instead of {_watts_text(previous)}"
    return f"{text} ({change.reason})" if change.reason else text


def _watts_text(watts: float) -> str:
    return f"{watts:.0f} W" if math.isfinite(watts) else "no limit"
