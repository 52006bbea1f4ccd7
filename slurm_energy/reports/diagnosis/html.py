"""HTML page of `senergy diagnose`. The template of the page escapes text from users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.diagnose import Diagnosis
from slurm_energy.diagnosis.finding import JobFinding
from slurm_energy.diagnosis.summary import PhaseSummary
from slurm_energy.quantities import format_duration
from slurm_energy.reports.diagnosis.figures import (
    confidence_text,
    duration_text,
    energy_text,
    gain_text,
    missing_energy_text,
    use_rows,
)
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.reports.html_document import render
from slurm_energy.reports.labels.note import Note
from slurm_energy.reports.usage import JobUsage
from slurm_energy.slurm.hostlist import fold_hostlist

_MAX_RANKS = 256


def diagnosis_document(
    job: JobUsage,
    diagnosis: Diagnosis,
    settings: Sequence[Note],
    config: DiagnosisConfig,
    now: datetime | None = None,
) -> str:
    """Return the diagnosis of a job as one HTML document.

    Args:
        job: job with its energy records.
        diagnosis: summary, findings and advice for the job.
        settings: recommended power settings for the next run.
        config: configuration of the site, whose thresholds classify how much run times vary.
        now: current time for the footer; None omits the date.
    """
    summary = diagnosis.summary
    names = (job.job.name, job.job.user or job.first.user or str(job.first.uid), job.job.state)
    context = {
        "title": f"Diagnosis of job {job.display_id}",
        "subtitle": " · ".join(name for name in (*names, fold_hostlist(job.nodes)) if name),
        "tiles": [
            ("Elapsed", format_duration(summary.elapsed_s), ""),
            ("Energy", energy_text(summary), missing_energy_text(summary, len(job.records))),
            ("Steps", "unknown" if summary.steps is None else str(summary.steps), ""),
            ("Per step", with_unit(summary.joules_per_step, "J"), ""),
            ("Per sample", with_unit(summary.joules_per_sample, "J"), ""),
        ],
        "findings": [_finding(finding, summary.elapsed_s) for finding in diagnosis.findings],
        "is_short": diagnosis.is_short,
        "uses": [(row.name, f"{100 * row.share:.0f} %", row.text) for row in use_rows(summary)],
        "shares": [
            (name, f"{100 * share:.1f} %", with_unit(summary.energy_shares.get(name), "J"))
            for name, share in summary.time_shares.items()
        ],
        "phases": [_phase(phase, config) for phase in summary.phases[:_MAX_RANKS]],
        "hidden_phases": max(0, len(summary.phases) - _MAX_RANKS),
        "advice": [(advice.text, advice.line, gain_text(advice)) for advice in diagnosis.advice],
        "settings": list(settings),
    }
    return render("diagnosis.html.j2", context, (), now)


def _finding(finding: JobFinding, elapsed_s: float) -> Mapping[str, Any]:
    return {
        "title": finding.title,
        "cost": confidence_text(finding, elapsed_s),
        "facts": [fact.text for fact in finding.evidence],
        "explains": ", ".join(finding.consequences),
        "page": f"docs/findings/{finding.kind}.md",
    }


def _phase(phase: PhaseSummary, config: DiagnosisConfig) -> Mapping[str, str]:
    times = phase.durations
    stability = times.stability(config)
    return {
        "scope": f"{phase.scope} {phase.where}".strip(),
        "phase": phase.phase,
        "count": str(times.count),
        "share": f"{100 * phase.time_share:.1f} %",
        "energy": "" if phase.joules is None else with_unit(phase.joules, "J"),
        "mean": duration_text(times.mean),
        "p50": duration_text(times.p50),
        "p90": duration_text(times.p90),
        "p99": duration_text(times.p99),
        "variation": "" if times.variation is None else f"{100 * times.variation:.1f} % {stability}",
    }
