"""Tables as text columns or delimited lines. Widths, truncation and headers follow sacct."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.reports.acct.fields import Field, Row, Style, find_in
from slurm_energy.safe_text import display_width, escape_controls, escape_csv

MAX_WIDTH = 4096
ALL = "all"
"""The word for all fields, in any case of letters, as in sacct."""
_TIME_WORDS = ("Unknown", "None")  # sacct cuts them, and fills the column for other times
_CSV_DELIMITERS = (",", ";", "\t")
_ITEM = re.compile(r"(?P<name>[A-Za-z0-9]+)(?:%(?P<left>-)?(?P<width>\d{1,5}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of an output table: the field that it shows, its width and its justification.

    Attributes:
        field: the field to show.
        width: width in characters of the terminal; 0 means that each text has its natural width, as in
            sprio.
        left: whether the text is left-justified.
        fixed: whether the user requested this width.
    """

    field: Field[Row]
    width: int
    left: bool
    fixed: bool = False

    def widened(self, header: str) -> Column[Row]:
        """Return a copy of the column at least as wide as its header.

        The width of a column of sacct, and a width that the user requested, do not change.
        """
        if self.fixed or self.field.slurm:
            return self
        return dataclasses.replace(self, width=max(self.width, len(header)))

    def title(self, header: str) -> str:
        """Return the text of the column's header, fitted to the width of the column."""
        return self.cell(header[: self.width] if self.field.slurm else header)

    def cell(self, text: str) -> str:
        """Return a text that is padded to the width of the column, or shortened if the field requires it."""
        text = escape_controls(text)
        width = self.width or display_width(text)
        overflow = self.field.overflow
        if overflow == "hash" and len(text) > width and text not in _TIME_WORDS:
            text = "#" * width
        elif overflow in ("date", "cut_date", "hash"):
            text = text[:width]
        if overflow != "widen" or display_width(text) < width:
            return fit(text, width, self.left)
        return text

    def raw(self, text: str, delimiter: str) -> str:
        """Return a cell text for output that programs read.

        If the delimiter is one of CSV files, the text is escaped so that no spreadsheet takes it for a
        formula, and quoted if it contains a quotation mark (RFC 4180), so that the text stays one cell.
        """
        if self.field.overflow == "date" and self.width:
            text = text[: self.width]
        if delimiter in _CSV_DELIMITERS and self.field.value_format == "text":
            text = str(escape_csv(text))
            return '"{}"'.format(text.replace('"', '""')) if '"' in text else text
        return text


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Layout of a table.

    Attributes:
        header: whether to print a header, underlined by dashes if the columns have fixed width.
        delimiter: text between values; None means columns of fixed width.
        trailing: whether the delimiter also follows the last value, as with `sacct -p`.
        rule: whether dashes separate header and sums from the rows, if the columns have fixed width.
    """

    header: bool = True
    delimiter: str | None = None
    trailing: bool = False
    rule: bool = True


def parse_columns(fields: Sequence[Field[Row]], text: str, flag: str, listing: str) -> list[Column[Row]]:
    """Return the columns that a list such as `JobID%-20,State,EDP%12` names.

    `%WIDTH` right-justifies a column, `%-WIDTH` left-justifies it.

    Args:
        fields: fields that the command can show.
        text: list of names; ALL stands for all fields.
        flag: option that contained the text, for the error message.
        listing: command that lists all fields, for the error message.

    Raises:
        UsageError: a field does not exist, or a width is not within 1 to 4096.
    """
    columns: list[Column[Row]] = []
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        if item.lower() == ALL:
            columns += [Column(field, field.width, field.left) for field in fields]
            continue
        if item.startswith("%"):
            todo = f"write names with widths behind them: {fields[0].name}%20; {listing}"
            raise UsageError(f"{flag}: '{shown(item)}' names no field", todo=todo)
        match = _ITEM.fullmatch(item)
        name = match["name"] if match else item.partition("%")[0]
        field = find_in(fields, name, flag, listing)
        width = int(match["width"]) if match and match["width"] else field.width
        if match is None or not 0 < width <= MAX_WIDTH:
            raise UsageError(f"{flag}: bad width in '{shown(item)}'", todo=f"write {field.name}%20 or %-20")
        columns.append(
            Column(field, width, bool(match["left"]), fixed=True)
            if match["width"]
            else Column(field, width, field.left)
        )
    if not columns:
        raise UsageError(f"{flag}: no field given", todo=listing)
    return columns


def check_columns(fields: Sequence[Field[Row]], text: str | None, flag: str, listing: str) -> None:
    """Check a list of columns as `parse_columns` does, before a slow request.

    If `text` is None, do nothing.
    """
    if text is not None:
        parse_columns(fields, text, flag, listing)


def table_lines(
    rows: Iterable[Row],
    columns: list[Column[Row]],
    style: Style,
    layout: TableLayout,
    total_of: Sequence[Row] | None = None,
) -> Iterator[str]:
    """Yield the lines of a table: the header and the rows.

    If `total_of` is given, the last line holds the sums of the additive columns over these rows.
    """
    names = [column.field.header(style) for column in columns]
    columns = [column.widened(name) for column, name in zip(columns, names, strict=True)]
    rule = " ".join("-" * column.width for column in columns)
    if layout.header:
        yield _header(names, columns, layout)
        if layout.delimiter is None and layout.rule:
            yield rule
    for row in rows:
        yield _line([column.field.text(row, style) for column in columns], columns, layout)
    if total_of is not None:
        if layout.delimiter is None and layout.rule:
            yield rule
        yield _line(_totals(total_of, columns, style), columns, layout)


def _totals(rows: Sequence[Row], columns: list[Column[Row]], style: Style) -> list[str]:
    values = []
    for column in columns:
        numbers = [column.field.value(row) for row in rows] if column.field.additive else []
        known_values = [number for number in numbers if isinstance(number, (int, float))]
        expected = column.field.additive and any(map(column.field.expected, rows))
        unknown = style.unknown if expected else ""
        values.append(column.field.write(math.fsum(known_values), style) if known_values else unknown)
        if column.field.total is not None:
            values[-1] = column.field.total(rows)
    if not columns[0].field.additive:
        values[0] = f"{len(rows)} job{'' if len(rows) == 1 else 's'}"
    return values


def _header(names: Sequence[str], columns: Sequence[Column[Row]], layout: TableLayout) -> str:
    if layout.delimiter is not None:
        return delimited(names, layout.delimiter) + (layout.delimiter if layout.trailing else "")
    return " ".join(column.title(name) for name, column in zip(names, columns, strict=True)).rstrip()


def _line(values: Sequence[str], columns: Sequence[Column[Row]], layout: TableLayout) -> str:
    cells = zip(columns, values, strict=True)
    if layout.delimiter is None:
        return " ".join(column.cell(value) for column, value in cells).rstrip()
    texts = [column.raw(value, layout.delimiter) for column, value in cells]
    return delimited(texts, layout.delimiter) + (layout.delimiter if layout.trailing else "")


def delimited(values: Sequence[str], delimiter: str) -> str:
    """Join values to one line. Control characters and delimiters inside a value are escaped.

    A job name that contains the delimiter would otherwise shift the columns of its row.
    """
    escape = "".join(f"\\x{ord(character):02x}" for character in delimiter)
    return delimiter.join(escape_controls(value).replace(delimiter, escape) for value in values)


def fit(text: str, width: int, left: bool) -> str:
    """Pad `text` to `width` terminal columns, or truncate it with a trailing `+` as sacct does."""
    if len(text) <= width and text.isascii() and text.isprintable():
        return text.ljust(width) if left else text.rjust(width)
    text = escape_controls(text)
    used = display_width(text)
    if used > width:
        while used > width - 1:
            used -= display_width(text[-1])
            text = text[:-1]
        return text + "+" if used == width - 1 else text + "+".rjust(width - used)
    return text + " " * (width - used) if left else " " * (width - used) + text


def field_lines(
    fields: Sequence[Field[Row]], *, with_meaning: bool, columns: int = 4, width: int = 20
) -> list[str]:
    """Return the lines that show all field names.

    As in `sacct --helpformat`, the names are in columns. If `with_meaning` is set, each name has a line
    of its own with its meaning.
    """
    if with_meaning:
        return [f"{field.name:<{width - 2}} {field.doc}" for field in fields]
    names = [field.name for field in fields]
    rows = (names[start : start + columns] for start in range(0, len(names), columns))
    return ["".join(name.ljust(width) for name in row).rstrip() for row in rows]
