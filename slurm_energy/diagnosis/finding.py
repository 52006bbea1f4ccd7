"""Findings: causes of wasted time or energy in a job, with evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from slurm_energy.config.finding_kinds import FindingKind as FindingKind


@dataclass(frozen=True, slots=True)
class FindingEvidence:
    """One measured fact that supports a finding.

    Attributes:
        signal: name of the signal, phase or fact of the job.
        where: node, part of a node (such as `gpu[0]`) or rank; empty for the whole job.
        from_s: start of the observation, Unix seconds; None if the fact has no time.
        to_s: end of the observation, Unix seconds.
        value: measured value in the unit of the signal.
        threshold: value with which `value` was compared; None if there is no threshold.
        text: the fact in one sentence for readers.
    """

    signal: str
    where: str
    from_s: float | None
    to_s: float | None
    value: float | None
    threshold: float | None
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return the evidence as a JSON object."""
        return {name: finite_or_none(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class JobFinding:
    """A cause of wasted time or energy in a job.

    Attributes:
        kind: kind of the finding.
        title: one line for readers, with the most important figure.
        evidence: measured facts, the most important first; never empty.
        time_share: fraction of the job's time that is affected or lost, 0 to 1; None if unknown.
        seconds_lost: wall-clock seconds lost; None if unknown.
        joules_lost: energy lost; None if unknown.
        confidence: confidence in the finding, 0 to 1.
        where: nodes, GPUs or ranks concerned; empty for the whole job.
        consequences: kinds of other findings that result from this cause. They are not listed separately.
    """

    kind: FindingKind
    title: str
    evidence: tuple[FindingEvidence, ...]
    time_share: float | None
    seconds_lost: float | None
    joules_lost: float | None
    confidence: float
    where: tuple[str, ...] = ()
    consequences: tuple[FindingKind, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object; unknown values are null."""
        return {
            "kind": self.kind.value,
            "title": self.title,
            "evidence": [item.to_json() for item in self.evidence],
            "time_share": finite_or_none(self.time_share),
            "seconds_lost": finite_or_none(self.seconds_lost),
            "joules_lost": finite_or_none(self.joules_lost),
            "confidence": self.confidence,
            "where": list(self.where),
            "consequences": [kind.value for kind in self.consequences],
        }


def finite_or_none(value: Any) -> Any:
    """Return the value, or None if it is a float that JSON cannot represent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
