"""Diagnosis of the jobs that still run on a node, for the node's live reports.

A job is diagnosed from the observations of this node alone. Findings that compare nodes are therefore made
only after the end of the job. The data are copied in the worker thread of the job manager, and diagnosed in
a separate thread.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.agent.jobs.job_records import running_record
from slurm_energy.agent.jobs.sessions import OPEN, Session, SessionTable
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.agent.signals.step_reports import StepReports
from slurm_energy.config import Config
from slurm_energy.diagnosis.live_finding import LiveFinding, live_findings
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.signals import ObservedSeries
from slurm_energy.log_once import UnexpectedErrorLog
from slurm_energy.records import EnergyRecord

log = logging.getLogger(__name__)

MAX_CPU_SHARE: Final = 0.005
"""Maximum share of one core that the diagnosis may take. It runs less often if it costs more."""
MAX_JOBS: Final = 64
"""Jobs that are diagnosed at a time; the others follow with the next pass."""
_OFF_PAUSE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RunningObservation:
    """Observation of a running job on this node.

    Attributes:
        key: job id and restart count.
        record: energy record of the job, with the energy so far.
        series: recorded signals of the job.
        reports: steps (iterations) of the program that the job's processes have reported.
    """

    key: tuple[int, int]
    record: EnergyRecord
    series: tuple[ObservedSeries, ...]
    reports: StepReports


class LiveDiagnosis:
    """Object that diagnoses the running jobs of a node.

    Args:
        sessions: sessions of the running jobs.
        clock: the machine's clock.
        config: returns the current configuration.
    """

    def __init__(self, sessions: SessionTable, clock: Clock, config: Callable[[], Config]) -> None:
        self._sessions, self._clock, self._config = sessions, clock, config
        self._last: tuple[int, int] = (0, 0)

    def observed(self) -> list[RunningObservation]:
        """Return observations of at most `MAX_JOBS` jobs, in the order of the job ids.

        If there are more jobs with observed data, the next call continues with the following jobs.
        """
        keys = sorted(session.key for session in self._sessions.values() if _is_observed(session))
        due = [key for key in keys if key > self._last] + [key for key in keys if key <= self._last]
        chosen = due[:MAX_JOBS]
        if chosen:
            self._last = chosen[-1]
        boottime = self._clock.boottime()
        sessions = [session for key in chosen if (session := self._sessions.get(key)) is not None]
        return [_copied(session, session.unix_at(boottime)) for session in sessions]

    def diagnose(self, run: RunningObservation) -> tuple[LiveFinding, ...]:
        """Return the findings of a job so far. Any thread may call this method."""
        from slurm_energy.diagnosis.diagnose import find_causes
        from slurm_energy.reports.diagnosis.input import observation_of
        from slurm_energy.reports.usage import AccountedRecord, JobInfo, summarise

        (job,) = summarise([AccountedRecord(run.record, JobInfo(state="RUNNING"))])
        node = run.record.node
        ranks, _ = run.reports.ranks(node)
        config = self._config()
        observation = observation_of(job, [NodeObservation(node, run.series, tuple(ranks))], config)
        return live_findings(find_causes(observation, config.diagnosis))

    def store(self, key: tuple[int, int], findings: tuple[LiveFinding, ...]) -> None:
        """Store the findings of a job, unless the job has ended."""
        session = self._sessions.get(key)
        if session is not None:
            session.findings = findings


class LiveDiagnosisLoop:
    """Background task that diagnoses the running jobs once per live report.

    If a diagnosis costs much CPU time, the task runs less often.

    Args:
        diagnosis: diagnosis of the running jobs.
        config: returns the current configuration.
        work: runs a function in the worker thread of the job manager.
    """

    def __init__(
        self,
        diagnosis: LiveDiagnosis,
        config: Callable[[], Config],
        work: Callable[..., Awaitable[Any]],
    ) -> None:
        self._diagnosis, self._config, self._work = diagnosis, config, work
        self._errors = UnexpectedErrorLog(log)

    async def run(self) -> None:
        """Diagnose the running jobs periodically and store the findings, until the task is cancelled."""
        while True:
            interval_s = self._config().agent.live_report_s
            cpu_s = 0.0
            for run in await self._work(self._diagnosis.observed) if interval_s > 0 else ():
                findings, spent_s = await asyncio.to_thread(self._timed, run)
                cpu_s += spent_s
                await self._work(self._diagnosis.store, run.key, findings)
            await asyncio.sleep(max(interval_s or _OFF_PAUSE_S, cpu_s / MAX_CPU_SHARE))

    def _timed(self, run: RunningObservation) -> tuple[tuple[LiveFinding, ...], float]:
        began_s = time.thread_time()
        try:
            findings: tuple[LiveFinding, ...] = self._diagnosis.diagnose(run)
        except Exception as error:  # users write the steps: they must not end senergyd
            findings = ()
            self._errors.report(error, f"job {run.key[0]} is not diagnosed; further ones are not logged")
        return findings, time.thread_time() - began_s


def _is_observed(session: Session) -> bool:
    return session.phase == OPEN and (session.recording is not None or len(session.step_reports) > 0)


def _copied(session: Session, now: float) -> RunningObservation:
    recording = session.recording
    series = recording.series(session.node, session.unix_at) if recording is not None else ()
    return RunningObservation(
        session.key, running_record(session, now), series, session.step_reports.copied()
    )
