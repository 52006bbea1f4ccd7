"""Energy label: a summary of one job for the terminal.

The label begins with a header and ends with the recommended settings. The functions return lines of text.
The caller decides which colours and which characters the lines may contain.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_energy.config import Config
from slurm_energy.quantities import format_duration
from slurm_energy.records import AppliedSetting, Quality
from slurm_energy.reports.acct.fields import Style, requested_cap
from slurm_energy.reports.figure_format import percent, plain, with_unit
from slurm_energy.reports.labels.advice import COMPONENT_NAMES, notes
from slurm_energy.reports.labels.note import Note
from slurm_energy.reports.labels.settings import MergedSetting, applied_part, merge_settings
from slurm_energy.reports.labels.tuning_label import explanations, tuning_outcome
from slurm_energy.reports.plots.text_plot import Glyphs, area_plot, share_bar, sparkline
from slurm_energy.reports.queue.deferral_text import deferral_change
from slurm_energy.reports.time_spec import format_time
from slurm_energy.reports.trace import PowerTrace, combine, decode_trace
from slurm_energy.reports.usage import JobUsage, component_type, worst_quality
from slurm_energy.slurm.hostlist import fold_hostlist

WIDTH = 80
PLOT_COLUMNS = 48
_BAR_WIDTH = 16
_MARGIN = 11
_MAX_NODES = 16


def label(
    job: JobUsage,
    glyphs: Glyphs,
    style: Style,
    earlier_runs: Sequence[JobUsage] = (),
    decisions: Sequence[Mapping[str, Any]] = (),
    config: Config | None = None,
) -> list[str]:
    """Return the lines of the energy label of one job.

    Args:
        job: the run to describe, with steps and power traces.
        glyphs: characters that the terminal can show.
        style: format of times.
        earlier_runs: runs of the same job before Slurm requeued it.
        decisions: changes that the queue engine made to the job, as returned by `GET /v1/jobs/ID`.
        config: configuration of the site, with power limits and best known settings; None means the defaults.
    """
    sections = [
        _title(f"Energy label of job {job.display_id}", "="),
        _header(job, style),
        _title("Energy", "-"),
        _energy(job, glyphs),
        *_optional("Settings", _settings(job, glyphs)),
        *_optional("Queue", [line for decision in decisions for line in _decision(decision, style)]),
        *_optional("Nodes", _nodes(job)),
        *_optional("Steps", _steps(job)),
        *_optional("Power over time", _power(job, glyphs)),
        *_optional("Notes", _notes([*notes(job, config), *_earlier_runs_note(job, earlier_runs)])),
    ]
    return [line.rstrip() for section in sections for line in section] + ["=" * WIDTH]


def _decision(decision: Mapping[str, Any], style: Style) -> list[str]:
    """Describe a change that senergyctld's queue engine made to a job, as lines of text."""
    at = format_time(float(decision["time"]), style.time_format, style.now)
    if decision["kind"] == "shape":
        change = f"set {decision['chosen']}" if decision.get("chosen") else "kept its requested resources"
        change += f"; offered: {', '.join(decision['offered'])}" if decision.get("offered") else ""
    elif decision["kind"] in ("defer", "release", "suspend", "not_suspended"):
        change = deferral_change(decision, style)
    else:
        other = f"job {decision['for_job']}" if decision.get("for_job") else "another job"
        change = f"requeued for {other}"
    return textwrap.wrap(
        f"{at}  {change}: {decision['why']}", WIDTH, initial_indent="  ", subsequent_indent="    "
    )


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
        ("Requested", requested_text(job) or "no caps"),
        ("User", "/".join(name for name in owner if name)),
        ("Model, tag", ", ".join(name for name in (first.model, first.tag) if name) or "none"),
        ("Partition", info.partition or first.partition or ""),
        ("State", info.state or "unknown"),
        ("Start", format_time(job.start, style.time_format, style.now)),
        ("Elapsed", format_duration(job.elapsed_s)),
        ("Nodes", f"{_node_count(job)} ({_short(fold_hostlist(job.nodes), 18)})"),
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


_CAPS = (
    ("cap_watts", "cap", "W"),
    ("gpu_cap_watts", "GPU cap", "W"),
)
_TEXTS = (
    ("cpu_freq", "CPU at most", " MHz"),
    ("gpu_clock", "GPU clock at most", " MHz"),
    ("power_profile", "power profile", ""),
    ("slowdown", "slowdown at most", " %"),
    ("tuning", "tuning", ""),
)
"""Flags whose text the record holds: key, name, and the unit of a number without one."""


def policy_text(job: JobUsage) -> str:
    """Return the job's energy policy, and whether the policy was requested by the user or is the default.

    The text also states if none or only some of the policy's settings were applied.
    """
    # A record has another policy than its job requested if the request was invalid.
    origin = "requested" if job.first.requested.get("policy") == job.first.policy else "default"
    done = {"none": ", not set", "part": ", partly set"}.get(applied_part(job.records) or "", "")
    done = tuning_outcome(job.records) or done
    return f"{job.first.policy} ({origin}{done})"


def requested_text(job: JobUsage) -> str:
    """Return the settings that the job's flags fix or bound, e.g. `cap 400 W, GPU cap 250 W`."""
    values = ((name, requested_cap(job, key), unit) for key, name, unit in _CAPS)
    texts = [f"{name} {plain(value)} {unit}" for name, value, unit in values if value is not None]
    requested = job.first.requested
    for key, name, unit in _TEXTS:
        if text := requested.get(key):
            texts.append(f"{name} {text}{unit if text.replace('.', '', 1).isdecimal() else ''}")
    return ", ".join(texts)


def _energy(job: JobUsage, glyphs: Glyphs) -> list[str]:
    total = job.energy_joules
    lines = []
    for part in job.component_types:
        joules = job.component_joules(part)
        share = joules / total if joules is not None and total else None
        bar = share_bar(share, _BAR_WIDTH, glyphs)
        figures = f"{percent(joules, total):>7}  {with_unit(joules, 'J'):>10}"
        lines.append(
            f"{COMPONENT_NAMES.get(part, part):>{_MARGIN}}  {bar} {figures}  {_provenance(job, part)}"
        )
    hours = "" if total is None else f"  ({with_unit(total / 3600, 'Wh')})"
    quality = "" if job.quality in (None, Quality.MEASURED) else f"  {job.quality}"
    missing = [] if total is None else [COMPONENT_NAMES[part] for part in job.unknown_components]
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
    components = [c for c in job.components if component_type(c.name) == part]
    measured = [c for c in components if c.energy_joules is not None]
    if not measured:
        return "no interface on these nodes"
    sources = ", ".join(sorted({c.source for c in measured if c.source}))
    quality = worst_quality(c.quality for c in measured)
    count = f", {len(measured)} of {len(components)}" if len(measured) < len(components) else ""
    return f"{quality}{count}  {sources}"


def _times(job: JobUsage) -> str:
    times = (
        ("above the cap", job.seconds_above_cap),
        ("throttled", job.throttled_seconds),
        ("limited by a power budget", job.budget_capped_seconds),
        ("uncertain", job.uncertain_seconds),
    )
    return ", ".join(
        f"{name} {plain(seconds, 1)} s" + (f" ({percent(seconds, job.elapsed_s)})" if seconds else "")
        for name, seconds in times
        if seconds is not None
    )


def _settings(job: JobUsage, glyphs: Glyphs) -> list[str]:
    sentences = [
        line
        for sentence in explanations(job)
        for line in textwrap.wrap(sentence, WIDTH - 2, initial_indent="  ", subsequent_indent="    ")
    ]
    merged = merge_settings(job.records)
    if not merged:
        return sentences
    rows = [("setting", "before", "requested", "applied", "after")]
    rows += [_setting_row(merged_setting, len(job.records)) for merged_setting in merged]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines: list[str] = []
    for row in rows:
        arrow = f" {glyphs.arrow} " if lines else " " * (len(glyphs.arrow) + 2)
        name, *setting = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"{name}   {arrow.join(setting)}")
    return [*lines, *sentences]


def _setting_row(merged: MergedSetting, node_count: int) -> tuple[str, str, str, str, str]:
    setting = merged.setting
    nodes = f" @{_short(fold_hostlist(merged.nodes), 12)}" if len(merged.nodes) < node_count else ""
    return (
        f"{_short(merged.name, 36)}{nodes}",
        _short(setting.original or "?", 20),
        _short(setting.requested, 20),
        _short(setting.applied, 20) if setting.applied is not None else "failed",
        _after(setting),
    )


def _after(setting: AppliedSetting) -> str:
    if setting.applied is None:
        return "unchanged"
    return {True: "restored", False: "NOT restored", None: "still set"}[setting.restored]


def _nodes(job: JobUsage) -> list[str]:
    if len(job.records) < 2:
        return []
    component_types = job.component_types
    names = " ".join(f"{COMPONENT_NAMES.get(part, part).split()[0]:>9}" for part in component_types)
    lines = [f"{'node':<12} {'energy':>9} {'mean':>9} {'peak':>9} {names}"]
    for record in job.records[:_MAX_NODES]:
        node_usage = JobUsage((record,), job.job)
        figures = [with_unit(record.energy_joules, "J")]
        figures += [with_unit(watts, "W") for watts in (record.mean_watts, record.peak_watts)]
        figures += [
            with_unit(node_usage.component_joules(part), "J") if part in node_usage.component_types else ""
            for part in component_types
        ]
        lines.append(f"{_short(record.node, 12):<12} " + " ".join(f"{text:>9}" for text in figures).rstrip())
    remaining = len(job.records) - _MAX_NODES
    return [*lines, f"and {remaining} more: senergy job {job.display_id} --json"] if remaining > 0 else lines


def _steps(job: JobUsage) -> list[str]:
    steps = [step for step in job.steps if step.first.step != "extern"]
    if len(steps) < 2:
        return []
    head = f"{'step':<12} {'elapsed':>10} {'energy':>10} {'mean':>9}"
    return [head] + [
        f"{_short(step.first.step or '', 12):<12} {format_duration(step.elapsed_s):>10}"
        f" {with_unit(step.energy_joules, 'J'):>10} {with_unit(step.mean_watts, 'W'):>9}"
        for step in steps[:_MAX_NODES]
    ]


def combined_trace(job: JobUsage, points: int) -> PowerTrace | None:
    """Return the power of all nodes over time in at most `points` intervals; None if the job has no trace."""
    traces = [decode_trace(trace) for trace in job.traces.values()]
    filled = [trace for trace in traces if trace.length]
    return combine(filled, points) if filled else None


def _power(job: JobUsage, glyphs: Glyphs) -> list[str]:
    trace = combined_trace(job, PLOT_COLUMNS)
    if trace is None:
        return []
    total = trace.total()
    columns = _stretched(total)
    cap = requested_cap(job, "cap_watts")
    reference = (cap * len(job.traces), "cap") if cap else None
    lines = area_plot(columns, trace.duration_s, glyphs, 8, reference, _MARGIN)
    components = [part for part in trace.watts if part != "node"]
    if len(components) > 1:
        lines += ["", *(_component_line(part, trace.watts[part], glyphs) for part in components)]
    return lines


def _component_line(part: str, watts: Sequence[float], glyphs: Glyphs) -> str:
    known_watts = [value for value in watts if not math.isnan(value)]
    if not known_watts:
        return f"{COMPONENT_NAMES.get(part, part):>{_MARGIN}}  unknown"
    line = sparkline(_stretched(watts), max(known_watts), glyphs)
    span = f"{with_unit(min(known_watts), 'W')} to {with_unit(max(known_watts), 'W')}"
    return f"{COMPONENT_NAMES.get(part, part):>{_MARGIN}}  {line} {span}"


def _stretched(column: Sequence[float]) -> list[float]:
    """Return the values of a short power trace, repeated so that they fill the width of the plot."""
    return [column[i * len(column) // PLOT_COLUMNS] for i in range(PLOT_COLUMNS)]


def _notes(remarks: Sequence[Note]) -> list[str]:
    lines = []
    for note in remarks:
        lines += textwrap.wrap(note.text, WIDTH - 4, initial_indent="  * ", subsequent_indent="    ")
        if note.directive:
            lines.append(f"      #SBATCH {note.directive}")
    return lines


def _earlier_runs_note(job: JobUsage, runs: Sequence[JobUsage]) -> list[Note]:
    if not runs:
        return []
    energies = [run.energy_joules for run in runs if run.energy_joules is not None]
    spent = f" used {with_unit(sum(energies), 'J')} more" if energies else ""
    many = f"{len(runs)} earlier run{'s' if len(runs) > 1 else ''} of this job{spent}"
    return [Note("trust", f"{many}: senergy acct -D -j {job.display_id}")]
