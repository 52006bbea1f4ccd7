"""Formatting of help pages for the width of the terminal, but for at most 80 columns."""

from __future__ import annotations

import argparse
import shutil
from typing import Any, Final

from slurm_energy.command_line.help_text import render, wrap

MAX_COLUMNS: Final = 80
_MIN_COLUMNS: Final = 40
_MARGIN: Final = 2


def page_columns() -> int:
    """Return the width of help pages: the width of the terminal, but at most 80 columns."""
    columns = shutil.get_terminal_size((MAX_COLUMNS, 24)).columns
    return max(_MIN_COLUMNS, min(columns, MAX_COLUMNS)) - _MARGIN


class HelpFormatter(argparse.HelpFormatter):
    """Formatter of `--help` for the width of the terminal, at most 80 columns.

    The formatter keeps the paragraphs and the table rows in descriptions and epilogs. Lines do not break at
    a hyphen, so that users can copy the names of options.
    """

    def __init__(self, prog: str, **options: Any) -> None:
        options.setdefault("width", page_columns())
        super().__init__(prog, **options)

    def _format_usage(self, *args: Any, **options: Any) -> str:
        """Return the usage line of a command, broken so that no line is wider than the help page.

        argparse itself breaks the usage line, but never inside a group of alternative options. Lines with a
        long group would be too wide. This method breaks these lines, too.
        """
        usage = super()._format_usage(*args, **options)
        if max(map(len, usage.splitlines())) <= self._width:
            return usage
        lines = [line for text in usage.splitlines() for line in self._fitted(text)]
        return "\n".join(lines) + "\n" * (len(usage) - len(usage.rstrip("\n")))

    def _fitted(self, line: str) -> list[str]:
        indent = len(line) - len(line.lstrip())
        return wrap(line.lstrip(), self._width, first=" " * indent, hanging=" " * max(indent, 7))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line if line else "" for line in render(text, width).splitlines())

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width)
