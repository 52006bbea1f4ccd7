"""HTML pages of jobs: the energy label of one job, or a comparison of several.

A page is one file without external resources. The template or the SVG writer escapes text from users.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup

from slurm_energy.config import Config
from slurm_energy.quantities import format_duration
from slurm_energy.records import Quality
from slurm_energy.reports.acct.fields import requested_cap
from slurm_energy.reports.figure_format import percent, with_unit
from slurm_energy.reports.html_document import render
from slurm_energy.reports.labels.advice import COMPONENT_NAMES, notes
from slurm_energy.reports.labels.comparison import (
    ComparedWork,
    PolicyVariant,
    change_percent,
    compare,
    work_name,
)
from slurm_energy.reports.labels.settings import MergedSetting, merge_settings, short_settings
from slurm_energy.reports.labels.terminal_label import combined_trace, policy_text, requested_text
from slurm_energy.reports.plots.budget_charts import LEGEND
from slurm_energy.reports.plots.charts import (
    Bar,
    BarGroup,
    Series,
    bar_chart,
    embed,
    max_watts,
    power_chart,
    share_chart,
)
from slurm_energy.reports.time_spec import format_time
from slurm_energy.reports.usage import JobUsage, component_type, worst_quality
from slurm_energy.slurm.hostlist import fold_hostlist

WIDE, NARROW, SMALL = (1040, 300), (400, 240), (400, 210)
_WIDE_POINTS, _SMALL_POINTS = 240, 100
_Figure = Callable[[JobUsage], float | None]
_FIGURES: tuple[tuple[str, str, _Figure], ...] = (
    ("Time", "s", lambda usage: usage.elapsed_s),
    ("Energy", "J", lambda usage: usage.energy_joules),
    ("EDP", "J·s", lambda usage: usage.edp_joule_seconds),
)


def page(
    jobs: Sequence[JobUsage],
    title: str = "",
    remarks: Sequence[str] = (),
    now: datetime | None = None,
    config: Config | None = None,
    budgets: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return one HTML document: the energy label of one job, or a comparison of several.

    Args:
        jobs: at least one job, with power traces.
        title: heading; empty means a heading derived from the jobs.
        remarks: remarks at the top of the page, one paragraph each.
        now: current time for the footer; None omits the date.
        config: configuration of the site, with power limits and best known settings; None means the defaults.
        budgets: charts of the power under budgets, as `reports.budgets.page.budget_cards` returns them.
    """
    cards = {"budgets": budgets, "budget_legend": LEGEND}
    if len(jobs) == 1:
        return render("job.html.j2", _job_context(jobs[0], title, config) | cards, remarks, now)
    return render("comparison.html.j2", _comparison_context(jobs, title) | cards, remarks, now)


def _job_context(job: JobUsage, title: str, config: Config | None) -> dict[str, Any]:
    components = _component_rows(job)
    name = job.job.name or ""
    return {
        "title": title or f"Energy label of job {job.display_id}",
        "subtitle": " · ".join(text for text in (name, _owner(job), job.job.state or "") if text),
        "tiles": [
            ("Energy", with_unit(job.energy_joules, "J"), _hours(job)),
            ("Elapsed", format_duration(job.elapsed_s), _start_text(job.start)),
            ("Mean power", with_unit(job.mean_watts, "W"), _nodes_text(job)),
            (
                "Peak power",
                with_unit(job.peak_watts, "W"),
                "sum of the nodes' peaks" if len(job.records) > 1 else "",
            ),
            ("EDP", with_unit(job.edp_joule_seconds, "J·s"), "energy times delay"),
        ],
        "facts": _facts(job),
        "parts": components,
        "share": Markup(share_chart([p["bar"] for p in components], "Shares of the energy by component")),
        "without": []
        if job.energy_joules is None
        else [COMPONENT_NAMES[part] for part in job.unknown_components],
        "quality": job.quality if job.quality not in (None, Quality.MEASURED) else "",
        "charts": _job_charts(job),
        "settings": [_setting_row(merged, len(job.records)) for merged in merge_settings(job.records)],
        "nodes": _node_rows(job),
        "notes": notes(job, config),
    }


def _owner(job: JobUsage) -> str:
    user, account = job.job.user or job.first.user or str(job.first.uid), job.job.account
    return f"{user}/{account}" if account else user


def _hours(job: JobUsage) -> str:
    return "" if job.energy_joules is None else with_unit(job.energy_joules / 3600, "Wh")


def _start_text(moment: float) -> str:
    return f"from {format_time(moment, '%Y-%m-%d %H:%M')}"


def _nodes_text(job: JobUsage) -> str:
    count = len(job.records)
    whole = f" of {job.job.nodes}" if job.missing_nodes else ""
    return f"{count}{whole} node{'' if count == 1 else 's'}"


def _facts(job: JobUsage) -> list[tuple[str, str]]:
    first = job.first
    seconds = (
        ("Above the cap", job.seconds_above_cap),
        ("Throttled", job.throttled_seconds),
        ("Limited by a power budget", job.budget_capped_seconds),
        ("Uncertain", job.uncertain_seconds or None),
    )
    rows = [
        ("Policy", policy_text(job)),
        ("Requested", requested_text(job)),
        ("Model", first.model or ""),
        ("Tag", first.tag or ""),
        ("Partition", job.job.partition or first.partition or ""),
        ("Nodes", fold_hostlist(job.nodes)),
        ("CPUs", "" if job.cpus is None else str(job.cpus)),
        ("GPUs", str(sum(len(record.gpus) for record in job.records) or "")),
        *(
            (name, f"{value:.1f} s ({percent(value, job.elapsed_s) or '0 %'})")
            for name, value in seconds
            if value is not None
        ),
    ]
    return [(name, value) for name, value in rows if value]


def _component_rows(job: JobUsage) -> list[dict[str, Any]]:
    rows = []
    for part in job.component_types:
        joules = job.component_joules(part)
        measured = [
            c for c in job.components if component_type(c.name) == part and c.energy_joules is not None
        ]
        name, text = COMPONENT_NAMES.get(part, part), with_unit(joules, "J")
        rows.append(
            {
                "name": name,
                "color": part,
                "energy": text,
                "share": percent(joules, job.energy_joules),
                "quality": worst_quality(c.quality for c in measured) or "",
                "sources": ", ".join(sorted({c.source for c in measured if c.source})) or "no interface",
                "bar": Bar(name, part, None if part == "node" else joules, text),
            }
        )
    return rows


def _job_charts(job: JobUsage) -> list[dict[str, Any]]:
    """Return the power chart of a job in a wide and a narrow version.

    The page's CSS shows the version that fits the width of the screen.
    """
    charts = []
    cap = requested_cap(job, "cap_watts")
    for width_class, size, points in (("wide", WIDE, _WIDE_POINTS), ("narrow", NARROW, _SMALL_POINTS)):
        trace = combined_trace(job, points)
        if trace is None:
            return []
        measured = [part for part, watts in trace.watts.items() if not all(map(math.isnan, watts))]
        components = [part for part in measured if part != "node"] or measured
        series = [Series(COMPONENT_NAMES.get(p, p), p, trace.watts[p], trace.interval_s) for p in components]
        chart = power_chart(
            series,
            "Power over time by component",
            size,
            stacked=True,
            cap_watts=cap * len(job.traces) if cap else None,
        )
        charts.append({"width_class": width_class, "series": series, **embed(chart)})
    return charts


def _setting_row(merged: MergedSetting, node_count: int) -> dict[str, str]:
    setting = merged.setting
    state = {True: "restored", False: "not restored", None: "still set"}[setting.restored]
    failed = setting.applied is None
    return {
        "name": merged.name,
        "nodes": fold_hostlist(merged.nodes) if len(merged.nodes) < node_count else "",
        "before": setting.original or "?",
        "requested": setting.requested,
        "applied": setting.applied or "failed",
        "after": "unchanged" if failed else state,
        "note": setting.note,
        "bad": "bad" if failed or setting.restored is False else "",
    }


def _node_rows(job: JobUsage) -> list[dict[str, Any]]:
    if len(job.records) < 2:
        return []
    return [
        {
            "node": record.node,
            "energy": with_unit(record.energy_joules, "J"),
            "mean": with_unit(record.mean_watts, "W"),
            "peak": with_unit(record.peak_watts, "W"),
            "parts": ", ".join(
                f"{COMPONENT_NAMES.get(p, p)}"
                f" {with_unit(JobUsage((record,), job.job).component_joules(p), 'J')}"
                for p in JobUsage((record,), job.job).component_types
            ),
        }
        for record in job.records
    ]


def _comparison_context(jobs: Sequence[JobUsage], title: str) -> dict[str, Any]:
    works = compare(jobs)
    clusters = sorted({job.first.cluster for job in jobs})
    variants = {variant.name: variant.color for work in works for variant in work.variants}
    return {
        "title": title or f"{len(jobs)} jobs compared",
        "subtitle": f"{len(jobs)} jobs on {', '.join(clusters)},"
        f" {_start_text(min(job.start for job in jobs))}",
        "legend": list(variants.items()),
        "bars": [
            {
                "name": name,
                "svg": Markup(bar_chart(_bar_groups(works, figure, unit), f"{name} by work and policy")),
            }
            for name, unit, figure in _FIGURES
        ],
        "works": [_work_chart(work) for work in works],
        "rows": [
            _run_row(job, work, variant)
            for work in works
            for variant in work.variants
            for job in variant.jobs
        ],
    }


def _bar_groups(works: Sequence[ComparedWork], figure: _Figure, unit: str) -> list[BarGroup]:
    groups = []
    for work in works:
        base = work.baseline.mean(figure)
        bars = []
        for variant in work.variants:
            value = variant.mean(figure)
            change = None if variant is work.baseline else change_percent(value, base)
            bars.append(
                Bar(
                    variant.name,
                    variant.color,
                    value,
                    _figure_text(value, unit),
                    _change_text(change),
                )
            )
        groups.append(BarGroup(work.name, bars, base or 0.0))
    return groups


def _change_text(change: float | None) -> str:
    """Return a change as text, `+12 %` or `−3 %` with a true minus sign; empty for None."""
    if change is None:
        return ""
    return f"{change:+.0f} %".replace("-0 %", "0 %").replace("+0 %", "0 %").replace("-", "\N{MINUS SIGN}")


def _figure_text(value: float | None, unit: str) -> str:
    if unit == "s" and value is not None:
        return format_duration(value) if value >= 600 else f"{value:.1f} s"
    return with_unit(value, unit)


def _work_chart(work: ComparedWork) -> dict[str, Any]:
    series = []
    for variant in work.variants:
        trace = combined_trace(variant.jobs[0], _SMALL_POINTS)
        if trace is not None:
            series.append(Series(variant.name, variant.color, trace.total(), trace.interval_s))
    chart = power_chart(series, f"Power over time: {work.name}", SMALL, top_watts=max_watts(series) * 1.03)
    return (
        {"name": work.name, "series": series, **embed(chart)} if series else {"name": work.name, "series": []}
    )


def _run_row(job: JobUsage, work: ComparedWork, variant: PolicyVariant) -> dict[str, Any]:
    base = work.baseline
    compared = (
        (change_percent(figure(job), base.mean(figure)) if job not in base.jobs else None)
        for _, _, figure in _FIGURES
    )
    return {
        "id": job.display_id,
        "work": work_name(job),
        "nodes": fold_hostlist(job.nodes),
        "policy": variant.name,
        "color": variant.color,
        "settings": short_settings(job.records),
        "figures": [
            (_figure_text(figure(job), unit), _change_text(change))
            for (_, unit, figure), change in zip(_FIGURES, compared, strict=True)
        ],
        "mean": with_unit(job.mean_watts, "W"),
        "peak": with_unit(job.peak_watts, "W"),
        "quality": job.quality or "unknown",
        "state": job.job.state or "",
    }
