"""Energy label: a summary of one job for the terminal, from the header to the settings to try.

Returns lines only; colours and characters are arguments.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy.config import Config
from slurm_energy.quantities import format_duration
from slurm_energy.records import AppliedSetting, Quality
from slurm_energy.reports.advice import PART_NAMES, notes
from slurm_energy.reports.fields import Style, asked_number
from slurm_energy.reports.figure_format import percent, plain, with_unit
from slurm_energy.reports.note import Note
from slurm_energy.reports.settings import MergedSetting, applied_part, merge_settings
from slurm_energy.reports.text_plot import Glyphs, area_plot, share_bar, sparkline
from slurm_energy.reports.time_spec import format_time
from slurm_energy.reports.trace import PowerTrace, combine, decode_trace
from slurm_energy.reports.usage import JobUsage, part_of, worst_quality
from slurm_energy.slurm.hostlist import fold_hostlist

WIDTH = 88
PLOT_COLUMNS = 56
_BAR_WIDTH = 24
_MARGIN = 11
_MOST_NODES = 16


def label(
    job: JobUsage,
    glyphs: Glyphs,
    style: Style,
    earlier_runs: Sequence[JobUsage] = (),
    decisions: Sequence[Mapping[str, Any]] = (),
    config: Config | None = None,
) -> list[str]:
    """Return the lines of the label.

    Args:
        job: the run to describe, with steps and traces.
        glyphs: character repertoire of the terminal.
        style: format of times.
        earlier_runs: runs of the same job before Slurm requeued it.
        decisions: changes by the queue engine, as returned by `GET /v1/jobs/ID`.
        config: bounds and best known settings of the site; None selects the defaults.
    """
    sections = [
        _title(f"Energy label of job {job.display_id}", "="),
        _header(job, style),
        _title("Energy", "-"),
        _energy(job, glyphs),
        *_optional("Settings", _settings(job, glyphs)),
        *_optional("Queue", [line for made in decisions for line in _decision(made, style)]),
        *_optional("Nodes", _nodes(job)),
        *_optional("Steps", _steps(job)),
        *_optional("Power over time", _power(job, glyphs)),
        *_optional("Notes", _notes([*notes(job, config), *_earlier(job, earlier_runs)])),
    ]
    return [line.rstrip() for section in sections for line in section] + ["=" * WIDTH]


def _decision(made: Mapping[str, Any], style: Style) -> list[str]:
    """Return the lines for one change made by the queue engine."""
    at = format_time(float(made["time"]), style.time_format, style.now)
    if made["kind"] == "shape":
        what = f"set {made['chosen']}" if made.get("chosen") else "left with what it asked for"
        what += f"; offered were {', '.join(made['offered'])}" if made.get("offered") else ""
    else:
        other = f"job {made['for_job']}" if made.get("for_job") else "another job"
        what = f"put back into the queue for {other}"
    return textwrap.wrap(f"{at}  {what}: {made['why']}", WIDTH, initial_indent="  ", subsequent_indent="    ")


def _title(text: str, rule: str) -> list[str]:
    return [rule * WIDTH, text.center(WIDTH), rule * WIDTH] if rule == "=" else ["", text, rule * WIDTH]


def _optional(title: str, lines: list[str]) -> list[list[str]]:
    return [_title(title, "-"), lines] if lines else []


def _header(job: JobUsage, style: Style) -> list[str]:
    first, info = job.first, job.job
    number = str(first.job_id) + (f", run {first.restart_count + 1}" if first.restart_count else "")
    owner = (info.user or first.user or str(first.uid), info.account)
    gpus = sum(len(record.gpus) for record in job.records)
    pairs = [
        ("Job ID", number if job.display_id == str(first.job_id) else f"{job.display_id} ({number})"),
        ("Policy", policy_text(job)),
        ("Name", info.name or ""),
        ("Asked", asked_text(job) or "no caps"),
        ("User", "/".join(name for name in owner if name)),
        ("Model, tag", ", ".join(name for name in (first.model, first.tag) if name) or "none"),
        ("Partition", info.partition or first.partition or ""),
        ("State", info.state or "not known yet"),
        ("Start", format_time(job.start, style.time_format, style.now)),
        ("Elapsed", format_duration(job.elapsed_s)),
        ("Nodes", f"{_node_count(job)} ({_short(fold_hostlist(job.nodes), 24)})"),
        ("CPUs, GPUs", f"{'?' if job.cpus is None else job.cpus}, {gpus}"),
    ]
    half = WIDTH // 2
    return [
        _pair(*left, half).ljust(half) + _pair(*right, half)
        for left, right in zip(pairs[::2], pairs[1::2], strict=True)
    ]


def _pair(name: str, value: str, width: int) -> str:
    return f"{name:>11}: {_short(value, width - 14)}"


def _short(text: str, width: int) -> str:
    clean = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return clean if len(clean) <= width else clean[: width - 1] + "+"


def _node_count(job: JobUsage) -> str:
    if job.missing_nodes:
        return f"{len(job.records)} of {job.job.nodes}"
    return str(len(job.records))


_ASKED = (
    ("cap_watts", "cap", "W"),
    ("gpu_cap_watts", "GPU cap", "W"),
)


def policy_text(job: JobUsage) -> str:
    """Return the policy with its origin, and how much of it was applied if not all."""
    origin = "asked for" if "policy" in job.first.requested else "default"
    done = {"none": ", nothing set", "part": ", set in part"}.get(applied_part(job.records) or "", "")
    return f"{job.first.policy} ({origin}{done})"


def asked_text(job: JobUsage) -> str:
    """Return the caps that the job requested: `cap 400 W, GPU cap 250 W`."""
    values = ((name, asked_number(job, key), unit) for key, name, unit in _ASKED)
    return ", ".join(f"{name} {plain(value)} {unit}" for name, value, unit in values if value is not None)


def _energy(job: JobUsage, glyphs: Glyphs) -> list[str]:
    total = job.energy_joules
    lines = []
    for part in job.parts:
        joules = job.part_joules(part)
        share = joules / total if joules is not None and total else None
        bar = share_bar(share, _BAR_WIDTH, glyphs)
        figures = f"{percent(joules, total):>7}  {with_unit(joules, 'J'):>10}"
        lines.append(f"{PART_NAMES.get(part, part):>{_MARGIN}}  {bar} {figures}  {_provenance(job, part)}")
    hours = "" if total is None else f"  ({with_unit(total / 3600, 'Wh')})"
    quality = "" if job.quality in (None, Quality.MEASURED) else f"  {job.quality}"
    missing = [] if total is None else [PART_NAMES[part] for part in job.unknown_parts]
    without = f"  without {', '.join(missing)}" if missing else ""
    lines.append(
        f"{'Total':>{_MARGIN}}  {'':{_BAR_WIDTH + 8}}  {with_unit(total, 'J'):>10}{hours}{quality}{without}"
    )
    peak = with_unit(job.peak_watts, "W") + (" (sum of the nodes' peaks)" if len(job.records) > 1 else "")
    edp = with_unit(job.edp_joule_seconds, f"J{glyphs.product}s")
    return [
        *lines,
        "",
        f"{'Power':>{_MARGIN}}: mean {with_unit(job.mean_watts, 'W')}, peak {peak}",
        f"{'EDP':>{_MARGIN}}: {edp} (energy times delay)",
        f"{'Time':>{_MARGIN}}: {_times(job)}",
    ]


def _provenance(job: JobUsage, part: str) -> str:
    components = [c for c in job.components if part_of(c.name) == part]
    known = [c for c in components if c.energy_joules is not None]
    if not known:
        return "no interface on these nodes tells"
    sources = ", ".join(sorted({c.source for c in known if c.source}))
    quality = worst_quality(c.quality for c in known)
    count = f", {len(known)} of {len(components)}" if len(known) < len(components) else ""
    return f"{quality}{count}  {sources}"


def _times(job: JobUsage) -> str:
    named = (
        ("above the cap", job.seconds_above_cap),
        ("throttled", job.throttled_seconds),
        ("uncertain", job.uncertain_seconds),
    )
    return ", ".join(
        f"{name} {plain(seconds, 1)} s" + (f" ({percent(seconds, job.elapsed_s)})" if seconds else "")
        for name, seconds in named
        if seconds is not None
    )


def _settings(job: JobUsage, glyphs: Glyphs) -> list[str]:
    merged = merge_settings(job.records)
    if not merged:
        return []
    rows = [("setting", "before", "asked", "in force", "after")]
    rows += [_setting_row(one, len(job.records)) for one in merged]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines: list[str] = []
    for row in rows:
        arrow = f" {glyphs.arrow} " if lines else " " * (len(glyphs.arrow) + 2)
        name, *fate = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"{name}   {arrow.join(fate)}")
    return lines


def _setting_row(merged: MergedSetting, node_count: int) -> tuple[str, str, str, str, str]:
    fate = merged.fate
    nodes = f" @{_short(fold_hostlist(merged.nodes), 12)}" if len(merged.nodes) < node_count else ""
    return (
        f"{_short(merged.name, 36)}{nodes}",
        _short(fate.original or "?", 20),
        _short(fate.requested, 20),
        _short(fate.applied, 20) if fate.applied is not None else "failed",
        _after(fate),
    )


def _after(fate: AppliedSetting) -> str:
    if fate.applied is None:
        return "unchanged"
    return {True: "restored", False: "NOT restored", None: "still set"}[fate.restored]


def _nodes(job: JobUsage) -> list[str]:
    if len(job.records) < 2:
        return []
    parts = job.parts
    names = " ".join(f"{PART_NAMES.get(part, part).split()[0]:>9}" for part in parts)
    lines = [f"{'node':<12} {'energy':>9} {'mean':>9} {'peak':>9} {names}"]
    for record in job.records[:_MOST_NODES]:
        one = JobUsage((record,), job.job)
        figures = [with_unit(record.energy_joules, "J")]
        figures += [with_unit(watts, "W") for watts in (record.mean_watts, record.peak_watts)]
        figures += [with_unit(one.part_joules(part), "J") if part in one.parts else "" for part in parts]
        lines.append(f"{_short(record.node, 12):<12} " + " ".join(f"{text:>9}" for text in figures).rstrip())
    left = len(job.records) - _MOST_NODES
    return [*lines, f"and {left} more: senergy job {job.display_id} --json"] if left > 0 else lines


def _steps(job: JobUsage) -> list[str]:
    shown = [step for step in job.steps if step.first.step != "extern"]
    if len(shown) < 2:
        return []
    head = f"{'step':<12} {'elapsed':>10} {'energy':>10} {'mean':>9}"
    return [head] + [
        f"{_short(step.first.step or '', 12):<12} {format_duration(step.elapsed_s):>10}"
        f" {with_unit(step.energy_joules, 'J'):>10} {with_unit(step.mean_watts, 'W'):>9}"
        for step in shown[:_MOST_NODES]
    ]


def combined_trace(job: JobUsage, points: int) -> PowerTrace | None:
    """Return the power of all nodes on one time axis, or None without a trace."""
    traces = [decode_trace(trace) for trace in job.traces.values()]
    filled = [trace for trace in traces if trace.length]
    return combine(filled, points) if filled else None


def _power(job: JobUsage, glyphs: Glyphs) -> list[str]:
    trace = combined_trace(job, PLOT_COLUMNS)
    if trace is None:
        return []
    total = trace.total()
    columns = _stretched(total)
    cap = asked_number(job, "cap_watts")
    reference = (cap * len(job.traces), "cap") if cap else None
    lines = area_plot(columns, trace.duration_s, glyphs, 8, reference, _MARGIN)
    shown = [part for part in trace.watts if part != "node"]
    if len(shown) > 1:
        lines += ["", *(_part_line(part, trace.watts[part], glyphs) for part in shown)]
    return lines


def _part_line(part: str, watts: Sequence[float], glyphs: Glyphs) -> str:
    known = [value for value in watts if not math.isnan(value)]
    if not known:
        return f"{PART_NAMES.get(part, part):>{_MARGIN}}  not known"
    line = sparkline(_stretched(watts), max(known), glyphs)
    span = f"{with_unit(min(known), 'W')} to {with_unit(max(known), 'W')}"
    return f"{PART_NAMES.get(part, part):>{_MARGIN}}  {line} {span}"


def _stretched(column: Sequence[float]) -> list[float]:
    """Repeat values so that a short trace fills the plot."""
    return [column[i * len(column) // PLOT_COLUMNS] for i in range(PLOT_COLUMNS)]


def _notes(remarks: Sequence[Note]) -> list[str]:
    lines = []
    for note in remarks:
        lines += textwrap.wrap(note.text, WIDTH - 4, initial_indent="  * ", subsequent_indent="    ")
        if note.directive:
            lines.append(f"      #SBATCH {note.directive}")
    return lines


def _earlier(job: JobUsage, runs: Sequence[JobUsage]) -> list[Note]:
    if not runs:
        return []
    known = [run.energy_joules for run in runs if run.energy_joules is not None]
    spent = f" used {with_unit(sum(known), 'J')} more" if known else ""
    many = f"{len(runs)} earlier run{'s' if len(runs) > 1 else ''} of this job{spent}"
    return [Note("trust", f"{many}: senergy acct -D -j {job.display_id}")]
