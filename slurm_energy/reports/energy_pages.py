"""HTML pages about the energy of a cluster, an account or a user in a time window.

Several pages form a static web site. Their links are relative, so that the web site works without a server.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from markupsafe import Markup

from slurm_energy.grid.amount_text import cost_text, grams_text
from slurm_energy.quantities import format_duration
from slurm_energy.reports.figure_format import plain, with_unit
from slurm_energy.reports.html_document import render
from slurm_energy.reports.largest_jobs import MAX_JOBS
from slurm_energy.reports.plots.column_chart import ColumnLayer, column_chart
from slurm_energy.reports.time_spec import format_time
from slurm_energy.reports.usage import JobUsage
from slurm_energy.reports.utilization.usage import (
    IDLE,
    JOB,
    UNATTRIBUTED,
    UNKNOWN_ENERGY,
    Amounts,
    UsageDocument,
    UsageRow,
    group_amounts,
    total,
)

INDEX: Final = "index.html"
NONE: Final = "(none)"
_UNKNOWN: Final = "unknown"
_MAX_LAYERS: Final = 7
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TABLES: Final = (
    ("account", "Accounts"),
    ("user", "Users"),
    ("policy", "Policies"),
    ("partition", "Partitions"),
)


@dataclass(frozen=True, slots=True)
class PageSubject:
    """Subject of a page: the whole cluster, an account or a user.

    Attributes:
        dimension: `account` or `user`; empty means the whole cluster.
        name: name of the account or user.
    """

    dimension: str = ""
    name: str = ""

    @property
    def title(self) -> str:
        """Title of the page."""
        return f"Energy of {self.dimension} {self.name}" if self.dimension else "Energy of the cluster"

    @property
    def file_name(self) -> str:
        """Name of the file, unique for each subject and safe on every file system."""
        if not self.dimension:
            return INDEX
        if _PLAIN_NAME.fullmatch(self.name) and not self.name.startswith("."):
            return f"{self.dimension}-{self.name}.html"
        digest = hashlib.sha256(self.name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return f"{self.dimension}-~{digest}.html"

    def includes(self, row: UsageRow) -> bool:
        """Return whether a row of the usage table belongs to this page.

        The page of an account or user contains the rows of the jobs of this account or user. The page of the
        whole cluster contains all rows.
        """
        return not self.dimension or (
            row.kind == JOB and (row.names.get(self.dimension) or NONE) == self.name
        )


def subjects(document: UsageDocument) -> list[PageSubject]:
    """Return what the pages are about: the whole cluster, then each account, then each user, by name.

    Each page shows the energy of one of these subjects.
    """
    found = [PageSubject()]
    for dimension in ("account", "user"):
        names = sorted({row.names.get(dimension) or NONE for row in document.rows if row.kind == JOB})
        found += [PageSubject(dimension, name) for name in names]
    return found


def energy_page(
    subject: PageSubject,
    document: UsageDocument,
    jobs: Iterable[JobUsage],
    linked: Iterable[PageSubject] = (),
    now: datetime | None = None,
) -> str:
    """Return one page as an HTML document.

    Args:
        subject: cluster, account or user that the page is about.
        document: usage by account, user, policy and partition, in the intervals of the chart.
        jobs: jobs that ran in the time window.
        linked: subjects whose pages are in the same directory; the page has links to these pages.
        now: current time for the footer; None omits the date.
    """
    rows = [row for row in document.rows if subject.includes(row)]
    links = {(one.dimension, one.name): one.file_name for one in linked if one != subject}
    names = _chart_names(subject, rows)
    labels = [_interval_label(start, end) for start, end in document.intervals]
    layers = _layers(rows, names, document)
    context = {
        "title": subject.title,
        "subtitle": _subtitle(document),
        "home": INDEX if ("", "") in links else "",
        "tiles": _tiles(rows, document),
        "chart": Markup(column_chart(layers, labels, f"{subject.title} by interval", "kWh")),
        "legend": [(layer.name, layer.color) for layer in layers],
        "chart_table": [(label, [layer.texts[i] for layer in layers]) for i, label in enumerate(labels)],
        "tables": [
            _table(dimension, title, rows, document, links)
            for dimension, title in _TABLES
            if dimension != subject.dimension
        ],
        "jobs": _jobs(subject, jobs),
        "max_jobs": MAX_JOBS,
    }
    basis = document.data.get("basis")
    return render("energy.html.j2", context, [*document.notes, *([str(basis)] if basis else [])], now)


def _subtitle(document: UsageDocument) -> str:
    clusters = document.clusters
    name = f"cluster {clusters[0]}" if len(clusters) == 1 else f"{len(clusters)} clusters"
    scope = "" if document.scope == "all" else ": the jobs that you may see"
    return f"{name}, {format_time(document.start)} to {format_time(document.end)}{scope}"


def _interval_label(start: float, end: float) -> str:
    """Return the name of an interval, for the axis of the chart and for the table."""
    hours = (end - start) / 3600
    return datetime.fromtimestamp(start).strftime("%d %b %H:%M" if hours < 23 else "%d %b")


def _kwh_text(amounts: Amounts) -> str:
    kwh = amounts.energy_kwh
    if kwh is None:
        return _UNKNOWN
    if 0 < kwh < 1e-6:
        return f"{kwh:.1e} kWh"
    text = f"{kwh:,.1f}" if kwh >= 100 else plain(kwh, 3 if kwh >= 0.1 else 6)
    return f"{text} kWh"


def _kwh_cell(kwh: float | None, unit: str = "") -> str:
    """Return an energy as text for a table column in which the decimal points are aligned."""
    if kwh is None:
        return _UNKNOWN
    return (f"{kwh:.1e}" if 0 < kwh < 0.0005 else f"{kwh:,.3f}") + unit


def _by_energy(sums: Mapping[str, Amounts]) -> list[str]:
    """Return the names of the sums, those with the most energy first and unknown energies last."""
    return sorted(sums, key=lambda name: (sums[name].energy_uj is None, -(sums[name].energy_uj or 0), name))


def _chart_names(subject: PageSubject, rows: Sequence[UsageRow]) -> Mapping[str, Callable[[UsageRow], bool]]:
    """Return the layers of the stacked chart on an energy page.

    The layers are the accounts (or users) with the most energy, all others together, idle energy and
    unattributed energy. The keys of the result are the names of the layers. Each value is a function that
    returns whether a row of the usage table belongs to the layer.
    """
    by = "user" if subject.dimension == "account" else "account"
    sums = group_amounts((row for row in rows if row.kind == JOB), lambda row: row.names.get(by) or NONE)
    largest = _by_energy(sums)[: _MAX_LAYERS - 3]

    def has(name: str) -> Callable[[UsageRow], bool]:
        return lambda row: row.kind == JOB and (row.names.get(by) or NONE) == name

    tests = {f"{by} {name}": has(name) for name in largest}
    if len(sums) > len(largest):
        tests[f"other {by}s"] = lambda row: row.kind == JOB and (row.names.get(by) or NONE) not in largest
    for kind in (IDLE, UNATTRIBUTED):
        if any(row.kind == kind for row in rows):
            tests[kind] = _is_kind(kind)
    return tests


def _is_kind(kind: str) -> Callable[[UsageRow], bool]:
    return lambda row: row.kind == kind


def _layers(
    rows: Sequence[UsageRow], tests: Mapping[str, Callable[[UsageRow], bool]], document: UsageDocument
) -> list[ColumnLayer]:
    layers = []
    measured = {row.interval for row in document.rows if row.amounts.energy_uj is not None}
    for number, (name, test) in enumerate(tests.items()):
        sums = group_amounts((row for row in rows if test(row)), lambda row: row.interval)
        of_meter = name in (IDLE, UNATTRIBUTED)  # without a row, 0 only if nodes were measured
        amounts = [
            sums.get(i, UNKNOWN_ENERGY if of_meter and i not in measured else Amounts())
            for i in range(len(document.intervals))
        ]
        color = "other" if of_meter else f"v{number + 1}"
        color = "text" if name == UNATTRIBUTED else color
        texts = [_kwh_cell(one.energy_kwh, " kWh") for one in amounts]
        layers.append(ColumnLayer(name, color, [one.energy_kwh for one in amounts], texts))
    return layers


def _tiles(rows: Sequence[UsageRow], document: UsageDocument) -> list[tuple[str, str, str]]:
    """Return name, value and remark of each figure on top of the page, such as energy and cost."""
    jobs = total(row.amounts for row in rows if row.kind == JOB)
    whole = total(row.amounts for row in rows)
    meter = "" if whole.energy_uj == jobs.energy_uj else f"{_kwh_text(whole)} with idle energy"
    tiles = [("Energy of jobs", _kwh_text(jobs), meter)]
    if document.has_carbon:
        tiles.append(("Emissions", grams_text(jobs.co2e_grams) or _UNKNOWN, "CO2e"))
    if document.currency:
        tiles.append(("Cost", cost_text(jobs.cost, document.currency) or _UNKNOWN, ""))
    hours = _UNKNOWN if jobs.cpu_seconds is None else f"{jobs.cpu_seconds / 3600:,.1f}"
    tiles.append(("CPU hours", hours, ""))
    if jobs.gpu_seconds:
        tiles.append(("GPU hours", f"{jobs.gpu_seconds / 3600:,.1f}", ""))
    return tiles


def _table(
    dimension: str,
    title: str,
    rows: Sequence[UsageRow],
    document: UsageDocument,
    links: Mapping[tuple[str, str], str],
) -> dict[str, Any]:
    """Return one table of the page: energy, emissions, cost and time for each value of a dimension."""
    jobs = [row for row in rows if row.kind == JOB]
    sums = group_amounts(jobs, lambda row: row.names.get(dimension) or NONE)
    whole_uj = sum(one.energy_uj or 0 for one in sums.values())
    header = ["kWh", "share"]
    header += ["CO2e"] if document.has_carbon else []
    header += [f"cost ({document.currency})"] if document.currency else []
    lines = []
    for name in _by_energy(sums):
        amounts = sums[name]
        energy_uj = amounts.energy_uj
        share = f"{100 * energy_uj / whole_uj:.1f} %" if whole_uj and energy_uj is not None else ""
        cells = [_kwh_cell(amounts.energy_kwh), share]
        cells += [grams_text(amounts.co2e_grams) or _UNKNOWN] if document.has_carbon else []
        cost = cost_text(amounts.cost, document.currency).removesuffix(f" {document.currency}")
        cells += [cost or _UNKNOWN] if document.currency else []
        cells.append("" if amounts.cpu_seconds is None else f"{amounts.cpu_seconds / 3600:,.1f}")
        lines.append((name, links.get((dimension, name), ""), cells))
    return {"title": title, "name": dimension, "header": [*header, "CPU hours"], "rows": lines}


def _jobs(subject: PageSubject, jobs: Iterable[JobUsage]) -> list[dict[str, Any]]:
    """Return the rows of a page's table of jobs: the jobs with the most energy.

    The page is about one subject, such as an account or a user. Only its jobs are shown.
    """

    def belongs(job: JobUsage) -> bool:
        values = {"account": job.job.account, "user": job.job.user or job.first.user}
        return not subject.dimension or (values[subject.dimension] or NONE) == subject.name

    own = [job for job in jobs if belongs(job)]
    own.sort(key=lambda job: (-(job.energy_joules or 0.0), job.first.job_id))
    return [_job_row(job) for job in own[:MAX_JOBS]]


def _job_row(job: JobUsage) -> dict[str, Any]:
    info = job.job
    return {
        "id": job.display_id,
        "name": info.name or "",
        "user": info.user or job.first.user or "",
        "account": info.account or "",
        "state": info.state or "",
        "policy": job.first.policy,
        "start": format_time(job.start),
        "elapsed": format_duration(job.elapsed_s),
        "kwh": _kwh_cell(job.energy_kwh),
        "watts": with_unit(job.mean_watts, "W"),
        "quality": str(job.quality or _UNKNOWN),
    }
