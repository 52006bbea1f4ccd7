"""Evaluation of the diagnosis on synthetic jobs with a planted cause of waste.

The score is the fraction of jobs whose planted cause is the first finding.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.diagnose import find_causes
from slurm_energy.diagnosis.finding import FindingKind
from slurm_energy.diagnosis.observation import JobObservation
from slurm_energy_lab.diagnosis_corpus.healthy import HEALTHY
from slurm_energy_lab.diagnosis_corpus.planted import PLANTED, PlantedJob


@dataclass(frozen=True, slots=True)
class Result:
    """Findings of the diagnosis about one synthetic test job.

    Attributes:
        job: kind of the job.
        seed: seed of the job's random parameters.
        findings: kinds of the findings in order.
    """

    job: PlantedJob
    seed: int
    findings: tuple[FindingKind, ...]

    @property
    def is_right(self) -> bool:
        """Return whether the diagnosis of a synthetic job is correct.

        It is correct if the first finding names the deliberate cause of waste. For a healthy job, it is
        correct if there is no finding.
        """
        first = self.findings[0] if self.findings else None
        return first == self.job.expected


def build(job: PlantedJob, seed: int) -> JobObservation:
    """Return the observation of a job of the given kind. Equal seeds give equal jobs."""
    return job.build(Random(zlib.crc32(job.name.encode()) * 1_000_003 + seed))


def results(
    seeds: Iterable[int],
    config: DiagnosisConfig | None = None,
    jobs: Sequence[PlantedJob] = (*PLANTED, *HEALTHY),
) -> Iterator[Result]:
    """Diagnose each job of the corpus of synthetic jobs with each seed, and yield the findings."""
    for seed in seeds:
        for job in jobs:
            findings = find_causes(build(job, seed), config or DiagnosisConfig())
            yield Result(job, seed, tuple(finding.kind for finding in findings))
