"""A piece of advice against a finding, and functions that compute the figures in the advice.

Several modules of advice use these functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slurm_energy.diagnosis.finding import FindingKind, JobFinding, finite_or_none
from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.trials.change_set import AdvisedChange, ChangeSet


@dataclass(frozen=True, slots=True)
class FindingAdvice:
    """Advice: a change of a job that removes the cause of a finding.

    Attributes:
        kind: kind of the finding.
        text: description of the change, in one or two sentences.
        line: the line of the batch script or of the program, or the argument, after the change.
        seconds_gain: expected gain of time; 0 if the time does not change.
        joules_gain: expected gain of energy; None if the energy of the job is unknown.
        source: measurement or model from which the gain is expected.
        verify: how to check the gain.
        changes: the same change as typed values, for `senergy diagnose --apply`; empty if the change cannot
            be applied automatically.
    """

    kind: FindingKind
    text: str
    line: str
    seconds_gain: float
    joules_gain: float | None
    source: str
    verify: str
    changes: tuple[AdvisedChange, ...] = ()

    @property
    def change_set(self) -> ChangeSet:
        """The changes that the advice proposes, as typed values with their expected gain."""
        return ChangeSet(self.kind.value, self.changes, self.seconds_gain, self.joules_gain, self.source)

    def to_json(self) -> dict[str, Any]:
        """Return the advice as a JSON object."""
        values = {name: finite_or_none(getattr(self, name)) for name in self.__slots__}
        return values | {"changes": [change.to_json() for change in self.changes]}


def joules_of_part(finding: JobFinding, seconds: float) -> float | None:
    """Return the energy that a job lost in a part of its lost time.

    The lost energy is assumed to be proportional to the lost time. The result is None if the lost energy of
    the finding is unknown.

    Args:
        finding: finding of the diagnosis. It states the lost time and the lost energy.
        seconds: the part of the lost time.
    """
    if finding.joules_lost is None or not finding.seconds_lost:
        return None
    return finding.joules_lost * min(1.0, seconds / finding.seconds_lost)


def cpus_per_rank(view: JobView) -> float | None:
    """Return the number of CPUs of the job per concurrently running rank; None if unknown."""
    cpus = [
        max(series.known())
        for node in view.observation.nodes
        if (series := view.node_series(node, "cpu_allocated_cores")) is not None
    ]
    total = sum(cpus) if len(cpus) == len(view.observation.nodes) else view.context.cpus
    return total / view.concurrent_ranks if total and view.concurrent_ranks else None
