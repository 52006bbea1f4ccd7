"""Diagnosis of a stored run by senergyctld, from its records, power traces and observations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from slurm_energy.accounting import adjustments
from slurm_energy.accounting.history.tuning_starts import JobRun
from slurm_energy.accounting.records import observations, record_queries
from slurm_energy.adjustment import AdjustmentKind
from slurm_energy.config import Config
from slurm_energy.controller.records.store import Store
from slurm_energy.diagnosis.advice import advise
from slurm_energy.diagnosis.diagnose import find_causes
from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy.diagnosis.trials.change_set import AdvisedChange, ChangeSet
from slurm_energy.diagnosis.trials.observed_figures import observed_figures
from slurm_energy.diagnosis.trials.run_figures import RunFigures
from slurm_energy.errors import NotFoundError
from slurm_energy.reports.diagnosis.input import job_observation
from slurm_energy.reports.labels.recommendation import predicted_cap
from slurm_energy.reports.usage import AccountedRecord, JobUsage, summarise


@dataclass(frozen=True, slots=True)
class DiagnosableRun:
    """A run with all data that are stored about it.

    Attributes:
        usage: records and power traces of the run.
        observation: the input of the diagnosis.
        figures: time, energy and progress of the run.
    """

    usage: JobUsage
    observation: JobObservation
    figures: RunFigures

    @property
    def workload(self) -> str | None:
        """Identity of the program, or None if it is unknown.

        The identity is the fingerprint of the batch script, else the value of `--energy-model`.
        """
        records = self.usage.records
        fingerprint = next((record.fingerprint for record in records if record.fingerprint), None)
        return fingerprint or self.usage.first.model


class RunDiagnosis:
    """Diagnosis of stored runs.

    Args:
        config: returns the current configuration.
        store: the database.
    """

    def __init__(self, config: Callable[[], Config], store: Store) -> None:
        self._config, self._store = config, store

    async def observed(self, run: JobRun, uid: int) -> DiagnosableRun:
        """Return a run of the user's job together with the stored data that the diagnosis needs.

        Raises:
            NotFoundError: this user has no record of this run.
        """
        texts = await self._store.read(_texts, run, uid)
        return await asyncio.to_thread(_parse, run, *texts, self._config())

    async def change_sets(self, observed: DiagnosableRun) -> list[ChangeSet]:
        """Diagnose a stored run of a job, and return the changes of settings that the diagnosis advises."""
        return await asyncio.to_thread(_change_sets, observed, self._config())


def _texts(connection: Connection, run: JobRun, uid: int) -> tuple[list[str], list[str]]:
    ids = adjustments.record_ids(connection, run, uid)
    records = record_queries.records_json(connection, ids, with_traces=True)
    return records, observations.observations_json(connection, ids)


def _parse(run: JobRun, records: list[str], documents: list[str], config: Config) -> DiagnosableRun:
    answers = [AccountedRecord.from_json(json.loads(text)) for text in records]
    jobs = [job for job in summarise(answers, duplicates=True) if job.first.step is None]
    if not jobs:
        raise NotFoundError(f"job {run.job_id}", "it has no energy record of yours")
    parsed: list[Any] = [json.loads(text) for text in documents]
    job = jobs[-1]
    observation = job_observation(job, parsed, config)
    joules = job.energy_joules if observation.context.is_energy_complete else None
    figures = observed_figures(observation, job.display_id, joules, config.diagnosis)
    return DiagnosableRun(job, observation, figures)


def _change_sets(observed: DiagnosableRun, config: Config) -> list[ChangeSet]:
    findings = find_causes(observed.observation, config.diagnosis)
    advice = advise(observed.observation, findings, config.diagnosis)
    return [*(one.change_set for one in advice), *_cap_changes(observed.usage, config)]


def _cap_changes(job: JobUsage, config: Config) -> list[ChangeSet]:
    """Return the change of the power cap that is predicted to save energy.

    The result is empty if no change is predicted to save energy.
    """
    cap, joules = predicted_cap(job, config), job.component_joules("gpu")
    if cap is None or joules is None:
        return []
    change = AdvisedChange(AdjustmentKind.GPU_CAP, cap.watts, cap.limit_watts)
    seconds, saved = (1 - cap.time_ratio) * job.elapsed_s, (1 - cap.energy_ratio) * joules
    return [ChangeSet("power-cap", (change,), seconds, saved, cap.basis)]
