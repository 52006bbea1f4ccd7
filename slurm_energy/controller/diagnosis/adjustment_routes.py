"""HTTP routes about adjustments, which are changes of settings of a user's program.

Users use `/v1/adjustments`; agents use `/v1/adjustments/values`. Users apply, permit and undo adjustments of
their own programs only. Operators see the adjustments of all users.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, select

from slurm_energy.accounting import adjustments
from slurm_energy.accounting.adjustments import KEPT, PENDING, OfferedRun
from slurm_energy.accounting.history.tuning_starts import JobRun
from slurm_energy.accounting.records import record_queries
from slurm_energy.accounting.records.record_selection import JobSelector, RecordSelection, Visibility
from slurm_energy.accounting.schema.tables import records
from slurm_energy.adjustment_permissions import AdjustmentPermissions
from slurm_energy.config import Config
from slurm_energy.controller.diagnosis.adjusted_programs import (
    AdjustedProgram,
    plain_values,
    program_part,
    submission_values,
    trial_json,
)
from slurm_energy.controller.diagnosis.adjustment_trials import AdjustmentTrials
from slurm_energy.controller.diagnosis.run_diagnosis import DiagnosableRun
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.node_hosts import Sender
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.tuning.advisor import TuningAdvisor
from slurm_energy.errors import NotFoundError, UnavailableError, UsageError
from slurm_energy.protocol.adjustment_requests import ADJUSTMENTS_PATH, ValuesRequest
from slurm_energy.protocol.query_parameters import refuse_unknown

APPLY: Final = "apply"
"""Source of the trials that users start."""
UNDONE: Final = "undone"
MAX_SUBMISSIONS_PER_HOUR: Final = 1000
"""Submissions with adjustments that a user may report in an hour."""
_MAX_JOB_ID: Final = 2**32
_HOUR_S: Final = 3600


class AdjustmentRoutes:
    """Handlers of the routes about adjustments. The caller has been identified.

    Args:
        config: returns the current configuration.
        store: the database.
        trials: trials of adjustments of all programs.
        advisor: checks whether a job runs on an agent's node, and knows the programs of running jobs.
        clock: returns Unix seconds.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        trials: AdjustmentTrials,
        advisor: TuningAdvisor,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._store, self._trials = config, store, trials
        self._advisor, self._clock = advisor, clock
        self._hour, self._submissions = 0, Counter[int]()

    @property
    def routes(self) -> RouteGroup:
        """The HTTP routes that users may use."""
        changes = {"permit": self.permit, "undo": self.undo, "submitted": self.submitted}
        return RouteGroup(
            costly={ADJUSTMENTS_PATH: self.show},
            changes={f"{ADJUSTMENTS_PATH}/{name}": change for name, change in changes.items()},
            costly_changes={f"{ADJUSTMENTS_PATH}/apply": self.apply},
        )

    async def values(self, query: Mapping[str, str], sender: Sender) -> dict[str, Any]:
        """Return the response to `GET /v1/adjustments/values`, the agent's request for a job's values.

        The values are adjustments of the program that are tried or in force, such as the number of loader
        processes.

        Raises:
            ForbiddenError: the sender or the job does not run on the node.
            NotFoundError: Slurm does not run the job.
            UnavailableError: Slurm or the database does not answer.
        """
        request = ValuesRequest.from_query(query)
        job = await self._advisor.verified_job(request.node, request.job_id, request.restart_count, sender)
        run = JobRun(self._config().cluster.name, job.job_id, job.restart_count)
        fingerprint = self._advisor.fingerprint(run, job, request.fingerprint)
        workload = fingerprint or job.flags.get("ENERGY_MODEL") or request.model
        if workload is None:
            return {"known": False, "values": {}}
        program = AdjustedProgram(run.cluster, job.uid, workload)
        in_force = plain_values(await self._trials.effective(program))
        requested = frozenset(kind.value for kind in request.requested)
        offered = OfferedRun(
            run, job.uid, workload, in_force.trial, False, in_force.values, requested, self._clock()
        )
        earlier = await self._store.read(adjustments.offered_run, run, job.uid)
        if earlier is not None and requested <= earlier.requested:
            offered = earlier
        else:
            offered = await self._store.write(adjustments.offer, offered)
        return {"known": True, "values": program_part(offered.offered)}

    async def show(self, query: Mapping[str, str], rights: Rights) -> dict[str, Any]:
        """Return the response to `GET /v1/adjustments`: proposals for a job, permissions and trials.

        Raises:
            NotFoundError: the caller has no such job.
            UsageError: a parameter is unknown or malformed.
        """
        refuse_unknown(query, ("job", "permit"))
        cluster = self._config().cluster.name
        saved = await self._trials.permissions(cluster, rights.uid)
        answer: dict[str, Any] = {"permissions": None if saved is None else saved.text}
        if "job" not in query:
            owner = None if rights.everything else rights.uid
            trials = await self._store.read(adjustments.trials_of, cluster, owner)
            return answer | {
                "scope": "all" if rights.everything else "own",
                "trials": [trial_json(trial) for trial in trials],
            }
        program, _, observed = await self._observed(query["job"], rights)
        permissions = _given(query.get("permit")) or saved or AdjustmentPermissions.everything()
        trials = await self._trials.of_program(program)
        in_force = submission_values(await self._trials.effective(program))
        return answer | {
            "scope": "own",
            "job": observed.figures.job,
            "workload": program.workload,
            "proposals": [one.to_json() for one in await self._trials.proposals(observed, permissions)],
            "trials": [trial_json(trial) for trial in trials],
            "values": dict(in_force.values),
            "options": in_force.sbatch_options,
        }

    async def apply(self, body: Mapping[str, Any], rights: Rights) -> dict[str, Any]:
        """Start a trial of changed values, such as another number of loader processes, for a program.

        The program is that of one of the caller's jobs. The trial changes the next runs of the program. It
        uses the best of the advised changes that the caller permits.

        Raises:
            NotFoundError: the caller has no such job, or the advice about the job contains no permitted
                adjustment.
            UsageError: the caller permits no adjustments, or the job cannot be compared with later runs.
        """
        job, permit = _texts(body, "job", "permit")
        if job is None:
            raise UsageError("job", "is missing")
        saved = await self._trials.permissions(self._config().cluster.name, rights.uid)
        permissions = _given(permit) or saved
        if permissions is None:
            raise UsageError("adjustments", "none is permitted", "give --permit, such as workers=0..16")
        program, run, observed = await self._observed(job, rights)
        proposals = await self._trials.proposals(observed, permissions)
        if not proposals:
            todo = "senergy diagnose shows the advice, --permit permits more"
            raise NotFoundError(f"job {observed.figures.job}", "no advice is permitted", todo)
        slowdown = permissions.slowdown_percent
        trial = await self._trials.start(program, run, observed, proposals[0], slowdown, APPLY)
        return {"trial": trial_json(trial), "further_proposals": len(proposals) - 1}

    async def permit(self, body: Mapping[str, Any], rights: Rights) -> dict[str, Any]:
        """Store which adjustments of a user's programs the caller permits.

        An adjustment is a value that the diagnosis advises for the next run of a program. The permissions
        also apply to jobs with policy `auto`.

        Raises:
            UsageError: the text that names the adjustments is malformed.
        """
        (permit,) = _texts(body, "permit")
        if permit is None:
            raise UsageError("permit", "is missing")
        permissions = AdjustmentPermissions.parse(permit)
        cluster = self._config().cluster.name
        await self._store.write(
            adjustments.set_permissions, cluster, rights.uid, permissions.text, self._clock()
        )
        limited = permissions.within(self._config().diagnosis.site_limits)
        return {"permissions": permissions.text, "within_site_limits": limited.text}

    async def undo(self, body: Mapping[str, Any], rights: Rights) -> dict[str, Any]:
        """Undo the adjustments of a program, both pending and kept ones.

        The caller names one of the caller's own jobs. The program is that of this job.

        Raises:
            NotFoundError: the caller has no such job, or no adjustment of that job's program is in force.
        """
        (job,) = _texts(body, "job")
        if job is None:
            raise UsageError("job", "is missing")
        run = await self._own_run(job, rights)
        program = self._program_of(run, await self._trials.observed(run, rights.uid))
        undone = []
        for trial in await self._trials.of_program(program):
            if trial.state in (PENDING, KEPT) and await self._store.write(
                adjustments.decide_trial, trial.key, UNDONE, self._clock()
            ):
                undone.append(trial_json(trial._replace(state=UNDONE)))
        if not undone:
            raise NotFoundError(f"job {job}", "no adjustment of its program is in force")
        return {"undone": undone}

    async def submitted(self, body: Mapping[str, Any], rights: Rights) -> dict[str, Any]:
        """Record that the caller has submitted a job with the sbatch options that slurm-energy adjusted.

        The adjustments are those stored for a program of the caller. If the run later turns out to belong to
        another user or program, the recorded job is ignored.

        Raises:
            NotFoundError: the caller has no such program.
        """
        job_id, workload = body.get("job_id"), body.get("workload")
        if not isinstance(job_id, int) or isinstance(job_id, bool) or not 0 < job_id < _MAX_JOB_ID:
            raise UsageError("job_id: not a job id")
        if not isinstance(workload, str) or len(body) != 2:
            raise UsageError("submitted: it has job_id and workload")
        program = AdjustedProgram(self._config().cluster.name, rights.uid, workload)
        trials = await self._trials.effective(program)
        if not trials:
            raise NotFoundError("program", "it has no adjustments")
        self._count_submission(rights.uid)
        in_force = submission_values(trials)
        run = JobRun(program.cluster, job_id, 0)
        offered = OfferedRun(
            *(run, rights.uid, workload, in_force.trial, True, in_force.values),
            requested=frozenset(),
            created=self._clock(),
        )
        stored = await self._store.write(adjustments.offer, offered)
        if not stored.submitted:
            raise UsageError(f"job {job_id}", "its program requested values before")
        return {"job_id": job_id, "values": dict(stored.offered), "trial": stored.trial}

    def _count_submission(self, uid: int) -> None:
        """Count the submissions that a user reports, and refuse more than a maximum per hour.

        Each reported submission adds a row to the database, even if its job does not exist yet.

        Raises:
            UnavailableError: the user has reported too many submissions in this hour.
        """
        hour = int(self._clock() // _HOUR_S)
        if hour != self._hour:
            self._hour = hour
            self._submissions.clear()
        if self._submissions[uid] >= MAX_SUBMISSIONS_PER_HOUR:
            why = f"more than {MAX_SUBMISSIONS_PER_HOUR} submissions with adjustments in an hour"
            raise UnavailableError("submitted", why, "try again in an hour")
        self._submissions[uid] += 1

    async def _observed(self, job: str, rights: Rights) -> tuple[AdjustedProgram, JobRun, DiagnosableRun]:
        """Return the last run of one of the caller's jobs.

        The result includes the program of the job and the data for a diagnosis.
        """
        run = await self._own_run(job, rights)
        observed = await self._trials.observed(run, rights.uid)
        return self._program_of(run, observed), run, observed

    @staticmethod
    def _program_of(run: JobRun, observed: DiagnosableRun) -> AdjustedProgram:
        if observed.workload is None:
            why = "it has neither a batch script nor --energy-model: its next run cannot be recognised"
            raise UsageError(f"job {observed.figures.job}", why, "submit it with sbatch")
        return AdjustedProgram(run.cluster, observed.usage.first.uid, observed.workload)

    async def _own_run(self, job: str, rights: Rights) -> JobRun:
        """Return the last run of one of the caller's jobs.

        Raises:
            NotFoundError: the caller has no such job.
            UsageError: the text names several jobs, or the first run of the job has not ended.
        """
        selector = await asyncio.to_thread(JobSelector.parse, job)
        selection = RecordSelection(
            jobs=(selector,), omit_others=True, visible=Visibility(rights.uid, frozenset())
        )
        runs = await self._store.read(_runs, selection, self._config().cluster.name)
        if not runs:
            if await self._advisor.is_running(selector.base, rights.uid):
                why = "it is still running: adjustments need the record of an ended run"
                raise UsageError(
                    f"job {selector.text}", why, "try again after its end, or name an earlier run"
                )
            todo = "adjustments apply to your own jobs"
            raise NotFoundError(f"job {selector.text}", "you have no energy record of it", todo)
        if len({run.job_id for run in runs}) > 1:
            raise UsageError(f"job {selector.text}", "it has several tasks", "name one task")
        return max(runs, key=lambda run: run.restart_count)


def _runs(connection: Connection, selection: RecordSelection, cluster: str) -> list[JobRun]:
    ids = record_queries.find_records(connection, selection)
    columns = records.c
    query = select(*columns["cluster", "job_id", "restart_count"])
    rows = connection.execute(query.where(columns.id.in_(ids[:1000]), columns.cluster == cluster))
    return [JobRun(*row) for row in rows]


def _given(permit: str | None) -> AdjustmentPermissions | None:
    return None if permit is None else AdjustmentPermissions.parse(permit)


def _texts(body: Mapping[str, Any], *names: str) -> list[str | None]:
    """Return the named texts of a request body; None means that the body does not contain the name.

    Raises:
        UsageError: the body contains another key, or a value that is not a text.
    """
    for key, value in body.items():
        if key not in names or not isinstance(value, str | None):
            raise UsageError(f"unknown key or bad value: '{key[:40]!r}'")
    return [body.get(name) for name in names]
