"""Output of `senergy diagnose` on the terminal.

The output shows the use of the hardware, the job's steps, the findings, and settings to try.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.diagnosis.diagnose import Diagnosis
from slurm_energy.diagnosis.finding import JobFinding
from slurm_energy.diagnosis.summary import JobSummary, PhaseSummary
from slurm_energy.quantities import format_duration
from slurm_energy.reports.diagnosis.figures import (
    UseRow,
    confidence_text,
    duration_text,
    energy_text,
    gain_text,
    lower_bound_text,
    missing_energy_text,
    use_rows,
)
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.reports.labels.note import Note
from slurm_energy.reports.plots.text_plot import Glyphs, share_bar
from slurm_energy.reports.usage import JobUsage
from slurm_energy.safe_text import display_width
from slurm_energy.slurm.exit_status import ExitStatus
from slurm_energy.slurm.hostlist import fold_hostlist

WIDTH = 80
_BAR_WIDTH = 20
_MAX_EVIDENCE = 4
_MAX_ROWS = 16
_MIN_SHARE = 0.005
_SECOND_COLUMN = "\0"


def diagnosis_page(
    job: JobUsage, diagnosis: Diagnosis, settings: Sequence[Note], config: DiagnosisConfig, glyphs: Glyphs
) -> list[str]:
    """Return the lines of the diagnosis of one job.

    Args:
        job: job with its energy records.
        diagnosis: summary, findings and advice for the job.
        settings: power settings to try, each with a measured or predicted figure.
        config: configuration of the site, whose thresholds classify how much run times vary.
        glyphs: characters that the terminal can show.
    """
    sections = [
        ["=" * WIDTH, f"Diagnosis of job {job.display_id}".center(WIDTH), "=" * WIDTH],
        _header(job, diagnosis.summary),
        *_section("Use of the hardware", _uses(diagnosis.summary, glyphs)),
        *_section("Time by phase", _phase_shares(diagnosis.summary, glyphs)),
        *_section("Steps", list(_steps(diagnosis.summary, config))),
        *_section("Findings", _findings(diagnosis)),
        *_section("Try next", _advice(diagnosis, settings)),
    ]
    return [line.rstrip() for section in sections for line in section] + ["=" * WIDTH]


def _section(title: str, lines: list[str]) -> list[list[str]]:
    return [["", title, "-" * WIDTH], lines] if lines else []


def _header(job: JobUsage, summary: JobSummary) -> list[str]:
    gpus = sum(len(record.gpus) for record in job.records)
    owner = job.job.user or job.first.user or str(job.first.uid)
    pairs = [
        ("User", "/".join(name for name in (owner, job.job.account) if name)),
        ("State", _state(job)),
        ("Name", job.job.name or ""),
        ("Elapsed", format_duration(summary.elapsed_s)),
        ("Nodes", f"{_node_count(job)} ({fold_hostlist(job.nodes)})"),
        ("Energy", energy_text(summary)),
        ("CPUs, GPUs", f"{'?' if job.cpus is None else job.cpus}, {gpus}"),
        ("Mean power", lower_bound_text(job.mean_watts, "W", summary)),
    ]
    half = WIDTH // 2
    missing = missing_energy_text(summary, len(job.records))
    return [
        *(
            _column(_pair(*left, half), half) + _pair(*right, half)
            for left, right in zip(pairs[::2], pairs[1::2], strict=True)
        ),
        *([_pair("Incomplete", missing, WIDTH)] if missing else []),
    ]


def _node_count(job: JobUsage) -> str:
    return f"{len(job.records)} of {job.job.nodes}" if job.missing_nodes else str(len(job.records))


def _state(job: JobUsage) -> str:
    """Return the state of the job. If the job failed by itself, the text includes its exit code or signal."""
    state, status = job.job.state or "unknown", ExitStatus.from_text(job.job.exit_code)
    return f"{state}, {status}" if state == "FAILED" and status and not status.is_success else state


def _pair(name: str, value: str, width: int) -> str:
    clean = value if value.isprintable() else value.encode("unicode_escape").decode("ascii")
    limit = width - 14
    if display_width(clean) > limit:
        while display_width(clean) >= limit:
            clean = clean[:-1]
        clean += "+"
    return f"{name:>11}: {clean}"


def _column(text: str, width: int) -> str:
    """Return a text that is padded with blanks to a width in terminal columns."""
    return text + " " * (width - display_width(text))


def _uses(summary: JobSummary, glyphs: Glyphs) -> list[str]:
    rows = use_rows(summary)
    return [_use_line(row, glyphs) for row in rows[:_MAX_ROWS]] + (
        [f"  and {len(rows) - _MAX_ROWS} more: --json lists them"] if len(rows) > _MAX_ROWS else []
    )


def _use_line(row: UseRow, glyphs: Glyphs) -> str:
    bar = share_bar(row.share, _BAR_WIDTH, glyphs)
    return f"  {row.name:<21}{bar} {100 * row.share:4.0f} %  {row.text}"


def _phase_shares(summary: JobSummary, glyphs: Glyphs) -> list[str]:
    return [
        f"  {name:<21}{share_bar(share, _BAR_WIDTH, glyphs)} {100 * share:4.0f} %"
        + (f"  {with_unit(summary.energy_shares[name], 'J')}" if name in summary.energy_shares else "")
        for name, share in summary.time_shares.items()
        if share >= _MIN_SHARE
    ]


def _steps(summary: JobSummary, config: DiagnosisConfig) -> Iterator[str]:
    for phase in summary.phases:
        if phase.scope == "job" and phase.phase == "step":
            yield from _step_lines(phase, summary, config)


def _step_lines(phase: PhaseSummary, summary: JobSummary, config: DiagnosisConfig) -> Iterator[str]:
    times = phase.durations
    named = (("mean", times.mean), ("P50", times.p50), ("P90", times.p90), ("P99", times.p99))
    yield f"  {summary.steps} steps; " + ", ".join(f"{name} {duration_text(v)}" for name, v in named)
    if times.variation is not None:
        yield f"  coefficient of variation {100 * times.variation:.1f} %: {times.stability(config)}"
    if summary.joules_per_step is not None:
        sample = summary.joules_per_sample
        each = "" if sample is None else f", {with_unit(sample, 'J')} per sample"
        yield f"  {with_unit(summary.joules_per_step, 'J')} per step{each}"


def _findings(diagnosis: Diagnosis) -> list[str]:
    if not diagnosis.findings:
        short = " The job is too short for findings about waste." if diagnosis.is_short else ""
        return [f"  None.{short}"]
    lines: list[str] = []
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += [*([""] if number > 1 else []), *_finding(number, finding, diagnosis.summary.elapsed_s)]
    return lines


def _finding(number: int, finding: JobFinding, elapsed_s: float) -> list[str]:
    lines = _wrapped(f"{number}. {finding.title}", "  ", "     ")
    lines += _wrapped(confidence_text(finding, elapsed_s), "     ", "     ")
    for fact in finding.evidence[:_MAX_EVIDENCE]:
        lines += _wrapped(f"- {fact.text}", "     ", "       ")
    if len(finding.evidence) > _MAX_EVIDENCE:
        lines.append(f"     - and {len(finding.evidence) - _MAX_EVIDENCE} more: --json lists them")
    if finding.consequences:
        lines += _wrapped(f"explains: {', '.join(finding.consequences)}", "     ", "       ")
    return [*lines, f"     see docs/findings/{finding.kind}.md"]


def _advice(diagnosis: Diagnosis, settings: Sequence[Note]) -> list[str]:
    lines: list[str] = []
    for advice in diagnosis.advice:
        lines += _wrapped(advice.text, "  ", "  ")
        lines += [f"    {part}" for part in advice.line.split("; ")]
        lines += _wrapped(gain_text(advice), "    ", "    ")
    for note in settings:
        lines += _wrapped(note.text, "  ", "  ")
        if note.directive:
            lines.append(f"    #SBATCH {note.directive}")
    return lines


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    # While the text is wrapped, a placeholder (NUL, which no text contains) follows each character of two
    # columns. A line may break between the two. It then needs one more column, which the width leaves free.
    width = WIDTH if text.isascii() else WIDTH - 1
    counted = "".join(one + _SECOND_COLUMN * (display_width(one) - 1) for one in text)
    lines = textwrap.wrap(counted, width, initial_indent=first, subsequent_indent=rest)
    return [line.replace(_SECOND_COLUMN, "") for line in lines]
