"""Text, CSV and JSON output of `senergy report`, in the layout of sreport."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.reports.table import delimited, fit
from slurm_energy.reports.utilization.columns import Tres, unit_of
from slurm_energy.reports.utilization.grammar import ReportKind, ReportRequest
from slurm_energy.reports.utilization.lines import Line, SizeClass
from slurm_energy.reports.utilization.table import CellStyle, ReportTable
from slurm_energy.reports.utilization.units import PercentMode
from slurm_energy.reports.utilization.usage import Amounts, UsageDocument
from slurm_energy.safe_text import escape_controls, escape_csv

FORMAT_VERSION: Final = 1
_RULE: Final = "-" * 80
_TITLES: Final = {
    ReportKind.UTILIZATION: "Cluster Utilization",
    ReportKind.ACCOUNT_BY_USER: "Cluster/Account/User Utilization",
    ReportKind.USER_BY_ACCOUNT: "Cluster/User/Account Utilization",
    ReportKind.ACCOUNT_BY_QOS: "Cluster/Account/QOS Utilization",
    ReportKind.BY_PARTITION: "Cluster/Partition Utilization",
    ReportKind.BY_POLICY: "Cluster/Policy Utilization",
    ReportKind.BY_TAG: "Cluster/Tag Utilization",
    ReportKind.BY_GPU_KIND: "Cluster/GPU Kind Utilization",
    ReportKind.SIZES_BY_ACCOUNT: "Job Sizes",
}
_PERCENT_TEXT: Final = "Percentage of Total"


def title_lines(
    request: ReportRequest, document: UsageDocument, tres: Sequence[Tres], style: CellStyle
) -> list[str]:
    """Return the lines of a report's title between two lines of dashes, as sreport prints it."""
    start, end = (style.time_text(time) for time in (document.start, document.end - 1))
    title = _TITLES.get(request.kind, f"Top {request.top_count} Users")
    seconds = f" ({document.end - document.start:.0f} secs)"
    lines = [f"{title} {start} - {end}" + ("" if request.kind is ReportKind.UTILIZATION else seconds)]
    if request.interval.value != "all":
        lines[0] += f" by {request.interval}"
    if request.kind is ReportKind.SIZES_BY_ACCOUNT:
        lines += _size_units(request, tres, style)
    else:
        lines.append(f"Usage reported in {_units_text(request, document, tres, style)}")
    return [_RULE, *lines, _RULE]


def _size_units(request: ReportRequest, tres: Sequence[Tres], style: CellStyle) -> list[str]:
    if request.job_count:
        return ["Units are in number of jobs ran"]
    (quantity,) = tres
    unit = (
        _PERCENT_TEXT
        if style.units.percent is PercentMode.ONLY
        else _with_percent(unit_of(quantity, style.units, style.currency), style)
    )
    return [f"TRES type is {quantity}", f"{'Time' if quantity.is_time else 'Amount'} reported in {unit}"]


def _units_text(
    request: ReportRequest, document: UsageDocument, tres: Sequence[Tres], style: CellStyle
) -> str:
    if style.units.percent is PercentMode.ONLY:
        return _PERCENT_TEXT
    time = _with_percent(style.units.time, style)
    texts = []
    for one in tres or (Tres.ENERGY,):
        name = "energy" if one.is_energy else "TRES" if one.is_time else str(one)
        texts.append(f"{name} {time if one.is_time else unit_of(one, style.units, document.currency)}")
    if not tres and request.kind is not ReportKind.UTILIZATION:
        texts.insert(0, f"CPU {time}")
    return ", ".join(dict.fromkeys(texts))


def _with_percent(unit: str, style: CellStyle) -> str:
    return f"{unit}/{_PERCENT_TEXT}" if style.units.percent is PercentMode.BOTH else unit


def text_lines(table: ReportTable, *, header: bool) -> Iterator[str]:
    """Yield the lines of a table with columns of fixed width."""
    if header:
        yield _fixed(table.headers, table)
        yield " ".join("-" * width for width in table.widths)
    for row in table.rows:
        yield _fixed(row, table)


def delimited_lines(table: ReportTable, *, header: bool, trailing: bool) -> Iterator[str]:
    """Yield the lines of a table with values separated by `|`."""
    end = "|" if trailing else ""
    for row in [*([table.headers] if header else []), *table.rows]:
        yield delimited(row, "|") + end


def csv_text(table: ReportTable, *, header: bool) -> str:
    """Return a table as CSV (RFC 4180), with text escaped that a spreadsheet would take for a formula."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    if header:
        writer.writerow(map(escape_controls, table.headers))
    for row in table.rows:
        cells = zip(row, table.text_columns, strict=True)
        writer.writerow([escape_csv(escape_controls(text)) if name else text for text, name in cells])
    return output.getvalue()


def _fixed(values: Sequence[str], table: ReportTable) -> str:
    columns = zip(values, table.widths, table.left, strict=True)
    return " ".join(fit(value, width, left) for value, width, left in columns).rstrip()


def json_document(
    request: ReportRequest,
    document: UsageDocument,
    lines: Sequence[Line],
    classes: Sequence[SizeClass],
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the document of `senergy report --json`: every line with all its amounts in base units."""
    return {
        "meta": {"format": FORMAT_VERSION, "senergy": __version__},
        "report": str(request.kind),
        "window": {"start": document.start, "end": document.end},
        "scope": document.scope,
        "meter_visible": document.meter_visible,
        "missing_node_seconds": document.data.get("missing_node_seconds"),
        "off": document.data.get("off"),
        "currency": document.currency or None,
        "basis": document.data.get("basis") or None,
        "rows": [_json_row(line, document, request, classes) for line in lines],
        "notes": list(notes),
    }


def _json_row(
    line: Line, document: UsageDocument, request: ReportRequest, classes: Sequence[SizeClass]
) -> Mapping[str, Any]:
    start, end = document.intervals[line.interval]
    names = {name: value or None for name, value in line.names.items() if line.kind == "job"}
    row: dict[str, Any] = {"cluster": line.cluster, "start": start, "end": end, "kind": line.kind, **names}
    row |= _json_amounts(line.amounts)
    if request.kind is ReportKind.UTILIZATION:
        row["parts"] = dict(zip(("job", "idle", "unattributed"), map(_json_amounts, line.parts), strict=True))
    if request.kind is ReportKind.SIZES_BY_ACCOUNT:
        row["sizes"] = [
            {"min_cpus": one.low, "max_cpus": one.high, **_json_amounts(part)}
            for one, part in zip(classes, line.parts, strict=True)
        ]
    return row


def _json_amounts(amounts: Amounts) -> dict[str, Any]:
    return amounts.to_json() | {"energy_joules": amounts.energy_joules, "energy_kwh": amounts.energy_kwh}
