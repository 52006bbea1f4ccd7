"""Advice that senergyctld gives to agents about the tuning of jobs.

The advice consists of response curves (time and power of a program at settings), of settings that were fixed
by hand (pins), and of the settings with which jobs start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection

from slurm_energy.accounting.history import tuning_runs, tuning_starts
from slurm_energy.accounting.history.tuning_runs import StoredRun
from slurm_energy.accounting.history.tuning_starts import IssuedStart, JobRun, Pin, Program
from slurm_energy.config import Config
from slurm_energy.controller.http.node_hosts import NodeHosts, Sender, check_sender
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.running_jobs import RunningJobCache
from slurm_energy.controller.tuning.oracle_calibrations import site_calibrations
from slurm_energy.errors import EnergyError, ForbiddenError, NotFoundError, UsageError
from slurm_energy.protocol.tuning_advice import AdviceRequest
from slurm_energy.quantities import shown
from slurm_energy.slurm.queue.running_jobs import AllocatedJob
from slurm_energy.slurm.script_fingerprint import FINGERPRINT_FORM
from slurm_energy.tuning.learned_run import LearnedRun
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.program_curve import program_curve, site_curves
from slurm_energy.tuning.recurring_start import RecurringStart, recurring_start
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve
from slurm_energy.user_lookup import name_of

PINNED: Final = "pinned"
OFF: Final = "off"
ADVISE: Final = "advise"
EARLIER_RUNS: Final = CurveSource.EARLIER_RUNS.value
_RUNNING_MAX_AGE_S: Final = 2.0
_MAX_FINGERPRINTS: Final = 10_000
CurveOracle = Callable[[str, str], ResponseCurve | None]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Knowledge:
    """What the database knows about a program when one of its jobs starts.

    Attributes:
        pin: operating point that a user or operator fixed for the program; None means that the program has
            no pin.
        issued: operating point with which the controller has already told this job to start, in an earlier
            response; None if there was none.
        runs: earlier runs of the program, oldest first.
        of_site: runs of the reference kernels (compute kernels) with which the site characterised the
            hardware, by class of reference kernel.
    """

    pin: Pin | None = None
    issued: IssuedStart | None = None
    runs: list[LearnedRun] = field(default_factory=list)
    of_site: dict[str, list[LearnedRun]] = field(default_factory=dict)


class TuningAdvisor:
    """Adviser of the agents about the tuning of jobs.

    Args:
        config: returns the current configuration.
        store: the database.
        hosts: addresses of nodes; None means that any agent may speak for any node.
        running: cache of the running jobs in Slurm.
        oracle: predictor that returns the response curve of a model (`--energy-model`) on a kind of
            hardware; the curve is None if it is unknown.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        hosts: NodeHosts | None,
        running: RunningJobCache,
        oracle: CurveOracle | None = None,
    ) -> None:
        self.oracle = oracle
        self._config, self._store = config, store
        self._hosts, self._running = hosts, running
        self._fingerprints: dict[JobRun, str] = {}

    async def advise(self, request: AdviceRequest, sender: Sender) -> dict[str, Any]:
        """Return the advice about a job.

        Raises:
            ForbiddenError: the sender or the job does not run on the node.
            NotFoundError: Slurm does not run the job.
            UnavailableError: Slurm or the database does not answer.
            UsageError: the objective is unknown.
        """
        objective = _objective(request)
        job = await self.verified_job(request.node, request.job_id, request.restart_count, sender)
        owner = await asyncio.to_thread(name_of, job.uid) or str(job.uid)
        run = JobRun(self._config().cluster.name, job.job_id, job.restart_count)
        fingerprint, model = self.fingerprint(run, job, request.fingerprint), _model(job, request)
        known = await self._store.read(_load, run, owner, request.hardware, fingerprint, model)
        settings = self._config().tuning
        mode = settings.partition.get(job.partition, settings.mode)
        workload = fingerprint or model
        start = None
        if known.pin is not None:
            start = _issued(known.pin.program, json.loads(known.pin.point), PINNED)
        elif workload is not None and objective is not None and mode != OFF:
            program = Program(owner, workload, request.hardware)
            start = known.issued
            if start is None and (recommended := await _recommend(run, known, request, objective)):
                settled = _issued(program, recommended.fallback.to_json(), EARLIER_RUNS)
                start = settled
                if ADVISE not in (mode, request.mode):
                    start = await self._assign(run, program, recommended, settled)
        curve, of_site = await asyncio.to_thread(self._curves, known, request.hardware, workload, model)
        told = {"start": None, "source": ""} if start is None else json.loads(start.body)
        return {
            "fingerprint": fingerprint,
            "workload": workload,
            "mode": mode,
            "curve": curve and curve.to_json(),
            "site_curves": [one.to_json() for one in of_site],
            "start": told["start"],
            "start_source": told["source"],
            "exploration": start is not None and start.exploration,
            "pinned": known.pin is not None,
        }

    async def verified_job(self, node: str, job_id: int, restart_count: int, sender: Sender) -> AllocatedJob:
        """Return the run of a job after a check of the sender.

        The agent that sent the request must run on a node of the job.

        Args:
            node: Slurm's name of the node.
            job_id: Slurm's job id.
            restart_count: number of earlier requeues of the job.
            sender: addresses of the agent's host.

        Raises:
            ForbiddenError: the sender or the job does not run on the node.
            NotFoundError: Slurm does not run the job.
            UnavailableError: Slurm does not answer.
        """
        await check_sender(self._hosts, node, sender, self._config().controller.record_hosts)
        job = await self._running.find(job_id, restart_count)
        if job is None:
            raise NotFoundError(f"job {job_id}", "Slurm runs no such job")
        if node not in job.nodes:
            raise ForbiddenError(f"job {job.job_id}", f"it does not run on node {shown(node)}")
        return job

    async def is_running(self, job_id: int, uid: int) -> bool:
        """Return whether Slurm runs a job with this id and user.

        The result is False if Slurm does not answer.
        """
        try:
            job = (await self._running.read(_RUNNING_MAX_AGE_S)).get(job_id)
        except EnergyError:
            return False
        return job is not None and job.uid == uid

    def fingerprint(self, run: JobRun, job: AllocatedJob, reported: str | None) -> str | None:
        """Return the fingerprint of a job, which identifies its program in the history.

        The fingerprint is taken from the flags of the job in Slurm. If the flags do not contain it, the
        fingerprint that a node of the job has reported is returned. Only the node that runs the batch script
        knows and reports the fingerprint. The method remembers it for the other nodes of the job, which
        request advice later.

        Args:
            run: run of the job.
            job: the job in Slurm.
            reported: fingerprint that the requesting node reports; None if it reports none.
        """
        noted = job.flags.get("ENERGY_FINGERPRINT", "")
        if FINGERPRINT_FORM.fullmatch(noted):
            return noted
        if reported is not None:
            if len(self._fingerprints) >= _MAX_FINGERPRINTS:
                self._fingerprints.clear()
            self._fingerprints.setdefault(run, reported)
        return self._fingerprints.get(run)

    async def _assign(
        self, run: JobRun, program: Program, recommended: RecurringStart, settled: IssuedStart
    ) -> IssuedStart:
        """Return the operating point with which a tuned job starts.

        If no starting point has been stored for the job, one is chosen and stored.

        Args:
            run: the run of the job.
            program: the program of the job.
            recommended: starting point that follows from the earlier runs. It may be a trial point: a point
                that is tried in order to learn the program's response.
            settled: starting point that is not a trial point. It is stored instead of `recommended` if
                another run of the program is already using a trial point.
        """
        point = recommended.point.to_json()
        start = _issued(program, point, EARLIER_RUNS, exploration=recommended.exploration)
        running = self._running.job_ids
        return await self._store.write(tuning_starts.store_start, run, start, settled, running, time.time())

    def _curves(
        self, known: _Knowledge, hardware: str, workload: str | None, model: str | None
    ) -> tuple[ResponseCurve | None, list[ResponseCurve]]:
        """Return the response curve of a program, and the site's own curves for the hardware.

        A response curve states relative time and power at different settings. The program's curve is learned
        from its earlier runs. If there are no such runs and the model is known, the curve comes from the
        predictor (oracle). The site's curves were measured with reference kernels.
        """
        curve = program_curve(known.runs, hardware, workload) if workload else None
        if curve is None and model is not None and self.oracle is not None:
            curve = self.oracle(model, hardware)
        return curve, site_curves(known.of_site, hardware)


def curve_oracle(config: Config) -> CurveOracle | None:
    """Return a function that predicts the response curve of a model on a kind of hardware.

    The prediction is that of the predictor (oracle). The result is None if numpy is missing.

    Raises:
        ConfigError: a file named in section oracle is invalid.
    """
    try:
        from slurm_energy.tuning.oracle_curve import oracle_curve

        site = site_calibrations(config)
    except ImportError:
        return None
    return lambda model, hardware: oracle_curve(model, hardware, site.of)


def parse_run(stored: StoredRun) -> LearnedRun | None:
    """Parse a stored run from which tuning learns.

    The result is None if this release of senergyctld cannot read the run.
    """
    try:
        return LearnedRun.from_json(stored.body)
    except EnergyError as error:
        log.warning("a stored run of tuning cannot be read: %s", error)
        return None


def _objective(request: AdviceRequest) -> Objective | None:
    if request.objective is None:
        if request.slowdown_limit is not None:
            raise UsageError("slowdown_limit", "given without an objective")
        return None
    return Objective(request.objective, request.slowdown_limit)


def _model(job: AllocatedJob, request: AdviceRequest) -> str | None:
    return job.flags.get("ENERGY_MODEL") or request.model


def _load(
    connection: Connection,
    run: JobRun,
    owner: str,
    hardware: str,
    fingerprint: str | None,
    model: str | None,
) -> _Knowledge:
    names = [name for name in (fingerprint, model) if name is not None]
    stored = tuning_runs.runs_of(connection, owner, hardware, fingerprint=fingerprint, model=model)
    known = _Knowledge(
        tuning_starts.pin_of(connection, owner, hardware, names),
        tuning_starts.issued_start(connection, run, hardware),
        [parsed for one in stored if (parsed := parse_run(one)) is not None],
    )
    for one in tuning_runs.site_runs(connection, hardware):
        if (parsed := parse_run(one)) is not None:
            known.of_site.setdefault(one.workload, []).append(parsed)
    return known


async def _recommend(
    run: JobRun, known: _Knowledge, request: AdviceRequest, objective: Objective
) -> RecurringStart | None:
    """Return the operating point with which tuning of a job should start, from earlier runs.

    The result is None if the earlier runs recommend no operating point.
    """
    return await asyncio.to_thread(
        recurring_start,
        known.runs,
        objective,
        (run.job_id, run.restart_count),
        watts=request.watts,
        gpu_watts=request.gpu_watts,
    )


def _issued(
    program: Program, point: dict[str, Any], source: str, *, exploration: bool = False
) -> IssuedStart:
    return IssuedStart(program, exploration, json.dumps({"start": point, "source": source}))
