"""Diagnosis of one job: its summary and its findings, the most expensive cause first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.advice import advise
from slurm_energy.diagnosis.causes import ordered
from slurm_energy.diagnosis.finding import JobFinding
from slurm_energy.diagnosis.finding_advice import FindingAdvice
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy.diagnosis.rules import (
    allocation,
    clocks,
    communication,
    cpu,
    data_pipeline,
    failure,
    gpu,
    hang,
    iterations,
    memory,
)
from slurm_energy.diagnosis.summary import JobSummary, summarise_job

Rule = Callable[[JobView], Iterator[JobFinding]]
FAILURE_RULES: Final[tuple[Rule, ...]] = (memory.out_of_memory, failure.early_failure, failure.lost_runs)
WASTE_RULES: Final[tuple[Rule, ...]] = (
    failure.unfinished_work,
    hang.hang,
    allocation.idle_time,
    allocation.unused_nodes,
    gpu.unused_gpus,
    memory.memory_pressure,
    cpu.contention,
    clocks.thermal_throttling,
    clocks.limited_power,
    clocks.slow_cpus,
    iterations.checkpoint_stalls,
    data_pipeline.data_stalls,
    data_pipeline.copies,
    communication.uneven_ranks,
    communication.communication,
    gpu.small_batch,
    cpu.small_batch,
    iterations.outliers,
    cpu.unused_cpus,
    gpu.underused,
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Summary, findings and advice of the diagnosis of one job.

    Attributes:
        summary: figures of the job.
        findings: causes of lost time and energy, the most expensive first.
        advice: changes that remove causes, in the order of the findings.
        is_short: whether the job is too short for findings about waste.
    """

    summary: JobSummary
    findings: tuple[JobFinding, ...]
    advice: tuple[FindingAdvice, ...]
    is_short: bool

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as a JSON object."""
        return {
            "summary": self.summary.to_json(),
            "findings": [finding.to_json() for finding in self.findings],
            "advice": [advice.to_json() for advice in self.advice],
            "is_short": self.is_short,
        }


def diagnose(observation: JobObservation, config: DiagnosisConfig | None = None) -> Diagnosis:
    """Return the summary and the findings of a job.

    Args:
        observation: allocation, energy, signals and steps of the job.
        config: thresholds of the site; None for the default thresholds.
    """
    config = config or DiagnosisConfig()
    is_short = observation.context.elapsed_s < config.value("minimum_time")
    findings = find_causes(observation, config)
    return Diagnosis(summarise_job(observation), findings, advise(observation, findings, config), is_short)


def find_causes(observation: JobObservation, config: DiagnosisConfig) -> tuple[JobFinding, ...]:
    """Return the findings of a job, the most expensive cause first."""
    view = JobView(observation, config)
    is_short = view.elapsed_s < view.threshold("minimum_time")
    rules = FAILURE_RULES if is_short else FAILURE_RULES + WASTE_RULES
    return ordered([finding for rule in rules for finding in rule(view)])
