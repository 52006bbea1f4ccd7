"""Text of the cells of `senergy report`: names, and amounts in the chosen units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.reports.utilization.columns import (
    ReportColumn,
    Source,
    Tres,
    header_of,
    used_width,
)
from slurm_energy.reports.utilization.lines import Line, SizeClass
from slurm_energy.reports.utilization.units import (
    PercentMode,
    ReportUnits,
    energy_decimals,
    exact_energy,
    percent_text,
    scaled_text,
)
from slurm_energy.reports.utilization.usage import JOB, Amounts
from slurm_energy.safe_text import display_width, escape_controls

UNKNOWN: Final = "unknown"
_GRAMS_PER_KG: Final = 1000.0
_SIZE_WIDTH, _SIZE_WIDTH_PERCENT, _CLUSTER_SHARE_WIDTH = 13, 20, 12


@dataclass(frozen=True, slots=True)
class CellStyle:
    """Format of the cells of a report.

    Attributes:
        units: units of time and energy.
        exact: whether amounts are written for programs. If so, known amounts are exact, and unknown amounts
            are empty.
        currency: currency of the cost.
        time_text: function that returns a Unix time as text.
        proper_name: function that returns the real name of a user; empty if unknown.
    """

    units: ReportUnits
    exact: bool
    currency: str
    time_text: Callable[[float], str]
    proper_name: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class ReportTable:
    """The cells of a report, as text.

    Attributes:
        headers: header of each column.
        widths: width of each column.
        left: whether each column is left-justified.
        rows: texts by row and column.
        text_columns: for each column, whether its cells are names, which users may have chosen.
    """

    headers: Sequence[str]
    widths: Sequence[int]
    left: Sequence[bool]
    rows: Sequence[Sequence[str]]
    text_columns: Sequence[bool]


def report_table(
    lines: Sequence[Line],
    columns: Sequence[ReportColumn],
    intervals: Sequence[tuple[float, float]],
    tres: Sequence[Tres],
    style: CellStyle,
    *,
    tree: bool = False,
) -> ReportTable:
    """Return the table of a report.

    Args:
        lines: lines of the report.
        columns: columns of the report.
        intervals: start and end of each interval.
        tres: quantities of -T. Each line of the report has one row per quantity. If there are no
            quantities, each line has one row.
        style: format of the cells.
        tree: indent accounts by their depth in the hierarchy.
    """
    records = [(line, quantity) for line, quantity in _records(lines, tres)]
    cells = [_Cells(column, records, intervals, style, tree=tree) for column in columns]
    return ReportTable(
        [one.header for one in cells],
        [one.width for one in cells],
        [column.left for column in columns],
        [list(row) for row in zip(*(one.texts for one in cells), strict=True)] if cells else [],
        [not column.is_number for column in columns],
    )


def size_table(
    lines: Sequence[Line],
    columns: Sequence[ReportColumn],
    intervals: Sequence[tuple[float, float]],
    classes: Sequence[SizeClass],
    tres: Tres | None,
    style: CellStyle,
) -> ReportTable:
    """Return the table of a report about job sizes.

    Args:
        lines: lines of the report, with an amount per class.
        columns: leading columns, which contain names such as accounts.
        intervals: start and end of each interval.
        classes: classes of jobs by size, each of which has a column.
        tres: quantity that the cells show; None means the number of jobs.
        style: format of the cells.
    """
    head = report_table(lines, columns, intervals, (), style)
    width = _SIZE_WIDTH_PERCENT if style.units.percent is PercentMode.BOTH else _SIZE_WIDTH
    rows = [list(row) for row in head.rows]
    values = [[_value(part, tres) for part in line.parts] for line in lines]
    decimals = energy_decimals((int(v) for row in values for v in row if v is not None), style.units.energy)
    for row, line in zip(rows, lines, strict=True):
        whole = _value(line.amounts, tres)
        row += [_size_text(_value(part, tres), whole, tres, style, decimals) for part in line.parts]
        row.append(_share_text(whole, _value(line.whole, tres), style))
    count = len(classes)
    first = len(head.headers)
    widths = [max([width, *(len(row[first + i]) for row in rows)]) for i in range(count)]
    return ReportTable(
        [*head.headers, *(one.title for one in classes), "% of cluster"],
        [*head.widths, *widths, _CLUSTER_SHARE_WIDTH],
        [*head.left, *[False] * (count + 1)],
        rows,
        [*head.text_columns, *[False] * (count + 1)],
    )


def _records(lines: Sequence[Line], tres: Sequence[Tres]) -> Iterator[tuple[Line, Tres | None]]:
    for line in lines:
        if not tres:
            yield line, None
        for quantity in tres:
            # Nodes, not jobs, use idle energy: there is no CPU time of it.
            if line.kind == JOB or not quantity.is_time:
                yield line, quantity


class _Cells:
    """The cells of one column of a report, formatted as texts."""

    def __init__(
        self,
        column: ReportColumn,
        records: Sequence[tuple[Line, Tres | None]],
        intervals: Sequence[tuple[float, float]],
        style: CellStyle,
        *,
        tree: bool,
    ) -> None:
        self._column, self._intervals, self._style, self._tree = column, intervals, style, tree
        self._own_tres = column.tres or Tres.CPU
        self._follows_row = column.source in (Source.USED, Source.PART)
        energies = (self._amount(line, tres) for line, tres in records if self._tres(tres).is_energy)
        self._decimals = energy_decimals((int(v) for v in energies if v is not None), style.units.energy)
        self.header = header_of(column, style.units, style.currency)
        if column.source == Source.AMOUNT and any(tres is not None for _, tres in records):
            self.header = header_of(column, style.units, style.currency)
        text = self._amount_text if column.is_number else self._name
        self.texts = [text(line, tres) for line, tres in records]
        self.width = self._width(records)

    def _width(self, records: Sequence[tuple[Line, Tres | None]]) -> int:
        column = self._column
        if column.fixed or not column.is_number:
            return column.width
        widest = max((display_width(escape_controls(text)) for text in self.texts), default=0)
        if column.source == Source.USED:
            times = (line.amounts.cpu_seconds or 0 for line, tres in records if self._tres(tres) is Tres.CPU)
            return max(used_width(max(times, default=0), self._style.units.percent), widest)
        return max(column.width, len(self.header), widest)

    def _tres(self, tres: Tres | None) -> Tres:
        """Return the quantity that this column shows in a row of the report.

        The quantity is either fixed for the column or given by the row.
        """
        return tres if tres is not None and self._follows_row else self._own_tres

    def _amount(self, line: Line, tres: Tres | None) -> float | None:
        column = self._column
        amounts = line.amounts if column.part is None else line.parts[column.part]
        return self._tres(tres).amount(amounts)

    def _name(self, line: Line, tres: Tres | None) -> str:
        column, style = self._column, self._style
        if column.source == Source.CLUSTER:
            return line.cluster
        if column.source == Source.START:
            return style.time_text(self._intervals[line.interval][0])
        if column.source == Source.TRES_NAME:
            return str(tres or Tres.CPU)
        if column.source == Source.PROPER:
            return style.proper_name(line.names["user"]) if line.names.get("user") else ""
        indent = " " * line.depth if self._tree and column.source == "account" else ""
        return indent + line.names.get(column.source, "")

    def _amount_text(self, line: Line, tres: Tres | None) -> str:
        column, style = self._column, self._style
        if column.source == Source.JOBS:
            return "" if line.kind != JOB else _count_text(line.amounts.jobs, style)
        if column.source == Source.SHARE:
            return _share_text(line.amounts.energy_uj, line.whole.energy_uj, style).removesuffix("%")
        quantity = self._tres(tres)
        if line.kind != JOB and quantity.is_time:
            return ""
        whole = quantity.amount(line.whole)
        return amount_text(quantity, self._amount(line, tres), whole, style, self._decimals)


def amount_text(tres: Tres, value: float | None, whole: float | None, style: CellStyle, decimals: int) -> str:
    """Return an amount as text, a percentage, or both, as `style.units` demands.

    Args:
        tres: quantity of the amount.
        value: microjoules, seconds, grams or currency units; None if unknown.
        whole: amount relative to which the percentage is computed.
        style: format of the cells.
        decimals: decimals of energies, unless they are exact.
    """
    if value is None or (style.units.percent is not PercentMode.NONE and whole is None):
        return "" if style.exact else UNKNOWN
    if style.units.percent is PercentMode.NONE:
        return _plain(tres, value, style, decimals)
    percent = percent_text(value, whole or 0)
    if style.units.percent is PercentMode.ONLY:
        return percent
    return f"{_plain(tres, value, style, decimals)}({percent})"


def _plain(tres: Tres, value: float, style: CellStyle, decimals: int) -> str:
    if tres.is_time:
        return f"{value / style.units.time.seconds:.0f}"
    if tres.is_energy:
        if style.exact:
            return exact_energy(int(value), style.units.energy)
        return scaled_text(int(value), style.units.energy.microjoules, decimals)
    value = value / _GRAMS_PER_KG if tres is Tres.CO2E else value
    if style.exact:
        return f"{value:.9f}".rstrip("0").rstrip(".")
    return f"{value:.3f}" if tres is Tres.CO2E else f"{value:.2f}"


def _count_text(count: int | None, style: CellStyle) -> str:
    return str(count) if count is not None else "" if style.exact else UNKNOWN


def _share_text(value: float | None, whole: float | None, style: CellStyle) -> str:
    if value is None or whole is None:
        return "" if style.exact else UNKNOWN
    return percent_text(value, whole)


def _value(amounts: Amounts, tres: Tres | None) -> float | None:
    return amounts.jobs if tres is None else tres.amount(amounts)


def _size_text(
    value: float | None, whole: float | None, tres: Tres | None, style: CellStyle, decimals: int
) -> str:
    if tres is None:
        return _count_text(None if value is None else int(value), style)
    return amount_text(tres, value, whole, style, decimals)
