"""Layout of text and tables for the width of a terminal.

All functions are pure.

Output to pipes and files is never laid out, so that no script depends on the width of a terminal. On a
terminal, the columns of a wide table become as narrow as their contents. If the table is still too wide, its
columns are shown in several groups, each with the first column. No text is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from slurm_energy.command_line.help_text import wrap
from slurm_energy.safe_text import display_width

_RULE: Final = re.compile(r"-+( +-+)+")
_BORDER: Final = re.compile(r"([=\-─])\1{39,}")
_GAP: Final = re.compile(r"\s{2,}")
_MIN_HEADER_GAPS: Final = 3
_MIN_ROOM: Final = 24
"""Columns that the text right of a hanging indent has at least."""

Span = tuple[int, int]


def fit_lines(lines: Sequence[str], columns: int) -> Iterator[str]:
    """Fit lines of text and tables into the width of a terminal, and yield the new lines.

    Args:
        lines: lines of the output.
        columns: width of the terminal in characters.
    """
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip() and not _BORDER.fullmatch(line):
            block.append(line)
            continue
        yield from _fit_block(block, columns)
        block = []
        yield line[:columns]


def fitted(lines: Sequence[str], columns: int) -> list[str]:
    """Return lines wrapped and aligned for a terminal with the given number of columns."""
    return list(fit_lines(lines, columns))[:-1]  # without the empty line that ends the last block


def is_header(lines: Sequence[str], index: int) -> bool:
    """Return whether the line at an index is the header of a table, above a rule."""
    return index + 1 < len(lines) and bool(_RULE.fullmatch(lines[index + 1])) and bool(lines[index].strip())


def _fit_block(block: Sequence[str], columns: int) -> Iterator[str]:
    if all(display_width(line) <= columns for line in block):
        yield from block
        return
    at = next((index for index, line in enumerate(block) if _RULE.fullmatch(line)), None)
    if at is None:
        yield from _fit_without_rule(block, columns)
        return
    if at == 0:
        for line in block:
            yield from _wrapped(line, columns)
        return
    for line in block[: at - 1]:
        yield from _wrapped(line, columns)
    yield from _table(block[at - 1 :], _spans(block[at]), columns)


def _wrapped(line: str, columns: int) -> Iterator[str]:
    """Yield the lines of one table row that is too wide for the terminal.

    The text of its last column continues in further lines.
    """
    if display_width(line) <= columns:
        yield line
        return
    indent = len(line) - len(line.lstrip())
    starts = [match.end() for match in re.finditer(r"\S\s{2,}(?=\S)", line)]
    hanging = max((start for start in starts if start <= columns - _MIN_ROOM), default=indent + 2)
    yield from wrap(line[hanging:], columns, first=line[:hanging], hanging=" " * hanging)


def _spans(rule: str) -> list[Span]:
    return [match.span() for match in re.finditer(r"-+", rule)]


def _fit_without_rule(block: Sequence[str], columns: int) -> Iterator[str]:
    """Yield the lines of a block of text without a rule (line of dashes), fitted to `columns`.

    A line with several wide gaps and the following lines with such gaps form a table. The other lines are
    wrapped.
    """
    gaps = [len(_GAP.findall(line.strip())) for line in block]
    begin = next((index for index, count in enumerate(gaps) if count >= _MIN_HEADER_GAPS), len(block))
    end = next((index for index in range(begin, len(block)) if not gaps[index]), len(block))
    for line in block[:begin]:
        yield from _wrapped(line, columns)
    table = block[begin:end]
    if table and any(display_width(line) > columns for line in table):
        yield from _table(table, _common_spans(table), columns)
    else:
        yield from table
    for line in block[end:]:
        yield from _wrapped(line, columns)


def _common_spans(block: Sequence[str]) -> list[Span]:
    """Return the columns of a text table that has no line of dashes below its header.

    A position that is blank in all lines separates two columns.
    """
    width = max(map(len, block))
    filled = [any(line[at : at + 1].strip() for line in block) for at in range(width)]
    text = "".join("-" if is_filled else " " for is_filled in filled)
    return _spans(text)


def _table(block: Sequence[str], spans: Sequence[Span], columns: int) -> Iterator[str]:
    """Lay out a table for the width of the terminal; yield its lines (header, dashed rule, rows)."""
    lines = [line for line in block if not _RULE.fullmatch(line)]
    rows = [_cells(line, spans) for line in lines]
    if any(row is None for row in rows):
        for line in block:
            yield from _wrapped(line, columns)
        return
    cells = [row for row in rows if row is not None]
    right = [_is_right_justified([row[index] for row in cells], span) for index, span in enumerate(spans)]
    texts = [
        [cell.strip() if right[index] else cell.rstrip() for index, cell in enumerate(row)] for row in cells
    ]
    widths = [max(display_width(row[index]) for row in texts) for index in range(len(spans))]
    is_rule = [bool(_RULE.fullmatch(line)) for line in block]
    for number, group in enumerate(_groups(widths, columns)):
        if number:
            yield ""
        rest = iter(texts)
        for rule in is_rule:
            if rule:
                yield " ".join("-" * widths[index] for index in group)
                continue
            row = next(rest)
            padded = (_padded(row[index], widths[index], left=not right[index]) for index in group)
            yield " ".join(padded).rstrip()


def _is_right_justified(cells: Sequence[str], span: Span) -> bool:
    """Return whether all texts of a column end at its right edge.

    In other columns the indent of the texts is kept, because the texts may form a tree.
    """
    width = span[1] - span[0]
    return all(display_width(cell.rstrip()) >= width for cell in cells if cell.strip())


def _groups(widths: Sequence[int], columns: int) -> list[list[int]]:
    """Divide the columns of a wide table into groups that fit the width of the terminal.

    Return the indices of the columns of each group. Every group begins with the first column of the table.
    """
    groups = [[0]]
    used = widths[0]
    for index in range(1, len(widths)):
        if used + 1 + widths[index] > columns and len(groups[-1]) > 1:
            groups.append([0])
            used = widths[0]
        groups[-1].append(index)
        used += 1 + widths[index]
    return groups


def _cells(line: str, spans: Sequence[Span]) -> list[str] | None:
    """Split a line of a text table into the texts of its columns.

    Return None if a text is wider than its column.
    """
    positions: list[str] = []
    for character in line:
        width = display_width(character)
        if width == 0 and positions:
            positions[-1] += character
            continue
        positions += [character, *[""] * (width - 1)]
    ends = [start for start, _ in spans[1:]]
    gaps = [positions[end:start] for (_, end), start in zip(spans, ends, strict=False)]
    if any("".join(gap).strip() for gap in gaps):
        return None
    cells = ["".join(positions[start:end]) for start, end in spans]
    cells[-1] = "".join(positions[spans[-1][0] :])
    return cells


def _padded(text: str, width: int, *, left: bool) -> str:
    blanks = " " * (width - display_width(text))
    return text + blanks if left else blanks + text
