"""The most wasteful patterns in the jobs of a user, an account or a cluster: findings summed by kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_energy import __version__
from slurm_energy.diagnosis.finding import FindingKind, JobFinding
from slurm_energy.reports.diagnosis.figures import duration_text
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.reports.usage import JobUsage

FORMAT_VERSION = 1
GROUPS = ("user", "account")


@dataclass(frozen=True, slots=True)
class WastePattern:
    """A kind of finding, summed over several jobs.

    Attributes:
        group: name of the user or account whose jobs are counted; empty without grouping.
        kind: kind of the findings, such as `small-batch`.
        jobs: number of jobs with a finding of this kind.
        seconds_lost: lost time of all these findings in seconds, as far as it is known.
        joules_lost: lost energy of all these findings, as far as it is known; None if it is unknown for each
            finding.
        example: id of the job that lost the most energy.
    """

    group: str
    kind: FindingKind
    jobs: int
    seconds_lost: float
    joules_lost: float | None
    example: str

    def to_json(self) -> dict[str, Any]:
        """Return this pattern of wasted energy as a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


def waste_patterns(
    diagnosed: Iterable[tuple[JobUsage, Sequence[JobFinding]]], by: str | None, top: int
) -> list[WastePattern]:
    """Return the kinds of findings that lost the most energy, as patterns of waste.

    A pattern contains all findings of one kind in one group of jobs. The patterns of each group are in
    descending order of lost energy.

    Args:
        diagnosed: jobs with their findings.
        by: `user` or `account`, by which the jobs are grouped; None means no grouping.
        top: maximum number of patterns per group.
    """
    grouped: dict[tuple[str, FindingKind], list[tuple[str, JobFinding]]] = {}
    for job, findings in diagnosed:
        for finding in findings:
            grouped.setdefault((_group(job, by), finding.kind), []).append((job.display_id, finding))
    patterns = [_pattern(group, kind, members) for (group, kind), members in grouped.items()]
    patterns.sort(key=lambda one: (one.joules_lost or 0.0, one.seconds_lost), reverse=True)
    counts: dict[str, int] = {}
    kept = []
    for pattern in patterns:
        counts[pattern.group] = counts.get(pattern.group, 0) + 1
        if counts[pattern.group] <= top:
            kept.append(pattern)
    return sorted(kept, key=lambda one: one.group)


def _group(job: JobUsage, by: str | None) -> str:
    if by == "user":
        return job.job.user or job.first.user or str(job.first.uid)
    return (job.job.account or "unknown") if by == "account" else ""


def _pattern(group: str, kind: FindingKind, members: Sequence[tuple[str, JobFinding]]) -> WastePattern:
    joules = [f.joules_lost for _, f in members if f.joules_lost is not None]
    seconds = math.fsum(f.seconds_lost for _, f in members if f.seconds_lost is not None)
    worst, _ = max(members, key=lambda item: (item[1].joules_lost or 0.0, item[1].seconds_lost or 0.0))
    return WastePattern(group, kind, len(members), seconds, math.fsum(joules) if joules else None, worst)


def patterns_table(patterns: Sequence[WastePattern], by: str | None) -> list[str]:
    """Return a text table of waste patterns, with the lost time and energy of each kind of finding."""
    rows = [
        [
            *([pattern.group] if by else []),
            pattern.kind.value,
            str(pattern.jobs),
            duration_text(pattern.seconds_lost),
            with_unit(pattern.joules_lost, "J"),
            pattern.example,
        ]
        for pattern in patterns
    ]
    header = [*([by.capitalize()] if by else []), "Finding", "Jobs", "Time", "Energy", "Example"]
    clean = [[cell if cell.isprintable() else ascii(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in clean) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in clean
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def patterns_json(patterns: Sequence[WastePattern], scope: str | None, jobs: int, left_out: int) -> Any:
    """Return the JSON document of `senergy diagnose --patterns --json`.

    Args:
        patterns: patterns of wasted energy, as returned by `waste_patterns`.
        scope: the users whose jobs the caller may see, as stated in the controller's response.
        jobs: number of diagnosed jobs.
        left_out: number of jobs that were not diagnosed, because only the jobs with the most energy are
            diagnosed.
    """
    return {
        "meta": {"format": FORMAT_VERSION, "senergy": __version__},
        "scope": scope,
        "jobs": jobs,
        "left_out": left_out,
        "patterns": [pattern.to_json() for pattern in patterns],
    }
