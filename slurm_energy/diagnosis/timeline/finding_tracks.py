"""Findings as markers of a Chrome trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slurm_energy.diagnosis.finding import FindingEvidence, JobFinding
from slurm_energy.diagnosis.timeline.trace_writer import TraceWriter
from slurm_energy.diagnosis.timeline.window import TimeWindow

MAX_EVIDENCE: Final = 16
"""Maximum number of facts per finding that are shown."""


def write_findings(writer: TraceWriter, window: TimeWindow, findings: Sequence[JobFinding]) -> None:
    """Write each finding as a marker at its start and as a lane with the times of its evidence.

    A finding whose facts have no time is marked at the start of the time window.
    """
    if not findings:
        return
    group = writer.lanes.add_group("findings")
    for number, finding in enumerate(findings, 1):
        lane = writer.lanes.add_lane(group, f"{number} {finding.kind.value}", number)
        if lane is None:
            return
        args = {
            "kind": finding.kind.value,
            "seconds_lost": finding.seconds_lost,
            "joules_lost": finding.joules_lost,
            "time_share": finding.time_share,
            "confidence": finding.confidence,
            "where": ", ".join(finding.where[:MAX_EVIDENCE]),
        }
        begin_s = finding_start_s(finding, window)
        begin_us = window.microseconds(window.from_s if begin_s is None else begin_s)
        writer.instant((group, lane), f"{number}. {finding.title}", begin_us, "g", args)
        for evidence in finding.evidence[:MAX_EVIDENCE]:
            _write_evidence(writer, window, group, number, evidence)


def finding_start_s(finding: JobFinding, window: TimeWindow) -> float | None:
    """Return when the first fact that supports a finding was observed, in Unix seconds.

    Only facts within the time window count. None means that no fact has a time in the window.
    """
    times = [interval[0] for item in finding.evidence if (interval := _interval(item, window))]
    return min(times, default=None)


def _interval(evidence: FindingEvidence, window: TimeWindow) -> tuple[float, float] | None:
    if evidence.from_s is None:
        return None
    return window.clip_s(evidence.from_s, evidence.from_s if evidence.to_s is None else evidence.to_s)


def _write_evidence(
    writer: TraceWriter, window: TimeWindow, group: int, number: int, evidence: FindingEvidence
) -> None:
    interval = _interval(evidence, window)
    if interval is None:
        return
    name = " ".join(text for text in (evidence.signal, evidence.where) if text)
    # Facts of one finding may overlap, and overlapping events must not share a lane.
    lane = writer.lanes.add_lane(group, f"{number} {name}", number)
    if lane is None:
        return
    start_us, end_us = map(window.microseconds, interval)
    args = {"value": evidence.value, "threshold": evidence.threshold, "signal": evidence.signal}
    writer.slice((group, lane), evidence.text, start_us, end_us - start_us, args)
