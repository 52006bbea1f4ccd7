"""Inputs of the budget engine: nodes, jobs, accounts and response curves.

The inputs come from Slurm and from earlier runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from slurm_energy.accounting.history import tuning_runs
from slurm_energy.accounting.history.tuning_runs import StoredRun
from slurm_energy.config import Config
from slurm_energy.controller.budgets.budget_limits import BudgetLimits, node_reserves
from slurm_energy.controller.budgets.facts import BudgetedJob, BudgetedNode
from slurm_energy.controller.budgets.pending_power import ProgramKey, program_key
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.running_jobs import RunningJobCache
from slurm_energy.controller.tuning.advisor import CurveOracle, parse_run
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.fair_share import read_shares
from slurm_energy.slurm.queue.node_resources import read_nodes
from slurm_energy.slurm.queue.running_jobs import AllocatedJob
from slurm_energy.tuning.program_curve import program_curve
from slurm_energy.tuning.response_curve import ResponseCurve
from slurm_energy.user_lookup import name_of

JOBS_AGE_S: Final = 30.0
NEW_JOB_AGE_S: Final = 2.0
"""Age after which the jobs are read again because a node reports a job that is missing among them."""
NODES_AGE_S: Final = 60.0
ACCOUNTS_AGE_S: Final = 600.0
_RETRY_S: Final = 10.0
_MAX_CURVES: Final = 20_000
CURVES_AGE_S: Final = 600.0
"""Age after which the response curves of pending jobs are looked up again."""
_MAX_PENDING_CURVES: Final = 200  # per refresh; other curves follow later
CurveKey = tuple[int, int, str]


class BudgetInputs:
    """Reader of nodes, jobs and accounts for the budget engine.

    While Slurm does not answer, the last values that were read remain.

    Args:
        store: the database, with the runs from which programs were learned.
        running: cache of the running jobs in Slurm.
        run: runs Slurm's commands.
        failures: log of failures; a repeated failure is logged once.
        oracle: returns the predictor of response curves, or None if there is no predictor. A response curve
            states time and power at different power limits. The predictor maps a model and a kind of
            hardware to a curve.

    Attributes:
        allocated: running jobs by id, as Slurm describes them.
        jobs: running jobs by id, in the form that the engine needs.
        nodes: nodes by name.
        programs: programs of pending jobs. `refresh` looks up their response curves.
        pending_curves: the known response curves of `programs`.
        off_watts: measured power by node, for nodes that are off. Other nodes count at
            `power_saving.off_watts` while they are off.
    """

    def __init__(
        self,
        store: Store,
        running: RunningJobCache,
        run: Runner,
        failures: RepeatedFailureLog,
        oracle: Callable[[], CurveOracle | None],
    ) -> None:
        self._store, self._running, self._run, self._failures = store, running, run, failures
        self._oracle = oracle
        self.off_watts: Mapping[str, float] = {}
        self._users: dict[int, str] = {}
        self._curves: dict[CurveKey, ResponseCurve | None] = {}
        self._next_s: dict[str, float] = {}
        self.allocated: Mapping[int, AllocatedJob] = {}
        self.jobs: Mapping[int, BudgetedJob] = {}
        self.nodes: Mapping[str, BudgetedNode] = {}
        self.programs: frozenset[ProgramKey] = frozenset()
        self.pending_curves: Mapping[ProgramKey, ResponseCurve] = {}
        self._looked_up: dict[ProgramKey, ResponseCurve | None] = {}

    async def refresh(
        self,
        config: Config,
        limits: BudgetLimits,
        kinds: Mapping[int, frozenset[str]],
        unknown: frozenset[tuple[int, int]],
    ) -> None:
        """Read again the inputs that are out of date.

        Args:
            config: the configuration.
            limits: limits of the budgets. If a budget needs the tree of accounts, this call stores the tree
                in `limits`.
            kinds: kinds of devices by job id, as nodes report them.
            unknown: jobs (id, restart count) that nodes report and that are missing in the attribute `jobs`.
        """
        if self._is_due("nodes", NODES_AGE_S):
            await self._guarded("nodes", self._read_nodes(config))
        if limits.needs_accounts and self._is_due("accounts", ACCOUNTS_AGE_S):
            await self._guarded("accounts", self._read_accounts(config, limits))
        await self._guarded("jobs", self._read_jobs(NEW_JOB_AGE_S if unknown else JOBS_AGE_S, kinds))
        await self._guarded("curves of pending jobs", self._find_pending_curves())

    def _is_due(self, what: str, interval_s: float) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_s.get(what, 0.0):
            return False
        self._next_s[what] = now_s + interval_s
        return True

    async def _guarded(self, what: str, reading: Coroutine[Any, Any, None]) -> None:
        """Run a function that reads one input.

        After a failure the last values stay, and a retry follows soon.
        """
        subject = f"power budgets: {what}"
        try:
            await reading
        except EnergyError as error:
            self._failures.report(subject, str(error))
            self._next_s[what] = time.monotonic() + _RETRY_S
        else:
            self._failures.clear(subject)

    async def _read_nodes(self, config: Config) -> None:
        nodes = await asyncio.to_thread(read_nodes, self._run)
        reserves = node_reserves(config)
        measured, saving = self.off_watts, config.power_saving
        self.nodes = {
            node.name: BudgetedNode(
                node.partitions,
                reserve_watts=reserves.get(node.name),
                is_off=node.is_off,
                off_watts=measured.get(node.name, saving.off_watts),
                boot_watts=saving.boot_watts if node.is_booting else None,
            )
            for node in nodes
        }
        if any(node.is_off or node.is_booting for node in nodes):
            self._next_s["nodes"] = time.monotonic() + _RETRY_S  # a node that starts must count soon

    async def _read_accounts(self, config: Config, limits: BudgetLimits) -> None:
        tree = await asyncio.to_thread(read_shares, self._run, config.cluster.name)
        limits.set_parents(tree.parents)

    async def _read_jobs(self, max_age_s: float, kinds: Mapping[int, frozenset[str]]) -> None:
        self.allocated = await self._running.read(max_age_s)
        await asyncio.to_thread(self._find_users)
        await self._find_curves(kinds)
        now = time.time()
        self.jobs = {
            job_id: self._job(job, kinds.get(job_id, frozenset()), now)
            for job_id, job in self.allocated.items()
        }

    def _find_users(self) -> None:
        uids = {job.uid for job in self.allocated.values()}
        self._users = {uid: self._users.get(uid) or name_of(uid) or str(uid) for uid in uids}

    def _job(self, job: AllocatedJob, kinds: frozenset[str], now: float) -> BudgetedJob:
        slack_s = None
        if job.deadline_unix_s is not None:
            slack_s = job.deadline_unix_s - max(now, job.end_unix_s or now)
        curves = {kind: self._curves.get((job.job_id, job.restart_count, kind)) for kind in kinds}
        return BudgetedJob(
            job_id=job.job_id,
            restart_count=job.restart_count,
            user=self._users.get(job.uid, str(job.uid)),
            account=job.account,
            partition=job.partition,
            qos=job.qos,
            nodes=job.nodes,
            deadline_s=slack_s,
            curves={kind: curve for kind, curve in curves.items() if curve is not None},
        )

    async def _find_curves(self, kinds: Mapping[int, frozenset[str]]) -> None:
        """Look up the response curves of jobs that have none yet.

        A response curve states how the run time depends on the power limit. The method looks up one curve
        for each pair of a job and a kind of device.
        """
        wanted = {
            (job_id, self.allocated[job_id].restart_count, kind): self.allocated[job_id]
            for job_id, of_job in kinds.items()
            if job_id in self.allocated
            for kind in of_job
        }
        self._curves = {key: curve for key, curve in self._curves.items() if key in wanted}
        new = {key: job for key, job in wanted.items() if key not in self._curves}
        for key, job in list(new.items())[:_MAX_CURVES]:
            self._curves[key] = await self._curve(job, key[2])

    async def _curve(self, job: AllocatedJob, kind: str) -> ResponseCurve | None:
        key = program_key(self._users.get(job.uid, str(job.uid)), job.flags, kind)
        return None if key is None else await self._program_curve(key)

    async def _find_pending_curves(self) -> None:
        """Look up the response curves of the programs of pending jobs in the database.

        From time to time, every program is looked up again, because its response curve may have been learned
        in the meantime.
        """
        programs = self.programs
        if self._is_due("pending curves", CURVES_AGE_S):
            self._looked_up.clear()
        self._looked_up = {key: curve for key, curve in self._looked_up.items() if key in programs}
        for key in [key for key in programs if key not in self._looked_up][:_MAX_PENDING_CURVES]:
            self._looked_up[key] = await self._program_curve(key)
        self.pending_curves = {key: curve for key, curve in self._looked_up.items() if curve is not None}

    async def _program_curve(self, program: ProgramKey) -> ResponseCurve | None:
        owner, known, model, kind = program
        runs = await self._store.read(_learned_runs, owner, kind, known, model)
        workload = known or model or ""
        curve = await asyncio.to_thread(_program_curve, runs, kind, workload) if runs else None
        oracle = self._oracle()
        if curve is None and model is not None and oracle is not None:
            curve = await asyncio.to_thread(oracle, model, kind)
        return curve


def _learned_runs(
    connection: Connection, owner: str, kind: str, fingerprint: str | None, model: str | None
) -> list[StoredRun]:
    return tuning_runs.runs_of(connection, owner, kind, fingerprint=fingerprint, model=model)


def _program_curve(stored: Sequence[StoredRun], kind: str, workload: str) -> ResponseCurve | None:
    runs = [run for run in map(parse_run, stored) if run is not None]
    return program_curve(runs, kind, workload)
