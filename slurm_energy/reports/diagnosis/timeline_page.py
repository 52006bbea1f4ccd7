"""HTML page of a job's timeline. The size of the page is limited, even for large jobs.

The template or the SVG writer escapes text from users.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from markupsafe import Markup

from slurm_energy.diagnosis.finding import JobFinding
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.signals import SIGNALS, ObservedSeries
from slurm_energy.diagnosis.timeline.finding_tracks import finding_start_s
from slurm_energy.diagnosis.timeline.overview import CATEGORIES, OTHER, STEP, Overview
from slurm_energy.quantities import format_duration
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.reports.html_document import render
from slurm_energy.reports.labels.advice import COMPONENT_NAMES
from slurm_energy.reports.labels.job_page import NARROW, WIDE
from slurm_energy.reports.plots.charts import Series, embed, power_chart
from slurm_energy.reports.plots.signal_columns import columns_of, sum_columns
from slurm_energy.reports.plots.timeline_charts import PHASE_COLORS, process_rows, signal_chart, signal_legend
from slurm_energy.reports.trace import COMPONENT_ORDER
from slurm_energy.reports.usage import component_type
from slurm_energy.safe_text import escape_controls

POWER: Final = "power_watts"
MAX_FINDINGS: Final = 50
MAX_SIGNALS: Final = 48
_LEGEND_NAMES: Final = {OTHER: "other sections", STEP: "rest of the step"}
_WIDE_POINTS, _SMALL_POINTS = 240, 100


@dataclass(frozen=True, slots=True)
class TimelinePage:
    """Content of a timeline page.

    Attributes:
        title: heading.
        subtitle: line below the heading.
        nodes: node observations of the job, by node name.
        findings: findings, the most important first.
        overview: time of the processes by phase.
        events: number of events in the overview.
        process_count: number of processes with known events or steps.
        node_count: number of nodes about which the page has any data.
        energy_joules: energy of the job; None if unknown.
        remarks: remarks at the top of the page.
    """

    title: str
    subtitle: str
    nodes: Sequence[NodeObservation]
    findings: Sequence[JobFinding]
    overview: Overview
    events: int
    process_count: int
    node_count: int
    energy_joules: float | None
    remarks: Sequence[str]


def timeline_page(page: TimelinePage, now: datetime | None = None) -> str:
    """Return the page as one HTML document.

    Args:
        page: content of the page.
        now: current time for the footer; None omits the date.
    """
    window = page.overview.window
    rows = [row for row in page.overview.rows if row.nanoseconds]
    findings = page.findings[:MAX_FINDINGS]
    starts = [(number, finding_start_s(finding, window)) for number, finding in enumerate(findings, 1)]
    marks = [(number, start_s) for number, start_s in starts if start_s is not None]
    used = {name for row in rows for name in row.nanoseconds}
    context = {
        "title": escape_controls(page.title),
        "subtitle": escape_controls(page.subtitle),
        "tiles": [
            ("Shown time", format_duration(window.to_s - window.from_s), _start_text(window.from_s)),
            (
                "Processes",
                str(page.process_count),
                f"on {page.node_count} node{'' if page.node_count == 1 else 's'}",
            ),
            ("Events", f"{page.events:,}", "of event files and profiler traces"),
            ("Energy", with_unit(page.energy_joules, "J"), "of the whole job"),
        ],
        "legend": [
            (_LEGEND_NAMES.get(name, name), PHASE_COLORS[name]) for name in CATEGORIES if name in used
        ],
        "rows": Markup(process_rows(page.overview, marks)) if rows else "",
        "has_marks": bool(marks),
        "findings": [_finding_row(number, finding) for number, finding in enumerate(findings, 1)],
        "charts": _power_charts(page),
        "signals": _signal_cards(page),
    }
    return render("timeline.html.j2", context, [escape_controls(text) for text in page.remarks], now)


def _start_text(start_s: float) -> str:
    return f"from {datetime.fromtimestamp(start_s):%Y-%m-%d %H:%M:%S}" if start_s else ""


def _finding_row(number: int, finding: JobFinding) -> dict[str, Any]:
    return {
        "number": number,
        "kind": finding.kind.value,
        "title": escape_controls(finding.title),
        "where": escape_controls(", ".join(finding.where[:8])) + (" ..." if len(finding.where) > 8 else ""),
        "time": "" if finding.seconds_lost is None else format_duration(finding.seconds_lost),
        "energy": "" if finding.joules_lost is None else with_unit(finding.joules_lost, "J"),
    }


def _power_charts(page: TimelinePage) -> list[dict[str, Any]]:
    """Return the chart of power by component in a wide and a narrow version."""
    window = page.overview.window
    by_component: dict[str, list[ObservedSeries]] = {}
    for node in page.nodes:
        for series in node.series:
            if series.name == POWER:
                by_component.setdefault(component_type(series.part), []).append(series)
    names = [name for name in by_component if name != "node"] or list(by_component)
    names.sort(
        key=lambda name: COMPONENT_ORDER.index(name) if name in COMPONENT_ORDER else len(COMPONENT_ORDER)
    )
    charts = []
    for width_class, size, points in (("wide", WIDE, _WIDE_POINTS), ("narrow", NARROW, _SMALL_POINTS)):
        layers = []
        for name in names:
            columns = sum_columns([columns_of(series, window, points) for series in by_component[name]])
            if not all(map(math.isnan, columns)):
                interval_s = (window.to_s - window.from_s) / points
                layers.append(Series(COMPONENT_NAMES.get(name, name), name, columns, interval_s))
        if layers:
            chart = power_chart(layers, "Power over time by component", size, stacked=True)
            charts.append({"width_class": width_class, "series": layers, **embed(chart)})
    return charts


def _signal_cards(page: TimelinePage) -> list[dict[str, Any]]:
    """Return the charts of all signals that have known values in the shown time.

    The charts are in the order of the registry.
    """
    window = page.overview.window
    by_name: dict[str, list[ObservedSeries]] = {name: [] for name in SIGNALS}
    for node in page.nodes:
        for series in node.series:
            if series.name != POWER and series.start_s < window.to_s and series.end_s > window.from_s:
                by_name.setdefault(series.name, []).append(series)
    cards: list[dict[str, Any]] = []
    for name, series_of_name in by_name.items():
        known = [series for series in series_of_name if series.known()]
        if known and len(cards) < MAX_SIGNALS:
            description = SIGNALS[name].description if name in SIGNALS else ""
            svg = Markup(signal_chart(name, known, window))
            cards.append(
                {
                    "name": escape_controls(name),
                    "description": description,
                    "legend": signal_legend(known),
                    "svg": svg,
                }
            )
    return cards
