"""Findings of a running job in the compact form of live reports.

Each node of the job reports findings. They are merged into findings of the whole job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.diagnosis.finding import FindingKind, JobFinding
from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number

MAX_FINDINGS: Final = 4
"""Maximum number of findings of a job on a node in a live report. The most expensive ones are reported."""
MAX_TITLE: Final = 120
"""Maximum number of characters of a title.

A finding with an ASCII title then has at most 250 bytes as JSON.
"""
_KEYS: Final = ("kind", "title", "time_share", "joules_lost", "confidence")
_KINDS: Final = frozenset(kind.value for kind in FindingKind)


@dataclass(frozen=True, slots=True)
class LiveFinding:
    """A finding of a running job so far.

    Attributes:
        kind: kind of the finding.
        title: one line for readers.
        time_share: fraction of the job's time that is affected or lost, 0 to 1; None if unknown.
        joules_lost: energy lost so far; None if unknown.
        confidence: 0 to 1.
    """

    kind: FindingKind
    title: str
    time_share: float | None
    joules_lost: float | None
    confidence: float

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return {**{name: getattr(self, name) for name in _KEYS}, "kind": self.kind.value}


def live_findings(findings: Sequence[JobFinding]) -> tuple[LiveFinding, ...]:
    """Return the findings of a job in the short form that live reports contain.

    At most the first `MAX_FINDINGS` findings are returned.
    """
    return tuple(
        LiveFinding(
            finding.kind,
            finding.title[:MAX_TITLE],
            _rounded(finding.time_share),
            _rounded(finding.joules_lost),
            round(finding.confidence, 2),
        )
        for finding in findings[:MAX_FINDINGS]
    )


def parse_live_findings(data: Any) -> tuple[LiveFinding, ...]:
    """Return the findings of a list that `LiveFinding.to_json` returned.

    Findings of kinds that this release does not know are left out. Control characters in a title become
    blanks.

    Raises:
        UsageError: the list is malformed.
    """
    if not isinstance(data, list) or len(data) > MAX_FINDINGS:
        raise UsageError(f"findings: not a list of at most {MAX_FINDINGS}")
    return tuple(_parsed(item) for item in data if not (isinstance(item, dict) and _is_newer(item)))


def merged(nodes: Iterable[Sequence[LiveFinding]]) -> tuple[LiveFinding, ...]:
    """Merge the findings that the nodes of a job report into findings of the whole job.

    The most expensive finding comes first. Energy is summed over the nodes. All other figures are those of
    the node on which the largest fraction of the time is affected.
    """
    by_kind: dict[FindingKind, list[LiveFinding]] = {}
    for findings in nodes:
        for finding in findings:
            by_kind.setdefault(finding.kind, []).append(finding)
    summed = [_summed(same) for same in by_kind.values()]
    return tuple(sorted(summed, key=_rank, reverse=True))


def _summed(same: Sequence[LiveFinding]) -> LiveFinding:
    worst = max(same, key=lambda finding: finding.time_share or 0.0)
    known = [finding.joules_lost for finding in same if finding.joules_lost is not None]
    joules = math.fsum(known) if len(known) == len(same) else None
    return LiveFinding(worst.kind, worst.title, worst.time_share, joules, worst.confidence)


def _rank(finding: LiveFinding) -> tuple[bool, float, float]:
    return finding.joules_lost is not None, finding.joules_lost or 0.0, finding.time_share or 0.0


def _is_newer(item: dict[str, Any]) -> bool:
    kind = item.get("kind")
    return isinstance(kind, str) and kind not in _KINDS


def _parsed(item: Any) -> LiveFinding:
    if not isinstance(item, dict):
        raise UsageError("findings: an element is not a JSON object")
    kind, title, share, joules, confidence = (item.get(key) for key in _KEYS)
    if kind not in _KINDS or not isinstance(title, str) or not 0 < len(title) <= MAX_TITLE:
        raise UsageError("findings: bad kind or title")
    if not (
        _fits(share, 1.0) and _fits(joules, math.inf) and confidence is not None and _fits(confidence, 1)
    ):
        raise UsageError("findings: bad share, energy or confidence")
    text = "".join(character if character.isprintable() else " " for character in title)
    return LiveFinding(FindingKind(kind), text, share, joules, confidence)


def _fits(value: Any, maximum: float) -> bool:
    return value is None or (is_number(value) and math.isfinite(value) and 0 <= value <= maximum)


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{max(value, 0.0):.4g}")
