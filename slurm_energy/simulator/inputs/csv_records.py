"""Reader of records in delimited text, such as CSV files.

A quoted field may contain delimiters and line ends.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from typing import Final

from slurm_energy.simulator.inputs.input_problems import InputProblems

_MAX_LINES: Final = 100
"""Maximum number of lines of a record. Without a bound, a stray quotation mark would swallow the file."""
_DELIMITERS: Final = ",;\t"

Record = tuple[int, list[str]]
"""Number of the first line of a record, and its fields."""


def delimiter_of(header: str) -> str:
    """Return the delimiter of a header line; `sacct -P` uses `|`."""
    if header.count("|") > max(header.count(mark) for mark in _DELIMITERS):
        return "|"
    return max(_DELIMITERS, key=header.count)


def records(
    lines: Iterator[tuple[int, str]], delimiter: str, problems: InputProblems, *, quotes: bool = True
) -> Iterator[Record]:
    """Yield the fields of each record of a text file. Empty lines are left out.

    A quoted field may span at most `_MAX_LINES` lines. If a quotation mark is not closed within these lines,
    the line with the mark is skipped, and reading continues with the next line.

    Args:
        lines: number and text of each line.
        delimiter: character between two fields.
        problems: record to which skipped lines are added.
        quotes: whether quotation marks enclose fields. sacct never quotes, so a quotation mark in sacct
            output is part of a job's name.
    """
    waiting: deque[tuple[int, str]] = deque()
    while (line := waiting.popleft() if waiting else next(lines, None)) is not None:
        number, text = line
        if not text.strip():
            continue
        if not quotes or '"' not in text:
            yield number, text.split(delimiter)
            continue
        used = [(number, text)]
        try:
            fields = next(
                csv.reader(_lines_of_record(used, waiting, lines), delimiter=delimiter, strict=True)
            )
        except (csv.Error, StopIteration) as error:
            open_mark = "unexpected end" in str(error) or isinstance(error, StopIteration)
            problems.skip("a quotation mark is not closed" if open_mark else f"not CSV: {error}", [number])
            waiting.extendleft(reversed(used[1:]))
            continue
        yield number, fields


def _lines_of_record(
    used: list[tuple[int, str]], waiting: deque[tuple[int, str]], lines: Iterator[tuple[int, str]]
) -> Iterator[str]:
    """Yield the lines that belong to one record of a CSV file.

    A record may extend over several lines. The first line is in `used`. The caller reads as many lines as
    the record needs. Each further line that the caller reads is appended to `used`.
    """
    yield used[0][1] + "\n"
    while len(used) < _MAX_LINES:
        line = waiting.popleft() if waiting else next(lines, None)
        if line is None:
            return
        used.append(line)
        yield line[1] + "\n"
